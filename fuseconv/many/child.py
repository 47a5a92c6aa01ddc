"""Runs `fuseconv` in a process that ends with its parent: `python -m fuseconv.many.child PARENT convert ...`.

PARENT is the process ID of the parent. A worker that is killed can therefore not go on converting a model that another
worker has begun again.
"""

from __future__ import annotations

import runpy
import sys

from fuseconv.processes.lifetime import end_with


def main() -> None:
    """Runs the command line with the words that follow PARENT, and ends the process with its exit status."""
    end_with(int(sys.argv.pop(1)))
    runpy.run_module("fuseconv", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

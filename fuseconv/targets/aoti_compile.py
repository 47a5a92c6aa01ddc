"""The child process of the target aoti: `python -m fuseconv.targets.aoti_compile SOURCE PACKAGE`."""

from __future__ import annotations

import sys

import torch
import torch._inductor


def main(source: str, package: str) -> None:
    """Compiles an exported program.

    Args:
        source: the exported program's path.
        package: where the package goes.
    """
    import fuseconv.ops  # noqa: F401  # the compiler traces our ops by their fake kernels

    exported = torch.export.load(source)
    torch._inductor.aoti_compile_and_package(exported, package_path=package)


if __name__ == "__main__":
    main(*sys.argv[1:])

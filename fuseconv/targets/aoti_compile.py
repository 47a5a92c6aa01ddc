"""The child process of the target aoti: `python -m fuseconv.targets.aoti_compile SOURCE PACKAGE [LIBRARY...]`."""

from __future__ import annotations

import sys

import torch


def main(source: str, package: str, *libraries: str) -> None:
    """Compiles an exported program.

    Args:
        source: the exported program's path.
        package: where the package goes.
        libraries: the op libraries that the program calls.
    """
    import fuseconv.ops  # gives our ops the fake kernels that the compiler traces with

    for library in libraries:
        torch.ops.load_library(library)
    exported = torch.export.load(source)
    torch._inductor.aoti_compile_and_package(exported, package_path=package)


if __name__ == "__main__":
    main(*sys.argv[1:])

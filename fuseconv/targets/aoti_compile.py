"""The child process of aoti: `python -m fuseconv.targets.aoti_compile SOURCE PACKAGE DEVICE [OP_FILE ...]`."""

from __future__ import annotations

import sys
from pathlib import Path

from fuseconv.processes.imports import imports


def main(source: str, package: str, device: str, *op_files: str) -> None:
    """Compiles an exported program.

    Args:
        source: the path of the exported program.
        package: the path of the package to write.
        device: `cpu` or `cuda`.
        op_files: Python files that register other ops of the program. The parent process was told to trust them.
    """
    with imports():
        import torch
        import torch._inductor.compile_fx

        from fuseconv.ops import OPS  # the compiler traces our ops by their fake kernels
        from fuseconv.rulebook.packs import load_ops
        from fuseconv.targets import c_shims

    load_ops(map(Path, op_files), {"code"})

    exported = torch.export.load(source).run_decompositions({op.overload: op.reference for op in OPS if op.decomposes})
    torch._inductor.aoti_compile_and_package(
        exported, package_path=package, inductor_configs=c_shims.inductor_configs(exported, device)
    )


if __name__ == "__main__":
    main(*sys.argv[1:])

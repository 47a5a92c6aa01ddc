"""What the child process of aoti runs; see processes/forked.py."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from fuseconv.weights.store import Store

_OUTSIDE = {
    "aot_inductor.package": True,
    "aot_inductor.package_constants_in_so": False,
    "aot_inductor.package_constants_on_disk_format": "pickle_weights",
}
"""Settings with which Inductor returns the weights to the caller."""


def main(source: str, package: str, device: str, bundle: str, *op_files: str) -> None:
    """Compiles an exported program.

    Args:
        source: the path of the exported program. The table beside it has the weights that are not in it.
        package: the path of the package to write.
        device: `cpu` or `cuda`.
        bundle: the folder of the bundle in which the weights are stored. Empty for a package that contains them.
        op_files: Python files that register other ops of the program. The parent process was told to trust them.
    """
    import torch
    import torch._inductor.compile_fx

    from fuseconv.ops import OPS  # the compiler traces our ops by their fake kernels
    from fuseconv.program.graph_copy import with_weights
    from fuseconv.rulebook.packs import load_ops
    from fuseconv.targets import c_shims
    from fuseconv.weights.store import Store, like
    from fuseconv.weights.table import Table, set_table

    load_ops(map(Path, op_files), {"code"})

    exported, store = torch.export.load(source), None
    if bundle:
        table = Table.of(Path(source))
        assert table is not None
        weights = table.read(Path(bundle), device)
        store = Store.reopen(Path(bundle), table, weights)
        changed = {name: like(exported.state_dict[name], tensor) for name, tensor in weights.items()}
        exported = with_weights(exported, changed)
    exported = exported.run_decompositions({op.overload: op.reference for op in OPS if op.decomposes})
    settings = _settings() | c_shims.inductor_configs(exported, device)
    if store is None:
        set_table(Path(package), None)
        torch._inductor.aoti_compile_and_package(exported, package_path=package, inductor_configs=settings)
    else:
        _compile_without_weights(exported, Path(package), store, settings)


def _settings() -> dict[str, Any]:
    """Returns the settings that Inductor takes from the environment where it is imported, which was before the fork.

    It detects the CPU's vector instructions even for a GPU, compiles its headers for each instruction set, and starts a
    Python process to load the result. The package is the same without these steps.
    """
    return {"cpp.vec_isa_ok": True, "cpp.cxx": (None, os.environ.get("CXX") or "g++")}


def _compile_without_weights(exported: ExportedProgram, package: Path, store: Store, settings: dict[str, Any]) -> None:
    """Writes a package without weights, and the table of its weights beside it."""
    import torch
    from torch._inductor.package.package import package_aoti

    from fuseconv.weights.table import set_table

    assert exported.example_inputs is not None
    args, kwargs = exported.example_inputs
    module = exported.module(check_guards=False)
    made = torch._inductor.aot_compile(module, args, kwargs, options={**settings, **_OUTSIDE})
    assert isinstance(made, list)
    files: list[Any] = [file for file in made if isinstance(file, str)]
    weights = {name: tensor for one in made if not isinstance(one, str) for name, (tensor, _) in one.items()}
    set_table(package, store.put(package.parent.name, weights))
    package_aoti(str(package), files)

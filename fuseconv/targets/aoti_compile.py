"""Compiles an AOTInductor package in the child process of the aoti target. See processes/forked.py."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from fuseconv.weights.store import Store

_PACKAGED = {"aot_inductor.package": True}

_OUTSIDE = {
    **_PACKAGED,
    "aot_inductor.package_constants_in_so": False,
    "aot_inductor.package_constants_on_disk_format": "pickle_weights",
}
"""Inductor settings that make the compiler return the weights to the caller."""

_X86 = {"AVX512": (512, "x86-64-v4"), "AVX2": (256, "x86-64-v3")}
"""For torch's names of x86 instruction sets: the width of a vector in bits, and the compiler's name of the CPUs."""

_ANY_X86 = (1, "x86-64")

_BEYOND = ("_is_amx_tile_supported", "_is_avx512_bf16_supported", "_is_vnni_supported")
"""The functions of torch.cpu by which Inductor finds instructions that CPUs with AVX512 may lack."""

_COMMANDS = "\n// Compile cmd\n"


def main(source: str, package: str, device: str, bundle: str, *op_files: str) -> None:
    """Compiles an exported program and writes the AOTInductor package.

    Args:
        source: the path of the exported program. The table next to it lists the weights that the file does not contain.
        package: the path of the package to write.
        device: `cpu` or `cuda`.
        bundle: the folder of the bundle in which the weights are stored. Empty for a package that contains its weights.
        op_files: Python files that register other ops of the program. The parent process was told to trust them.
    """
    from fuseconv.ops import OPS  # the compiler traces our ops with their fake kernels
    from fuseconv.program.graph_copy import with_weights
    from fuseconv.program.loading import load_program
    from fuseconv.rulebook.packs import load_ops
    from fuseconv.targets import c_shims
    from fuseconv.targets.inductor_complex import respell_complex_arithmetic
    from fuseconv.targets.inductor_interface import change_interface
    from fuseconv.targets.inductor_pools import keep_ceil_mode
    from fuseconv.targets.inductor_shims import call_without_shims
    from fuseconv.targets.inductor_timing import hide_launches
    from fuseconv.targets.size_hints import set_size_hints, widen_short_ranges
    from fuseconv.weights.store import Store, like
    from fuseconv.weights.table import Table, set_table

    load_ops(map(Path, op_files), {"code"})
    change_interface()
    keep_ceil_mode()
    call_without_shims()
    hide_launches()

    exported, store = load_program(source), None
    widen_short_ranges(exported)
    set_size_hints(exported)
    if bundle:
        table = Table.of(Path(source))
        assert table is not None
        weights = table.read(Path(bundle), device)
        store = Store.reopen(Path(bundle), table, weights)
        changed = {name: like(exported.state_dict[name], tensor) for name, tensor in weights.items()}
        exported = with_weights(exported, changed)
    respell_complex_arithmetic(exported)
    with unchanged_backends():
        exported = exported.run_decompositions({op.overload: op.decomposition for op in OPS if op.decomposes})
    settings = _settings() | tiling(exported) | c_shims.inductor_configs(exported, device)
    if store is None:
        set_table(Path(package), None)
    _compile(exported, Path(package), store, settings)


@contextmanager
def unchanged_backends() -> Iterator[None]:
    """Within the block, torch.export leaves cuDNN and oneDNN enabled. Clears torch's cache of fake results first.

    While torch.export decomposes a program, it disables both. Then a fake convolution of channels-last tensors returns
    a contiguous tensor, but the real convolution returns a channels-last tensor. The ops behind it would then be
    decomposed. Also, torch caches fake results by shapes and strides until the process ends, so Inductor would generate
    code that reads the real result with wrong strides. See docs/adr/0049-backends-stay-enabled.md.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    FakeTensorMode.cache_clear()
    backends = [vars(module) for module in (torch.backends.cudnn, torch.backends.mkldnn)]
    for backend in backends:
        backend["set_flags"] = lambda *flags: flags
    try:
        yield
    finally:
        for backend in backends:
            del backend["set_flags"]


def _settings() -> dict[str, Any]:
    """Returns Inductor settings for the C++ compiler and for the instructions that the package may use.

    Inductor reads the compiler from the environment when it is imported, which happened before the fork. By default,
    Inductor also tests which vector instructions the CPU supports, even for a GPU: it compiles its headers for each
    instruction set, and starts a Python process to load the result. The package is the same without this test.
    """
    compiler = os.environ.get("CXX") or "g++"
    return {"cpp.vec_isa_ok": True, "cpp.cxx": (None, compiler), **_instructions(platform.machine())}


def tiling(exported: ExportedProgram) -> dict[str, Any]:
    """Returns the Inductor setting for a program with dynamic dims, or none for static shapes.

    Inductor's analysis of coalesced memory accesses is documented as not for dynamic shapes, but is also performed for
    them. In torch 2.11 it then fails an assertion for some images whose height and width are dynamic.
    """
    from torch._inductor import config

    name = "coalesce_tiling_analysis"
    return {f"triton.{name}": False} if exported.range_constraints and hasattr(config.triton, name) else {}


def _instructions(machine: str) -> dict[str, Any]:
    """Returns Inductor settings by which a package runs on every x86 CPU with the instruction set that torch uses here.

    By default, the compiler may use all instructions of this CPU (`-march=native`), so that a package of a CPU with
    AVX512 and AMX, or one that is compiled under ATEN_CPU_CAPABILITY=avx2, may not run on the CPUs for which it is
    meant. Older versions of torch have no setting for this.
    """
    import torch
    from torch._inductor import config

    if machine != "x86_64":
        return {}
    for name in _BEYOND:
        if hasattr(torch.cpu, name):
            setattr(torch.cpu, name, lambda: False)  # this process does nothing but compile
    width, cpus = _X86.get(torch.backends.cpu.get_cpu_capability(), _ANY_X86)
    return {"cpp.simdlen": width, **({"cpp.march": cpus} if hasattr(config.cpp, "march") else {})}


def _compile(exported: ExportedProgram, package: Path, store: Store | None, settings: dict[str, Any]) -> None:
    """Writes a package. If there is a store, also writes the table of the package's weights next to the package."""
    import torch
    from torch._inductor.package.package import package_aoti

    from fuseconv.weights.table import set_table

    assert exported.example_inputs is not None
    args, kwargs = exported.example_inputs
    module = exported.module(check_guards=False)
    options = {**settings, **(_PACKAGED if store is None else _OUTSIDE)}
    made = torch._inductor.aot_compile(module, args, kwargs, options=options)
    assert isinstance(made, list)
    if store is not None:
        weights = {name: tensor for one in made if not isinstance(one, str) for name, (tensor, _) in one.items()}
        set_table(package, store.put(package.parent.relative_to(store.bundle).as_posix(), weights))
    with tempfile.TemporaryDirectory() as folder:
        files: list[Any] = [_without_commands(Path(file), Path(folder)) for file in made if isinstance(file, str)]
        package_aoti(str(package), files)


def _without_commands(file: Path, folder: Path) -> str:
    """Copies a C++ source without its compile command, and returns the path of the copy; returns other files unchanged.

    After Inductor has compiled a source, it appends the compile command, with paths of this machine, to the source in
    its cache. Without this function, a second package of the same code would contain the command and differ from the
    first.
    """
    if file.suffix != ".cpp":
        return str(file)
    text = file.read_text()
    (folder / file.name).write_text(text.partition(_COMMANDS)[0])
    return str(folder / file.name)

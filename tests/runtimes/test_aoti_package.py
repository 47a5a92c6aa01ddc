"""AOTInductor packages call our ops as C functions, with the results of the dispatcher, from any folder."""

from __future__ import annotations

import ctypes
import json
import platform
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support.calls import KEEP, SKIP, X
from support.libraries import patched
from support.op_table import DEVICES, rows, tensors
from support.small_bundle import Block
from torch import Tensor

from fuseconv import ops
from fuseconv.contract.spec import Contract
from fuseconv.numerics.fp64 import run_in_float64
from fuseconv.numerics.tolerance import compare
from fuseconv.ops import library
from fuseconv.ops.description import DTYPES
from fuseconv.ops.op import Op, Sample
from fuseconv.program.captured import Program
from fuseconv.targets import Context, aoti, c_shims
from fuseconv.weights.table import weights_of_artifact

capsule_pointer, new_capsule = ctypes.pythonapi.PyCapsule_GetPointer, ctypes.pythonapi.PyCapsule_New
capsule_pointer.restype, capsule_pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
new_capsule.restype, new_capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
new_handle = torch._C._aoti.unsafe_alloc_void_ptr_from_tensor
taken = torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr

OTHERS = [dtype for dtype in DTYPES if dtype != torch.float32]
NUMBERS = {"int": ctypes.c_int64, "float": ctypes.c_double, "bool": ctypes.c_int32}


class Ints(ctypes.Structure):
    _fields_ = (("data", ctypes.POINTER(ctypes.c_int64)), ("size", ctypes.c_int64))


def lookup(path: Path, device: str, op: str) -> int | None:
    """The address of an op's C function, from one copy of the library, or None."""
    function = getattr(ctypes.CDLL(str(path)), f"fuseconv_{device}_c_shim")
    function.restype = ctypes.c_void_p
    return function(op.encode())


def in_c(value: Any, declared: str, handles: list[Any]) -> Any:
    """An argument as AOTInductor passes it. The handles of tensors are kept in a list."""
    if isinstance(value, Tensor):
        handles.append(new_handle(value))
        passed = ctypes.c_void_p(capsule_pointer(handles[-1], None))
        return ctypes.pointer(passed) if declared.startswith("Optional") else passed
    if value is None:
        return ctypes.c_void_p()
    if isinstance(value, str):
        return ctypes.c_char_p(value.encode())
    if declared == "List[int]":
        return Ints((ctypes.c_int64 * len(value))(*value), len(value))
    return NUMBERS[declared](value)


def call(op: Op[..., Any], device: str, *args: Any, **kwargs: Any) -> list[Tensor] | None:
    """Calls an op by its C function: its results, or None if it says that it failed."""
    address = lookup(library.library_paths(device)[-1], device, op.name)
    assert address is not None
    function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)(address)
    declared = op.overload._schema.arguments
    handles: list[Any] = []
    given = dict(zip((argument.name for argument in declared), args, strict=False)) | kwargs
    values = [given.get(argument.name, argument.default_value) for argument in declared]
    passed = [in_c(value, str(a.type), handles) for value, a in zip(values, declared, strict=True)]
    made = [ctypes.c_void_p() for _ in op.overload._schema.returns]
    failed = function(*((ctypes.c_void_p * len(row))(*map(ctypes.addressof, row)) for row in (passed, made)))
    for each in handles:
        taken(each)  # frees the handle
    return None if failed else [taken(new_capsule(each.value, None, None)) for each in made]


@pytest.mark.parametrize(("op", "sample"), [*rows(), *rows(dtypes=OTHERS, most=3)])
def test_the_results_are_those_of_the_dispatcher(op: Op[..., Any], sample: Sample) -> None:
    expected = tensors(op(*sample.args, **sample.kwargs))
    results = call(op, expected[0].device.type, *sample.args, **sample.kwargs)
    assert results is not None
    for result, other in zip(results, expected, strict=True):
        assert result.dtype == other.dtype
        assert result.stride() == other.stride()
        torch.testing.assert_close(result, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("op", "sample"), rows("errors"))
def test_what_the_dispatcher_refuses_is_refused(
    op: Op[..., Any], sample: Sample, capfd: pytest.CaptureFixture[str]
) -> None:
    device = next(value.device.type for value in sample.args if isinstance(value, Tensor))
    with pytest.raises(RuntimeError, match=sample.matches):
        op(*sample.args, **sample.kwargs)
    capfd.readouterr()
    assert call(op, device, *sample.args, **sample.kwargs) is None
    assert "fuseconv" in capfd.readouterr().err


class EveryOp(torch.nn.Module):
    """Calls of all ops, in all dtypes, on inputs of their own."""

    def __init__(self, calls: Sequence[tuple[Op[..., Any], Sample]]) -> None:
        super().__init__()
        self.calls = calls

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        rest = iter(inputs)
        results: list[Tensor] = []
        for op, sample in self.calls:
            args = [next(rest) if isinstance(value, Tensor) else value for value in sample.args]
            results += tensors(op(*args, **sample.kwargs))
        return tuple(results)


def tensors_of(calls: Sequence[tuple[Op[..., Any], Sample]]) -> tuple[Tensor, ...]:
    return tuple(value for _, sample in calls for value in sample.args if isinstance(value, Tensor))


def wrapper(package: Path) -> str:
    """The C++ source of a package."""
    with zipfile.ZipFile(package) as archive:
        (source,) = (archive.read(name).decode() for name in archive.namelist() if name.endswith(".wrapper.cpp"))
    return source


@pytest.mark.compiles
@pytest.mark.long
@pytest.mark.parametrize("device", DEVICES)
def test_a_package_calls_ops_by_their_c_functions_and_has_kernels_of_its_own_for_what_decomposes(
    device: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """In one package: most of the time goes into what any package takes."""
    called, made = ([op for op in ops.OPS if op.decomposes is decomposes] for decomposes in (False, True))
    narrow = (torch.float32, torch.bfloat16)
    dtypes = DTYPES if request.config.getoption("--all") else narrow
    calls = [(op, sample) for op in called for dtype in dtypes for sample in op.samples(device, dtype)[:1]]
    direct = EveryOp(calls)(*tensors_of(calls))
    calls += [(op, sample) for op in made for dtype in narrow for sample in op.samples(device, dtype)[:1]]
    assert not any(isinstance(value, Tensor) for _, sample in calls for value in sample.kwargs.values())
    inputs = tensors_of(calls)
    program = Program(torch.export.export(EveryOp(calls), inputs), Contract((), (), device), inputs)
    package = tmp_path / aoti.write(program, tmp_path, Context(tmp_path))
    source = wrapper(package)
    assert "proxy_executor_call" not in source
    assert all(f"aoti_torch_{device}_{op.name}(" in source for op in called)
    assert not any(f"aoti_torch_{device}_{op.name}(" in source for op in made)
    results = aoti.load(package, device)(*inputs)
    exact = len(direct)
    for result, other in zip(results[:exact], direct, strict=True):
        torch.testing.assert_close(result, other, rtol=0, atol=0, equal_nan=True)
    expected, fp64 = program.exported.module()(*inputs), run_in_float64(program, inputs)
    for row in map(compare, results[exact:], expected[exact:], fp64[exact:]):
        assert row.ok, row.reason


LOAD = """
import json, os, sys, traceback, torch, torch._inductor.cpu_vec_isa

def load(package, weights, inputs, outputs, *libraries):
    for path in libraries:
        torch.ops.load_library(path)
    model = torch._inductor.aoti_load_package(package)
    model.load_constants(torch.load(weights), check_full_update=True)
    torch.save(model(*torch.load(inputs)), outputs)

torch._inductor.cpu_vec_isa.pick_vec_isa()  # the loader asks for it, and each would compile it anew
for line in sys.stdin:
    said, *arguments = json.loads(line)
    if (child := os.fork()) == 0:
        for stream in (1, 2):
            os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT), stream)
        try:
            load(*arguments)
        except Exception:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


LoadedWhere = Callable[..., tuple[int, Path, str]]


@pytest.fixture(scope="module")
def package(bundle: Path) -> Path:
    """The package of the small bundle: it calls linear_act, also with a residual."""
    return bundle / aoti.SPEC.artifact


@pytest.fixture(scope="module")
def loaded_where(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedWhere]:
    """Loads the package in a process that has these libraries, and no fuseconv, and calls it.

    The process is a fork of one that has imported torch. Returned are its status, the file of the results, and what it
    said.
    """
    folder = tmp_path_factory.mktemp("said")
    said, weights, inputs, outputs = (folder / name for name in ("said", "weights.pt", "inputs.pt", "outputs.pt"))
    torch.save((X, SKIP, KEEP), inputs)
    torch.save(weights_of_artifact(package, "cpu"), weights)
    command = [sys.executable, "-P", "-c", LOAD]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def load(*libraries: Path) -> tuple[int, Path, str]:
            assert process.stdin is not None
            assert process.stdout is not None
            for path in (said, outputs):
                path.unlink(missing_ok=True)
            process.stdin.write(json.dumps([*map(str, (said, package, weights, inputs, outputs, *libraries))]) + "\n")
            process.stdin.flush()
            return int(process.stdout.readline()), outputs, said.read_text()

        yield load


@pytest.mark.parametrize("copies", [("one",), ("older", "one"), ("one", "older"), ("one", "other")], ids="-".join)
def test_a_package_is_served_by_the_copy_that_has_the_op(
    copies: tuple[str, ...], loaded_where: LoadedWhere, tmp_path: Path
) -> None:
    original = library.library_paths("cpu")[0]
    for name in copies:
        (tmp_path / name).mkdir()
        path = tmp_path / name / original.name
        patched(path, b"linear_act", b"act_linear") if name == "older" else shutil.copy(original, path)
    status, outputs, said = loaded_where(*(tmp_path / name / original.name for name in copies))
    assert status == 0, said
    with torch.no_grad():
        expected = Block(fused=False)(X, SKIP, KEEP)
    torch.testing.assert_close(torch.load(outputs), list(expected))


def test_without_the_op_library_the_loader_names_it(loaded_where: LoadedWhere) -> None:
    status, _, said = loaded_where()
    assert status == 1
    assert "libfuseconv_cpu.so" in said


def test_an_unknown_op_has_no_c_function() -> None:
    assert lookup(library.library_paths("cpu")[0], "cpu", "no_such_op") is None


def test_a_program_without_our_ops_needs_no_library() -> None:
    exported = torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),))
    assert c_shims.inductor_configs(exported, "cpu") == {}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="torch has one set of instructions elsewhere")
def test_a_package_has_the_vector_instructions_of_torch_and_no_others(package: Path) -> None:
    """Inductor would choose AMX or VNNI where there is any, which the record of the machine does not name."""
    with zipfile.ZipFile(package) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("wrapper_metadata.json"))
        metadata = json.loads(archive.read(name))
    names = {"AVX512": "AVX512", "AVX2": "AVX2"}
    assert metadata["AOTI_CPU_ISA"] == names.get(torch.backends.cpu.get_cpu_capability(), "INVALID_VEC_ISA")

"""The op library for ONNX Runtime: every op in every dtype equals torch's op; unsupported calls fail."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnx import TensorProto
from support import small_bundle
from support.fp64 import assert_close_to_fp64
from support.onnx_calls import HAS_CUDA, save_model
from torch import Tensor

from fuseconv import ops
from fuseconv.doctor import machine
from fuseconv.errors import RefusedError, UnsupportedError, UpstreamError
from fuseconv.ops.library import FOLDER, PLUGINS, plugin_path
from fuseconv.ops.op import Op
from fuseconv.pipeline.assembly import target_names
from fuseconv.program.captured import Program
from fuseconv.runtime.model import load
from fuseconv.targets import TARGETS, Context
from fuseconv.targets.artifact import plain
from fuseconv.targets.onnx_functions import DOMAIN, arguments_of, op_type
from fuseconv.targets.onnx_session import element_types, open_session, runner

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
BY_GEMM = {"attention", "attention_score", "causal_attention", "linear_act", "linear_gated", "mlp"}
CPU = plugin_path("cpu")
NODES = [op for op in ops.OPS if op.onnx_node]
DEVICES = ["cpu", *(["cuda"] if HAS_CUDA else [])]


def tensors(results: Tensor | Iterable[Tensor]) -> tuple[Tensor, ...]:
    return (results,) if isinstance(results, Tensor) else tuple(results)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", NODES, ids=lambda op: op.name)
def test_every_op_in_every_dtype_gives_what_torchs_gives(
    op: Op[..., Any], dtype: torch.dtype, device: str, tmp_path: Path
) -> None:
    samples = op.samples(device, dtype)
    given = save_model(tmp_path / "model.onnx", op, samples)
    results = iter(runner(open_session(tmp_path / "model.onnx", device, plugin_path(device)), device)(*given))
    for sample in samples:
        args = [
            plain(value) if isinstance(value, Tensor) else value for value in sample.args
        ]  # aligned, as ONNX Runtime's
        f64 = [value.double() if isinstance(value, Tensor) and value.is_floating_point() else value for value in args]
        kwargs = {
            k: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in sample.kwargs.items()
        }
        own, true = tensors(op(*args, **sample.kwargs)), tensors(op.reference(*f64, **kwargs))
        for mine, fp64 in zip(own, true, strict=True):
            result = next(results)
            assert_close_to_fp64(result, mine, fp64)
            if op.name not in BY_GEMM:  # the same kernels
                assert torch.equal(result.reshape(-1).view(torch.uint8), mine.reshape(-1).view(torch.uint8))
    assert next(results, None) is None


@pytest.mark.parametrize("op", NODES, ids=lambda op: op.name)
def test_what_an_op_refuses_fails_the_session_or_the_call(op: Op[..., Any], tmp_path: Path) -> None:
    for sample in op.errors("cpu"):
        given = [v for v in arguments_of(op, sample.args, sample.kwargs).values() if isinstance(v, Tensor)]
        if any(value.dtype not in element_types() for value in given):
            continue  # complex: no model has such an input
        given = save_model(tmp_path / "model.onnx", op, [sample])
        # Dtypes are seen by ONNX Runtime itself, when it looks for a kernel; all else by the op.
        expected = (
            rf"of operator \({op_type(op)}\)|(implementation for|inputs for Op:) {op_type(op)}\b|{sample.matches}"
        )
        with pytest.raises((UnsupportedError, UpstreamError, RuntimeError), match=expected):
            runner(open_session(tmp_path / "model.onnx", "cpu", CPU), "cpu")(*given)


def test_another_dtype_fails_the_session(tmp_path: Path) -> None:
    sample = ops.add_relu.samples("cpu", torch.float32)[0]
    integers = type(sample)("i32", tuple(value.int() for value in sample.args))
    save_model(tmp_path / "model.onnx", ops.add_relu, [integers])
    with pytest.raises((UnsupportedError, UpstreamError), match=r"AddRelu[\s\S]*int32|int32[\s\S]*AddRelu"):
        open_session(tmp_path / "model.onnx", "cpu", CPU)


def test_without_the_library_the_session_fails(tmp_path: Path) -> None:
    save_model(tmp_path / "model.onnx", ops.add_relu, ops.add_relu.samples("cpu", torch.float32)[:1])
    with pytest.raises((UnsupportedError, UpstreamError), match="AddRelu"):
        open_session(tmp_path / "model.onnx", "cpu")


def test_a_missing_attribute_fails_the_session(tmp_path: Path) -> None:
    save_model(tmp_path / "model.onnx", ops.bias_act, ops.bias_act.samples("cpu", torch.float32)[:1])
    model = onnx.load(tmp_path / "model.onnx")
    del model.graph.node[0].attribute[:]
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises((UnsupportedError, UpstreamError), match="act"):
        open_session(tmp_path / "model.onnx", "cpu", CPU)


def test_ops_that_the_small_bundle_has_not_come_through_the_exporter(tmp_path: Path) -> None:
    exported: list[Op[..., Any]] = [
        ops.add_rms_norm,
        ops.attention_score,
        ops.causal_attention,
        ops.gated_act,
        ops.gelu_dropout,
        ops.group_norm_act,
    ]
    exported += [ops.linear_gated, ops.mlp]
    calls = [(op, op.samples("cpu", torch.float64)[0]) for op in exported]

    class Everything(torch.nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            return tuple(result + x.sum() for op, s in calls for result in tensors(op(*s.args, **s.kwargs)))

    program = small_bundle.program(Everything(), ("x=f64[n:1..4]",))
    path = tmp_path / TARGETS["onnx-plugin"].write(program, tmp_path, Context(tmp_path))
    assert {node.op_type for node in onnx.load(path).graph.node if node.domain == DOMAIN} == set(map(op_type, exported))
    x = torch.randn(3, dtype=torch.float64)
    for result, own in zip(TARGETS["onnx-plugin"].load(path, "cpu")(x), Everything()(x), strict=True):
        torch.testing.assert_close(result, own, rtol=1e-12, atol=1e-12)


def test_alone_it_brings_its_own_weights(fused: Program, tmp_path: Path) -> None:
    TARGETS["onnx-plugin"].write(fused, tmp_path, Context(tmp_path))
    files = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {"lib/libfuseconv_ort_cpu.so", "model.plugin.onnx", "model.onnx.data"}


def test_in_bfloat16_it_serves_what_onnx_runtime_has_no_kernels_for(tmp_path: Path) -> None:
    class Layers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(6, 8).bfloat16())

        def forward(self, x: Tensor) -> Tensor:
            return ops.layer_norm_act(ops.linear_act(x, self.weight, None, None, "gelu"), None, None, 1e-5, "relu")

    module = Layers()
    program = small_bundle.program(module, ("x=bf16[batch:1..4,8]",))
    with pytest.raises(UnsupportedError, match="has no kernel"):
        TARGETS["onnx"].write(program, tmp_path / "plain", Context(tmp_path))
    path = tmp_path / TARGETS["onnx-plugin"].write(program, tmp_path, Context(tmp_path))
    x = torch.randn(3, 8).bfloat16()
    (result,) = TARGETS["onnx-plugin"].load(path, "cpu")(x)
    torch.testing.assert_close(result, module(x).detach())


def test_outputs_go_where_they_are_bound(bundle: Path) -> None:
    session = open_session(bundle / "model.plugin.onnx", "cpu", bundle / "lib/libfuseconv_ort_cpu.so")
    x, skip, keep = torch.randn(3, 5, 8), torch.randn(3, 5, 8), torch.rand(3, 5) > 0.5
    binding, elements, out = session.io_binding(), element_types(), torch.full((3, 5, 8), 7.0)
    for name, value in (("x", x), ("skip", skip), ("keep", keep)):
        binding.bind_input(name, "cpu", 0, elements[value.dtype], list(value.shape), value.data_ptr())
    binding.bind_output("output_0", "cpu", 0, TensorProto.FLOAT, list(out.shape), out.data_ptr())
    session.run_with_iobinding(binding)
    torch.testing.assert_close(out, load(bundle, "export")(x, skip, keep)[0])


def test_one_session_serves_many_threads(bundle: Path) -> None:
    model, expected = load(bundle, "onnx-plugin"), load(bundle, "export")
    inputs = [(torch.randn(n, 7, 8), torch.randn(n, 7, 8), torch.rand(n, 7) > 0.5) for n in range(1, 9)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda call: model(*call), inputs * 8))
    for result, call in zip(results, inputs * 8, strict=True):
        torch.testing.assert_close(result[0], expected(*call)[0])


def test_the_library_comes_from_the_bundle_and_from_nowhere_else(
    bundle_copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = bundle_copy / "lib/libfuseconv_ort_cpu.so"
    library.chmod(0o757)
    with pytest.raises(
        RefusedError, match=r"libfuseconv_ort_cpu\.so, from which code is loaded, is writable by everyone"
    ):
        load(bundle_copy, "onnx-plugin")
    shutil.move(library, tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RefusedError, match=r"lib/libfuseconv_ort_cpu\.so is missing"):
        load(bundle_copy, "onnx-plugin")
    with pytest.raises(RefusedError, match="the op library for ONNX Runtime is missing"):
        TARGETS["onnx-plugin"].load(bundle_copy / "model.plugin.onnx", "cpu")


def test_two_bundles_share_a_process(bundle: Path, bundle_copy: Path) -> None:
    x, skip, keep = torch.randn(2, 3, 8), torch.randn(2, 3, 8), torch.rand(2, 3) > 0.5
    first, second = load(bundle, "onnx-plugin"), load(bundle_copy, "onnx-plugin")
    for result, other in zip(first(x, skip, keep), second(x, skip, keep), strict=True):
        assert torch.equal(result, other)


def test_without_its_library_it_says_how_to_build_it(
    fused: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fuseconv.ops.library.FOLDER", tmp_path)
    assert "libfuseconv_ort_cpu.so, is not built" in (TARGETS["onnx-plugin"].unsupported(fused) or "")
    assert "onnx-plugin" not in target_names(())
    (finding,) = [one for one in machine.findings() if one.name == "ONNX Runtime plugin, cpu"]
    assert not finding.ok
    assert "FUSECONV_ONNXRUNTIME_INCLUDE" in finding.fix


@pytest.mark.parametrize("path", [FOLDER / name for name in PLUGINS.values()], ids=lambda path: path.name)
def test_a_library_needs_no_torch_and_exports_one_function(path: Path) -> None:
    if not path.is_file():
        pytest.skip("not built")
    symbols = subprocess.run(["nm", "-DC", path], capture_output=True, text=True, check=True).stdout.splitlines()
    defined = [line.split(maxsplit=2)[2] for line in symbols if re.match(r"[0-9a-f]+ ", line)]
    tuning = ["fuseconv::tuning::bundle_files_1"] if "cuda" in path.name else []
    assert sorted(name for name in defined if "std::" not in name) == ["RegisterCustomOps", *tuning]
    assert not [line for line in symbols if re.search(r"torch|c10::|at::", line)]
    dynamic = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout
    assert not re.search(r"RPATH|RUNPATH|libtorch|libonnxruntime", dynamic)


OLD = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
status = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)
class Api(ctypes.Structure):
    _fields_ = [("CreateStatus", ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p))]
class Base(ctypes.Structure):
    _fields_ = [("GetApi", ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)),
                ("GetVersionString", ctypes.CFUNCTYPE(ctypes.c_char_p))]
said = []
api = Api(Api._fields_[0][1](lambda code, message: said.append(message.decode()) or 1))
base = Base(Base._fields_[0][1](lambda version: ctypes.addressof(api) if version < 17 else None),
            Base._fields_[1][1](lambda: b"1.16.3"))
library.RegisterCustomOps.restype = ctypes.c_void_p
print(library.RegisterCustomOps(None, ctypes.byref(base)), *said)
"""


def test_an_older_onnx_runtime_is_told_what_is_needed() -> None:
    done = subprocess.run([sys.executable, "-c", OLD, CPU], capture_output=True, text=True, check=True)
    assert done.stdout == "1 fuseconv needs ONNX Runtime 1.17 or newer, this is 1.16.3\n"

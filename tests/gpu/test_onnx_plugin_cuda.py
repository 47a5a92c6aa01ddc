"""The op library for ONNX Runtime's CUDA provider, beyond the table of test_onnx_plugin.py."""

import ctypes
import importlib.util
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from support.onnx_calls import HAS_CUDA, save_model

from fuseconv import ops
from fuseconv.errors import UnsupportedError, UpstreamError
from fuseconv.ops.library import FOLDER, PLUGINS, plugin_path
from fuseconv.ops.op import Op
from fuseconv.targets.onnx_session import element_types, open_session


def cublas() -> Path | None:
    """The library that the plugin needs, of the Python package, or None."""
    package = importlib.util.find_spec("nvidia")
    folders = package and package.submodule_search_locations
    return next((path for folder in folders or () for path in Path(folder).glob("cu*/lib/libcublasLt.so.*")), None)


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_CUDA, reason="ONNX Runtime has no CUDA here: install onnxruntime-gpu")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_cuda_graphs_replay_on_new_values(dtype: torch.dtype, tmp_path: Path) -> None:
    op: Op[..., Any] = ops.linear_act
    sample = next(sample for sample in op.samples("cuda", dtype) if sample.name == "rows_of_16_bytes_gelu")
    given = save_model(tmp_path / "model.onnx", op, [sample])
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(plugin_path("cuda")))
    cuda = ("CUDAExecutionProvider", {"enable_cuda_graph": "1", "use_tf32": "0"})
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", options, providers=[cuda])
    binding, out = session.io_binding(), torch.empty(33, 72, dtype=dtype, device="cuda")
    for slot, value in zip(session.get_inputs(), given, strict=True):
        binding.bind_input(slot.name, "cuda", 0, element_types()[dtype], list(value.shape), value.data_ptr())
    (slot,) = session.get_outputs()
    binding.bind_output(slot.name, "cuda", 0, element_types()[dtype], list(out.shape), out.data_ptr())
    for factor in (1.0, 0.5, -2.0, 3.0):  # the first calls time the backends, then one is captured
        given[0].mul_(factor)
        torch.cuda.synchronize()
        session.run_with_iobinding(binding)
        torch.cuda.synchronize()
        torch.testing.assert_close(out, op(*given, act="gelu"))


@pytest.mark.skipif(
    not (FOLDER / PLUGINS["cuda"]).is_file() or not (HAS_CUDA or cublas()), reason="needs the CUDA library, and cuBLAS"
)
def test_a_library_of_another_provider_fails_the_session(tmp_path: Path) -> None:
    if not HAS_CUDA:
        ctypes.CDLL(str(cublas()), ctypes.RTLD_GLOBAL)
    save_model(tmp_path / "model.onnx", ops.add_relu, ops.add_relu.samples("cpu", torch.float32)[:1])
    with pytest.raises((UnsupportedError, UpstreamError), match="AddRelu"):
        open_session(tmp_path / "model.onnx", "cpu", plugin_path("cuda"))

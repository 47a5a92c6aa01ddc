"""Every op on CUDA: in graphs, on streams, on each device, with more than 2^31 elements."""

from typing import Any

import pytest
import torch
from support.fp64 import assert_close_to_fp64
from torch import Tensor

from fuseconv import ops
from fuseconv.ops.op import Op, Sample

pytestmark = pytest.mark.gpu

HUGE = 2**31 + 2**12


def tensors(results: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (results,) if isinstance(results, Tensor) else results


def first_sample(op: Op[..., Any], dtype: torch.dtype = torch.float32, device: str = "cuda") -> Sample:
    return op.samples(device, dtype)[0]


def cloned(sample: Sample) -> list[Any]:
    return [value.clone() if isinstance(value, Tensor) else value for value in sample.args]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("op", ops.OPS, ids=lambda op: op.name)
def test_replays_from_a_graph(op: Op[..., Any], dtype: torch.dtype) -> None:
    """The graph is captured before the op ran on these sizes, and reads what its inputs hold at the replay."""
    sample = first_sample(op, dtype)
    args = cloned(sample)
    # cuBLAS and cuDNN are made before a capture, as in any program that has run a product and a convolution.
    torch.cuda.current_blas_handle()
    torch.nn.functional.conv1d(torch.ones(1, 1, 4, device="cuda"), torch.ones(1, 1, 1, device="cuda"))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = tensors(op(*args, **sample.kwargs))
    for value in args:
        if isinstance(value, Tensor) and value.is_floating_point():
            value.copy_(value.flip(0) if value.dim() else -value)
    for result in captured:
        result.fill_(77)
    graph.replay()
    for result, expected in zip(captured, tensors(op(*args, **sample.kwargs)), strict=True):
        torch.testing.assert_close(result, expected, equal_nan=True)


@pytest.mark.parametrize("op", ops.OPS, ids=lambda op: op.name)
def test_runs_on_the_current_stream(op: Op[..., Any]) -> None:
    """What the stream did before is seen, and what it does after sees the result."""
    sample = first_sample(op)
    expected = tensors(op(*sample.args, **sample.kwargs))
    late = [torch.zeros_like(value) if isinstance(value, Tensor) else value for value in sample.args]
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(20_000_000)
        for value, final in zip(late, sample.args, strict=True):
            if isinstance(value, Tensor):
                value.copy_(final)
        copies = [result.clone() for result in tensors(op(*late, **sample.kwargs))]
    torch.cuda.synchronize()
    for result, right in zip(copies, expected, strict=True):
        torch.testing.assert_close(result, right, equal_nan=True)


@pytest.mark.parametrize("index", range(torch.cuda.device_count()))
@pytest.mark.parametrize("op", ops.OPS, ids=lambda op: op.name)
def test_runs_on_the_device_of_its_tensors(op: Op[..., Any], index: int) -> None:
    """Also when another device is the current one."""
    sample = first_sample(op)
    expected = tensors(op(*sample.args, **sample.kwargs))
    there = [value.to(f"cuda:{index}") if isinstance(value, Tensor) else value for value in sample.args]
    for result, right in zip(tensors(op(*there, **sample.kwargs)), expected, strict=True):
        assert result.device.index == index
        torch.testing.assert_close(result.to(right.device), right, equal_nan=True)


@pytest.mark.parametrize("act", ["none", "relu", "gelu"])
def test_gradients_of_large_f32_layers(act: str) -> None:
    """These go by another way than those of small ones."""
    x, weight, bias = (torch.randn(size, device="cuda") for size in ((700, 520), (640, 520), (640,)))
    grad = torch.randn(700, 640, device="cuda")
    gradients = []
    for layer, dtype in (
        (ops.linear_act, None),
        (ops.linear_act.reference, None),
        (ops.linear_act.reference, "double"),
    ):
        leaves = [(value if dtype is None else value.double()).clone().requires_grad_() for value in (x, weight, bias)]
        layer(leaves[0], leaves[1], leaves[2], act=act).backward(grad if dtype is None else grad.double())
        gradients.append([leaf.grad for leaf in leaves])
    for ours, eager, fp64 in zip(*gradients, strict=True):
        assert_close_to_fp64(ours, eager, fp64)


def huge(columns: int) -> Tensor:
    """A tensor of more than 2^31 elements, of which only some are not 0: cheap to make and to compare."""
    x = torch.zeros(HUGE // columns + 1, columns, dtype=torch.bfloat16, device="cuda")
    x[::100_003] = torch.randn(columns, dtype=torch.bfloat16, device="cuda")
    x[-1] = torch.randn(columns, dtype=torch.bfloat16, device="cuda")
    return x


HUGE_CALLS = {
    "activation_backward": lambda x: ops.activation_backward(x, x, "relu", False)[0],
    "add_layer_norm": lambda x: ops.add_layer_norm(x, x, None, None, 1e-5, False)[0],
    "add_relu": lambda x: ops.add_relu(x, x),
    "bias_act": lambda x: ops.bias_act(x, x[-1], "gelu"),
    "group_norm_act": lambda x: ops.group_norm_act(x.view(-1, 8, 128), 4, x[-1, :8], x[-1, 8:16], 1e-5, "silu").view_as(
        x
    ),
    "layer_norm_act": lambda x: ops.layer_norm_act(x, None, None, 1e-5, "relu"),
    "linear_act": lambda x: ops.linear_act(x, torch.eye(x.shape[1], dtype=x.dtype, device="cuda"), x[-1], act="gelu"),
    "mul_add": lambda x: ops.mul_add(x, x, x),
}


@pytest.mark.parametrize("name", HUGE_CALLS)
def test_more_elements_than_32_bits_count(name: str) -> None:
    x = huge(1024)
    result = HUGE_CALLS[name](x)
    for rows in (slice(0, 3), slice(100_003, 100_004), slice(-2, None)):
        part = torch.cat([x[rows], x[-1:]])  # each call takes its last row for more than a row
        torch.testing.assert_close(result[rows], HUGE_CALLS[name](part)[:-1])

"""One table: every op, every dtype, every sample."""

import ctypes
import statistics
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeGuard

import pytest
import torch
from support.fp64 import assert_close_to_fp64
from support.layouts import layout
from support.op_table import DEVICES, rows, tensors
from support.roundings import to_tf32
from torch import Tensor

from fuseconv import ops
from fuseconv.ops.autocast import Policy, lower, single, widest
from fuseconv.ops.description import DTYPES
from fuseconv.ops.op import Op, Sample
from fuseconv.ops.sampling import Draw


def differentiable(value: object) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor) and value.is_floating_point()


def as_f64(args: Iterable[Any]) -> list[Any]:
    return [value.double() if differentiable(value) else value for value in args]


def in_its_precision(op: Op[..., Any], sample: Sample) -> list[Any]:
    """The arguments as the op may round them: on CUDA, the factors of a convolution in f32 that may use TF32.

    PyTorch rounds them too, but not for every size.
    """
    args = sample.args
    in_tf32 = op is ops.conv_act and args[0].dtype == torch.float32 and args[0].device.type == "cuda"
    if not in_tf32 or not sample.kwargs.get("tf32", True):
        return list(args)
    return [to_tf32(args[0]), to_tf32(args[1]), *args[2:]]


@contextmanager
def perturbed(byte: int) -> Iterator[None]:
    """Makes malloc fill what it hands out, and what it takes back, with patterns of this byte (glibc's M_PERTURB)."""
    mallopt = ctypes.CDLL(None).mallopt
    assert mallopt(-6, byte) == 1
    yield
    mallopt(-6, 0)


def run_on_dirty_memory(op: Op[..., Any], sample: Sample) -> list[Tensor]:
    """Calls the op on memory of two contents: an element that the kernel leaves out differs between the two."""
    runs = []
    for byte in (0x80, 0x55):
        with perturbed(byte):
            results = tensors(op(*sample.args, **sample.kwargs))
        runs.append([result.clone(memory_format=torch.preserve_format) for result in results])
        for result in results:
            result.fill_(byte)  # CUDA's allocator hands the same block out again
        del result, results
    for first, second in zip(*runs, strict=True):
        assert torch.equal(first.reshape(-1).view(torch.uint8), second.reshape(-1).view(torch.uint8))
    return runs[0]


def test_memory_is_dirty() -> None:
    contents = []
    for byte in (0x80, 0x55):
        with perturbed(byte):
            contents.append(torch.empty(1000, dtype=torch.uint8)[16:].clone())
    assert (contents[0] != contents[1]).all()


@pytest.mark.parametrize(("op", "sample"), rows(dtypes=DTYPES))
def test_values(op: Op[..., Any], sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    before = [value.clone() if isinstance(value, Tensor) else value for value in sample.args]
    results = run_on_dirty_memory(op, sample)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", sample.kwargs.get("tf32", True))
    eager = tensors(op.reference(*in_its_precision(op, sample), **sample.kwargs))
    kwargs = dict(zip(sample.kwargs, as_f64(sample.kwargs.values()), strict=True))
    fp64 = tensors(op.reference(*as_f64(sample.args), **kwargs))
    assert len(results) == len(eager)
    for result, original, true in zip(results, eager, fp64, strict=True):
        assert_close_to_fp64(result, original, true)
        assert layout(result) == layout(original)  # a view of eager's result is a view of this one
    for value, was in zip(sample.args, before, strict=True):
        if isinstance(value, Tensor):
            assert torch.equal(value, was)


TRACED = "test_aot_dispatch_dynamic"
"""The one of opcheck's that takes a hundred times as long as the others: it traces forward and backward by sizes."""


@pytest.fixture(autouse=True)
def deterministic() -> Iterator[None]:
    """cuDNN's convolution backward adds with atomics otherwise, in another order each time."""
    with torch.backends.cudnn.flags(enabled=True, deterministic=True):
        yield


UNTRACED = ("test_schema", "test_autograd_registration", "test_faketensor")


def opchecked(op: Op[..., Any], sample: Sample, checks: Sequence[str]) -> None:
    args = tuple(value.detach().requires_grad_() if differentiable(value) else value for value in sample.args)
    with torch._dynamo.config.patch(fake_tensor_cache_enabled=False):  # each sample is traced once
        outcome = torch.library.opcheck(op.overload, args, dict(sample.kwargs), test_utils=checks)
    assert outcome == dict.fromkeys(checks, "SUCCESS")


@pytest.mark.diagonal(4)
@pytest.mark.parametrize("op", ops.OPS, ids=lambda op: op.name)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_opcheck_of_a_dtype(op: Op[..., Any], dtype: torch.dtype, device: str) -> None:
    """Traced; the other checks of the same rows are below."""
    opchecked(op, op.samples(device, dtype)[0], [TRACED])


@pytest.mark.diagonal(5)
@pytest.mark.parametrize(("op", "sample"), rows()[1::4])
def test_opcheck(op: Op[..., Any], sample: Sample) -> None:
    opchecked(op, sample, [TRACED])


@pytest.mark.parametrize(("op", "sample"), rows() + rows(dtypes=[torch.float64, torch.float16, torch.bfloat16], most=3))
def test_opcheck_untraced(op: Op[..., Any], sample: Sample) -> None:
    opchecked(op, sample, UNTRACED)


@pytest.mark.parametrize(("op", "sample"), rows(dtypes=[torch.float64]))
def test_gradient(op: Op[..., Any], sample: Sample) -> None:
    args = [value.clone().requires_grad_() if differentiable(value) else value for value in sample.args]
    tensors_in = [value for value in args if differentiable(value)]
    if sum(value.numel() for value in tensors_in) > 4000:
        pytest.skip("too many elements for finite differences")
    assert torch.autograd.gradcheck(lambda *_: op(*args, **sample.kwargs), tensors_in, fast_mode=True)


@pytest.mark.parametrize("op", ops.OPS, ids=lambda op: op.name)
def test_second_derivative(op: Op[..., Any]) -> None:
    sample = op.samples("cpu", torch.float64)[0]
    args = [value.clone().requires_grad_() if differentiable(value) else value for value in sample.args]
    tensors_in = [value for value in args if differentiable(value)]
    assert torch.autograd.gradgradcheck(lambda *_: op(*args, **sample.kwargs), tensors_in, fast_mode=True)


@pytest.mark.parametrize(("op", "sample"), rows("errors"))
def test_refusals(op: Op[..., Any], sample: Sample) -> None:
    with pytest.raises(RuntimeError, match=sample.matches):
        op(*sample.args, **sample.kwargs)


def test_refuses_more_dims_than_views_hold() -> None:
    x = torch.ones((1,) * 17)
    with pytest.raises(RuntimeError, match="a tensor has 17 dims; at most 16"):
        ops.add_relu(x, x)


@pytest.mark.gpu
def test_refuses_two_devices() -> None:
    with pytest.raises(RuntimeError, match="all tensors must be on one device"):
        ops.add_relu(torch.ones(2, device="cuda"), torch.ones(2))


def specials(dtype: torch.dtype, device: str) -> Tensor:
    """Values at the edges of formulas and of the dtype, 1.5 vectors of the widest instruction set and more."""
    info = torch.finfo(dtype)
    values = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, info.max, -info.max, info.tiny, -info.tiny]
    values += [info.tiny / 4, 1e-3, -1e-3, 0.5, -0.5, 0.62, -0.63, 1, -1, 3, -3, 5.5, -5.5, 9, -9, 13, -13, 87, -87]
    values += [88.1, -88.1, 89, -89, 104, -104, 200, -200, 1e4, -1e4]
    return torch.tensor(values, dtype=torch.float64, device=device).to(dtype)


@pytest.mark.parametrize("act", ops.ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_special_values_through_activations(act: str, dtype: torch.dtype, device: str) -> None:
    # Against f64 on the CPU: in torch 2.13 the f32 gelu there gives NaN at +inf and inf at the largest number, and the
    # f64 hardsigmoid on CUDA divides by 6 in f32.
    x = specials(dtype, "cpu")
    zero, largest = torch.zeros_like(x), torch.finfo(torch.float64).max

    def check(op: Op[..., Any], *args: Tensor) -> None:
        """torch's hardswish multiplies by 6 before it divides by 6, which overflows at the largest f64."""
        fp64 = op.reference(*(arg.double() for arg in args), act=act)
        if act == "hard_swish" and op is not ops.linear_gated:
            fp64 = fp64.where(args[0].double() != largest, largest)
        result = op(*(arg.to(device) for arg in args), act=act)
        torch.testing.assert_close(result.cpu(), fp64.to(dtype), equal_nan=True)

    check(ops.bias_act, x, zero)
    # And through a product with the unit matrix, where 0 * inf would be NaN.
    finite = x[x.isfinite()][:, None]
    check(ops.linear_act, finite, torch.ones(1, 1, dtype=dtype))
    check(ops.linear_gated, finite, torch.ones(2, 1, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_special_values_through_sums_and_norms(dtype: torch.dtype, device: str) -> None:
    x = specials(dtype, device)
    grid, other = torch.meshgrid(x, x, indexing="ij")
    torch.testing.assert_close(ops.add_relu(grid, other), torch.relu(grid + other), equal_nan=True)
    for bad in (float("nan"), float("inf"), -float("inf")):
        rows_in = Draw(device, dtype)(3, 50)
        rows_in[1, 7] = bad
        rest = torch.zeros_like(rows_in)
        calls: list[tuple[Op[..., Any], tuple[Any, ...]]] = [
            (ops.add_layer_norm, (rest, None, None, 1e-5)),
            (ops.group_norm_act, (5, None, None, 1e-5, "relu")),
            (ops.layer_norm_act, (None, None, 1e-5, "relu")),
            (ops.add_rms_norm, (rest, None, 1e-5)),
            (ops.rms_norm, (None, 1e-5)),
        ]
        for op, args in calls:
            # Truth on the CPU: the RMS norm of torch 2.11 on CUDA makes a whole row NaN of one infinity, if its length
            # is odd enough.
            fp64 = op.reference(*(v.cpu().double() if isinstance(v, Tensor) else v for v in (rows_in, *args)))
            results = tensors(op(rows_in, *args)), tensors(op.reference(rows_in, *args)), tensors(fp64)
            for result, original, true in zip(*results, strict=True):
                assert_close_to_fp64(result, original, true.to(device))


@pytest.mark.parametrize("op", [ops.group_norm_act, ops.layer_norm_act, ops.rms_norm], ids=lambda op: op.name)
@pytest.mark.parametrize("mean", [0.0, 1.0, 100.0, 1e4])
@pytest.mark.parametrize("columns", [48, 768, 5000, 100_003])
@pytest.mark.parametrize("device", DEVICES)
def test_norms_are_at_least_as_exact_as_eager(op: Op[..., Any], mean: float, columns: int, device: str) -> None:
    draw = Draw(device, torch.float32)
    x, weight, bias = draw(max(8, 10_000 // columns), columns) + mean, draw(columns), draw(columns)
    args = {
        ops.group_norm_act: (x.view(1, *x.shape), x.shape[0], *(draw(x.shape[0]) for _ in range(2))),
        ops.layer_norm_act: (x, weight, bias, 1e-5, "none"),
        ops.rms_norm: (x, weight, 1e-5),
    }[op]
    fp64 = op.reference(*as_f64(args))
    result, eager = op(*args), op.reference(*args)
    assert (result - fp64).square().mean() <= 1.1 * (eager - fp64).square().mean()


@pytest.mark.parametrize("scale", [1.0, 0.125])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_scores_are_at_least_as_exact_as_eager(dtype: torch.dtype, device: str, scale: float) -> None:
    ratios = []
    for seed in range(9):  # of one draw, a few large scores say most
        draw = Draw(device, dtype, seed)
        args = (draw(4, 33, 64, scale=0.5), draw(4, 264, 64, scale=0.5), draw(33, 264), scale)
        fp64 = ops.attention_score.reference(*as_f64(args))
        result, eager = ops.attention_score(*args), ops.attention_score.reference(*args)
        ratios.append(((result - fp64).square().mean() / (eager - fp64).square().mean()).item())
    assert statistics.median(ratios) <= 1.1


@pytest.mark.parametrize("columns", [24, 27, 20_000], ids=["dense", "odd", "long"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_scores_of_special_values(dtype: torch.dtype, device: str, columns: int) -> None:
    draw = Draw(device, dtype)
    q, k = draw(6, 16), draw(columns, 16)
    mask = torch.zeros(6, columns, dtype=dtype, device=device)
    mask[0] = float("-inf")  # no position at all: 0 / 0
    mask[1, 1:] = float("-inf")  # one
    mask[2, ::2] = float("-inf")
    mask[3, 5] = float("nan")
    mask[4, 5] = float("inf")
    mask[5] = -1e4
    result, eager = ops.attention_score(q, k, mask, 0.25), ops.attention_score.reference(q, k, mask, 0.25)
    fp64 = ops.attention_score.reference(q.double(), k.double(), mask.double(), 0.25)
    assert_close_to_fp64(result, eager, fp64)
    assert result[[0, 3, 4]].isnan().all()
    assert result[1, 0] == 1
    assert (result[2, ::2] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_large_scores_do_not_overflow(dtype: torch.dtype, device: str) -> None:
    # The products are beyond f16; scaled they are not.
    q = torch.full((3, 64), 60.0, dtype=dtype, device=device)
    k = torch.full((40, 64), 40.0, dtype=dtype, device=device)
    expected = torch.full((3, 40), 1 / 40, dtype=torch.float64, device=device).to(dtype)
    torch.testing.assert_close(ops.attention_score(q, k, None, 0.125), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_conversions_are_exact(dtype: torch.dtype, device: str) -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype).to(device)
    one, zero = torch.ones((), dtype=dtype, device=device), torch.zeros((), dtype=dtype, device=device)
    torch.testing.assert_close(ops.mul_add(every, one, zero), every, rtol=0, atol=0, equal_nan=True)
    # Halves of the unit in the last place, ties and near ties, by sums that f32 holds exactly.
    finite = every[every.isfinite()]
    other = finite.flip(0).roll(77)
    torch.testing.assert_close(ops.mul_add(finite, one, other), finite + other, rtol=0, atol=0)


@pytest.mark.parametrize("device", DEVICES)
def test_offsets_beyond_32_bits(device: str) -> None:
    memory = torch.empty(2**31 + 2**12, dtype=torch.bfloat16, device=device)  # touched in three places only
    x = memory.as_strided((3, 64), (2**30, 1))
    x.copy_(Draw(device, torch.bfloat16)(3, 64))
    dense = x.contiguous()
    assert torch.equal(ops.add_relu(x, x), ops.add_relu(dense, dense))
    assert torch.equal(
        ops.layer_norm_act(x, None, None, 1e-5, "gelu"), ops.layer_norm_act(dense, None, None, 1e-5, "gelu")
    )
    assert torch.equal(ops.group_norm_act(x, 4, act="gelu"), ops.group_norm_act(dense, 4, act="gelu"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op", ops.OPS, ids=lambda op: op.name)
def test_autocast(op: Op[..., Any], device: str, dtype: torch.dtype) -> None:
    """An op under autocast is the op on tensors cast by its policy."""
    sample = op.samples(device, torch.float32)[0]
    dtypes: dict[Policy, torch.dtype] = {lower: dtype, single: torch.float32, widest: torch.float32}
    expected_dtype = dtypes[op.autocast]
    cast = [
        value.to(expected_dtype) if isinstance(value, Tensor) and value.is_floating_point() else value
        for value in sample.args
    ]
    expected = tensors(op(*cast, **sample.kwargs))
    with torch.autocast(device, dtype=dtype):
        results = tensors(op(*sample.args, **sample.kwargs))
    for result, right in zip(results, expected, strict=True):
        assert torch.equal(result, right)
        assert result.dtype == expected_dtype


def test_autocast_policies() -> None:
    single_x, half_x, double_x = (torch.ones(2, 3, dtype=dtype) for dtype in (torch.float32, torch.half, torch.double))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert ops.add_relu(single_x, half_x).dtype == torch.float32  # widest
        assert ops.add_layer_norm(half_x, single_x, None, None, 1e-5)[0].dtype == torch.float32  # single
        assert ops.linear_act(half_x, single_x).dtype == torch.bfloat16  # lower
        assert ops.linear_act(double_x, double_x).dtype == torch.float64


def test_autocast_keeps_the_gradient() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    weight = torch.randn(5, 4, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = ops.linear_act(x, weight, act="relu")
        expected = torch.relu(torch.nn.functional.linear(x, weight))
    assert torch.equal(y, expected)
    for result, right in zip(
        torch.autograd.grad(y.sum(), (x, weight)), torch.autograd.grad(expected.sum(), (x, weight)), strict=True
    ):
        assert result.dtype == torch.float32
        assert torch.equal(result, right)


def test_autocast_of_norms_and_scores() -> None:
    draw = Draw("cpu", torch.bfloat16)
    x, weight = draw(3, 16), draw(16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(ops.rms_norm(x, weight, 1e-5), ops.rms_norm(x.float(), weight.float(), 1e-5))
        assert ops.attention_score(x.float(), x.float()).dtype == torch.bfloat16


def test_export_calls_the_op() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return torch.ops.fuseconv.add_relu(x, y)

    x, y = torch.randn(3, 4), torch.randn(4)
    exported = torch.export.export(Model(), (x, y), dynamic_shapes=({0: torch.export.Dim("rows")}, {}))
    assert any(node.target is ops.add_relu.overload for node in exported.graph.nodes)
    longer = torch.randn(7, 4)
    assert torch.equal(exported.module()(longer, y), torch.relu(longer + y))

"""sum_squared and mean_abs beyond the table of test_ops.py: exactness, order, layouts, sizes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support import small_bundle
from torch import Tensor

from fuseconv import ops
from fuseconv.ops.op import Op
from fuseconv.ops.sampling import Draw
from fuseconv.targets import Context, onnx

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
REDUCTIONS = [ops.sum_squared, ops.mean_abs]


@pytest.fixture(params=REDUCTIONS, ids=lambda op: op.name)
def op(request: pytest.FixtureRequest) -> Op[..., Any]:
    return request.param


@pytest.mark.parametrize("shape", [(1000, 1003), (64, 16384), (16384, 64), (8, 100_003), (100_003, 8), (40, 41, 640)])
@pytest.mark.parametrize("device", DEVICES)
def test_errors_are_no_larger_than_eagers(op: Op[..., Any], device: str, shape: tuple[int, ...]) -> None:
    x = Draw(device, torch.float32)(*shape) + 0.5
    for dim in ([0], [1], [-1], [0, 1], []):
        fp64 = op.reference(x.double(), dim)
        error, eager = ((values - fp64).square().mean().sqrt() for values in (op(x, dim), op.reference(x, dim)))
        # Two roundings of the result itself: eager's error may be nothing by luck.
        floor = torch.finfo(torch.float32).eps / 12**0.5 * fp64.square().mean().sqrt()
        assert error <= eager + floor


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_of_no_elements(device: str, dtype: torch.dtype) -> None:
    x = torch.ones(3, 0, 2, dtype=dtype, device=device)
    assert ops.sum_squared(x, [1]).eq(0).all()
    assert ops.mean_abs(x, [1]).isnan().all()
    assert ops.mean_abs(x, []).isnan()
    assert ops.mean_abs(x, [0]).shape == (0, 2)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_special_values_stay_in_their_own_sum(op: Op[..., Any], device: str, dtype: torch.dtype, bad: float) -> None:
    x = Draw(device, dtype)(67, 129)
    x[13, 77] = bad
    x[14] = -0.0
    for dim in (0, 1):
        result, original = op(x, [dim]), op.reference(x, [dim])
        assert torch.equal(result.isnan(), original.isnan())
        assert torch.equal(result.isinf(), original.isinf())
        assert int(result.isfinite().logical_not().sum()) == 1
    assert not op(x, [1])[14].signbit()


def test_the_order_of_additions_does_not_depend_on_threads(op: Op[..., Any]) -> None:
    x = Draw("cpu", torch.float32)(3, 300_007)
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append([op(x, dim) for dim in ([1], [0], [])])
    finally:
        torch.set_num_threads(threads)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("device", DEVICES)
def test_random_layouts(op: Op[..., Any], device: str) -> None:
    draw = torch.Generator().manual_seed(0)

    def randint(high: int) -> int:
        return int(torch.randint(high, (), generator=draw))

    for _ in range(300):
        rank = 1 + randint(5)
        order = torch.randperm(rank, generator=draw).tolist()
        x = torch.randn([1 + randint(6) * randint(3) for _ in range(rank)], generator=draw, dtype=torch.float64)
        x = x.permute(order)[tuple(slice(randint(2), None, 1 + randint(2)) for _ in range(rank))].to(device)
        if randint(3) == 0 and x.shape[0] == 1:
            x = x.expand(4, *x.shape[1:])
        dims = [axis - rank * randint(2) for axis in range(rank) if randint(2)]
        keepdim = bool(randint(2))
        if x.numel() > 0:
            torch.testing.assert_close(op(x, dims, keepdim), op.reference(x, dims, keepdim))


@pytest.mark.parametrize("device", DEVICES)
def test_more_elements_than_32_bits_count(device: str) -> None:
    n = 2**31 + 8
    assert ops.sum_squared(torch.full((1,), 2.0, dtype=torch.float64, device=device).expand(n), []).item() == 4 * n
    memory = torch.empty(2**31 + 2**12, dtype=torch.bfloat16, device=device)  # touched in three places only
    x = memory.as_strided((3, 64), (2**30, 1))
    x.copy_(Draw(device, torch.bfloat16)(3, 64))
    for dim in ([0], [1], []):
        assert torch.equal(ops.mean_abs(x, dim), ops.mean_abs(x.contiguous(), dim))


def test_onnx_runs_the_body_with_its_dims(tmp_path: Path) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            return ops.sum_squared(x, [1]), ops.mean_abs(x, [-1, 0], True), ops.mean_abs(x, [])

    program = small_bundle.program(Model(), ["x=f32[n:1..64,5,7]"])
    run = onnx.load(tmp_path / onnx.write(program, tmp_path, Context(tmp_path)), "cpu")
    x = torch.randn(9, 5, 7)
    for result, expected in zip(run(x), Model()(x), strict=True):
        torch.testing.assert_close(result, expected)

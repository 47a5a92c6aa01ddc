"""CUDA graphs on a GPU: the same bits as the artifact, for all shapes, threads, streams and modes of calls."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from support.graphs import BUCKETS, TARGETS, draw
from torch import Tensor

from fuseconv.bundle.manifest import open_bundle
from fuseconv.contract.input_text import parse_inputs
from fuseconv.contract.spec import Contract
from fuseconv.errors import UpstreamError, UsageError
from fuseconv.runtime import rows
from fuseconv.runtime.cuda_graphs import Choice
from fuseconv.runtime.graphed_runner import GraphedRunner
from fuseconv.runtime.model import Model, load, load_target

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600),  # the first test compiles the package
]

SHAPES = [(1, 1), (3, 7), (16, 32), (2, 2), (3, 7), (16, 1), (1, 32), (5, 5)]


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def plain(graphs_bundle: Path, target: str) -> Callable[..., tuple[Tensor, ...]]:
    """The artifact without graphs, once TorchScript has optimised it for a shape."""
    model = load(graphs_bundle, target, cuda_graphs=False)

    def call(*inputs: Tensor) -> tuple[Tensor, ...]:
        return [model(*inputs) for _ in range(3)][-1]

    return call


@pytest.fixture
def model(graphs_bundle: Path, target: str) -> Model:
    return load(graphs_bundle, target, cuda_graphs=True)


def assert_same(results: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    for result, value in zip(results, expected, strict=True):
        assert (result.dtype, result.shape, result.stride()) == (value.dtype, value.shape, value.stride())
        torch.testing.assert_close(result, value, rtol=0, atol=0, equal_nan=True)


def test_the_bits_are_the_artifacts(model: Model, plain: Callable[..., tuple[Tensor, ...]]) -> None:
    for seed, (batch, seq) in enumerate(SHAPES * 2):
        inputs = draw(batch, seq, seed)
        assert_same(model(*inputs), plain(*inputs))
    status = model.cuda_graphs
    assert status.reason is None
    assert {shapes[0][:2] for shapes in status.shapes} == set(SHAPES)


def test_auto_gives_the_artifacts_bits_whatever_is_captured(
    graphs_bundle: Path, target: str, plain: Callable[..., tuple[Tensor, ...]]
) -> None:
    """Direct calls, captures and replays of both trials, with shapes that come and go."""
    model = load(graphs_bundle, target)
    shapes = random.Random(0).choices(SHAPES, [32, 16, 8, 4, 2, 1, 1, 1], k=1500)
    expected = {shape: plain(*draw(*shape)) for shape in SHAPES}
    for shape in shapes:
        assert_same(model(*draw(*shape)), expected[shape])
    assert model.cuda_graphs.reason is None
    assert {shapes[0][:2] for shapes in model.cuda_graphs.shapes} <= set(SHAPES)


def layouts(tensor: Tensor) -> list[Tensor]:
    flat = torch.empty(tensor.numel() + 1, dtype=tensor.dtype, device="cuda")
    flat[1:] = tensor.flatten()
    strided = torch.stack([tensor, torch.zeros_like(tensor)], -1)[..., 0]
    return [tensor.transpose(0, 1).contiguous().transpose(0, 1), strided, flat[1:].view(tensor.shape)]


def test_every_layout_gives_what_dense_inputs_give(model: Model, plain: Callable[..., tuple[Tensor, ...]]) -> None:
    inputs = draw(3, 5)
    expected = plain(*inputs)
    for laid_out in zip(*map(layouts, inputs), strict=True):
        assert_same(model(*laid_out), expected)
    with_gradient = (inputs[0].clone().requires_grad_(), *inputs[1:])
    assert_same(model(*with_gradient), expected)
    assert not model(*with_gradient)[0].requires_grad


def test_outputs_are_not_overwritten(model: Model) -> None:
    kept = [model(*draw(3, 5, seed)) for seed in range(4)]
    before = [tuple(value.clone() for value in outputs) for outputs in kept]
    for seed in range(4, 12):
        model(*draw(3 + seed % 3, 5, seed))
    gc.collect()
    for outputs, values in zip(kept, before, strict=True):
        assert_same(outputs, values)
    assert len({value.data_ptr() for outputs in kept for value in outputs}) == 16


def test_modes_of_the_first_call_are_not_captured(model: Model, plain: Callable[..., tuple[Tensor, ...]]) -> None:
    modes: list[AbstractContextManager[Any]] = [
        torch.inference_mode(),
        torch.autocast("cuda", torch.bfloat16),
        torch.enable_grad(),
    ]
    for seed, mode in enumerate(modes):
        inputs = draw(4, 3 + seed)
        expected = plain(*inputs)
        with mode:
            assert_same(model(*inputs), expected)
        assert_same(model(*inputs), expected)
        with torch.inference_mode():
            assert_same(model(*inputs), expected)


def test_the_graph_used_longest_ago_makes_room(graphs_bundle: Path, target: str) -> None:
    model = load_target(graphs_bundle, open_bundle(graphs_bundle), target)
    graphed = GraphedRunner(model._runner, model.contract, required=True, limit=2)
    expected = {batch: [model(*draw(batch, 8)) for _ in range(3)][-1] for batch in range(1, 9)}
    used = [1, 2, 1, 3, 1, 2, 2, *range(1, 9), *range(1, 9)]
    memory = []
    with torch.no_grad():
        for index, batch in enumerate(used):
            assert_same(graphed(*draw(batch, 8)), tuple(expected[batch]))
            kept = list(dict.fromkeys(reversed(used[: index + 1])))[:2]
            assert {shapes[0][0] for shapes in graphed.status().shapes} == set(kept)
            memory.append(graphed.status().memory)
    assert max(memory[-8:]) <= max(memory[:-8]), memory  # room is used again


def test_memory_is_reported(model: Model) -> None:
    assert (model.cuda_graphs.memory, model.cuda_graphs.shapes) == (0, ())
    small, large = draw(1, 1), draw(16, 32)
    model(*small)
    first = model.cuda_graphs.memory
    assert first >= sum(x.nbytes for x in small)
    model(*large)
    assert model.cuda_graphs.memory >= first + sum(x.nbytes for x in large)


@pytest.mark.parametrize("choice", ["auto", True])
def test_threads_on_streams_of_their_own(
    choice: Choice, graphs_bundle: Path, target: str, plain: Callable[..., tuple[Tensor, ...]]
) -> None:
    model = load(graphs_bundle, target, cuda_graphs=choice)
    calls = [(draw(batch, seq, seed), seed) for seed in range(4) for batch, seq in SHAPES]
    expected = [tuple(value.clone() for value in plain(*inputs)) for inputs, _ in calls]
    torch.cuda.synchronize()

    def work(seed: int) -> None:
        order = list(range(len(calls))) * 3
        random.Random(seed).shuffle(order)
        with torch.cuda.stream(torch.cuda.Stream()):
            results = [(index, model(*calls[index][0])) for index in order]
            for index, outputs in results:
                assert_same(outputs, expected[index])

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work, seed) for seed in range(8)]:
            done.result()


def test_a_call_is_ordered_on_the_callers_stream(model: Model, plain: Callable[..., tuple[Tensor, ...]]) -> None:
    """What the stream did before is seen, what it does after sees the result, and other streams' calls take turns."""
    inputs = [draw(3, 5, seed) for seed in range(6)]
    expected = [plain(*values) for values in inputs]
    model(*inputs[0])
    late = [tuple(torch.zeros_like(value) for value in values) for values in inputs]
    streams = [torch.cuda.Stream() for _ in inputs]
    torch.cuda.synchronize()
    copies = []
    for stream, values, final in zip(streams, late, inputs, strict=True):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(5_000_000)
            for value, right in zip(values, final, strict=True):
                value.copy_(right)
            copies.append([output * 1 if output.dtype != torch.bool else output.clone() for output in model(*values)])
    torch.cuda.synchronize()
    for results, values in zip(copies, expected, strict=True):
        assert_same(tuple(results), values)


def test_a_call_inside_the_users_capture_is_part_of_it(model: Model, plain: Callable[..., tuple[Tensor, ...]]) -> None:
    inputs = draw(3, 5)
    expected = plain(*inputs)
    model(*inputs)
    before = model.cuda_graphs
    held = tuple(value.clone() for value in inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = model(*held)
    assert model.cuda_graphs == before
    for seed in (0, 1):
        for place_, value in zip(held, draw(3, 5, seed), strict=True):
            place_.copy_(value)
        for output in outputs:
            output.zero_()
        graph.replay()
        assert_same(tuple(outputs), expected if seed == 0 else plain(*held))


def test_a_model_may_be_dropped_while_its_last_calls_run(graphs_bundle: Path, target: str) -> None:
    model = load(graphs_bundle, target, cuda_graphs=True)
    inputs = draw(16, 32)
    expected = [model(*inputs) for _ in range(2)][-1]
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(50_000_000)
        outputs = model(*inputs)
        del model
        gc.collect()
    for _ in range(50):
        torch.full((16, 32, 8), torch.nan, device="cuda")
    torch.cuda.synchronize()
    assert_same(tuple(outputs), tuple(expected))


X = Contract(parse_inputs(["x=f32[n:1..64]"]), ("y",), "cuda")
FIXED = Contract(parse_inputs(["x=f32[5]"]), ("y",), "cuda")


def many(x: Tensor) -> tuple[Tensor, ...]:
    """Bound by the host: a replay is faster by far."""
    for _ in range(300):
        x = x * 0.5 + 1
    return (x,)


def called(graphed: GraphedRunner, sizes: Iterable[int]) -> None:
    """Calls and awaits, as a server does."""
    for n in sizes:
        x = torch.rand(n, device="cuda")
        (y,) = graphed(x)
        torch.testing.assert_close(y, many(x)[0], rtol=0, atol=0)


def kept(graphed: GraphedRunner) -> list[int]:
    return sorted(shapes[0][0] for shapes in graphed.status().shapes)


def test_a_size_that_recurs_is_captured_and_others_are_not() -> None:
    graphed = GraphedRunner(many, X)
    called(graphed, range(1, 60))
    assert kept(graphed) == []
    called(graphed, [7] * 200)
    assert kept(graphed) == [7]


def test_a_fixed_size_is_captured_at_its_first_call() -> None:
    graphed = GraphedRunner(many, FIXED)
    called(graphed, [5])
    assert kept(graphed) == [5]
    called(graphed, [5] * 50)
    assert kept(graphed) == [5]


def test_a_graph_that_is_not_faster_is_dropped() -> None:
    large = Contract(parse_inputs(["x=f32[20000000]"]), ("y",), "cuda")
    graphed = GraphedRunner(lambda x: (x.tanh(),), large)  # a copy of its input takes as long as the model
    x = torch.rand(20_000_000, device="cuda")
    graphed(x)
    assert len(graphed.status().shapes) == 1
    for _ in range(40):
        assert_same(graphed(x), (x.tanh(),))
        torch.cuda.synchronize()
    assert (graphed.status().shapes, graphed.status().memory) == ((), 0)


def test_memory_stays_within_the_limit() -> None:
    megabyte = Contract(parse_inputs(["x=f32[n:1..64,262144]"]), ("y",), "cuda")
    limit = 100 << 20
    graphed = GraphedRunner(lambda x: (x.tanh(),), megabyte, required=True, memory=limit)
    for n in [*range(1, 20), 3, 2, 1, *range(30, 20, -1)]:
        x = torch.rand(n, 262144, device="cuda")
        assert_same(graphed(x), (x.tanh(),))
        assert graphed.status().memory <= limit
    assert graphed.status().shapes
    with pytest.raises(UpstreamError, match="but the limit is 104857600"):
        graphed(torch.rand(64, 262144, device="cuda"))


def waits(x: Tensor) -> tuple[Tensor, ...]:
    return (x * float(x.sum()),)


def test_what_cannot_be_captured_runs_without_and_says_so_once() -> None:
    graphed = GraphedRunner(waits, FIXED)
    for _ in range(3):
        x = torch.rand(5, device="cuda")
        if graphed.status().reason is None:
            with pytest.warns(RuntimeWarning, match="cannot be captured in a CUDA graph"):
                assert_same(graphed(x), waits(x))
        else:  # another warning would be an error
            assert_same(graphed(x), waits(x))
    status = graphed.status()
    assert (status.shapes, status.memory) == ((), 0)
    assert status.reason is not None
    assert "a call with [5]" in status.reason
    other = GraphedRunner(lambda x: (x.tanh(),), X, required=True)  # the failure has left nothing behind
    x = torch.rand(9, device="cuda")
    assert_same(other(x), (x.tanh(),))
    assert other.status().reason is None


def test_what_must_be_captured_and_cannot_is_an_error() -> None:
    graphed = GraphedRunner(waits, X, required=True)
    model = Model(X, "torchscript", graphed)
    for _ in range(2):
        with pytest.raises(UpstreamError, match="cannot be captured in a CUDA graph") as caught:
            model(torch.rand(5, device="cuda"))
        assert "cuda_graphs='auto'" in caught.value.fix


def test_an_error_of_the_artifact_is_no_failed_capture() -> None:
    def fail(x: Tensor) -> tuple[Tensor, ...]:
        raise MemoryError("no memory")

    graphed = GraphedRunner(fail, X, required=True)
    with pytest.raises(UpstreamError, match="the target aoti failed: no memory"):
        Model(X, "aoti", graphed)(torch.rand(5, device="cuda"))
    assert graphed.status().reason is None


def test_onnx_cannot_be_forced(graphs_bundle: Path) -> None:
    with pytest.raises(UsageError, match="the bundle has no target onnx"):
        load(graphs_bundle, "onnx", cuda_graphs=True)


def test_buckets_round_up_and_padding_shows_nowhere(padded_bundle: Path) -> None:
    model = load(padded_bundle, "torchscript", cuda_graphs=True)
    plain = load(padded_bundle, "torchscript", cuda_graphs=False)
    for seed, batch in enumerate([3, 1, 4, 2, 7, 8, 5, 3, 12, 1]):
        inputs = draw(batch, 6, seed)
        size = BUCKETS.rounded(batch)
        full = [plain(*(rows.repeated(x, size) for x in inputs)) for _ in range(3)][-1]
        assert_same(model(*inputs), tuple(value[:batch] for value in full))
        spoilt = tuple(torch.full_like(x, torch.nan) if x.is_floating_point() else x for x in draw(size, 6))
        model(*spoilt)  # its rows are the padding of the calls after
    assert sorted(shapes[0][0] for shapes in model.cuda_graphs.shapes) == [4, 8, 12]

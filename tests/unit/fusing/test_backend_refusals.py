"""torch.compile(backend="fuseconv"): what is left alone, what the checks find, and wrong options."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.compiled import compiled, logged, near, nothing_compiled
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import fuseconv
from fuseconv.errors import ParityError, UsageError
from fuseconv.fusing.graph_trial import check_graph


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    with nothing_compiled():
        yield


def under_a_checkpoint(x: Tensor, w: Tensor) -> Tensor:
    return checkpoint(lambda one: torch.relu(functional.linear(one, w)), x, use_reentrant=False)


def with_shared_memory(x: Tensor, w: Tensor) -> Tensor:
    return written_between(x, x[1:], w)


def written_between(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    before = torch.relu(functional.linear(x, w))
    y.add_(1)
    return before + torch.relu(functional.linear(x, w))


class Square(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        context.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        (x,) = context.saved_tensors
        return 3 * x * gradients[0]


def own_gradient(x: Tensor, w: Tensor) -> Tensor:
    return torch.relu(functional.linear(Square.apply(x), w))


LEFT_ALONE: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], str]] = {
    "checkpoint": (under_a_checkpoint, "a region or a module of its own"),
    "autograd function": (own_gradient, "a region or a module of its own"),
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_a_graph_that_a_trace_would_not_keep_is_left_alone(name: str) -> None:
    function, reason = LEFT_ALONE[name]
    x, w = torch.randn(5, 8, requires_grad=True), torch.randn(8, 8)
    twin = x.detach().clone().requires_grad_()
    actual, expected = compiled(function)(x, w), function(twin, w)
    near(actual, expected, 1e-6)
    actual.sum().backward()
    expected.sum().backward()
    assert x.grad is not None
    assert twin.grad is not None
    near(x.grad, twin.grad, 1e-6)
    (graph,) = fuseconv.compiled_graphs()
    assert not graph.plan.steps
    assert reason in graph.left_alone


def test_inputs_that_share_memory_with_a_written_input_are_left_alone() -> None:
    one, other, w = torch.randn(5, 8), torch.empty(5, 8), torch.randn(8, 8)
    other.copy_(one)
    near(compiled(written_between)(one, one[1:], w), written_between(other, other[1:], w), 1e-6)
    near(one, other, 0)
    (graph,) = fuseconv.compiled_graphs()
    assert "share memory" in graph.left_alone


def test_sizes_that_depend_on_data_are_left_alone() -> None:
    def positive(x: Tensor, w: Tensor) -> Tensor:
        return torch.relu(functional.linear(x[x[:, 0] > 0], w))

    x, w = torch.randn(5, 8), torch.randn(8, 8)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        near(compiled(positive)(x, w), positive(x, w), 1e-6)
    (graph,) = fuseconv.compiled_graphs()
    assert graph.left_alone


def test_a_graph_that_is_left_alone_is_logged() -> None:
    with logged() as log:
        compiled(under_a_checkpoint)(torch.randn(5, 8), torch.randn(8, 8))
    assert [line.partition(" ")[0] for line in log] == ["WARNING"]
    assert Path(__file__).name in log[0]
    assert "is compiled without fusion: the graph contains" in log[0]


def rule_file(folder: Path, name: str, match: list[str], replace: list[str]) -> Path:
    path = folder / "rules.json"
    rule = {"name": name, "stage": "fuse", "doc": "For a test.", "match": match, "replace": replace}
    path.write_text(json.dumps({"rules": [rule]}))
    return path


def test_a_wrong_match_does_not_stay(tmp_path: Path) -> None:
    rules = rule_file(tmp_path, "other", ["y = aten.gelu.default(x)"], ["y = aten.silu.default(x)"])
    x = torch.randn(5, 8)
    with logged() as log:
        near(compiled(nn.GELU(), rules=str(rules), check=False)(x), functional.gelu(x), 1e-6)
    (graph,) = fuseconv.compiled_graphs()
    assert not graph.plan.steps
    assert [miss.rule for miss in graph.plan.rejected] == ["other"]
    assert any(line.startswith("WARNING") and "rule other was not applied" in line for line in log)


def test_a_wrong_gradient_is_found_by_the_check_of_the_graph(tmp_path: Path) -> None:
    lines = ["r = aten.round.default(x)", "d = aten.sub.Tensor(r, x)"]
    rules = rule_file(
        tmp_path,
        "round",
        [*lines, "e = aten.detach.default(d)", "y = aten.add.Tensor(x, e)"],
        [*lines, "y = aten.add.Tensor(x, d)"],
    )

    def straight_through(x: Tensor) -> Tensor:
        return x + (torch.round(x) - x).detach()

    x = torch.randn(5, 8, requires_grad=True)
    with pytest.raises(BackendCompilerFailed) as caught:
        compiled(straight_through, rules=str(rules))(x)
    assert isinstance(caught.value.inner_exception, ParityError)
    assert "x" in str(caught.value.inner_exception)
    torch._dynamo.reset()
    with torch.no_grad():
        near(compiled(straight_through, rules=str(rules))(x), straight_through(x), 1e-6)
    assert fuseconv.compiled_graphs()[-1].plan.counts() == {"round": 1}


def test_the_check_of_the_graph_finds_a_lost_write() -> None:
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    def writes(x: Tensor) -> Tensor:
        x.add_(1)
        return x * 2

    def keeps(x: Tensor) -> Tensor:
        return (x + 1) * 2

    for function in (writes, keeps):
        torch.compile(function, backend=keep)(torch.zeros(3))
    inputs = {"x": torch.zeros(3)}
    check_graph(graphs[0], graphs[0], graphs[0], inputs, "none")
    with pytest.raises(ParityError, match="x after the call: the fused graph does not produce it"):
        check_graph(graphs[0], graphs[0], graphs[1], inputs, "none")
    with pytest.raises(ParityError, match="x after the call: only the fused graph produces it"):
        check_graph(graphs[1], graphs[1], graphs[0], inputs, "none")
    assert torch.equal(inputs["x"], torch.zeros(3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rule": "x.json"}, "no option 'rule'\n.*\n.*did you mean rules"),
        ({"triton.cudagraphs": True}, "no option 'triton.cudagraphs'\n.*\n.*the options are rules, check, inner"),
        ({"inner": "onnx"}, "'inner' is 'onnx'\n.*\n.*'inductor' or 'eager'"),
        ({"check": "all"}, "'check' is 'all'\n.*\n.*True or False"),
        ({"rules": 3}, "'rules' is 3\n.*\n.*path of a rule file"),
    ],
)
def test_a_wrong_option_is_an_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BackendCompilerFailed, match=message) as caught:
        torch.compile(nn.ReLU(), backend=fuseconv.dynamo_backend, options=options)(torch.randn(3))
    assert isinstance(caught.value.inner_exception, UsageError)

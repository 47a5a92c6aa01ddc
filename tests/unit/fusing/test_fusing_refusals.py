"""What `fuse` leaves unfused, and what it rejects."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.fusable import drawn
from torch import Tensor, nn

import fuseconv
from fuseconv.errors import ContractError, UnsupportedError, UsageError


def rule_file(folder: Path, *rules: dict[str, Any]) -> Path:
    path = folder / "rules.json"
    path.write_text(json.dumps({"rules": [{"stage": "fuse", "doc": "For a test.", **rule} for rule in rules]}))
    return path


def test_a_lost_detach_is_a_miss_with_its_reason(tmp_path: Path) -> None:
    class Detached(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).detach() * x

    match = ["h = aten.linear.default(x, w, b)", "y = aten.detach.default(h)"]
    rules = rule_file(tmp_path, {"name": "drop", "match": match, "replace": ["y = aten.linear.default(x, w, b)"]})
    fused = fuseconv.fuse(Detached(4, 4), torch.randn(2, 4), rules)
    assert not fused.plan.steps
    (miss,) = fused.plan.misses
    assert "the gradient of detach not to reach" in miss.reason


def test_a_wrong_fusion_is_left_out_with_a_warning(tmp_path: Path) -> None:
    match = ["y = aten.gelu.default(x)"]
    rules = rule_file(tmp_path, {"name": "other", "match": match, "replace": ["y = aten.silu.default(x)"]})
    model, inputs, _ = drawn("perceptron")
    with pytest.warns(UserWarning, match="rule other was not applied at gelu: .* rmse against float64"):
        fused = fuseconv.fuse(model, inputs, rules)
    assert fused.plan.steps == ()
    torch.testing.assert_close(fused(inputs), model(inputs))


def test_a_match_with_a_wrong_gradient_is_left_out(tmp_path: Path) -> None:
    class Rounded(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            return -(y + (torch.round(y) - y).detach())  # straight through: the gradient of the identity

    match = [
        "r = aten.round.default(x)",
        "d = aten.sub.Tensor(r, x)",
        "e = aten.detach.default(d)",
        "y = aten.add.Tensor(x, e)",
    ]
    right = {"name": "right", "match": ["y = aten.neg.default(x)"], "replace": ["y = aten.mul.Tensor(x, -1)"]}
    rules = rule_file(
        tmp_path, {"name": "round", "match": match, "replace": [*match[:2], "y = aten.add.Tensor(x, d)"]}, right
    )
    with pytest.warns(UserWarning, match="rule round was not applied at add.*: the gradient of weight"):
        fused = fuseconv.fuse(Rounded(4, 4), torch.randn(3, 4), rules)
    assert fused.plan.counts() == {"right": 1}


def test_errors_of_the_model_and_of_capture() -> None:
    with pytest.raises(UsageError, match="the model does not accept the example inputs"):
        fuseconv.fuse(nn.Linear(4, 4), torch.randn(3, 5))

    class Branching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(UnsupportedError, match="depends on the values"):
        fuseconv.fuse(Branching(), torch.randn(3))


def test_state_that_is_no_tensor_is_refused() -> None:
    class Odd(nn.Linear):
        def get_extra_state(self) -> dict[str, int]:
            return {"steps": 1}

        def set_extra_state(self, state: dict[str, int]) -> None: ...

    with pytest.raises(UnsupportedError, match="_extra_state"):
        fuseconv.fuse(Odd(4, 4), torch.randn(3, 4))


def test_a_part_with_a_name_of_our_own_is_refused() -> None:
    model = nn.Sequential()
    model.add_module("plan", nn.Linear(4, 4))
    with pytest.raises(UnsupportedError, match=r"a name that fuse reserves.*plan"):
        fuseconv.fuse(model, torch.randn(3, 4))


def test_the_backend_is_given_to_every_op_that_has_one() -> None:
    model, inputs, _ = drawn("perceptron")
    for backend in ("auto", "aten"):
        (graph,) = [
            inner.graph
            for inner in fuseconv.fuse(model, inputs, backend=backend).modules()
            if isinstance(inner, torch.fx.GraphModule)
        ]
        calls = [node for node in graph.nodes if node.target is torch.ops.fuseconv.linear_act.default]
        assert calls
        assert all(node.kwargs["backend"] == backend for node in calls)
    with pytest.raises(RuntimeError, match="backend"):
        fuseconv.fuse(model, inputs, backend="none of these")


def test_a_backend_without_an_op_that_has_one_is_refused() -> None:
    with pytest.raises(UsageError, match="no op in the fused graph takes a backend"):
        fuseconv.fuse(nn.LayerNorm(4), torch.randn(3, 4), backend="cublas")


def dim(name: str) -> torch.export.Dim:
    return torch.export.Dim(name, min=2, max=64)


class Branches(nn.Module):
    def __init__(self, is_first: Callable[[Tensor], bool]) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.is_first = is_first

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.linear(x))
        return y + 1 if self.is_first(x) else y


@pytest.mark.parametrize(
    ("is_first", "dims", "taken", "refused"),
    [
        (lambda x: x.shape[0] * x.shape[1] < 1000, {0: dim("rows"), 1: dim("columns")}, (5, 7, 8), (40, 50, 8)),
        (lambda x: x.shape[0] % 4 == 0, {0: 2 * dim("half")}, (8, 7, 8), (6, 7, 8)),
        (lambda x: x.shape[0] < 20, {0: 2 * dim("half")}, (18, 7, 8), (20, 7, 8)),
    ],
    ids=["large", "no multiple", "long"],
)
def test_sizes_at_which_the_model_takes_another_branch_are_refused(
    is_first: Callable[[Tensor], bool], dims: dict[int, Any], taken: tuple[int, ...], refused: tuple[int, ...]
) -> None:
    model = Branches(is_first)
    fused = fuseconv.fuse(model, torch.randn(8, 7, 8), dynamic_shapes={"x": dims})
    x = torch.randn(taken)
    torch.testing.assert_close(fused(x), model(x))
    with pytest.raises(ContractError, match=r"does not support these sizes|at axis 0, outside 2\*\(s\d+:"):
        fused(torch.randn(refused))


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize(
    ("is_first", "sizes"),
    [
        (lambda x: x.shape[0] > 1, r"\[1, \d, 8\]"),
        (lambda x: x.shape[1] == 1, r"\[\d, 1, 8\]"),
        (lambda x: x.shape[0] * x.shape[1] < 2, r"\[1, 1, 8\]"),
        (lambda x: x.transpose(0, 1).is_contiguous(), r"\[\d, 1, 8\]|\[1, \d, 8\]"),
    ],
    ids=["several rows", "one column", "one of both", "contiguous"],
)
def test_a_branch_on_a_size_of_one_is_refused(is_first: Callable[[Tensor], bool], sizes: str, training: bool) -> None:
    model = Branches(is_first).train(training)
    one, two = (torch.export.Dim(name, min=1, max=64) for name in ("rows", "columns"))
    with pytest.raises(UnsupportedError, match=f"differs at ({sizes}): .* of output 0 differ"):
        fuseconv.fuse(model, torch.randn(4, 7, 8), dynamic_shapes={"x": {0: one, 1: two}})
    fuseconv.fuse(model, torch.randn(4, 7, 8), dynamic_shapes={"x": {0: dim("rows"), 1: dim("columns")}})

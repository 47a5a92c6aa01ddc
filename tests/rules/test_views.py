"""Chains of views in many spellings become the shortest chain; copies disappear where nothing needs their layout."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import programs
from support.attention import SDPA
from support.subjects import subject_of
from torch import Tensor, nn
from torch.nn import functional as F

from fuseconv.capture.capture import capture
from fuseconv.matching.graph import op_name
from fuseconv.matching.plan import plan
from fuseconv.matching.rewrite import rewrite
from fuseconv.program.captured import Program
from fuseconv.rulebook.rule import Rule

pytestmark = pytest.mark.spellings

N, L = torch.export.Dim("n", min=1, max=64), torch.export.Dim("l", min=2, max=64)


def drawn(*sizes: int) -> Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(0))


def rewritten(
    module: nn.Module, rules: tuple[Rule, ...], *inputs: Tensor, dims: object = None
) -> tuple[list[str], Program]:
    """Returns the ops of the module after the rules, and the program, whose numbers are the module's."""
    program = programs.program(module, inputs, dims)
    result = rewrite(program, plan(program, rules, device="cpu", targets=()))
    torch.testing.assert_close(programs.run(result), programs.run(program))
    called = [op_name(node.target) for node in result.exported.graph.nodes if node.op == "call_function"]
    return [op for op in called if op.startswith(("aten.", "fuseconv.")) and not op.startswith("aten.sym")], result


VIEWS: dict[str, tuple[Callable[[Tensor], Tensor], list[str]]] = {
    "view of view": (lambda x: x.view(-1, 2, 3, 4).view(-1, 4), ["reshape.default"]),
    "there and back": (lambda x: x.transpose(1, 2).reshape(-1, 6).view(-1, 4, 6).mT, []),
    "axis more and less": (lambda x: x.unsqueeze(1).squeeze(1), []),
    "movedim": (lambda x: x.movedim(1, -1), ["transpose.int"]),
    "numpy's names": (lambda x: x.swapaxes(1, 2).moveaxis(2, 1), []),
    "permuted twice": (lambda x: x.permute(1, 2, 0).permute(2, 1, 0), ["transpose.int"]),
    "transposed twice beside an axis of size 1": (lambda x: x.unsqueeze(1).mT.mT.squeeze(1), []),
    "permuted twice beside an axis of size 1": (
        lambda x: x.unsqueeze(1).permute(0, 2, 3, 1).permute(0, 3, 2, 1).squeeze(1),
        ["transpose.int"],
    ),
    "transposed thrice": (lambda x: x.transpose(1, 2).transpose(1, 2).transpose(1, 2), ["transpose.int"]),
    "copies between": (
        lambda x: x.view(-1, 6, 2, 2).permute(0, 2, 1, 3).contiguous().view(-1, 2, 12).contiguous(),
        ["view.default", "transpose.int", "flatten.using_ints"],
    ),
    "a part of a split axis": (
        lambda x: x.unflatten(-1, (2, 2)).unsqueeze(0).transpose(0, -2).squeeze(-2).contiguous()[1],
        ["unflatten.int", "select.int", "contiguous.default"],
    ),
}
"""Of [n, 6, 4]."""


@pytest.mark.parametrize("name", VIEWS)
def test_a_chain_of_views_is_the_shortest(name: str, canonical_rules: tuple[Rule, ...]) -> None:
    function, ops = VIEWS[name]
    module = programs.Function(lambda _, x: function(x.sin()).cos().sum())
    called, _ = rewritten(module, canonical_rules, drawn(2, 6, 4), dims=(({0: N},),))
    assert called[1:-2] == [f"aten.{op}" for op in ops]


def test_what_never_copies_is_not_counted_as_a_copy(canonical_rules: tuple[Rule, ...]) -> None:
    """If the strides of a computed length allow no proof, the same chain is not found to be better again and again."""

    module = programs.Function(lambda _, x: F.max_pool1d(x.sin().mT, 3, 2, 1).mT.cos())
    program = capture(subject_of(module, "x=f32[2,n:9..20,8]"))
    ended = plan(program, canonical_rules, device="cpu", targets=())
    assert ended.counts() == {"views": 2}


MIDDLE: dict[str, Callable[[Tensor], Tensor]] = {
    "flattened": lambda x: x.view(-1, 2, 3, 4)[:, :, 1].flatten(1),
    "flattened, then more": lambda x: x.view(-1, 2, 3, 4)[:, :, 1].flatten(1).unsqueeze(1),
    "viewed": lambda x: x.view(-1, 2, 3, 4)[:, :, 2].reshape(-1, 8).mT,
    "of four": lambda x: x.view(-1, 2, 3, 2, 2)[:, :, 1, :, 0].flatten(1),
}
"""Of [n, 24]."""


@pytest.mark.parametrize("name", MIDDLE)
def test_parts_around_a_selected_part_of_an_axis_meet(name: str, canonical_rules: tuple[Rule, ...]) -> None:
    """The parts follow one another in the result, but not in the base."""
    module = programs.Function(lambda _, x: MIDDLE[name](x.sin()).cos())
    _, result = rewritten(module, canonical_rules, drawn(3, 24), dims=(({0: N},),))
    for count in (1, 7):
        x = drawn(count, 24)
        torch.testing.assert_close(programs.run(result, [x]), module(x))


ONES: dict[str, Callable[[Tensor], Tensor]] = {
    "copied": lambda x: x.permute(2, 0, 1).contiguous().view(-1, 6).cos().view(-1),
    "copied, merged once": lambda x: x.transpose(1, 2).contiguous().view(-1, 6).cos().view(-1),
    "copied twice": lambda x: x.permute(2, 0, 1).contiguous().flatten(0, 1).contiguous().cos().view(-1),
    "merged, then split": lambda x: x.mT.reshape(-1, 24).reshape(-1, 6).cos().view(-1),
}
"""Of [n, 6, 4]. The merge of these views is no copy if n is 1, and would leave other strides to the last view."""


@pytest.mark.parametrize("name", ONES)
def test_a_view_behind_a_chain_accepts_a_batch_of_one(name: str, canonical_rules: tuple[Rule, ...]) -> None:
    module = programs.Function(lambda _, x: ONES[name](x.sin()).sin())
    _, result = rewritten(module, canonical_rules, drawn(2, 6, 4), dims=(({0: N},),))
    x = drawn(1, 6, 4)
    torch.testing.assert_close(programs.run(result, [x]), module(x))


def test_a_model_that_needs_two_rows_is_planned(canonical_rules: tuple[Rule, ...]) -> None:
    """The view of this chain itself fails if n is 1."""
    module = programs.Function(lambda _, x: x.sin().permute(2, 0, 1).reshape(-1, 6).view(-1).view(-1, 2).mT.cos())
    rewritten(module, canonical_rules, drawn(2, 6, 4), dims=(({0: N},),))


EMPTY: dict[str, Callable[[Tensor], Tensor]] = {
    "another order of sizes": lambda x: x.view(6, 0).mT.reshape(0, 6),
    "split and merged": lambda x: x.view(2, 3, 0).transpose(0, 1).reshape(0, 6),
}
"""Of [0, 6]."""


@pytest.mark.parametrize("name", EMPTY)
def test_tensors_without_elements(name: str, canonical_rules: tuple[Rule, ...]) -> None:
    module = programs.Function(lambda _, x: EMPTY[name](x.sin()).cos())
    rewritten(module, canonical_rules, drawn(0, 6), dims=(({},),))


VIEW_OPS = ("unflatten", "select", "transpose", "permute", "unsqueeze")
"""Ops that never copy."""


class Attends(nn.Module):
    """nn.MultiheadAttention on one sequence or two, with the masks that are given."""

    def __init__(self, *, first: bool, weights: bool, cross: bool) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.attention = nn.MultiheadAttention(32, 4, batch_first=first)
            self.follow = nn.Linear(32, 32)
        self.weights, self.cross = weights, cross

    def forward(self, x: Tensor, y: Tensor, padding: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        y = y if self.cross else x
        masks = {"key_padding_mask": padding, "attn_mask": mask}
        result: Tensor = self.attention(x, y, y, need_weights=self.weights, **masks)[0]
        return self.follow(result).sin()


@pytest.mark.diagonal(3)
@pytest.mark.parametrize("masked", [False, True], ids=["free", "masked"])
@pytest.mark.parametrize("cross", [False, True], ids=["self", "cross"])
@pytest.mark.parametrize("weights", [False, True], ids=["sdpa", "weights"])
@pytest.mark.parametrize("first", [True, False], ids=["batch first", "positions first"])
def test_multihead_attention_reads_its_projection_in_place(
    first: bool, weights: bool, cross: bool, masked: bool, canonical_rules: tuple[Rule, ...]
) -> None:
    sizes, dims = ((3, 7, 32), {0: N, 1: L}) if first else ((7, 3, 32), {0: L, 1: N})
    inputs, shapes = [drawn(*sizes), drawn(*sizes).cos()], [dims, dims]
    if masked:
        padding = torch.zeros(3, 7, dtype=torch.bool)
        padding[1, 5:] = True
        inputs, shapes = [*inputs, padding, torch.ones(7, 7).triu(1).bool()], [*shapes, {0: N, 1: L}, {0: L, 1: L}]
    module = Attends(first=first, weights=weights, cross=cross)
    called, result = rewritten(module, canonical_rules, *inputs, dims=tuple(shapes))
    assert not {"aten.contiguous.default", "aten.clone.default", "aten.bmm.default"} & set(called)
    (node,) = (node for node in result.exported.graph.nodes if op_name(node.target) == SDPA)
    for operand in node.args[:3]:
        assert operand.meta["val"].dim() == 4
        view = operand
        while op_name(view.target) != "aten.linear.default":
            assert op_name(view.target).split(".")[1] in VIEW_OPS
            view = view.args[0]


def test_projections_of_one_head_are_one_linear(default_rules: tuple[Rule, ...]) -> None:
    """The view that splits one head off adds an axis of size 1."""

    def heads(x: Tensor) -> Tensor:
        return x.view(x.shape[0], 6, -1, 32).transpose(1, 2)

    def attend(m: Any, x: Tensor) -> Tensor:
        q, k, v = (heads(project(x)) for project in m.projections)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)

    module: Any = programs.Function(attend)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module.projections = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
    called, _ = rewritten(module.requires_grad_(False), default_rules, drawn(2, 6, 32), dims=(({0: N},),))
    assert called.count("aten.linear.default") == 1
    assert "aten.unsqueeze.default" in called


def test_capped_scores_of_transposed_keys_end(default_rules: tuple[Rule, ...]) -> None:
    """The rules for keys write a permutation as two transposes, which a chain must not join again."""

    def scores(m: nn.Module, x: Tensor) -> Tensor:
        q = x.view(x.shape[0], 6, 2, 2).transpose(1, 2)
        return torch.tanh(q @ q.cos().view(x.shape[0], 2, 6, 2).transpose(2, 3) @ q.permute(0, 1, 3, 2).mT)

    def keys(m: nn.Module, x: Tensor) -> Tensor:
        q, k = (part.view(x.shape[0], 6, 2, 2).transpose(1, 2) for part in (x, x.cos()))
        return torch.tanh(q @ k.transpose(2, 3) / 5)

    for function in (scores, keys):
        rewritten(programs.Function(function), default_rules, drawn(2, 6, 4), dims=(({0: N},),))


def test_a_copy_that_an_op_needs_stays(canonical_rules: tuple[Rule, ...]) -> None:
    """The sum of a copy is faster than that of a transpose, and its result keeps the layout of the copy."""
    module = programs.Function(lambda _, x: x.sin().transpose(1, 2).contiguous().view(-1, 6).cos())
    called, _ = rewritten(module, canonical_rules, drawn(2, 6, 4), dims=(({0: N},),))
    assert len({"aten.contiguous.default", "aten.flatten.using_ints", "aten.reshape.default"} & set(called)) == 1


LATE: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "view": lambda m, x: torch.relu(m.project(x).view(-1, 4, 6, 8)),
    "transpose": lambda m, x: F.gelu(m.project(x).transpose(1, 2)),
    "slice": lambda m, x: F.silu(m.project(x)[:, 1:]),
    "copied": lambda m, x: torch.tanh(m.project(x).mT.contiguous()),
    "batch norm of rows": lambda m, x: torch.relu(m.norm(m.project(x).flatten(0, 1))),
    "batch norm of channels": lambda m, x: torch.relu(m.norm(m.project(x).mT).mT),
}


@pytest.mark.parametrize("name", LATE)
def test_what_follows_a_linear_is_computed_by_it(name: str, default_rules: tuple[Rule, ...]) -> None:
    module: Any = programs.Function(LATE[name])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module.project, module.norm = nn.Linear(32, 32), nn.BatchNorm1d(32)
        nn.init.uniform_(module.norm.running_mean)
    called, _ = rewritten(module.requires_grad_(False), default_rules, drawn(2, 6, 32), dims=(({0: N},),))
    views = ("view", "reshape", "flatten", "transpose", "slice", "contiguous", "clone")
    assert [op for op in called if op.split(".")[1] not in views] == ["fuseconv.linear_act.default"]


def test_a_batch_norm_before_a_flattened_linear_is_its_weight(default_rules: tuple[Rule, ...]) -> None:
    norm: Any = nn.BatchNorm2d(6)
    nn.init.uniform_(norm.running_mean)
    module = nn.Sequential(norm, nn.Dropout(), nn.Flatten(), nn.Linear(24, 8)).eval()
    called, _ = rewritten(module.requires_grad_(False), default_rules, drawn(3, 6, 2, 2), dims=({0: N},))
    assert called == ["aten.flatten.using_ints", "aten.linear.default"]

"""Subgraphs become rules that match wherever the model has the same ops, and errors that say why one cannot."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import drafted, programs
from torch import Tensor
from torch.nn import functional as F

from fuseconv.drafting.canonical import canonical
from fuseconv.drafting.cpp import body_of
from fuseconv.drafting.draft import draft, pattern_at
from fuseconv.drafting.known import known_ops
from fuseconv.drafting.pack import op_named
from fuseconv.drafting.subgraph import between
from fuseconv.errors import UnsupportedError, UsageError
from fuseconv.matching.graph import is_call
from fuseconv.rulebook.own_rules import load_rules

SUBGRAPHS = [
    ("linear", "reshape", 23, ["reshape", "reshape_1"]),
    ("mul chunk", "add_2", 6, ["add_2", "add_3", "add_10", "add_11"]),
    ("linear_1 linear_2", "linear_3", 6, ["linear_3", "linear_8"]),
    ("linear_6 linear_7", "linear_8", 6, ["linear_3", "linear_8"]),
    ("linalg_vector_norm", "add_8", 8, ["add_8", "add_16"]),
    ("mul_6", "add_8", 3, ["add_8", "add_16"]),
    ("softplus", "add_9", 6, ["add_9", "add_17"]),
    ("softplus", "exp mul_8", 4, ["mul_8", "mul_17"]),
    ("conv2d_1", "relu_1", 3, ["relu_1", "relu_2"]),
    ("add_4", "layer_norm", 2, ["layer_norm", "layer_norm_1"]),
]


@pytest.mark.parametrize(("first", "last", "ops", "places"), SUBGRAPHS, ids=[one[1] for one in SUBGRAPHS])
def test_a_rule_matches_wherever_the_model_has_the_same_ops(first: str, last: str, ops: int, places: list[str]) -> None:
    graph = drafted.graph()
    subgraph = between(graph, first.split(), last.split())
    values, pattern = pattern_at(graph, subgraph)
    assert len(pattern.match) == ops
    assert [place[-1] for place in pattern.places] == places
    assert len(body_of(subgraph, values)) == ops
    assert pattern.example.symbols, "the sizes of the example are symbolic"
    assert all(int(size) <= 24 for shape in pattern.example.shapes.values() for size in shape if size.isdecimal())


def test_a_size_that_is_equal_by_chance_is_a_size_of_its_own() -> None:
    def function(m: Any, x: Tensor) -> Any:
        return torch.relu(torch.exp(x).view(-1, 4, 4)), torch.relu(torch.sin(x).view(-1, 2, 8))

    graph = canonical(programs.capture(programs.Function(function), torch.rand(3, 16)), load_rules())
    _, pattern = pattern_at(graph, between(graph, ["view"], ["relu"]))
    assert pattern.match[0] == "view = aten.view.default(x, [-1, size, size2])"
    assert [place[-1] for place in pattern.places] == ["relu", "relu_1"]


ERRORS = [
    ("lineer", "reshape", "has no node lineer", "did you mean linear"),
    ("x", "reshape", "x is an input or a weight", "name an op that uses it: "),
    ("output", "reshape", "has no node output", "see the names in"),
    ("reshape", "linear", "no path leads from reshape to linear", "swap --from and --to"),
    ("linear add_8", "reshape", "no path leads from add_8 to reshape", "name two nodes"),
    ("linear", "reshape cos", "no path leads from linear to cos", "add the --from nodes"),
    ("getitem", "reshape", "getitem selects a result", "name split"),
    ("linear", "add_2", "the value of split is used outside of the subgraph: getitem_1 uses it", "add --to split"),
    ("add_4", "linear_3", "the value of layer_norm is used outside of the subgraph: add_5", "add --to layer_norm"),
    ("transpose_3", "reshape", "reshape shares its memory with scaled_dot_product_attention", "computes a new value"),
    ("linear", "add_17", "a pattern has at most 64 lines", "closer to each other"),
    ("sym_size_int_4", "reshape", "computes no tensor", "choose nodes without this op"),
]


@pytest.mark.parametrize(("first", "last", "what", "fix"), ERRORS, ids=[one[2] for one in ERRORS])
def test_an_error_says_what_and_how_to_go_on(first: str, last: str, what: str, fix: str) -> None:
    with pytest.raises((UsageError, UnsupportedError)) as caught:
        between(drafted.graph(), first.split(), last.split())
    assert what in caught.value.what
    assert fix in caught.value.fix
    assert caught.value.where


def in_place(m: Any, x: Tensor) -> Tensor:
    y = torch.exp(m.state)
    m.state.add_(x.sum(0))
    return torch.sin(y) * m.state


HAZARDS = [
    (lambda m, x: torch.relu(F.dropout(torch.exp(x), 0.5, training=True)), "dropout", "uses random numbers"),
    (lambda m, x: torch.sin(torch.exp(x).nonzero().float()), "nonzero", "has a size that depends on data"),
    (lambda m, x: torch.relu(torch.fft.fft(torch.exp(x)).real), "fft_fft", "computes no tensor"),
    (in_place, "add_", "mutates memory"),
]


@pytest.mark.parametrize(("function", "node", "reason"), HAZARDS, ids=[one[2] for one in HAZARDS])
def test_an_op_with_another_effect_than_its_value_is_in_no_subgraph(function: Any, node: str, reason: str) -> None:
    module = programs.Function(function, buffers={"state": torch.zeros(4)})
    program = programs.capture(module, torch.rand(3, 4))
    graph = canonical(program, load_rules())
    calls = [one for one in graph.workspace.graph.nodes if is_call(one)]
    at = next(place for place, one in enumerate(calls) if graph.workspace.name(one) == node)
    with pytest.raises(UnsupportedError, match=reason):
        between(graph, [node], [graph.workspace.name(calls[at + (function is not in_place)])])


NO_CALLS = [
    (lambda m, x: torch.celu(torch.exp(x), 0.5), "exp", "cannot call aten.celu.default with a number"),
    (lambda m, x: torch.sign((x > 0).long() + 1), "add", "cannot call aten.add.Tensor with a number on integers"),
    (lambda m, x: torch.linalg.vector_norm(torch.exp(x), 3, -1), "exp", "cannot call aten.linalg_vector_norm.default"),
]


@pytest.mark.parametrize(("function", "first", "what"), NO_CALLS, ids=[one[2] for one in NO_CALLS])
def test_a_kernel_that_the_stable_abi_cannot_express_is_an_error(function: Any, first: str, what: str) -> None:
    graph = canonical(programs.capture(programs.Function(function), torch.rand(3, 4)), load_rules())
    last = [one for one in graph.workspace.graph.nodes if is_call(one)][-1]
    subgraph = between(graph, [first], [graph.workspace.name(last)])
    values, _ = pattern_at(graph, subgraph)
    with pytest.raises(UnsupportedError, match=what):
        body_of(subgraph, values)


def test_a_node_that_a_canonical_rule_replaced_has_a_successor() -> None:
    program = programs.capture(programs.Function(lambda m, x: torch.exp(x * torch.sigmoid(x))), torch.rand(3, 4))
    with pytest.raises(UsageError, match=r"sigmoid is not in the canonical graph: rule silu") as caught:
        between(canonical(program, load_rules()), ["sigmoid"], ["exp"])
    assert caught.value.fix == "name the node that computes it now: mul"


KNOWN = [
    (lambda m, x, y: torch.relu(y + x), "add", "relu", "relu = fuseconv.add_relu.default("),
    (lambda m, x, y: torch.log(torch.exp(x) + torch.exp(y)), "exp exp_1", "log", "log = aten.logaddexp.default("),
    (lambda m, x, y: torch.tanh(x * y), "mul", "tanh", "tanh = fuseconv.mul_tanh.default("),
    (lambda m, x, y: torch.tanh(x) * torch.relu(y), "tanh relu", "mul", ""),
]


@pytest.mark.parametrize(("function", "first", "last", "line"), KNOWN, ids=[one[3] or "none" for one in KNOWN])
def test_an_existing_op_that_computes_the_same_is_found(function: Any, first: str, last: str, line: str) -> None:
    program = programs.capture(programs.Function(function), torch.rand(3, 4), torch.rand(3, 4))
    graph = canonical(program, load_rules())
    subgraph = between(graph, first.split(), [last])
    values, pattern = pattern_at(graph, subgraph)
    found = next(known_ops(subgraph, values, pattern.example), "")
    assert found.startswith(line)
    assert bool(found) == bool(line)


def test_a_rule_that_its_check_refuses_is_not_drafted() -> None:
    """For infinite operands, lerp gives other results than its formula."""
    blend = programs.Function(lambda m, x, y, w: x + w * (y - x))
    program = programs.capture(blend, *(torch.rand(3, 4) for _ in range(3)))
    with pytest.raises(UsageError, match=r"aten\.lerp\.Tensor computes the same on random numbers, but") as caught:
        draft(program, load_rules(), ["sub"], ["add"], None)
    assert "add --op NAME" in caught.value.fix


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("gate", "drafted.gate.default"),
        ("mine.gate_2", "mine.gate_2.default"),
        ("aten.gate", None),
        ("fuseconv.gate", None),
        ("Gate", None),
        ("a.b.c", None),
        ("", None),
    ],
)
def test_the_name_of_an_op(text: str, target: str | None) -> None:
    if target is not None:
        assert op_named(text).target == target
    else:
        with pytest.raises(UsageError, match=r"cannot name an op|is taken"):
            op_named(text)

"""Formulas of masks equal the masks, element by element, at every tested size."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import programs
from support.programs import Function
from torch import Tensor
from torch.fx import Node

from fuseconv.graph.formula import (
    AtLeastZero,
    Both,
    Choice,
    Either,
)
from fuseconv.matching.graph import Workspace
from fuseconv.rulebook.predicates import FUNCTIONS
from fuseconv.rulebook.refused import Refused


def columns(n: int) -> Tensor:
    return torch.arange(n)


def rows(n: int) -> Tensor:
    return torch.arange(n)[:, None]


def packed(n: int) -> Tensor:
    """What transformers writes to find sequences packed into one row, when there is one."""
    position = torch.arange(n)[None] + 0
    first = position[:, :1] - 1
    sequence = (torch.diff(position, prepend=first, dim=-1) != 1).cumsum(-1)
    return sequence[:, :, None] == sequence[:, None, :]


def gathered(n: int) -> Tensor:
    batch, query, key = torch.arange(1)[:, None, None], torch.arange(n)[None, :, None], torch.arange(n)[None, None, :]
    position = torch.arange(n)[None] + 0
    return position[batch, key] <= position[batch, query]


def filled_twice(n: int) -> Tensor:
    """The mask of PyTorch's tutorials on transformers."""
    kept = (torch.triu(torch.ones(n, n)) == 1).transpose(0, 1)
    return kept.float().masked_fill(kept == 0, -torch.inf).masked_fill(kept == 1, 0.0)


def added(n: int, diagonal: int = 1) -> Tensor:
    """The mask of Meta's Llama."""
    return torch.full((n, n), -torch.inf).triu(diagonal)


MASKS: dict[str, tuple[Callable[[int], Tensor], str | None]] = {
    "ones": (lambda n: torch.ones(n, n, dtype=torch.bool), "hides_nothing"),
    "never negative": (lambda n: (columns(n) >= 0).expand(n, n), "hides_nothing"),
    "in range": (lambda n: (columns(n) < n) & (rows(n) > -1), "hides_nothing"),
    "packed": (packed, "hides_nothing"),
    "zeros added": (lambda n: torch.zeros(n, n), "hides_nothing"),
    "whole window": (lambda n: (rows(n) - columns(n)).abs() < n, None),
    "causal": (lambda n: columns(n) <= rows(n), "hides_the_future"),
    "not later": (lambda n: ~(columns(n) > rows(n)), "hides_the_future"),
    "tril": (lambda n: torch.ones(n, n).tril().bool(), "hides_the_future"),
    "not triu": (lambda n: torch.logical_not(torch.ones(n, n, dtype=torch.bool).triu(1)), "hides_the_future"),
    "gathered": (gathered, "hides_the_future"),
    "causal and packed": (lambda n: packed(n) & (columns(n) <= rows(n)), "hides_the_future"),
    "causal of n - 1": (lambda n: columns(n) + 1 <= rows(n) + 1, "hides_the_future"),
    "minus infinity": (added, "hides_the_future"),
    "after no columns": (lambda n: torch.hstack([torch.zeros(n, 0), added(n)]), "hides_the_future"),
    "after nothing": (lambda n: torch.cat([torch.zeros(0), added(n), torch.zeros(n, 0)], -1), "hides_the_future"),
    "filled twice": (filled_twice, "hides_the_future"),
    "minus infinity, compared": (lambda n: added(n) != -torch.inf, "hides_the_future"),
    "where": (lambda n: torch.where(columns(n) <= rows(n), 0.0, -1e9), "hides_the_future"),
    "filled": (lambda n: torch.zeros(n, n).masked_fill(columns(n) > rows(n), -(2.0**100)), "hides_the_future"),
    "strictly before": (lambda n: columns(n) < rows(n), None),
    "later": (lambda n: columns(n) >= rows(n), None),
    "window": (lambda n: (columns(n) <= rows(n)) & (columns(n) > rows(n) - 3), None),
    "all but the first": (lambda n: (columns(n) > 0).expand(n, n), None),
    "little added": (lambda n: torch.where(columns(n) <= rows(n), 0.0, -1.0), None),
    "transposed": (lambda n: (columns(n) <= rows(n)).transpose(0, 1), None),
    "shifted": (lambda n: torch.ones(n, n).tril(1).bool(), None),
    "sliced": (lambda n: torch.arange(n + 4)[2 : n + 2] <= rows(n), None),
}

Mask = tuple[Callable[[int], Tensor], str | None, Workspace, Node]
"""A function that makes a mask, what the mask is proved to be, a program that calls it, and the mask there."""


def result(workspace: Workspace, at: int) -> Node:
    """A node that the program returns."""
    (results,) = workspace.graph.output_node().args
    assert isinstance(results, tuple)
    node = results[at]
    assert isinstance(node, Node)
    return node


@pytest.fixture(scope="module", params=MASKS)
def mask(request: pytest.FixtureRequest) -> Mask:
    function, kind = MASKS[request.param]
    module = Function(lambda _, x: (x @ function(x.shape[0]).to(x.dtype), function(x.shape[0])))
    example = torch.randn(5, 5)
    n = torch.export.Dim("n", min=2, max=64)
    program = programs.capture(module, example, dims=({0: n, 1: n},))
    workspace = Workspace(program.exported)
    node = result(workspace, 1)
    return function, kind, workspace, node


def test_a_mask_is_proved_to_be_what_it_is_and_nothing_else(mask: Mask) -> None:
    _, kind, workspace, node = mask
    for name in ("hides_nothing", "hides_the_future"):
        if name == kind:
            FUNCTIONS[name].run(workspace, node)
        else:
            with pytest.raises(Refused):
                FUNCTIONS[name].run(workspace, node)


def test_a_formula_gives_every_element_at_every_size(mask: Mask) -> None:
    function, _, workspace, node = mask
    if function is MASKS["whole window"][0]:
        with pytest.raises(Refused, match=r"aten\.abs"):
            workspace.formula(node)
        return
    formula = workspace.formula(node)
    for size in (2, 3, 5, 8):
        expected = function(size)
        for place in itertools.product(range(size), repeat=2):
            found = value(formula, place, size)
            assert found == expected.reshape(size, size)[place].item(), (size, place, formula)


def value(formula: Any, place: tuple[int, ...], size: int) -> Any:
    """A formula at one element: `d1` is its column, `d2` its row, any other symbol the size."""
    if isinstance(formula, bool):
        return formula
    if isinstance(formula, Both):
        return value(formula.left, place, size) and value(formula.right, place, size)
    if isinstance(formula, Either):
        return value(formula.left, place, size) or value(formula.right, place, size)
    if isinstance(formula, AtLeastZero):
        return value(formula.value, place, size) >= 0
    if isinstance(formula, Choice):
        return value(formula.yes if value(formula.condition, place, size) else formula.no, place, size)
    known = {"d1": place[1], "d2": place[0]}
    return float(formula.subs({symbol: known.get(symbol.name, size) for symbol in formula.free_symbols}))


@pytest.mark.parametrize("of_input", [lambda x: x > 0, lambda x: torch.rand(5, 5) > 0.5, lambda x: x.int().bool()])
def test_a_mask_of_an_input_is_not_proved(of_input: Callable[[Tensor], Tensor]) -> None:
    program = programs.capture(Function(lambda _, x: (of_input(x),)), torch.randn(5, 5), dims=({},))
    workspace = Workspace(program.exported)
    with pytest.raises(Refused, match="a formula of indices and sizes"):
        workspace.formula(result(workspace, 0))


ROWS: dict[str, tuple[Callable[[int], Tensor], bool]] = {
    # name: (whether all keys of a query are hidden, and whether this is provably never the case)
    "causal": (lambda n: (added(n) == -torch.inf).all(-1), True),
    "an axis kept": (lambda n: (added(n) == -torch.inf).all(1, keepdim=True), True),
    "window": (lambda n: ~((columns(n) <= rows(n)) & (columns(n) > rows(n) - 3)).all(-1), False),
    "beyond a window": (lambda n: ((columns(n) > rows(n)) | (columns(n) <= rows(n) - 3)).all(-1), True),
    "the first query sees no key": (lambda n: (added(n, 0) == -torch.inf).all(-1), False),
    "all queries of a key": (lambda n: (added(n) == -torch.inf).all(0), False),
    "all": (lambda n: (added(n) == -torch.inf).all(), False),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_of_which_one_key_is_seen(name: str) -> None:
    function, never = ROWS[name]
    n = torch.export.Dim("n", min=2, max=64)
    module = Function(lambda _, x: (x, function(x.shape[0])))
    workspace = Workspace(programs.capture(module, torch.randn(5, 5), dims=({0: n, 1: n},)).exported)
    node = result(workspace, 1)
    if never:
        FUNCTIONS["is_never_true"].run(workspace, node)
        return
    with pytest.raises(Refused):
        FUNCTIONS["is_never_true"].run(workspace, node)


I8, U8, I16, F16, BF16, F32 = torch.int8, torch.uint8, torch.int16, torch.float16, torch.bfloat16, torch.float32
EXACT = {
    # name: (mask, the most tokens for which the dtype holds every index)
    "i8": (lambda n: torch.arange(n, dtype=I8)[None] > torch.arange(n, dtype=I8)[:, None], 128),
    "u8": (lambda n: torch.arange(n, dtype=U8)[None] > torch.arange(n, dtype=U8)[:, None], 256),
    "i16": (lambda n: torch.arange(n, dtype=I16)[None] > torch.arange(n, dtype=I16)[:, None], 2**15),
    "bf16": (lambda n: torch.arange(n, dtype=BF16)[None] > torch.arange(n, dtype=BF16)[:, None], 257),
    "f16": (lambda n: torch.arange(n, dtype=F16)[None] > torch.arange(n, dtype=F16)[:, None], 2049),
    "f32": (lambda n: torch.arange(n, dtype=F32)[None] > torch.arange(n, dtype=F32)[:, None], 2**24 + 1),
    "i32": (lambda n: torch.arange(n, dtype=torch.int32)[None] > torch.arange(n, dtype=torch.int32)[:, None], 2**31),
    "cast": (lambda n: torch.arange(n).to(I8)[None] > torch.arange(n).to(I8)[:, None], 128),
    "promoted": (lambda n: torch.arange(n, dtype=BF16)[None] > torch.arange(n)[:, None], 257),
    "promoted integers": (lambda n: torch.arange(n, dtype=U8)[None] > torch.arange(n)[:, None], 256),
    "sum": (lambda n: (torch.arange(n, dtype=I8) + 20)[None] > (torch.arange(n, dtype=I8) + 20)[:, None], 108),
    "alpha": (
        lambda n: (
            torch.arange(n, dtype=I8)[None] * 3
            > torch.add(torch.zeros(n, dtype=I8), torch.arange(n, dtype=I8), alpha=3)[:, None]
        ),
        43,
    ),
    "product": (lambda n: (torch.arange(n, dtype=F16) * 16)[None] > (torch.arange(n, dtype=F16) * 16)[:, None], 129),
    "backwards": (lambda n: torch.arange(0, -n, -1, dtype=I8)[None] < torch.arange(0, -n, -1, dtype=I8)[:, None], 129),
    "running sum": (
        lambda n: (
            torch.ones(n, dtype=torch.bool).cumsum(0, dtype=I8)[None]
            > torch.ones(n, dtype=torch.bool).cumsum(0, dtype=I8)[:, None]
        ),
        127,
    ),
    "with the size": (
        lambda n: (n - torch.arange(n, dtype=I16))[None] < (n - torch.arange(n, dtype=I16))[:, None],
        2**15 - 1,
    ),
}


@pytest.mark.parametrize("beyond", [0, 1])
@pytest.mark.parametrize("name", EXACT)
def test_a_mask_is_proved_for_as_many_tokens_as_its_dtype_tells_apart(name: str, beyond: int) -> None:
    function, most = EXACT[name]
    n = torch.export.Dim("n", min=2, max=most + beyond)
    module = Function(lambda _, x: (x, ~function(x.shape[0])))
    workspace = Workspace(programs.capture(module, torch.randn(5, 5), dims=({0: n, 1: n},)).exported)
    node = result(workspace, 1)
    if not beyond:
        FUNCTIONS["hides_the_future"].run(workspace, node)
        return
    with pytest.raises(Refused, match="cannot represent exactly"):
        FUNCTIONS["hides_the_future"].run(workspace, node)


WRAPPED = {
    "below nothing": lambda n: torch.arange(n, dtype=U8)[None] - 1 < torch.arange(n, dtype=U8)[:, None],
    "fraction cut off": lambda n: torch.full((n, n), 0.5).to(torch.int64) >= 0,
    "bits read as another dtype": lambda n: torch.ones(n, n).view(torch.int32) <= 1,
    "compared with a rounded number": lambda n: torch.full((n, n), 256, dtype=BF16) < 256.5,
}


@pytest.mark.parametrize("name", WRAPPED)
def test_numbers_that_are_not_what_they_seem_prove_nothing(name: str) -> None:
    n = torch.export.Dim("n", min=2, max=64)
    module = Function(lambda _, x: (x, WRAPPED[name](5)))
    workspace = Workspace(programs.capture(module, torch.randn(5, 5), dims=({0: n},)).exported)
    node = result(workspace, 1)
    for predicate in ("hides_the_future", "hides_nothing", "is_never_true"):
        with pytest.raises(Refused):
            FUNCTIONS[predicate].run(workspace, node)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("least", [-1e4, -1e9, float("-inf"), "min"])
def test_what_is_added_is_judged_as_its_dtype_holds_it(dtype: torch.dtype, least: float | str) -> None:
    hidden = torch.finfo(dtype).min if least == "min" else float(least)
    hidden = max(hidden, torch.finfo(dtype).min) if hidden != float("-inf") else hidden

    def function(n: int) -> Tensor:
        seen = torch.arange(n)[None] <= torch.arange(n)[:, None]
        return torch.where(seen, torch.zeros((), dtype=dtype), torch.full((), hidden, dtype=dtype))

    n = torch.export.Dim("n", min=2, max=64)
    module = Function(lambda _, x: (x, function(x.shape[0])))
    workspace = Workspace(programs.capture(module, torch.randn(5, 5), dims=({0: n, 1: n},)).exported)
    FUNCTIONS["hides_the_future"].run(workspace, result(workspace, 1))

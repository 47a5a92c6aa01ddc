"""Ops run on fake tensors for all sizes at once."""

import io
import logging
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sympy
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._sympy.functions import FloorDiv, PythonMod

from fuseconv.graph.all_sizes import MOST_CONDITIONS, GuardError, run_for_all_sizes
from fuseconv.graph.floor_division import normal_form
from fuseconv.graph.proved_sizes import same_size, same_sizes


def fake_of_any_batch() -> tuple[FakeTensorMode, Tensor]:
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(torch.nn.ReLU(), (torch.randn(4, 8),), dynamic_shapes=({0: batch},))
    value = program.graph.find_nodes(op="placeholder")[0].meta["val"]
    return value.fake_mode, value


@pytest.mark.parametrize("ask", [int, range, lambda size: 12 // int(size)], ids=["int", "range", "division"])
def test_a_size_as_a_number_has_no_two_answers(ask: Callable[[Any], object]) -> None:
    mode, value = fake_of_any_batch()
    with pytest.raises(GuardError, match="a condition on sizes"):
        run_for_all_sizes(mode, lambda: ask(value.shape[0]))


def test_a_remainder_of_a_product_that_was_multiplied_out_is_known() -> None:
    mode, value = fake_of_any_batch()
    batch = value.shape[0]
    rows = batch * batch - batch
    assert run_for_all_sizes(mode, lambda: 1 if rows % batch == 0 else 2) == 1
    with pytest.raises(GuardError, match="a condition on sizes"):
        run_for_all_sizes(mode, lambda: 1 if (rows + 1) % batch == 0 else 2)


def test_a_condition_on_sizes_is_tried_both_ways() -> None:
    mode, value = fake_of_any_batch()
    assert run_for_all_sizes(mode, lambda: abs(1 if value.shape[0] > 8 else -1)) == 1
    with pytest.raises(GuardError, match="a condition on sizes"):
        run_for_all_sizes(mode, lambda: 1 if value.shape[0] > 8 else 2)


@pytest.mark.parametrize(("conditions", "decided"), [(MOST_CONDITIONS, True), (MOST_CONDITIONS + 1, False)])
def test_some_conditions_are_tried_one_below_the_other(conditions: int, decided: bool) -> None:
    mode, value = fake_of_any_batch()
    batch = value.shape[0]
    asked = []

    def run(last: int) -> int:
        answers = [bool(batch > 8 * (i + 1)) for i in range(conditions)]
        asked.append(answers)
        return last if all(answers) else 1

    if decided:
        assert run_for_all_sizes(mode, lambda: run(1)) == 1
        assert len(asked) == 2**conditions
    with pytest.raises(GuardError, match="a condition on sizes"):
        run_for_all_sizes(mode, lambda: run(2 if decided else 1))


@pytest.mark.parametrize(
    "error",
    [
        AssertionError("as a squeeze of an axis that another condition says to be 1"),
        IndexError("as a view that looks behind the last axis for the elements that a condition says it needs"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_answer_that_an_op_does_not_expect_leaves_the_condition_open(error: Exception) -> None:
    mode, value = fake_of_any_batch()

    def run() -> int:
        if value.shape[0] > 8:
            raise error
        return 1

    with pytest.raises(GuardError, match="a condition on sizes"):
        run_for_all_sizes(mode, run)


def test_each_answer_is_computed_and_none_is_torch_s_own_copy_of_an_earlier_one() -> None:
    """torch's cache of fake results does not know which answer to a condition is being tried."""
    mode, value = fake_of_any_batch()
    before = FakeTensorMode.cache_info()
    run_for_all_sizes(mode, lambda: value.mul(2) if value.shape[0] > 8 else 2 * value)
    assert FakeTensorMode.cache_info() == before
    assert mode.cache_enabled


@pytest.fixture
def said() -> Iterator[io.StringIO]:
    """What torch logs about fake tensors during a test."""
    logger, text = logging.getLogger("torch._subclasses.fake_tensor"), io.StringIO()
    handler = logging.StreamHandler(text)
    logger.addHandler(handler)
    yield text
    logger.removeHandler(handler)


def test_torch_does_not_log_what_is_tried_and_handled(said: io.StringIO) -> None:
    mode, value = fake_of_any_batch()
    library = torch.library.Library("fuseconv_test_sizes", "DEF")
    library.define("rows(Tensor x) -> Tensor")
    library.impl("rows", lambda x: x.new_empty(int(x.shape[0])), "Meta")
    with pytest.raises(GuardError):
        run_for_all_sizes(mode, lambda: torch.ops.fuseconv_test_sizes.rows(value))
    assert said.getvalue() == ""


def test_torch_does_not_log_what_is_tried_again(said: io.StringIO) -> None:
    """The C++ code of expand, which baddbmm calls, reads sizes as ints unless Python dispatches it."""
    mode, value = fake_of_any_batch()
    run = torch.ops.aten.baddbmm.default
    result = run_for_all_sizes(mode, lambda: run(value[:, :1, None], value[:, :, None], value[:, None]))
    assert result.shape == (value.shape[0], 8, 8)
    assert said.getvalue() == ""


def test_a_product_of_sizes_is_more_than_each_of_them() -> None:
    mode, value = fake_of_any_batch()
    batch = value.shape[0]
    rows = batch * (batch + 1)
    assert run_for_all_sizes(mode, lambda: 1 if rows == batch else 2) == 2
    assert run_for_all_sizes(mode, lambda: 1 if batch % rows != 0 else 2) == 1
    with pytest.raises(GuardError, match="a condition on sizes"):
        run_for_all_sizes(mode, lambda: 1 if batch * batch == batch + 6 else 2)


@pytest.mark.diagonal(4)
@pytest.mark.parametrize("seed", range(20))
def test_the_normal_form_of_a_division_has_its_values(seed: int) -> None:
    draw, (a, b) = random.Random(seed), sympy.symbols("a b", integer=True, positive=True)
    for _ in range(20):
        dividend = draw.randint(-9, 64) * a + draw.randint(-9, 64) * a * b + draw.randint(-40, 40)
        quotient = FloorDiv(dividend, draw.choice([1, 2, 3, 4, 8, 64]))
        twice = draw.randint(1, 9) * quotient + draw.randint(-5, 5)
        values = {a: draw.randint(1, 99), b: draw.randint(1, 99)}
        for kind in (FloorDiv, PythonMod):
            for size in (kind(twice, draw.randint(1, 8)), kind(dividend * b, b), kind(dividend, b)):
                assert normal_form(size).subs(values) == size.subs(values)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (lambda s: (32 * s - 1) // 64 + 1, lambda s: (s - 1) // 2 + 1, True),
        (lambda s: (12 * s + 5) // 4, lambda s: 3 * s + 1, True),
        (lambda s: (7 * s) // 2, lambda s: 3 * s + s // 2, True),
        (lambda s: s + -s % 7, lambda s: (s + -s % 7) // 7 * 7, True),
        (lambda s: s + (7 - s % 7) % 7, lambda s: s + -s % 7, True),
        (lambda s: (s + -s % 7) // ((s + -s % 7) // 7), lambda s: 7, True),
        (lambda s: s + -s % 7, lambda s: (s + 7) // 7 * 7, False),
        (lambda s: (s * s) // (s + 1), lambda s: s, False),
        (lambda s: (32 * s - 33) // 64 + 1, lambda s: (s - 1) // 2 + 1, False),
        (lambda s: s // 2, lambda s: (s + 1) // 2, False),
        (lambda s: s, lambda s: 3, False),
    ],
)
def test_sizes_with_divisions_are_compared(one: Callable[[Any], Any], other: Callable[[Any], Any], same: bool) -> None:
    _, value = fake_of_any_batch()
    batch = value.shape[0]
    assert same_sizes([one(batch), 2], [other(batch), 2]) is same
    assert same_size(batch * one(batch), other(batch) * batch) is same

"""A program that writes its next state into its state inputs computes what the model computes, for any state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from support import small_bundle
from support.programs import Function
from torch import Tensor

from fuseconv.contract.inputs import draw, example_sizes
from fuseconv.program.captured import Program
from fuseconv.targets.in_place import in_place, updated_in_place
from fuseconv.targets.own_outputs import own_outputs
from fuseconv.targets.script_module import compile_program

INPUTS = ("x=f32[batch:1..4,3]", "at=i64[1]", "one=f32[batch,3]", "other=f32[batch,3]")
NAMES = ("one", "other")
Step = Callable[..., tuple[Tensor, ...]]


def cache(_: object, x: Tensor, at: Tensor, one: Tensor, other: Tensor) -> tuple[Tensor, ...]:
    """Two caches, as a key-value cache is written: each is copied, and the copy is written to."""
    kept, also = one.clone(), other.clone()
    kept.index_copy_(1, at, x[:, :1])
    also.mul_(0.5).add_(x)
    return x * kept.sum() + also, kept, also


def recurrent(_: object, x: Tensor, at: Tensor, one: Tensor, other: Tensor) -> tuple[Tensor, ...]:
    """Each state is a function of both, so a write of one must come after every read of it."""
    return x + at, torch.tanh(x + one + other), one * other


def swapped(_: object, x: Tensor, at: Tensor, one: Tensor, other: Tensor) -> tuple[Tensor, ...]:
    return x + at, other, one


def unchanged(_: object, x: Tensor, at: Tensor, one: Tensor, other: Tensor) -> tuple[Tensor, ...]:
    return x + one + at, one, other.clone()


def same(_: object, x: Tensor, at: Tensor, one: Tensor, other: Tensor) -> tuple[Tensor, ...]:
    total = one + other + x
    return total.view(-1, 3) + at, total, total


def seen_before_and_after(_: object, x: Tensor, at: Tensor, one: Tensor, other: Tensor) -> tuple[Tensor, ...]:
    """The result has the old and the new value of each state; of one it is a view of the copy."""
    kept, also = one.clone(), other.clone()
    early = other.t()
    kept.index_copy_(1, at, x[:, :1])
    also.add_(1)
    return torch.cat([one, kept, early.t(), also]), kept, also


def returned_too(_: object, x: Tensor, at: Tensor, one: Tensor, other: Tensor) -> tuple[Tensor, ...]:
    kept = one.clone()
    kept.add_(x).sub_(at)
    return kept, kept, other[:, :]


def copied_before_a_write_to_the_copy(
    _: object, x: Tensor, at: Tensor, one: Tensor, other: Tensor
) -> tuple[Tensor, ...]:
    """The second state becomes the value that the first had after half of the writes."""
    kept = one.clone()
    kept.add_(x)
    also = kept.clone()
    kept.mul_(other).add_(at)
    return x * 2, kept, also


STEPS: dict[Step, tuple[str, ...]] = {
    cache: ("one", "other"),
    recurrent: (),
    swapped: (),
    unchanged: (),
    same: (),
    seen_before_and_after: (),
    returned_too: (),
    copied_before_a_write_to_the_copy: ("one",),
}
"""The functions, and their states that are written in place."""


def program_of(step: Step) -> Program:
    program = small_bundle.program(Function(step), INPUTS)
    state = tuple(zip(NAMES, program.contract.outputs[1:], strict=True))
    return replace(program, contract=replace(program.contract, state=state))


def scripted(program: Program) -> Callable[..., tuple[Tensor, ...]]:
    module = compile_program(program)
    return lambda *inputs: tuple(module(*inputs))


def exported(program: Program) -> Callable[..., tuple[Tensor, ...]]:
    module = in_place(program).exported.module(check_guards=False)
    return lambda *inputs: tuple(module(*inputs))


@pytest.mark.parametrize("made", [exported, scripted])
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_the_states_are_those_of_the_function(step: Step, made: Callable[[Program], Step]) -> None:
    program = program_of(step)
    assert updated_in_place(program) == STEPS[step]
    run = made(program)
    state = dict(zip(NAMES, draw(program.contract, example_sizes(program.contract), seed=2)[2:], strict=True))
    expected = [one.clone() for one in state.values()]
    for seed in range(4):
        x, _, *_ = draw(program.contract, example_sizes(program.contract), seed=seed)
        at, before = torch.tensor([seed % 3]), {name: one.clone() for name, one in state.items()}
        result, *new = run(x, at, *state.values())
        right, *expected = step(None, x, at, *(one.clone() for one in expected))
        for found, value in zip((result, *new), (right, *expected), strict=True):
            torch.testing.assert_close(found, value, rtol=0, atol=0)
        for (name, one), output in zip(state.items(), new, strict=True):
            assert (output.data_ptr() == one.data_ptr()) == (name in STEPS[step])
            assert name in STEPS[step] or torch.equal(one, before[name])
        state = dict(zip(NAMES, new, strict=True))
        assert len({one.data_ptr() for one in (result, *new)}) == 3


def test_nothing_of_the_size_of_a_cache_is_copied() -> None:
    graph = in_place(program_of(cache)).exported.graph
    called = {str(node.target) for node in graph.nodes}
    assert {"aten.index_copy_.default", "aten.mul_.Tensor"} <= called
    assert not called & {"aten.clone.default", "aten.copy_.default"}


def test_a_program_without_state_stays_as_it_is() -> None:
    program = own_outputs(small_bundle.program(Function(cache), INPUTS))
    assert in_place(program) is program

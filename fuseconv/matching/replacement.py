"""Instantiates the `replace` lines of a rule for one match: determines the ops, their arguments and their fake results.

The ops run only on fake tensors, with the symbolic sizes of the program. A match is rejected if an op requires a
guard that the program does not contain.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Node

from fuseconv.contract.dtypes import DTYPES
from fuseconv.graph.all_sizes import GuardError
from fuseconv.graph.proved_sizes import row_major, same_sizes
from fuseconv.graph.typical_sizes import typical
from fuseconv.matching.graph import Workspace, find_op, is_repeatable, map_nodes, why_no_op
from fuseconv.rulebook.functions import Constants
from fuseconv.rulebook.predicates import FUNCTIONS
from fuseconv.rulebook.refused import Refused, text_of
from fuseconv.rulebook.rule_text import Apply, Call, Items, Line, Literal, Name, Term, parse_line, written

FREE_BYTES = 1 << 30
"""Results of an op in a replacement are accepted if their total size in bytes is at most this number."""

LARGEST_GROWTH = 64
"""The maximum ratio, in bytes, of the results of an op to its operands, if the results exceed `FREE_BYTES`."""


@dataclass(frozen=True)
class Made:
    """An operand that is the result of an earlier line of the replacement. The line binds the result to `name`."""

    name: str


@dataclass(frozen=True)
class Instruction:
    """One op call that the replacement inserts.

    Attributes:
        targets: the names that the line binds to the results.
        unpacks: whether the op returns several results.
        op: the op to call.
        args, kwargs: nodes, literals, and `Made` for the results of earlier instructions.
        fake: the result of the op on fake tensors.
        constant: whether the op is evaluated at conversion. Its operands are then constants.
    """

    targets: tuple[str, ...]
    unpacks: bool
    op: torch._ops.OpOverload
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    fake: Any
    constant: bool


@dataclass(frozen=True)
class Replacement:
    """The `replace` lines of a rule, instantiated for one match.

    Attributes:
        instructions: the ops to call, in order.
        same: maps each name that a line `NAME = VALUE` binds to the existing value, for which no op is called.
        fakes: maps each bound name to its fake value.
    """

    instructions: tuple[Instruction, ...]
    same: Mapping[str, Node | Made]
    fakes: Mapping[str, Any]


def instantiate(lines: Sequence[Line], captures: Mapping[str, Any], workspace: Workspace) -> Replacement:
    """Binds the lines of `replace` to the values of a match, runs their ops on fake tensors, and returns the result.

    Args:
        lines: the parsed `replace` lines.
        captures: maps each pattern variable to a node, a literal, or a list of these.
        workspace: the graph that contains the match.

    Raises:
        Refused: an op rejects the values or requires a new guard, or a function is not defined for the values.
    """
    values = dict(captures)
    fakes: dict[str, Any] = {}
    instructions: list[Instruction] = []
    same: dict[str, Node | Made] = {}
    for line in lines:
        if isinstance(line.value, Call):
            instruction = _instruction(line, _resolved(line.value, values, workspace), fakes, workspace)
            if line.constant:
                _check_constant(
                    line, instruction, {made.targets[0] for made in instructions if made.constant}, workspace
                )
            instructions.append(instruction)
            named = dict(zip(line.targets, _results(line, instruction), strict=False))
            fakes.update({name: fake for name, fake in named.items() if name != "_"})
            values.update({name: Made(name) for name in named if name != "_"})
        else:
            value = resolve(line.value, values, workspace)
            if not isinstance(value, Node | Made):
                raise Refused("a tensor", text_of(value))
            same[line.targets[0]], fakes[line.targets[0]] = value, _fake(value, fakes)
            values[line.targets[0]] = value
    return Replacement(tuple(instructions), same, fakes)


def _results(line: Line, instruction: Instruction) -> Sequence[Any]:
    """Returns the fake results of an op, one for each name that the line binds.

    Raises:
        Refused: the op returns fewer values than the line binds names.
    """
    if not line.unpacks:
        return [instruction.fake]
    results = instruction.fake if isinstance(instruction.fake, list | tuple) else [instruction.fake]
    if len(results) < len(line.targets):
        raise Refused(f"{len(line.targets)} results of {instruction.op}", str(len(results)))
    return results


def check_same(new: Any, node: Node, strides: str = "same") -> None:
    """Checks that a value may replace a node: the dtype, device, layout and shape of both are equal.

    If `strides` is `same`, the strides must be equal too, or the value must be contiguous. Sizes and strides must be
    equal for all values of the symbolic sizes.

    Raises:
        Refused: the value differs, or equality cannot be proved.
    """
    old = node.meta.get("val")
    if not isinstance(old, torch.Tensor) or not isinstance(new, torch.Tensor):
        raise Refused("a tensor as the replacement of a tensor", f"{type(new).__name__} for {text_of(node)}")
    for what in ("dtype", "device", "layout"):
        if getattr(new, what) != getattr(old, what):
            expected = f"a replacement with {what} {getattr(old, what)}, like {text_of(node)}"
            raise Refused(expected, f"{what} {getattr(new, what)}")
    if not same_sizes(new.shape, old.shape):
        raise Refused(f"a replacement with the shape of {text_of(node)}", f"shape [{', '.join(map(str, new.shape))}]")
    if strides == "same" and not same_sizes(new.stride(), old.stride()) and not row_major(new):
        raise Refused(f"a replacement with the strides of {text_of(node)}", f"strides {tuple(new.stride())}")


def resolve(term: Term, values: Mapping[str, Any], constants: Constants) -> Any:
    """Returns the value of an argument of a `replace` line: a node, a `Made`, a literal, or a list of these.

    Raises:
        Refused: a function is not defined for its operands.
    """
    if isinstance(term, Name):
        return values[term.id]
    if isinstance(term, Literal):
        return getattr(torch, DTYPES[str(term.value)].removeprefix("torch.")) if term.is_dtype else term.value
    if isinstance(term, Items):
        return [resolve(item, values, constants) for item in term.items]
    assert isinstance(term, Apply)
    return FUNCTIONS[term.function].run(constants, *(resolve(item, values, constants) for item in term.args))


def settled(lines: Sequence[str], captures: Mapping[str, Any], constants: Constants) -> tuple[str, ...]:
    """Returns the lines of `replace` with values in place of the functions that read settings of the process.

    Raises:
        Refused: a function is not defined for its operands.
    """

    def fixed(term: Term) -> Term:
        if isinstance(term, Apply) and FUNCTIONS[term.function].settings:
            return Literal(resolve(term, captures, constants))
        return term

    def settled_line(text: str) -> str:
        line = parse_line(text)
        if not isinstance(line.value, Call):
            return text
        args = tuple(map(fixed, line.value.args))
        return text if args == line.value.args else written(replace(line, value=replace(line.value, args=args)))

    return tuple(map(settled_line, lines))


def _resolved(
    call: Call, values: Mapping[str, Any], constants: Constants
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    op = find_op(call.op)
    if op is None:
        raise Refused(f"the op {call.op}", why_no_op(call.op))
    args = tuple(resolve(term, values, constants) for term in call.args)
    return op, args, {name: resolve(term, values, constants) for name, term in call.kwargs}


def _instruction(line: Line, resolved: tuple[Any, ...], fakes: Mapping[str, Any], workspace: Workspace) -> Instruction:
    op, args, kwargs = resolved
    if any(isinstance(leaf, torch.SymInt) for leaf in torch.utils._pytree.tree_leaves((args, kwargs))):
        raise Refused(f"static sizes for {op}", "a dynamic size")
    fake_args = tuple(_fake(value, fakes) for value in args)
    fake_kwargs = {name: _fake(value, fakes) for name, value in kwargs.items()}
    try:
        fake = workspace.run(op, fake_args, fake_kwargs)
    except GuardError as problem:
        raise Refused(f"{op} to accept all sizes", str(problem)) from None
    except (RuntimeError, TypeError, ValueError, IndexError, AssertionError) as problem:
        reason = str(problem).strip().split("\n")[0] or type(problem).__name__
        raise Refused(f"arguments that {op} accepts", reason) from None
    _check_result(op, fake, (fake_args, fake_kwargs))
    return Instruction(line.targets, line.unpacks, op, args, kwargs, fake, line.constant)


def _check_result(op: torch._ops.OpOverload, fake: Any, operands: Any) -> None:
    """Checks the device and the size of the result of an op.

    Raises:
        Refused: the result is neither on the CPU nor on a device of an operand, or it is larger than `FREE_BYTES` and
            than `LARGEST_GROWTH` times the operands.
    """
    given, made = _tensors(operands), _tensors(fake)
    devices = {"cpu", *(tensor.device.type for tensor in given)}
    if strange := next((tensor.device for tensor in made if tensor.device.type not in devices), None):
        raise Refused(f"{op} to return a tensor on {' or '.join(sorted(devices))}", str(strange))
    budget = max(FREE_BYTES, LARGEST_GROWTH * sum(map(_bytes, given)))
    if (size := sum(map(_bytes, made))) > budget:
        raise Refused(f"{op} to return at most {budget} bytes", f"{size}")


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _bytes(fake: torch.Tensor) -> int:
    """Returns the size of a tensor in bytes, in a typical call."""
    return fake.element_size() * math.prod(map(typical, fake.shape))


def _check_constant(line: Line, instruction: Instruction, made: set[str], workspace: Workspace) -> None:
    for leaf in torch.utils._pytree.tree_leaves((instruction.args, instruction.kwargs)):
        known = leaf.name in made if isinstance(leaf, Made) else workspace.is_constant(leaf)
        if isinstance(leaf, Made | Node) and not known:
            raise Refused(f"only constants as operands of {line.targets[0]}", text_of(leaf))
    if line.unpacks or not is_repeatable(instruction.op, instruction.fake):
        raise Refused("a deterministic op that returns one tensor", str(instruction.op))


def _fake(value: Any, fakes: Mapping[str, Any]) -> Any:
    if isinstance(value, Made):
        return fakes[value.name]
    if isinstance(value, list):
        return [_fake(item, fakes) for item in value]
    return map_nodes(value, lambda node: node.meta.get("val"))

"""Proves guards that torch.export cannot simplify but that hold for all sizes, such as `8 * n == n * min(8, 8 * n)`.

torch.export rejects a dim if it cannot simplify one of the dim's guards. With
`prefer_deferred_runtime_asserts_over_guards`, torch.export writes such guards into the program as assertions instead.
This module proves each assertion from the ranges of the dims, and removes the assertion. In such a program, the sizes
of one dim in several inputs are different symbols, which are made equal first.

A guard on a size that Python needs as a number, such as `(5 * n - 1) // n == 4` for the number of chunks, is rejected
nevertheless, but becomes an assertion if the dims have no declared ranges.

An assertion may also hold for all but a few sizes: at `n = 2`, `x[:, 1:]` has one column, and torch.export assumes that
a computed size is neither 0 nor 1. The program may be right nevertheless. Therefore such an assertion is removed, and
the program is compared with the model at sizes where it does not hold.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, cast

import sympy
import torch
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import DimConstraints, ShapeEnv, free_unbacked_symbols
from torch.utils._sympy.functions import Mod, PythonMod
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges

from fuseconv.capture.memory_formats import without_guards_of_memory_formats
from fuseconv.contract.dims import UNBOUNDED
from fuseconv.contract.spec import Contract
from fuseconv.graph.floor_division import normal_form
from fuseconv.graph.model_line import innermost
from fuseconv.sizes.guards import Ranges, always, exceptions, holds_within
from fuseconv.sizes.multiples import NarrowedError, sizes_of_dims
from fuseconv.sizes.unusual_sizes import Assumption, spread

MOST_FAILING = 1 << 14
"""The maximum number of combinations of sizes at which an assertion that is removed does not hold."""

MOST_COMPARED = 16
"""The maximum number of these combinations at which the program is compared with the model."""

_NO_RANGE = "Cannot create Dim with inconsistent"
"""Part of the error message of torch.export if it fails while it writes the ranges that it suggests."""

_UNTOLD = ("satisfy the generated guard", _NO_RANGE, "Expected op to be '=='")
"""Parts of torch.export's error messages for a constraint that it cannot simplify, or cannot suggest a range for.

The last one is an assertion of torch about its own solver, which expects that a constraint on a dim is an equality."""

Sizes = Mapping[str, Sequence[SymNode]]
"""Maps the name of each dynamic dim to its sizes in a program, which are equal by the contract."""

_SUGGEST = "prettify_results"
"""The method of torch.export that writes the suggested ranges of dims into its error message."""

_NARROW = "_refine_ranges"
"""The method of torch.export that narrows the ranges of sizes to those at which a guard holds."""

_CLEAN = "cleanup"
"""The method of torch.export that removes the stacks of assertions after the export."""

_DEFERRED = "Runtime assertion failed for expression"
"""The prefix of the message of an assertion that torch.export generates for a guard."""


class UnprovedError(Exception):
    """A program has a guard that is not known to hold for all sizes.

    Attributes:
        guard: the guard as text, with the names of the dims.
        dims: the names of the dims that occur in the guard.
        line: the source line of the model at which torch.export made the guard. Empty if it is unknown.
        kept: the sizes at which the guard holds, divided by the step of the dim. None if they are unknown or no range
            of multiples, or if the guard has several dims.
    """

    def __init__(self, guard: str, dims: tuple[str, ...], line: str, kept: range | None) -> None:
        super().__init__(guard)
        self.guard = guard
        self.dims = dims
        self.line = line
        self.kept = kept


Guards = Literal["checked", "asserted", "unranged"]
"""What torch.export does with guards: it checks whether they hold within the ranges of the dims, or makes assertions of
them, for dims with or without ranges."""


def export_proving(
    export: Callable[[Guards], ExportedProgram],
    equal: Callable[[ExportedProgram], Sizes],
    check: Callable[[Mapping[str, SymNode]], None],
) -> ExportedProgram:
    """Exports a model, and proves the guards that torch.export cannot simplify.

    If torch.export or `check` rejects a guard, exports again with guards as assertions, proves the assertions and
    removes them. Assertions that do not hold at a few sizes stay in the program until `release` removes them. If an
    assertion cannot be proved, exports without guards about memory formats, on which no result depends.

    Args:
        export: a function that calls torch.export. A program that it exports without ranges has the ranges of the
            contract afterwards.
        equal: a function that returns the sizes of each dim in a program.
        check: a function that raises `NarrowedError` if the sizes of a dim with a step are restricted by a guard.

    Raises:
        UnprovedError: an assertion cannot be proved. Its cause is the error of the export without assertions.
        NarrowedError: the error of `check`, if an assertion cannot be proved.
        Exception: the export fails. This is the error of the export without assertions, or of the one with assertions
            if the former names no guard.
    """

    def checked(guards: Guards) -> ExportedProgram:
        exported = export(guards)
        check({name: first for name, (first, *_) in equal(exported).items()})
        return exported

    try:
        return checked("checked")
    except Exception as error:
        if not (isinstance(error, NarrowedError) or any(part in str(error) for part in _UNTOLD)):
            raise
        proved = _proved(partial(checked, "asserted"), equal)
        if isinstance(proved, UnprovedError):
            with without_guards_of_memory_formats():
                proved = _proved(partial(checked, "asserted"), equal)
        if isinstance(proved, ExportedProgram):
            return proved
        if not isinstance(proved, NarrowedError | UnprovedError):
            unranged = _proved(partial(checked, "unranged"), equal)
            if isinstance(unranged, ExportedProgram):
                return unranged
        if not isinstance(error, NarrowedError) and (isinstance(proved, UnprovedError) or _NO_RANGE in str(error)):
            raise proved from error
        raise


def _proved(
    export: Callable[[], ExportedProgram], equal: Callable[[ExportedProgram], Sizes]
) -> ExportedProgram | Exception:
    """Exports with guards as assertions, and returns the program if all hold at all sizes, or at all but a few sizes.

    Otherwise returns the error of the export, or the error for the first assertion that is not proved.
    """
    try:
        with _without_suggestions(), _keeping_ranges():
            exported = export()
    except Exception as error:  # noqa: BLE001 - the caller raises one of two errors
        logging.getLogger("fuseconv").debug("the export with assertions failed: %s", error)
        return error
    sizes = equal(exported)
    for first, *others in sizes.values():
        for other in others:
            _unify(first, other)
    for node in _assertions(exported):
        guard = _guard(node)
        if guard is None or always(guard, exported.range_constraints):
            _drop(exported, node)
        elif _failing(guard, exported.range_constraints) is None:
            return _unproved(node, guard, sizes, exported.range_constraints)
    exported.graph_module.recompile()
    return exported


def declare_ranges(exported: ExportedProgram, contract: Contract, sizes: Sizes) -> None:
    """Gives the dims of a program that was exported without ranges the ranges of the contract.

    Raises:
        UnprovedError: a guard on one dim, which torch.export would have checked, does not hold at all sizes.
    """
    for name, nodes in sizes.items():
        dim = contract.dims()[name]
        high = dim.max if dim.max < UNBOUNDED else int_oo
        for node in nodes:
            symbol, environment = node.expr, node.shape_env
            if not symbol.is_Symbol or environment is None:
                continue  # a dim with a step has a range
            exported.range_constraints[symbol] = ValueRanges(dim.min, high)
            environment.var_to_range[symbol] = within = ValueRanges(max(dim.min, 2), high)
            for guard in (one.expr for one in environment.guards):
                if guard.free_symbols == {symbol} and not always(guard, {symbol: within}):
                    raise UnprovedError(str(guard.xreplace({symbol: sympy.Symbol(name)})), (name,), "", None)


def release(exported: ExportedProgram, contract: Contract) -> list[Assumption]:
    """Removes the assertions that hold at all but a few sizes of the dims, and returns them.

    The program must then be compared with the model at the sizes in the result. Assertions on values of tensors stay.

    Args:
        exported: the program. Its placeholders must have the input names of the contract.
        contract: the contract with the dims.
    """
    dims, sizes_of = {}, sizes_of_dims(exported, contract)
    for name, size in sizes_of.items():
        step, symbol = size.expr.as_coeff_Mul()
        dims[symbol] = (name, int(step))
    released = []
    for node in _assertions(exported):
        guard = _guard(node)
        if guard is None or not guard.free_symbols <= dims.keys():
            continue
        found = _failing(guard, exported.range_constraints)
        if found is None:
            continue
        failing = tuple(
            {dims[one][0]: dims[one][1] * size for one, size in sizes.items()} for sizes in spread(found, MOST_COMPARED)
        )
        if failing:
            released.append(Assumption(_line(node, guard), tuple(failing[0]), failing))
        _forget(node, guard)
        _drop(exported, node)
    for size in sizes_of.values():
        size.shape_env.cleanup()
    exported.graph_module.recompile()
    return released


def _guard(assertion: Node) -> Any:
    """Returns the asserted expression, or None if it is known to hold."""
    asserted = assertion.args[0]
    held = asserted.meta.get("val") if isinstance(asserted, Node) else asserted
    return held.node.expr if isinstance(held, torch.SymBool) else None


def _failing(guard: Any, ranges: Ranges) -> list[dict[sympy.Symbol, int]] | None:
    """Returns the few sizes at which an assumption of torch.export does not hold, or None if the guard is no such.

    An assumption says that sizes are unequal, such as a computed size and 1, or that a size is not small. Other guards,
    such as one on any other remainder, come from a branch of the model, which computes something else at the other
    sizes.
    """
    guard = _without_remainder(guard, ranges)
    if guard == sympy.true:
        return []
    if not isinstance(guard, sympy.Rel) or any(isinstance(side, Mod | PythonMod) for side in guard.args):
        return None
    found = exceptions(guard, ranges, MOST_FAILING)
    if isinstance(guard, sympy.Ne) or not found:
        return found
    smallest = {symbol: int(ranges[symbol].lower) for symbol in guard.free_symbols}
    return found if smallest in found and not isinstance(guard, sympy.Eq) else None


def _without_remainder(guard: Any, ranges: Ranges) -> Any:
    """Returns `k > 1` for a guard `a mod (a * k) != 0` with a > 0, and other guards unchanged.

    For k > 1 the remainder is a. torch computes it to decide whether two dims can be viewed as one.
    """
    if isinstance(guard, sympy.Ne) and guard.args[1] == 0 and isinstance(guard.args[0], Mod | PythonMod):
        part, whole = map(normal_form, guard.args[0].args)
        factor = sympy.cancel(whole / part)
        if not factor.is_number and sympy.denom(factor) == 1 and always(part > 0, ranges):
            return factor > 1
    return guard


def _facts(assertion: Node) -> Iterator[list[Any]]:
    """Yields the lists of assertions with which torch simplifies the sizes of the program of an assertion."""
    environment = cast(Node, assertion.args[0]).meta["val"].node.shape_env
    yield from environment.deferred_runtime_asserts.values()


def _forget(assertion: Node, guard: Any) -> None:
    """Removes a guard from the facts with which torch simplifies sizes."""
    for asserted in _facts(assertion):
        asserted[:] = [one for one in asserted if not _is_same(one.expr, guard)]


def _is_same(one: Any, other: Any) -> bool:
    """Returns whether two guards are the same, such as `8 < n` and `n > 8`."""
    return bool(getattr(one, "canonical", one) == getattr(other, "canonical", other))


def _line(assertion: Node, guard: Any) -> str:
    """Returns the source line of the model at which torch.export made a guard, or "" if it is unknown."""
    made = (one.stack.summary() for asserted in _facts(assertion) for one in asserted if _is_same(one.expr, guard))
    return next((line for line in map(innermost, made) if line), None) or ""


def _unproved(assertion: Node, guard: Any, sizes: Sizes, ranges: Ranges) -> UnprovedError:
    """Returns the error for a guard that is not proved."""
    names = {}
    for name, (first, *_) in sizes.items():
        step, symbol = first.expr.as_coeff_Mul()
        names[symbol] = sympy.Symbol(name, integer=True, positive=True) / step
    about = tuple(str(named.as_coeff_Mul()[1]) for symbol, named in names.items() if symbol in guard.free_symbols)
    return UnprovedError(str(guard.xreplace(names)), about, _line(assertion, guard), holds_within(guard, ranges))


@contextmanager
def _without_suggestions() -> Iterator[None]:
    """Within the block, torch.export suggests no ranges, which it does even if it rejects none, and which may fail."""
    suggest = getattr(DimConstraints, _SUGGEST)
    setattr(DimConstraints, _SUGGEST, lambda *_, **__: "")
    try:
        yield
    finally:
        setattr(DimConstraints, _SUGGEST, suggest)


@contextmanager
def _keeping_ranges() -> Iterator[None]:
    """Within the block, an assertion on sizes of the inputs does not narrow their ranges, which is an error then.

    The stacks of the assertions are kept, too. `release` removes them.
    """
    narrow, clean = getattr(ShapeEnv, _NARROW), getattr(ShapeEnv, _CLEAN)

    def kept(environment: ShapeEnv, guard: Any) -> None:
        if free_unbacked_symbols(guard):
            narrow(environment, guard)

    setattr(ShapeEnv, _NARROW, kept)
    setattr(ShapeEnv, _CLEAN, lambda _: None)
    try:
        yield
    finally:
        setattr(ShapeEnv, _NARROW, narrow)
        setattr(ShapeEnv, _CLEAN, clean)


def _unify(first: SymNode, other: SymNode) -> None:
    """Replaces the symbol of a size by the symbol of an equal size, in all expressions of the program."""
    step, symbol = other.expr.as_coeff_Mul()
    if other.expr != first.expr and symbol.is_Symbol and other.shape_env is not None:
        other.shape_env._set_replacement(symbol, first.expr / step, "sizes of one dim")


def _assertions(exported: ExportedProgram) -> list[Node]:
    calls = exported.graph.find_nodes(op="call_function", target=torch.ops.aten._assert_scalar.default)
    return [node for node in calls if str(node.args[1]).startswith(_DEFERRED)]


def _drop(exported: ExportedProgram, assertion: Node) -> None:
    """Removes an assertion, with the nodes that only it uses."""
    queue = [assertion]
    while queue:
        node = queue.pop()
        if not node.users and not node._erased and node.op == "call_function":
            queue += node.all_input_nodes
            exported.graph.erase_node(node)

"""What ops on complex numbers mean for pairs of real numbers: a complex tensor [...] is the real tensor [..., 2]."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node

from fuseconv.capture.tables import add_constant
from fuseconv.graph.all_sizes import run_for_all_sizes
from fuseconv.graph.nodes import is_call, map_nodes

_aten = torch.ops.aten

_REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64}


def is_complex(node: Any) -> bool:
    """Returns whether an argument of an op is a complex number, or a node with a complex tensor."""
    value = node.meta.get("val") if isinstance(node, Node) else node
    return value.dtype in _REAL if isinstance(value, Tensor) else isinstance(value, complex)


def is_translated(node: Any) -> bool:
    """Returns whether a node computes complex numbers by an op in `MEANINGS`, from operands of which that is known."""
    if not is_call(node) or node.target not in MEANINGS or not is_complex(node):
        return False
    if node.target in _PRODUCTS:  # one factor may be real
        return not any(isinstance(factor, complex) for factor in node.args)
    if node.target in _OF_REAL:
        first, *others = (one.meta["val"].shape for one in node.args)
        return all(shape == first for shape in others)
    if node.target is _aten.index.Tensor and any(one.meta["val"].dtype == torch.bool for one in node.all_input_nodes):
        return False  # the number of elements depends on values
    return all(map(is_complex, operands(node)))


def operands(node: Any) -> list[Any]:
    """Returns the operands of an op that are tensors and not indices."""
    if node.target in (*_PRODUCTS, *_SUMS):
        return list(node.args[:2])
    return list(node.args[0]) if isinstance(node.args[0], list | tuple) else [node.args[0]]


class Pairs:
    """The real tensors [..., 2] of complex nodes."""

    def __init__(self, exported: ExportedProgram) -> None:
        self.graph = exported.graph
        self.known: dict[Any, Node] = {}
        self._exported = exported
        self._made: list[Node] = []
        self._first = next(node for node in self.graph.nodes if node.op != "placeholder")
        # A state dict has the other buffers, by the names and dtypes that a model has.
        self.constants = {
            spec.arg.name: exported.constants[str(spec.target)]
            for spec in exported.graph_signature.input_specs
            if spec.kind in (InputKind.BUFFER, InputKind.CONSTANT_TENSOR) and spec.target in exported.constants
        }

    def add(self, node: Node) -> None:
        """Adds the pair of a node, whose complex operands have theirs."""
        if isinstance(constant := self.constants.get(node.name), Tensor):
            self.known[node] = add_constant(self._exported, torch.view_as_real(constant.resolve_conj()).clone(), node)
            self._made.append(self.known[node])
            return
        with self.graph.inserting_before(self._first if node.op == "placeholder" else node.next):
            meaning = MEANINGS[node.target] if is_translated(node) else _viewed
            self.known[node] = meaning(self, node)
        for key in ("stack_trace", "nn_module_stack"):
            if key in node.meta:
                self.known[node].meta.setdefault(key, node.meta[key])

    def undo(self) -> None:
        """Removes all pairs."""
        for node in reversed(self._made):
            self.graph.erase_node(node)
        forget_erased(self._exported)

    def call(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> Node:
        """Returns a new call with the value that torch.export would give it."""
        values = map_nodes(args, lambda one: one.meta["val"])
        mode = next(_tensors(values)).fake_mode
        with mode, torch.no_grad():
            value = run_for_all_sizes(mode, lambda: target(*values, **kwargs))
        node: Node = self.graph.call_function(target, args, kwargs)
        node.meta["val"] = value
        self._made.append(node)
        return node

    def part(self, pair: Node, at: int) -> Node:
        """Returns the real parts of a pair, or the imaginary ones."""
        return self.call(_aten.select.int, pair, -1, at)

    def parts(self, operand: Any) -> tuple[Any, Any]:
        """Returns the real and the imaginary part of an operand of an op: a complex or real tensor, or a number."""
        if is_complex(operand):
            return self.part(self.known[operand], 0), self.part(self.known[operand], 1)
        return operand, 0.0

    def joined(self, real: Node, imaginary: Node) -> Node:
        """Returns the pair of two parts."""
        return self.call(_aten.stack.default, [real, imaginary], -1)


Meaning = Callable[[Pairs, Any], Any]


def _viewed(pairs: Pairs, node: Any) -> Any:
    if node.op == "placeholder" or node.meta["val"].is_conj():  # view_as_real takes no conjugate that is not computed
        node = pairs.call(_aten.resolve_conj.default, node)
    return pairs.call(_aten.view_as_real.default, node)


def _same(pairs: Pairs, node: Any) -> Any:
    """The same op on pairs, which computes each element alone, or moves elements along axes counted from the first."""
    args = map_nodes(list(node.args), lambda one: pairs.known.get(one, one))
    return pairs.call(node.target, *args, **node.kwargs)


def _along(*places: int, default: int = 0, more: int = 0) -> Meaning:
    """An op whose arguments at some places are axes, of a tensor with `more` axes than its operand."""

    def meaning(pairs: Pairs, node: Any) -> Any:
        args = map_nodes(list(node.args), lambda one: pairs.known.get(one, one))
        args += [default] * (max(places) + 1 - len(args))
        rank = operands(node)[0].meta["val"].dim() + more
        for place in places:
            args[place] %= rank
        return pairs.call(node.target, *args, **node.kwargs)

    return meaning


def _sized(pairs: Pairs, node: Any) -> Any:
    return pairs.call(node.target, pairs.known[node.args[0]], [*node.args[1], 2])


def _permuted(pairs: Pairs, node: Any) -> Any:
    rank = len(node.args[1])
    return pairs.call(node.target, pairs.known[node.args[0]], [*(axis % rank for axis in node.args[1]), rank])


def _cast(pairs: Pairs, node: Any) -> Any:
    args = [_real(argument) for argument in node.args[1:]]
    kwargs = {name: _real(argument) for name, argument in node.kwargs.items()}
    return pairs.call(node.target, pairs.known[node.args[0]], *args, **kwargs)


def _real(argument: Any) -> Any:
    return _REAL.get(argument, argument) if isinstance(argument, torch.dtype) else argument


def _product(pairs: Pairs, node: Any) -> Any:
    """As PyTorch multiplies: a real factor has an imaginary part of zero, and infinity times zero is not a number."""

    def times(one: Any, other: Any) -> Any:
        return pairs.call(_aten.mul.Tensor, *((one, other) if isinstance(one, Node) else (other, one)))

    (a, b), (c, d) = map(pairs.parts, node.args)
    real = pairs.call(_aten.sub.Tensor, times(a, c), times(b, d))
    return pairs.joined(real, pairs.call(_aten.add.Tensor, times(a, d), times(b, c)))


def _conjugate(pairs: Pairs, node: Any) -> Any:
    real, imaginary = pairs.parts(node.args[0])
    return pairs.joined(real, pairs.call(_aten.neg.default, imaginary))


def _polar(pairs: Pairs, node: Any) -> Any:
    size, angle = node.args
    cosine, sine = pairs.call(_aten.cos.default, angle), pairs.call(_aten.sin.default, angle)
    return pairs.joined(pairs.call(_aten.mul.Tensor, size, cosine), pairs.call(_aten.mul.Tensor, size, sine))


_OF_REAL = (_aten.view_as_complex.default, _aten.complex.default, _aten.polar.default)
_PRODUCTS = (_aten.mul.Tensor, _aten.mul.Scalar)
_SUMS = (_aten.add.Tensor, _aten.sub.Tensor)

MEANINGS: Mapping[Any, Meaning] = {
    _aten.view_as_complex.default: lambda _, node: node.args[0],
    _aten.complex.default: lambda pairs, node: pairs.joined(*node.args),
    _aten.polar.default: _polar,
    **dict.fromkeys(_PRODUCTS, _product),
    **dict.fromkeys((_aten._conj.default, _aten.conj_physical.default), _conjugate),
    **dict.fromkeys((*_SUMS, _aten.neg.default, _aten.resolve_conj.default, _aten.index.Tensor), _same),
    **dict.fromkeys((_aten.clone.default, _aten.contiguous.default, _aten.alias.default, _aten.detach.default), _same),
    **dict.fromkeys((_aten.view.default, _aten.reshape.default, _aten.expand.default), _sized),
    **dict.fromkeys((_aten.to.dtype, _aten.to.device, _aten.to.dtype_layout, _aten._to_copy.default), _cast),
    **dict.fromkeys((_aten.slice.Tensor, _aten.select.int, _aten.squeeze.dim, _aten.cat.default), _along(1)),
    **dict.fromkeys((_aten.unsqueeze.default, _aten.stack.default), _along(1, more=1)),
    _aten.transpose.int: _along(1, 2),
    _aten.flatten.using_ints: _along(1, 2, default=-1),
    _aten.permute.default: _permuted,
}
"""Maps each op to what it means for pairs."""


def _tensors(values: Any) -> Any:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def forget_erased(exported: ExportedProgram) -> None:
    """Removes the constants whose placeholders were erased from the signature of a program."""
    names = {node.name for node in exported.graph.find_nodes(op="placeholder")}
    specs = exported.graph_signature.input_specs
    erased = [spec for spec in specs if spec.arg.name not in names]
    specs[:] = [spec for spec in specs if spec not in erased]
    for spec in erased:
        del exported.constants[str(spec.target)]

"""Computes products of complex numbers as pairs of real numbers.

Some models rotate queries and keys by a product of complex numbers: `view_as_real(view_as_complex(x) * freqs)`.
Inductor calls PyTorch's kernel for each op on complex numbers, ONNX has no such ops, and no rule matches them. A
complex tensor of shape [...] is therefore represented by the real tensor [..., 2] that `view_as_real` returns, from
where complex numbers are made of real ones, or read from a weight, to where real numbers are made of them again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node

from fuseconv.capture.tables import add_constant
from fuseconv.graph.aliases import Aliases
from fuseconv.graph.all_sizes import GuardError, run_for_all_sizes
from fuseconv.graph.nodes import is_call, map_nodes

_aten = torch.ops.aten
_ENDS = (_aten.view_as_real.default, _aten.real.default, _aten.imag.default)
"""The ops that make real numbers of complex ones."""

_REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64}


def pair_complex_numbers(exported: ExportedProgram) -> None:
    """Replaces ops on complex numbers between real ones by ops on real numbers, in place.

    An op that is not in `_MEANINGS`, such as a Fourier transform, stays, and its result is viewed as real numbers. All
    ops stay if a complex tensor is written in place.
    """
    graph = exported.graph
    ends = [node for node in graph.nodes if node.target in _ENDS and _is_translated(node.args[0])]
    if not ends:
        return
    aliases = Aliases(graph, exported.graph_module)
    wanted = _sources({end.args[0] for end in ends})
    if any(aliases.is_written(node) for node in (*wanted, *ends)):
        return
    pairs = _Pairs(exported)
    try:
        for node in [node for node in graph.nodes if node in wanted]:
            pairs.add(node)
    except GuardError:  # the layout of a result depends on sizes
        pairs.undo()
        return
    for end in ends:
        pair = pairs.known[end.args[0]]
        with graph.inserting_before(end):
            result = pair if end.target is _ENDS[0] else pairs.part(pair, _ENDS.index(end.target) - 1)
        end.replace_all_uses_with(result)
        graph.erase_node(end)
    for node in reversed(list(graph.nodes)):
        checked = (
            node.target is _aten._assert_tensor_metadata.default and node.args[0] in wanted
        )  # of `to`: it is known
        given = node.op == "placeholder" and node.name not in pairs.constants
        if checked or (node in wanted and not node.users and not given):
            graph.erase_node(node)
    _forget_erased(exported)
    graph.lint()
    exported.graph_module.recompile()


def _forget_erased(exported: ExportedProgram) -> None:
    """Removes the constants whose placeholders were erased from the signature of a program."""
    names = {node.name for node in exported.graph.find_nodes(op="placeholder")}
    specs = exported.graph_signature.input_specs
    erased = [spec for spec in specs if spec.arg.name not in names]
    specs[:] = [spec for spec in specs if spec not in erased]
    for spec in erased:
        del exported.constants[str(spec.target)]


def _is_complex(node: Any) -> bool:
    value = node.meta.get("val") if isinstance(node, Node) else node
    return value.dtype in _REAL if isinstance(value, Tensor) else isinstance(value, complex)


def _is_translated(node: Any) -> bool:
    """Returns whether a node computes complex numbers by an op in `_MEANINGS`, from operands of which that is known."""
    if not is_call(node) or node.target not in _MEANINGS or not _is_complex(node):
        return False
    if node.target in _PRODUCTS:  # one factor may be real
        return not any(isinstance(factor, complex) for factor in node.args)
    if node.target in _OF_REAL:
        first, *others = (one.meta["val"].shape for one in node.args)
        return all(shape == first for shape in others)
    return all(map(_is_complex, _operands(node)))


def _operands(node: Any) -> list[Any]:
    """Returns the operands of an op that are tensors and not indices."""
    if node.target in (*_PRODUCTS, *_SUMS):
        return list(node.args[:2])
    return list(node.args[0]) if isinstance(node.args[0], list | tuple) else [node.args[0]]


def _sources(wanted: set[Any]) -> set[Any]:
    """Adds the complex operands of translated ops, and theirs."""
    found, remaining = set(wanted), list(wanted)
    while remaining:
        node = remaining.pop()
        if _is_translated(node):
            more = {one for one in _operands(node) if isinstance(one, Node) and _is_complex(one)} - found
            found |= more
            remaining += more
    return found


class _Pairs:
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
            self.known[node] = add_constant(self._exported, torch.view_as_real(constant).clone(), node)
            self._made.append(self.known[node])
            return
        with self.graph.inserting_before(self._first if node.op == "placeholder" else node.next):
            meaning = _MEANINGS[node.target] if _is_translated(node) else _viewed
            self.known[node] = meaning(self, node)
        for key in ("stack_trace", "nn_module_stack"):
            if key in node.meta:
                self.known[node].meta.setdefault(key, node.meta[key])

    def undo(self) -> None:
        """Removes all pairs."""
        for node in reversed(self._made):
            self.graph.erase_node(node)
        _forget_erased(self._exported)

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
        if _is_complex(operand):
            return self.part(self.known[operand], 0), self.part(self.known[operand], 1)
        return operand, 0.0

    def joined(self, real: Node, imaginary: Node) -> Node:
        """Returns the pair of two parts."""
        return self.call(_aten.stack.default, [real, imaginary], -1)


Meaning = Callable[[_Pairs, Any], Any]


def _viewed(pairs: _Pairs, node: Any) -> Any:
    return pairs.call(_aten.view_as_real.default, node)


def _same(pairs: _Pairs, node: Any) -> Any:
    """The same op on pairs, which computes each element alone, or moves elements along axes counted from the first."""
    args = map_nodes(list(node.args), lambda one: pairs.known.get(one, one))
    return pairs.call(node.target, *args, **node.kwargs)


def _along(*places: int, default: int = 0, more: int = 0) -> Meaning:
    """An op whose arguments at some places are axes, of a tensor with `more` axes than its operand."""

    def meaning(pairs: _Pairs, node: Any) -> Any:
        args = map_nodes(list(node.args), lambda one: pairs.known.get(one, one))
        args += [default] * (max(places) + 1 - len(args))
        rank = _operands(node)[0].meta["val"].dim() + more
        for place in places:
            args[place] %= rank
        return pairs.call(node.target, *args, **node.kwargs)

    return meaning


def _sized(pairs: _Pairs, node: Any) -> Any:
    return pairs.call(node.target, pairs.known[node.args[0]], [*node.args[1], 2])


def _permuted(pairs: _Pairs, node: Any) -> Any:
    rank = len(node.args[1])
    return pairs.call(node.target, pairs.known[node.args[0]], [*(axis % rank for axis in node.args[1]), rank])


def _cast(pairs: _Pairs, node: Any) -> Any:
    args = [_real(argument) for argument in node.args[1:]]
    kwargs = {name: _real(argument) for name, argument in node.kwargs.items()}
    return pairs.call(node.target, pairs.known[node.args[0]], *args, **kwargs)


def _real(argument: Any) -> Any:
    return _REAL.get(argument, argument) if isinstance(argument, torch.dtype) else argument


def _product(pairs: _Pairs, node: Any) -> Any:
    """As PyTorch multiplies: a real factor has an imaginary part of zero, and infinity times zero is not a number."""

    def times(one: Any, other: Any) -> Any:
        return pairs.call(_aten.mul.Tensor, *((one, other) if isinstance(one, Node) else (other, one)))

    (a, b), (c, d) = map(pairs.parts, node.args)
    real = pairs.call(_aten.sub.Tensor, times(a, c), times(b, d))
    return pairs.joined(real, pairs.call(_aten.add.Tensor, times(a, d), times(b, c)))


def _conjugate(pairs: _Pairs, node: Any) -> Any:
    real, imaginary = pairs.parts(node.args[0])
    return pairs.joined(real, pairs.call(_aten.neg.default, imaginary))


def _polar(pairs: _Pairs, node: Any) -> Any:
    size, angle = node.args
    cosine, sine = pairs.call(_aten.cos.default, angle), pairs.call(_aten.sin.default, angle)
    return pairs.joined(pairs.call(_aten.mul.Tensor, size, cosine), pairs.call(_aten.mul.Tensor, size, sine))


_OF_REAL = (_aten.view_as_complex.default, _aten.complex.default, _aten.polar.default)
_PRODUCTS = (_aten.mul.Tensor, _aten.mul.Scalar)
_SUMS = (_aten.add.Tensor, _aten.sub.Tensor)

_MEANINGS: Mapping[Any, Meaning] = {
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

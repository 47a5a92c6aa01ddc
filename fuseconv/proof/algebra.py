"""Proves a rule by algebra: evaluates the example before and after the rule over a finite field, without rounding.

The evaluation finds differences that are below every floating-point tolerance. However, the evaluation treats
functions such as exp as unknown, and floats that approximate irrational numbers as exact. So two expressions that
differ in the field but agree in float64 may still be equal, by an identity of a function or number that the evaluation
does not know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

from fuseconv.graph.nodes import facts_of, is_call
from fuseconv.graph.runner import Runner
from fuseconv.numerics.fp64 import interpret_in_float64
from fuseconv.ops import OPS
from fuseconv.proof.difference import CANNOT_RUN
from fuseconv.proof.field import PRIME, Field, NotApplicableError
from fuseconv.proof.operands import described, draw_operands
from fuseconv.proof.residues import Residues, moves_elements, of
from fuseconv.proof.soundness import Pair

DRAWS = 2
"""The number of random points at which a program is evaluated. With one point, the error probability is about 2**-29
for a program of degree 4."""

NEAR = 1e-11
"""The maximum difference, relative to the largest element, at which results in float64 count as equal."""

_REFERENCES: Mapping[Any, Any] = {op.overload: op.reference for op in OPS}


_POSITIONS = frozenset({torch.ops.aten.arange.default, torch.ops.aten.arange.start, torch.ops.aten.arange.start_step})
_TRIANGLES = frozenset({torch.ops.aten.tril.default, torch.ops.aten.triu.default})


def _is_far(tensor: Tensor, diagonal: int = 0) -> bool:
    """Returns whether `diagonal` lies outside the matrix `tensor`, so that its exact position does not matter."""
    return abs(diagonal) >= min(tensor.shape[-2:])


@dataclass(frozen=True)
class Proof:
    """The result of the algebraic check: equal, different, or not applicable, with the details."""

    ok: bool
    detail: str
    applicable: bool = True


class _Evaluation(Runner):
    """Evaluates a graph on residues. Fused ops are evaluated by their reference, attention by its formula.

    Integer and bool tensors are not residues; they have random values. This suffices if the ops only move them, or use
    them as indices or masks of residues. Elementwise functions of bools are accepted too, because the random values
    cover every combination. Other functions of integers are not accepted: the field has no order, sign or division with
    remainder, so that such functions would be checked only at the random values.
    """

    def __init__(self, graph: Graph) -> None:
        super().__init__(torch.nn.Module(), graph=graph)
        self._bools: set[Node] = set()
        self._integers: set[Node] = set()

    def run_node(self, n: Node) -> Any:
        result = super().run_node(n)
        if n.op == "placeholder":
            if not isinstance(result, Residues):
                (self._bools if result.dtype == torch.bool else self._integers).add(n)
        elif n.op == "call_function" and not any(isinstance(one, Residues) for one in pytree.tree_leaves(result)):
            self._classify(n)
        return result

    def _classify(self, node: Node) -> None:
        """Records whether a value without residues is computed from integers or bools.

        Raises:
            NotApplicableError: the op computes with integers instead of only moving them, or computes with bools but is
                not elementwise.
        """
        of_integers = any(used in self._integers for used in node.all_input_nodes)
        if of_integers or any(used in self._bools for used in node.all_input_nodes):
            moves = not is_call(node) or moves_elements(node.target)
            if not moves and (of_integers or not facts_of(node).elementwise):
                raise NotApplicableError(f"{node.target} of {'integers' if of_integers else 'bools'}")
            (self._integers if of_integers else self._bools).add(node)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target in _POSITIONS or (target in _TRIANGLES and _is_far(*args, **kwargs)):
            raise NotApplicableError(f"{target}: a proof at the sizes of the example does not cover other sizes")
        if target is torch.ops.aten.scaled_dot_product_attention.default:
            return _attention(*args, **kwargs)
        if target is torch.ops.aten._assert_tensor_metadata.default:
            return None
        return super().call_function(_REFERENCES.get(target, target), args, kwargs)


def prove(pair: Pair) -> Proof:
    """Evaluates a program before and after a rule at random points of the field and compares the results."""
    if pair.rule.draws == "any":
        return Proof(True, "not applicable: the replacement generates other random numbers", applicable=False)
    for seed in range(DRAWS):
        field = Field(seed)
        specs = (*pair.text.parameters.values(), *pair.traced.inputs)
        drawn = draw_operands(specs, 2, "random", seed).tensors
        generator = torch.Generator().manual_seed(seed)
        # The replacement may contain the value of a one-element parameter as a literal, so such parameters keep
        # their values.
        known = [one if one.numel() == 1 else None for one in pair.parameters] + [None] * len(pair.traced.inputs)
        operands = [_operand(one, own, field, generator) for one, own in zip(drawn, known, strict=True)]
        try:
            before, after = (_evaluated(graph, operands) for graph in (pair.before, pair.after))
        except NotApplicableError as problem:
            return Proof(True, f"not applicable: {str(problem).splitlines()[0]}", applicable=False)
        if found := _first_difference(before, after):
            if field.assumed and _agree(pair, (*pair.parameters, *drawn[len(pair.parameters) :])):
                words = ", ".join(sorted(field.assumed))
                return Proof(
                    True, f"not applicable: a proof would have to assume properties of {words}", applicable=False
                )
            return Proof(False, f"{found}; {pair.changed}, {', '.join(described(specs, drawn))}")
    return Proof(True, f"equal modulo {PRIME} in {DRAWS} draws")


def _operand(drawn: Tensor, own: Tensor | None, field: Field, generator: torch.Generator) -> Tensor:
    if not drawn.is_floating_point():
        return drawn if own is None else own
    if own is not None:
        return Residues(of(own, field), field)
    return Residues(torch.randint(0, PRIME, drawn.shape, generator=generator), field)


def _evaluated(graph: Graph, operands: Sequence[Tensor]) -> list[Tensor]:
    try:
        with torch.no_grad():
            results = _Evaluation(graph).run(*operands)
    except (RuntimeError, TypeError, ValueError) as problem:
        raise NotApplicableError(str(problem).strip().splitlines()[0]) from None
    return [one.residues if isinstance(one, Residues) else one for one in results]


def _first_difference(before: Sequence[Tensor], after: Sequence[Tensor]) -> str:
    for one, other in zip(before, after, strict=True):
        if one.shape != other.shape:
            return f"the shape differs: {list(other.shape)} instead of {list(one.shape)}"
        places = (one != other).nonzero().tolist()
        if places:
            at = tuple(places[0])
            return f"the result differs at {places[0]}, {other[at].item()} instead of {one[at].item()} modulo {PRIME}"
    return ""


def _agree(pair: Pair, drawn: Sequence[Tensor]) -> bool:
    """Returns whether both graphs of a pair agree in float64. Returns False if either graph cannot run."""
    root = torch.nn.Module()
    try:
        with torch.no_grad():
            runs = [
                interpret_in_float64(root, [one.clone() for one in drawn], graph) for graph in (pair.before, pair.after)
            ]
    except CANNOT_RUN:
        return False
    for one, other in zip(*runs, strict=True):
        if not one.is_floating_point():
            return torch.equal(one, other)
        size = float(one.abs().nan_to_num(0, 0, 0).max()) if one.numel() else 0.0
        if not torch.allclose(one, other, rtol=NEAR, atol=NEAR * size, equal_nan=True):
            return False
    return True


def _attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """The formula of torch.nn.functional.scaled_dot_product_attention from its documentation."""
    if dropout_p:
        raise NotApplicableError("dropout")
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = (torch.stack([one] * groups, -3).flatten(-4, -3) for one in (key, value))
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if attn_mask is not None:
        hidden = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, float("-inf")) if hidden else scores + attn_mask
    return scores.softmax(-1) @ value

"""Creates the attention call that replaces scores, their softmax, and the product with the values."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from fuseconv.graph.proved_sizes import same_sizes
from fuseconv.matching.attention_mask import Masked, attention_mask
from fuseconv.matching.call_lines import CallLines
from fuseconv.matching.graph import Workspace, is_call, op_name
from fuseconv.matching.mask_views import merges, split_sizes
from fuseconv.matching.scores import Scores, Step
from fuseconv.rulebook.refused import Refused, text_of
from fuseconv.rulebook.rule_text import Line


def attention_call(
    workspace: Workspace, scores: Scores, values: Node, *, safe: bool
) -> tuple[dict[str, Any], list[Line]]:
    """Creates the lines that compute softmax(scores) @ values with one attention call.

    Args:
        workspace: the graph that contains the scores and the values.
        scores: the product of queries and keys, and the steps applied to this product.
        values: the node of the attention values, of shape [..., keys, width].
        safe: whether the softmax gives weights of 0 instead of NaN in a row whose scores are all -inf.

    Returns:
        The operands by name, and the lines that compute the result `o`.

    Raises:
        Refused: attention cannot express a step, or the result would differ for fully masked rows.
    """
    _check_views(scores)
    lines, fake = CallLines(), values.meta["val"]
    q, k = (_narrow(lines, one, fake.dtype) for one in (scores.left, scores.right))
    k = k if scores.is_linear else lines.make("transpose.int", k, -2, -1)
    q, k = (k, q) if scores.turned else (q, k)
    q, scale = _scaled(lines, scores, q)
    v, rank = lines.read(values), fake.dim()
    if (heads := heads_of(scores, values)) and (split := split_sizes(heads)):
        sizes = ", ".join(repr(size) if isinstance(size, int) else lines.read(size) for size in split)
        q, k = (lines.make("unflatten.int", one, 0, f"[{sizes}]") for one in (q, k))
        if fake.dim() == 3:
            v, rank, scores = lines.make("unflatten.int", v, 0, f"[{sizes}]"), 4, scores.without_last()
    masked = attention_mask(lines, workspace, scores, values, rank)
    if masked.hidden:
        q = lines.make("masked_fill.Scalar", q, masked.hidden, 0.0)
    o = _attend(lines, [q, k, v], masked, scale, rank)
    if masked.without:
        o = lines.make("masked_fill.Scalar", o, masked.without, 0.0 if safe else "nan")
    if rank > fake.dim():
        o = lines.make("flatten.using_ints", o, 0, 1)
    lines.lines[-1] = lines.lines[-1].replace(o, "o", 1)
    return lines.needed_for("o")  # zeros in the shape of the scores may be unused


def heads_of(scores: Scores, values: Node) -> Step | None:
    """Returns the view that unfolds the heads of the scores, if the product has batch and heads in one axis.

    The values have them in one axis too, if a view folds the heads of the weights again, or in two.
    """
    views = scores.of("view")
    if scores.product.meta["val"].dim() != 3 or not views or not split_sizes(views[0]):
        return None
    folds = len(views) == 2 and views[-1] is scores.steps[-1] and merges(views[-1])
    return views[0] if values.meta["val"].dim() == (3 if folds else 4) else None


def widening(node: Node, dtype: torch.dtype) -> tuple[Node, ...]:
    """Returns the ops that convert a tensor of a dtype to a wider one, and then may transpose it. Empty for others."""
    if not is_call(node) or op_name(node.target) not in ("aten.transpose.int", "aten.to.dtype"):
        return ()
    source, wide = node.all_input_nodes[0], node.meta["val"].dtype
    if op_name(node.target) == "aten.transpose.int":
        before = widening(source, dtype)
        return (*before, node) if before else ()
    return (node,) if source.meta["val"].dtype == dtype and torch.promote_types(wide, dtype) == wide != dtype else ()


def _narrow(lines: CallLines, node: Node, dtype: torch.dtype) -> str:
    """Returns the name of an operand of the product in the dtype of the values, from which it may be widened."""
    if node.meta["val"].dtype == dtype:
        return lines.read(node)
    if op_name(node.target) == "aten.transpose.int":
        return lines.make("transpose.int", _narrow(lines, node.all_input_nodes[0], dtype), *node.args[1:])
    return lines.read(node.all_input_nodes[0])


def _attend(lines: CallLines, operands: list[str], masked: Masked, scale: float, rank: int) -> str:
    """Adds the call of attention. Three axes get a fourth, because kernels of attention accept four axes only."""
    mask = masked.mask
    masks = [mask.name] if mask else []
    if rank == 3:
        operands = [lines.make("unsqueeze.default", one, 0) for one in operands]
        masks = [lines.make("unsqueeze.default", one, 0) for one in masks] if mask and mask.rank == 3 else masks
    o = lines.make("scaled_dot_product_attention.default", *operands, *masks, f"scale={scale!r}")
    return lines.make("squeeze.dim", o, 0) if rank == 3 else o


def _check_views(scores: Scores) -> None:
    """Checks that views preserve the last axis of the scores, along which the softmax is computed."""
    for step in scores.of("view"):
        before, after = step.node.all_input_nodes[0].meta["val"].shape, step.node.meta["val"].shape
        if scores.of("turn") or not same_sizes(before[-1:], after[-1:]):
            raise Refused("a view that preserves the key axis", text_of(step.node), at=step.node)


def _scaled(lines: CallLines, scores: Scores, q: str) -> tuple[str, float]:
    """Returns the name of the queries, multiplied by all tensor factors, and the product of all scalar factors."""
    scale, viewed = 1.0, scores.turned
    for step in scores.steps:
        viewed = viewed or step.kind == "view"
        if step.kind == "scale":
            scale *= step.value
        elif step.kind in ("factor", "divisor"):
            sizes = step.value.meta["val"].shape if isinstance(step.value, Node) else (0,)
            if viewed or not same_sizes(sizes[-1:], (1,) * len(sizes[-1:])):
                raise Refused("a factor that is the same for all keys", text_of(step.value), at=step.node)
            q = lines.make("mul.Tensor" if step.kind == "factor" else "div.Tensor", q, lines.read(step.value))
    return q, float(scale)

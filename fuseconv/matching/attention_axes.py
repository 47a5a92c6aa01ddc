"""Gives attention the four axes of PyTorch's attention kernels: batch, heads, positions and width.

A model may have more axes before the positions, one each for windows, groups and heads. PyTorch has no kernels for
these. It computes the scores, their softmax and the result one after the other, and for 16-bit tensors in float32.
Here, the axes before the positions become two. Axes that lie side by side in memory become one without a copy. Some
kernels take masks with two or four axes only, so a mask with three gets another.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch.fx import Node

from fuseconv.graph.proved_sizes import same_size, same_sizes
from fuseconv.matching.graph import arguments
from fuseconv.matching.match import Candidate, Match, check_apart, settle
from fuseconv.matching.near_miss import NearMiss
from fuseconv.matching.search import Index
from fuseconv.rulebook.refused import Refused, text_of
from fuseconv.rulebook.rule import Rule
from fuseconv.rulebook.rule_text import parse_line

_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default


def attention_axes(index: Index, rule: Rule) -> Iterator[Match | NearMiss]:
    """Yields a match for each attention call with other axes than the kernels', or a near miss if they must remain."""
    for node in index.calls.get(_ATTENTION, ()):
        given = arguments(node)
        q, mask = given["query"].meta["val"], given["attn_mask"]
        if q.dim() > 4 or (q.dim() == 4 and mask is not None and mask.meta["val"].dim() == 3):
            try:
                yield _match(index, rule, node, given)
            except Refused as problem:
                yield NearMiss(rule, node, node, 2, 2, problem.words, refused=True)


def _match(index: Index, rule: Rule, node: Node, given: dict[str, Any]) -> Match:
    captures = {name: given[word] for name, word in (("q", "query"), ("k", "key"), ("v", "value"))}
    leading = [one.meta["val"].shape[:-2] for one in captures.values()]
    if len(leading[0]) != 2 and (given["enable_gqa"] or not all(same_sizes(leading[0], one) for one in leading)):
        raise Refused("queries, keys and values with the same axes before the positions", "different sizes")
    if given["scale"] is not None and not (isinstance(given["scale"], int | float) and math.isfinite(given["scale"])):
        raise Refused("a finite number as the scale", text_of(given["scale"]))
    if given["attn_mask"] is not None:
        captures["mask"] = given["attn_mask"]
    fakes = {name: one.meta["val"] for name, one in captures.items()}
    before, after = (_as_they_are if len(leading[0]) == 2 else _two_axes)(fakes)
    mask = "mask_" if "mask" in captures else "None"
    rest = f"{mask}, {float(given['dropout_p'])}, {given['is_causal']}, scale={given['scale']!r}"
    rest += ", enable_gqa=True" if given["enable_gqa"] else ""
    lines = [*before, f"o_ = aten.scaled_dot_product_attention.default(q_, k_, v_, {rest})", *after]
    found = Candidate(rule, frozenset({node}), captures, {"o": node})
    check_apart(index, found.nodes, captures, found.results)
    return settle(index, found, [parse_line(line) for line in lines])


def _as_they_are(_: dict[str, torch.Tensor]) -> tuple[list[str], list[str]]:
    """Returns the lines before and after attention that add an axis to a mask with three axes."""
    return [*(f"{name}_ = {name}" for name in "qkv"), "mask_ = aten.unsqueeze.default(mask, 0)"], ["o = o_"]


def _two_axes(fakes: dict[str, torch.Tensor]) -> tuple[list[str], list[str]]:
    """Returns the lines before and after attention that merge the axes before the positions, and split them again."""
    q, mask = fakes["q"].shape, fakes.get("mask")
    count = len(q) - 2
    borders = range(count - 1, 0, -1)  # of borders that cost the same the last, so that heads remain heads
    groups = min(([(0, at), (at, count)] for at in borders), key=lambda groups: _cost(fakes, groups))
    before, after, result = [], [], "o_"
    for name, fake in fakes.items():
        value = name
        if fake is mask and fake.dim() < 3:
            before.append("mask_ = mask")
            continue
        if fake is mask:
            before.append(f"mask_2 = aten.expand.default(mask, {_expanded(q, fake, groups)})")
            value = "mask_2"
        for axis, (begin, end) in reversed(list(enumerate(groups))):
            if end - begin > 1:
                before.append(f"{name}_{axis} = aten.flatten.using_ints({value}, {begin}, {end - 1})")
                value = f"{name}_{axis}"
        before.append(f"{name}_ = {value}")
    for axis, (begin, end) in reversed(list(enumerate(groups))):
        if end - begin > 1:
            sizes = [size if isinstance(size, int) else -1 for size in q[begin:end]]
            after.append(f"o_{axis} = aten.unflatten.int({result}, {axis}, {sizes})")
            result = f"o_{axis}"
    return before, [*after, f"o = {result}"]


_Groups = Sequence[tuple[int, int]]
"""The first axis of each group of axes that become one, and the axis after its last."""


def _cost(fakes: dict[str, torch.Tensor], groups: _Groups) -> tuple[bool, int, int]:
    """Returns whether a mask cannot be expanded, how many groups it is expanded along, and how many operands copied."""
    q = fakes["q"].shape
    copied = [not all(_is_view(fakes[name], group) for group in groups) for name in "qkv"]
    expanded = [group for group in groups if "mask" in fakes and _is_mixed(q, fakes["mask"], group)]
    dynamic = any(not isinstance(size, int) for group in expanded for size in q[slice(*group)])
    return dynamic, len(expanded), sum(copied)


def _is_view(fake: torch.Tensor, group: tuple[int, int]) -> bool:
    """Returns whether a group of axes provably becomes one without a copy."""
    axes = [at for at in range(*group) if not same_size(fake.shape[at], 1)]
    sizes, strides = fake.shape, fake.stride()
    return all(same_size(strides[a], sizes[b] * strides[b]) for a, b in pairwise(axes))


def _is_mixed(q: Sequence[Any], mask: torch.Tensor, group: tuple[int, int]) -> bool:
    """Returns whether a mask differs along some axes of a group and is broadcast along others."""
    missing = len(q) - mask.dim()
    ones = [at < missing or same_size(mask.shape[at - missing], 1) for at in range(*group)]
    broadcast = [one and not same_size(q[at], 1) for at, one in zip(range(*group), ones, strict=True)]
    return any(broadcast) and not all(ones)


def _expanded(q: Sequence[Any], mask: torch.Tensor, groups: _Groups) -> list[int]:
    """Returns the sizes to which a mask of rank 3 or more is expanded, -1 for those that it keeps.

    Raises:
        Refused: a size is dynamic.
    """
    missing = len(q) - mask.dim()
    sizes = [1 if at < missing else -1 for at in range(len(q))]
    for group in groups:
        if _is_mixed(q, mask, group):
            sizes[slice(*group)] = q[slice(*group)]
    if any(not isinstance(size, int) for size in sizes):
        raise Refused("a mask that is the same along all axes that become one", "one of dynamic size")
    return sizes

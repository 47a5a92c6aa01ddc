"""Creates the mask of an attention call from the steps that a model applies to the scores.

The model applies steps, such as scaling and masking, to the product of queries and keys. The attention op only adds a
mask to the scaled product. So the mask is computed by applying the steps, in the same order, to 0 in place of the
product. This is correct only if a score that a fill hides is negligible compared with the fill value.
"""

from __future__ import annotations

import math
import sys
from typing import NamedTuple

import torch
from torch.fx import Node

from fuseconv.matching.call_lines import CallLines
from fuseconv.matching.graph import Workspace, is_call, op_name
from fuseconv.matching.mask_views import Mask, MaskViews
from fuseconv.matching.ranges import Range, joined, multiplied, range_of, summed
from fuseconv.matching.scores import Scores, Step
from fuseconv.rulebook.refused import Refused, text_of

HIDES = -1e4
"""A fill value of at most this number hides a score: in every dtype, its exp is 0 relative to a visible score's exp."""

HIDES_SCALED = -1e3
"""The same for a fill value that is scaled afterwards, as the scores are."""

LOST = -1e30
"""If a score is added to a number this low or lower, rounding loses the score, in every dtype except f16. This is also
the lowest number that CUDA kernels accept: they multiply by log2(e), so that a lower number, such as the lowest f32,
becomes -inf."""

_SHIFT = 1e3
"""The maximum magnitude of a number added to all scores at which the addition is ignored. Adding the same number to
all scores does not change the weights."""


class Masked(NamedTuple):
    """What the lines of a call bind the mask of attention, and facts about its rows, to.

    Attributes:
        mask: the mask. None if the scores are neither masked nor biased.
        without: the name of a bool tensor that is true for rows whose scores are all -inf, in which the model's weights
            are not numbers. Empty if no such row is possible.
        hidden: the name of a bool tensor that is true for rows whose scores are all hidden by finite fills. The scores
            do not affect the model's weights in these rows, so they must not be added to the mask. Empty if the mask
            loses the scores by rounding, or if no such row is possible.
    """

    mask: Mask | None
    without: str = ""
    hidden: str = ""


def attention_mask(lines: CallLines, workspace: Workspace, scores: Scores, values: Node, rank: int) -> Masked:
    """Adds the lines that compute the mask.

    Args:
        lines: the lines of the call.
        workspace: the graph that contains the scores.
        scores: the product of queries and keys, and the steps applied to this product.
        values: the node of the values, whose dtype all operands of the call have.
        rank: the number of dims of the operands of the call.

    Raises:
        Refused: attention cannot express a step, or the result would differ for fully masked rows.
    """
    fills, terms = scores.of("fill"), [step for step in scores.of("term") if not _is_shift(step)]
    for fill in fills:
        scale = math.prod(step.value for step in _after(scores, fill) if step.kind == "scale")
        if not (fill.number <= HIDES and fill.number * scale <= HIDES_SCALED):
            times = "" if scale == 1 else f" times {scale:g}"
            raise Refused(f"a fill value of {HIDES:g} or less", f"{fill.number:g}{times}", at=fill.node)
    if not fills and not terms:
        return Masked(None)
    builder = _Builder(lines, workspace, scores, values, rank)
    if len(fills) == 1 and not terms and not scores.of("view") and not scores.turned:
        return builder.fill_alone(fills[0])
    return builder.sum_of_all(fills)


class _Builder:
    def __init__(self, lines: CallLines, workspace: Workspace, scores: Scores, values: Node, rank: int) -> None:
        self.workspace = workspace
        self.scores = scores
        self.values = values
        self.rank = rank
        self.read, self.make = lines.read, lines.make
        self.views = MaskViews(lines, scores)
        self.fake: torch.Tensor = values.meta["val"]
        self.hiding: list[Step] = []  # finite fills that the scores may outlast, because rounding does not lose them

    def fill_alone(self, fill: Step) -> Masked:
        """Returns the mask for a single fill.

        The mask is a bool tensor, unless the fill is finite and a row may be fully masked. Then it is a float tensor.
        """
        hide = self.spread(Mask(self.read(fill.value), fill.value.meta["val"].dim()))
        if fill.number != -math.inf and not self.leaves_some(fill):
            number = max(self.number(fill, _range(self.scores, self.workspace, fills=False)), LOST)
            zero = self.make("new_zeros.default", self.read(self.values), [])
            mask = Mask(self.make("masked_fill.Scalar", zero, hide.name, number), hide.rank)
            return Masked(mask, hidden=self.hidden_rows())
        without = "" if self.leaves_some(fill) else self.make("all.dim", hide.name, -1, True)
        return Masked(Mask(self.make("logical_not.default", hide.name), hide.rank), without)

    def sum_of_all(self, fills: list[Step]) -> Masked:
        """Returns the mask that results from applying all steps to 0."""
        terms = _range(self.scores, self.workspace, fills=False)
        shown = len(fills) == 1 and self.leaves_some(fills[0]) and _is_small(terms, fills[0])
        self.check_rounding([] if shown else [fill for fill in fills if fill.number != -math.inf])
        bias = Mask("", 0, keys=False, same=sys.maxsize)
        for step in self.scores.steps:
            if step.kind == "view":
                bias = self.views.apply(bias, step)
            elif step.kind == "turn" and bias.name:
                flat = self.spread(bias)
                bias = flat._replace(name=self.make("transpose.int", flat.name, -2, -1))
            elif step.kind == "term" and not _is_shift(step):
                bias = self.add(bias, step)
            elif step.kind == "fill":
                number = -math.inf if shown else self.number(step, terms)
                zero = bias.name or self.make("new_zeros.default", self.read(self.values), [])
                name = self.make("masked_fill.Scalar", zero, self.read(step.value), number)
                bias = bias.with_(name, step.value, step.node.meta["val"].dim())
            elif bias.name and step.kind in ("factor", "divisor"):
                op = "mul.Tensor" if step.kind == "factor" else "div.Tensor"
                name = self.make(op, bias.name, self.read(step.value))
                bias = bias.with_(name, step.value, step.node.meta["val"].dim())
            elif bias.name and step.kind == "scale" and step.value != 1:
                bias = bias._replace(name=self.make("mul.Tensor", bias.name, float(step.value)))
        least = terms[0] if shown else _range(self.scores, self.workspace, fills=True)[0]
        mask, without = self.bounded(self.spread(bias), least)
        return Masked(mask, without, self.hidden_rows())

    def check_rounding(self, fills: list[Step]) -> None:
        """Checks that the mask has no sum and no product that the model computes in a wider dtype.

        Args:
            fills: the fills of finite numbers.
        """
        begun = False
        for step in self.scores.steps:
            adds = step.kind == "term" and not _is_shift(step)
            scales = step.kind in ("factor", "divisor") or (step.kind == "scale" and not _scales_exactly(step.value))
            rounds = (begun and (adds or scales)) or (adds and step.number not in (1, -1))
            if rounds and self.is_wide(step):
                raise Refused(f"a mask that is exact in {self.fake.dtype}", text_of(step.node), at=step.node)
            begun = begun or adds or step in fills

    def is_wide(self, step: Step) -> bool:
        """Returns whether the result of a step has a wider dtype than the operands of the call."""
        dtype: torch.dtype = step.node.meta["val"].dtype
        return dtype.itemsize > self.fake.dtype.itemsize

    def hidden_rows(self) -> str:
        """Returns the name of a bool tensor that is true for rows that fills of finite numbers hide, or "" for none."""
        if not self.hiding:
            return ""
        names = [self.read(fill.value) for fill in self.scores.of("fill")]
        hidden = names[0]
        for name in names[1:]:
            hidden = self.make("logical_or.default", hidden, name)
        return self.make("all.dim", hidden, -1, True)

    def bounded(self, mask: Mask, least: float) -> tuple[Mask, str]:
        """Clamps the mask to values that kernels accept, and finds the rows that are all -inf.

        Args:
            mask: the mask to clamp.
            least: a lower bound of the mask's values.

        Returns:
            The mask, and the name of a bool tensor that is true for rows that are all -inf. The name is empty if no
            such row is possible.
        """
        overflows = self.fake.device.type == "cuda" and self.fake.dtype != torch.float16 and least < LOST
        if least > -math.inf and not overflows:
            return mask, ""
        hidden = self.make("eq.Scalar", mask.name, "-inf")
        if overflows:
            held = self.make("clamp.default", mask.name, LOST)
            mask = mask._replace(name=self.make("masked_fill.Scalar", held, hidden, "-inf"))
        return mask, self.make("all.dim", hidden, -1, True) if least == -math.inf else ""

    def add(self, bias: Mask, step: Step) -> Mask:
        """Returns the sum of the mask and the term of a step, in the dtype of the queries."""
        term = step.value
        if not isinstance(term, Node):
            raise Refused("the term added to the scores to be a tensor", text_of(term), at=step.node)
        name, fake = self.read(term), term.meta["val"]
        if fake.dtype != self.fake.dtype:
            if not _is_exact(term, self.fake.dtype):
                raise Refused(f"a term of the same dtype as {text_of(self.values)}", text_of(term), at=step.node)
            name = self.make("to.dtype", name, f"dtype_of({self.read(self.values)})")
        if step.number != 1:
            minus = step.number == -1
            name = self.make("neg.default", name) if minus else self.make("mul.Tensor", name, float(step.number))
        name = self.make("add.Tensor", bias.name, name) if bias.name else name
        return bias.with_(name, term, step.node.meta["val"].dim())

    def spread(self, mask: Mask) -> Mask:
        """Returns the mask with the rank that kernels require: at least 2, and 4 instead of 3 for queries of rank 4."""
        wanted = 4 if self.rank == 4 and mask.rank == 3 else 2
        while mask.rank < wanted:
            mask = mask._replace(name=self.make("unsqueeze.default", mask.name, 0), rank=mask.rank + 1)
        return mask

    def number(self, fill: Step, terms: Range) -> float:
        """Returns the value to use in the mask for a fill that may mask a whole row.

        Args:
            fill: the step that fills masked scores with a value.
            terms: the range of all terms that the model adds to the scores.

        Raises:
            Refused: in a fully masked row, the scores or another mask would affect the result.
        """
        if fill.number == -math.inf:
            return -math.inf
        lowest = torch.finfo(self.fake.dtype).min
        others = {step.number for step in self.scores.of("fill")} - {fill.number, -math.inf}
        if others and min(others | {fill.number}) < lowest:
            raise Refused(f"fills of {lowest:g} or more", f"{min(others | {fill.number}):g}", at=fill.node)
        loses = self.fake.dtype != torch.float16
        if loses and fill.number <= LOST:
            return max(fill.number, lowest)
        after = _after(self.scores, fill)
        turned = any(step.kind in ("factor", "divisor") or (step.kind == "scale" and step.value <= 0) for step in after)
        if turned or not _is_small(terms, fill):
            raise Refused(
                "one mask of finite numbers, or one that leaves at least one key visible",
                "a later factor" if turned else "an added term that may hide a key",
                at=fill.node,
            )
        if loses and not others and not any(step.kind == "term" and not _is_shift(step) for step in after):
            return LOST
        if self.scores.of("view") or self.scores.turned:
            raise Refused(
                "a fill of -inf, or one that leaves at least one key visible",
                f"{fill.number:g} in {text_of(self.fake.dtype)}, and a view of the scores",
                at=fill.node,
            )
        self.hiding.append(fill)
        return max(fill.number, lowest)

    def leaves_some(self, fill: Step) -> bool:
        """Returns whether a fill provably leaves every query at least one visible key. False if this is unknown."""
        try:
            return self.workspace.leaves_some(fill.value)
        except Refused:
            return False


def _is_shift(step: Step) -> bool:
    return isinstance(step.value, int | float) and abs(step.value * step.number) <= _SHIFT


def _is_small(terms: Range, fill: Step) -> bool:
    """Returns whether the added terms are too small, compared with the fill value, to hide a key or to show one."""
    return math.inf > terms[1] <= -fill.number / 10 and -math.inf < terms[0] >= fill.number / 10


def _is_exact(node: Node, dtype: torch.dtype) -> bool:
    """Returns whether the cast of a term to a dtype is exact: it is a bool, or it is widened from this dtype."""
    if not is_call(node) or op_name(node.target) != "aten.to.dtype":
        return bool(node.meta["val"].dtype == torch.bool)
    source: torch.dtype = node.all_input_nodes[0].meta["val"].dtype
    wide: torch.dtype = node.meta["val"].dtype
    return source == torch.bool or (source == dtype and torch.promote_types(wide, dtype) == wide)


def _scales_exactly(number: float) -> bool:
    """Returns whether a product with a number is exact in every dtype, apart from numbers next to 0."""
    return abs(number) <= 1 and abs(math.frexp(number)[0]) == 0.5


def _after(scores: Scores, step: Step) -> tuple[Step, ...]:
    return scores.steps[scores.steps.index(step) + 1 :]


def _range(scores: Scores, workspace: Workspace, *, fills: bool) -> Range:
    """Returns the range of the mask's values. `fills` says whether the range includes the fill values."""
    found: Range = (0.0, 0.0)
    for step in scores.steps:
        if step.kind == "term":
            found = summed(found, multiplied((step.number, step.number), range_of(step.value, workspace)))
        elif step.kind == "fill" and fills:
            found = joined(found, (step.number, step.number))
        elif step.kind == "scale":
            found = multiplied(found, (step.value, step.value))
        elif step.kind == "factor":
            found = multiplied(found, range_of(step.value, workspace))
        elif step.kind == "divisor":
            found = found if found == (0.0, 0.0) else (-math.inf, math.inf)
    return found

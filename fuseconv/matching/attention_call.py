"""Creates the attention call that replaces scores, their softmax, and the product with the values.

The model applies steps, such as scaling and masking, to the product of queries and keys. The attention op only adds a
mask to the scaled product. So the mask is computed by applying the steps, in the same order, to 0 in place of the
product. This is correct only if a score that a fill hides is negligible compared with the fill value.
"""

from __future__ import annotations

import math
import sys
from itertools import count, takewhile
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from fuseconv.graph.proved_sizes import same_sizes
from fuseconv.matching.graph import Workspace, is_call, op_name
from fuseconv.matching.ranges import Range, joined, multiplied, range_of, summed
from fuseconv.matching.scores import Scores, Step
from fuseconv.rulebook.refused import Refused, text_of
from fuseconv.rulebook.rule_text import Line, names_of, parse_line

HIDES = -1e4
"""A fill value of at most this number hides a score: in every dtype, its exp is 0 relative to a visible score's exp."""

LOST = -1e30
"""If a score is added to a number this low or lower, rounding loses the score, in every dtype except f16. This is also
the lowest number that CUDA kernels accept: they multiply by log2(e), so that a lower number, such as the lowest f32,
becomes -inf."""

_SHIFT = 1e3
"""The maximum magnitude of a number added to all scores at which the addition is ignored. Adding the same number to
all scores does not change the weights."""


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
    call = _Call(workspace, scores)
    call.write(values, safe=safe)
    read, lines = {"o"}, []
    for line in map(parse_line, reversed(call.lines)):
        if line.targets[0] in read:  # the zeros in the shape of the scores may be unused
            read |= set(names_of(line.value))
            lines.append(line)
    return {name: value for name, value in call.captures.items() if name in read}, lines[::-1]


class _Mask(NamedTuple):
    """The mask built from the steps processed so far.

    Attributes:
        name: the name that the generated lines bind to the mask. Empty while no step has contributed to the mask.
        rank: the number of dims of the mask.
        keys: whether the mask may have different values for different keys.
        same: the number of first axes of the scores along which the mask is known to be the same.
    """

    name: str
    rank: int
    keys: bool = True
    same: int = 0

    def with_(self, name: str, operand: Node, scores: int) -> _Mask:
        """Returns the mask with the given name, computed from this mask and an operand of scores of rank `scores`."""
        sizes = operand.meta["val"].shape
        keys = self.keys or not same_sizes(sizes[-1:], (1,) * len(sizes[-1:]))
        ones = sum(1 for _ in takewhile(lambda size: same_sizes((size,), (1,)), sizes))
        return _Mask(name, max(self.rank, len(sizes)), keys, min(self.same, scores - len(sizes) + ones))


class _Call:
    def __init__(self, workspace: Workspace, scores: Scores) -> None:
        self.workspace = workspace
        self.scores = scores
        self.captures: dict[str, Any] = {}
        self.lines: list[str] = []
        self._names: dict[Node, str] = {}
        self._count = count()
        self._outermost: tuple[Any, Any] | None = None  # the first size, and its name, of the last split of an axis
        self._views: list[tuple[str, list[Any]]] = []  # those that did not need zeros in the shape of the scores
        self.fake: torch.Tensor = scores.left.meta["val"]

    def read(self, value: Any) -> str:
        """Returns the name of a node or list in the operands. Adds the node or list if it is missing."""
        if isinstance(value, Node) and value in self._names:
            return self._names[value]
        name = f"x{next(self._count)}"
        self.captures[name] = value
        if isinstance(value, Node):
            self._names[value] = name
        return name

    def make(self, op: str, *args: Any) -> str:
        """Adds a line that calls an op, and returns the name that the line binds to the op's result."""
        name = f"h{next(self._count)}"
        self.lines.append(f"{name} = aten.{op}({', '.join(map(str, args))})")
        return name

    def write(self, values: Node, *, safe: bool) -> None:
        """Generates all lines of the attention call. The last line binds the name `o` to the result."""
        self.check_views()
        q, k = self.read(self.scores.left), self.read(self.scores.right)
        k = k if self.scores.is_linear else self.make("transpose.int", k, -2, -1)
        q, k = (k, q) if self.scores.turned else (q, k)
        q, scale = self.scaled(q)
        mask, hidden = self.mask()
        o = self.attend([q, k, self.read(values)], mask, scale)
        if hidden:
            o = self.make("masked_fill.Scalar", o, hidden, 0.0 if safe else "nan")
        self.lines[-1] = self.lines[-1].replace(o, "o", 1)

    def attend(self, operands: list[str], mask: _Mask | None, scale: float) -> str:
        """Adds the call of attention. Three axes get a fourth, because kernels of attention accept four axes only."""
        masks = [mask.name] if mask else []
        if self.fake.dim() == 3:
            operands = [self.make("unsqueeze.default", one, 0) for one in operands]
            masks = [self.make("unsqueeze.default", one, 0) for one in masks] if mask and mask.rank == 3 else masks
        o = self.make("scaled_dot_product_attention.default", *operands, *masks, f"scale={scale!r}")
        return self.make("squeeze.dim", o, 0) if self.fake.dim() == 3 else o

    def check_views(self) -> None:
        """Checks that views preserve the last axis of the scores, along which the softmax is computed."""
        for step in self.scores.of("view"):
            before, after = step.node.all_input_nodes[0].meta["val"].shape, step.node.meta["val"].shape
            if self.scores.of("turn") or not same_sizes(before[-1:], after[-1:]):
                raise Refused("a view that preserves the key axis", text_of(step.node), at=step.node)

    def scaled(self, q: str) -> tuple[str, float]:
        """Returns the name of the queries, multiplied by all tensor factors, and the product of all scalar factors."""
        scale, viewed = 1.0, self.scores.turned
        for step in self.scores.steps:
            viewed = viewed or step.kind == "view"
            if step.kind == "scale":
                scale *= step.value
            elif step.kind in ("factor", "divisor"):
                sizes = step.value.meta["val"].shape if isinstance(step.value, Node) else (0,)
                if viewed or not same_sizes(sizes[-1:], (1,) * len(sizes[-1:])):
                    raise Refused("a factor that is the same for all keys", text_of(step.value), at=step.node)
                q = self.make("mul.Tensor" if step.kind == "factor" else "div.Tensor", q, self.read(step.value))
        return q, float(scale)

    def mask(self) -> tuple[_Mask | None, str]:
        """Returns the mask and the name of a bool tensor that is true for fully masked rows.

        The mask is None if the scores are neither masked nor biased. The name is empty if fully masked rows do not
        require special treatment.
        """
        fills, terms = self.scores.of("fill"), [step for step in self.scores.of("term") if not _is_shift(step)]
        for fill in fills:
            if not fill.number <= HIDES:
                raise Refused(f"a fill value of {HIDES:g} or less", f"{fill.number:g}", at=fill.node)
        if not fills and not terms:
            return None, ""
        if len(fills) == 1 and not terms and not self.scores.of("view") and not self.scores.turned:
            return self.fill_alone(fills[0])
        return self.sum_of_all(fills)

    def fill_alone(self, fill: Step) -> tuple[_Mask, str]:
        """Returns the mask for a single fill, and the name of a bool tensor that marks fully masked rows, or "".

        The mask is a bool tensor, unless the fill is finite and a row may be fully masked. Then it is a float tensor.
        """
        hide = self.spread(_Mask(self.read(fill.value), fill.value.meta["val"].dim()))
        if fill.number != -math.inf and not self.leaves_some(fill):
            number = max(self.number(fill, _range(self.scores, self.workspace, fills=False)), LOST)
            zero = self.make("new_zeros.default", self.read(self.scores.left), [])
            return _Mask(self.make("masked_fill.Scalar", zero, hide.name, number), hide.rank), ""
        hidden = "" if self.leaves_some(fill) else self.make("all.dim", hide.name, -1, True)
        return _Mask(self.make("logical_not.default", hide.name), hide.rank), hidden

    def sum_of_all(self, fills: list[Step]) -> tuple[_Mask, str]:
        """Returns the mask that results from applying all steps to 0, and the name of fully masked rows; see `mask`."""
        terms = _range(self.scores, self.workspace, fills=False)
        shown = len(fills) == 1 and self.leaves_some(fills[0]) and _is_small(terms, fills[0])
        bias, shape = _Mask("", 0, keys=False, same=sys.maxsize), ""
        for step in self.scores.steps:
            if step.kind == "view":
                bias, shape = self.view(bias, shape, step)
            elif step.kind == "turn" and bias.name:
                flat = self.spread(bias)
                bias = flat._replace(name=self.make("transpose.int", flat.name, -2, -1))
            elif step.kind == "term" and not _is_shift(step):
                bias = self.add(bias, step)
            elif step.kind == "fill":
                number = -math.inf if shown else self.number(step, terms)
                zero = bias.name or self.make("new_zeros.default", self.read(self.scores.left), [])
                name = self.make("masked_fill.Scalar", zero, self.read(step.value), number)
                bias = bias.with_(name, step.value, step.node.meta["val"].dim())
            elif bias.name and step.kind in ("factor", "divisor"):
                op = "mul.Tensor" if step.kind == "factor" else "div.Tensor"
                name = self.make(op, bias.name, self.read(step.value))
                bias = bias.with_(name, step.value, step.node.meta["val"].dim())
            elif bias.name and step.kind == "scale" and step.value != 1:
                bias = bias._replace(name=self.make("mul.Tensor", bias.name, float(step.value)))
        least = terms[0] if shown else _range(self.scores, self.workspace, fills=True)[0]
        return self.bounded(self.spread(bias), least)

    def bounded(self, mask: _Mask, least: float) -> tuple[_Mask, str]:
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

    def add(self, bias: _Mask, step: Step) -> _Mask:
        """Returns the sum of the mask and the term of a step, in the dtype of the queries."""
        term = step.value
        if not isinstance(term, Node):
            raise Refused("the term added to the scores to be a tensor", text_of(term), at=step.node)
        name, fake = self.read(term), term.meta["val"]
        if fake.dtype != self.fake.dtype:
            if fake.dtype.itemsize >= self.fake.dtype.itemsize and not _is_exact(term):
                raise Refused(f"a term of the same dtype as {text_of(self.scores.left)}", text_of(term), at=step.node)
            name = self.make("to.dtype", name, f"dtype_of({self.read(self.scores.left)})")
        if step.number != 1:
            minus = step.number == -1
            name = self.make("neg.default", name) if minus else self.make("mul.Tensor", name, float(step.number))
        name = self.make("add.Tensor", bias.name, name) if bias.name else name
        return bias.with_(name, term, step.node.meta["val"].dim())

    def view(self, bias: _Mask, shape: str, step: Step) -> tuple[_Mask, str]:
        """Applies a view op, which the model applies to the scores, to the mask.

        Args:
            bias: the mask before the view.
            shape: the name of a tensor of zeros with the shape of the scores, except that it has one key. Empty before
                the first view that needs it.
            step: the step of kind `view` to apply.

        Returns:
            The mask after the view, and the name of the tensor of zeros after the view.
        """
        fake, given = step.node.meta["val"], list(step.node.args[1:])
        op = op_name(step.node.target).removeprefix("aten.")
        narrow = [[*given[0][:-1], 1]] if isinstance(given[0], list | tuple) else given
        if bias.same and (same := self.same_along_first(bias, step)):
            self._views.append((op, narrow))
            return same, shape and self.reshape(op, shape, narrow)
        if not shape:
            shape = self.make("zeros_like.default", self.make("slice.Tensor", self.read(self.scores.left), -1, 0, 1))
            for earlier in self._views:
                shape = self.reshape(earlier[0], shape, earlier[1])
        if bias.name:
            whole = self.make("add.Tensor", shape, bias.name)
            bias = _Mask(self.reshape(op, whole, given if bias.keys else narrow), fake.dim(), bias.keys)
        return bias, self.reshape(op, shape, narrow)

    def same_along_first(self, bias: _Mask, step: Step) -> _Mask | None:
        """Applies a view that splits the first axis of the scores in two or merges the first two. None for other views.

        Models of images split the batch into images and windows, to add a mask that is the same for all images. The
        mask before the view is the same along the first axis, so that it need not be expanded to be split. Where the
        axes are merged again, it is repeated for each image, unless it is the same for all windows too.
        """
        before, after = step.node.all_input_nodes[0].meta["val"].shape, step.node.meta["val"].shape
        if len(after) == len(before) + 1 and same_sizes(before[1:], after[2:]):
            sizes = step.node.args[1] if len(step.node.args) > 1 else None
            if not isinstance(sizes, list) or (sizes[0] == -1 and not isinstance(after[0], int)):
                return None
            self._outermost = after[0], sizes[0]
            if bias.rank == len(before):
                bias = bias._replace(name=self.make("unsqueeze.default", bias.name, 0), rank=len(after))
            return bias._replace(same=bias.same + 1)
        if len(after) != len(before) - 1 or not same_sizes(before[2:], after[1:]):
            return None
        if bias.same == 1:
            return self.repeated(bias, before)
        if bias.rank == len(before):
            bias = bias._replace(name=self.make("squeeze.dim", bias.name, 0), rank=len(after))
        return bias._replace(same=bias.same - 1)

    def repeated(self, bias: _Mask, scores: Any) -> _Mask | None:
        """Repeats a mask along the first axis, and merges this axis with the next. None if its size has no name."""
        times = str(scores[0])
        if not isinstance(scores[0], int):
            if self._outermost is None or not same_sizes(scores[:1], self._outermost[:1]):
                return None
            times = self.read(self._outermost[1])
        while bias.rank < len(scores):
            bias = bias._replace(name=self.make("unsqueeze.default", bias.name, 0), rank=bias.rank + 1)
        repeated = self.make("expand.default", bias.name, f"[{times}{', -1' * (bias.rank - 1)}]")
        return _Mask(self.make("flatten.using_ints", repeated, 0, 1), bias.rank - 1, bias.keys)

    def reshape(self, op: str, name: str, given: list[Any]) -> str:
        """Adds a line that calls a view op on the mask, and returns the name that the line binds to the result.

        `view` becomes `reshape`, because the mask may not have the strides that `view` requires.
        """
        terms = [repr(value) if isinstance(value, int) else self.read(value) for value in given]
        return self.make("reshape.default" if op == "view.default" else op, name, *terms)

    def spread(self, mask: _Mask) -> _Mask:
        """Returns the mask with the rank that kernels require: at least 2, and 4 instead of 3 for queries of rank 4."""
        wanted = 4 if self.fake.dim() == 4 and mask.rank == 3 else 2
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
        if self.fake.dtype == torch.float16:
            raise Refused(
                "a fill of -inf, or one that leaves at least one key visible", f"{fill.number:g} in f16", at=fill.node
            )
        if fill.number <= LOST:
            return fill.number
        after = self.scores.steps[self.scores.steps.index(fill) + 1 :]
        turned = any(step.kind in ("factor", "divisor") or (step.kind == "scale" and step.value <= 0) for step in after)
        others = {step.number for step in self.scores.of("fill")} - {fill.number, -math.inf}
        if turned or others or not _is_small(terms, fill):
            raise Refused(
                "one mask of finite numbers, or one that leaves at least one key visible",
                "several masks" if others else "a later factor" if turned else "an added term that may hide a key",
                at=fill.node,
            )
        return LOST

    def leaves_some(self, fill: Step) -> bool:
        """Returns whether a fill provably leaves every query at least one visible key. False if this is unknown."""
        try:
            return self.workspace.leaves_some(fill.value)
        except Refused:
            return False


def _is_shift(step: Step) -> bool:
    return isinstance(step.value, int | float) and abs(step.value * step.number) <= _SHIFT


def _is_small(terms: Range, fill: Step) -> bool:
    """Returns whether the added terms are too small, compared with the fill value, to hide a key."""
    return terms[0] > -math.inf and terms[0] >= fill.number / 10


def _is_exact(node: Node) -> bool:
    """Returns whether a cast to the queries' dtype is exact: the node is not a float, or is itself a widening cast."""
    if not node.meta["val"].is_floating_point():
        return True
    if not is_call(node) or op_name(node.target) != "aten.to.dtype":
        return False
    narrow: int = node.all_input_nodes[0].meta["val"].dtype.itemsize
    wide: int = node.meta["val"].dtype.itemsize
    return narrow < wide


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

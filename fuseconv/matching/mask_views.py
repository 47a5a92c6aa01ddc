"""The mask of attention while it is built, and the views of the scores, which are applied to it.

Models view the scores to add a mask to them: they unfold heads that are folded into the batch, or split the batch into
images and windows. A mask that is the same along an axis stays so where a view allows it, instead of being repeated.
"""

from __future__ import annotations

from itertools import takewhile
from typing import Any, NamedTuple

from torch.fx import Node

from fuseconv.graph.proved_sizes import same_sizes
from fuseconv.matching.call_lines import CallLines
from fuseconv.matching.graph import op_name
from fuseconv.matching.scores import Scores, Step


class Mask(NamedTuple):
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

    def with_(self, name: str, operand: Node, scores: int) -> Mask:
        """Returns the mask with the given name, computed from this mask and an operand of scores of rank `scores`."""
        sizes = operand.meta["val"].shape
        keys = self.keys or not same_sizes(sizes[-1:], (1,) * len(sizes[-1:]))
        ones = sum(1 for _ in takewhile(lambda size: same_sizes((size,), (1,)), sizes))
        return Mask(name, max(self.rank, len(sizes)), keys, min(self.same, scores - len(sizes) + ones))


def split_sizes(step: Step) -> tuple[Any, Any] | None:
    """Returns the sizes in which a view splits the first axis of the scores, as its arguments. None for other views."""
    before, after = _shapes(step)
    if len(after) != len(before) + 1 or not same_sizes(before[1:], after[2:]):
        return None
    sizes = step.node.args[-1]
    return (sizes[0], sizes[1]) if isinstance(sizes, list) else None


def merges(step: Step) -> bool:
    """Returns whether a view merges the first two axes of the scores."""
    before, after = _shapes(step)
    return len(after) == len(before) - 1 and same_sizes(before[2:], after[1:])


class MaskViews:
    """Applies the views of scores to their mask, one after the other."""

    def __init__(self, lines: CallLines, scores: Scores) -> None:
        self.lines = lines
        self.scores = scores
        self._zeros = ""  # in the shape of the scores, except that they have one key; made for the first who needs them
        self._outermost: tuple[Any, Any] | None = None  # the first size, and its name, of the last split of an axis
        self._before: list[tuple[str, list[Any]]] = []  # views that did not need the zeros

    def apply(self, mask: Mask, step: Step) -> Mask:
        """Returns the mask after a view, which the model applies to the scores."""
        given = list(step.node.args[1:])
        op = op_name(step.node.target).removeprefix("aten.")
        narrow = [[*given[0][:-1], 1]] if isinstance(given[0], list | tuple) else given
        direct = self._split(mask, step) or self._merged(mask, step)
        if direct and not self._zeros:
            self._before.append((op, narrow))
            return direct
        if not self._zeros:
            self._zeros = self.lines.make(
                "zeros_like.default", self.lines.make("slice.Tensor", self.lines.read(self.scores.left), -1, 0, 1)
            )
            for earlier in self._before:
                self._zeros = self._reshape(earlier[0], self._zeros, earlier[1])
        if direct:
            mask = direct
        elif mask.name:
            whole = self.lines.make("add.Tensor", self._zeros, mask.name)
            rank = step.node.meta["val"].dim()
            mask = Mask(self._reshape(op, whole, given if mask.keys else narrow), rank, mask.keys)
        self._zeros = self._reshape(op, self._zeros, narrow)
        return mask

    def _split(self, mask: Mask, step: Step) -> Mask | None:
        """Applies a view that splits the first axis of the scores in two. None for other views."""
        sizes = split_sizes(step)
        if sizes is None:
            return None
        before, after = _shapes(step)
        is_named = sizes[0] != -1 or isinstance(after[0], int)
        self._outermost = (after[0], sizes[0]) if is_named else None
        if mask.same and not is_named:  # to repeat the mask later takes the size
            return None
        if mask.rank < len(before):
            return mask._replace(same=mask.same + 1)
        if mask.same:
            name = self.lines.make("unsqueeze.default", mask.name, 0)
            return mask._replace(name=name, rank=len(after), same=mask.same + 1)
        name = self.lines.make("unflatten.int", mask.name, 0, f"[{', '.join(map(self._size, sizes))}]")
        return mask._replace(name=name, rank=len(after))

    def _merged(self, mask: Mask, step: Step) -> Mask | None:
        """Applies a view that merges the first two axes of the scores, along the first of which the mask is the same.

        The mask is repeated for each element of the first axis, unless it is the same along the second one too. Returns
        None for other views and masks.
        """
        before, after = _shapes(step)
        if not mask.same or not merges(step):
            return None
        if mask.same == 1:
            return self._repeated(mask, before)
        if mask.rank == len(before):
            mask = mask._replace(name=self.lines.make("squeeze.dim", mask.name, 0), rank=len(after))
        return mask._replace(same=mask.same - 1)

    def _repeated(self, mask: Mask, scores: Any) -> Mask | None:
        """Repeats a mask along the first axis, and merges this axis with the next. None if its size has no name."""
        times = str(scores[0])
        if not isinstance(scores[0], int):
            if self._outermost is None or not same_sizes(scores[:1], self._outermost[:1]):
                return None
            times = self._size(self._outermost[1])
        while mask.rank < len(scores):
            mask = mask._replace(name=self.lines.make("unsqueeze.default", mask.name, 0), rank=mask.rank + 1)
        repeated = self.lines.make("expand.default", mask.name, f"[{times}{', -1' * (mask.rank - 1)}]")
        return Mask(self.lines.make("flatten.using_ints", repeated, 0, 1), mask.rank - 1, mask.keys)

    def _reshape(self, op: str, name: str, given: list[Any]) -> str:
        """Adds a line that calls a view op on the mask, and returns the name that the line binds to the result.

        `view` becomes `reshape`, because the mask may not have the strides that `view` requires.
        """
        return self.lines.make("reshape.default" if op == "view.default" else op, name, *map(self._size, given))

    def _size(self, value: Any) -> str:
        return repr(value) if isinstance(value, int) else self.lines.read(value)


def _shapes(step: Step) -> tuple[Any, Any]:
    return step.node.all_input_nodes[0].meta["val"].shape, step.node.meta["val"].shape

"""Buckets: the few sizes that a batch is rounded up to, so that a few CUDA graphs serve calls of every size. No torch.

docs/adr/0007-cuda-graphs.md says when a dim may have them, and why.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fuseconv.errors import UsageError

_BUCKETS = re.compile(r"^(?P<dim>[A-Za-z_]\w*)=(?P<sizes>\d{1,15}(?:,\d{1,15})*)$", re.ASCII)


@dataclass(frozen=True)
class Buckets:
    """The sizes of a dim whose rows were proved not to meet.

    Attributes:
        dim: its name; inputs have it as their first axis, or not at all.
        sizes: what it is rounded up to, ascending; a size above the last is left as it is.
        outputs: the names of those that have it, as their first axis too; filled in by the proof.
    """

    dim: str
    sizes: tuple[int, ...]
    outputs: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.dim}={','.join(map(str, self.sizes))}"

    def rounded(self, size: int) -> int:
        """Returns how many rows a call of `size` rows is run with; of none there is none to repeat."""
        return next((bucket for bucket in self.sizes if bucket >= size), size) if size else 0

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values; `from_json` reads them back."""
        return {"dim": self.dim, "sizes": list(self.sizes), "outputs": list(self.outputs)}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Buckets:
        """Reads what `to_json` wrote."""
        return Buckets(value["dim"], tuple(value["sizes"]), tuple(value["outputs"]))


def parse_buckets(text: str) -> Buckets:
    """Parses `--bucket`: `batch=1,8,32`.

    Raises:
        UsageError: the text is not of that form, or the sizes do not ascend from 1.
    """
    match = _BUCKETS.match(text.replace(" ", ""))
    sizes = tuple(map(int, match["sizes"].split(","))) if match else ()
    if match is None or sizes[0] == 0 or list(sizes) != sorted(set(sizes)):
        raise UsageError(
            "the buckets cannot be parsed",
            where=f"--bucket {text!r}",
            fix="write DIM=SIZE,SIZE,... with ascending sizes, for example --bucket batch=1,8,32",
        )
    return Buckets(match["dim"], sizes)

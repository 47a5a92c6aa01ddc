"""Buckets: a few sizes to which batches are padded, so that a few CUDA graphs cover every batch size.

docs/adr/0007-cuda-graphs.md describes when a dim may have buckets, and why. Nothing here imports torch.
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
    """The bucket sizes of one dim, along which the model is proved not to mix rows.

    Attributes:
        dim: the name of the dim, which is the first axis of every input that uses it.
        sizes: the bucket sizes in ascending order. Sizes above the last are not padded.
        outputs: the names of the outputs whose first axis is the dim. The proof sets them.
    """

    dim: str
    sizes: tuple[int, ...]
    outputs: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.dim}={','.join(map(str, self.sizes))}"

    def rounded(self, size: int) -> int:
        """Returns the padded number of rows for `size` rows.

        An empty batch is not padded, because it has no row to repeat.
        """
        return next((bucket for bucket in self.sizes if bucket >= size), size) if size else 0

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values.

        `from_json` reads them back.
        """
        return {"dim": self.dim, "sizes": list(self.sizes), "outputs": list(self.outputs)}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Buckets:
        """Reads the values that `to_json` returned."""
        return Buckets(value["dim"], tuple(value["sizes"]), tuple(value["outputs"]))


def parse_buckets(text: str) -> Buckets:
    """Parses `--bucket`, for example `batch=1,8,32`.

    Raises:
        UsageError: the text is malformed, or the sizes do not ascend from 1.
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

"""Buckets: the sizes to which batches are padded, so that a few CUDA graphs cover many batch sizes.

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
    """The bucket sizes of one dim, along which the model is proved to compute each row independently.

    Attributes:
        dim: the name of the dim, which is the first axis of every input that uses it.
        sizes: the bucket sizes in ascending order. A batch that is larger than the last bucket is not padded.
        outputs: the names of the outputs whose first axis is the dim. Empty until the proof sets them.
    """

    dim: str
    sizes: tuple[int, ...]
    outputs: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.dim}={','.join(map(str, self.sizes))}"

    def rounded(self, size: int) -> int:
        """Returns the smallest bucket size that is at least `size`, or `size` itself if all buckets are smaller.

        An empty batch is not padded, because it has no row to repeat.
        """
        return next((bucket for bucket in self.sizes if bucket >= size), size) if size else 0

    def to_json(self) -> dict[str, Any]:
        """Returns the buckets as a dict of JSON values, which `from_json` parses."""
        return {"dim": self.dim, "sizes": list(self.sizes), "outputs": list(self.outputs)}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Buckets:
        """Parses the dict that `to_json` returned."""
        return Buckets(value["dim"], tuple(value["sizes"]), tuple(value["outputs"]))


def parse_buckets(text: str) -> Buckets:
    """Parses a value of `--bucket`, for example `batch=1,8,32`, and returns the buckets, without outputs.

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

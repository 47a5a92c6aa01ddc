"""The table of every op and sample, by device and dtype."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from _pytest.mark import ParameterSet
from torch import Tensor

from fuseconv import ops

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@cache
def _calls(op: ops.Op[..., Any], device: str, dtype: torch.dtype) -> list[ops.Sample]:
    """Draws the samples of an op once; tests do not write to them."""
    return op.samples(device, dtype)


def rows(
    calls: str = "samples", dtypes: Sequence[torch.dtype] = (torch.float32,), most: int | None = None
) -> list[ParameterSet]:
    """The table: (op, sample) for every device and dtype, named; at most so many samples of an op."""
    table = []
    for op in ops.OPS:
        for device in DEVICES:
            for dtype in dtypes:
                for sample in (_calls(op, device, dtype) if calls == "samples" else op.errors(device))[:most]:
                    name = f"{op.name}-{device}-{str(dtype).removeprefix('torch.')}-{sample.name}"
                    table.append(pytest.param(op, sample, id=name))
    return table


def tensors(results: Tensor | Sequence[Tensor]) -> Sequence[Tensor]:
    return (results,) if isinstance(results, Tensor) else results

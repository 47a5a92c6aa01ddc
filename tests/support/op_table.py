"""The table of every op and sample, by device and dtype."""

import pytest
import torch
from torch import Tensor

from fuseconv import ops

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def rows(calls="samples", dtypes=(torch.float32,), most=None):
    """The table: (op, sample) for every device and dtype, named; at most so many samples of an op."""
    table = []
    for op in ops.OPS:
        for device in DEVICES:
            for dtype in dtypes:
                for sample in (op.samples(device, dtype) if calls == "samples" else op.errors(device))[:most]:
                    name = f"{op.name}-{device}-{str(dtype).removeprefix('torch.')}-{sample.name}"
                    table.append(pytest.param(op, sample, id=name))
    return table


def tensors(results):
    return (results,) if isinstance(results, Tensor) else results

"""Which attention keeps shared heads of keys: PyTorch has no CUDA kernel for them and a mask."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, Node

from fuseconv.rulebook import attention_functions
from fuseconv.rulebook.attention_functions import may_share_keys
from fuseconv.rulebook.refused import Refused


def node(*sizes: int, dtype: torch.dtype, device: str) -> Node:
    """Returns a node whose value is a fake tensor, which needs no GPU."""
    made = Graph().placeholder("x")
    with FakeTensorMode():
        made.meta["val"] = torch.empty(sizes, dtype=dtype, device=device)
    return made


@pytest.mark.parametrize(
    ("device", "dtype", "masked", "hopper", "expected"),
    [
        ("cpu", torch.float32, True, False, ""),
        ("cuda", torch.float32, False, False, ""),
        ("cuda", torch.float32, True, True, "f16 or bf16"),
        ("cuda", torch.float16, True, True, ""),
        ("cuda", torch.bfloat16, True, False, "a Hopper GPU"),
    ],
    ids=["cpu", "no-mask", "f32", "hopper", "other"],
)
def test_shared_keys(
    device: str, dtype: torch.dtype, masked: bool, hopper: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_functions, "is_hopper", lambda: hopper)
    q = node(2, 8, 128, 64, dtype=dtype, device=device)
    mask = node(2, 1, 128, 128, dtype=dtype, device=device) if masked else None
    with pytest.raises(Refused) if expected else nullcontext() as refused:
        may_share_keys(None, q, mask)  # type: ignore[arg-type]  # no constants are asked for
    assert refused is None or refused.value.expected.startswith(expected)

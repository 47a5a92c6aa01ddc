"""Lets AOTInductor compile ops that it calls by a C function that this version of torch does not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def call_without_shims() -> None:
    """Makes Inductor call such ops by torch's dispatcher, for the rest of the process.

    Inductor lowers grouped matrix products, by which transformers computes the experts of a mixture, itself and calls
    them by a C shim. torch has this shim since 2.12, so with 2.11 the package did not compile. Ops without a shim and
    without a lowering of their own are called by the dispatcher. (`torch._inductor.kernel.mm_grouped` of torch 2.11)
    """
    import torch
    from torch._inductor import lowering
    from torchgen.aoti.fallback_ops import inductor_fallback_ops  # type: ignore[import-untyped]

    by_dispatcher: Callable[..., Any] = lowering.fallback_handler
    for op in (torch.ops.aten._grouped_mm.default, torch.ops.aten._scaled_grouped_mm.default):
        if op in lowering.lowerings and str(op) not in inductor_fallback_ops:
            lowering.lowerings[op] = by_dispatcher(op, add_to_fallback_set=False)

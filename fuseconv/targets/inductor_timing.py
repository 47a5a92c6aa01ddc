"""Lets Inductor measure the configurations of its Triton kernels without the time that launches take on the host."""

from __future__ import annotations

from typing import Any

_CYCLES = 100_000
"""How long the GPU sleeps for each repetition, in its clock cycles: 50 us at 2 GHz, which a few launches take."""


def hide_launches() -> None:
    """Changes Inductor's benchmark of kernels on CUDA for the rest of the process.

    Inductor records an event, launches the kernel and records a second event. A kernel of a few microseconds takes
    less time on the GPU than its launch takes on the host, so the GPU waits for the launch between the events, and
    configurations of 3 us and of 10 us seem to be equal. If the GPU sleeps while the host launches all repetitions,
    events enclose the kernel alone. See docs/adr/0058-triton-configurations.md.
    """
    import torch
    from torch._inductor.runtime.benchmarking import InductorBenchmarker

    original = InductorBenchmarker.get_event_pairs

    def get_event_pairs(self: InductorBenchmarker, iters: int, *args: Any, **options: Any) -> list[tuple[Any, Any]]:
        pairs = original(self, iters, *args, **options)  # called directly before the repetitions
        torch.cuda._sleep(iters * _CYCLES)  # type: ignore[no-untyped-call]
        return pairs

    InductorBenchmarker.get_event_pairs = get_event_pairs  # type: ignore[method-assign]

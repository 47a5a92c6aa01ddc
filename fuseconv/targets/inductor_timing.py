"""Lets Inductor measure the configurations of its Triton kernels without the time that launches take on the host."""

from __future__ import annotations

from typing import Any

_CYCLES = 6_000_000
"""How long the GPU sleeps, in its clock cycles: 3 ms at 2 GHz, in which a busy host launches tens of kernels."""


def hide_launches() -> None:
    """Changes Inductor's benchmark of kernels on CUDA for the rest of the process.

    Inductor records an event, launches the kernel, records a second event, and repeats this. While it compiles, such a
    launch takes 20 to 100 us on the host, and the GPU waits for it between the events. All configurations of a kernel
    of a few microseconds then seem to be equally fast. Behind a sleep of the GPU, the first repetitions are launched
    before they run, and their events enclose the kernel alone. Inductor takes the minimum of all.
    See docs/adr/0058-triton-configurations.md.
    """
    import torch
    from torch._inductor.runtime.benchmarking import InductorBenchmarker

    original = InductorBenchmarker.get_event_pairs

    def get_event_pairs(self: InductorBenchmarker, iters: int, *args: Any, **options: Any) -> list[tuple[Any, Any]]:
        pairs = original(self, iters, *args, **options)  # called directly before the repetitions
        torch.cuda._sleep(_CYCLES)  # type: ignore[no-untyped-call]
        return pairs

    InductorBenchmarker.get_event_pairs = get_event_pairs  # type: ignore[method-assign]

"""Prints measured times as tables.

A bundle is compared with peers. Each peer runs the original model without a bundle: in eager mode, with torch.compile,
or with AOTInductor without fusions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from fuseconv.commands.table import Table, size_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from fuseconv.measure.latency import Latencies
    from fuseconv.measure.peers import Versus
    from fuseconv.tuning.gains import Gain


def print_latencies(console: Console, found: Latencies) -> None:
    """Prints the latency and memory of a bundle's targets, and their speed-up over the first peer.

    Without a peer, the speed-up is relative to the slowest target.
    """
    peer = next((row for row in found.rows if row.cold is None), None)
    speed = f"x {peer.name}" if peer else "x slowest"
    base = peer.median_ms if peer else max(row.median_ms for row in found.rows)
    sure = ("95 % interval",) if any(row.low_ms is not None for row in found.rows) else ()
    numbers = ("cold start", "first call", "memory", "GPU memory", "median", *sure, "p90", "p99", "calls/s", speed)
    table = Table("target", *numbers, numbers=numbers)
    for row in found.rows:
        cold = [""] * 4
        if row.cold is not None:
            sizes = ("" if size is None else size_text(size) for size in (row.cold.memory, row.cold.device_memory))
            cold = [f"{row.cold.seconds:.2f} s", f"{row.cold.first_call_ms:.1f} ms", *sizes]
        median, *others = (f"{ms:.3f} ms" for ms in (row.median_ms, row.p90_ms, row.p99_ms))
        interval = [f"{row.low_ms:.3f} to {row.high_ms:.3f}"] if sure else []
        table.add(
            row.name, *cold, median, *interval, *others, f"{row.calls_per_second:.1f}", f"{base / row.median_ms:.2f}"
        )
    console.print(table)
    called = ", ".join(f"{name}={shape}" for name, shape in found.inputs.items())
    console.print(f"\n{found.rounds} interleaved calls per target with {called}", highlight=False, markup=False)
    for name, error in found.failures.items():
        console.print(f"{name} failed on this machine: {error.what}", highlight=False, markup=False)


def print_gains(console: Console, found: Sequence[Gain]) -> None:
    """Prints the time of a call with and without each class of matches, as measured during the conversion."""
    numbers = ("matches", "us with", "us without", "speed-up", "99 % interval")
    table = Table("target", "rule", *numbers, "", numbers=numbers)
    for gain in found:
        times = (f"{gain.choice.fused_us:.1f}", f"{gain.choice.unfused_us:.1f}")
        interval = "{:.3f} to {:.3f}".format(*gain.interval)
        state = "" if gain.choice.applied else "left alone"
        table.add(gain.target, gain.rule, str(gain.matches), *times, f"{gain.speedup:.3f}", interval, state)
    console.print(table)


def print_peers(console: Console, found: Sequence[Versus]) -> None:
    """Prints one row per peer: the time of the target, the time of the peer, and their ratio with its interval."""
    numbers = ("us", "peer us", "ratio", "interval")
    table = Table("target", "peer", *numbers, "", numbers=numbers)
    for one in found:
        ratio = one.ratio
        interval = f"{ratio.low:.3f} to {ratio.high:.3f}"
        verdict = Text("slower", style="bold red") if one.loses else Text("faster" if ratio.faster else "even")
        table.add(one.target, one.peer, f"{one.us:.1f}", f"{one.peer_us:.1f}", f"{ratio.median:.3f}", interval, verdict)
    console.print(table)
    console.print(
        "\nratio: the time of the target divided by the time of the peer, with its 99 % interval", highlight=False
    )

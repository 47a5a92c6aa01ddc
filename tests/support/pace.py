"""How fast this processor is just now: limits in seconds are for one that runs the loop below in REFERENCE."""

import time

REFERENCE = 0.010  # seconds of the loop below


def slowness() -> float:
    """Returns how many times longer than on the reference a plain Python loop takes; at least 1."""
    return max(1.0, min(_loop() for _ in range(5)) / REFERENCE)


def _loop() -> float:
    start, total = time.process_time(), 0
    for number in range(200_000):
        total += number * number % 7
    return time.process_time() - start

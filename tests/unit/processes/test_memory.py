"""Memory that was freed stays in a process that keeps it: its pages are not cleared again."""

import subprocess
import sys

SCRIPT = """
import resource, torch
from fuseconv.processes.memory import keep_freed
keep_freed()
for _ in range(40):
    torch.empty(50_000_000, dtype=torch.float32).fill_(1.0)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""

PAGES = 40 * 200_000_000 // 4096
"""The faults of a process that does not keep its memory, unless the kernel uses large pages."""


def test_most_pages_of_freed_tensors_are_used_again() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert int(done.stdout) < PAGES // 2

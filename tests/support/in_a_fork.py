"""What tests run in a process that is a fork of the server."""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path


def facts() -> dict[str, object]:
    """Returns what a process can see of itself, without its standard streams."""
    opened = list(Path("/proc/self/fd").iterdir())
    return {
        "arguments": sys.argv,
        "folder": str(Path.cwd()),
        "set": os.environ.get("SET"),
        "first": sys.path[0],
        "is a leader": os.getpgid(0) == os.getpid(),
        "sockets": [str(path) for path in opened if path.exists() and stat.S_ISSOCK(path.stat().st_mode)],
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "used a GPU": sys.modules["torch"].cuda.is_initialized(),
    }


def leave_a_child(number: str) -> None:
    """Starts a process that lives on, writes its number, and sleeps."""
    if not os.fork():
        time.sleep(600)
    Path(number).write_text(str(os.getpid()))
    time.sleep(600)


WAYS: dict[str, Callable[..., object]] = {
    "facts": lambda: print(json.dumps(facts())),
    "echo": lambda: print(sys.stdin.readline(), end=""),
    "exit": lambda status: sys.exit(int(status)),
    "say": sys.exit,
    "raise": lambda: os.environ["ABSENT"],
    "crash": os.abort,
    "sleep": lambda: time.sleep(600),
    "leave a child": leave_a_child,
}


def main(way: str, *arguments: str) -> None:
    WAYS[way](*arguments)

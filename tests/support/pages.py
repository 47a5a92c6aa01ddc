"""The commands that a page of the documentation shows, and what it says that they print."""

from __future__ import annotations

import re


def sessions(block: str) -> list[tuple[str, list[str]]]:
    """Returns each command of a block (`$ ` lines, continued by a backslash) with the lines of output under it."""
    commands: list[tuple[str, list[str]]] = []
    lines = iter(block.splitlines())
    for line in lines:
        if line.startswith("$ "):
            command = line[2:]
            while command.endswith("\\"):
                command += "\n" + next(lines)
            commands.append((command, []))
        else:
            commands[-1][1].append(line)
    return commands


def shape_of(line: str) -> str:
    """Folds what differs from run to run: numbers, hashes, padding."""
    line = re.sub(r"\b[0-9a-f]{12,64}\b", "#", line)
    line = re.sub(r"\d+(?:[.,]\d+)*(?:e[+-]?\d+)?", "#", line)
    return re.sub(r"[\s─━]+", " ", line).strip()


def assert_printed(expected: list[str], actual: str) -> None:
    """Asserts that the lines stand in the output in this order; `...` stands for any lines."""
    remaining = iter(shape_of(line) for line in actual.splitlines())
    for line in expected:
        if line.strip() in {"", "..."}:
            continue
        assert any(shape_of(line) == found for found in remaining), f"not printed: {line}\n--- actual:\n{actual}"

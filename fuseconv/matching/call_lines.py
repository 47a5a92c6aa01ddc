"""The lines of a replacement that a finder generates, and the operands that these lines read."""

from __future__ import annotations

from itertools import count
from typing import Any

from torch.fx import Node

from fuseconv.rulebook.rule_text import Line, names_of, parse_line


class CallLines:
    """Lines of a replacement, as text.

    Attributes:
        captures: the operands by name: nodes of the graph, and values of their arguments.
        lines: one line for each call of an op, such as `h0 = aten.neg.default(x0)`.
    """

    def __init__(self) -> None:
        self.captures: dict[str, Any] = {}
        self.lines: list[str] = []
        self._names: dict[Node, str] = {}
        self._count = count()

    def read(self, value: Any) -> str:
        """Returns the name of a node or list in the operands. Adds the node or list if it is missing."""
        if isinstance(value, Node) and value in self._names:
            return self._names[value]
        name = f"x{next(self._count)}"
        self.captures[name] = value
        if isinstance(value, Node):
            self._names[value] = name
        return name

    def make(self, op: str, *args: Any) -> str:
        """Adds a line that calls an op, and returns the name that the line binds to the op's result."""
        name = f"h{next(self._count)}"
        self.lines.append(f"{name} = aten.{op}({', '.join(map(str, args))})")
        return name

    def needed_for(self, result: str) -> tuple[dict[str, Any], list[Line]]:
        """Returns the operands and the lines without those that the line that binds `result` does not need."""
        read, lines = {result}, []
        for line in map(parse_line, reversed(self.lines)):
            if line.targets[0] in read:
                read |= set(names_of(line.value))
                lines.append(line)
        return {name: value for name, value in self.captures.items() if name in read}, lines[::-1]

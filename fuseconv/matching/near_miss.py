"""The attempt of a pattern at a node that got farthest: kept for every node, put into words for few."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from torch.fx import Node

from fuseconv.matching.graph import source_line
from fuseconv.matching.steps import Miss
from fuseconv.rulebook.rule import Rule

Words: TypeAlias = Callable[[], tuple[str, str]]
"""Says what a pattern expects, and what the graph has."""


@dataclass(frozen=True)
class NearMiss:
    """A site that is not one.

    Attributes:
        rule: the rule whose pattern was tried.
        anchor: the node its last line was.
        differs: the first node that differs.
        found: how many ops of the pattern were found.
        ops: how many it has.
        words: what was expected, and found.
        refused: whether the pattern fits, and may not be replaced.
        rejected: whether it is left alone for what a trial, or an error that nothing foresaw, has shown.
    """

    rule: Rule
    anchor: Node
    differs: Node
    found: int
    ops: int
    words: Words
    refused: bool = False
    rejected: bool = False

    @property
    def miss(self) -> Miss:
        """The miss in words."""
        expected, found = self.words()
        return Miss(
            rule=self.rule.name,
            node=self.anchor.name,
            reason=f"expected {expected}, found {found}",
            expected=expected,
            found=found,
            where=source_line(self.differs) or source_line(self.anchor),
            differs=self.differs.name,
            matched=self.found,
            ops=self.ops,
            refused=self.refused,
            rejected=self.rejected,
        )

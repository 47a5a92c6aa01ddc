"""The near miss: the longest partial match of a pattern at a node. Only a few near misses are rendered as text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from torch.fx import Node

from fuseconv.matching.graph import source_line
from fuseconv.matching.steps import Miss
from fuseconv.rulebook.rule import Rule

Words: TypeAlias = Callable[[], tuple[str, str]]
"""A function that returns two strings: what a pattern expects, and what the graph contains instead."""


@dataclass(frozen=True)
class NearMiss:
    """The longest partial match of a rule's pattern at one node.

    Attributes:
        rule: the rule whose pattern was tried.
        anchor: the node at which the last line of the pattern was tried.
        differs: the first node that differs from the pattern.
        found: the number of ops of the pattern that were found.
        ops: the number of ops of the pattern.
        words: a function that returns two strings: what the pattern expects and what the graph contains.
        refused: whether the whole pattern matches but may not be replaced.
        rejected: whether the match was rejected by its numerical test or by an unexpected error.
        fits: whether the conditions of the rule hold, so that only what surrounds the match refuses it.
    """

    rule: Rule
    anchor: Node
    differs: Node
    found: int
    ops: int
    words: Words
    refused: bool = False
    rejected: bool = False
    fits: bool = False

    @property
    def miss(self) -> Miss:
        """Returns the near miss as an entry of the plan, with its reason and the source line of the model as text."""
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

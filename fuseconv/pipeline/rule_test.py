"""Tests the rules of a file on a model: finds where each rule applies, and the nearest miss of a rule that does not.

A near miss is a subgraph that a rule almost matched.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from fuseconv.errors import UsageError
from fuseconv.matching import explanation
from fuseconv.matching.explanation import Explained
from fuseconv.matching.plan import plan
from fuseconv.pipeline.assembly import Progress, target_names
from fuseconv.pipeline.read import read_program, silent
from fuseconv.program.captured import Program
from fuseconv.rulebook.own_rules import load_rules
from fuseconv.rulebook.packs import load_ops, op_files
from fuseconv.rulebook.rule import Rule
from fuseconv.sources import Options


@dataclass(frozen=True)
class Tested:
    """The result of testing each rule of a file on a model."""

    rules: tuple[Explained, ...]

    @property
    def missed(self) -> tuple[Explained, ...]:
        """The rules that apply nowhere in the model."""
        return tuple(rule for rule in self.rules if not rule.applied)


class RuleTest:
    """Captures a model once, so that several rule files can be tested on it.

    Args:
        model: the source, as in `convert`.
        options: how to read the model.
        progress: called with the name of each step; returns a context manager in which the step runs.

    Raises:
        FuseconvError: reading or capturing the model failed.
    """

    def __init__(self, model: str | Path, options: Options | None = None, progress: Progress = silent) -> None:
        self.trust: Collection[str] = (options or Options()).trust
        self.program: Program = read_program(model, options, progress)[1]

    def run(self, path: Path, known: Sequence[Rule] | None = None) -> Tested:
        """Matches the rules of a file, and returns where they apply. Rules that the file includes are matched too.

        Args:
            path: the path of the rule file, or of a folder of rule files.
            known: the rules of the file and the rules that it includes. None to read the rules from the file.

        Raises:
            RuleError: the file is invalid.
            RefusedError: the rules register ops, and the code of the ops is not trusted.
            UsageError: the file itself contains no rules.
        """
        known = load_rules(path) if known is None else known
        load_ops(op_files(known), self.trust)
        files = {file.resolve() for file in watched(path)}
        own = {rule.name for rule in known if rule.file in files}
        if not own:
            what = "the file has no rules of its own"
            raise UsageError(what, where=str(path), fix='write rules into its field "rules"')
        found = plan(self.program, known, device=self.program.contract.device, targets=target_names(()))
        told = explanation.explain(found, known)
        return Tested(tuple(rule for rule in told.rules if rule.rule in own))


def watched(path: Path) -> tuple[Path, ...]:
    """Returns the files whose rules are tested: the file itself, or every JSON file directly in the folder."""
    return tuple(sorted(path.glob("*.json"))) if path.is_dir() else (path,)

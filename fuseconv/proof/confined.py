"""Rules of anyone's, checked in processes that can do no harm: without files to write, network, or much memory or time.

A rule's examples are programs, and to check them is to run them. Of the ops they may name `matching.permitted` has the
list; what an op does all the same, to crash for one, ends a child and not the command. Nothing here imports torch.
"""

from __future__ import annotations

import os
import selectors
import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fuseconv.errors import FuseconvError
from fuseconv.proof.check_row import CheckRow
from fuseconv.proof.child import Child
from fuseconv.rulebook.own_rules import load_rules
from fuseconv.rulebook.packs import op_files, require_trust
from fuseconv.rulebook.rule import Rule

WORTH_TWO_PROCESSES = 16
"""Rules: to start a process takes as long as to check some ten of them."""


def check_rules(path: str | Path | None = None, trust: Collection[str] = ()) -> list[CheckRow]:
    """Checks a rule file without a model: its form, its ops, loops, its examples and variants of them, by algebra.

    Args:
        path: the file or folder; by default the rules that come with fuseconv.
        trust: with `code`, ops that the rules bring may be registered.

    Raises:
        RuleError: a rule is not well formed, or its examples take more memory or time than a rule has.
        RefusedError: the rules bring ops, and their code is not trusted.
        UpstreamError: the process that checks rules does not start.
    """
    rules = load_rules(path)
    files = op_files(rules)
    require_trust(files, trust)
    several = len(rules) >= WORTH_TWO_PROCESSES and (os.cpu_count() or 1) > 1
    with children(2 if several else 1, files) as every:
        rows = check_with(every, rules)
    unproved = [rule.name for rule in rules if not rule.examples.hit]
    nothing = "the rule has no `hit` example, so nothing is proved"
    return [*rows, *(CheckRow(name, "hit", "wrong", nothing) for name in unproved)]


@contextmanager
def children(count: int, ops: Sequence[Path] = ()) -> Iterator[list[Child]]:
    """Yields so many children, started all at once, and ends them.

    Args:
        count: how many.
        ops: files of trusted code that register the ops of packs.
    """
    every = [Child(ops) for _ in range(count)]
    try:
        yield every
    finally:
        for child in every:
            child.end()


def check_with(every: Sequence[Child], rules: Sequence[Rule]) -> list[CheckRow]:
    """Checks rules in children, as many at a time as there are; may be called again with the same children.

    Returns:
        The rows, in the order of the rules.

    Raises:
        RuleError: as `check_rules`.
    """
    _run(every[:1], [("loops", rules)])
    return [row for rows in _run(every, [("examples", [rule]) for rule in rules]) for row in rows]


def _run(every: Sequence[Child], jobs: Sequence[tuple[str, Sequence[Rule]]]) -> list[list[CheckRow]]:
    """Has the jobs done, and returns what each gave, in their order; the first error ends it."""
    waiting = deque(enumerate(jobs))
    done: dict[int, list[CheckRow]] = {}
    busy: dict[Child, int] = {}
    idle = list(every)
    try:
        while waiting or busy:
            while waiting and idle:
                number, job = waiting.popleft()
                child = idle.pop()
                busy[child] = number
                child.send(*job)
            for child in _answering(busy):
                if (rows := child.receive()) is not None:
                    done[busy.pop(child)] = rows
                    idle.append(child)
    except FuseconvError:
        for child in busy:  # nobody waits for their answers any more
            child.again()
        raise
    return [done[number] for number in range(len(jobs))]


def _answering(busy: Collection[Child]) -> list[Child]:
    """Waits until a child says something, or has had its time."""
    with selectors.DefaultSelector() as selector:
        for child in busy:
            selector.register(child.descriptor, selectors.EVENT_READ, child)
        left = min(child.deadline for child in busy) - time.monotonic()
        heard = [key.data for key, _ in selector.select(max(0.0, left))]
    return heard or [child for child in busy if child.deadline <= time.monotonic()]

"""Checks untrusted rules in sandboxed processes without network or file writes, and with limited memory and time.

The examples of a rule are programs, and checking a rule runs them. `untrusted.permitted` lists the ops that they may
call. An op that crashes kills only the child process. This module does not import torch.
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
from fuseconv.rulebook.own_rules import load_rules, named
from fuseconv.rulebook.packs import op_files, require_trust
from fuseconv.rulebook.rule import Rule

WORTH_TWO_PROCESSES = 16
"""The number of rules from which a second process is started. Starting a process takes as long as checking about ten
rules."""


def check_rules(
    path: str | Path | None = None, trust: Collection[str] = (), only: Collection[str] = ()
) -> list[CheckRow]:
    """Checks a rule file without a model: the syntax, the ops, rewrite cycles, and the examples with their variants.

    Args:
        path: the file or folder. Default: the rules that come with fuseconv.
        trust: `code` allows the rules to register custom ops.
        only: the names of the rules whose examples are tested. Default: all. The other checks cover all rules.

    Returns:
        One row per check, in the order of the rules. A rule without a `hit` example gives a row with the verdict
        `wrong`, after the other rows.

    Raises:
        RuleError: a rule is malformed, its examples exceed the memory or time limit, or no rule has a name in `only`.
        RefusedError: the rules register ops, and their code is not trusted.
        UpstreamError: the checker process does not start, or exits with an error.
    """
    rules = load_rules(path)
    chosen = tuple(named(name, rules) for name in dict.fromkeys(only)) if only else rules
    files = op_files(rules)
    require_trust(files, trust)
    several = len(chosen) >= WORTH_TWO_PROCESSES and (os.cpu_count() or 1) > 1
    with children(2 if several else 1, files) as every:
        rows = check_with(every, rules, chosen)
    unproved = [rule.name for rule in chosen if not rule.examples.hit]
    nothing = "the rule has no `hit` example that could prove it"
    return [*rows, *(CheckRow(name, "hit", "wrong", nothing) for name in unproved)]


@contextmanager
def children(count: int, ops: Sequence[Path] = ()) -> Iterator[list[Child]]:
    """A context manager that starts child processes, yields them as a list, and kills them at the end of the block.

    Args:
        count: the number of processes.
        ops: the trusted Python files that register ops.
    """
    every = [Child(ops) for _ in range(count)]
    try:
        yield every
    finally:
        for child in every:
            child.end()


def check_with(every: Sequence[Child], rules: Sequence[Rule], chosen: Sequence[Rule] | None = None) -> list[CheckRow]:
    """Checks rules in parallel in running child processes. The children can be reused afterwards.

    Args:
        every: the child processes, from `children`.
        rules: the rules to check for valid ops and rewrite cycles.
        chosen: the rules whose examples are tested. Default: all.

    Returns:
        One row per check, in the order of the rules.

    Raises:
        RuleError: an op is unknown, rules form a rewrite cycle, or an example is malformed or exceeds the memory or
            time limit.
        UpstreamError: a child exits with an error.
    """
    _run(every[:1], [("loops", rules)])
    return [
        row
        for rows in _run(every, [("examples", [rule]) for rule in (rules if chosen is None else chosen)])
        for row in rows
    ]


def _run(every: Sequence[Child], jobs: Sequence[tuple[str, Sequence[Rule]]]) -> list[list[CheckRow]]:
    """Distributes the jobs among the children and returns the rows of each job, in the order of the jobs.

    The first error stops all jobs and is raised.
    """
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
        for child in busy:  # their answers are no longer needed
            child.again()
        raise
    return [done[number] for number in range(len(jobs))]


def _answering(busy: Collection[Child]) -> list[Child]:
    """Waits until at least one child has sent output, died or exceeded its time limit, and returns all such children.

    If any child has sent output or died, children that have only exceeded their time limit are not returned yet.
    """
    with selectors.DefaultSelector() as selector:
        for child in busy:
            selector.register(child.descriptor, selectors.EVENT_READ, child)
        left = min(child.deadline for child in busy) - time.monotonic()
        heard = [key.data for key, _ in selector.select(max(0.0, left))]
    return heard or [child for child in busy if child.deadline <= time.monotonic()]

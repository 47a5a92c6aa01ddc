"""Runs a ledger once on the example inputs and records the operand values of every excerpt.

The ledger is a graph that computes the values of a program and of all rewrites of a plan. An excerpt is one rewrite in
isolation; see ledger.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.fx import Node

from fuseconv.errors import UnsupportedError
from fuseconv.graph.nodes import written
from fuseconv.graph.runner import Runner
from fuseconv.matching.graph import is_call, is_getitem, source_line
from fuseconv.program.captured import Program
from fuseconv.proof.difference import same_draws
from fuseconv.proof.ledger import Excerpt, Ledger


def replay(program: Program, ledger: Ledger, excerpts: Sequence[Excerpt]) -> Iterator[tuple[Excerpt, list[Any]]]:
    """Runs the ledger on the example inputs and yields every excerpt with the values of its operands, in graph order.

    Only ops that an excerpt depends on and ops that may write in place are run. Each value is freed after its last
    use.

    Raises:
        UnsupportedError: the program cannot run on its example inputs.
    """
    interpreter = Runner(ledger.workspace.root, graph=ledger.graph)
    states = _states(program, ledger)
    needed = _needed(ledger, excerpts)
    starts, ends, last = defaultdict(list), defaultdict(list), _last_reads(needed)
    for at, excerpt in enumerate(excerpts):
        starts[excerpt.first if excerpt.writes else excerpt.point].append(at)
        ends[excerpt.point].append(at)
        for operand in excerpt.operands:
            last[operand] = max(last.get(operand, excerpt.point), excerpt.point)
    freed: dict[Node, list[Node]] = defaultdict(list)
    for node, reader in last.items():
        freed[reader].append(node)
    taken: dict[int, dict[Node, Any]] = {}
    for node in ledger.graph.nodes:
        # The run also executes the in-place writes of the matched ops, so the operands are copied before the writes.
        for at in starts.pop(node, ()):
            operands = (operand for operand in excerpts[at].operands if operand in interpreter.env)
            taken[at] = {operand: _copy(interpreter.env[operand]) for operand in operands if excerpts[at].writes}
        for at in ends.pop(node, ()):
            values = taken.pop(at)
            yield excerpts[at], [values.get(one, interpreter.env.get(one)) for one in excerpts[at].operands]
        if node in needed:
            placeholder = ledger.placeholders.get(node)
            interpreter.env[node] = states[placeholder.name] if placeholder else _run(interpreter, node)
        for dead in freed.pop(node, ()):
            interpreter.env.pop(dead, None)
        if not ends:
            return


def _needed(ledger: Ledger, excerpts: Sequence[Excerpt]) -> set[Node]:
    """Returns the nodes to run: operands of excerpts, ops that may write in place, and all dependencies of both."""
    queue = [operand for excerpt in excerpts for operand in excerpt.operands]
    queue += [node for node in ledger.own if node.op == "call_function" and _may_write(node)]
    needed: set[Node] = set()
    while queue:
        node = queue.pop()
        if node not in needed:
            needed.add(node)
            queue.extend(node.all_input_nodes)
    return needed


def _may_write(node: Node) -> bool:
    return any(written(node)) if is_call(node) else not is_getitem(node)


def _last_reads(needed: set[Node]) -> dict[Node, Node]:
    last: dict[Node, Node] = {}
    for node in needed:
        for used in node.all_input_nodes:
            last[used] = max(last.get(used, node), node)
    return last


def _states(program: Program, ledger: Ledger) -> dict[str, Any]:
    """Returns the values of the program's placeholders by name. What the program may mutate is a copy."""
    exported = program.exported
    args, kwargs = exported.example_inputs if program.trainable else (program.examples, {})
    values = exported._graph_module_flat_inputs(tuple(args), kwargs)
    names = [spec.arg.name for spec in exported.graph_signature.input_specs]
    aliases = ledger.workspace.aliases
    written = {node.name for node in ledger.placeholders.values() if aliases.is_written(node)}
    return {
        name: value if isinstance(value, torch.nn.Parameter) and name not in written else _copy(value)
        for name, value in zip(names, values, strict=True)
    }


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _run(interpreter: Runner, node: Node) -> Any:
    try:
        with torch.no_grad(), same_draws():
            return interpreter.run_node(node)
    except (RuntimeError, IndexError) as problem:
        reason = str(problem).strip().splitlines()[0]
        raise UnsupportedError(
            f"the program cannot run on its example inputs: {node.name}: {reason}",
            where=source_line(node),
            fix="give inputs that the model accepts with --inputs or --input-range",
        ) from problem

"""Makes a captured program a pure function of its inputs: no mutation of inputs or state, no random numbers.

torch.export keeps in-place ops in the graph. An in-place write to a temporary is correct as it is. An in-place write to
an input is redirected to a copy: later uses read the copy, the outputs are the same, and the caller's tensor is
unchanged. An in-place write to a buffer or parameter makes each call depend on the calls before it. No target supports
such a program, so it is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from fuseconv.errors import UnsupportedError
from fuseconv.graph.aliases import Aliases, viewed
from fuseconv.graph.nodes import draws, trains, written
from fuseconv.program.original import STATE_AS_INPUT, STATE_FIX, Kind

_FRAME = re.compile(r'File "(.+)", line (\d+), in (.+)\n\s*(.*)')


def purify(exported: ExportedProgram, kind: Kind) -> None:
    """Rewrites the program in place so that it is a pure function of its inputs: each mutated input is copied first.

    Args:
        exported: the captured program.
        kind: the kind of the original. A module is captured in eval mode, but an archive may contain a model that was
            exported in training mode.

    Raises:
        UnsupportedError: the program mutates a buffer or parameter, or generates random numbers. The error names the op
            and the source line.
    """
    graph = exported.graph
    _drop_unread(exported)
    inputs = exported.graph_signature
    states = {spec.arg.name: spec.target for spec in inputs.input_specs if spec.kind != InputKind.USER_INPUT}
    trained = kind == "archive" and any(trains(node) for node in graph.nodes)
    eval_first = "export the model in eval mode, or " if trained else ""
    for node in list(graph.nodes):
        if draws(node):
            raise UnsupportedError(
                f"{node.target} generates random numbers, so that no two calls return the same result",
                where=source_line(node),
                fix=f"{eval_first}pass the random numbers in as an input",
            )
        for operand in written(node):
            for owner in _owners(operand):
                if owner.name in states:
                    raise UnsupportedError(
                        f"{node.target} mutates {states[owner.name]}, so that each call depends on earlier calls",
                        where=source_line(node),
                        fix=f"{eval_first}{STATE_AS_INPUT}" if trained else STATE_FIX,
                    )
    for owner in {owner for node in graph.nodes for operand in written(node) for owner in _owners(operand)}:
        _copy_first(graph, owner)
    exported.graph_module.recompile()


def _drop_unread(exported: ExportedProgram) -> None:
    """Removes in-place ops on tensors that nothing reads, such as the first weights of a layer made in `forward`."""
    unread: set[torch.fx.Node] = set()
    for writer, shared in Aliases(exported.graph, exported.graph_module).writers.items():
        family = shared | {writer}
        if all(one.op == "call_function" and family.issuperset(one.users) for one in family):
            unread |= family
    for node in reversed(list(exported.graph.nodes)):
        if node in unread:
            exported.graph.erase_node(node)


def source_line(node: torch.fx.Node) -> str:
    """Returns the source line of a node as `file:line in function: code`, or the name of the node if it is unknown."""
    frames = _FRAME.findall(str(node.meta.get("stack_trace") or ""))
    return "{}:{} in {}: {}".format(*frames[-1]) if frames else node.name


def _owners(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """Yields the placeholders that a node's value may alias."""
    if node.op == "placeholder":
        yield node
    for part in viewed(node):
        yield from _owners(part)


def _copy_first(graph: torch.fx.Graph, owner: torch.fx.Node) -> None:
    """Inserts a clone of a placeholder at the start of the graph, and makes all users of it use the clone."""
    first = next(node for node in graph.nodes if node.op != "placeholder")
    with graph.inserting_before(first):
        copy = graph.call_function(torch.ops.aten.clone.default, (owner,))
    copy.meta = {"val": owner.meta["val"]}
    owner.replace_all_uses_with(copy, delete_user_cb=lambda user: user is not copy)

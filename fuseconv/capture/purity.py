"""A converted model is a function of its inputs: what it writes to, and what it draws at random.

torch.export keeps in-place ops in the graph. One that writes to a temporary is right as it stands. One that writes to
an input is right once it writes to a copy: every later use reads the copy, the outputs are the same, and the caller's
tensor is left alone. One that writes to a buffer or parameter makes each call depend on the calls before it, which no
target can keep; that is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from fuseconv.errors import UnsupportedError
from fuseconv.graph.aliases import viewed
from fuseconv.graph.nodes import arguments, nodes_in

_FRAME = re.compile(r'File "(.+)", line (\d+), in (.+)\n\s*(.*)')


def purify(exported: ExportedProgram) -> None:
    """Makes the program write to no input, in place.

    Raises:
        UnsupportedError: it writes to a buffer or parameter, or draws random numbers; the error names the op and line.
    """
    graph = exported.graph
    inputs = exported.graph_signature
    states = {spec.arg.name: spec.target for spec in inputs.input_specs if spec.kind != InputKind.USER_INPUT}
    for node in list(graph.nodes):
        _check_random(node)
        for written in _written(node):
            for owner in _owners(written):
                if owner.name in states:
                    raise UnsupportedError(
                        f"{node.target} mutates {states[owner.name]}, so each call depends on the calls before it",
                        where=source_line(node),
                        fix="convert in eval mode, or pass the state in as an input and return it as an output",
                    )
    for owner in {owner for node in graph.nodes for written in _written(node) for owner in _owners(written)}:
        _copy_first(graph, owner)
    exported.graph_module.recompile()


def source_line(node: torch.fx.Node) -> str:
    """Returns the line of the model that made a node: `file:line in function: code`; else the node's name."""
    frames = _FRAME.findall(str(node.meta.get("stack_trace") or ""))
    return "{}:{} in {}: {}".format(*frames[-1]) if frames else node.name


def _written(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """Yields the arguments that a node writes to."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return
    schema = node.target._schema
    for argument in schema.arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from nodes_in(arguments(node)[argument.name])
    if schema.name == "aten::batch_norm" and (given := arguments(node))["training"]:
        yield from nodes_in((given["running_mean"], given["running_var"]))


def _owners(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """Yields the placeholders whose memory a node's value may share."""
    if node.op == "placeholder":
        yield node
    for part in viewed(node):
        yield from _owners(part)


def _copy_first(graph: torch.fx.Graph, owner: torch.fx.Node) -> None:
    first = next(node for node in graph.nodes if node.op != "placeholder")
    with graph.inserting_before(first):
        copy = graph.call_function(torch.ops.aten.clone.default, (owner,))
    copy.meta = {"val": owner.meta["val"]}
    owner.replace_all_uses_with(copy, delete_user_cb=lambda user: user is not copy)


def _check_random(node: torch.fx.Node) -> None:
    """Refuses an op that draws random numbers, unless its arguments say that it draws none."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded not in target.tags:
        return
    given = arguments(node)
    if given.get("train") is False or any(given.get(name) == 0 for name in ("p", "dropout_p")):
        return
    raise UnsupportedError(
        f"{target} generates random numbers, so no two runs give the same result",
        where=source_line(node),
        fix="convert in eval mode, or pass the random numbers in as an input",
    )

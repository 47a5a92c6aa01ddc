"""Inlines the subgraphs of context managers that have no effect on a converted model.

torch.export keeps `with torch.no_grad()` and `with torch.autocast(..., enabled=False)` as higher-order ops with a
subgraph. A converted model never computes gradients and runs without autocast. Rules do not match inside subgraphs,
in-place writes there are not analyzed, and TorchScript cannot express autocast.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

_GRAD = torch.ops.higher_order.wrap_with_set_grad_enabled
_AUTOCAST = torch.ops.higher_order.wrap_with_autocast


def inline_regions(exported: ExportedProgram, device: str) -> None:
    """Inlines the subgraphs of a program in place, except those that enable autocast for `device`."""
    for old, new in _inline(exported.graph_module, device).items():
        exported.graph_signature.replace_all_uses(old, new)
    exported.graph_module.recompile()


def _inline(module: GraphModule, device: str) -> dict[str, str]:
    """Inlines the subgraphs of a module in place, and maps the old name of each of their results to the new name."""
    renamed: dict[str, str] = {}
    for node in list(module.graph.nodes):
        body = _body(node, device)
        if body is None:
            continue
        inner: Any = getattr(module, str(body.target))
        _inline(inner, device)
        operands = node.args[node.args.index(body) + 1 :]
        results = _copied(module, inner, node, operands)
        for user in list(node.users):  # each user is a getitem of one result
            result = results[user.args[1]]
            user.replace_all_uses_with(result)
            renamed[user.name] = result.name
            module.graph.erase_node(user)
        module.graph.erase_node(node)
        if not body.users:
            module.graph.erase_node(body)
            delattr(module, str(body.target))
    return renamed


def _body(node: Node, device: str) -> Node | None:
    """Returns the get_attr node of a region's subgraph.

    A region is a `no_grad` or `autocast` block. Returns None if the node is not a region, or if the region enables
    autocast for `device`.
    """
    arguments: Any = node.args
    if node.target is _GRAD:
        return arguments[1]  # type: ignore[no-any-return]
    if node.target is _AUTOCAST and (arguments[0] != device or not arguments[2]):
        return arguments[4]  # type: ignore[no-any-return]
    return None


def _copied(module: GraphModule, inner: GraphModule, before: Node, operands: Any) -> Any:
    """Copies the nodes of a subgraph to the graph that calls it, and returns the copies of the subgraph's results.

    Args:
        module: the module whose graph calls the subgraph.
        inner: the module of the subgraph.
        before: the node that calls the subgraph. The copies are inserted before it.
        operands: the values of the subgraph's placeholders.
    """
    values: dict[Node, Any] = dict(zip(inner.graph.find_nodes(op="placeholder"), operands, strict=True))
    with module.graph.inserting_before(before):
        for node in inner.graph.nodes:
            if node.op == "get_attr":
                name = f"{before.name}_{node.target}"
                setattr(module, name, getattr(inner, node.target))
                values[node] = module.graph.get_attr(name)
            elif node.op == "output":
                return torch.fx.map_arg(node.args[0], values.__getitem__)
            elif node.op != "placeholder":
                values[node] = module.graph.node_copy(node, values.__getitem__)
    raise AssertionError("a graph ends with its output")

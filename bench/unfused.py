"""Counts, in a graph of ATen ops, the places where ops of one family stand side by side: what is left to fuse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from torch.fx import Graph, Node

ACTIVATIONS = frozenset(
    {"relu", "gelu", "silu", "sigmoid", "tanh", "hardswish", "hardsigmoid", "leaky_relu", "relu6", "elu", "mish"}
    | {"clamp", "clamp_min", "hardtanh", "relu_", "silu_", "hardswish_", "hardsigmoid_", "gelu_", "leaky_relu_"}
)
_CONVOLUTIONS = frozenset({"conv1d", "conv2d", "conv3d", "convolution", "_convolution"})
_PRODUCTS = frozenset({"matmul", "bmm", "einsum", "baddbmm", "mm"})
_PASSING = frozenset(
    {"view", "reshape", "transpose", "permute", "contiguous", "clone", "to", "expand", "unsqueeze", "squeeze", "t"}
    | {"flatten", "unflatten", "dropout", "alias", "detach", "slice", "_to_copy", "_unsafe_view", "movedim"}
)
_TERMS = _PASSING | {"mul", "div", "add", "sub", "masked_fill", "where", "tanh", "masked_fill_", "add_", "mul_", "div_"}


def families(graph: Graph) -> Counter[str]:
    """Returns how often each family stands unfused in a graph."""
    found: Counter[str] = Counter()
    for node in graph.nodes:
        for family, is_there in FAMILIES.items():
            found[family] += is_there(node)
    return +found


def name_of(node: Node) -> str:
    """Returns the name of the ATen op that a node calls, without its overload; empty for anything else."""
    schema = getattr(node.target, "_schema", None)
    space, _, name = schema.name.partition("::") if schema is not None else ("", "", "")
    return name if space == "aten" else ""


def _only_reader(node: Node, past: frozenset[str] = frozenset()) -> Node | None:
    """The one node that reads a value, past those that move it, and others."""
    while len(node.users) == 1:
        node = next(iter(node.users))
        if name_of(node) not in _PASSING | past:
            return node
    return None


def _sources(node: Node, through: frozenset[str], depth: int = 12) -> Iterator[Node]:
    """The nodes that a value is made of, seen through some ops."""
    for operand in node.all_input_nodes:
        yield operand
        if depth and name_of(operand) in through:
            yield from _sources(operand, through, depth - 1)


def _then_activation(names: frozenset[str], past: frozenset[str] = frozenset()) -> Callable[[Node], bool]:
    def is_there(node: Node) -> bool:
        reader = _only_reader(node, past) if name_of(node) in names else None
        return reader is not None and name_of(reader) in ACTIVATIONS

    return is_there


def _gated(node: Node) -> bool:
    if name_of(node) != "mul":
        return False
    acted = [one for one in node.all_input_nodes if name_of(one) in ACTIVATIONS]
    linear = [
        one for one in _sources(node, _PASSING | ACTIVATIONS | {"chunk", "split", ""}) if name_of(one) == "linear"
    ]
    return len(acted) == 1 and len(node.all_input_nodes) == 2 and bool(linear)


def _norm(node: Node) -> bool:
    """A root, or its inverse, of the mean or sum of squares; or a vector's norm that it is divided by."""
    through = _PASSING | {"add", "mean", "sum", "clamp", "clamp_min", "div", "mul"}
    if name_of(node) in ("rsqrt", "sqrt"):
        reached = [name_of(one) for one in _sources(node, through)]
        squares = {"pow", "square", "var", "mul"}
        return bool(squares & set(reached)) and bool({"mean", "sum", "var"} & set(reached))
    if name_of(node) in ("div", "mul"):
        reached = [
            name_of(one) for one in _sources(node, frozenset({"clamp_min", "expand", "expand_as", "add", "clamp"}))
        ]
        return name_of(node) == "div" and "linalg_vector_norm" in reached
    return False


def _attention(node: Node) -> bool:
    if name_of(node) not in ("softmax", "_softmax"):
        return False
    before = any(name_of(one) in _PRODUCTS for one in _sources(node, _TERMS | _PRODUCTS, 8))
    reader = node
    for _ in range(4):
        if name_of(reader) in _PRODUCTS:
            return before
        following = next((one for one in reader.users if name_of(one) in _PRODUCTS | _TERMS), None)
        if following is None:
            return False
        reader = following
    return before and name_of(reader) in _PRODUCTS


def _after(name: str, before: frozenset[str]) -> Callable[[Node], bool]:
    def is_there(node: Node) -> bool:
        if name_of(node) != name or not node.args or not isinstance(node.args[0], Node):
            return False
        operand = node.args[0]
        return name_of(operand) in before and len(operand.all_input_nodes) + (name == "batch_norm") > 1

    return is_there


FAMILIES: Mapping[str, Callable[[Node], bool]] = {
    "linear then activation": _then_activation(frozenset({"linear"})),
    "gated": _gated,
    "norm spelled out": _norm,
    "attention spelled out": _attention,
    "add then layer norm": _after("layer_norm", frozenset({"add", "add_"})),
    "group norm then activation": _then_activation(frozenset({"group_norm"})),
    "convolution then activation": _then_activation(_CONVOLUTIONS, frozenset({"batch_norm"})),
    "convolution then batch norm": _after("batch_norm", _CONVOLUTIONS),
}
"""Family to whether a node is where one stands."""

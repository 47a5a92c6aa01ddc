"""Defines the graph that a report draws: modules, and nodes with their types, source lines and rewrites."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Module:
    """A module of the model.

    Attributes:
        path: the path of the module, such as `encoder.layer.0`. Empty for the model itself.
        kind: the class of the module, such as `BertLayer`. Empty if unknown.
        parent: the position in `Graph.modules` of the module that calls it. -1 for the model itself.
    """

    path: str
    kind: str
    parent: int


@dataclass(frozen=True)
class Line:
    """A source line of the model.

    Attributes:
        file: the position of the file in `Graph.files`.
        line: the line number.
        function: the function that contains the line.
        code: the text of the line, as torch.export recorded it. May be empty.
    """

    file: int
    line: int
    function: str
    code: str


@dataclass(frozen=True)
class Made:
    """A rewrite that created a node: the rule, and the nodes that it replaced."""

    rule: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Node:
    """An input, an op or an output.

    Attributes:
        name: the name of the node in the graph.
        kind: whether the node is an input, an op or an output.
        op: the op, such as `aten.gelu.default`. Empty for an input or output.
        module: the position in `Graph.modules` of the innermost module that contains the node.
        inputs: the positions in `Graph.nodes` of the nodes whose values this node uses. Weights are left out.
        arguments: the arguments, each as the text `name = value`.
        types: the types of the results, such as `f32[batch, 384]`.
        line: the innermost source line of the model that produced the node. None if unknown.
        made: the rewrites that created the node, in order. Empty if the node was captured.
    """

    name: str
    kind: Literal["input", "op", "output"]
    op: str
    module: int
    inputs: tuple[int, ...]
    arguments: tuple[str, ...]
    types: tuple[str, ...]
    line: Line | None
    made: tuple[Made, ...] = ()


@dataclass(frozen=True)
class Graph:
    """The graph of a program, before or after fusion.

    Attributes:
        modules: the modules, each after the module that calls it. The first module is the model itself.
        files: the paths of the model's source files.
        nodes: the inputs, then the ops in execution order, then the outputs.
    """

    modules: tuple[Module, ...]
    files: tuple[str, ...]
    nodes: tuple[Node, ...]

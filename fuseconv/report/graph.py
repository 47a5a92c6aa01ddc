"""The graph that a report draws: its modules, its nodes with types and source lines, and what each was made from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Module:
    """A module of the model.

    Attributes:
        path: its path, such as `encoder.layer.0`. Empty for the model itself.
        kind: its class, such as `BertLayer`. Empty if unknown.
        parent: the position in `Graph.modules` of the module that calls it. -1 for the model itself.
    """

    path: str
    kind: str
    parent: int


@dataclass(frozen=True)
class Line:
    """A source line of the model.

    Attributes:
        file: the position in `Graph.files`.
        line: the number of the line.
        function: the function that it is in.
        code: its text, as torch.export recorded it. May be empty.
    """

    file: int
    line: int
    function: str
    code: str


@dataclass(frozen=True)
class Made:
    """A rewrite that made a node: the rule, and the nodes that the node replaced."""

    rule: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Node:
    """An input, an op or an output.

    Attributes:
        name: its name in the graph.
        kind: what it is.
        op: the op, such as `aten.gelu.default`. Empty for an input or output.
        module: the position in `Graph.modules` of the innermost module that computes it.
        inputs: the positions in `Graph.nodes` of the nodes whose values it uses, without weights.
        arguments: its arguments as text, `name = value`.
        types: the types of its results, such as `f32[batch, 384]`.
        line: the innermost source line of the model. None if unknown.
        made: the rewrites that made it, in order. Empty if it was captured.
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
    """A graph.

    Attributes:
        modules: the modules, each after the one that calls it. The first is the model itself.
        files: the source files.
        nodes: the inputs, then the ops in execution order, then the outputs.
    """

    modules: tuple[Module, ...]
    files: tuple[str, ...]
    nodes: tuple[Node, ...]

"""Reads the graph of a torch.export archive as JSON, without running anything in the archive and without torch.

torch/_export/serde/schema.py in torch 2.10 to 2.13 defines the format.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from fuseconv.contract.dims import Dim
from fuseconv.contract.spec import Contract
from fuseconv.errors import RefusedError
from fuseconv.report.expressions import readable, symbol_in
from fuseconv.report.graph import Graph, Line, Made, Module, Node
from fuseconv.untrusted.files import open_plain

LIMIT = 256 << 20
"""The maximum size of a graph's JSON in bytes."""

_FIRST = ("u8", "i8", "i16", "i32", "i64", "f16", "f32", "f64", "c32", "c64", "c128", "bool", "bf16")
_DTYPES = {**dict(enumerate(_FIRST, 1)), 28: "u16", 29: "f8e4m3fn", 30: "f8e5m2", 34: "u32", 35: "u64"}
"""Maps the dtype numbers in an archive to short dtype names."""

_FRAME = re.compile(r'File "([^"\n]+)", line (\d+), in (\S+)(?:\n\s*(?!File ")([^\n]*))?')
_OF_TORCH = re.compile(r"(^|(site|dist)-packages/)torch/")
_NO_MODULE = "_empty_nn_module_stack_from_metadata_hook"
"""The module path that torch.export records for ops outside any module."""

_VALUES = ("as_tensor", "as_tensors", "as_optional_tensors", "as_nested_tensors")


@dataclass(frozen=True)
class Named:
    """A graph with the names of its values, by which the steps of a plan refer to them.

    Attributes:
        graph: the graph.
        gives: for each node, the names of the values that it computes.
        uses: for each node, the names of the values that it uses, without weights.
        types: the type of each value, such as `f32[batch, 384]`, by its name.
        weights: the name and type of each weight, such as `layer.weight: f32[4, 4]`, by its name in the graph.
    """

    graph: Graph
    gives: tuple[tuple[str, ...], ...]
    uses: tuple[tuple[str, ...], ...]
    types: Mapping[str, str]
    weights: Mapping[str, str]


def read_graph(path: Path, contract: Contract) -> Graph:
    """Reads the graph in a torch.export archive. Arguments and errors are those of `read_named`."""
    return read_named(path, contract).graph


def read_named(path: Path, contract: Contract) -> Named:
    """Reads the graph in a torch.export archive, with the names of its values.

    Args:
        path: the path of the archive, in a bundle whose checksums were verified.
        contract: the contract of the program, whose dims give the symbolic sizes their names.

    Raises:
        RefusedError: the archive is damaged, or its graph is not in the format of torch.export.
    """
    try:
        with open_plain(path, links=False) as file, zipfile.ZipFile(file) as archive:
            (name,) = [name for name in archive.namelist() if name.endswith("/models/model.json")]
            with archive.open(name) as member:
                text = member.read(LIMIT + 1)
        if len(text) > LIMIT:
            raise ValueError(f"it is larger than {LIMIT} bytes")
        return _Reading(from_json(text, allow_inf_nan=False)["graph_module"], contract).named()
    except (OSError, zipfile.BadZipFile, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        what = f"the graph cannot be read: {type(error).__name__}: {error}"
        raise RefusedError(what, where=str(path), fix="convert the model again, or copy the bundle again") from error


@dataclass
class _Reading:
    """Reads one serialized graph, and holds the modules, files and nodes found so far.

    Attributes:
        program: the serialized graph and its signature, as parsed JSON.
        contract: the contract of the program.
        modules: the modules found so far. The first is the model itself.
        files: the position of each source file found so far, by path.
        nodes: the nodes read so far.
        gives: for each node in `nodes`, the names of the values that it computes.
        uses: for each node in `nodes`, the names of the values that it uses.
    """

    program: Mapping[str, Any]
    contract: Contract
    modules: list[Module] = field(default_factory=lambda: [Module("", "", -1)])
    files: dict[str, int] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    gives: list[tuple[str, ...]] = field(default_factory=list)
    uses: list[tuple[str, ...]] = field(default_factory=list)
    _places: dict[str, int] = field(default_factory=dict)
    _of_path: dict[str, int] = field(default_factory=lambda: {"": 0})

    def named(self) -> Named:
        """Returns the graph: its inputs, ops and outputs as nodes, with the modules and files that they refer to."""
        graph = self.program["graph"]
        for _, name in zip(self.contract.inputs, self._inputs(), strict=True):
            self._add(Node(name, "input", "", 0, (), (), (self._type(name),), None), [name], [])
        for node in graph["nodes"]:
            used = [name for one in node["inputs"] for name in _names(one["arg"])]
            self._add(self._op(node), list(_names(node["outputs"])), used)
        for label, output in zip(self.contract.outputs, graph["outputs"], strict=True):
            (name,) = _names(output)
            given = (self._places[name],) if name in self._places else ()
            self._add(Node(label, "output", "", 0, given, (), (self._type(name),), None), [], [name])
        found = Graph(tuple(self.modules), tuple(self.files), tuple(self.nodes))
        types = {name: self._type(name) for names in self.gives for name in names}
        weights = {name: self._operand(name) for name in self._weights}
        return Named(found, tuple(self.gives), tuple(self.uses), types, weights)

    def _add(self, node: Node, values: Sequence[str], used: Sequence[str]) -> None:
        """Appends a node, and records the names of the values that the node computes and uses."""
        self.uses.append(tuple(name for name in dict.fromkeys(used) if name in self._places))
        self.gives.append(tuple(values))
        self._places.update(dict.fromkeys(values, len(self.nodes)))
        self.nodes.append(node)

    def _op(self, node: Mapping[str, Any]) -> Node:
        """Converts a serialized op to a node. Adds the op's modules and source file."""
        metadata, arguments = node["metadata"], node["inputs"]
        used = dict.fromkeys(name for one in arguments for name in _names(one["arg"]))
        results = [name for name in _names(node["outputs"]) if name in self._values and "_unused_" not in name]
        return Node(
            name=node["name"] or next(iter(results), ""),
            kind="op",
            op=node["target"].removeprefix("torch.ops.").removeprefix("_operator."),
            module=self._module(metadata.get("nn_module_stack", "")),
            inputs=tuple(self._places[name] for name in used if name in self._places),
            arguments=tuple(f"{one['name']} = {self._argument(one['arg'])}" for one in arguments),
            types=tuple(map(self._type, results)),
            line=self._line(metadata.get("stack_trace", "")),
            made=tuple(Made(one["rule"], tuple(one["nodes"])) for one in _rewrites(metadata)),
        )

    def _inputs(self) -> Iterator[str]:
        """Yields the names of the user's inputs, without weights."""
        for spec in self.program["signature"]["input_specs"]:
            if "user_input" in spec:
                yield from _names(spec["user_input"]["arg"])

    @cached_property
    def _values(self) -> Mapping[str, Any]:
        """The serialized dtype and sizes of each tensor, by the tensor's name."""
        found: Mapping[str, Any] = self.program["graph"]["tensor_values"]
        return found

    @cached_property
    def _weights(self) -> Mapping[str, str]:
        """The name of each weight in the model, such as `layer.weight`, by its name in the graph."""
        weights: dict[str, str] = {}
        for spec in self.program["signature"]["input_specs"]:
            ((kind, one),) = spec.items()
            if kind != "user_input" and isinstance(one["arg"], dict):
                named = (str(value) for key, value in one.items() if key.endswith("_name"))
                weights[one["arg"]["name"]] = next(named, one["arg"]["name"])
        return weights

    @cached_property
    def _dims(self) -> Mapping[str, str]:
        """The text to print for each symbolic size: the name of its dim, or `NAME/STEP` for a dim with a step."""
        dims: dict[str, str] = {}
        for spec, name in zip(self.contract.inputs, self._inputs(), strict=True):
            for size, found in zip(spec.shape, self._values[name]["sizes"], strict=True):
                if isinstance(size, Dim) and (symbol := symbol_in(_expression(found))):
                    dims[symbol] = size.name if size.step == 1 else f"{size.name}/{size.step}"
        return dims

    def _type(self, name: str) -> str:
        """Returns the type of a tensor, such as `f32[batch, 384]`, or an empty string if no tensor has this name."""
        value = self._values.get(name)
        if value is None:
            return ""
        sizes = ", ".join(self._size(size) for size in value["sizes"])
        return f"{_DTYPES.get(value['dtype'], '?')}[{sizes}]"

    def _size(self, size: Mapping[str, Any]) -> str:
        return str(size["as_int"]) if "as_int" in size else readable(_expression(size), self._dims)

    def _argument(self, argument: Mapping[str, Any]) -> str:
        """Formats a serialized argument of an op as text, such as `x`, `1.0` or `[1, 2]`."""
        ((kind, value),) = argument.items()
        if kind == "as_none":
            return "None"
        if kind in _VALUES:
            names = [self._operand(name) for name in _names(argument)]
            return names[0] if kind == "as_tensor" else f"[{', '.join(names)}]"
        if kind == "as_scalar_type":
            return _DTYPES.get(value, "?")
        if isinstance(value, dict) and (inner := [one for one in value.values() if one is not None]):
            return str(inner[0])
        return str(value) if kind == "as_string" else json.dumps(value)

    def _operand(self, name: str) -> str:
        """Formats an operand as its name in the graph. Formats a weight as `NAME: TYPE`, with its name in the model."""
        return f"{self._weights[name]}: {self._type(name)}" if name in self._weights else name

    def _module(self, stack: str) -> int:
        """Returns the position in `modules` of the innermost module of a stack, and adds the modules that are new.

        Args:
            stack: the module stack of a node, outermost module first, as `key,path,class;key,path,class`.
        """
        place = 0
        for entry in filter(None, stack.split(";")):
            _, path, kind = (*entry.split(",", 2), "", "")[:3]
            path, kind = path.partition("@")[0], kind.rpartition(".")[2]
            if path == _NO_MODULE:
                continue
            if path not in self._of_path:
                self._of_path[path] = len(self.modules)
                self.modules.append(Module(path, kind, place))
            place = self._of_path[path]
            if not self.modules[place].kind:
                self.modules[place] = Module(path, kind, self.modules[place].parent)
        return place

    def _line(self, trace: str) -> Line | None:
        """Returns the innermost line of a stack trace outside torch, or of the whole trace. None if it is empty."""
        frames = _FRAME.findall(trace)
        own = [frame for frame in frames if not _OF_TORCH.search(frame[0])] or frames
        if not own:
            return None
        file, line, function, code = own[-1]
        return Line(self.files.setdefault(file, len(self.files)), int(line), function, code.strip())


def _names(value: Any) -> Iterator[str]:
    """Yields the names of the values that a serialized argument or output references, except inside subgraphs."""
    if isinstance(value, list):
        for one in value:
            yield from _names(one)
    elif isinstance(value, dict):
        for key, one in value.items():
            if key in ("name", "as_name") and isinstance(one, str):
                yield one
            elif key != "as_graph":
                yield from _names(one)


def _expression(size: Mapping[str, Any]) -> str:
    """Returns the expression of a symbolic size as SymPy constructor calls, or an empty string for a static size."""
    return str(size["as_expr"]["expr_str"]) if "as_expr" in size else ""


def _rewrites(metadata: Mapping[str, str]) -> list[dict[str, Any]]:
    """Returns the rewrites that fuseconv recorded in a node's metadata, in order. Empty if there are none."""
    found: list[dict[str, Any]] = from_json(metadata.get("custom") or "{}").get("fuseconv", [])
    return found

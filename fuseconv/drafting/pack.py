"""Generates a pack with a new op for a subgraph: a PyTorch reference, an unoptimized kernel, the rule, and tests."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.fx import Node

from fuseconv.contract.dtypes import DTYPES, SHORT_DTYPES
from fuseconv.drafting import templates
from fuseconv.drafting.cpp import body_of, signature_of
from fuseconv.drafting.examples import Example, dtype_in
from fuseconv.drafting.lines import in_python, lines_of
from fuseconv.drafting.subgraph import Subgraph
from fuseconv.drafting.values import Values
from fuseconv.errors import UsageError
from fuseconv.graph.nodes import op_name
from fuseconv.rulebook.layout import laid_out
from fuseconv.untrusted.permitted import NAMESPACES, is_torchs

DEFAULT_NAMESPACE = "drafted"
WIDTH = 110
"""The maximum width of generated code in columns. Only lines that cannot be broken exceed it."""

_COMMENT: Any = {"initial_indent": "// ", "subsequent_indent": "// "}
_TEXT = re.compile(r'"[^"]*"')
_NAME = re.compile(r"(?:(?P<namespace>[a-z][a-z0-9_]*)\.)?(?P<name>[a-z][a-z0-9_]*)")


@dataclass(frozen=True)
class OpName:
    """The name of the op that a pack defines."""

    namespace: str
    name: str

    @property
    def target(self) -> str:
        """The name by which a rule calls the op: namespace, name and overload."""
        return f"{self.namespace}.{self.name}.default"


def op_named(text: str) -> OpName:
    """Parses the name of an op, `NAME` or `NAMESPACE.NAME`. The default namespace is `DEFAULT_NAMESPACE`.

    Raises:
        UsageError: the text is not a valid name, or the namespace belongs to PyTorch or fuseconv.
    """
    found = _NAME.fullmatch(text)
    if found is None:
        fix = "write NAME or NAMESPACE.NAME in lower case, for example my_ops.gate"
        raise UsageError(f"{text!r} cannot name an op", where=f"--op {text}", fix=fix)
    namespace = found["namespace"] or DEFAULT_NAMESPACE
    if namespace in NAMESPACES or is_torchs(namespace):
        fix = "choose another namespace, or give none"
        raise UsageError(f"the namespace {namespace} is taken", where=f"--op {text}", fix=fix)
    return OpName(namespace, found["name"])


def replaced_by(op: OpName, values: Values) -> str:
    """Returns the `replace` line of the rule, which calls the op on the operands of the subgraph."""
    targets = ", ".join(values.results)
    return f"{targets} = {op.target}({', '.join(values.operands)})"


def pack_files(
    op: OpName, rule: dict[str, Any], subgraph: Subgraph, values: Values, example: Example
) -> Callable[[str], dict[str, str]]:
    """Generates the content of a pack's files.

    Args:
        op: the name of the op that the pack defines.
        rule: the rule that substitutes the op for the subgraph, as an entry of a rule file.
        subgraph: the subgraph that the op replaces.
        values: the names of the values of the subgraph.
        example: the subgraph as a separate program.

    Returns:
        A function that takes the path of the rule file to include, and returns the content of each file, by its path in
        the folder of the pack.

    Raises:
        UnsupportedError: the kernel cannot call an op of the subgraph through the stable ABI.
    """
    several = len(values.results) > 1
    names = {
        "name": op.name,
        "namespace": op.namespace,
        "rule": rule["name"],
        "results": ", ".join(values.results),
    }
    python = {
        "parameters": ", ".join(
            [*(f"{one}: Tensor" for one in values.tensors), *(f"{one}: int" for one in values.sizes)]
        ),
        "returns": f"tuple[{', '.join(['Tensor'] * len(values.results))}]" if several else "Tensor",
        "namespaces": "\n".join(f"{one} = torch.ops.{one}" for one in _namespaces(subgraph)),
        "body": textwrap.indent("\n".join(lines_of(subgraph, values, in_python(values))), "    "),
    }
    cpp = {
        "parameters": signature_of(values),
        "returns": f"std::tuple<{', '.join(['Tensor'] * len(values.results))}>" if several else "Tensor",
        "results": f"{{{names['results']}}}" if several else names["results"],
        "first": next(iter(values.tensors)),
        "head": textwrap.fill(f"{op.name}: {_listed(subgraph)}, on PyTorch's stable ABI.", WIDTH, **_COMMENT),
        "schema": _schema(op, values),
        "body": textwrap.indent("\n".join(body_of(subgraph, values)), "  "),
    }
    files = {
        "README.md": templates.README.format(**names),
        "ops.py": templates.OPS.format(**names, **python),
        f"{op.name}.cpp": templates.KERNEL.format(**{**names, **cpp}),
        "aten.h": templates.ATEN,
        "build.sh": templates.BUILD.format(**names),
        f"tests/test_{op.name}.py": templates.TEST.format(**names, **_test(values, example)),
    }
    wrapped = {path: _wrapped(text) if path.endswith((".py", ".cpp")) else text for path, text in files.items()}
    return lambda include: {
        "rules.json": laid_out({"include": [include], "ops": ["ops.py"], "rules": [rule]}),
        **wrapped,
    }


def _wrapped(text: str) -> str:
    """Returns code with long lines broken after commas. Does not break a line whose string literals contain a space."""
    return "\n".join(
        line if len(line) <= WIDTH or any(" " in one for one in _TEXT.findall(line)) else _broken(line)
        for line in text.split("\n")
    )


def _broken(line: str) -> str:
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    first, *parts = line.split(", ")
    lines = [first]
    for part in parts:
        if len(lines[-1]) + len(part) + 3 > WIDTH:
            lines[-1] += ","
            lines.append(indent + part)
        else:
            lines[-1] += f", {part}"
    return "\n".join(lines)


def _listed(subgraph: Subgraph) -> str:
    return ", ".join(dict.fromkeys(op_name(node.target) for node in subgraph.calls))


def _namespaces(subgraph: Subgraph) -> list[str]:
    return list(dict.fromkeys(op_name(node.target).partition(".")[0] for node in subgraph.calls))


def _schema(op: OpName, values: Values) -> str:
    tensors = [f"Tensor {name}" for name in values.tensors]
    given = ", ".join([*tensors, *(f"SymInt {name}" for name in values.sizes)])
    results = ", ".join(["Tensor"] * len(values.results))
    return f"{op.name}({given}) -> {f'({results})' if len(values.results) > 1 else results}"


def _test(values: Values, example: Example) -> dict[str, str]:
    """Returns the values for the placeholders of the test template: operands, parameters of `operands`, and sizes."""
    tensors = [_drawn(values, name, node, example) for name, node in values.tensors.items()]
    operands = ", ".join([*tensors, *example.sizes.values()])
    count = len(example.symbols)
    sizes = [(3, 5, 7, 9, 11, 13, 15, 17)[:count], (1,) * count, (2,) * count] if count else [()]
    return {
        "operands": operands + ("," if len(values.operands) == 1 else ""),
        "arguments": ", ".join(["dtype", *example.symbols]),
        "sizes": repr(sizes),
    }


def _drawn(values: Values, name: str, node: Node, example: Example) -> str:
    shape = ", ".join(example.shapes[name])
    dtype = node.meta["val"].dtype
    if dtype.is_floating_point:
        own = dtype_in(values, node)
        converted = "" if own == "f64" else f".to({DTYPES[own]})"
        return f"floats({shape}){converted}"
    short = SHORT_DTYPES[str(dtype)]
    return f"integers({shape})" + ("" if short == "i64" else f".to({DTYPES[short]})")

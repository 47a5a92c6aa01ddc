"""Screens the serialized graph in a torch.export archive.

The graph is JSON, but torch evaluates parts of it as Python. Symbolic sizes are evaluated by sympy's `sympify`; guards
are compiled with `exec`; node targets are looked up as attributes of `torch`; tree specs may import a module by name;
names become the source of a generated `forward`. This module defines a small grammar for each of these parts, and
rejects a graph with a part that does not match its grammar.

Source: torch/_export/serde/{schema,serialize}.py, torch/export/_unlift.py and torch/utils/_pytree.py of torch 2.13.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch

from fuseconv.errors import RefusedError, UnsupportedError
from fuseconv.sources.library_ops import LIBRARY_OPS
from fuseconv.untrusted.permitted import is_permitted_namespace, lookup, refusal

_TARGET = re.compile(
    r"^(_operator\.(abs|add|and_|eq|floordiv|ge|getitem|gt|invert|le|lshift|lt|mod|mul|ne|neg|not_|or_|pos|pow|rshift|sub"
    r"|truediv|xor)"
    r"|math\.(acos|asin|atan|ceil|cos|cosh|exp|floor|log|log2|sin|sinh|sqrt|tan|tanh|trunc)"
    r"|torch\.ops\.higher_order\.(associative_scan|auto_functionalized(_v2)?|cond|flex_attention|hints_wrapper"
    r"|invoke_subgraph|map_impl|out_dtype|scan|strict_mode|tag_activation_checkpoint|while_loop|wrap"
    r"|wrap_activation_checkpoint|wrap_with_autocast|wrap_with_set_grad_enabled)"
    r"|torch\.(_check|_check_is_size|_?sym_[a-z_]+))\Z"
)
"""Matches the permitted node targets other than ops: functions of numbers, and higher-order ops."""

_OP = re.compile(r"^torch\.ops\.(?P<name>(?P<namespace>\w+)\.[A-Za-z_]\w*\.[A-Za-z]\w*)\Z")
_NAME = re.compile(r"^[\w.$:/ -]*\Z")
_NUMBER = re.compile(r"^-?[\d.]+(e[+-]?\d{1,3})?\Z")
_FREE_TEXT = frozenset({"metadata", "as_string", "as_strings", "torch_version", "stack_trace"})
_SYMBOLIC_CALLS = frozenset(
    {
        *("Integer", "Float", "Rational", "Add", "Mul", "Max", "Min", "Abs", "Mod", "Eq", "Ne", "Lt", "Le"),
        *("Gt", "Ge", "And", "Or", "Not", "floor", "ceiling", "Piecewise", "ExprCondPair", "FloorDiv", "CleanDiv"),
        *("ModularIndexing", "Where", "PythonMod", "CeilDiv", "CeilToInt", "FloorToInt", "IntTrueDiv", "FloatTrueDiv"),
        *("TruncToInt", "TruncToFloat", "RoundToInt", "RoundDecimal", "ToFloat", "Identity"),
        *("IsNonOverlappingAndDenseIndicator", "StrictLessThan", "LessThan", "StrictGreaterThan"),
        *("GreaterThan", "Equality", "Unequality", "true", "false", "BooleanTrue", "BooleanFalse"),
    }
)
_GUARD_CALLS = _SYMBOLIC_CALLS | {"int", "float", "bool", "abs", "min", "max", "len"}
_GUARD_FUNCTIONS = frozenset({"sym_max", "sym_min", "sym_float"})
"""The functions of torch that guards call."""

_GUARD_ATTRIBUTES = frozenset({"size", "stride", "storage_offset", "shape", "ndim", "dtype", "isnan", "inf", "math"})
_TREE_TYPES = frozenset({"builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict"})
_LIBRARY_TREE_TYPE = re.compile(
    r"^transformers\.(modeling_outputs|cache_utils|utils\.generic|models\.\w+\.modeling_\w+)\.[A-Za-z]\w*$"
)
_LARGEST_EXPONENT = 16


def screen_program(data: bytes, where: str) -> None:
    """Checks that no part of a serialized program would run code when torch deserializes the program.

    Args:
        data: the JSON text of `models/model.json`.
        where: the path of the file and the name of the member, for error messages.

    Raises:
        RefusedError: the program is damaged, or a part of it would run code.
    """
    try:
        program = json.loads(data)
        for key, value in _walk(program, ""):
            _screen(key, value, where)
    except (ValueError, RecursionError) as error:
        raise RefusedError(f"the graph is not valid JSON: {error}", where=where) from error


def tree_types(data: bytes) -> frozenset[str]:
    """Returns the names of the library classes in a screened program's tree specs. torch expects them imported."""
    specs = [value for key, value in _walk(json.loads(data), "") if key in ("in_spec", "out_spec")]
    names = (value for spec in specs for key, value in _walk(json.loads(spec), "") if key == "type")
    return frozenset(name for name in names if isinstance(name, str) and _LIBRARY_TREE_TYPE.match(name))


def _walk(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Yields every scalar in parsed JSON, except free text, with the key under which it occurs.

    The keys of a mapping that occurs under NAME are yielded too, with the key `key of NAME`.
    """
    if isinstance(value, dict):
        for name, item in value.items():
            yield f"key of {key}".strip(), name
            if name not in _FREE_TEXT:
                yield from _walk(item, name)
    elif isinstance(value, list):
        for item in value:
            yield from _walk(item, key)
    else:
        yield key, value


def _screen(key: str, value: Any, where: str) -> None:
    if not isinstance(value, str):
        return
    if key in _TARGETS and (op := _OP.match(value)):
        _screen_op(op["namespace"], op["name"], where)
        return
    check: Callable[[str], bool] = _CHECKS.get(key, _is_name)
    if not check(value):
        raise _would_run(f"its {key} is {value[:120]!r}", where)


def _screen_op(namespace: str, name: str, where: str) -> None:
    """Raises an error if an op is not permitted, or if it is one of torch's ops and this version lacks it."""
    if name in LIBRARY_OPS:
        return
    op = lookup(name)
    if not is_permitted_namespace(namespace):
        if namespace in _TORCHS:
            raise _would_run(f"its target is torch.ops.{name}", where)
        raise RefusedError(
            f"the graph would run code of another library: it calls torch.ops.{name}",
            where=where,
            fix="export the model without that operator; a Hugging Face model can also be converted from its folder",
        )
    if op is None and namespace in _TORCHS:
        raise UnsupportedError(
            f"the graph calls torch.ops.{name}, which torch {torch.__version__} does not have",
            where=where,
            fix="export the model with this version of torch",
        )
    if op is not None and (reason := refusal(op)):
        raise _would_run(f"its target is torch.ops.{name}: {reason}", where)


def _would_run(what: str, where: str) -> RefusedError:
    return RefusedError(f"the graph would run code: {what}", where=where, fix="get the file from its author again")


def _is_name(text: str) -> bool:
    return _NAME.match(text) is not None


def _is_target(text: str) -> bool:
    return _TARGET.match(text) is not None


def _is_symbolic(text: str) -> bool:
    return _is_expression(text, _SYMBOLIC_CALLS, frozenset())


def _is_guard(text: str) -> bool:
    return _is_expression(text, _GUARD_CALLS, _GUARD_ATTRIBUTES)


def _is_expression(text: str, calls: frozenset[str], attributes: frozenset[str]) -> bool:
    """Returns whether a text is a Python expression of names, numbers, arithmetic, and permitted calls and attributes.

    Large powers are not permitted.

    Args:
        text: the text.
        calls: the names of the permitted functions.
        attributes: the names of the permitted attributes.
    """
    if len(text) > 100_000:
        return False
    try:
        return _is_arithmetic(ast.parse(text.strip(), mode="eval").body, calls, attributes)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _is_arithmetic(node: ast.AST, calls: frozenset[str], attributes: frozenset[str]) -> bool:
    """Returns whether a syntax tree contains only arithmetic, comparisons and permitted calls and attributes.

    A string is permitted as the name of a symbol, as a number or as a key, but not as an operand.
    """

    def all_of(*nodes: ast.AST) -> bool:
        return all(_is_arithmetic(part, calls, attributes) for part in nodes)

    match node:
        case ast.Name(id=name):
            return not name.startswith("_")
        case ast.Constant(value=value):
            return isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 2**64)
        case ast.UnaryOp(operand=operand):
            return all_of(operand)
        case ast.BoolOp(values=values):
            return all_of(*values)
        case ast.Compare(left=left, comparators=others):
            return all_of(left, *others)
        case ast.BinOp(left=base, op=ast.Pow(), right=exponent):
            return _is_small_power(base, exponent) and all_of(base, exponent)
        case ast.BinOp(
            left=left, op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div() | ast.FloorDiv() | ast.Mod(), right=right
        ):
            return all_of(left, right)
        case ast.Call(func=ast.Name(id="Symbol"), args=[ast.Constant(value=str(name))], keywords=assumptions):
            return name.isidentifier() and all(isinstance(word.value, ast.Constant) for word in assumptions)
        case ast.Call(func=ast.Name(id="Integer" | "Float"), args=[ast.Constant(value=str(number))], keywords=details):
            return _NUMBER.match(number) is not None and all(isinstance(word.value, ast.Constant) for word in details)
        case ast.Call(func=ast.Name(id="Pow" | "PowByNatural" | "FloatPow"), args=[base, exponent], keywords=[]):
            return _is_small_power(base, exponent) and all_of(base, exponent)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            return name in calls and all_of(*arguments)
        case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr=name), args=arguments, keywords=[]):
            return bool(attributes) and name in _GUARD_FUNCTIONS and all_of(*arguments)
        case ast.Call(func=ast.Attribute() as method, args=arguments, keywords=[]):
            return all_of(method, *arguments)
        case ast.Attribute(value=owner, attr=name):
            return name in attributes and all_of(owner)
        case ast.Subscript(value=owner, slice=ast.Constant(value=str() | int())):
            return bool(attributes) and all_of(owner)
        case ast.Tuple(elts=items):
            return all_of(*items)
        case _:
            return False


def _is_small_power(base: ast.AST, exponent: ast.AST) -> bool:
    """Returns whether an exponent is a small constant and the base contains no power.

    Evaluating a nested or large power could exhaust memory.
    """
    nested = any(
        isinstance(node, ast.Pow) or (isinstance(node, ast.Name) and "Pow" in node.id) for node in ast.walk(base)
    )
    match exponent:
        case ast.UnaryOp(operand=operand) | ast.Call(func=ast.Name(id="Integer"), args=[operand], keywords=[]):
            return _is_small_power(base, operand)
        case ast.Constant(value=int() | float() as value):
            return abs(value) <= _LARGEST_EXPONENT and not nested
        case _:
            return False


def _is_tree_spec(text: str) -> bool:
    try:
        version, tree = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return False
    return isinstance(version, int) and _is_tree(tree)


def _is_tree(tree: Any) -> bool:
    if not isinstance(tree, dict) or set(tree) != {"type", "context", "children_spec"}:
        return False
    kind, context, children = tree["type"], tree["context"], tree["children_spec"]
    known = kind is None or (
        isinstance(kind, str) and (kind in _TREE_TYPES or _LIBRARY_TREE_TYPE.match(kind) is not None)
    )
    return known and _is_context(context) and isinstance(children, list) and all(map(_is_tree, children))


def _is_context(context: Any) -> bool:
    """Returns whether a container's context contains only names and numbers, and no enum, which torch imports."""
    if isinstance(context, str):
        try:
            context = json.loads(context)
        except (ValueError, RecursionError):
            return _is_name(context)
    scalars = list(_walk(context, ""))
    return all(not isinstance(value, str) or (_is_name(value) and value != "__enum__") for _, value in scalars)


_TARGETS = ("target", "as_operator")
_TORCHS = ("aten", "prims", "higher_order")
_CHECKS: dict[str, Callable[[str], bool]] = {
    "key of range_constraints": _is_symbolic,
    "target": _is_target,
    "as_operator": _is_target,
    "expr_str": _is_symbolic,
    "guards_code": _is_guard,
    "in_spec": _is_tree_spec,
    "out_spec": _is_tree_spec,
}

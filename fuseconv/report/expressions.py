"""Formats the symbolic sizes in a torch.export archive, which are SymPy constructor calls, as ordinary arithmetic."""

from __future__ import annotations

import ast
from collections.abc import Mapping

_SIGNS = {"Add": " + ", "Mul": "*", "Pow": "**", "FloorDiv": "//", "Mod": " % ", "PythonMod": " % "}
_LARGEST = 10_000


def readable(text: str, names: Mapping[str, str]) -> str:
    """Formats a size: `2*seq + 1` for `Add(Mul(Integer(2), Symbol('s0', integer=True)), Integer(1))`.

    Args:
        text: the size as SymPy constructor calls. The text is parsed but not evaluated.
        names: the text to print for each symbol. A symbol without a text is printed by its own name.

    Raises:
        ValueError: the text is too long, or is not an expression.
    """
    if len(text) > _LARGEST:
        raise ValueError(f"a size has {len(text)} characters")
    try:
        return _of(ast.parse(text.strip(), mode="eval").body, names)
    except SyntaxError as error:
        raise ValueError(f"a size is {text[:100]!r}") from error


def symbol_in(text: str) -> str:
    """Returns the name of the first symbol in a size. Empty if the size has no symbol."""
    return text.partition("Symbol('")[2].partition("'")[0]


def _of(node: ast.expr, names: Mapping[str, str]) -> str:
    match node:
        case ast.Call(func=ast.Name(id="Symbol"), args=[ast.Constant(value=str(name))]):
            return names.get(name, name)
        case ast.Call(func=ast.Name(id="Integer" | "Float"), args=[one, *_]):
            return _of(one, names)
        case ast.Call(func=ast.Name(id="Mul"), args=[factor, quotient]) if _of(quotient, names).endswith(
            f"/{_of(factor, names)}"
        ):  # STEP * (DIM/STEP), which is DIM
            return _of(quotient, names).rpartition("/")[0]
        case ast.Call(func=ast.Name(id=name), args=args) if name in _SIGNS:
            return _SIGNS[name].join(_operand(one, name, names) for one in args).replace("+ -", "- ")
        case ast.Call(func=ast.Name(id=name), args=args):
            return f"{name}({', '.join(_of(one, names) for one in args)})"
        case _:
            return ast.unparse(node)


def _operand(node: ast.expr, outer: str, names: Mapping[str, str]) -> str:
    """Formats an operand of the operation `outer`, in parentheses if the operand is itself an operation."""
    text = _of(node, names)
    inner = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _SIGNS
    return f"({text})" if inner and outer != "Add" else text

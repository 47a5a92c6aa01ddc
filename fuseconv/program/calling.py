"""Decides whether each input is passed to `forward` by position or by keyword, from the names of its parameters."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar, Unpack, get_args, get_origin

from fuseconv.errors import UsageError

T = TypeVar("T")

_UNNAMED = re.compile(r"input_\d+$")
"""Matches the default name of a tensor that a file stores without a name: `input_0`, `input_1` and so on."""


def arguments(call: Sequence[str], values: Sequence[T]) -> tuple[tuple[T, ...], dict[str, T]]:
    """Splits values into the positional arguments and the keyword arguments of a call.

    Args:
        call: for each value, its keyword, or "" if the value is positional. () if all values are positional.
        values: one value per input.

    Returns:
        The positional arguments in order, and the keyword arguments by name.
    """
    if not call:
        return tuple(values), {}
    pairs = list(zip(call, values, strict=True))
    return tuple(value for name, value in pairs if not name), {name: value for name, value in pairs if name}


def bound_shapes(forward: Any, call: Sequence[str], shapes: Sequence[Any]) -> dict[str, Any]:
    """Returns the argument `dynamic_shapes` of torch.export for a call of `forward`.

    Args:
        forward: the `forward` of the module.
        call: for each input, its keyword, or "" if the input is positional. () if all inputs are positional.
        shapes: the dynamic shape of each input.

    Returns:
        The shapes by parameter name. `*args` is one tuple of shapes, and `**kwargs` one dict of shapes.
    """
    args, kwargs = arguments(call, shapes)
    return dict(inspect.signature(forward).bind(*args, **kwargs).arguments)


def parameters_named(names: Sequence[str]) -> tuple[inspect.Parameter, ...]:
    """Returns a required parameter for each name, which can be passed by position or by keyword."""
    return tuple(inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names)


def call_of(
    names: Sequence[str],
    parameters: Sequence[inspect.Parameter],
    where: str,
    *,
    by_keyword: bool = False,
    in_order: bool = True,
) -> tuple[str, ...]:
    """Decides whether each input is passed to `forward` by position or by keyword.

    The inputs are matched by name if all their names are names of parameters, or if `forward` has a `**kwargs`
    parameter and all required parameters are named. Inputs that are matched by name are passed by keyword, except
    positional-only parameters. If they are the first parameters of `forward` in order, they are passed by position
    unless `by_keyword` is set. All other inputs are passed by position in the given order.

    Args:
        names: the names of the inputs.
        parameters: the parameters of `forward`.
        where: the source of the names, such as an option or a file, for messages.
        by_keyword: whether the inputs must be matched by name and passed by keyword.
        in_order: whether the user specified the order of the inputs. False if a file stores tensors by name only.

    Returns:
        For each input, its keyword, or "" if the input is positional. () if all inputs are positional.

    Raises:
        UsageError: `forward` does not accept these inputs, or only some of the names are names of parameters.
    """
    takes = f"the model's forward takes ({', '.join(one.name for one in parameters)})"
    parameters = [spelled_out for one in parameters for spelled_out in _spelled_out(one)]
    known = {one.name: one for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)}
    positional = [name for name, one in known.items() if one.kind != one.KEYWORD_ONLY]
    only_positional = [name for name, one in known.items() if one.kind == one.POSITIONAL_ONLY]
    any_keyword = any(one.kind == one.VAR_KEYWORD for one in parameters)
    any_number = any(one.kind == one.VAR_POSITIONAL for one in parameters)
    required = [name for name, one in known.items() if one.default is one.empty]
    found = [name for name in names if name in known]

    named = len(found) == len(names) or (any_keyword and set(required) <= set(names))
    unnamed = all(_UNNAMED.match(name) for name in names)
    if named:
        if lacking := [name for name in required if name not in names]:
            raise _wrong(takes, names, where, f"add --input for {', '.join(lacking)}")
        if list(names) == positional[: len(names)] and not by_keyword:
            return ()
        given = [name for name in names if name in only_positional]
        if given != only_positional[: len(given)]:
            raise _wrong(takes, names, where, f"give {', '.join(only_positional)} in this order")
        return tuple("" if name in only_positional else name for name in names)
    if found or ((by_keyword or (not in_order and len(names) > 1)) and not unnamed):
        raise _wrong(takes, names, where, "use the names of forward's parameters as input names")
    lacking = [name for name in required if name not in positional[: len(names)]]
    if lacking or (len(names) > len(positional) and not any_number):
        fix = (
            f"add --input for {', '.join(lacking)}"
            if lacking
            else "give one --input for each tensor that forward takes"
        )
        raise _wrong(takes, names, where, fix)
    return ()


def _spelled_out(parameter: inspect.Parameter) -> Iterator[inspect.Parameter]:
    """Yields the parameters that a parameter stands for.

    A parameter `**kwargs: Unpack[T]`, where T is a TypedDict, stands for one keyword-only parameter per key of T. Any
    other parameter stands for itself.
    """
    typed = parameter.annotation if parameter.kind == parameter.VAR_KEYWORD else None
    if get_origin(typed) is not Unpack:
        yield parameter
        return
    (keywords,) = get_args(typed)
    for name in keywords.__annotations__:
        default = inspect.Parameter.empty if name in keywords.__required_keys__ else None
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)


def _wrong(takes: str, names: Sequence[str], where: str, fix: str) -> UsageError:
    """Returns the error for inputs that `forward` does not accept. `takes` describes the parameters of `forward`."""
    return UsageError(f"{takes}, but the inputs are ({', '.join(names)})", where=where, fix=fix)

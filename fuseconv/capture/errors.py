"""Explains why a model could not be exported: names the dim or op, the source line of the model, and a fix."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from fuseconv.capture.deferred import UnprovedError
from fuseconv.capture.guard_lines import Export, guard_line
from fuseconv.contract.dims import Dim
from fuseconv.contract.dtypes import short_dtype
from fuseconv.contract.inputs import draw, example_sizes
from fuseconv.contract.spec import Contract
from fuseconv.errors import FuseconvError, UnsupportedError, UsageError
from fuseconv.graph.model_line import model_line
from fuseconv.program.calling import arguments
from fuseconv.sizes import multiples, single_sizes
from fuseconv.sizes.size_guards import Suspect
from fuseconv.sources import Subject

_SUGGESTION = re.compile(r"^\s*(\w+) = (.+?)\s*$", re.MULTILINE)
_BOUND = re.compile(r"(min|max)=(\d+)")
_MULTIPLE = re.compile(r"(\d+)\*(\w+)$")
_CONSTANT = re.compile(r"^(.*) specialized it to be a constant \((\d+)\)", re.MULTILINE)

_VIOLATED = re.compile(r"Constraints violated \((.*?)\)")

_EQUAL = r"Eq\(s\d+, \d+\)"
"""The guard by which torch.export makes a size static."""


def explain(error: Exception, subject: Subject, tensors: Sequence[torch.Tensor], export: Export) -> FuseconvError:
    """Converts an error of `torch.export.export` to an error that names the model's source line and a fix.

    If torch rejects a dim, the model is exported again to find the source line of the guard. Otherwise the model is run
    eagerly, to distinguish inputs that it rejects from ops that cannot be exported.

    Args:
        error: the error that `export` raised. A FuseconvError is returned unchanged.
        subject: the model and its contract.
        tensors: the inputs of the failed export.
        export: the function that exports a subject with given inputs.
    """
    if isinstance(error, FuseconvError):
        return error
    if isinstance(error, UnprovedError):
        suggested = None
        if error.kept is None:
            suggested = _suggested(str(error.__cause__), subject, tensors, export)
        return suggested or _unproved(error, subject)
    if isinstance(error, multiples.NarrowedError):
        return _narrowed(error, subject, tensors, export)
    text = str(error)
    if "Constraints violated" in text or "constraints violated" in text.lower():
        return _constraint(text, subject, tensors, export)
    args, kwargs = arguments(subject.call, tensors)
    given = zip(subject.contract.inputs, tensors, strict=True)
    shapes = ", ".join(f"{spec.name}={short_dtype(t.dtype)}{list(t.shape)}" for spec, t in given)
    told = _explain(error, subject.module, args, kwargs, shapes, "")
    if isinstance(told, UsageError) and not told.fix:
        told.fix = _accepted(subject)
    return told


def constrained_dims(error: Exception, contract: Contract) -> list[str]:
    """Returns the names of the dims that an error of an export says to be constrained by the model."""
    if isinstance(error, UnprovedError):
        return list(error.dims)
    if isinstance(error, multiples.NarrowedError):
        return [error.dim.name]
    violated = _VIOLATED.search(str(error))
    named = [name.strip().removeprefix("_") for name in violated[1].split(",")] if violated else []
    return [name for name in contract.dims() if name in named]


def _unproved(error: UnprovedError, subject: Subject) -> UnsupportedError:
    """Converts the error of a guard that does not hold for all sizes to an error with a source line and a fix."""
    where = error.line or type(subject.module).__name__
    if error.kept is not None:
        dim = subject.contract.dims()[error.dims[0]]
        low, high, step = (dim.step * size for size in (error.kept[0], error.kept[-1], error.kept.step))
        return _restricted(dim, dim.narrowed(low, high, step), where)
    return UnsupportedError(
        f"the model branches on its sizes: the exported program assumes {error.guard}, which is not proved for all "
        "sizes",
        where=where,
        fix=f"narrow the ranges of {' and '.join(error.dims)} in --input, or give static sizes",
    )


def _accepted(subject: Subject) -> str:
    """Returns the fix for a model that does not accept its example inputs. It names sizes that the model accepts."""

    def takes(sizes: Mapping[str, int]) -> bool:
        tensors = draw(subject.contract, sizes, seed=0)
        return _eager(subject.module, *arguments(subject.call, tensors)) is None

    if (equal := single_sizes.equal_dims(subject.contract, takes)) is not None:
        first, second = (dim.name for dim in equal)
        return f"the dims {first} and {second} must be equal: write {second} instead of {first} in --input"
    if (only := single_sizes.only_size(subject.contract, takes)) is not None:
        dim, size = only
        others = ", ".join(str(one) for one in single_sizes.tried(dim) if one != size)
        return (
            f"the model accepts {dim.name} = {size}, but not {others}: write {size} instead of {dim} in --input, "
            f"or change that line to compute its sizes from x.shape, or with -1 as in x.reshape(-1, ...)"
        )
    if accepted := multiples.accepted(subject.contract, _runs(subject)):
        return f"the model accepts {' and '.join(map(str, accepted))}: write that in --input"
    return "correct the sizes, dtypes and ranges in --input, or --input-range; or that line, if the model is wrong"


def _runs(subject: Subject) -> Callable[[Contract], bool]:
    """Returns a function that runs the model eagerly at a contract's example sizes, and returns whether this succeeds.

    The function also returns False if two dims have the same example size.
    """

    def runs(contract: Contract) -> bool:
        sizes = example_sizes(contract)
        tensors = draw(contract, sizes, seed=0)
        return (
            len({*sizes.values()}) == len(sizes) and _eager(subject.module, *arguments(subject.call, tensors)) is None
        )

    return runs


def _narrowed(
    error: multiples.NarrowedError, subject: Subject, tensors: Sequence[torch.Tensor], export: Export
) -> UnsupportedError:
    """Converts an error of `multiples.check` to an error that names the model's source line and a fix."""
    where = guard_line((error.dim.name,), subject, tensors, export)
    told = _restricted(error.dim, error.kept or error.equal, where)
    if not (error.kept or error.equal) and error.other:
        told.fix = f"write {error.other} in --input: the model treats all of those sizes alike"
    return told


def explain_suspect(
    suspect: Suspect, subject: Subject, tensors: Sequence[torch.Tensor], export: Export
) -> UnsupportedError:
    """Returns an error that names a guard that the program assumes, and sizes at which the guard does not hold."""
    at = ", ".join(f"{name}={suspect.sizes[name]}" for name in suspect.dims)
    return UnsupportedError(
        f"the model branches on its sizes: the exported program assumes {suspect.guard}, which does not hold at {at}",
        where=guard_line(suspect.dims, subject, tensors, export),
        fix=f"narrow the ranges of {' and '.join(suspect.dims)} in --input, or give static sizes",
    )


def _restricted(dim: Dim, to: Dim | str | None, where: str) -> UnsupportedError:
    """Returns the error for a dim of which the model supports only some sizes, or which must equal another dim.

    Args:
        dim: the dim in the contract.
        to: the supported sizes, or the name of the other dim. None if the supported sizes are not a range.
        where: the source line of the model.
    """
    name = dim.name
    if isinstance(to, str):
        what, fix = f"the dims {name} and {to} must be equal", f"replace {name} with {to} in --input"
    elif to is None:
        what, fix = (
            f"the model does not treat all sizes of {dim} alike",
            f"give a static size instead of {dim} in --input",
        )
    elif to.min == to.max:
        what = f"the model works only with {name} = {to.min}: its code specializes this dim to the exported size"
        fix = f"if that is intended, give a static size instead of {dim}; if not, change that line to read x.shape"
    else:
        step = f", in multiples of {to.step}" if to.step > 1 else ""
        what, fix = f"the model works only with {name} within {to.min}..{to.max}{step}", f"write {to} in --input"
    return UnsupportedError(what, where=where, fix=fix)


def explain_call(
    error: Exception, module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> FuseconvError:
    """Converts an error from exporting a module to an error that names the module's source line and a fix.

    Args:
        error: the error that `torch.export.export` raised.
        module: the module whose export failed.
        args: the positional example inputs.
        kwargs: the example inputs by keyword.
    """
    return _explain(
        error, module, args, kwargs, "the example inputs", "give example inputs on which the model itself runs"
    )


_NOT_ON_CPU = ("not implemented for '", "from the 'CPU' backend")
"""Words of PyTorch's errors for an op that the CPU lacks. A module without `forward` raises another such error."""


_KEYWORD = "got an unexpected keyword argument"
_PARAMETER = "use the names of forward's parameters as input names; a forward with **kwargs does not list all of them"


def _explain(
    error: Exception, module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], inputs: str, fix: str
) -> FuseconvError:
    text = str(error)
    where = model_line(error) or type(module).__name__
    if "data-dependent" in text:
        return UnsupportedError(
            f"the model's control flow depends on the values of a tensor: {_first_line(text)}",
            where=where,
            fix="use torch.where or torch.cond, or branch only on shapes and settings, which are known during export",
        )
    refusal = _eager(module, args, kwargs)
    if isinstance(refusal, NotImplementedError) and any(words in str(refusal) for words in _NOT_ON_CPU):
        return UnsupportedError(
            "the model needs an op that PyTorch does not implement on the CPU, where fuseconv captures every model: "
            f"{_first_line(str(refusal))}",
            where=model_line(refusal) or where,
            fix="use another op for this value, or another dtype that the op supports on the CPU",
        )
    if refusal is not None:
        return UsageError(
            f"the model does not accept {inputs}: {type(refusal).__name__}: {_first_line(str(refusal))}",
            where=model_line(refusal) or where,
            fix=_PARAMETER if isinstance(refusal, TypeError) and _KEYWORD in str(refusal) else fix,
        )
    return UnsupportedError(
        f"the model cannot be exported: {type(error).__name__}: {_first_line(text)}",
        where=where,
        fix=_other_code(text, module),
    )


def _other_code(text: str, module: torch.nn.Module) -> str:
    """Returns the fix for a model that runs, but that torch.export rejects with this message."""
    if "which is not a known type" in text:
        return "return tensors, or tuples, lists, dicts, named tuples or dataclasses of tensors"
    if scripted := [name for name, part in module.named_modules() if isinstance(part, torch.jit.ScriptModule)]:
        return f"use the Python module in place of the scripted {scripted[0] or 'model'}, with its state dict"
    return "replace that line with torch operations on tensors; torch.export.draft_export lists all such lines"


def _eager(module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Exception | None:
    """Runs the model eagerly on copies of the inputs, and returns the exception that it raised, or None."""
    args, kwargs = torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, (args, dict(kwargs)))
    try:
        with torch.no_grad():
            module(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - whatever the model raises is returned
        return error
    return None


def _constraint(text: str, subject: Subject, tensors: Sequence[torch.Tensor], export: Export) -> UnsupportedError:
    """Converts torch.export's report of a violated constraint to an error with a source line and a fix."""
    if (told := _suggested(text, subject, tensors, export)) is not None:
        return told
    bullet = next((line.strip(" -") for line in text.splitlines() if line.startswith("  - ")), _first_line(text))
    named = next((name for name in subject.contract.dims() if re.search(rf"\b_?{name}\b", bullet)), "")
    return UnsupportedError(
        f"the model constrains its dims in a way that --input cannot express: {bullet}",
        where=guard_line((named,), subject, tensors, export),
        fix="give a static size instead of the dim in --input",
    )


def _suggested(text: str, subject: Subject, tensors: Sequence[torch.Tensor], export: Export) -> UnsupportedError | None:
    """Converts a report of torch.export that suggests a size, a range, a multiple or another dim; otherwise None.

    Args:
        text: the message of torch.export, with its suggested fixes.
        subject: the model and its contract.
        tensors: the inputs of the failed export.
        export: the function that exports a subject with given inputs.
    """
    dims = subject.contract.dims()
    _, _, fixes = text.partition("Suggested fixes:")
    suggestions = dict(_SUGGESTION.findall(fixes.partition("\n\n")[0]))
    name = next((name for name in suggestions if name in dims), None)
    if name is None:
        constant = _CONSTANT.search(text)
        named = constant and next((one for one in dims if re.search(rf"\b_?{one}\b", constant[1])), None)
        if not (constant and named):
            return None
        only = Dim(named, int(constant[2]), int(constant[2]))
        where = guard_line((named,), subject, tensors, export, _EQUAL)
        return _restricted(dims[named], only, where)
    wanted, dim = suggestions[name], dims[name]
    guard = _EQUAL if wanted.isdecimal() else ""
    where = guard_line((name,), subject, tensors, export, guard)
    if wanted.isdecimal():
        return _restricted(dim, Dim(name, int(wanted), int(wanted)), where)
    if wanted in dims:
        return _restricted(dim, wanted, where)
    multiple = _MULTIPLE.match(wanted)  # 4*_name, with a separate suggestion _name = Dim(...)
    step, root = (int(multiple[1]), suggestions.get(multiple[2], "")) if multiple else (1, wanted)
    if root.startswith("Dim("):
        bounds = {key: step * int(value) for key, value in _BOUND.findall(root)}
        return _restricted(dim, dim.narrowed(bounds.get("min", dim.min), bounds.get("max", dim.max), step), where)
    return UnsupportedError(
        f"the model works only with {name} = {wanted.replace('_' + name, 'k')}, where k is an integer",
        where=where,
        fix=f"give a static size of that form instead of {dim} in --input",
    )


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "the error has no message")

"""Defines the gradient of an op, and builds the op's kernel for the dispatcher's Autograd key from the gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

Values = Mapping[str, Any]
"""Tensors, and other values such as numbers or None, by name."""


def _itself(_: SimpleNamespace) -> None:
    return None


@dataclass(frozen=True)
class Gradient:
    """The gradient of an op. It consists of differentiable ops, so that second derivatives are available.

    Attributes:
        keep: a function `(arguments, results) -> values by name` that returns the values to save for the backward.
            `arguments` contains the arguments of the call as attributes with their names in the schema. `results` is
            the tuple of the op's results.
        backward: a function `(kept, needed, *grads) -> gradients by argument`. `kept` contains the saved values as
            attributes, and `needed` the names of the arguments that require a gradient; the gradients of other
            arguments may be omitted. `grads` contains the gradient with respect to each result, or None for a result
            that does not contribute to the loss.
        unfused: a function `(arguments) -> results` that replaces the op in a call that requires gradients. It computes
            the results with several ops, because the gradient needs an intermediate value that the fused kernel does
            not write. It returns None if the gradient needs no such value; then the op itself is called.
    """

    keep: Callable[[SimpleNamespace, tuple[Tensor, ...]], Values]
    backward: Callable[..., Values]
    unfused: Callable[[SimpleNamespace], Any] = _itself


def by_reference(reference: Callable[..., Any]) -> Gradient:
    """Returns a gradient whose backward recomputes the op's reference and differentiates it."""

    def keep(arguments: SimpleNamespace, _: tuple[Tensor, ...]) -> Values:
        return {"arguments": tuple(vars(arguments).values()), **vars(arguments)}

    def backward(kept: SimpleNamespace, needed: frozenset[str], *grads: Tensor | None) -> Values:
        values = {name: value for name, value in vars(kept).items() if name != "arguments"}
        wanted = [name for name in values if name in needed]

        def restricted(*tensors: Tensor) -> Any:
            return reference(**(values | dict(zip(wanted, tensors, strict=True))))

        results, pullback = torch.func.vjp(restricted, *(values[name] for name in wanted))  # type: ignore[misc]
        if isinstance(results, Tensor):
            cotangents: Any = grads[0]
        else:
            pairs = zip(results, grads, strict=True)
            cotangents = tuple(torch.zeros_like(result) if grad is None else grad for result, grad in pairs)
        return dict(zip(wanted, pullback(cotangents), strict=True))

    return Gradient(keep, backward)


def autograd_kernel(overload: torch._ops.OpOverload, gradient: Gradient) -> Callable[..., Any]:
    """Returns an op's kernel for the Autograd dispatch key.

    If no argument requires a gradient, the kernel only calls the op.

    Args:
        overload: the op.
        gradient: the gradient of the op.
    """
    schema = overload._schema.arguments
    names = [argument.name for argument in schema]
    defaults = tuple(argument.default_value for argument in schema)

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return overload(*args, **kwargs)

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            results = run(*args)
            of = (results,) if isinstance(results, Tensor) else tuple(results)
            kept = gradient.keep(SimpleNamespace(**dict(zip(names, args, strict=True))), of)
            ctx.save_for_backward(*(value for value in kept.values() if isinstance(value, Tensor)))
            ctx.kept = {name: None if isinstance(value, Tensor) else value for name, value in kept.items()}
            ctx.tensors = [name for name, value in kept.items() if isinstance(value, Tensor)]
            ctx.set_materialize_grads(False)
            return results

        @staticmethod
        def backward(ctx: Any, *grads: Tensor | None) -> Any:
            if all(grad is None for grad in grads):
                return (None,) * len(names)
            kept = SimpleNamespace(**ctx.kept | dict(zip(ctx.tensors, ctx.saved_tensors, strict=True)))
            needed = frozenset(name for name, wanted in zip(names, ctx.needs_input_grad, strict=True) if wanted)
            gradients = gradient.backward(kept, needed, *grads)
            return tuple(gradients.get(name) if name in needed else None for name in names)

    Function.__name__ = Function.__qualname__ = f"{overload._opname}_backward"

    def kernel(*args: Any, **kwargs: Any) -> Any:
        if not (torch.is_grad_enabled() and torch._C._any_requires_grad(*args, **kwargs)):
            return run(*args, **kwargs)
        # The dispatcher omits arguments that are equal to their defaults.
        args += tuple(map(kwargs.get, names[len(args) :], defaults[len(args) :]))
        results = gradient.unfused(SimpleNamespace(**dict(zip(names, args, strict=True))))
        return Function.apply(*args) if results is None else results  # type: ignore[no-untyped-call]

    return kernel

"""What an op is in Python: its plain PyTorch meaning, its samples, and its adoption by torch.

The kernels and the schema are in the compiled library. Everything else follows from `reference`: the fake kernel, the
gradient, and the oracle of the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

NAMESPACE = "fuseconv"


@dataclass(frozen=True)
class Sample:
    """One call of an op. `matches` is set on a call that must fail: a regular expression for the message."""

    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    matches: str = ""


@dataclass(frozen=True)
class Op:
    """An op of the library; calling it calls the dispatcher.

    Attributes:
        name: its name in the `fuseconv` namespace.
        reference: the same computation in plain PyTorch. It takes the op's arguments and returns what the op returns,
            works on fake tensors with symbolic sizes, and is differentiable.
        samples: `(device, dtype) -> calls` that the op must serve.
        errors: `(device) -> calls` that it must refuse, each with the message.
    """

    name: str
    reference: Callable[..., Any]
    samples: Callable[[str, torch.dtype], list[Sample]]
    errors: Callable[[str], list[Sample]]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the op: `fuseconv.ops.<name>(...)`, with the arguments of its schema."""
        return self.overload(*args, **kwargs)

    @property
    def overload(self) -> torch._ops.OpOverload:
        """The dispatcher's own object, as it stands in a graph: `torch.ops.fuseconv.<name>.default`."""
        overload: torch._ops.OpOverload = getattr(getattr(torch.ops, NAMESPACE), self.name).default
        return overload

    def adopt(self) -> None:
        """Registers the fake kernel and the gradient, both made of `reference`. Once a process, after the library."""
        name = f"{NAMESPACE}::{self.name}"
        torch.library.register_fake(name, self._fake)
        torch.library.register_autograd(name, self._backward, setup_context=_save)

    def _fake(self, *args: Any, **kwargs: Any) -> Any:
        # A reference may return one of its arguments, or a view of one; an op returns new tensors.
        results = self.reference(*args, **kwargs)
        if isinstance(results, Tensor):
            return torch.empty_like(results)
        return tuple(torch.empty_like(result) for result in results)

    def _backward(self, context: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        tensors = iter(context.saved_tensors)
        args = [next(tensors) if is_tensor else value for is_tensor, value in context.arguments]
        wanted = [index for index, needed in enumerate(context.needs_input_grad) if needed]

        def restricted(*values: Tensor) -> Any:
            replaced = list(args)
            for index, value in zip(wanted, values, strict=True):
                replaced[index] = value
            return self.reference(*replaced)

        results, pullback = torch.func.vjp(restricted, *(args[index] for index in wanted))  # type: ignore[misc]
        if isinstance(results, Tensor):
            cotangents: Any = grads[0]
        else:
            pairs = zip(results, grads, strict=True)
            cotangents = tuple(torch.zeros_like(result) if grad is None else grad for result, grad in pairs)
        gradients: list[Tensor | None] = [None] * len(args)
        for index, gradient in zip(wanted, pullback(cotangents), strict=True):
            gradients[index] = gradient
        return tuple(gradients)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG001  # torch's signature
    ctx.save_for_backward(*(value for value in inputs if isinstance(value, Tensor)))
    ctx.arguments = [(True, None) if isinstance(value, Tensor) else (False, value) for value in inputs]

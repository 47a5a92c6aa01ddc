"""What an op is in Python: its plain PyTorch meaning, its samples, and its adoption by torch.

The kernels and the schema are in the compiled library. Everything else follows from `reference`: the fake kernel, the
oracle of the tests, and the gradient where the op does not give a better one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, ParamSpec, TypeVar

import torch
from torch import Tensor

from fuseconv.ops.autocast import KEYS, Policy, autocast_kernel, widest
from fuseconv.ops.description import describe, signature_of
from fuseconv.ops.gradient import Gradient, autograd_kernel, by_reference

NAMESPACE = "fuseconv"
_LIBRARY: Any = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
# What a Library registers goes when it does.

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Sample:
    """One call of an op. `matches` is set on a call that must fail: a regular expression for the message."""

    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    matches: str = ""


@dataclass(frozen=True)
class Op(Generic[P, R]):
    """An op of the library; calling it calls the dispatcher, and `help` of it describes the call.

    Attributes:
        name: its name in the `fuseconv` namespace.
        reference: the same computation in plain PyTorch. It takes the op's arguments and returns what the op returns,
            works on fake tensors with symbolic sizes, and is differentiable.
        samples: `(device, dtype) -> calls` that the op must serve.
        errors: `(device) -> calls` that it must refuse, each with the message.
        gradient: how to differentiate it; None computes `reference` again and differentiates that.
        autocast: which dtype its tensors get under torch.autocast.
        like: what the results are like, in dtype, shape and strides, of an op whose reference is long: its fake kernel.
            None takes the reference.
        decomposes: whether AOTInductor gets the reference in its place: without a product of matrices it is faster as a
            part of the kernels that the compiler makes of its neighbours than as a call between them.
    """

    name: str
    reference: Callable[P, R]
    samples: Callable[[str, torch.dtype], list[Sample]]
    errors: Callable[[str], list[Sample]]
    gradient: Gradient | None = None
    autocast: Policy = widest
    like: Callable[..., Any] | None = None
    decomposes: bool = False

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the op: `fuseconv.ops.<name>(...)`, with the arguments of its schema."""
        result: R = self.overload(*args, **kwargs)
        return result

    def __repr__(self) -> str:
        return f"<op {NAMESPACE}.{self.name}>"

    @property
    def __signature__(self) -> inspect.Signature:
        """What `inspect.signature` gives for the op."""
        return signature_of(self.reference)

    @property
    def overload(self) -> torch._ops.OpOverload:
        """The dispatcher's own object, as it stands in a graph: `torch.ops.fuseconv.<name>.default`."""
        overload: torch._ops.OpOverload = getattr(getattr(torch.ops, NAMESPACE), self.name).default
        return overload

    def adopt(self) -> None:
        """Registers the fake kernel, the gradient and the autocast kernels. Once a process, after the library."""
        torch.library.register_fake(f"{NAMESPACE}::{self.name}", self._fake)
        gradient = self.gradient or by_reference(self.reference)
        _LIBRARY.impl(self.name, autograd_kernel(self.overload, gradient), "Autograd")
        for device, key in KEYS.items():
            _LIBRARY.impl(self.name, autocast_kernel(self.overload, self.autocast, device), key)

    def refusals(self) -> list[str]:
        """Returns what the op says, on a CPU, to each call that it must refuse."""
        return [_refusal(self, sample) for sample in self.errors("cpu")]

    def _fake(self, *args: Any, **kwargs: Any) -> Any:
        # A reference may return one of its arguments, or a view of one; an op returns new tensors.
        results: Any = (self.like or self.reference)(*args, **kwargs)
        if isinstance(results, Tensor):
            return torch.empty_like(results)
        return tuple(torch.empty_like(result) for result in results)


def _refusal(op: Op[..., Any], sample: Sample) -> str:
    try:
        op(*sample.args, **sample.kwargs)
    except RuntimeError as error:
        return str(error).partition("\n")[0].removeprefix(f"{NAMESPACE}::{op.name}: ").rstrip(".")
    raise AssertionError(f"{op.name} takes what it must refuse: {sample.name}")


class _Doc:
    """The docstring of `Op`, or, asked of an op, the text that describes it; made when it is asked for."""

    def __init__(self, of_class: str) -> None:
        self.of_class = of_class

    def __get__(self, op: Op[..., Any] | None, owner: type) -> str:
        return self.of_class if op is None else describe(op.name, op.reference, op.autocast, op.refusals())


Op.__doc__ = _Doc(Op.__doc__ or "")  # type: ignore[assignment]  # a descriptor of a str

"""The Python side of an op: its plain PyTorch reference, its samples, and its registration with torch.

The kernels and the schema are in the compiled library. Everything else is derived from `reference`: the fake kernel,
the expected results of the tests, and the gradient unless the op defines a faster one.
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
# Registrations are removed with their Library object.

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Sample:
    """A sample call of an op. `matches` is set if the call must fail: a regular expression for the message."""

    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    matches: str = ""


@dataclass(frozen=True)
class Op(Generic[P, R]):
    """An op of the library. Calling it calls the dispatcher, and `help` describes it.

    Attributes:
        name: the name in the `fuseconv` namespace.
        reference: the same computation in plain PyTorch. It has the arguments and results of the op, works on fake
            tensors with symbolic sizes, and is differentiable.
        samples: `(device, dtype) -> calls` that the op must support.
        errors: `(device) -> calls` that the op must reject, each with the message.
        gradient: how the op is differentiated. None differentiates `reference`, recomputed in the backward.
        autocast: the policy for the dtypes of its tensors under torch.autocast.
        like: a function that returns tensors with the dtypes, shapes and strides of the results, as the fake kernel of
            an op with a long reference. None uses the reference.
        decomposes: whether AOTInductor compiles the reference instead of calling the op. This is faster for ops without
            a matrix product, which the compiler fuses with their neighbours.
        onnx_node: whether ONNX models call the op as a node of com.fuseconv. False for an op that consists of standard
            ONNX ops which ONNX Runtime fuses itself: the reference is exported in its place.
    """

    name: str
    reference: Callable[P, R]
    samples: Callable[[str, torch.dtype], list[Sample]]
    errors: Callable[[str], list[Sample]]
    gradient: Gradient | None = None
    autocast: Policy = widest
    like: Callable[..., Any] | None = None
    decomposes: bool = False
    onnx_node: bool = True

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the op with the arguments of its schema: `fuseconv.ops.<name>(...)`."""
        result: R = self.overload(*args, **kwargs)
        return result

    def __repr__(self) -> str:
        return f"<op {NAMESPACE}.{self.name}>"

    @property
    def __signature__(self) -> inspect.Signature:
        """The signature that `inspect.signature` returns."""
        return signature_of(self.reference)

    @property
    def overload(self) -> torch._ops.OpOverload:
        """The overload in graphs: `torch.ops.fuseconv.<name>.default`."""
        overload: torch._ops.OpOverload = getattr(getattr(torch.ops, NAMESPACE), self.name).default
        return overload

    def adopt(self) -> None:
        """Registers the fake kernel, the gradient and the autocast kernels. Call it once, after loading the library."""
        torch.library.register_fake(f"{NAMESPACE}::{self.name}", self._fake)
        gradient = self.gradient or by_reference(self.reference)
        _LIBRARY.impl(self.name, autograd_kernel(self.overload, gradient), "Autograd")
        for device, key in KEYS.items():
            _LIBRARY.impl(self.name, autocast_kernel(self.overload, self.autocast, device), key)

    def refusals(self) -> list[str]:
        """Returns the error messages of the op on a CPU for the calls that it must reject."""
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
    """A descriptor: the docstring of the class `Op`, or the help text of an op, computed on access."""

    def __init__(self, of_class: str) -> None:
        self.of_class = of_class

    def __get__(self, op: Op[..., Any] | None, owner: type) -> str:
        return self.of_class if op is None else describe(op.name, op.reference, op.autocast, op.refusals())


Op.__doc__ = _Doc(Op.__doc__ or "")  # type: ignore[assignment]  # a descriptor of a str

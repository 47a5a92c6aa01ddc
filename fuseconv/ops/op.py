"""Defines the Python side of an op: its reference in plain PyTorch, its sample calls, and its registration with torch.

The compiled library contains the op's schema and kernels. The fake kernel, the expected results of the tests, and the
gradient are derived from the reference, unless the op defines a faster fake kernel or gradient.
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
# torch removes the registrations when this object is deleted.

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Sample:
    """A sample call of an op.

    Attributes:
        name: the name of the sample in tests.
        args: the positional arguments.
        kwargs: the keyword arguments.
        matches: a regular expression that matches the error message if the call must fail. Empty if it must succeed.
    """

    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    matches: str = ""


@dataclass(frozen=True)
class Op(Generic[P, R]):
    """An op of the library. Calling the object calls the op through the dispatcher, and `help` describes the op.

    Attributes:
        name: the name of the op in the `fuseconv` namespace.
        reference: a function with the op's arguments and results, written in plain PyTorch. It is differentiable and
            works on fake tensors with symbolic sizes.
        samples: a function `(device, dtype) -> calls` that returns calls which the op must support.
        errors: a function `(device) -> calls` that returns calls which the op must reject, with their error messages.
        gradient: the gradient of the op. If None, the backward recomputes the reference and differentiates it.
        autocast: the policy that selects the dtype of the op's floating-point tensors under torch.autocast.
        like: a function with the op's arguments that returns tensors with the dtypes, shapes and strides of the
            results, and replaces a slow reference in the fake kernel. If None, the fake kernel runs the reference.
        decomposes: whether AOTInductor compiles the reference instead of calling the op. This is faster for ops without
            a matrix product, because the compiler fuses the reference with the neighbouring ops. A function of the
            op's arguments decides for each call.
        onnx_node: whether ONNX models contain the op as a node of the domain com.fuseconv. If False, ONNX models
            contain the standard ONNX ops of the reference, which ONNX Runtime fuses itself.
    """

    name: str
    reference: Callable[P, R]
    samples: Callable[[str, torch.dtype], list[Sample]]
    errors: Callable[[str], list[Sample]]
    gradient: Gradient | None = None
    autocast: Policy = widest
    like: Callable[..., Any] | None = None
    decomposes: bool | Callable[..., bool] = False
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
        """The overload that graphs contain: `torch.ops.fuseconv.<name>.default`."""
        overload: torch._ops.OpOverload = getattr(getattr(torch.ops, NAMESPACE), self.name).default
        return overload

    def decomposition(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the reference for AOTInductor, or returns `NotImplemented` if it is to call the op."""
        if callable(self.decomposes) and not self.decomposes(*args, **kwargs):
            return NotImplemented
        return self.reference(*args, **kwargs)

    def adopt(self) -> None:
        """Registers the op's fake kernel, gradient and autocast kernels with torch.

        Call this method once, after loading the library.
        """
        torch.library.register_fake(f"{NAMESPACE}::{self.name}", self._fake)
        gradient = self.gradient or by_reference(self.reference)
        _LIBRARY.impl(self.name, autograd_kernel(self.overload, gradient), "Autograd")
        for device, key in KEYS.items():
            _LIBRARY.impl(self.name, autocast_kernel(self.overload, self.autocast, device), key)

    def refusals(self) -> list[str]:
        """Makes the calls that the op must reject, on the CPU, and returns the error messages."""
        return [_refusal(self, sample) for sample in self.errors("cpu")]

    def _fake(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the fake kernel: returns new tensors like the results of the op."""
        # A reference may return an argument or a view of an argument, but an op always returns new tensors.
        results: Any = (self.like or self.reference)(*args, **kwargs)
        if isinstance(results, Tensor):
            return torch.empty_like(results)
        return tuple(torch.empty_like(result) for result in results)


def _refusal(op: Op[..., Any], sample: Sample) -> str:
    """Returns the first line of the error message of a call that must fail, without the name of the op."""
    try:
        op(*sample.args, **sample.kwargs)
    except RuntimeError as error:
        return str(error).partition("\n")[0].removeprefix(f"{NAMESPACE}::{op.name}: ").rstrip(".")
    raise AssertionError(f"{op.name} accepts the call {sample.name}, which it must reject")


class _Doc:
    """A descriptor for `Op.__doc__`. It returns the docstring of the class, or an instance's help text.

    The help text is computed on access.
    """

    def __init__(self, of_class: str) -> None:
        self.of_class = of_class

    def __get__(self, op: Op[..., Any] | None, owner: type) -> str:
        return self.of_class if op is None else describe(op.name, op.reference, op.autocast, op.refusals())


Op.__doc__ = _Doc(Op.__doc__ or "")  # type: ignore[assignment]  # a descriptor of a str

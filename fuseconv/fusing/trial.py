"""Compares the outputs, gradients and buffers of a fused module with those of the model, using the tolerance table.

The reference is a run of the captured graph in float64. Random ops generate the same random numbers in the runs of the
model, of the fused module and of the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.export.graph_signature import InputKind
from torch.func import functional_call
from torch.utils import _pytree as pytree

from fuseconv.capture.agreement import difference
from fuseconv.errors import ContractError, UnsupportedError, is_out_of_memory
from fuseconv.fusing.module import Fused
from fuseconv.numerics.fp64 import interpret_in_float64
from fuseconv.numerics.tolerance import Row, compare, incomparable
from fuseconv.program.captured import Program
from fuseconv.proof.difference import cotangents, same_draws
from fuseconv.proof.resized import resized

Outcome = Mapping[str, Tensor]
"""The results of a run by name: the outputs, the gradients, and the buffers after the run."""

Call = Callable[[dict[str, Tensor], list[Any]], list[Any]]
"""A function that runs a module: (buffers by name, input leaves) -> output leaves. It may mutate the buffers."""


class Comparison:
    """Compares modules with a model on the example inputs: outputs, gradients and buffers.

    Args:
        model: the original model, which provides the expected results.
        program: the captured model, which is run in float64 as the reference.
        args: the positional example inputs.
        kwargs: the keyword example inputs.
    """

    def __init__(self, model: nn.Module, program: Program, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._model = model
        self._inputs, self._spec = pytree.tree_flatten((args, dict(kwargs)))
        self._original = self._outcome(model)
        self._fp64 = _run_in_float64(model, program, self._inputs)

    def differing(self, module: nn.Module) -> dict[str, Row]:
        """Returns the values of a module that differ from the model's, by name."""
        actual = self._outcome(module)
        rows = {name: _compare(name, actual, self._original, self._fp64) for name in self._original}
        return {name: row for name, row in rows.items() if not row.ok}

    def _outcome(self, module: nn.Module) -> Outcome:
        def call(buffers: dict[str, Tensor], leaves: list[Any]) -> list[Any]:
            given, keywords = pytree.tree_unflatten(leaves, self._spec)
            return pytree.tree_leaves(functional_call(module, buffers, given, keywords))

        return _run(call, self._model, self._inputs)


def check_sizes(
    model: nn.Module, program: Program, captured: Fused, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Verifies that the captured program agrees with the model at sizes for which torch.export makes assumptions.

    Sizes that the graph or the model rejects are skipped.

    Args:
        model: the original model.
        program: the captured model.
        captured: the captured program as a module, without fusions.
        args: the positional example inputs.
        kwargs: the keyword example inputs.

    Raises:
        UnsupportedError: the program differs from the model at some combination of sizes.
    """
    inputs, spec = pytree.tree_flatten((args, dict(kwargs)))

    def call(module: nn.Module, leaves: list[Any]) -> list[Tensor]:
        buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
        given, keywords = pytree.tree_unflatten([_written(leaf) for leaf in leaves], spec)
        with same_draws(), torch.no_grad():
            outputs = pytree.tree_leaves(functional_call(module, buffers, given, keywords))
        return [*(value for value in outputs if isinstance(value, Tensor)), *buffers.values()]

    for sizes, leaves in resized(model, program.exported, inputs):
        try:
            found = call(captured, leaves)
        except ContractError:
            continue
        try:
            original = call(model, leaves)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            continue
        names = [f"output {at}" for at in range(len(original))]
        fp64 = [value.to(torch.float64) if value.is_floating_point() else value for value in found]
        if reason := difference(original, found, names, fp64):
            raise UnsupportedError(
                f"the model branches on its sizes, and torch.export captured only one branch: "
                f"the program differs at {sizes}: {reason}",
                where=type(model).__name__,
                fix="exclude them with torch.export.Dim(name, min=2) in `dynamic_shapes`, or a static dim",
            )


def _compare(name: str, actual: Outcome, original: Outcome, fp64: Outcome) -> Row:
    if name not in actual:
        return incomparable("the fused module does not produce it")
    return compare(actual[name], original[name], fp64[name])


def _run(call: Call, model: nn.Module, inputs: list[Any]) -> Outcome:
    buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
    leaves = [_input(value, None) for value in inputs]
    with same_draws(), torch.enable_grad():
        outputs = call(buffers, [_written(leaf) for leaf in leaves])
        return outcome(outputs, buffers, dict(model.named_parameters()), leaves)


def _run_in_float64(model: nn.Module, program: Program, inputs: list[Any]) -> Outcome:
    exported = program.exported
    tensors = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    widened = {id(tensor): wide(tensor).requires_grad_(tensor.requires_grad) for tensor in tensors.values()}
    leaves = [_input(value, torch.float64) for value in inputs]
    states: list[Any] = []
    for spec in exported.graph_signature.input_specs:
        if spec.kind == InputKind.CONSTANT_TENSOR:
            states.append(exported.constants[str(spec.target)])
        elif spec.kind != InputKind.USER_INPUT:
            states.append(widened[id(tensors[str(spec.target)])])
    with same_draws(), torch.enable_grad(), torch.autocast(program.contract.device, enabled=False):
        outputs = interpret_in_float64(exported.graph_module, [*states, *map(_written, leaves)])
        buffers = {name: widened[id(buffer)] for name, buffer in model.named_buffers()}
        parameters = {name: widened[id(parameter)] for name, parameter in model.named_parameters()}
        return outcome(outputs, buffers, parameters, leaves)


def outcome(
    outputs: list[Any], buffers: Mapping[str, Tensor], parameters: Mapping[str, Tensor], leaves: list[Any]
) -> Outcome:
    """Computes the gradients of a run's outputs, and returns the outputs, buffers and gradients by name.

    A missing gradient is a tensor of zeros.
    """
    given = {f"output {at}": value for at, value in enumerate(outputs) if isinstance(value, Tensor)}
    found = {name: value.detach() for name, value in given.items()}
    found |= {f"buffer {name}": buffer for name, buffer in buffers.items()}
    sources = {f"the gradient of {name}": value for name, value in parameters.items() if value.requires_grad}
    sources |= {
        f"the gradient of input {at}": leaf
        for at, leaf in enumerate(leaves)
        if isinstance(leaf, Tensor) and leaf.requires_grad
    }
    results = [value for value in given.values() if value.requires_grad]
    if results and sources:
        grads = torch.autograd.grad(results, list(sources.values()), cotangents(results), allow_unused=True)
        for (name, source), grad in zip(sources.items(), grads, strict=True):
            found[name] = torch.zeros_like(source, requires_grad=False) if grad is None else grad
    return found


def wide(value: Tensor) -> Tensor:
    """Returns a copy of a tensor, in float64 if it is floating-point. The copy does not require grad."""
    return value.detach().clone().to(torch.float64 if value.is_floating_point() else value.dtype)


def _input(value: Any, dtype: torch.dtype | None) -> Any:
    """Copies an input. The copy of a floating-point tensor has the given dtype, if any, and requires grad."""
    if not isinstance(value, Tensor):
        return value
    copy = value.detach().clone()
    return copy.to(dtype or copy.dtype).requires_grad_() if copy.is_floating_point() else copy


def _written(leaf: Any) -> Any:
    """Returns a clone of a tensor, because the model may mutate its inputs. Returns any other value unchanged."""
    return leaf.clone() if isinstance(leaf, Tensor) else leaf

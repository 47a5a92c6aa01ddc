"""Finds which sizes within its contract a failing program accepts, by running the program at different sizes.

torch.export checks a range of sizes against the shapes in the model, but not against lookups in the model's weights. A
model with a table of 512 positions can be captured for 1024 positions, and then fails at run time when it looks up a
position above 511.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node
from torch.utils import _pytree as pytree

from fuseconv.contract.dims import Dim
from fuseconv.contract.inputs import LARGEST, draw, example_sizes
from fuseconv.contract.spec import Contract
from fuseconv.errors import FuseconvError, UnsupportedError, UsageError, is_out_of_memory
from fuseconv.graph.model_line import model_line
from fuseconv.graph.nodes import source_line
from fuseconv.sizes.taken_sizes import taken_range

Runs = Callable[..., Any]
"""A module, or another callable that takes one tensor per input."""


def run(module: Runs, contract: Contract, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Runs a captured program or the original model, and returns the leaves of its output.

    If the call fails, other sizes within the contract are tried with random inputs to explain the failure. An
    out-of-memory error is raised unchanged.

    Args:
        module: the module of an exported program, or the original model.
        contract: the contract of the module.
        inputs: one tensor per contract input, with sizes within the contract.

    Raises:
        UnsupportedError: the module fails at these sizes but runs at others, or fails with a GPU error. The error names
            the failing sizes and, if known, the sizes that work.
        UsageError: the module fails at all sizes that were tried.
    """
    try:
        return _run(module, inputs)
    except FuseconvError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise  # a lack of memory says nothing about the sizes that the model accepts
        raise _explained(error, module, contract, inputs) from error


def _run(module: Runs, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    with torch.no_grad():
        outputs = tuple(pytree.tree_leaves(module(*inputs)))
    if any(x.is_cuda for x in inputs):
        torch.cuda.synchronize()  # kernel errors are raised here and not by a later call
    return outputs


def _explained(error: Exception, module: Runs, contract: Contract, inputs: tuple[torch.Tensor, ...]) -> FuseconvError:
    """Runs the model at other sizes to find out which sizes it accepts, and returns the error to raise."""
    why = f"{type(error).__name__}: {first_line(error)}"
    at = sizes_text(_sizes(contract, inputs))
    if isinstance(error, torch.AcceleratorError):  # CUDA is unusable in this process after this error
        return UnsupportedError(
            f"the model fails on the GPU{f' at {at}' if at else ''}: {why}",
            fix="narrow the ranges in --input; run with --device cpu to see which sizes the model accepts",
        )
    graph = getattr(module, "module", module)  # the original of an archive is a graph module, too
    where = model_line(error) or (_failing_line(graph, inputs) if isinstance(graph, GraphModule) else "")

    def takes(tried: Mapping[str, int]) -> bool:
        try:
            _run(module, draw(contract, tried, seed=0))
        except Exception as failure:  # noqa: BLE001 - only whether the call fails matters
            return is_out_of_memory(failure)
        return True

    known = next(filter(takes, _some(contract)), None)
    if known is None:
        return UsageError(
            f"the model fails on random inputs{f' at {at}' if at else ''}: {why}",
            where=where,
            fix="correct the sizes, dtypes and ranges in --input, or --input-range",
        )
    for name, dim in contract.dims().items():
        taken = taken_range(dim, known, takes)
        if taken != (dim.min, dim.max):
            only = dim.narrowed(*taken, dim.step)
            return UnsupportedError(
                f"the model works only with {name} within {only.min}..{only.max}; it fails at {at}: {why}",
                where=where,
                fix=f"write {only} in --input, or export the program with that range",
            )
    return UnsupportedError(
        f"the model fails at {at}: {why}", where=where, fix="narrow the ranges of the dims to exclude these sizes"
    )


def first_line(error: Exception) -> str:
    """Returns the first non-blank line of an error's message, or `the error has no message` if there is none."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "the error has no message")


def sizes_text(sizes: Mapping[str, int]) -> str:
    """Formats sizes for a message: `batch = 1, seq = 2`."""
    return ", ".join(f"{name} = {size}" for name, size in sizes.items())


def _some(contract: Contract) -> Iterator[dict[str, int]]:
    """Yields combinations of sizes: the example sizes first, then about the same power of two for all dims."""
    yield example_sizes(contract)
    dims = contract.dims()
    for exponent in range(1, LARGEST.bit_length() if dims else 0):
        yield {name: dim.allowed(2**exponent) for name, dim in dims.items()}


def _sizes(contract: Contract, inputs: Sequence[torch.Tensor]) -> dict[str, int]:
    """Returns the size of each symbolic dim of the contract in the given inputs, by the name of the dim."""
    return {
        size.name: length
        for spec, tensor in zip(contract.inputs, inputs, strict=True)
        for size, length in zip(spec.shape, tensor.shape, strict=True)
        if isinstance(size, Dim)
    }


class _Followed(Interpreter):
    """An interpreter that stores in `node` the node that it runs, so that a failing node can be identified."""

    node: Node | None = None

    def run_node(self, n: Node) -> Any:
        self.node = n
        return super().run_node(n)


def _failing_line(module: GraphModule, inputs: tuple[torch.Tensor, ...]) -> str:
    """Runs the graph op by op, and returns the source line of the op that fails. Empty if no op fails."""
    followed = _Followed(module)
    try:
        with torch.no_grad():
            followed.run(*inputs)
    except Exception:  # noqa: BLE001 - the error that is being explained
        return source_line(followed.node) if followed.node is not None else ""
    return ""

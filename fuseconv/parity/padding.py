"""Checks that a model may be padded to bucket sizes: the rows of a batch must not affect each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from fuseconv.contract.buckets import Buckets
from fuseconv.contract.inputs import draw, example_sizes
from fuseconv.contract.spec import Contract, TensorSpec
from fuseconv.contract.values import LARGE
from fuseconv.errors import UnsupportedError, UsageError
from fuseconv.numerics.fp64 import run_in_float64
from fuseconv.numerics.tolerance import compare
from fuseconv.program.captured import Program, dim_symbols
from fuseconv.runtime.rows import batched, repeated, rows_of, unpadded
from fuseconv.sizes import failing_sizes

ROWS = 3
"""The number of real rows in the check. There are fewer if the bucket would otherwise have no room for padding."""


def hard(
    contract: Contract, buckets: Buckets, inputs: Sequence[torch.Tensor], turn: int = 0
) -> tuple[torch.Tensor, ...]:
    """Pads inputs to a bucket size with values that expose a model which mixes rows. Returns the padded inputs.

    Padding rows of floats alternate between NaN, which propagates to every result computed from it, and the upper end
    of the declared range or a large value. Padding rows of integers and booleans alternate between the ends of their
    range, so that a mask hides everything or nothing. If `turn` is 1, the second kind of row comes first.
    """
    has = batched(contract, buckets)
    rows = rows_of(inputs, has)
    return tuple(
        torch.cat([tensor, _hard_rows(spec, tensor, buckets.rounded(rows) - rows, turn)]) if having else tensor
        for spec, tensor, having in zip(contract.inputs, inputs, has, strict=True)
    )


def _hard_rows(spec: TensorSpec, like: torch.Tensor, count: int, turn: int) -> torch.Tensor:
    rows = like.new_empty((count, *like.shape[1:]))
    is_exact = not (like.is_floating_point() or like.is_complex())
    rows[turn::2] = (spec.low or 0) if is_exact else torch.nan
    rows[1 - turn :: 2] = LARGE if spec.high is None and not is_exact else 1 if spec.high is None else spec.high
    return rows


def prove(program: Program, buckets: Buckets) -> Program:
    """Runs a program to check that it does not mix rows along a dim. Returns the program with the buckets set.

    Some rows are computed alone, and again with padding rows after them. The results must agree within the tolerance
    table, both for padding that repeats a row and for the padding of `hard`.

    Args:
        program: the captured program to check.
        buckets: the dim, and the sizes to which this dim is padded.

    Raises:
        UsageError: the contract does not declare the dim, the dim is not the first axis of an input, or the bucket
            sizes are out of the range of the dim or leave nothing to pad.
        UnsupportedError: the dim is not the first axis of an output, or an output depends on the padding.
    """
    where = f"--bucket {buckets}"
    _check(program.contract, buckets, where)
    settled = replace(buckets, outputs=_outputs(program, buckets.dim, where))
    contract = replace(program.contract, buckets=settled)
    dim = contract.dims()[buckets.dim]
    bucket = next(size for size in buckets.sizes if size > max(dim.min, 1))
    rows = max(dim.allowed(min(ROWS, bucket - 1)), dim.step)
    inputs = draw(contract, {**example_sizes(contract), buckets.dim: rows}, seed=0)
    has = batched(contract, settled)
    same = tuple(repeated(x, bucket) if having else x for x, having in zip(inputs, has, strict=True))
    module = program.exported.module(check_guards=False)
    alone, fp64 = failing_sizes.run(module, contract, inputs), run_in_float64(program, inputs)
    for padded in (same, hard(contract, settled, inputs), hard(contract, settled, inputs, turn=1)):
        try:
            results = unpadded(_run(module, padded), contract, rows)
            rows_of_outputs = zip(contract.outputs, results, alone, fp64, strict=True)
            compared = {name: compare(*triple).reason for name, *triple in rows_of_outputs}
        except RuntimeError as error:
            compared = {"none": str(error)}
        for name, reason in compared.items():
            if reason:
                raise UnsupportedError(
                    f"output {name!r} depends on padding: the model mixes rows of dim {buckets.dim!r} "
                    f"(checked with {rows} real and {bucket - rows} padded rows): {reason}",
                    where=where,
                    fix="remove --bucket: each size then gets its own CUDA graph",
                )
    return replace(program, contract=contract)


def _run(module: GraphModule, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    with torch.no_grad():
        return tuple(pytree.tree_leaves(module(*inputs)))


def _check(contract: Contract, buckets: Buckets, where: str) -> None:
    dim = contract.dims().get(buckets.dim)
    if dim is None:
        known = ", ".join(map(str, contract.dims().values()))
        raise UsageError(
            f"the contract has no dim {buckets.dim}",
            where=where,
            fix=f"use one of {known}" if known else "remove --bucket: every size of the contract is static",
        )
    for spec in contract.inputs:
        axes = [axis for axis, size in enumerate(spec.shape) if size == dim]
        if axes not in ([], [0]):
            raise UsageError(
                f"only the first axis can be padded, but {dim.name} is axis {axes[-1]} of input {spec.name}",
                where=where,
                fix="name the dim that is the first (batch) axis of the inputs",
            )
    if wrong := [size for size in buckets.sizes if size % dim.step]:
        fix = f"use multiples of {dim.step}"
        raise UsageError(
            f"bucket size {wrong[0]} is not a multiple of {dim.step}, as {dim} requires", where=where, fix=fix
        )
    if not max(dim.min, 1) < buckets.sizes[-1] <= dim.max:
        raise UsageError(
            f"sizes of {dim} cannot be rounded up to {buckets.sizes[-1]}, the largest bucket",
            where=where,
            fix=f"end the list with a size greater than {max(dim.min, 1)} and at most {dim.max}",
        )


def _outputs(program: Program, name: str, where: str) -> tuple[str, ...]:
    """Returns the names of the outputs whose first axis is the dim, which is decided from their symbolic shapes.

    Raises:
        UnsupportedError: an output's shape depends on the dim in another way.
    """
    symbol, step = dim_symbols(program)[name], program.contract.dims()[name].step
    (results,) = program.exported.graph.output_node().args
    found = []
    for output, result in zip(program.contract.outputs, results, strict=True):
        sizes = [size.node.expr if isinstance(size, torch.SymInt) else size for size in result.meta["val"].shape]
        depending = [
            axis for axis, size in enumerate(sizes) if not isinstance(size, int) and symbol in size.free_symbols
        ]
        if depending == [0] and sizes[0] == step * symbol:
            found.append(output)
        elif depending:
            raise UnsupportedError(
                f"output {output} uses {name} on an axis other than the first: its shape is {sizes}",
                where=where,
                fix=f"remove --bucket, or make {name} the first axis of this output",
            )
    return tuple(found)

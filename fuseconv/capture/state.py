"""Checks the state that a contract declares: pairs of an input and the output that is its value in the next call."""

from __future__ import annotations

from collections.abc import Sequence

from torch.export import ExportedProgram

from fuseconv.contract.spec import Contract
from fuseconv.errors import UsageError


def check_state(exported: ExportedProgram, contract: Contract) -> None:
    """Checks that the input and the output of each state exist and have the same dtype and shape.

    Raises:
        UsageError: an input or output does not exist, or the dtypes or shapes of a pair differ.
    """
    (results,) = exported.graph.output_node().args
    assert isinstance(results, Sequence)
    inputs = {node.name: node.meta["val"] for node in exported.graph.find_nodes(op="placeholder")}
    outputs = {name: node.meta["val"] for name, node in zip(contract.outputs, results, strict=True)}
    for name, output in contract.state:
        for kind, known, one in (("input", contract.names, name), ("output", contract.outputs, output)):
            if one not in known:
                raise _wrong(f"the model has no {kind} {one}", name, output, f"use one of {', '.join(known)}")
        before, after = inputs[name], outputs[output]
        if before.dtype != after.dtype or list(map(str, before.shape)) != list(map(str, after.shape)):
            what = f"{name} is {before.dtype} {list(before.shape)}, but {output} is {after.dtype} {list(after.shape)}"
            raise _wrong(what, name, output, "return the state in the dtype and shape in which it is passed")


def _wrong(what: str, name: str, output: str, fix: str) -> UsageError:
    return UsageError(what, where=f"the state {name}={output}", fix=fix)

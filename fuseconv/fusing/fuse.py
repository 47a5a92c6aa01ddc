"""`fuse` turns a model in memory into a fused module that can be trained. It writes no file."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph

from fuseconv.capture.assigned import drop_stray_writes
from fuseconv.capture.causal_hint import without_causal_hint
from fuseconv.capture.errors import explain_call
from fuseconv.capture.results import export_registering
from fuseconv.contract.spec import Contract
from fuseconv.errors import ParityError, UsageError
from fuseconv.fusing.module import Fused
from fuseconv.fusing.trial import Comparison, check_sizes
from fuseconv.graph.derived_sizes import read_sizes_of_inputs
from fuseconv.graph.op_aliases import name_ops_once
from fuseconv.graph.recurrent import any_number_of_steps
from fuseconv.matching.plan import MatchKey
from fuseconv.matching.rewrite import rewrite
from fuseconv.matching.steps import Miss, Plan
from fuseconv.program.captured import Program
from fuseconv.program.original import keeping_buffers
from fuseconv.program.quiet import quiet_torch
from fuseconv.proof.checked import checked_plan
from fuseconv.proof.guilty import bisect
from fuseconv.proof.guilty import rejected as excluded
from fuseconv.rulebook.own_rules import load_rules
from fuseconv.rulebook.rule import Rule


def fuse(
    model: nn.Module,
    example_inputs: Tensor | Sequence[Any] | Mapping[str, Any],
    rules: str | Path | None = None,
    backend: str | None = None,
    *,
    dynamic_shapes: Any = None,
) -> Fused:
    """Returns a module with fused ops that computes and trains like `model`.

    The fused module shares the parameters and buffers of the model, under the same names. An optimizer of the model
    keeps working, a state dict of the model loads, and training one of the two modules trains both. A rule is applied
    only if it preserves the gradients and does not depend on the value of a parameter or buffer, which may change. If a
    replacement does not compute the same values as the matched ops, `fuse` skips the match and warns. The same holds
    if the outputs, gradients and buffers of the fused module, which are compared with those of the model, differ with
    this replacement.

    The captured graph is valid only for the mode (train or eval), dtypes, devices, sizes and autocast setting with
    which `fuse` was called. Call `fuse` again for another setting; both fused modules share the model's parameters.

    Args:
        model: the module. `fuse` does not change it.
        example_inputs: the inputs of a model call: a tensor, a sequence of positional arguments, or a mapping of
            keyword arguments.
        rules: a rule file or folder. Default: the rules that come with fuseconv.
        backend: the backend for the ops that have several backends on CUDA, such as `linear_act`. Default: each op
            chooses.
        dynamic_shapes: the dynamic dims, in the format of `torch.export.export`. Default: all dims are static.

    Returns:
        The fused module. Its attribute `plan` lists the fusions and the near misses.

    Raises:
        ParityError: an output, gradient or buffer differs from the model's even without replacements.
        RuleError: a rule file is invalid.
        UnsupportedError: the model cannot be captured.
        UsageError: the model rejects the inputs, or no op in the fused graph accepts a `backend`.

    Examples:
        >>> layers = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU())
        >>> fused = fuseconv.fuse(layers, torch.zeros(2, 8))
        >>> fused.plan.counts()
        {'linear-act': 1}
    """
    args, kwargs = _call(example_inputs)
    known = load_rules(rules)
    program = _capture(model, args, kwargs, dynamic_shapes)
    check_sizes(model, program, Fused(model, program, Plan(())), args, kwargs)
    chosen, fused = _proved(model, program, known, backend, Comparison(model, program, args, kwargs))
    for miss in chosen.rejected:
        warnings.warn(f"rule {miss.rule} was not applied at {miss.node}: {miss.reason}", stacklevel=2)
    return fused


def _proved(
    model: nn.Module, program: Program, rules: Sequence[Rule], backend: str | None, comparison: Comparison
) -> tuple[Plan, Fused]:
    """Returns a plan, and the module that is fused by it, without the matches that make the module differ."""
    rejected: dict[MatchKey, Miss] = {}
    while True:
        chosen = checked_plan(program, rules, device=program.contract.device, targets=["export"], rejected=rejected)
        fused = _fused(model, program, chosen, backend)
        # The steps that change random numbers have been tested at each match. This comparison disables them, so that
        # both modules use the same random numbers.
        same = chosen.drawing_the_same()
        wrong = comparison.differing(fused if same == chosen else _fused(model, program, same, backend))
        if not wrong:
            return chosen, fused

        def fails(count: int, same: Plan = same) -> bool:
            return bool(comparison.differing(_fused(model, program, same.first(count), None)))

        name, row = next(iter(wrong.items()))
        why = f"{name}: {row.reason}"
        if not same.applied or fails(0) or not fails(len(same.applied)):
            raise ParityError(
                f"the fused module differs from the model: {why}",
                where=f"the rules applied: {', '.join(chosen.counts()) or 'none'}",
                fix="pass `rules` without the faulty rule, or another `backend`",
            )
        guilty = same.applied[bisect(0, len(same.applied), fails) - 1]
        rejected |= excluded(program, same, guilty, why, rejected)


def _call(example_inputs: Tensor | Sequence[Any] | Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(example_inputs, Tensor):
        return (example_inputs,), {}
    if isinstance(example_inputs, Mapping):
        return (), dict(example_inputs)
    return tuple(example_inputs), {}


def _capture(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any) -> Program:
    """Captures a model in its current mode, with gradients, under the current autocast setting."""
    try:
        export = partial(torch.export.export, model, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False)
        with torch.enable_grad(), quiet_torch(), keeping_buffers(model), without_causal_hint(), any_number_of_steps():
            exported = export_registering(export, model, args, kwargs)
    except Exception as error:
        raise explain_call(error, model, args, kwargs) from error
    drop_stray_writes(exported)
    name_ops_once(exported)
    read_sizes_of_inputs(exported)
    tensors = [*model.parameters(), *torch.utils._pytree.tree_leaves((args, kwargs))]
    device = next((tensor.device.type for tensor in tensors if isinstance(tensor, Tensor)), "cpu")
    return Program(exported, Contract((), (), device), args, trainable=True)


def _fused(model: nn.Module, program: Program, chosen: Plan, backend: str | None) -> Fused:
    rewritten = rewrite(program, chosen)
    if backend is not None:
        _choose(rewritten.exported.graph, backend)
        rewritten.exported.graph_module.recompile()
    return Fused(model, rewritten, chosen)


def _choose(graph: Graph, backend: str) -> None:
    """Sets the `backend` argument of every fuseconv op whose schema contains this argument."""
    having = [
        node
        for node in graph.nodes
        if isinstance(node.target, torch._ops.OpOverload)
        and node.target.namespace == "fuseconv"
        and any(argument.name == "backend" for argument in node.target._schema.arguments)
    ]
    if not having:
        raise UsageError(
            f"no op in the fused graph takes a backend, but backend={backend!r} is given",
            where="backend",
            fix="remove backend",
        )
    for node in having:
        node.update_kwarg("backend", backend)

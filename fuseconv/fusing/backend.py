"""The backend `fuseconv` of torch.compile: applies the rules to each graph, and passes the fused graph to Inductor."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch.fx import GraphModule

from fuseconv.errors import UnsupportedError, UsageError, is_out_of_memory
from fuseconv.fusing.compiled import CompiledGraph, record
from fuseconv.fusing.dynamo_graph import captured, runnable, values
from fuseconv.fusing.graph_trial import check_graph
from fuseconv.fusing.left_alone import LeftAloneError
from fuseconv.matching.graph import source_line
from fuseconv.matching.rewrite import rewrite
from fuseconv.matching.steps import Plan
from fuseconv.program.captured import Program
from fuseconv.proof.checked import checked_plan
from fuseconv.rulebook.own_rules import load_rules

Inner = Literal["inductor", "eager"]


@dataclass(frozen=True)
class BackendOptions:
    """The options of the backend, as `torch.compile(..., options={...})` passes them.

    Attributes:
        rules: a rule file or folder. None for the rules that come with fuseconv.
        check: whether the fused graph as a whole is compared with the graph before the rewrite: its outputs, writes
            and gradients. Each match is tested in any case.
        inner: what compiles the fused graph: `inductor`, or `eager`, which runs it op by op.
    """

    rules: str | Path | None = None
    check: bool = True
    inner: Inner = "inductor"


def dynamo_backend(
    graph: GraphModule,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compiles one graph of torch.compile: applies the rules, and passes the fused graph to Inductor.

    torch.compile calls this function if it gets `backend="fuseconv"`, or the function itself as `backend`. Parameters
    and buffers count as values that may change, as in `fuse`, so the compiled function can be trained. Conditions on
    symbolic sizes hold for all sizes that the guards of torch.compile allow. Each match is tested on the values of the
    call that is compiled, and on random values. `compiled_graphs` returns what was fused and missed.

    Args:
        graph: the graph, with parameters and buffers as inputs.
        inputs: the inputs of the graph on the first call.
        mode: the mode of torch.compile, such as `max-autotune`, which is passed to Inductor.
        options: `rules`, `check` and `inner`; see `BackendOptions`.

    Returns:
        The compiled function, which takes the inputs of the graph and returns its outputs.

    Raises:
        ParityError: an output, a written input or a gradient of the fused graph differs.
        RuleError: a rule file is invalid.
        UnsupportedError: the graph cannot be run on its inputs, or memory does not suffice to compare it.
        UsageError: an option is unknown or invalid.

    Examples:
        >>> layers = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU())
        >>> compiled = torch.compile(layers, backend=fuseconv.dynamo_backend, options={"inner": "eager"})
        >>> compiled(torch.zeros(2, 8)).shape
        torch.Size([2, 4])
    """
    chosen = _options(options)
    if mode is not None and chosen.inner != "inductor":
        raise UsageError(f"mode={mode!r} is given, but only Inductor has modes", where="mode", fix="remove mode")
    start = time.perf_counter()
    fused, plan, reason = graph, Plan(()), ""
    try:
        program = captured(graph, inputs)
        plan = _plan(program, chosen)
        if plan.applied:
            fused = _fused(program, plan, graph, chosen)
    except LeftAloneError as problem:
        reason = str(problem)
    seconds = time.perf_counter() - start
    compiled = _inner(fused, inputs, chosen.inner, mode)
    # Dynamo may trace the function again while Inductor compiles; such a graph is not used and not recorded.
    record(CompiledGraph(_name(), _where(graph), plan, reason, seconds))
    return compiled


def _options(options: Mapping[str, Any] | None) -> BackendOptions:
    given = dict(options or {})
    known = [field.name for field in fields(BackendOptions)]
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            fix = f"did you mean {near[0]}?" if near else f"the options are {', '.join(known)}"
            raise UsageError(f"the backend fuseconv has no option {name!r}", where="options", fix=fix)
    chosen = BackendOptions(**given)
    if chosen.inner not in get_args(Inner):
        raise _wrong("inner", chosen.inner, " or ".join(map(repr, get_args(Inner))))
    if not isinstance(chosen.check, bool):
        raise _wrong("check", chosen.check, "True or False")
    if not isinstance(chosen.rules, str | Path | None):
        raise _wrong("rules", chosen.rules, "the path of a rule file or folder")
    return chosen


def _wrong(name: str, value: Any, expected: str) -> UsageError:
    return UsageError(f"the option {name!r} is {value!r}", where="options", fix=f"give {expected}")


def _plan(program: Program, options: BackendOptions) -> Plan:
    device = program.contract.device
    return checked_plan(program, load_rules(options.rules), device=device, targets=["export"])


def _fused(program: Program, plan: Plan, graph: GraphModule, options: BackendOptions) -> GraphModule:
    """Returns the fused graph. Compares it with the graph before the rewrite if the options say so."""
    fused = runnable(rewrite(program, plan), graph)
    if options.check:
        # As in `fuse`, the steps that change random numbers, which were tested at each match, are left out.
        proved = plan.drawing_the_same()
        after = fused if proved == plan else runnable(rewrite(program, proved), graph)
        names = [node.name for node in graph.graph.find_nodes(op="placeholder")]
        inputs = dict(zip(names, values(program, graph), strict=True))
        try:
            check_graph(graph, runnable(program, graph), after, inputs, ", ".join(plan.counts()))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise UnsupportedError(
                f"memory does not suffice to compare the fused graph with the graph before: {error}",
                where=_where(graph),
                fix='pass options={"check": False}: then only each match is tested',
            ) from error
    return fused


def _inner(graph: GraphModule, inputs: Sequence[Any], inner: Inner, mode: str | None) -> Callable[..., Any]:
    if inner == "eager":
        eager: Callable[..., Any] = graph.forward
        return eager
    from torch._inductor import list_mode_options
    from torch._inductor.compile_fx import compile_fx

    compiled: Any = compile_fx(graph, list(inputs), config_patches=list_mode_options(mode) if mode else None)
    return compiled  # type: ignore[no-any-return]  # for a graph, Inductor returns a function


def _name() -> str:
    return str(torch._guards.CompileContext.current_compile_id())


def _where(graph: GraphModule) -> str:
    return next((line for node in graph.graph.nodes if (line := source_line(node))), "an unknown line")

"""Executes a plan step by step. This module matches no patterns.

A step is self-contained: it holds node names, values of pattern variables, and SSA lines. Before a step changes the
graph, it is validated against the program. So a plan that was edited by hand is either valid or rejected.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.export.graph_signature import ExportGraphSignature, InputKind, InputSpec, TensorArgument
from torch.fx import Node

from fuseconv.errors import RuleError
from fuseconv.matching.bindings import from_binding
from fuseconv.matching.graph import Workspace, nodes_in, op_name
from fuseconv.matching.kept_copies import keep_copies
from fuseconv.matching.layout import restore_outputs
from fuseconv.matching.match import check_replaced, check_users, insertion_point
from fuseconv.matching.replacement import Instruction, Made, instantiate
from fuseconv.matching.steps import Plan, Step
from fuseconv.program.captured import Program
from fuseconv.rulebook.operands import FROM_WEIGHT
from fuseconv.rulebook.refused import Refused
from fuseconv.rulebook.rule_names import check_replacement
from fuseconv.rulebook.rule_text import RuleTextError, parse_line

_CONSTANTS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
_KEPT_META = ("stack_trace", "nn_module_stack", "torch_fn", "source_fn_stack")


def rewrite(program: Program, plan: Plan) -> Program:
    """Executes every step of a plan in order and returns the rewritten program.

    An output that is an alias of another output, an input or a weight only because a step removed a copy is cloned.
    Parameters without users are dropped. Each new node records in `meta["custom"]["fuseconv"]` the rules that created
    it and the nodes that they replaced. These records are saved with the program.

    Raises:
        RuleError: a step is invalid: a node does not exist, calls another op, or has other operands, or the replacement
            differs from the replaced value in dtype or shape. The error names the first invalid step and all others.
    """
    return rewrite_named(program, plan)[0]


def rewrite_named(program: Program, plan: Plan) -> tuple[Program, dict[str, str]]:
    """Executes a plan like `rewrite`, and also returns which new nodes compute the values of the original nodes.

    Returns:
        The rewritten program, and a mapping from the name of each original node whose value still exists to the name of
        the node that computes the value in the rewritten program.

    Raises:
        RuleError: a step is invalid; see `rewrite`.
    """
    workspace = Workspace(program.exported, trainable=program.trainable, results=program.results)
    refused: dict[int, Refused] = {}
    names = [node.name for node in workspace.graph.nodes]
    for number, step in enumerate(plan.steps):
        if not step.apply:
            continue
        try:
            apply(workspace, step)
        except Refused as problem:
            refused[number] = problem
        except RuleTextError as problem:
            what = f"the `replace` of the step is invalid: {problem}"
            raise RuleError(what, where=_place(plan, number, "/replace"), fix=problem.fix) from None
    if refused:
        raise _unfit(plan, refused)
    keep_copies(program.exported.graph, workspace.graph)
    twins = {name: twin.name for name in names if (twin := workspace.find(name)) is not None}
    return replace(program, exported=_exported(program.exported, workspace)), twins


def _unfit(plan: Plan, refused: Mapping[int, Refused]) -> RuleError:
    """Returns the error about invalid steps. It suggests disabling these steps or enabling a step they depend on."""
    first, problem = next(iter(refused.items()))
    others = f"; also steps {', '.join(map(str, [*refused][1:]))}" if len(refused) > 1 else ""
    needed = plan.steps[first].reads()
    off = [number for number, step in enumerate(plan.steps[:first]) if not step.apply and step.makes(needed)]
    again = f"enable step {off[-1]} (rule {plan.steps[off[-1]].rule}), which this step builds on, or " if off else ""
    every = f'set "apply": false on {"steps" if others else "step"} {", ".join(map(str, refused))} too'
    fix = f"{again}{every}, or regenerate the plan with `fuseconv match`"
    return RuleError(f"the step does not fit the graph: {problem}{others}", where=_place(plan, first), fix=fix)


def _place(plan: Plan, number: int, inside: str = "") -> str:
    return f"step {number} of the plan, rule {plan.steps[number].rule} (/steps/{number}{inside})"


def apply(workspace: Workspace, step: Step, *, clean: bool = True) -> None:
    """Executes one step.

    Args:
        workspace: the graph, which is rewritten.
        step: the step to execute.
        clean: whether to remove dead nodes immediately. A caller that keeps dead nodes for inspection must clean the
            graph before the next step, which may depend on their removal.

    Raises:
        Refused: the step does not fit the graph. The graph is unchanged.
        RuleTextError: the lines of the step are invalid.
    """
    lines = [parse_line(text) for text in step.replace]
    check_replacement(lines, set(step.bindings), set(step.results))
    if not step.nodes or len(step.nodes) != len(step.ops):
        raise Refused("one op per node", f"{len(step.ops)} ops for {len(step.nodes)} nodes")
    matched = frozenset(_matched(workspace, name, op) for name, op in zip(step.nodes, step.ops, strict=True))
    read_as: dict[Node, str] = {}

    def operand(name: str) -> Node:
        node = workspace.node(name)
        read_as.setdefault(node, name)
        return node

    captures = {name: from_binding(binding, operand) for name, binding in step.bindings.items()}
    results = {name: workspace.node(node) for name, node in step.results.items()}
    operands = frozenset(node for value in captures.values() for node in nodes_in(value))
    _check_edges(matched, operands, frozenset(results.values()))
    point = insertion_point(matched, operands, frozenset(results.values()))
    replacement = instantiate(lines, captures, workspace)
    for name in results:
        if name not in replacement.fakes:
            raise Refused(f"a line of `replace` that binds {name}", "none")
    changed = {node: replacement.fakes[name] for name, node in results.items()}
    downstream = check_replaced(changed, workspace, step.strides)
    returned = {node: node.meta.get("val") for node in workspace.graph.output_node().all_input_nodes}
    made: dict[str, Node] = {name: value for name, value in replacement.same.items() if isinstance(value, Node)}
    origin = max(results.values(), default=point)
    from_weight = any("number_of(" in text for text in step.replace) or any(
        FROM_WEIGHT in node.meta for node in matched
    )
    for instruction in replacement.instructions:
        if instruction.constant:
            made[instruction.targets[0]] = _compute(workspace, instruction, made, origin)
        else:
            with workspace.graph.inserting_before(point):
                made.update(_create(workspace, instruction, made, results, origin, step, read_as))
        for name in instruction.targets:
            if name in made and name not in results:
                read_as[made[name]] = workspace.refer(made[name], f"{workspace.name(origin)}/{step.rule}/{name}")
    if from_weight:
        for name in made.keys() - replacement.same.keys():
            made[name].meta[FROM_WEIGHT] = True
    for name, value in replacement.same.items():
        made[name] = _with_nodes(value, made)
    for name, node in results.items():
        workspace.replace(node, made[name], made=name not in replacement.same)
    for node in sorted(matched, reverse=True):
        workspace.erase(node)
    for node, new in downstream.items():
        workspace.relay(node, new.op, new.fake)
    if step.strides == "restored":
        restore_outputs(workspace, returned)
    if clean:
        workspace.clean()


def _matched(workspace: Workspace, name: str, op: str) -> Node:
    node = workspace.node(name)
    if (found := op_name(node.target)) != op:
        raise Refused(f"{name} to call {op}", found)
    return node


def _check_edges(matched: frozenset[Node], operands: frozenset[Node], results: frozenset[Node]) -> None:
    read = {node for matched_node in matched for node in matched_node.all_input_nodes}
    if strangers := sorted(operands - read):
        reads = ", ".join(sorted(node.name for node in read - matched))
        raise Refused(f"{strangers[0].name} to be an operand of the matched nodes", f"the operands {reads}")
    if inside := sorted(operands & matched):
        raise Refused("operands defined outside the match", inside[0].name)
    if outside := sorted(results - matched):
        raise Refused("results among the matched nodes", outside[0].name)
    check_users(matched, results)


def _create(
    workspace: Workspace,
    instruction: Instruction,
    made: Mapping[str, Node],
    results: Mapping[str, Node],
    origin: Node,
    step: Step,
    read_as: Mapping[Node, str],
) -> dict[str, Node]:
    """Creates the node that calls an op and, if the op returns several results, a getitem node per named result.

    Returns a mapping from the names that the line binds to the created nodes.
    """
    named = [name for name in instruction.targets if name in results]
    source = results[named[0]] if named else origin
    word = instruction.op._schema.name.split("::")[1]
    suffix = "" if named else f"_{instruction.targets[0]}"
    args, kwargs = _with_nodes((instruction.args, dict(instruction.kwargs)), made)
    node = workspace.create(instruction.op, args, kwargs, f"{word}_{source.name}{suffix}", read_as)
    node.meta = _meta(source, instruction.fake, step)
    if not instruction.unpacks:
        return {instruction.targets[0]: node}
    workspace.refer(node, f"{workspace.name(source)}/{step.rule}/{word}")
    picked = {}
    for position, name in enumerate(instruction.targets):
        if name != "_":
            at = results.get(name, source)
            label = f"getitem_{at.name}" + ("" if name in results else f"_{name}")
            item = workspace.create(operator.getitem, (node, position), {}, label, {})
            item.meta = _meta(at, instruction.fake[position], step)
            picked[name] = item
    return picked


def _compute(workspace: Workspace, instruction: Instruction, made: Mapping[str, Node], origin: Node) -> Node:
    """Returns a constant node for the result of an op on constants. The conversion computes the value."""
    args, kwargs = _with_nodes((instruction.args, dict(instruction.kwargs)), made)
    name = f"{instruction.targets[0]}_{origin.name}"
    return workspace.compute(instruction.op, args, kwargs, name, instruction.fake)


def _with_nodes(arguments: Any, made: Mapping[str, Node]) -> Any:
    if isinstance(arguments, Made):
        return made[arguments.name]
    if isinstance(arguments, dict):
        return {name: _with_nodes(value, made) for name, value in arguments.items()}
    if isinstance(arguments, list | tuple):
        return type(arguments)(_with_nodes(value, made) for value in arguments)
    return arguments


def _meta(origin: Node, fake: Any, step: Step) -> dict[str, Any]:
    """Returns the `meta` dict of a node that replaces `origin`: source line, fake value, and rules that created it."""
    custom = dict(origin.meta.get("custom") or {})
    custom["fuseconv"] = [*custom.get("fuseconv", ()), {"rule": step.rule, "nodes": list(step.nodes)}]
    kept = {key: origin.meta[key] for key in _KEPT_META if key in origin.meta}
    return {**kept, "val": fake, "custom": custom}


def _exported(exported: torch.export.ExportedProgram, workspace: Workspace) -> torch.export.ExportedProgram:
    graph, signature = workspace.graph, exported.graph_signature
    computed = workspace.computed()
    # In a trainable program only constant tensors are folded, and the model has no attribute for the result.
    literal = workspace.trainable
    specs = {spec.arg.name: spec for spec in signature.input_specs}
    kept = []
    for node in [node for node in graph.nodes if node.op == "placeholder"]:
        kind, persistent = (InputKind.CONSTANT_TENSOR, None) if literal else (InputKind.BUFFER, True)
        spec = specs.get(node.name) or InputSpec(kind, TensorArgument(node.name), node.name, persistent)
        if spec.kind in _CONSTANTS and not node.users:
            graph.erase_node(node)
        else:
            kept.append(spec)
    returned: Any = graph.output_node().args[0]
    outputs = [
        replace(spec, arg=TensorArgument(node.name)) if isinstance(spec.arg, TensorArgument) else spec
        for spec, node in zip(signature.output_specs, returned, strict=True)
    ]
    used = {spec.target for spec in kept}
    dropped = {spec.target for spec in signature.input_specs if spec.kind in _CONSTANTS} - used
    rewritten = torch.export.ExportedProgram(
        root=exported.graph_module,
        graph=graph,
        graph_signature=ExportGraphSignature(kept, outputs),
        state_dict=_without(exported.state_dict, dropped) | ({} if literal else computed),
        range_constraints=exported.range_constraints,
        module_call_graph=exported.module_call_graph,
        example_inputs=exported.example_inputs,
        constants=_without(exported.constants, dropped) | (computed if literal else {}),
        verifiers=exported.verifiers,
    )
    rewritten._guards_code = exported._guards_code  # unchanged: the specs of a flat program name no containers
    return rewritten


def _without(tensors: Mapping[str, Any], dropped: Collection[str]) -> dict[str, Any]:
    return {name: tensor for name, tensor in tensors.items() if name not in dropped}

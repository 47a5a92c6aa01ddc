"""A fused model as a module: the original's parameters and buffers, under their names, and the fused graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec
from torch.utils import _pytree as pytree

from fuseconv.errors import ContractError, UnsupportedError, UsageError
from fuseconv.fusing.call import CapturedCall, operand_like
from fuseconv.matching.steps import Plan
from fuseconv.ops.autocast import current
from fuseconv.program.captured import Program


class Fused(nn.Module):
    """Calls a fused graph on the parameters and buffers of the model it was captured from.

    The parameters are the model's own `Parameter` objects and the buffers its own tensors, under the same names.
    Dtypes, devices, sizes, the mode and autocast are part of the graph: another call is refused, and says what to do.

    Attributes:
        plan: what was fused, and what nearly was.
    """

    def __init__(self, model: nn.Module, program: Program, plan: Plan) -> None:
        super().__init__()
        self.plan = plan
        self.training = model.training
        _adopt(self, model)
        exported = program.exported
        signature, nodes = exported.graph_signature, exported.graph.find_nodes(op="placeholder")
        operands = [
            operand_like(spec.target or node.name, node.meta["val"], exported.range_constraints)
            for spec, node in zip(signature.input_specs, nodes, strict=True)
        ]
        self._states = [_state(spec, exported.constants) for spec in signature.input_specs if spec.target is not None]
        arguments, results = exported.call_spec.in_spec, exported.call_spec.out_spec
        _, keywords = pytree.tree_unflatten([None] * arguments.num_leaves, arguments)
        device = program.contract.device
        self._call = CapturedCall(tuple(operands), arguments, tuple(keywords), results, device, current(device))
        self._guards = _guards(exported)
        self._program = exported.graph_module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the graph; the arguments are those of the model, as `example_inputs` gave them.

        Raises:
            ContractError: a dtype, device, size or container, or autocast, is not the one it was captured for.
        """
        states = [state if isinstance(state, Tensor) else self._find(state) for state in self._states]
        leaves = self._call.flatten(args, kwargs)
        values = states + leaves
        self._call.check(values)
        if self._guards is not None:
            _check_guards(self._guards, leaves)
        return pytree.tree_unflatten(self._program(*values), self._call.results)

    def _find(self, path: tuple[str, ...]) -> Any:
        found: Any = self
        for name in path:
            found = getattr(found, name)
        return found

    def train(self, mode: bool = True) -> Fused:
        """Does nothing in the mode that the model was captured in.

        Raises:
            UsageError: it is the other mode: dropout and batch norm of this one are part of the graph.
        """
        if mode != self.training:
            names = ("eval", "train") if mode else ("train", "eval")
            raise UsageError(
                f"the graph was captured in {names[0]} mode and cannot switch to {names[1]} mode",
                where=f"{names[1]}()",
                fix=f"fuse the model again after model.{names[1]}(); both modules share the model's parameters",
            )
        return self


def _guards(exported: ExportedProgram) -> nn.Module | None:
    """Returns what checks, as torch would, that sizes are those the graph is for: a branch on several, or on multiples.

    That a product of sizes is not 1 torch says of whatever it does not broadcast; that is left out.
    """
    guards = exported._guards_code
    exported._guards_code = [guard for guard in guards if not guard.endswith(" != 1")]
    try:
        return getattr(exported.module(), "_guards_fn", None) if exported._guards_code else None
    finally:
        exported._guards_code = guards


def _check_guards(guards: nn.Module, leaves: list[Any]) -> None:
    try:
        guards(*leaves)
    except (AssertionError, ZeroDivisionError) as error:
        raise ContractError(
            f"the graph does not support these sizes: {error}",
            where="call",
            fix="fuse the model again with narrower `dynamic_shapes`, or with inputs of these sizes",
        ) from error


def _state(spec: InputSpec, constants: Mapping[str, Any]) -> tuple[str, ...] | Tensor:
    """Returns where a module with the model's names has what a placeholder stands for; of a constant, the constant."""
    if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
        return tuple(str(spec.target).split("."))
    if spec.kind == InputKind.CONSTANT_TENSOR and isinstance(constant := constants[str(spec.target)], Tensor):
        return constant
    fix = "use tensors instead of script objects and tokens"
    raise UnsupportedError(f"the model holds {spec.target}, a {spec.kind.name}", where=str(spec.target), fix=fix)


def _adopt(fused: nn.Module, model: nn.Module) -> None:
    """Registers every parameter and buffer of a model, the very objects, at its own path."""
    for path, module in model.named_modules(remove_duplicate=False):
        if not module._parameters and not module._buffers:
            continue
        place = fused
        try:
            for name in path.split(".") if path else ():
                if name not in place._modules:
                    place.add_module(name, nn.Module())
                place = place.get_submodule(name)
            for name, parameter in module._parameters.items():
                place.register_parameter(name, parameter)
            for name, buffer in module._buffers.items():
                place.register_buffer(name, buffer, persistent=name not in module._non_persistent_buffers_set)
        except KeyError as taken:
            fix = "rename it in the model"
            raise UnsupportedError(
                f"a submodule, parameter or buffer has a name that fuse reserves: {taken}", where=path, fix=fix
            ) from None
    if own := set(model.state_dict()) ^ set(fused.state_dict()):
        raise UnsupportedError(
            f"the model's state dict has {min(own)}, which is neither a parameter nor a buffer",
            where=type(model).__name__,
            fix="keep it outside the model, or make it a buffer",
        )

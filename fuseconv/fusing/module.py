"""A fused model as a module: it runs the fused graph with the parameters and buffers of the original model."""

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
    """Runs a fused graph with the parameters and buffers of the model from which the graph was captured.

    The module shares its parameters and buffers with the model, under the same names. The graph determines the dtypes,
    devices, sizes, mode (train or eval) and autocast setting. A call that differs raises an error that says how to fix
    the call.

    Attributes:
        plan: the fusions that were applied, and the near misses with their reasons.
    """

    def __init__(self, model: nn.Module, program: Program, plan: Plan) -> None:
        super().__init__()
        self.plan = plan
        self.training = model.training
        _adopt(self, model)
        exported = program.exported
        signature, nodes = exported.graph_signature, exported.graph.find_nodes(op="placeholder")
        operands = [
            operand_like(spec, node, exported.range_constraints)
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
        """Runs the graph. The arguments must have the structure of `example_inputs`.

        Raises:
            ContractError: a dtype, device, size, container or the autocast setting differs from the capture.
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
        """Does nothing if `mode` is the mode of the capture (train or eval), and raises an error otherwise.

        Raises:
            UsageError: the mode differs. The capture fixed the behavior of dropout and batch norm in the graph.
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
    """Returns a module that checks torch.export's guards on expressions of sizes, or None if there are no such guards.

    The module omits the guards that require a product of sizes not to be 1. torch adds these guards where it assumes
    that a dim is not broadcast.
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
    """Returns the path of the parameter or buffer that a placeholder represents, or the constant tensor itself."""
    if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
        return tuple(str(spec.target).split("."))
    if spec.kind == InputKind.CONSTANT_TENSOR and isinstance(constant := constants[str(spec.target)], Tensor):
        return constant
    fix = "use tensors instead of script objects and tokens"
    raise UnsupportedError(f"the model contains {spec.target}, a {spec.kind.name}", where=str(spec.target), fix=fix)


def _adopt(fused: nn.Module, model: nn.Module) -> None:
    """Registers all parameters and buffers of the model in the fused module, under the same paths."""
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
            fix = "rename the submodule, parameter or buffer"
            raise UnsupportedError(
                f"a submodule, parameter or buffer has a name that fuse reserves: {taken}", where=path, fix=fix
            ) from None
    if own := set(model.state_dict()) ^ set(fused.state_dict()):
        raise UnsupportedError(
            f"the model's state dict has {min(own)}, which is neither a parameter nor a buffer",
            where=type(model).__name__,
            fix="keep it outside of the model, or make it a buffer",
        )

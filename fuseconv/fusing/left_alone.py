"""Decides which graphs of torch.compile the backend leaves alone, because a trace would not keep what they do."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule
from torch.fx.experimental.symbolic_shapes import ShapeEnv, free_symbols, free_unbacked_symbols

MODES = (
    torch._C._set_grad_enabled,
    torch.amp.autocast_mode._enter_autocast,
    torch.amp.autocast_mode._exit_autocast,
)
"""The functions without a result that the trace keeps. They become regions, into which no match extends."""

_WITHOUT_RESULT = (operator.setitem, torch._check, torch._assert, torch._C._log_api_usage_once)
"""The functions without a result that the trace replaces with ops or assumptions, and one that computes nothing."""

_DEVICES = ("cpu", "cuda")

_KINDS = (torch.Tensor, nn.Parameter, nn.Buffer)


class LeftAloneError(Exception):
    """A graph contains something that would be lost in a program of ATen ops, so no rule is applied to it."""


def check_inputs(module: GraphModule, inputs: Sequence[Any]) -> None:
    """Checks that the inputs of a graph are plain tensors with values, and numbers.

    Raises:
        LeftAloneError: an input is of another kind.
    """
    for node, value in zip(module.graph.find_nodes(op="placeholder"), inputs, strict=True):
        if isinstance(value, FakeTensor):
            raise LeftAloneError(f"input {node.name} has no values, on which the matches would be tested")
        if isinstance(value, Tensor):
            if type(value) not in _KINDS or value.layout != torch.strided or value.is_quantized:
                raise LeftAloneError(f"input {node.name} is a {type(value).__name__} with layout {value.layout}")
            if value.device.type not in _DEVICES:
                raise LeftAloneError(f"input {node.name} is on {value.device.type}, for which there are no ops")
        elif not isinstance(value, int | float | torch.SymInt | torch.SymFloat):
            raise LeftAloneError(f"input {node.name} is a {type(value).__name__}")


def check_memory(module: GraphModule, inputs: Sequence[Any]) -> None:
    """Checks that no two inputs of a graph that writes in place share memory.

    Raises:
        LeftAloneError: two inputs share memory. The matcher assumes that only views within the graph do.
    """
    owners: dict[int, str] = {}
    for node, value in zip(module.graph.find_nodes(op="placeholder"), inputs, strict=True):
        if isinstance(value, Tensor) and value.numel():
            owner = owners.setdefault(value.untyped_storage()._cdata, node.name)
            if owner != node.name:
                raise LeftAloneError(f"the graph writes in place, and its inputs {owner} and {node.name} share memory")


def check_calls(module: GraphModule) -> None:
    """Checks that each call computes tensors or numbers, or has an effect that the trace keeps.

    Raises:
        LeftAloneError: a call is a region of its own, such as a checkpoint, or has only an effect, such as a hook.
    """
    for node in module.graph.nodes:
        if node.op in ("get_attr", "call_module"):
            raise LeftAloneError(f"the graph contains {node.target}, which is a region or a module of its own")
        if node.op not in ("call_function", "call_method") or node.target in (*MODES, *_WITHOUT_RESULT):
            continue
        if isinstance(node.target, torch._ops.HigherOrderOperator) or node.meta.get("example_value") is None:
            name = getattr(node.target, "__name__", str(node.target))
            raise LeftAloneError(f"the graph calls {name}, whose effect a graph of ops does not keep")


def check_sizes(traced: GraphModule, inputs: Sequence[Any], environment: ShapeEnv) -> None:
    """Checks that all symbolic sizes are at least 2, as matching assumes, and adds a guard where Dynamo has none.

    Dynamo guards it for the sizes of tensors, but not for numbers that a function takes.

    Raises:
        LeftAloneError: a size is 0 or 1 on this call, or depends on the values of a tensor.
    """
    if any(free_unbacked_symbols(node.meta.get("val")) for node in traced.graph.nodes):
        raise LeftAloneError("a size depends on the values of a tensor")
    for symbol in sorted(free_symbols(list(inputs)), key=str):
        if symbol.is_integer and not environment.evaluate_expr(sympy.Ge(symbol, 2)):
            raise LeftAloneError(f"the size {symbol} is less than 2")

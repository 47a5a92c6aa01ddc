"""Programs for the tests of rules: modules captured with a dynamic first axis, and small models."""

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from fuseconv.contract.spec import Contract
from fuseconv.graph.op_aliases import name_ops_once
from fuseconv.program.captured import Program


class Function(torch.nn.Module):
    """A function of (module, inputs) with the given parameters and buffers."""

    def __init__(
        self,
        function: Callable[..., Any],
        parameters: Mapping[str, Tensor] | None = None,
        buffers: Mapping[str, Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.function = function
        for name, tensor in (parameters or {}).items():
            self.register_parameter(name, torch.nn.Parameter(tensor, requires_grad=False))
        for name, tensor in (buffers or {}).items():
            self.register_buffer(name, tensor)

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(self, *inputs)


def capture(module: torch.nn.Module, *inputs: Tensor, dims: Any = None, **settings: bool) -> Program:
    """Captures a module; every input's first axis is the dynamic size `n`, unless `dims` says otherwise."""
    n = torch.export.Dim("n", min=1, max=64)
    shapes = tuple({0: n} if tensor.dim() else {} for tensor in inputs) if dims is None else dims
    # Whatever forward's signature is, inputs go in by position.
    return program(module, inputs, (shapes,) if _is_variadic(module) else shapes, **settings)


def program(
    module: torch.nn.Module, inputs: tuple[Tensor, ...], dims: Any = None, *, lines: bool = False, repeats: bool = False
) -> Program:
    """Captures a module; `dims` is what torch.export calls dynamic shapes.

    The lines of the module that call the ops are recorded only if a test asks for them by `lines`: to walk the stack of
    pytest for each node takes a tenth of a capture. torch's cache of fake tensors is used only for a module that
    `repeats` a layer many times: to fill it takes longer than what a small module finds in it.
    """
    with (
        recorded_lines(lines),
        torch._dynamo.config.patch(fake_tensor_cache_enabled=repeats),
    ):
        exported = torch.export.export(module.eval(), inputs, dynamic_shapes=dims)
    name_ops_once(exported)
    return Program(exported, Contract((), ()), inputs)


def recorded_lines(are_wanted: bool) -> AbstractContextManager[object]:
    """Records in a capture the lines that call the ops, or not, where this version of torch lets one choose."""
    if not hasattr(torch.fx.config, "do_not_emit_stack_traces"):
        return nullcontext()
    return patch.object(torch.fx.config, "do_not_emit_stack_traces", not are_wanted)


def _is_variadic(module: torch.nn.Module) -> bool:
    return isinstance(module, Function | Outputs)


def run(program: Program, inputs: Sequence[Tensor] | None = None) -> tuple[Tensor, ...]:
    """Runs a program on clones of its inputs, its state as it was before and after."""
    state = copy.deepcopy(program.exported.state_dict)
    result = program.exported.module()(*(tensor.clone() for tensor in inputs or program.examples))
    for name, tensor in program.exported.state_dict.items():
        with torch.no_grad():
            tensor.copy_(state[name])
    return result


class Outputs(torch.nn.Module):
    """A transformers model as tensors in, tuple of tensors out."""

    def __init__(self, model: torch.nn.Module, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        super().__init__()
        self.model = model
        self.inputs = inputs
        self.outputs = outputs

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        results = self.model(**dict(zip(self.inputs, tensors, strict=True)))
        return tuple(results[name] for name in self.outputs)


def bert(layers: int = 2) -> Program:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=32, num_hidden_layers=layers, num_attention_heads=4, intermediate_size=64, vocab_size=100
    )
    module = Outputs(
        seeded(BertModel, config).double(), ("input_ids", "attention_mask"), ("last_hidden_state", "pooler_output")
    )
    batch, length = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("length", min=2, max=512)
    ids = torch.randint(0, 100, (2, 7), generator=torch.Generator().manual_seed(0))
    dims = ({0: batch, 1: length}, {0: batch, 1: length})
    return capture(module, ids, torch.ones_like(ids), dims=dims, repeats=layers > 2)


def vit() -> Program:
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=32, patch_size=8
    )
    module = Outputs(seeded(ViTModel, config).double(), ("pixel_values",), ("last_hidden_state",))
    return capture(module, torch.randn(2, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))


def resnet() -> Program:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    module = Outputs(seeded(ResNetForImageClassification, config).double(), ("pixel_values",), ("logits",))
    return capture(module, torch.randn(2, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))


def seeded(model: Callable[[Any], torch.nn.Module], config: object) -> torch.nn.Module:
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers and torch, about each other, at import and construction
        torch.manual_seed(0)
        return model(config)

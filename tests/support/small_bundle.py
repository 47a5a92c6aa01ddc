"""A small model in two spellings, plain and fused, and its bundle, for the tests of bundles."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import fuseconv
from fuseconv import ops
from fuseconv.bundle.manifest import (
    PLAN,
    Manifest,
    RuleUse,
    Source,
    check_replaceable,
    seal,
)
from fuseconv.bundle.staging import staged
from fuseconv.capture.capture import capture
from fuseconv.contract.input_text import parse_inputs
from fuseconv.contract.inputs import draw, example_sizes
from fuseconv.contract.spec import Contract
from fuseconv.matching.steps import Plan
from fuseconv.numerics.tolerance import TOLERANCES
from fuseconv.parity.cases import cases
from fuseconv.parity.reference import REFERENCE, refer, write_reference
from fuseconv.parity.verification import verify
from fuseconv.program.captured import Program
from fuseconv.runtime.environment import environment
from fuseconv.sources import Subject
from fuseconv.targets import TARGETS, Context
from fuseconv.weights.store import Store, weights_of

INPUTS = ("x=f32[batch:1..16,seq:1..32,8]", "skip=f32[batch,seq,8]", "keep=bool[batch,seq]")


class Block(torch.nn.Module):
    """A transformer's feed-forward part with every op of the library in it; `fused` chooses the spelling."""

    scale: torch.Tensor

    def __init__(self, fused: bool) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.fused = fused
        self.up = torch.nn.Linear(8, 24)
        self.down = torch.nn.Linear(24, 8)
        self.norm = torch.nn.LayerNorm(8)
        self.tied = self.norm.weight
        self.shift = torch.nn.Parameter(torch.zeros(8))
        self.register_buffer("scale", torch.ones(()), persistent=False)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)

    def op(self, op: ops.Op[..., Any]) -> Callable[..., torch.Tensor]:
        return op if self.fused else op.reference

    def forward(self, x: torch.Tensor, skip: torch.Tensor, keep: torch.Tensor) -> tuple[torch.Tensor, ...]:
        hidden = self.op(ops.linear_act)(x, self.up.weight, self.up.bias, None, "gelu")
        out = self.op(ops.linear_act)(hidden, self.down.weight, self.down.bias, skip, "none")
        normed, total = self.op(ops.add_layer_norm)(out, x, self.norm.weight, self.norm.bias, 1e-5, True)
        acted = self.op(ops.layer_norm_act)(normed, self.tied, None, 1e-5, "silu")
        acted = self.op(ops.bias_act)(acted, self.shift, "tanh")
        mixed = self.op(ops.mul_add)(acted, total, skip * self.scale)
        kept = torch.where(keep[..., None], self.op(ops.add_relu)(mixed, self.shift), 0.0)
        return kept, total.mean(1), keep.sum(1), ~keep


def program(module: torch.nn.Module, inputs: Sequence[str] = INPUTS, device: str = "cpu") -> Program:
    """Captures a module."""
    contract = Contract(parse_inputs(list(inputs)), (), device)
    examples = draw(contract, example_sizes(contract), seed=1)
    # A small module finds less in torch's cache of fake tensors than it takes to fill it.
    with torch._dynamo.config.patch(fake_tensor_cache_enabled=False):
        return capture(Subject(module.eval(), examples, contract, (), "pickle", "0" * 64))


def write_bundle(original: Program, fused: Program, output: Path, targets: Sequence[str], *, scratch: Path) -> Manifest:
    """Writes a bundle as the pipeline does."""
    with staged(output, check_replaceable) as folder:
        store = Store.create(folder, weights_of(fused.exported))
        context = Context(scratch, store=store)
        artifacts = {name: TARGETS[name].write(fused, folder, context).as_posix() for name in targets}
        (folder / "lib").mkdir(exist_ok=True)  # the target onnx-plugin has made it
        for library in ops.library_paths(fused.contract.device):
            (folder / "lib" / library.name).write_bytes(library.read_bytes())
        write_reference(folder / REFERENCE, refer(original, cases(original)), fused.contract)
        (folder / PLAN).write_text(Plan(()).to_json())
        draft = Manifest(
            fuseconv=fuseconv.__version__,
            source=Source(form="pickle", sha256="0" * 64),
            contract=fused.contract,
            dtype="f32",
            targets=artifacts,
            rules=[RuleUse(name="linear-gelu", sha256="1" * 64, count=1)],
            libraries=[f"lib/{library.name}" for library in ops.library_paths(fused.contract.device)],
            environment=environment(fused.contract.device),
            tolerances={
                str(dtype).removeprefix("torch."): dataclasses.asdict(row) for dtype, row in TOLERANCES.items()
            },
            parity=[],
            mismatch=False,
        )
        seal(folder, draft)
        report = verify(folder)
        rows = report.to_json()["rows"]
        return seal(folder, draft.model_copy(update={"parity": rows, "mismatch": not report.ok}))

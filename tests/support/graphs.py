"""Bundles for CUDA graphs, and inputs for them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fuseconv.capture.placement import place
from fuseconv.contract.buckets import Buckets
from fuseconv.parity import padding
from support import small_bundle
from support.small_bundle import Block

TARGETS = ["aoti", "torchscript"]


BUCKETS = Buckets("batch", (4, 8))


def write(folder: Path, original: Block, fused: Block, targets: list[str], buckets: Buckets | None = None) -> Path:
    programs = [small_bundle.program(module) for module in (original, fused)]
    programs = [place(program, "cuda") for program in programs]
    if buckets is not None:
        proved = padding.prove(programs[0], buckets)
        programs = [replace(program, contract=proved.contract) for program in programs]
    output = folder / f"{'-'.join(targets)}.fuseconv"
    manifest = small_bundle.write_bundle(programs[0], programs[1], output, targets, scratch=folder)
    assert not manifest.mismatch, manifest.parity
    return output


@pytest.fixture(scope="module")
def graphs_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("graphs"), Block(fused=False), Block(fused=True), [*TARGETS, "export"])


@pytest.fixture(scope="module")
def padded_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("padded"), Block(fused=False), Block(fused=True), ["torchscript"], BUCKETS)


def draw(batch: int, seq: int, seed: int = 0) -> tuple[Tensor, ...]:
    generator = torch.Generator("cuda").manual_seed(seed * 10_000 + batch * 100 + seq)
    x, skip = torch.randn(2, batch, seq, 8, generator=generator, device="cuda")
    return x.clone(), skip.clone(), torch.rand(batch, seq, generator=generator, device="cuda") > 0.5

"""Tokens per second of `generate`: a bundle against transformers with the same model, batch and tokens.

    python bench/generate.py OUT.json [--device cuda] [--model NAME ...] [--target NAME ...] [--folder SCRATCH]

On a GPU, `--model t5-small` and `--model whisper-tiny` take less than 200 s each, in calls of their own: a conversion
that has not ended after `--limit` seconds is given up. The rows of a batch are written when they are measured.

The models have the sizes of well-known ones and random weights, in f32. Contestants take turns; a row has the fastest
of the rounds, in wall time and in processor time of all threads, because other programs share the machine. ONNX Runtime
has threads of its own, so compare it by processor time. `equal` is the share of the new tokens that are those of
transformers, up to the first one of a sequence that differs.

Contestants are the bundle's targets, and transformers with its default cache, with a static cache, and with a static
cache and the model's `forward` compiled by torch.compile, as transformers does it on CUDA. What does not run has a row
with the reason in `absent`.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from record import LONGEST_REASON, Row, machine, reason, write
from torch import Tensor

import fuseconv
from fuseconv.bundle.methods import has_methods
from fuseconv.sources import Options

NEW_TOKENS = 64
CACHE = 128
PROMPT = 32
ROUNDS = 5
BATCHES = (1, 4)
_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}

Generate = Callable[[], Tensor]


def decoder() -> Any:
    """A decoder of 4 layers and 28 million parameters, with grouped queries."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 4, "vocab_size": 16_000}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=8, num_key_value_heads=4, **_TOKENS))


def t5_small() -> Any:
    """The sizes of t5-small: 60 million parameters."""
    from transformers import T5Config, T5ForConditionalGeneration

    return T5ForConditionalGeneration(T5Config(decoder_start_token_id=0))


def whisper_tiny() -> Any:
    """The sizes of whisper-tiny: 38 million parameters, 30 seconds of speech."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    layers = {"encoder_layers": 4, "decoder_layers": 4, "encoder_attention_heads": 6, "decoder_attention_heads": 6}
    sizes = {"d_model": 384, "encoder_ffn_dim": 1536, "decoder_ffn_dim": 1536}
    no_tokens: dict[str, Any] = {"suppress_tokens": None, "begin_suppress_tokens": None}
    return WhisperForConditionalGeneration(WhisperConfig(**layers, **sizes, **no_tokens, **_TOKENS))


MODELS: Mapping[str, Callable[[], Any]] = {"decoder": decoder, "t5-small": t5_small, "whisper-tiny": whisper_tiny}


def inputs_of(model: Any, batch: int) -> dict[str, Any]:
    """Returns the inputs of a batch. The prompts of a decoder are padded on the left, by another length in each row."""
    generator = torch.Generator().manual_seed(batch)
    if model.main_input_name == "input_features":
        length = 2 * model.config.max_source_positions
        return {"input_features": torch.randn(batch, model.config.num_mel_bins, length, generator=generator)}
    tokens = torch.randint(8, model.config.vocab_size, (batch, PROMPT), generator=generator)
    mask = torch.ones_like(tokens)
    for row in range(batch):
        mask[row, :row] = 0
    return {"input_ids": tokens * mask, "attention_mask": mask}


def saved(name: str, folder: Path) -> Any:
    """Returns a model, and writes its folder."""
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    model.save_pretrained(folder / name)
    return model


def convert(model: str, bundle: str, target: str, device: str, cache: str) -> None:
    """Converts the methods of a model for one target. `main` runs this in a process per target."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(model)
    methods = ("encode", "prefill", "decode") if config.is_encoder_decoder else ("prefill", "decode")
    options = {method: Options(method=method, cache_length=int(cache), device=device) for method in methods}
    fuseconv.convert_methods(model, options, target=[target], output=bundle, tune="none")


class Conversion:
    """A conversion in a process of its own, which has begun, unless the folder has its bundle."""

    def __init__(self, name: str, folder: Path, target: str, device: str) -> None:
        self.bundle = folder / f"{name}-{target}-{device}.fuseconv"
        self._log = (folder / f"{name}-{target}-{device}.log").open("w+")
        words = [str(folder / name), str(self.bundle), target, device, str(CACHE)]
        command = [] if has_methods(self.bundle) else [sys.executable, __file__, "--convert", *words]
        self._process = subprocess.Popen(command, stderr=self._log) if command else None  # noqa: S603 - this file

    def end(self, at: float) -> str | None:
        """Waits for the end, at most until a time. Returns why there is no bundle, or None if there is."""
        if self._process is None:
            return None
        try:
            status = self._process.wait(max(at - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return "the conversion did not end in time"
        self._log.seek(0)
        said = self._log.read().strip().splitlines()
        errors = [line for line in said if re.match(r"[\w.]+(Error|Interrupt): ", line)]
        return None if status == 0 else errors[-1][:LONGEST_REASON] if errors else f"exit {status}"


def measure(name: str, folder: Path, targets: list[str], device: str, limit: float) -> Iterator[list[Row]]:
    """Yields the rows of each batch. The conversions run side by side, while transformers compiles its model."""
    from transformers import GenerationMixin

    end = time.monotonic() + limit
    model = saved(name, folder)
    begun = {target: Conversion(name, folder, target, device) for target in targets}
    model.to(device)
    options: dict[str, Any] = {"max_new_tokens": NEW_TOKENS, "eos_token_id": None, "do_sample": False}
    static = {"cache_implementation": "static"}
    caches = {"transformers": {}, "static cache": {**static, "disable_compile": True}}
    if device == "cuda":  # transformers compiles nowhere else by itself
        caches["static cache, compiled"] = static
    batches = {}
    for batch in BATCHES:
        given = {key: tensor.to(device) for key, tensor in inputs_of(model, batch).items()}
        batches[batch] = Turns(
            {
                cache: lambda given=given, how={**options, **more}: GenerationMixin.generate(model, **given, **how)
                for cache, more in caches.items()
            }
        )
    for turns in batches.values():
        turns.warm()
    lost = {target: conversion.end(end) for target, conversion in begun.items()}
    loaded = {target: fuseconv.load(begun[target].bundle, target=target) for target, why in lost.items() if why is None}
    for batch, turns in batches.items():
        given = {key: tensor.to(device) for key, tensor in inputs_of(model, batch).items()}
        for target, one in loaded.items():
            turns.add(target, lambda of=one, given=given: of.generate(**given, max_new_tokens=NEW_TOKENS, eos=[]))
        turns.warm()
        rows = [*turns.rows(device), *({"contestant": target, "absent": why} for target, why in lost.items() if why)]
        yield [{"model": name, "batch": batch, **row} for row in rows]


class Turns:
    """Contestants that take turns."""

    def __init__(self, contestants: Mapping[str, Generate]) -> None:
        self._contestants = dict(contestants)
        self._tokens: dict[str, Tensor] = {}
        self._absent: list[Row] = []

    def add(self, name: str, generate: Generate) -> None:
        """Adds a contestant."""
        self._contestants[name] = generate

    def warm(self) -> None:
        """Calls those that were not called yet, so that they compile and capture. Removes those that fail."""
        for name in [name for name in self._contestants if name not in self._tokens]:
            try:
                for _ in range(2):
                    self._tokens[name] = self._contestants[name]()
            except Exception as error:  # noqa: BLE001 - that a contestant fails is a result
                del self._contestants[name]
                self._absent.append({"contestant": name, "absent": reason(error)})

    def rows(self, device: str) -> list[Row]:
        """Measures, and returns the row of each contestant."""
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in self._contestants}
        for _ in range(ROUNDS):
            for name, taken in times.items():
                start = time.perf_counter(), time.process_time()
                self._tokens[name] = self._contestants[name]()
                if device == "cuda":
                    torch.cuda.synchronize()
                taken.append((time.perf_counter() - start[0], time.process_time() - start[1]))
        expected = self._tokens["transformers"][:, -NEW_TOKENS:]
        rows = list(self._absent)
        for name, taken in times.items():
            same = (self._tokens[name][:, -NEW_TOKENS:] == expected).cumprod(1)
            wall, processor = (round(same.numel() / min(column), 1) for column in zip(*taken, strict=True))
            equal = round(float(same.float().mean()), 4)
            rows.append({"contestant": name, "tokens_per_s": wall, "tokens_per_cpu_s": processor, "equal": equal})
        return rows


def main() -> None:
    """Measures, and writes the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--model", action="append", choices=MODELS)
    parser.add_argument("--target", action="append")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--limit", type=float, default=150, help="seconds for the conversions of a model")
    options = parser.parse_args()
    all_targets = ["aoti", "torchscript"] if options.device == "cuda" else ["aoti", "torchscript", "onnx"]
    with tempfile.TemporaryDirectory() as scratch, torch.no_grad():
        folder = options.folder or Path(scratch)
        for name in options.model or MODELS:
            for rows in measure(name, folder, options.target or all_targets, options.device, options.limit):
                for row in rows:
                    print(row, flush=True)
                about = machine(options.device, ["transformers"])
                write(options.output, rows, about, ["model", "batch", "contestant"])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--convert"]:
        convert(*sys.argv[2:])
    else:
        main()

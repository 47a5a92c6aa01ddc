"""Tokens per second of `generate`: a bundle against transformers with the same model, batch and tokens.

    python bench/generate.py OUT.json [--device cuda] [--model NAME ...] [--target NAME ...] [--folder SCRATCH]

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
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from record import Row, machine, reason, write
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


def inputs_of(name: str, model: Any, batch: int) -> dict[str, Any]:
    """Returns the inputs of a batch. The prompts of a decoder are padded on the left, by another length in each row."""
    generator = torch.Generator().manual_seed(batch)
    if name == "whisper-tiny":
        return {"input_features": torch.randn(batch, 80, 3000, generator=generator)}
    tokens = torch.randint(8, model.config.vocab_size, (batch, PROMPT), generator=generator)
    mask = torch.ones_like(tokens)
    for row in range(batch):
        mask[row, :row] = 0
    return {"input_ids": tokens * mask, "attention_mask": mask}


def convert(name: str, folder: Path, targets: list[str], device: str) -> tuple[Any, Path]:
    """Returns a model, and the bundle of its methods, which is kept in the folder."""
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    bundle = folder / f"{name}-{device}.fuseconv"
    if not has_methods(bundle):
        model.save_pretrained(folder / name)
        methods = ("encode", "prefill", "decode") if model.config.is_encoder_decoder else ("prefill", "decode")
        options = {method: Options(method=method, cache_length=CACHE, device=device) for method in methods}
        fuseconv.convert_methods(folder / name, options, target=targets, output=bundle, tune="none")
    return model.to(device), bundle


def measure(name: str, folder: Path, targets: list[str], device: str) -> list[Row]:
    """Returns a row per batch and contestant."""
    from transformers import GenerationMixin

    model, bundle = convert(name, folder, targets, device)
    loaded: dict[str, Any] = {target: fuseconv.load(bundle, target=target) for target in targets}
    rows = []
    for batch in BATCHES:
        inputs = {key: tensor.to(device) for key, tensor in inputs_of(name, model, batch).items()}
        options: dict[str, Any] = {"max_new_tokens": NEW_TOKENS, "eos_token_id": None, "do_sample": False}
        static = {"cache_implementation": "static"}
        caches = {"transformers": {}, "static cache": {**static, "disable_compile": True}}
        if device == "cuda":  # transformers compiles nowhere else by itself
            caches["static cache, compiled"] = static
        contestants: dict[str, Generate] = {
            cache: lambda given=inputs, how={**options, **more}: GenerationMixin.generate(model, **given, **how)
            for cache, more in caches.items()
        }
        for target, one in loaded.items():
            contestants[target] = lambda of=one, given=inputs: of.generate(**given, max_new_tokens=NEW_TOKENS, eos=[])
        rows += [{"model": name, "batch": batch, **row} for row in _turns(contestants, device)]
    return rows


def _turns(contestants: Mapping[str, Generate], device: str) -> list[Row]:
    times: dict[str, list[tuple[float, float]]] = {}
    tokens: dict[str, Tensor] = {}
    rows: list[Row] = []
    for name, generate in contestants.items():
        try:
            for _ in range(2):  # compiles, and captures
                tokens[name] = generate()
            times[name] = []
        except Exception as error:  # noqa: BLE001 - that a contestant fails is a result
            rows.append({"contestant": name, "absent": reason(error)})
    for _ in range(ROUNDS):
        for name, taken in times.items():
            start = time.perf_counter(), time.process_time()
            tokens[name] = contestants[name]()
            if device == "cuda":
                torch.cuda.synchronize()
            taken.append((time.perf_counter() - start[0], time.process_time() - start[1]))
    expected = tokens["transformers"][:, -NEW_TOKENS:]
    for name, taken in times.items():
        same = (tokens[name][:, -NEW_TOKENS:] == expected).cumprod(1)
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
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, torch.no_grad():
        folder = options.folder or Path(scratch)
        for name in options.model or MODELS:
            all_targets = ["aoti", "torchscript"] if options.device == "cuda" else ["aoti", "torchscript", "onnx"]
            rows = measure(name, folder, options.target or all_targets, options.device)
            for row in rows:
                print(row, flush=True)
            write(options.output, rows, machine(options.device, ["transformers"]), ["model", "batch", "contestant"])


if __name__ == "__main__":
    main()

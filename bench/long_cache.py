"""Milliseconds per token of `generate` with a cache that is large for its model, with bundles of several versions.

    python bench/long_cache.py OUT.json LABEL=BUNDLE ... [--convert] [--device cuda] [--target NAME ...] [--batch N ...]

With --convert, a bundle that does not exist is converted first: a decoder of 4 layers with 8 heads of 64 and a cache of
2,048 positions, in f32 on a CPU and in bf16 on a GPU. Contestants take turns. A row has the median over the rounds of
the time per token: that of 2 + NEW tokens without that of 2 tokens. `generate` reads the whole cache in each step, so a
short prompt costs as much as a long one. `equal` says whether the tokens are those of the first contestant.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from record import Row, machine, write
from torch import Tensor

import fuseconv
from fuseconv.sources import Options

CACHE = 2048
NEW = 24
ROUNDS = 5
_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def convert(bundle: Path, targets: Sequence[str], device: str) -> None:
    """Converts the decoder."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 4, "vocab_size": 16_000}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 8, "max_position_embeddings": CACHE}
    folder = bundle.with_suffix(".model")
    LlamaForCausalLM(LlamaConfig(**sizes, **heads, **_TOKENS)).save_pretrained(folder)
    dtype = "bf16" if device == "cuda" else None
    names = ("prefill", "decode")
    methods = {name: Options(method=name, cache_length=CACHE, device=device, dtype=dtype) for name in names}
    fuseconv.convert_methods(folder, methods, target=list(targets), output=bundle, tune="none")


def contestant(bundle: Path, target: str, batch: int, device: str) -> Callable[[int], Tensor]:
    """Returns a function that generates a number of tokens."""
    model: Any = fuseconv.load(bundle, target=target)
    generator = torch.Generator().manual_seed(batch)
    tokens = torch.randint(8, 16_000, (batch, 4), generator=generator).to(device)

    def generate(count: int) -> Tensor:
        found: Tensor = model.generate(input_ids=tokens, max_new_tokens=count, eos=[])
        return found.cpu()

    return generate


def seconds(generate: Callable[[int], Tensor], count: int) -> tuple[float, float]:
    """Returns the wall time and the processor time of a generation."""
    start = time.perf_counter(), time.process_time()
    generate(count)
    return time.perf_counter() - start[0], time.process_time() - start[1]


def measure(bundles: dict[str, Path], targets: Sequence[str], batch: int, device: str) -> list[Row]:
    """Returns a row per bundle and target."""
    known = [(label, target) for label in bundles for target in targets]
    contestants = {key: contestant(bundles[key[0]], key[1], batch, device) for key in known}
    tokens = {key: [generate(2 + NEW) for _ in range(3)][-1] for key, generate in contestants.items()}  # captures
    times: dict[tuple[str, str], list[tuple[float, float]]] = {key: [] for key in known}
    for _ in range(ROUNDS):
        for key, generate in contestants.items():
            short, long = seconds(generate, 2), seconds(generate, 2 + NEW)
            times[key].append(((long[0] - short[0]) / NEW, (long[1] - short[1]) / NEW))
    rows: list[Row] = []
    for (label, target), taken in times.items():
        wall, processor = (round(statistics.median(column) * 1e3, 3) for column in zip(*taken, strict=True))
        equal = torch.equal(tokens[label, target], tokens[known[0]])
        row = {"bundle": label, "target": target, "batch": batch, "ms": wall, "cpu_ms": processor, "equal": equal}
        rows.append(row)
        print(row, flush=True)
    return rows


def main() -> None:
    """Measures, and writes the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("bundles", nargs="+", metavar="LABEL=BUNDLE")
    parser.add_argument("--convert", action="store_true")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--target", nargs="+", default=["aoti", "torchscript"])
    parser.add_argument("--batch", nargs="+", type=int, default=[4])
    options = parser.parse_args()
    if options.device == "cpu":
        torch.set_num_threads(1)
    bundles = {label: Path(path) for label, _, path in (text.partition("=") for text in options.bundles)}
    for bundle in bundles.values():
        if options.convert and not bundle.exists():
            convert(bundle, options.target, options.device)
    rows = [row for batch in options.batch for row in measure(bundles, options.target, batch, options.device)]
    write(options.output, rows, machine(options.device), ("bundle", "target", "batch"))


if __name__ == "__main__":
    main()

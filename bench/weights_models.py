"""The models of bench/weights.py, as folders of safetensors files: that of `make demo`, and three of random weights."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from fuseconv.commands.demonstration import model_folder

DEMO = "demo"


def demo(_folder: Path) -> Path:
    """The model of `make demo`: 91 MB."""
    return model_folder()


def bert_large(folder: Path) -> Path:
    """The sizes of bert-large, in f32: 335 million parameters, 1,340 MB."""
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
    return _saved(folder / "bert-large", lambda: BertModel(BertConfig(**sizes)), torch.float32)


def decoder_1b(folder: Path) -> Path:
    """The sizes of Llama 3.2 1B without the last linear layer, in bf16: 1,236 million parameters, 2,472 MB."""
    from transformers import LlamaConfig, LlamaModel

    sizes = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "vocab_size": 128_256}
    heads = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64}
    return _saved(
        folder / "decoder-1b", lambda: LlamaModel(LlamaConfig(**sizes, **heads, use_cache=False)), torch.bfloat16
    )


def decoder_7b(folder: Path, layers: int = 32) -> Path:
    """The sizes of Llama 2 7B without the last linear layer, in bf16: 6,607 million parameters, 13,215 MB."""
    from transformers import LlamaConfig, LlamaModel
    from transformers.initialization import no_init_weights

    sizes = {"hidden_size": 4096, "intermediate_size": 11_008, "num_attention_heads": 32, "vocab_size": 32_000}
    config = LlamaConfig(**sizes, num_hidden_layers=layers, use_cache=False)

    def make() -> LlamaModel:
        with no_init_weights():  # one thread would draw its numbers for minutes
            model = LlamaModel(config)
        draw([parameter for parameter in model.parameters() if parameter.dim() > 1], config.initializer_range)
        return model

    return _saved(folder / "decoder-7b", make, torch.bfloat16)


def draw(parameters: Sequence[torch.nn.Parameter], deviation: float) -> None:
    """Fills parameters with random numbers of a normal distribution, one thread per core."""

    def fill(at: int) -> None:
        parameters[at].data.normal_(0, deviation, generator=torch.Generator().manual_seed(at))

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(fill, range(len(parameters))))


MODELS: Mapping[str, Callable[[Path], Path]] = {
    DEMO: demo,
    "bert-large": bert_large,
    "decoder-1b": decoder_1b,
    "decoder-7b": decoder_7b,
}
"""What writes the folder of each model, unless it is there, and returns its path."""


def _saved(folder: Path, make: Callable[[], Any], dtype: torch.dtype) -> Path:
    if not (folder / "config.json").exists():
        torch.manual_seed(0)
        default = torch.get_default_dtype()
        torch.set_default_dtype(dtype)  # a model of this size is not made in f32 first
        try:
            make().eval().save_pretrained(folder, max_shard_size="5GB")
        finally:
            torch.set_default_dtype(default)
    return folder

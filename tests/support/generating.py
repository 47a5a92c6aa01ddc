"""Small models of transformers that generate tokens, and their methods as loaded models without a bundle."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import fuseconv
from fuseconv.bundle.generation import Generation
from fuseconv.bundle.methods import MethodsManifest
from fuseconv.contract.inputs import draw, example_sizes
from fuseconv.contract.options import Options
from fuseconv.contract.spec import Contract
from fuseconv.runtime.methods import Methods
from fuseconv.runtime.model import Model
from fuseconv.sources import generating
from fuseconv.sources.huggingface import _inputs
from support import ROOT

VOCABULARY = 96
LENGTH = 24
_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def llama() -> Any:
    """A decoder of two layers, with fewer heads for keys and values than for queries."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "max_position_embeddings": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": VOCABULARY}
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads, **_TOKENS))


def gpt2() -> Any:
    """A decoder of one layer with learned positions."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=VOCABULARY, n_positions=64, **_TOKENS))


def t5() -> Any:
    """An encoder and a decoder of text."""
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4}
    return T5ForConditionalGeneration(T5Config(vocab_size=VOCABULARY, decoder_start_token_id=0, **sizes))


def whisper() -> Any:
    """An encoder of spectrograms and a decoder of text, which suppresses some tokens."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    layers = {"encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    sizes = {"d_model": 32, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "num_mel_bins": 8, "vocab_size": VOCABULARY}
    lengths = {"max_source_positions": 10, "max_target_positions": 32, "decoder_start_token_id": 3}
    suppressed = {"suppress_tokens": [5, 6], "begin_suppress_tokens": [7, 2]}
    return WhisperForConditionalGeneration(WhisperConfig(**layers, **sizes, **lengths, **suppressed, **_TOKENS))


MODELS: Mapping[str, Callable[[], Any]] = {"llama": llama, "gpt2": gpt2, "t5": t5, "whisper": whisper}


def made(name: str) -> Any:
    """Returns a model with random weights, large enough that its tokens vary."""
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)
    return model


PAGE = (ROOT / "docs" / "generation.md").read_text()
PAGE_LENGTH = 32


def blocks(language: str) -> list[str]:
    """Returns the code of the page about generation."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def write_page(folder: Path, targets: Sequence[str] = ("torchscript", "onnx"), device: str = "cpu") -> None:
    """Writes the model of the page about generation, and its bundle for some targets."""
    (code,) = [one for one in blocks("python") if "save_pretrained" in one]
    folder.mkdir()
    with contextlib.chdir(folder):
        exec(code, {})
        names = ("prefill", "decode")
        methods = {name: Options(method=name, cache_length=PAGE_LENGTH, device=device) for name in names}
        fuseconv.convert_methods("llama", methods, target=list(targets))


def page_model(folder: Path) -> Any:
    """Returns the model of the page."""
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(folder / "llama")


def inputs_of(name: str) -> dict[str, Any]:
    """Returns three inputs of a model. Those of text have different lengths: padding is before a prompt, or after."""
    generator = torch.Generator().manual_seed(1)
    if name == "whisper":
        return {"input_features": torch.randn(3, 8, 20, generator=generator)}
    tokens = torch.randint(8, VOCABULARY, (3, 7), generator=generator)
    mask = torch.ones_like(tokens)
    for row, padded in enumerate((3, 1)):
        mask[row, slice(7 - padded, None) if name == "t5" else slice(padded)] = 0
    return {"input_ids": tokens * mask, "attention_mask": mask}


def methods_of(model: Any, generation: Generation) -> Methods:
    """Returns the methods of a model, computed by the model itself."""
    names = generating.KNOWN if generation.start else ("prefill", "decode")
    manifest = MethodsManifest(fuseconv="", methods=list(names), generation=generation)
    return Methods(manifest, {name: method_of(model, name) for name in names}, Path())


def method_of(model: Any, name: str) -> Model:
    """Returns a method of a model, computed by the model itself, that checks its inputs."""
    options = Options(method=name, cache_length=LENGTH)
    loaded = generating.load(model, _inputs(model, options), options)
    contract = Contract(loaded.inputs, (), state=loaded.state)

    def run(*inputs: Tensor) -> dict[str, Tensor]:
        out = loaded.module(**dict(zip(loaded.call, inputs, strict=True))) if loaded.call else loaded.module(*inputs)
        return dict(out)

    with torch.no_grad():
        outputs = tuple(run(*draw(contract, example_sizes(contract), seed=0)))
    contract = Contract(loaded.inputs, outputs, state=loaded.state)
    return Model(contract, "eager", lambda *inputs: tuple(run(*inputs).values()))

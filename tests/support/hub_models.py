"""Models of the transformers library, two layers each, random weights: small enough to be captured in a test.

They are captured with torch's cache of fake tensors, as by a conversion: the numbers in names of nodes depend on it.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from fuseconv.program.captured import Program
from support import programs
from support.programs import Outputs


def text(
    model: str, config: str, outputs: tuple[str, ...] = ("last_hidden_state",), **options: Any
) -> Callable[[torch.dtype], Program]:
    """A model of `input_ids` alone: the attention mask, if there is one, depends on no input."""
    batch, length = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("length", min=2, max=512)
    ids = torch.randint(0, 100, (2, 7), generator=torch.Generator().manual_seed(0))

    def build(dtype: torch.dtype) -> Program:
        module = Outputs(built(model, config, options).to(dtype), ("input_ids",), outputs)
        return programs.capture(module, ids, dims=({0: batch, 1: length},), repeats=True)

    return build


def pixels(
    model: str, config: str, outputs: tuple[str, ...] = ("last_hidden_state",), **options: Any
) -> Callable[[torch.dtype], Program]:
    """A model of images of 32 by 32."""

    def build(dtype: torch.dtype) -> Program:
        module = Outputs(built(model, config, options).to(dtype), ("pixel_values",), outputs)
        return programs.capture(module, noise(2, 3, 32, 32, dtype=dtype), repeats=True)

    return build


def built(model: str, config: str, options: Mapping[str, Any]) -> torch.nn.Module:
    import transformers

    return programs.seeded(getattr(transformers, model), getattr(transformers, config)(**options))


def noise(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def whisper(dtype: torch.dtype) -> Program:
    import transformers

    config = transformers.WhisperConfig(
        d_model=32,
        encoder_layers=2,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=320,
        decoder_ffn_dim=64,
        num_mel_bins=8,
        max_source_positions=16,
        vocab_size=100,
        pad_token_id=0,
    )
    encoder = programs.seeded(transformers.WhisperModel, config).get_submodule("encoder").to(dtype)
    return programs.capture(
        Outputs(encoder, ("input_features",), ("last_hidden_state",)), noise(2, 8, 32, dtype=dtype), repeats=True
    )


class Mixer(torch.nn.Module):
    """MLP-Mixer, two blocks: layers over the positions, transposed, then over the channels."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = torch.nn.Conv2d(3, 32, 8, 8)
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(32) for _ in range(5))
        self.over_positions = torch.nn.ModuleList(mlp(16, 24) for _ in range(2))
        self.over_channels = torch.nn.ModuleList(mlp(32, 320) for _ in range(2))

    def forward(self, image: Tensor) -> tuple[Tensor]:
        x = self.patches(image).flatten(2).transpose(1, 2)
        for at in range(2):
            x = x + self.over_positions[at](self.norms[2 * at](x).transpose(1, 2)).transpose(1, 2)
            x = x + self.over_channels[at](self.norms[2 * at + 1](x))
        return (self.norms[4](x).mean(1),)


def mlp(width: int, hidden: int) -> torch.nn.Sequential:
    return torch.nn.Sequential(
        torch.nn.Linear(width, hidden), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(hidden, width)
    )


def mixer(dtype: torch.dtype) -> Program:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return programs.capture(Mixer().to(dtype), noise(2, 3, 32, 32, dtype=dtype), repeats=True)


WIDTHS: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}
GROUPED: dict[str, Any] = {**WIDTHS, "intermediate_size": 320, "num_key_value_heads": 2, "use_cache": False}
MODELS = {
    "bert-unmasked": text(
        "BertModel", "BertConfig", ("last_hidden_state", "pooler_output"), **WIDTHS, intermediate_size=320
    ),
    "distilbert": text(
        "DistilBertModel", "DistilBertConfig", dim=32, n_layers=2, n_heads=4, hidden_dim=320, vocab_size=100
    ),
    "gpt2": text(
        "GPT2Model", "GPT2Config", n_embd=32, n_layer=2, n_head=4, n_inner=320, vocab_size=100, use_cache=False
    ),
    "llama": text("LlamaModel", "LlamaConfig", **GROUPED),
    "qwen3": text("Qwen3Model", "Qwen3Config", **GROUPED, head_dim=8),
    "gemma": text("GemmaModel", "GemmaConfig", **GROUPED, head_dim=8),
    "t5": text("T5EncoderModel", "T5Config", d_model=32, d_kv=8, d_ff=320, num_layers=2, num_heads=4, vocab_size=100),
    "whisper": whisper,
    "clip": pixels(
        "CLIPVisionModel",
        "CLIPVisionConfig",
        ("last_hidden_state", "pooler_output"),
        hidden_size=32,
        intermediate_size=320,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=32,
        patch_size=8,
    ),
    "swin": pixels(
        "SwinModel",
        "SwinConfig",
        image_size=32,
        patch_size=4,
        embed_dim=16,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
    ),
    "convnext": pixels("ConvNextModel", "ConvNextConfig", hidden_sizes=[16, 32], depths=[1, 1], num_stages=2),
    "resnet50": pixels(
        "ResNetModel", "ResNetConfig", embedding_size=8, hidden_sizes=[16, 32], depths=[1, 1], layer_type="bottleneck"
    ),
    "mixer": mixer,
}
"""Name to a function of a dtype that captures the model."""

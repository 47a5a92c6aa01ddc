"""Models of further families of the transformers library, in the sizes of their papers or 1024 columns wide."""

from __future__ import annotations

from typing import Any, NamedTuple

from zoo_images import lively
from zoo_parts import Build, hub

IDS = ("input_ids",)
MASKED = ("input_ids", "attention_mask")
PIXELS = ("pixel_values",)
VOCABULARY = 30_000
"""Of those whose own is larger, as in zoo_text.py."""


class Family(NamedTuple):
    """A model of its family.

    Attributes:
        name: as users know it.
        shape: (batch, tokens) or the shape of the input.
        dtype: the one it is timed in.
        build: as of an entry.
        takes: the names of its inputs.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    build: Build
    takes: tuple[str, ...]


def _text(
    name: str, shape: tuple[int, int], dtype: str, model: str, takes: tuple[str, ...] = MASKED, **sizes: Any
) -> Family:
    return Family(name, shape, dtype, hub(f"{model}Model", takes, **sizes), takes)


def _decoder(
    name: str, shape: tuple[int, int], dtype: str, model: str, takes: tuple[str, ...] = MASKED, **sizes: Any
) -> Family:
    """Returns a decoder that keeps no keys and values of earlier calls."""
    return _text(name, shape, dtype, model, takes, use_cache=False, vocab_size=VOCABULARY, **sizes)


WIDE = {"hidden_size": 1024, "num_attention_heads": 16}
GPT = {"layers": "n_layer", "n_embd": 1024, "n_head": 16}
SMALL = {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536}

DECODERS = (
    _decoder("opt-125m", (8, 256), "f16", "OPT"),
    _decoder("gptj", (4, 256), "f16", "GPTJ", IDS, rotary_dim=32, **GPT),
    _decoder("codegen", (4, 256), "f16", "CodeGen", IDS, rotary_dim=32, **GPT),
    _decoder("bigcode", (4, 256), "f16", "GPTBigCode", **GPT),
    _decoder("falcon", (4, 256), "bf16", "Falcon", **WIDE),
    _decoder("falcon-alibi", (4, 256), "bf16", "Falcon", alibi=True, **WIDE),
    _decoder("mpt", (4, 256), "bf16", "Mpt", layers="n_layers", d_model=1024, n_heads=16),
    _decoder("phi", (4, 256), "f16", "Phi", IDS, intermediate_size=4096, **WIDE),
    _decoder("cohere", (2, 512), "bf16", "Cohere", IDS, num_key_value_heads=16, intermediate_size=2816, **WIDE),
    _decoder("olmo2", (2, 512), "bf16", "Olmo2", IDS, intermediate_size=2816, **WIDE),
    _decoder("llama-masked", (4, 512), "bf16", "Llama", num_key_value_heads=4, intermediate_size=2816, **WIDE),
    _decoder(
        "qwen2-masked",
        (4, 512),
        "f16",
        "Qwen2",
        hidden_size=896,
        num_attention_heads=14,
        num_key_value_heads=2,
        intermediate_size=4864,
    ),
    _decoder(
        "mixtral",
        (2, 256),
        "bf16",
        "Mixtral",
        IDS,
        hidden_size=512,
        num_attention_heads=8,
        num_key_value_heads=4,
        intermediate_size=1024,
    ),
    _decoder(
        "gemma3",
        (2, 1024),
        "bf16",
        "Gemma3Text",
        IDS,
        hidden_size=640,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=256,
        intermediate_size=2048,
    ),
)
"""All heads of Falcon and BigCode share the keys of one; in Llama and Qwen2, four and seven do."""

ENCODERS = (
    _text("mobilebert", (32, 128), "f16", "MobileBert"),
    _text("convbert", (16, 128), "f16", "ConvBert"),
    _text("squeezebert", (16, 128), "f16", "SqueezeBert"),
    _text("mpnet", (16, 128), "f16", "MPNet"),
    _text("fnet", (16, 128), "f32", "FNet", IDS),
    _text("layoutlm", (16, 128), "f32", "LayoutLM"),
    _text("roformer", (16, 256), "bf16", "RoFormer", vocab_size=VOCABULARY),
    _text("nystromformer", (8, 512), "f16", "Nystromformer", max_position_embeddings=1024),
)

IMAGES = (
    Family("clip-vision", (32, 3, 224, 224), "f16", hub("CLIPVisionModel", PIXELS), PIXELS),
    Family("siglip-vision", (32, 3, 224, 224), "bf16", hub("SiglipVisionModel", PIXELS), PIXELS),
    Family("yolos", (8, 3, 512, 512), "f16", hub("YolosModel", PIXELS, image_size=[512, 512], **SMALL), PIXELS),
    Family(
        "glpn",
        (8, 3, 256, 256),
        "f16",
        hub("GLPNForDepthEstimation", PIXELS, ("predicted_depth",), layers="depths"),
        PIXELS,
    ),
    Family("bit-50", (32, 3, 224, 224), "f16", hub("BitModel", PIXELS, layers="depths"), PIXELS),
    Family(
        "mobilenet-v1",
        (32, 3, 224, 224),
        "f16",
        lively(hub("MobileNetV1Model", PIXELS, ("pooler_output",), layers="")),
        PIXELS,
    ),
    Family("audio-spectrogram", (8, 1024, 128), "f16", hub("ASTModel", ("input_values",)), ("input_values",)),
)
"""BiT is ResNet-50 with group norms and standardized weights. A spectrogram is an image of one channel."""

SEW = hub("SEWModel", ("input_values",))

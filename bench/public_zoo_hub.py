"""Small models of transformers, and the list of all that public_models.py converts."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from public_zoo import TIMM, VIT_PYTORCH, X_TRANSFORMERS, Entry, image
from public_zoo_more import DIFFUSERS, MONAI, OPEN_CLIP
from torch import nn

_WORDS = ("input_ids=i64[b:1..4,8]", "attention_mask=i64[b,8]")
_ENCODER = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 48,
}
_DECODER = {**_ENCODER, "use_cache": False, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_GROUPED = {**_DECODER, "num_key_value_heads": 1}
_PIXELS = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "image_size": 32,
    "patch_size": 8,
}


def _hub(name: str, inputs: tuple[str, ...], model: str = "Model", **options: Any) -> Entry:
    def build() -> nn.Module:
        package = import_module("transformers")
        built = getattr(package, f"{name}{model}")(getattr(package, f"{name}Config")(**options))
        assert isinstance(built, nn.Module)
        return built

    return Entry("transformers", f"{name}{model}", build, inputs)


_SEEN = image(32, name="pixel_values")

TRANSFORMERS = (
    *(
        _hub(name, _WORDS, **_ENCODER)
        for name in (
            "Bert",
            "Roberta",
            "Albert",
            "Electra",
            "MPNet",
            "DebertaV2",
            "Ernie",
            "RoFormer",
            "Nystromformer",
            "MegatronBert",
        )
    ),
    _hub("DistilBert", _WORDS, vocab_size=50, dim=32, n_layers=1, n_heads=2, hidden_dim=48),
    _hub("ModernBert", _WORDS, **{**_ENCODER, "pad_token_id": 0}),
    *(
        _hub(name, _WORDS, **_GROUPED)
        for name in (
            "Llama",
            "Mistral",
            "Qwen2",
            "Qwen3",
            "Gemma",
            "Gemma2",
            "Phi",
            "StableLm",
            "Cohere",
            "Granite",
            "Olmo2",
            "Starcoder2",
            "Glm",
            "SmolLM3",
        )
    ),
    _hub("GPT2", _WORDS, vocab_size=50, n_embd=32, n_layer=1, n_head=2, use_cache=False),
    _hub("GPTNeoX", _WORDS, **_DECODER),
    _hub(
        "GPTNeo",
        _WORDS,
        vocab_size=50,
        hidden_size=32,
        num_layers=1,
        num_heads=2,
        attention_types=[[["global"], 1]],
        intermediate_size=48,
        use_cache=False,
    ),
    _hub(
        "OPT",
        _WORDS,
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        ffn_dim=48,
        word_embed_proj_dim=32,
        use_cache=False,
    ),
    _hub("Bloom", _WORDS, vocab_size=50, hidden_size=32, n_layer=1, n_head=2, use_cache=False),
    _hub("Mixtral", _WORDS, num_local_experts=2, **_GROUPED),
    _hub("Qwen3Moe", _WORDS, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=24, **_GROUPED),
    _hub("T5", _WORDS, "EncoderModel", vocab_size=50, d_model=32, d_kv=16, d_ff=48, num_layers=1, num_heads=2),
    *(_hub(name, _SEEN, **_PIXELS) for name in ("ViT", "DeiT", "Beit", "Dinov2", "ViTMAE", "Data2VecVision")),
    _hub("CLIPVision", _SEEN, **_PIXELS),
    _hub("SiglipVision", _SEEN, **_PIXELS),
    _hub("Swin", _SEEN, image_size=32, patch_size=2, embed_dim=16, depths=[1, 1], num_heads=[2, 4], window_size=4),
    _hub("ConvNext", _SEEN, depths=[1, 1], hidden_sizes=[16, 32], num_stages=2),
    _hub("ConvNextV2", _SEEN, depths=[1, 1], hidden_sizes=[16, 32], num_stages=2),
    _hub("ResNet", _SEEN, embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"),
    _hub("RegNet", _SEEN, embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], groups_width=4),
    _hub(
        "Segformer",
        _SEEN,
        num_encoder_blocks=2,
        depths=[1, 1],
        hidden_sizes=[16, 32],
        num_attention_heads=[1, 2],
        sr_ratios=[2, 1],
        patch_sizes=[7, 3],
        strides=[4, 2],
        mlp_ratios=[2, 2],
    ),
    _hub(
        "PoolFormer",
        _SEEN,
        depths=[1, 1],
        hidden_sizes=[16, 32],
        num_encoder_blocks=2,
        patch_sizes=[7, 3],
        strides=[4, 2],
        padding=[2, 1],
    ),
    _hub("ViTMSN", _SEEN, **_PIXELS),
)

_PACKAGES = (TIMM, VIT_PYTORCH, X_TRANSFORMERS, DIFFUSERS, MONAI, OPEN_CLIP, TRANSFORMERS)

ENTRIES = tuple(
    entry
    for _, entry in sorted(
        ((at / len(package), entry) for package in _PACKAGES for at, entry in enumerate(package)),
        key=lambda pair: pair[0],
    )
)
"""All of them, mixed, so that a run that is cut short has some of each package."""

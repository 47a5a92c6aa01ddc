"""Small models of diffusers, monai and open_clip; see public_zoo.py."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from public_zoo import Entry, image, made
from torch import nn

_BLOCKS = {
    "block_out_channels": (16, 32),
    "layers_per_block": 1,
    "norm_num_groups": 8,
}


def _diffusers(name: str, inputs: tuple[str, ...], **options: Any) -> Entry:
    return Entry("diffusers", name, made(f"diffusers:{name}", **options), inputs)


_NOISE = ("sample=f32[b:1..4,4,16,16]", "timestep=i64[b]")
_PROMPT = (*_NOISE, "encoder_hidden_states=f32[b,6,32]")

DIFFUSERS = (
    _diffusers(
        "UNet2DModel",
        _NOISE,
        sample_size=16,
        in_channels=4,
        out_channels=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=8,
        **_BLOCKS,
    ),
    _diffusers(
        "UNet2DConditionModel",
        _PROMPT,
        sample_size=16,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=32,
        attention_head_dim=8,
        **_BLOCKS,
    ),
    _diffusers(
        "AutoencoderKL",
        ("sample=f32[b:1..4,3,32,32]",),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        **_BLOCKS,
    ),
    _diffusers(
        "VQModel",
        ("sample=f32[b:1..4,3,32,32]",),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        **_BLOCKS,
    ),
    _diffusers(
        "AutoencoderTiny",
        ("sample=f32[b:1..4,3,32,32]",),
        encoder_block_out_channels=(16, 16),
        decoder_block_out_channels=(16, 16),
        num_encoder_blocks=(1, 1),
        num_decoder_blocks=(1, 1),
    ),
    _diffusers(
        "Transformer2DModel",
        ("hidden_states=f32[b:1..4,16,8,8]", "encoder_hidden_states=f32[b,6,32]"),
        num_attention_heads=2,
        attention_head_dim=16,
        in_channels=16,
        num_layers=1,
        norm_num_groups=8,
        cross_attention_dim=32,
    ),
    _diffusers(
        "DiTTransformer2DModel",
        ("hidden_states=f32[b:1..4,4,8,8]", "timestep=i64[b]", "class_labels=i64[b]"),
        num_attention_heads=2,
        attention_head_dim=16,
        in_channels=4,
        out_channels=8,
        num_layers=1,
        norm_num_groups=8,
        sample_size=8,
        num_embeds_ada_norm=10,
    ),
    _diffusers(
        "SD3Transformer2DModel",
        (
            "hidden_states=f32[b:1..4,4,8,8]",
            "encoder_hidden_states=f32[b,6,32]",
            "pooled_projections=f32[b,16]",
            "timestep=i64[b]",
        ),
        sample_size=8,
        patch_size=2,
        in_channels=4,
        num_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        caption_projection_dim=32,
        pooled_projection_dim=16,
        out_channels=4,
    ),
    _diffusers(
        "PriorTransformer",
        (
            "hidden_states=f32[b:1..4,16]",
            "timestep=i64[b]",
            "proj_embedding=f32[b,16]",
            "encoder_hidden_states=f32[b,6,16]",
        ),
        num_attention_heads=2,
        attention_head_dim=8,
        num_layers=1,
        embedding_dim=16,
        num_embeddings=6,
        additional_embeddings=4,
    ),
    _diffusers(
        "UNet1DModel",
        ("sample=f32[b:1..4,2,32]", "timestep=i64[b]"),
        in_channels=2,
        out_channels=2,
        block_out_channels=(16, 32),
        layers_per_block=1,
        norm_num_groups=8,
        extra_in_channels=32,
        down_block_types=("DownBlock1DNoSkip", "DownBlock1D"),
        up_block_types=("UpBlock1D", "UpBlock1DNoSkip"),
        mid_block_type="UNetMidBlock1D",
    ),
)


def _monai(name: str, size: int = 32, channels: int = 1, **options: Any) -> Entry:
    return Entry("monai", name, made(f"monai.networks.nets:{name}", **options), image(size, channels))


def _volume(name: str, size: int = 16, channels: int = 1, **options: Any) -> Entry:
    inputs = (f"x=f32[b:1..4,{channels},{size},{size},{size}]",)
    return Entry("monai", f"{name} 3d", made(f"monai.networks.nets:{name}", **options), inputs)


_TWO = {"spatial_dims": 2, "in_channels": 1, "out_channels": 2}
_THREE = {"spatial_dims": 3, "in_channels": 1, "out_channels": 2}

MONAI = (
    Entry(
        "monai",
        "UNet",
        made("monai.networks.nets:UNet", channels=(8, 16), strides=(2,), num_res_units=1, **_TWO),
        image(32, 1),
    ),
    Entry(
        "monai",
        "UNet 3d",
        made("monai.networks.nets:UNet", channels=(8, 16), strides=(2,), **_THREE),
        ("x=f32[b:1..4,1,16,16,16]",),
    ),
    _monai("BasicUNet", features=(8, 8, 16, 16, 32, 8), **_TWO),
    Entry(
        "monai",
        "AttentionUnet",
        made("monai.networks.nets:AttentionUnet", channels=(8, 16), strides=(2,), **_TWO),
        image(32, 1),
    ),
    _monai("SegResNet", init_filters=8, blocks_down=(1, 1), blocks_up=(1,), **_TWO),
    _volume("SegResNet", init_filters=8, blocks_down=(1, 1), blocks_up=(1,), **_THREE),
    _monai(
        "DynUNet", kernel_size=(3, 3, 3), strides=(1, 2, 2), upsample_kernel_size=(2, 2), filters=(8, 16, 16), **_TWO
    ),
    _monai("UNETR", img_size=32, feature_size=8, hidden_size=32, mlp_dim=48, num_heads=2, **_TWO),
    _volume(
        "ViT",
        in_channels=1,
        img_size=(16, 16, 16),
        patch_size=(8, 8, 8),
        hidden_size=32,
        mlp_dim=48,
        num_layers=1,
        num_heads=2,
    ),
    _monai(
        "DenseNet", in_channels=1, spatial_dims=2, out_channels=2, init_features=8, growth_rate=4, block_config=(2, 2)
    ),
    Entry(
        "monai",
        "ResNet",
        made(
            "monai.networks.nets:ResNet",
            "basic",
            [1, 1, 1, 1],
            [8, 8, 16, 16],
            spatial_dims=2,
            n_input_channels=1,
            num_classes=2,
        ),
        image(32, 1),
    ),
    _monai("HighResNet", **_TWO),
    Entry(
        "monai", "Regressor", made("monai.networks.nets:Regressor", (1, 32, 32), (2,), (8, 16), (2, 2)), image(32, 1)
    ),
    Entry(
        "monai",
        "VarAutoEncoder",
        made(
            "monai.networks.nets:AutoEncoder",
            spatial_dims=2,
            in_channels=1,
            out_channels=1,
            channels=(8, 16),
            strides=(2, 2),
        ),
        image(32, 1),
    ),
    Entry(
        "monai",
        "FullyConnectedNet",
        made("monai.networks.nets:FullyConnectedNet", 8, 2, [16, 16]),
        ("x=f32[b:1..4,8]",),
    ),
    _monai("BasicUnet", features=(8, 8, 8, 8, 16, 8), norm=("group", {"num_groups": 4}), **_TWO),
)


def _clip(vision: dict[str, Any], text: dict[str, Any], part: str = "") -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        clip = import_module("open_clip.model").CLIP(embed_dim=16, vision_cfg=vision, text_cfg=text)
        model = getattr(clip, part) if part else clip
        assert isinstance(model, nn.Module)
        return model

    return build


_TEXT = {"context_length": 8, "vocab_size": 50, "width": 32, "heads": 2, "layers": 1}
_SIGHT = {"image_size": 32, "layers": 1, "width": 64, "head_width": 32, "patch_size": 8}
_BOTH = ("image=f32[b:1..4,3,32,32]", "text=i64[b,8]")

OPEN_CLIP = (
    Entry("open_clip", "ViT", _clip(_SIGHT, _TEXT), _BOTH),
    Entry("open_clip", "ViT, visual", _clip(_SIGHT, _TEXT, "visual"), image()),
    Entry("open_clip", "ViT, average pool", _clip({**_SIGHT, "pool_type": "avg"}, _TEXT, "visual"), image()),
    Entry(
        "open_clip",
        "ViT, attention pool",
        _clip({**_SIGHT, "attentional_pool": True, "attn_pooler_heads": 2}, _TEXT, "visual"),
        image(),
    ),
    Entry("open_clip", "ViT, layer scale", _clip({**_SIGHT, "ls_init_value": 0.1}, _TEXT, "visual"), image()),
    Entry(
        "open_clip",
        "ResNet, visual",
        _clip({"image_size": 32, "layers": (1, 1, 1, 1), "width": 16, "head_width": 16}, _TEXT, "visual"),
        image(),
    ),
)

"""Small models of timm, vit-pytorch and x-transformers, with random weights: what public_models.py converts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Entry:
    """A model.

    Attributes:
        library: the package it comes from.
        name: the class or the name in the package, and what is particular.
        build: makes it.
        inputs: as `--input` takes them.
    """

    library: str
    name: str
    build: Callable[[], nn.Module]
    inputs: tuple[str, ...]


def image(size: int = 32, channels: int = 3, name: str = "x") -> tuple[str, ...]:
    """Returns the inputs of a model of images."""
    return (f"{name}=f32[b:1..4,{channels},{size},{size}]",)


def made(path: str, /, *args: Any, **kwargs: Any) -> Callable[[], nn.Module]:
    """Returns what calls `package.module:name`."""
    module, _, name = path.partition(":")

    def build() -> nn.Module:
        model = getattr(import_module(module), name)(*args, **kwargs)
        assert isinstance(model, nn.Module)
        return model

    return build


def _timm(name: str, size: int = 32, **options: Any) -> Entry:
    return Entry("timm", name, made("timm:create_model", name, num_classes=10, **options), image(size))


_MIXER = "timm.models.mlp_mixer"


def _mixer(name: str, **parts: str) -> Entry:
    """Returns timm's mixer of one small block: `create_model` takes no other sizes for these than their own.

    Args:
        name: what timm calls the model whose parts these are.
        parts: `package.module:name` of the classes that differ from the plain mixer's.
    """

    def build() -> nn.Module:
        places = {key: path.partition(":") for key, path in parts.items()}
        found = {key: getattr(import_module(module), name) for key, (module, _, name) in places.items()}
        return made(
            f"{_MIXER}:MlpMixer",
            num_classes=10,
            img_size=32,
            patch_size=8,
            num_blocks=1,
            embed_dim=32,
            mlp_ratio=4.0,
            **found,
        )()

    return Entry("timm", name, build, image())


_VIT = {"img_size": 32, "patch_size": 8, "depth": 1, "embed_dim": 48, "num_heads": 3}
_SWIN = {"img_size": 32, "patch_size": 2, "window_size": 4, "embed_dim": 16, "depths": (1, 1), "num_heads": (2, 4)}

TIMM = (
    *(
        _timm(name, 64)
        for name in (
            *("test_byobnet", "test_convnext", "test_convnext2", "test_convnext3", "test_efficientnet"),
            *("test_efficientnet_gn", "test_efficientnet_ln", "test_efficientnet_evos", "test_mambaout", "test_nfnet"),
            "test_resnet",
        )
    ),
    *(_timm(name, 160) for name in ("test_vit", "test_vit2", "test_vit3", "test_vit4")),
    _timm("vit_tiny_patch16_224", **_VIT),
    _timm("vit_relpos_small_patch16_224", **_VIT),
    _timm("deit_tiny_distilled_patch16_224", **_VIT),
    _timm("deit3_small_patch16_224", **_VIT),
    _timm("beit_base_patch16_224", **_VIT),
    _timm("beitv2_base_patch16_224", **_VIT),
    _timm("eva02_tiny_patch14_224", **_VIT),
    _timm("cait_xxs24_224", **_VIT),
    _timm("xcit_nano_12_p16_224", img_size=32, depth=1, embed_dim=32, num_heads=2),
    _mixer("mixer_s32_224"),
    _mixer("gmixer_12_224", mlp_layer="timm.layers:GluMlp", act_layer="torch.nn:SiLU"),
    _mixer("resmlp_12_224", block_layer=f"{_MIXER}:ResBlock", norm_layer=f"{_MIXER}:Affine"),
    _mixer("gmlp_ti16_224", block_layer=f"{_MIXER}:SpatialGatingBlock", mlp_layer="timm.layers:GatedMlp"),
    _timm("swin_tiny_patch4_window7_224", **_SWIN),
    _timm("swinv2_tiny_window8_256", **_SWIN),
    _timm("swin_s3_tiny_224", **{**_SWIN, "window_size": (4, 4)}),
    _timm("convnext_atto", depths=(1, 1, 1, 1), dims=(8, 16, 16, 32)),
    _timm("convnextv2_atto", depths=(1, 1, 1, 1), dims=(8, 16, 16, 32)),
    _timm("poolformer_s12", depths=(1, 1), dims=(16, 32)),
    _timm("pvt_v2_b0", depths=(1, 1), embed_dims=(16, 32), num_heads=(1, 2), sr_ratios=(2, 1), mlp_ratios=(2, 2)),
    _timm("lcnet_035", 64),
    _timm("mobilenetv3_small_050", 64),
    _timm("tinynet_e", 64),
    _timm("mnasnet_small", 64),
    _timm("ghostnet_050", 64),
    _timm("resnet10t", 64),
    _timm("resnext26ts", 64),
    _timm("regnetx_002", 64),
    _timm("dla46_c", 64),
    _timm("starnet_s050", 64),
    _timm("edgenext_xx_small", 64, depths=(1, 1, 1, 1)),
    _timm("mobilevit_xxs", 64),
    _timm("repghostnet_050", 64),
    _timm("efficientvit_b0", 64),
    _timm("visformer_tiny", img_size=32, init_channels=8, embed_dim=32, depth=(1, 1, 1), num_heads=2),
    _timm("mambaout_femto", 64, depths=(1, 1), dims=(16, 32)),
    _timm("seresnext26ts", 64),
)


def _vit_pytorch(module: str, name: str, size: int = 32, **options: Any) -> Entry:
    return Entry("vit-pytorch", f"{module}.{name}", made(f"vit_pytorch.{module}:{name}", **options), image(size))


_SMALL = {"image_size": 32, "patch_size": 8, "num_classes": 10, "dim": 32, "depth": 1, "heads": 2, "mlp_dim": 48}

VIT_PYTORCH = (
    _vit_pytorch("vit", "ViT", **_SMALL),
    _vit_pytorch("simple_vit", "SimpleViT", **_SMALL),
    _vit_pytorch("simple_vit_with_register_tokens", "SimpleViT", **_SMALL),
    _vit_pytorch("simple_vit_with_qk_norm", "SimpleViT", **_SMALL),
    _vit_pytorch("simple_vit_with_patch_dropout", "SimpleViT", **_SMALL),
    _vit_pytorch("deepvit", "DeepViT", **_SMALL),
    _vit_pytorch("parallel_vit", "ViT", num_parallel_branches=2, **_SMALL),
    _vit_pytorch("vit_for_small_dataset", "ViT", **_SMALL),
    _vit_pytorch("learnable_memory_vit", "ViT", **_SMALL),
    _vit_pytorch(
        "vit_with_patch_merger", "ViT", patch_merge_layer=1, patch_merge_num_tokens=4, **{**_SMALL, "depth": 2}
    ),
    _vit_pytorch(
        "normalized_vit",
        "nViT",
        image_size=32,
        patch_size=8,
        num_classes=10,
        dim=32,
        depth=1,
        heads=2,
        mlp_dim=48,
        dim_head=16,
    ),
    _vit_pytorch("cait", "CaiT", cls_depth=1, **_SMALL),
    _vit_pytorch(
        "cct",
        "CCT",
        img_size=32,
        embedding_dim=32,
        n_conv_layers=1,
        kernel_size=3,
        stride=2,
        padding=1,
        num_layers=1,
        num_heads=2,
        mlp_ratio=2.0,
        num_classes=10,
    ),
    _vit_pytorch(
        "cross_vit",
        "CrossViT",
        image_size=32,
        num_classes=10,
        sm_dim=16,
        lg_dim=32,
        sm_patch_size=4,
        sm_enc_depth=1,
        sm_enc_heads=2,
        sm_enc_mlp_dim=32,
        lg_patch_size=8,
        lg_enc_depth=1,
        lg_enc_heads=2,
        lg_enc_mlp_dim=32,
        cross_attn_depth=1,
        cross_attn_heads=2,
        depth=1,
    ),
    _vit_pytorch(
        "pit", "PiT", 64, image_size=64, patch_size=8, dim=32, num_classes=10, depth=(1, 1), heads=2, mlp_dim=48
    ),
    _vit_pytorch(
        "levit",
        "LeViT",
        64,
        image_size=64,
        num_classes=10,
        dim=(32, 48),
        depth=1,
        heads=(2, 2),
        mlp_mult=2,
        stages=2,
        dim_key=16,
        dim_value=16,
    ),
    _vit_pytorch(
        "cvt",
        "CvT",
        num_classes=10,
        s1_emb_dim=16,
        s1_depth=1,
        s2_emb_dim=16,
        s2_depth=1,
        s2_heads=1,
        s3_emb_dim=32,
        s3_depth=1,
        s3_heads=2,
    ),
    _vit_pytorch(
        "twins_svt",
        "TwinsSVT",
        64,
        num_classes=10,
        s1_emb_dim=16,
        s1_patch_size=4,
        s1_local_patch_size=4,
        s2_emb_dim=16,
        s2_patch_size=2,
        s2_local_patch_size=4,
        s3_emb_dim=32,
        s3_patch_size=2,
        s3_local_patch_size=2,
        s3_depth=1,
        s4_emb_dim=32,
        s4_patch_size=2,
        s4_local_patch_size=1,
        s4_depth=1,
        s4_global_k=2,
        s3_global_k=2,
    ),
    _vit_pytorch(
        "crossformer",
        "CrossFormer",
        64,
        dim=(32, 32, 32, 32),
        cross_embed_kernel_sizes=((4, 8), (2, 4), (2, 4), (2, 4)),
        depth=(1, 1, 1, 1),
        global_window_size=(4, 2, 2, 1),
        local_window_size=2,
        num_classes=10,
    ),
    _vit_pytorch(
        "nest",
        "NesT",
        image_size=32,
        patch_size=4,
        dim=16,
        heads=2,
        num_hierarchies=2,
        block_repeats=(1, 1),
        num_classes=10,
    ),
    _vit_pytorch(
        "mobile_vit",
        "MobileViT",
        64,
        image_size=(64, 64),
        dims=[16, 24, 32],
        channels=[8, 8, 16, 16, 16, 16, 16, 16, 16, 16, 32],
        num_classes=10,
        depths=(1, 1, 1),
    ),
    _vit_pytorch(
        "xcit",
        "XCiT",
        image_size=32,
        patch_size=8,
        num_classes=10,
        dim=32,
        depth=1,
        cls_depth=1,
        heads=2,
        mlp_dim=48,
        local_patch_kernel_size=3,
    ),
    _vit_pytorch(
        "max_vit", "MaxViT", 64, num_classes=10, dim_conv_stem=8, dim=16, dim_head=8, depth=(1, 1), window_size=4
    ),
    _vit_pytorch(
        "sep_vit", "SepViT", 56, num_classes=10, dim=16, dim_head=8, heads=(1, 2), depth=(1, 1), window_size=7
    ),
    _vit_pytorch("rvt", "RvT", **_SMALL),
    Entry(
        "vit-pytorch",
        "ViViT",
        made(
            "vit_pytorch.vivit:ViViT",
            image_size=16,
            frames=4,
            image_patch_size=8,
            frame_patch_size=2,
            num_classes=10,
            dim=32,
            spatial_depth=1,
            temporal_depth=1,
            heads=2,
            mlp_dim=48,
        ),
        ("x=f32[b:1..4,3,4,16,16]",),
    ),
    Entry(
        "vit-pytorch",
        "ViT 3d",
        made(
            "vit_pytorch.vit_3d:ViT",
            image_size=16,
            frames=4,
            image_patch_size=8,
            frame_patch_size=2,
            num_classes=10,
            dim=32,
            depth=1,
            heads=2,
            mlp_dim=48,
        ),
        ("x=f32[b:1..4,3,4,16,16]",),
    ),
    Entry(
        "vit-pytorch",
        "ViT 1d",
        made("vit_pytorch.vit_1d:ViT", seq_len=32, patch_size=4, num_classes=10, dim=32, depth=1, heads=2, mlp_dim=48),
        ("x=f32[b:1..4,3,32]",),
    ),
)


def _tokens(name: str, kind: str = "Decoder", **options: Any) -> Entry:
    def build() -> nn.Module:
        package = import_module("x_transformers")
        layers = getattr(package, kind)(dim=32, depth=1, heads=2, attn_dim_head=16, **options)
        model = package.TransformerWrapper(num_tokens=50, max_seq_len=16, attn_layers=layers)
        assert isinstance(model, nn.Module)
        return model

    return Entry("x-transformers", name, build, ("x=i64[b:1..4,8]",))


X_TRANSFORMERS = (
    _tokens("Decoder"),
    _tokens("Encoder", "Encoder"),
    _tokens("rmsnorm, swish, glu", use_rmsnorm=True, ff_glu=True, ff_swish=True, ff_no_bias=True),
    _tokens("simple rmsnorm", use_simple_rmsnorm=True),
    _tokens("scalenorm", use_scalenorm=True),
    _tokens("rotary", rotary_pos_emb=True),
    _tokens("xpos", rotary_xpos=True),
    _tokens("alibi", alibi_pos_bias=True, alibi_num_heads=1),
    _tokens("t5 bias", rel_pos_bias=True),
    _tokens("dynamic bias", dynamic_pos_bias=True, dynamic_pos_bias_log_distance=False),
    _tokens("talking heads", attn_pre_talking_heads=True, attn_post_talking_heads=True),
    _tokens("qk norm", attn_qk_norm=True, attn_qk_norm_scale=10),
    _tokens("qk norm, learned scale", attn_qk_norm=True, attn_qk_norm_dim_scale=True),
    _tokens("one kv head", attn_one_kv_head=True),
    _tokens("grouped kv heads", attn_kv_heads=1),
    _tokens("soft cap", attn_softclamp_logits=True),
    _tokens("flash", attn_flash=True),
    _tokens("gated values", attn_gate_values=True),
    _tokens("relu squared", ff_relu_squared=True),
    _tokens("sandwich norm", sandwich_norm=True),
    _tokens("macaron", macaron=True),
    _tokens("gated residual", gate_residual=True),
    _tokens("shift tokens", shift_tokens=1),
    _tokens("memory", attn_num_mem_kv=2),
    _tokens("sparse top k", attn_sparse_topk=4),
)

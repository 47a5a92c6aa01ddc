"""Vision transformers of the transformers library: plain, windowed, hierarchical, with convolutions among them."""

from __future__ import annotations

from typing import Any

from zoo_images import classifier, lively
from zoo_parts import Build, hub

PIXELS = ("pixel_values",)


def _plain(name: str, **sizes: Any) -> Build:
    return hub(f"{name}ForImageClassification", PIXELS, ("logits",), num_labels=1000, **sizes)


VIT = hub("ViTModel", PIXELS)
DINOV2 = hub("Dinov2Model", PIXELS, hidden_size=384, num_attention_heads=6, image_size=224, layerscale_value=0.1)
"""Size S, with a layer scale as after training."""
BEIT = _plain("Beit", use_relative_position_bias=True, layer_scale_init_value=0.1)
SWIN = _plain("Swin", layers="depths")
SWIN_V2 = _plain("Swinv2", layers="depths", window_size=7)
PVT_V2 = _plain("PvtV2", layers="depths")
"""B0: linear attention to keys that a convolution made fewer, depthwise convolutions in the perceptrons."""
HIERA = _plain("Hiera", layers="depths")
CVT = classifier("Cvt")
MOBILE_VIT = classifier("MobileViT", image_size=256)
LEVIT = classifier("Levit", layers="depths", side=224)
POOL_FORMER = classifier("PoolFormer", layers="depths", layer_scale_init_value=0.1)
FOCAL_NET = classifier("FocalNet", layers="depths")
SEGFORMER_B2 = lively(
    hub(
        "SegformerForSemanticSegmentation",
        PIXELS,
        ("logits",),
        layers="depths",
        num_labels=19,
        depths=[3, 4, 6, 3],
        hidden_sizes=[64, 128, 320, 512],
        decoder_hidden_size=768,
    )
)
"""For the 19 classes of Cityscapes."""

"""Models of images and sounds that are timed: sizes of their papers, batch norms whose folding shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from zoo_diffusion import DownBlock, latents
from zoo_mixer import Mixer
from zoo_mobilenet import MobileNetV3Large
from zoo_parts import Entry, hub, noise
from zoo_pyramids import Detector, UNet

Build = Callable[[int | None], nn.Module]


def lively(build: Build) -> Build:
    """Returns what builds the model with drawn values where fresh ones would hide what is computed.

    Fresh batch norms have the mean 0 and the variance 1, so that a wrong folding of them passes. Here they have about
    those of noise, and the weights of convolutions before them keep the size of activations. A deep model of random
    weights amplifies rounding errors, and squeeze-and-excitation, which multiplies activations with functions of them,
    does so most of all where inputs are large: biases above 0, and small weights of all other convolutions, avoid that.
    The response normalization of ConvNeXt V2 starts as the identity, which here it is not.
    """

    def built(layers: int | None) -> nn.Module:
        module = build(layers).eval()
        with torch.no_grad():
            for part in module.modules():
                if isinstance(part, nn.Conv2d) and part.bias is None:
                    nn.init.kaiming_normal_(part.weight, nonlinearity="relu")
                elif isinstance(part, nn.Conv2d):
                    nn.init.normal_(part.weight, 0, 0.02)
                elif type(part).__name__ == "ConvNextV2GRN":
                    nn.init.normal_(part.get_parameter("weight"), 0, 0.2)
                    nn.init.normal_(part.get_parameter("bias"), 0, 0.2)
            _normalize(module, [part for part in module.modules() if isinstance(part, nn.BatchNorm2d)])
        return module

    return built


def _normalize(module: nn.Module, norms: Sequence[nn.BatchNorm2d]) -> None:
    """Draws the affine parts of batch norms, and their statistics near those of noise."""
    momentum = [norm.momentum for norm in norms]
    for norm in norms:
        norm.weight.uniform_(0.5, 1.5)
        norm.bias.normal_(0.5, 0.2)
        norm.train().momentum = 1.0
    if norms:
        module(torch.randn(4, 3, 96, 96))
    for norm, kept in zip(norms, momentum, strict=True):
        norm.eval().momentum = kept
        assert norm.running_mean is not None
        assert norm.running_var is not None
        norm.running_var.mul_(torch.empty_like(norm.running_var).uniform_(0.75, 1.5))
        norm.running_mean.add_(torch.randn_like(norm.running_mean) * norm.running_var.sqrt() * 0.1)


def _hub(name: str, task: str = "ImageClassification", labels: int = 1000, **sizes: Any) -> Build:
    """Returns what builds a model of the transformers library for a task, by default ImageNet's."""
    model, config = f"{name}For{task}", f"{name}Config"
    return lively(hub(model, config, ("pixel_values",), ("logits",), layers="", num_labels=labels, **sizes))


def _own(model: Callable[[], nn.Module]) -> Build:
    """Returns what builds a class that has one size."""
    return lively(lambda _: model())


RESNET_50 = lively(hub("ResNetModel", "ResNetConfig", ("pixel_values",), layers=""))
RESNET_18 = _hub("ResNet", layer_type="basic", hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2])
CONVNEXT_T = hub("ConvNextModel", "ConvNextConfig", ("pixel_values",), layers="", layer_scale_init_value=0.1)
"""With a layer scale as after training: at a fresh one's 1e-6, what a block adds is lost in rounding."""
CONVNEXT_V2_T = _hub("ConvNextV2")
MOBILENET_V2 = _hub("MobileNetV2", tf_padding=False)
MOBILENET_V3 = _own(MobileNetV3Large)
EFFICIENTNET_B0 = _hub("EfficientNet", width_coefficient=1.0, depth_coefficient=1.0, image_size=224, hidden_dim=1280)
REGNET_Y = _hub("RegNet")
"""The defaults are RegNetY-4GF: depths 2, 6, 12, 2, widths 128 to 1088, groups of 64."""
SEGFORMER_B2 = _hub(
    "Segformer",
    "SemanticSegmentation",
    19,
    depths=[3, 4, 6, 3],
    hidden_sizes=[64, 128, 320, 512],
    decoder_hidden_size=768,
)
"""For the 19 classes of Cityscapes."""
SPEECH_STEM = hub(
    "WhisperForAudioClassification",
    "WhisperConfig",
    ("input_features",),
    ("logits",),
    layers="encoder_layers",
    d_model=768,
    encoder_layers=2,
    encoder_attention_heads=12,
    encoder_ffn_dim=3072,
    num_labels=35,
)
"""Whisper small's two convolutions of the spectrum and two of its layers, with a classifier of spoken commands."""

ENTRIES = (
    Entry("resnet-50", (1, 3, 224, 224), "f16", RESNET_50, noise()),
    Entry("convnext-t", (1, 3, 224, 224), "f16", CONVNEXT_T, noise()),
    Entry("mobilenet-v3-large", (1, 3, 224, 224), "f16", MOBILENET_V3, noise()),
    Entry("mobilenet-v3-large", (32, 3, 224, 224), "f16", MOBILENET_V3, noise()),
    Entry("efficientnet-b0", (1, 3, 224, 224), "f16", EFFICIENTNET_B0, noise()),
    Entry("efficientnet-b0", (32, 3, 224, 224), "f16", EFFICIENTNET_B0, noise()),
    Entry("unet", (32, 3, 256, 256), "f16", _own(UNet), noise()),
    Entry("diffusion-block", (2, 320, 64, 64), "f16", lambda _: DownBlock(), latents),
    Entry("diffusion-block", (8, 320, 64, 64), "bf16", lambda _: DownBlock(), latents),
    Entry("detector-pyramid", (32, 3, 512, 512), "f16", lively(lambda _: Detector()), noise()),
    Entry("segformer-b2", (32, 3, 512, 512), "f16", SEGFORMER_B2, noise()),
    Entry("convnextv2-t", (32, 3, 224, 224), "bf16", CONVNEXT_V2_T, noise()),
    Entry("mlp-mixer-b-16", (32, 3, 224, 224), "bf16", Mixer, noise()),
    Entry("regnet-y-4gf", (32, 3, 224, 224), "f16", REGNET_Y, noise()),
    Entry("mobilenet-v2", (32, 3, 224, 224), "f16", MOBILENET_V2, noise()),
    Entry("resnet-18", (32, 3, 224, 224), "f16", RESNET_18, noise()),
    Entry("speech-stem", (32, 80, 3000), "f16", SPEECH_STEM, noise()),
)
"""The important ones first. A diffusion block's batch is what a guided image takes, and four of those."""

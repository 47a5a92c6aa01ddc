"""Convolutional models of the transformers library: sizes of their papers, batch norms whose folding shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from zoo_parts import Build, hub


def lively(build: Build, shape: Sequence[int] = (4, 3, 96, 96)) -> Build:
    """Returns what builds the model with drawn values where fresh ones would hide what is computed.

    Fresh batch norms have the mean 0 and the variance 1, so that a wrong folding of them passes. Here they have about
    those of noise, and the weights of convolutions before them keep the size of activations. A deep model of random
    weights amplifies rounding errors, and squeeze-and-excitation, which multiplies activations with functions of them,
    does so most of all where inputs are large: biases above 0, and small weights of all other convolutions, avoid that.
    The response normalization of ConvNeXt V2 starts as the identity, which here it is not.

    Args:
        build: makes it with fresh ones.
        shape: of the noise.
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
            _normalize(module, shape)
        return module

    return built


def _normalize(module: nn.Module, shape: Sequence[int]) -> None:
    """Draws the affine parts of batch norms, and their statistics near those of noise."""
    norms = [part for part in module.modules() if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d)]
    momentum = [norm.momentum for norm in norms]
    for norm in norms:
        norm.weight.uniform_(0.5, 1.5)
        norm.bias.normal_(0.5, 0.2)
        norm.train().momentum = 1.0
    if norms:
        module(torch.randn(*shape))
        module.train().eval()  # some keep what they derive from their weights, in this dtype, until they are trained
    for norm, kept in zip(norms, momentum, strict=True):
        norm.eval().momentum = kept
        assert norm.running_mean is not None
        assert norm.running_var is not None
        norm.running_var.mul_(torch.empty_like(norm.running_var).uniform_(0.75, 1.5))
        norm.running_mean.add_(torch.randn_like(norm.running_mean) * norm.running_var.sqrt() * 0.1)


def classifier(name: str, layers: str = "", side: int = 96, **sizes: Any) -> Build:
    """Returns what builds an image classifier of the transformers library, of ImageNet's 1000 classes."""
    build = hub(
        f"{name}ForImageClassification", ("pixel_values",), ("logits",), layers=layers, num_labels=1000, **sizes
    )
    return lively(build, (4, 3, side, side))


RESNET_50 = lively(hub("ResNetModel", ("pixel_values",), layers="depths"))
RESNET_18 = classifier(
    "ResNet", layers="depths", layer_type="basic", hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2]
)
CONVNEXT_T = hub("ConvNextModel", ("pixel_values",), layers="depths", layer_scale_init_value=0.1)
"""With a layer scale as after training: at a fresh one's 1e-6, what a block adds is lost in rounding."""
CONVNEXT_V2_T = classifier("ConvNextV2", layers="depths")
MOBILENET_V2 = classifier("MobileNetV2", tf_padding=False)
EFFICIENTNET_B0 = classifier(
    "EfficientNet", width_coefficient=1.0, depth_coefficient=1.0, image_size=224, hidden_dim=1280
)
REGNET_Y = classifier("RegNet", layers="depths")
"""The defaults are RegNetY-4GF: depths 2, 6, 12, 2, widths 128 to 1088, groups of 64."""

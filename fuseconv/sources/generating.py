"""The methods `encode`, `prefill` and `decode` of a transformers model that generates tokens.

Builds the module, the inputs and the state of each method.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fuseconv.bundle.generation import Generation
from fuseconv.contract.dims import Dim
from fuseconv.contract.dtypes import SHORT_DTYPES
from fuseconv.contract.options import Options
from fuseconv.contract.spec import TensorSpec
from fuseconv.errors import UnsupportedError, UsageError
from fuseconv.sources.methods import of_part
from fuseconv.sources.stepping import FirstStep, NextStep, Step, check_layers, empty_cache
from fuseconv.sources.subject import Loaded

KNOWN = ("encode", "prefill", "decode")
"""The names of the methods, in the order in which they are called. Only a model with an encoder has `encode`."""

DEFAULT_LENGTH = 512
"""The default capacity of the key-value cache, in tokens, of a model whose config specifies no number of positions."""

LARGEST_LENGTH = 2048

_POSITIONS = ("max_position_embeddings", "max_target_positions", "n_positions")


def known_methods(module: Any) -> tuple[str, ...]:
    """Returns the names in `KNOWN` that a model supports, or an empty tuple if it does not generate tokens."""
    if not (hasattr(module, "can_generate") and module.can_generate()):
        return ()
    return KNOWN if module.config.is_encoder_decoder else KNOWN[1:]


def is_known(module: Any, method: str | None) -> bool:
    """Returns whether fuseconv provides a method: its name is in `KNOWN`, and the model generates tokens.

    Returns False if the model's class has an attribute of this name.
    """
    return method in KNOWN and bool(known_methods(module)) and not hasattr(type(module), str(method))


def load(module: Any, inputs: tuple[TensorSpec, ...], options: Options) -> Loaded:
    """Builds the module, the inputs and the state of a method in `KNOWN`.

    Args:
        module: a model that generates tokens.
        inputs: the encoder's inputs, for a model with an encoder.
        options: specifies the method and the capacity of the cache.

    Raises:
        UnsupportedError: the cache of a layer does not keep all tokens.
        UsageError: the model lacks the method; or the requested cache is longer than the model's number of positions;
            or inputs were specified, although the method derives its inputs from the model.
    """
    if options.inputs or options.inputs_file is not None:
        raise UsageError(
            f"the method {options.method} takes no --input and no --inputs: fuseconv derives its inputs from the model",
            where="--input",
            fix="remove --input and --inputs",
        )
    length = cache_length(module.config, options.cache_length)
    cache = empty_cache(module, length)
    check_layers(cache, module)
    if module.config.is_encoder_decoder:
        return _ENCODER_DECODER[str(options.method)](module, length, inputs)
    if options.method == "encode":
        what, fix = "the model has no encoder", "convert the methods prefill and decode"
        raise UsageError(what, where="--method encode", fix=fix)
    return _step(module, length, one=options.method == "decode")


def cache_length(config: Any, wanted: int | None) -> int:
    """Returns the capacity of a model's key-value cache in tokens.

    Args:
        config: the config of the model.
        wanted: the requested capacity. None means the model's number of positions, up to `LARGEST_LENGTH`.

    Raises:
        UsageError: the model has fewer positions than were requested.
    """
    text = config.get_text_config(decoder=True)
    positions = next((size for name in _POSITIONS if (size := getattr(text, name, None))), None)
    if wanted is None:
        return min(positions or DEFAULT_LENGTH, LARGEST_LENGTH)
    if positions is not None and wanted > positions:
        what, where = f"the cache cannot be longer than the model's {positions} positions", f"--cache-length {wanted}"
        raise UsageError(what, where=where, fix=f"use at most {positions}")
    return wanted


def read_generation(path: Path, options: Options) -> Generation:
    """Reads the generation settings of a model from its Hugging Face folder.

    Raises:
        UnsupportedError: a setting has a value that `generate` does not support.
    """
    from transformers import AutoConfig, GenerationConfig

    config = AutoConfig.from_pretrained(path, local_files_only=True)
    if (path / "generation_config.json").is_file():
        given = GenerationConfig.from_pretrained(path, local_files_only=True)
    else:
        given = GenerationConfig.from_model_config(config)
    defaults = GenerationConfig()
    for name, plain in _PLAIN.items():
        if (value := getattr(given, name, None)) not in (None, plain, getattr(defaults, name, None)):
            raise UnsupportedError(
                f"the model's generation config sets {name} to {value}, which fuseconv does not support",
                where=f"{path}/generation_config.json",
                fix=f"remove {name} from the file",
            )
    eos = given.eos_token_id
    ends = [] if eos is None else [eos] if isinstance(eos, int) else list(eos)
    start = [given.decoder_start_token_id or 0] if config.is_encoder_decoder else []
    return Generation(
        cache_length=cache_length(config, options.cache_length),
        eos=ends,
        pad=given.pad_token_id if given.pad_token_id is not None else (ends[0] if ends else 0),
        start=start,
        suppress=list(getattr(given, "suppress_tokens", None) or ()),
        suppress_first=list(getattr(given, "begin_suppress_tokens", None) or ()),
    )


_PLAIN: Mapping[str, Any] = {
    "num_beams": 1,
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "min_length": 0,
    "bad_words_ids": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "penalty_alpha": None,
    "guidance_scale": None,
    "watermarking_config": None,
    "sequence_bias": None,
}
"""Maps each unsupported generation setting to the value that has no effect."""


def _step(module: Any, length: int, *, one: bool) -> Loaded:
    """Builds `prefill`, or `decode` if `one` is true, of a decoder-only model with a cache of `length` tokens."""
    batch = Dim("batch", 1, 64)
    tokens: int | Dim = 1 if one else Dim("seq", 2, length)
    vocabulary = module.config.get_text_config().vocab_size
    specs = (
        TensorSpec("input_ids", "i64", (batch, tokens), 0, vocabulary - 1),
        TensorSpec("attention_mask", "i64", (batch, tokens), 0, 1),
        _past_length(length - 1 if one else 0),
        TensorSpec("past_mask", "i64", (batch, length), 0, 1),
        *_past(module, length, batch),
    )
    return Loaded(Step(module, length), specs, state=_state(specs))


def _encode(module: Any, _length: int, inputs: tuple[TensorSpec, ...]) -> Loaded:
    """Builds `encode` of an encoder-decoder model: the encoder with its own inputs."""
    return Loaded(of_part(module, module.get_encoder()), inputs, call=tuple(spec.name for spec in inputs))


def _first(module: Any, length: int, inputs: tuple[TensorSpec, ...]) -> Loaded:
    """Builds `prefill` of an encoder-decoder model, which processes the first token of the decoder."""
    batch, seq, mask = _encoded(module, inputs)
    hidden = TensorSpec("encoder_hidden_states", _float(module), (batch, seq, module.get_encoder().config.hidden_size))
    specs = (_decoder_tokens(module, batch), hidden, *mask, _past_length(0), *_past(module, length, batch))
    return Loaded(FirstStep(module, length, masked=bool(mask)), specs, state=_state(specs))


def _next(module: Any, length: int, inputs: tuple[TensorSpec, ...]) -> Loaded:
    """Builds `decode` of an encoder-decoder model, which processes one more token of the decoder."""
    batch, seq, mask = _encoded(module, inputs)
    past = _past(module, length, batch)
    shapes = [(*spec.shape[:2], seq, spec.shape[3]) for spec in past]
    cross = [
        replace(spec, name=spec.name.replace("past", "cross"), shape=shape)
        for spec, shape in zip(past, shapes, strict=True)
    ]
    specs = (_decoder_tokens(module, batch), *mask, _past_length(length - 1), *past, *cross)
    return Loaded(NextStep(module, length, masked=bool(mask)), specs, state=_state(specs))


_ENCODER_DECODER: Mapping[str, Callable[[Any, int, tuple[TensorSpec, ...]], Loaded]] = {
    "encode": _encode,
    "prefill": _first,
    "decode": _next,
}


def _encoded(module: Any, inputs: tuple[TensorSpec, ...]) -> tuple[Dim, int | Dim, tuple[TensorSpec, ...]]:
    """Returns the batch dim and the sequence length of the encoder's output, and the spec of the attention mask.

    The last value is an empty tuple if the encoder has no attention mask.
    """
    batch = next(spec.shape[0] for spec in inputs)
    assert isinstance(batch, Dim)
    mask = tuple(spec for spec in inputs if spec.name == "attention_mask")
    seq = mask[0].shape[1] if mask else module.config.max_source_positions
    return batch, seq, mask


def _decoder_tokens(module: Any, batch: Dim) -> TensorSpec:
    return TensorSpec("decoder_input_ids", "i64", (batch, 1), 0, module.config.get_text_config().vocab_size - 1)


def _past_length(most: int) -> TensorSpec:
    return TensorSpec("past_length", "i64", (), 0, most)


def _past(module: Any, length: int, batch: Dim) -> tuple[TensorSpec, ...]:
    """Runs the model on one token, and returns the specs of each layer's cached keys and values."""
    cache = empty_cache(module, length)
    token = torch.zeros((1, 1), dtype=torch.int64)
    with torch.no_grad():
        if module.config.is_encoder_decoder:
            decoder = module.get_decoder()
            hidden = torch.zeros((1, 1, module.get_encoder().config.hidden_size), dtype=module.dtype)
            decoder(token, encoder_hidden_states=hidden, past_key_values=_both(cache), use_cache=True)
        else:
            module(token, past_key_values=cache, use_cache=True)
    return tuple(
        TensorSpec(f"past_{name}_{index}", SHORT_DTYPES[str(made.dtype)], (batch, *made.shape[1:]))
        for index, layer in enumerate(cache.layers)
        for name, made in (("key", layer.keys), ("value", layer.values))
    )


def _both(cache: Any) -> Any:
    from transformers import DynamicCache, EncoderDecoderCache

    return EncoderDecoderCache(cache, DynamicCache())


def _state(specs: tuple[TensorSpec, ...]) -> tuple[tuple[str, str], ...]:
    """Pairs each state input, such as `past_key_0`, with the output that becomes its value in the next call."""
    names = [spec.name for spec in specs if spec.name.startswith("past_")]
    return tuple((name, name.replace("past", "present", 1)) for name in names)


def _float(module: Any) -> str:
    return SHORT_DTYPES[str(module.dtype)]

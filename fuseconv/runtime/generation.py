"""Generates tokens with the methods of a bundle: encode, prefill, and decode for each token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from fuseconv.bundle.generation import Generation
from fuseconv.errors import UsageError
from fuseconv.runtime.choosing_tokens import Choice
from fuseconv.runtime.model import Model
from fuseconv.runtime.state import OwnedState

Tensors = dict[str, torch.Tensor]


def generate(
    methods: Mapping[str, Model],
    known: Generation,
    inputs: Mapping[str, torch.Tensor],
    choice: Choice,
    *,
    max_new_tokens: int,
    eos: tuple[int, ...],
    generator: torch.Generator | None,
) -> torch.Tensor:
    """Generates tokens until every sequence has ended.

    Args:
        methods: the methods of the bundle.
        known: the model's settings for generation, such as its start tokens and its padding token.
        inputs: the inputs by name. A missing `attention_mask` defaults to ones.
        choice: how the next token is chosen.
        max_new_tokens: the maximum number of new tokens.
        eos: the ids of the tokens that end a sequence.
        generator: the random generator. None for torch's default generator.

    Returns:
        The tokens, i64 of shape [batch, tokens]: for a decoder-only model the prompts followed by the new tokens,
        otherwise the start tokens followed by the new tokens. A sequence that has ended is filled with `known.pad`.

    Raises:
        UsageError: the cache is too small for the tokens, the prompt is empty, or `max_new_tokens` is less than 1.
        ContractError: an input violates the contract of a method.
    """
    if max_new_tokens < 1:
        what, where = f"max_new_tokens is {max_new_tokens}", f"max_new_tokens={max_new_tokens}"
        raise UsageError(what, where=where, fix="generate at least one token")
    loop = _Decoder(methods, known) if known.start else _Prompt(methods, known)
    tokens, logits = loop.begin(dict(inputs), max_new_tokens)
    ends = torch.tensor(eos, dtype=torch.int64, device=tokens.device)
    ended = torch.zeros(tokens.shape[0], dtype=torch.bool, device=tokens.device)
    first = replace(choice, suppress=(*choice.suppress, *known.suppress_first))
    for count in range(max_new_tokens):
        new = (choice if count else first).next(logits, generator).masked_fill(ended, known.pad)
        tokens = torch.cat([tokens, new[:, None]], 1)
        ended = ended | torch.isin(new, ends)
        if count + 1 == max_new_tokens or bool(ended.all()):
            break
        logits = loop.step(new[:, None])
    return tokens


class _Loop:
    """Calls the methods for one batch, and advances its state.

    Attributes:
        methods: the methods of the bundle.
        known: the model's settings for generation.
        state: the state inputs of the next call, such as the key-value cache. It belongs to this loop.
        fixed: the inputs that are the same in every call, by name.
    """

    def __init__(self, methods: Mapping[str, Model], known: Generation) -> None:
        self.methods = methods
        self.known = known
        self.state = OwnedState({})
        self.fixed: Tensors = {}

    def call(self, method: str, tensors: Tensors) -> Tensors:
        """Calls a method, which advances the state, and returns the other outputs by name.

        Args:
            method: the name of the method.
            tensors: the inputs by name, without the state and the fixed inputs.
        """
        return self.methods[method].advance(self.state, **self.fixed, **tensors)

    def check_room(self, present: int, max_new_tokens: int) -> None:
        """Checks that the cache has room for all tokens except the last, which is never fed back to the model.

        Args:
            present: the number of tokens in each prompt.
            max_new_tokens: the maximum number of new tokens.

        Raises:
            UsageError: the cache is too small.
        """
        if present + max_new_tokens - 1 > self.known.cache_length:
            raise UsageError(
                f"{present} tokens and {max_new_tokens} new tokens exceed the cache of {self.known.cache_length}",
                where=f"max_new_tokens={max_new_tokens}",
                fix="generate fewer tokens, or convert the model again with a longer --cache-length",
            )


class _Prompt(_Loop):
    """Generates tokens with a decoder-only model, which continues a prompt."""

    def begin(self, inputs: Tensors, max_new_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Processes the prompt. Returns the prompt and the logits of the next token."""
        tokens = inputs["input_ids"]
        mask = inputs.setdefault("attention_mask", torch.ones_like(tokens))
        batch, length = tokens.shape
        self.check_room(length, max_new_tokens)
        if length == 0:
            raise UsageError(
                "the prompt has no tokens", where="input_ids", fix="pass at least one token in each sequence"
            )
        self.one = torch.ones((batch, 1), dtype=mask.dtype, device=mask.device)
        self.state = OwnedState(self.methods["decode"].zero_state(batch=batch))
        if length > 1 and "prefill" in self.methods:
            return tokens, self.call("prefill", inputs)["logits"]
        for at in range(length):
            logits = self.call("decode", {name: one[:, at : at + 1] for name, one in inputs.items()})["logits"]
        return tokens, logits

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """Processes one token per sequence. Returns the logits of the next token."""
        return self.call("decode", {"input_ids": tokens, "attention_mask": self.one})["logits"]


class _Decoder(_Loop):
    """Generates tokens with an encoder-decoder model, whose decoder reads the encoder's output."""

    def begin(self, inputs: Tensors, max_new_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Encodes the inputs and processes the start tokens. Returns the start tokens and the next token's logits."""
        encoder = self.methods["encode"]
        if "attention_mask" in encoder.contract.names:
            inputs.setdefault("attention_mask", torch.ones_like(inputs["input_ids"]))
            self.fixed = {"attention_mask": inputs["attention_mask"]}
        start = inputs.pop("decoder_input_ids", None)
        hidden = encoder(**inputs)
        tokens = torch.tensor([self.known.start] * len(hidden), device=hidden.device) if start is None else start
        self.check_room(tokens.shape[1], max_new_tokens)
        self.state = OwnedState(self.methods["prefill"].zero_state(batch=len(hidden)))
        first = {"decoder_input_ids": tokens[:, :1], "encoder_hidden_states": hidden}
        outputs = self.call("prefill", first)
        logits = outputs.pop("logits")
        self.fixed |= outputs
        for at in range(1, tokens.shape[1]):
            logits = self.step(tokens[:, at : at + 1])
        return tokens, logits

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """Processes one token per sequence. Returns the logits of the next token."""
        return self.call("decode", {"decoder_input_ids": tokens})["logits"]

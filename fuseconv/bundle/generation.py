"""How the methods of a bundle generate tokens: what the loop needs to know besides the contracts."""

from __future__ import annotations

from pydantic import Field

from fuseconv.bundle.sealed_text import Strict


class Generation(Strict):
    """The facts about a model with which `generate` calls its methods.

    Attributes:
        cache_length: the number of tokens for which the key-value cache has room.
        eos: the tokens that end a sequence.
        pad: the token that follows the end of a sequence.
        start: the first tokens of a decoder that follows an encoder. Empty for a decoder-only model.
        suppress: tokens that are never generated.
        suppress_first: tokens that are not generated first.
    """

    cache_length: int
    eos: list[int]
    pad: int
    start: list[int] = Field(default_factory=list)
    suppress: list[int] = Field(default_factory=list)
    suppress_first: list[int] = Field(default_factory=list)

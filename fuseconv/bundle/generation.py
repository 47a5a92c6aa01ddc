"""The settings with which a bundle's methods generate tokens, in addition to the methods' contracts."""

from __future__ import annotations

from pydantic import Field

from fuseconv.bundle.sealed_text import Strict


class Generation(Strict):
    """The generation settings of a model, which `generate` reads.

    Attributes:
        cache_length: the capacity of the key-value cache in tokens.
        eos: the ids of the tokens that end a sequence.
        pad: the id of the token that fills a sequence after its end.
        start: the ids of the decoder's first tokens in an encoder-decoder model. Empty for a decoder-only model.
        suppress: the ids of tokens that are never generated.
        suppress_first: the ids of tokens that are never generated as the first token.
    """

    cache_length: int
    eos: list[int]
    pad: int
    start: list[int] = Field(default_factory=list)
    suppress: list[int] = Field(default_factory=list)
    suppress_first: list[int] = Field(default_factory=list)

"""How the methods of a bundle generate tokens: the facts that the loop needs besides the contracts."""

from __future__ import annotations

from pydantic import Field

from fuseconv.bundle.sealed_text import Strict


class Generation(Strict):
    """The facts about a model that `generate` needs to call its methods.

    Attributes:
        cache_length: the capacity of the key-value cache in tokens.
        eos: the tokens that end a sequence.
        pad: the token that fills a sequence after its end.
        start: the tokens with which a decoder starts after an encoder. Empty for a decoder-only model.
        suppress: tokens that are never generated.
        suppress_first: tokens that are never generated as the first token.
    """

    cache_length: int
    eos: list[int]
    pad: int
    start: list[int] = Field(default_factory=list)
    suppress: list[int] = Field(default_factory=list)
    suppress_first: list[int] = Field(default_factory=list)

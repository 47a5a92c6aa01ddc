"""Chooses the next token of each sequence from its logits: the most likely token, or a sampled one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fuseconv.errors import UsageError


@dataclass(frozen=True)
class Choice:
    """How the next token is chosen.

    Attributes:
        sample: whether to sample the token by its probability. Otherwise the most likely token is chosen.
        temperature: the number above 0 by which the logits are divided before sampling.
        top_k: the number of most likely tokens from which to sample. None to sample from all tokens.
        top_p: the probability in (0, 1] that the tokens to sample from must reach in total. They are the smallest set
            of most likely tokens that reaches it. 1 to sample from all tokens.
        suppress: the ids of the tokens that are never chosen. Empty if every token may be chosen.
    """

    sample: bool = False
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    suppress: Sequence[int] = ()

    def __post_init__(self) -> None:
        """Checks the values. Raises UsageError."""
        wrong = {
            "temperature": not self.temperature > 0,
            "top_k": self.top_k is not None and self.top_k < 1,
            "top_p": not 0 < self.top_p <= 1,
        }
        for name in (name for name, is_wrong in wrong.items() if is_wrong):
            value = getattr(self, name)
            fix = {"temperature": "use a number above 0", "top_k": "use 1 or more", "top_p": "use a number in (0, 1]"}
            raise UsageError(f"{name} is {value}", where=f"{name}={value}", fix=fix[name])
        if not self.sample and (self.temperature, self.top_k, self.top_p) != (1.0, None, 1.0):
            what = "temperature, top_k and top_p apply only if tokens are sampled"
            raise UsageError(what, where="sample=False", fix="add sample=True, or remove these arguments")

    def next(self, logits: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
        """Returns the next token of each sequence.

        Args:
            logits: the logits, of shape [batch, vocabulary].
            generator: the random generator, on the same device as the logits. None for torch's default generator.

        Returns:
            The tokens, i64 of shape [batch].
        """
        scores = logits.float()
        if self.suppress:
            scores = scores.index_fill(-1, torch.tensor(self.suppress, device=scores.device), -torch.inf)
        if not self.sample:
            return scores.argmax(-1)
        scores = scores / self.temperature
        if self.top_k is not None:
            lowest = scores.topk(min(self.top_k, scores.shape[-1])).values[..., -1, None]
            scores = scores.masked_fill(scores < lowest, -torch.inf)
        if self.top_p < 1:
            scores = self._likeliest(scores)
        return torch.multinomial(scores.softmax(-1), 1, generator=generator).squeeze(-1)

    def _likeliest(self, scores: torch.Tensor) -> torch.Tensor:
        """Returns the scores with -inf for the least likely tokens, which together have at most probability 1 - top_p.

        The most likely token always keeps its score.
        """
        ordered, places = scores.sort(descending=False)
        removed = ordered.softmax(-1).cumsum(-1) <= 1 - self.top_p
        removed[..., -1] = False
        return scores.masked_fill(removed.scatter(-1, places, removed), -torch.inf)

"""The part `models`: each case is one random model, converted and compared; a failing one is minimized."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from fuseconv.rulebook.rule_file import load_rules

from .models import random_model
from .oracle import Outcome, convert
from .program import Model
from .shrink import minimised_model

PACE: Mapping[str, int] = {"export": 1, "torchscript": 1, "onnx": 5, "onnx-plugin": 5, "aoti": 50}
"""Every how many models a target is tried."""


MOST = 12
"""How many models one process minimises; those after it are saved as they are."""


class Models:
    """Tries random models.

    Args:
        seed: of all of them.
        targets: those to convert to.
        pace: every how many models each is tried.
        shrink: how long to minimise, in seconds of processor time.
        device: where; on `cuda` without ONNX Runtime's provider for it, ONNX is left out.
    """

    def __init__(
        self,
        seed: str,
        targets: Sequence[str] = tuple(PACE),
        pace: Mapping[str, int] = PACE,
        shrink: float = 40.0,
        device: str = "cpu",
    ) -> None:
        self.seed = seed
        self.device = device
        self.targets = [name for name in targets if device == "cpu" or "onnx" not in name or _onnx_on_cuda()]
        self.pace = {**PACE, **pace}
        self.shrink = shrink
        self.rules = load_rules("rules/default.json")
        self.minimised = 0

    def model(self, at: int) -> Model:
        """Returns the model of a number."""
        targets = [name for name in self.targets if (at + 1) % self.pace[name] == 0]
        return random_model(f"{self.seed}:{at}", self.rules, at, targets)

    def text(self, at: int) -> str:
        """Returns the file of the model of a number."""
        return self.model(at).text()

    def attempt(self, at: int) -> tuple[dict[str, int], list[dict[str, Any]]]:
        """Tries the model of a number; returns what is counted and what is found."""
        started = time.process_time()
        model = self.model(at)
        outcome = convert(model.text(), self.rules, self.device)
        outcome.counts["CPU milliseconds"] += int(1000 * (time.process_time() - started))
        if not outcome.kind:
            return dict(outcome.counts), []
        return dict(outcome.counts), [self._finding(model, outcome)]

    def _finding(self, model: Model, outcome: Outcome) -> dict[str, Any]:
        def fails(other: Model) -> bool:
            try:
                found = convert(other.text(), self.rules, self.device)
            except Exception:  # noqa: BLE001 - no program any more
                return False
            return (found.kind, found.key) == (outcome.kind, outcome.key)

        self.minimised += 1
        small = minimised_model(model, fails, self.shrink if self.minimised < MOST else 0)
        again = convert(small.text(), self.rules, self.device)
        text = f'"""{again.said}"""\n\n{small.text()}'
        ops = " ".join(re.sub(r"\b[vx]\d+\b|self\.p\d+|\d+", "#", line.partition(" = ")[2]) for line in small.lines)
        key = f"{outcome.key}: {ops}"
        return {"kind": outcome.kind, "key": key, "said": again.said, "text": text, "suffix": ".py"}


def _onnx_on_cuda() -> bool:
    import onnxruntime

    return "CUDAExecutionProvider" in onnxruntime.get_available_providers()

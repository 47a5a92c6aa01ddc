"""An archive keeps the mode in which it was exported: eval mode is the fix only for one in training mode."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fuseconv.capture.capture import capture
from fuseconv.errors import UnsupportedError
from fuseconv.sources import read

EVAL, CALLED = "export the model in eval mode, or pass the ", "after a first call"


class Model(nn.Module):
    """A model that takes and returns a dict, and changes its state with the function."""

    scale: Tensor

    def __init__(self, function: Callable[[Model, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.norm = nn.BatchNorm1d(4)
        self.instances = nn.InstanceNorm1d(4)
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("scale", torch.ones(4))

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"y": self.function(self, inputs["x"])}


def counts(m: Model, x: Tensor) -> Tensor:
    """In eval mode, each norm and the dropout compute with the statistics that they have, or keep none."""
    m.scale.mul_(2)
    return m.dropout(m.instances(m.norm(x).unsqueeze(2).expand(-1, -1, 5))).sum(2) * m.scale


def draws(m: Model, x: Tensor) -> Tensor:
    return m.dropout(x)


def noise(m: Model, x: Tensor) -> Tensor:
    return x + torch.rand_like(x)


def writes(m: Model, x: Tensor) -> Tensor:
    return x.add_(1) * 2


def normed(m: Model, x: Tensor) -> Tensor:
    return m.norm(x)


TABLE = {
    "a norm in training mode": (normed, True, False, EVAL),
    "a norm in training mode, decomposed": (normed, True, True, EVAL),
    "a dropout in training mode": (draws, True, False, EVAL),
    "state in eval mode": (counts, False, False, CALLED),
    "state in eval mode, decomposed": (counts, False, True, CALLED),
    "state in training mode": (counts, True, False, EVAL),
    "random numbers in eval mode": (noise, False, False, "pass the random numbers in"),
    "an input that is written, decomposed": (writes, False, True, "without run_decompositions"),
}


@pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.:FutureWarning")
@pytest.mark.parametrize("name", TABLE)
def test_eval_mode_is_the_fix_only_in_training_mode(name: str, tmp_path: Path) -> None:
    function, training, decomposed, fix = TABLE[name]
    exported = torch.export.export(Model(function).train(training), ({"x": torch.randn(3, 4)},))
    torch.export.save(exported.run_decompositions() if decomposed else exported, tmp_path / "a.pt2")
    with pytest.raises(UnsupportedError) as caught:
        capture(read(tmp_path / "a.pt2"))
    assert fix in caught.value.fix
    assert ("eval mode" in caught.value.fix) == training


class Rescaled(nn.Module):
    """As RWKV in transformers: the first call in eval mode changes the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.rescaled = False

    def forward(self, x: Tensor) -> Tensor:
        if not self.rescaled:
            self.layer.weight.div_(2)
            self.rescaled = True
        return self.layer(x)


def test_a_model_that_the_first_call_changes_converts_after_it(tmp_path: Path) -> None:
    model, x = Rescaled().eval().requires_grad_(False), torch.randn(3, 4)
    expected = model(x)
    torch.export.save(torch.export.export(model, (x,)), tmp_path / "a.pt2")
    torch.testing.assert_close(capture(read(tmp_path / "a.pt2")).exported.module()(x), (expected,))

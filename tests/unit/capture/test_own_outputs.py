"""Outputs that are one value, views of one another, inputs or weights get their own memory in every target."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support import small_bundle
from torch import Tensor, nn

from fuseconv.matching.plan import plan
from fuseconv.matching.rewrite import rewrite
from fuseconv.program.captured import Program
from fuseconv.rulebook.rule import Rule
from fuseconv.targets import TARGETS, Context

X = "x=f32[batch:1..8,6]"


class Returns(nn.Module):
    """Returns what a function makes of a layer's result and the model."""

    table: Tensor

    def __init__(self, outputs: Callable[[Returns, Tensor, Tensor], tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.outputs = outputs
        self.layer = nn.Linear(6, 6)
        self.register_buffer("table", torch.arange(12.0).reshape(2, 6))
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.outputs(self, x, self.layer(x).sin())


FORMS: dict[str, Callable[[Returns, Tensor, Tensor], tuple[Tensor, ...]]] = {
    "a value twice": lambda m, x, h: (h, h),
    "a value three times, apart": lambda m, x, h: (h, h + 1, h, h * 2, h),
    "a value and its dropout": lambda m, x, h: (h, m.dropout(h)),
    "two dropouts": lambda m, x, h: (m.dropout(h), m.dropout(h)),
    "the last of a list, and the list": lambda m, x, h: (m.layer(h), h, h, m.dropout(h)),
    "a copy": lambda m, x, h: (h, h.clone(), h.contiguous(), h.to(h.dtype)),
    "views": lambda m, x, h: (h, h.t(), h.view(-1), h[:, 1:3], h.detach()),
    "views alone": lambda m, x, h: (h.view(-1), h.view(-1, 2, 3)),
    "pieces": lambda m, x, h: (*h.chunk(2, -1), *h.unbind(-1)[:2], h),
    "an input": lambda m, x, h: (x, h, x),
    "views of an input": lambda m, x, h: (x.t(), h, x[:, :2], x.unsqueeze(0)),
    "a buffer": lambda m, x, h: (m.table, h, m.table),
    "views of a buffer": lambda m, x, h: (h, m.table[0], m.table.t(), m.table.expand(3, 2, 6)),
    "a parameter": lambda m, x, h: (h, m.layer.weight, m.layer.weight.t(), m.layer.bias),
    "a literal": lambda m, x, h: (h, torch.tensor([1.0, 2.0]), torch.ones(3), torch.arange(4).view(2, 2)),
    "what was written in place": lambda m, x, h: (h.add_(1), h, h.view(-1)),
    "a value of a region without gradients": lambda m, x, h: (h, *without_gradients(h)),
    "an expanded value": lambda m, x, h: (h.sum().expand(2, 3).clone(), h.sum(1, keepdim=True).expand(-1, 4).clone()),
}


def without_gradients(h: Tensor) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        return h, h.t()


def programs(form: str, rules: tuple[Rule, ...]) -> tuple[Returns, list[Program]]:
    """A model and its programs: as captured, and after rules that drop copies."""
    torch.manual_seed(0)
    module = Returns(FORMS[form]).eval()
    captured = small_bundle.program(module, (X,))
    return module, [captured, rewrite(captured, plan(captured, rules, device="cpu", targets=()))]


def check(program: Program, module: nn.Module, target: str, folder: Path) -> None:
    """The outputs are the model's; a write to one of them changes no other, no input, and no later call."""
    run = TARGETS[target].load(folder / TARGETS[target].write(program, folder, Context(folder)), "cpu")
    for rows in (1, 3):
        x = torch.randn(rows, 6)
        with torch.no_grad():
            expected = [output.clone() for output in module(x.clone())]
            given = x.clone()
            results = run(given)
            assert len(results) == len(expected)
            for at, result in enumerate(results):
                torch.testing.assert_close(result, expected[at])
                result.copy_(torch.full_like(result, 7.0 + at))
                for other, value in zip(results[at + 1 :], expected[at + 1 :], strict=True):
                    torch.testing.assert_close(other, value)
            assert torch.equal(given, x)
            for again, value in zip(run(given), expected, strict=True):
                torch.testing.assert_close(again, value)


@pytest.mark.parametrize("form", FORMS)
def test_outputs_share_no_memory_in_targets_of_torch(
    form: str, canonical_rules: tuple[Rule, ...], tmp_path: Path
) -> None:
    module, both = programs(form, canonical_rules)
    for program in both:
        for target in ("export", "torchscript"):
            check(program, module, target, tmp_path)


class Every(nn.Module):
    """All forms of one model side by side: one program, for targets that are slow to write."""

    def __init__(self, forms: list[Returns]) -> None:
        super().__init__()
        self.forms = nn.ModuleList(forms)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(output for form in self.forms for output in form(x))


@pytest.mark.long
@pytest.mark.parametrize("target", ["onnx", "onnx-plugin", pytest.param("aoti", marks=pytest.mark.compiles)])
def test_outputs_share_no_memory_in_targets_that_compile(
    target: str, canonical_rules: tuple[Rule, ...], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    module = Every([Returns(outputs) for outputs in FORMS.values()]).eval()
    captured = small_bundle.program(module, (X,))
    program = rewrite(captured, plan(captured, canonical_rules, device="cpu", targets=()))
    check(program, module, target, tmp_path)

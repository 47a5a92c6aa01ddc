"""Matches whose replacement uses other random numbers: found in a model in train mode, compared, and trained."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import fuseconv
from fuseconv.errors import UsageError
from fuseconv.matching.steps import Plan
from fuseconv.proof import shares
from fuseconv.proof.checked import checked_plan
from fuseconv.proof.example import example_program
from fuseconv.rulebook.own_rules import load_rules
from fuseconv.rulebook.rule import Rule

pytestmark = pytest.mark.spellings

P = 0.1
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]

Act = Callable[[Tensor], Tensor]


class FeedForward(nn.Module):
    """A transformer's feed-forward block, pre-norm; `act` is what stands between its products."""

    def __init__(self, act: nn.Module | None = None) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(32), nn.Linear(32, 320), nn.Linear(320, 32)
        self.act = act or nn.Sequential(nn.GELU(), nn.Dropout(P))
        self.drop = nn.Dropout(P)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(self.down(self.act(self.up(self.norm(x)))))


class Acts(nn.Module):
    def __init__(self, function: Act) -> None:
        super().__init__()
        self.function = function

    def forward(self, h: Tensor) -> Tensor:
        return self.function(h)


def spelled_out(h: Tensor) -> Tensor:
    return 0.5 * h * (1 + torch.erf(h / math.sqrt(2)))


FOUND: dict[str, Act | nn.Module | None] = {
    "modules": None,
    "modules in place": nn.Sequential(nn.GELU(), nn.Dropout(P, inplace=True)),
    "functional": lambda h: functional.dropout(functional.gelu(h), P),
    "torch": lambda h: torch.dropout(functional.gelu(h), P, True),
    "native": lambda h: torch.native_dropout(functional.gelu(h), P, True)[0],
    "native, train left open": lambda h: torch.native_dropout(functional.gelu(h), P, None)[0],
    "gelu spelled out": lambda h: functional.dropout(spelled_out(h), P),
    "gelu in place": lambda h: functional.dropout(torch.ops.aten.gelu_(h), P),
    "a residual after it": lambda h: h + functional.dropout(functional.gelu(h), P),
    "a view between": lambda h: functional.dropout(functional.gelu(h).view(h.shape), P),
    "dropout that is off between": lambda h: functional.dropout(functional.dropout(functional.gelu(h), P, False), P),
    "twice": lambda h: functional.dropout(functional.gelu(h), P) * functional.dropout(functional.gelu(-h), 0.5),
}
LEFT: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    # name: (function, part of the reason; none where nothing is near)
    "tanh": (lambda h: functional.dropout(functional.gelu(h, approximate="tanh"), P), "to be 'none', found 'tanh'"),
    "its mask is used": (
        lambda h: math.prod(torch.native_dropout(functional.gelu(h), P, True)),
        "no user outside the match, found mul",
    ),
    "gelu is used": (
        lambda h: (g := functional.gelu(h)) + functional.dropout(g, P),
        "no user outside the match, found add",
    ),
    "everything is dropped": (lambda h: functional.dropout(functional.gelu(h), 1.0), "p < 1, found 1.0"),
    "hardly anything is dropped": (lambda h: functional.dropout(functional.gelu(h), 1e-4), "p >= 0.001"),
    "nothing is dropped": (lambda h: functional.dropout(functional.gelu(h), 0.0), ""),
    "off": (lambda h: functional.dropout(functional.gelu(h), P, False), ""),
    "whole channels": (lambda h: functional.dropout1d(functional.gelu(h), P), ""),
}


def model_of(act: Act | nn.Module | None, device: str = "cpu") -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model = FeedForward(Acts(act) if callable(act) and not isinstance(act, nn.Module) else act)
    return model.to(device), torch.randn(4, 12, 32, device=device)


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("low", [False, True], ids=["plain", "autocast"])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", FOUND)
def test_every_spelling_is_found_in_a_model_that_learns(name: str, device: str, low: bool) -> None:
    model, x = model_of(FOUND[name], device)
    with torch.autocast(device, torch.bfloat16, enabled=low):
        fused = fuseconv.fuse(model, x, dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=64)},))
        assert fused.plan.counts().get("gelu-dropout") == (2 if name == "twice" else 1), fused.plan.misses
        assert not fused.plan.rejected
        torch.manual_seed(3)
        first = fused(x)
        assert not torch.equal(first, fused(x))
        torch.manual_seed(3)
        assert torch.equal(first, fused(x))
    assert Plan.from_json(fused.plan.to_json()).steps == fused.plan.steps


@pytest.mark.parametrize("name", LEFT)
def test_what_is_no_dropout_of_gelu_is_left_alone(name: str) -> None:
    function, reason = LEFT[name]
    plan = fuseconv.fuse(Acts(function), torch.randn(4, 12, 32)).plan
    assert "gelu-dropout" not in plan.counts()
    reasons = [miss.reason for miss in plan.misses if miss.rule == "gelu-dropout"]
    assert any(reason in found for found in reasons) if reason else not reasons, reasons


def test_in_eval_mode_dropout_is_removed_and_gelu_goes_with_the_product() -> None:
    model, x = model_of(None)
    counts = fuseconv.fuse(model.eval(), x).plan.counts()
    assert (counts["eval-dropout"], counts["linear-act"], counts.get("gelu-dropout")) == (2, 1, None)


@pytest.mark.parametrize("device", DEVICES)
def test_a_fused_block_learns(device: str) -> None:
    model, x = model_of(None, device)
    fused = fuseconv.fuse(model, x)
    assert fused.plan.counts()["gelu-dropout"] == 1
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    target, losses = x.roll(1, 1), []
    for _ in range(50):
        loss = functional.mse_loss(fused(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())
    assert sum(losses[-5:]) < 0.5 * sum(losses[:5])


@pytest.mark.parametrize("device", DEVICES)
def test_the_results_have_the_mean_and_the_variance_of_dropout(device: str) -> None:
    """Of each element over many draws, against what p says; five standard deviations of the estimates."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Dropout(P)).to(device)
    x = torch.randn(3, 8, device=device)
    with torch.no_grad():
        fused, expected = fuseconv.fuse(model, x), functional.gelu(model[0](x)).double()
        assert fused.plan.counts()["gelu-dropout"] == 1
        draws = 4000
        given = torch.stack([fused(x) for _ in range(draws)]).double()
    variance = expected.square() * P / (1 - P)
    z = (given.mean(0) - expected) / (variance / draws).sqrt()
    assert z.abs().max() < 5
    assert abs(float(z.mean())) < 5 / z.numel() ** 0.5
    ratio = given.var(0) / variance
    assert (ratio - 1).abs().max() < 5 * ((1 / (P * (1 - P)) - 4) / draws) ** 0.5
    kept = given != 0
    torch.testing.assert_close(given[kept], (expected / (1 - P)).expand_as(given)[kept], rtol=1e-5, atol=1e-6)


def test_mode_and_generator_are_those_of_the_model() -> None:
    model, x = model_of(None)
    state = torch.random.get_rng_state()
    fused = fuseconv.fuse(model, x)
    assert torch.equal(torch.random.get_rng_state(), state), "fuse drew from the caller's generator"
    with pytest.raises(UsageError, match="captured in train mode"):
        fused.eval()


@pytest.mark.parametrize("device", DEVICES)
def test_compiled_and_exported_again_it_draws_the_same(device: str) -> None:
    model, x = model_of(None, device)
    fused = fuseconv.fuse(model, x)
    compiled = torch.compile(fused, backend="aot_eager", fullgraph=True)
    exported = torch.export.export(fused, (x,), strict=False).module()
    results = []
    for call in (fused, compiled, exported):
        torch.manual_seed(5)
        results.append(call(x))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def rules_with(tmp_path: Path, *rules: Rule) -> Path:
    path = tmp_path / "mine.json"
    every = "".join(f"{rule.model_dump_json(exclude_unset=True)}," for rule in rules).rstrip(",")
    path.write_text(f'{{"include": ["rules/default.json"], "rules": [{every}]}}')
    return path


def test_what_builds_on_a_site_that_draws_is_left_out_of_the_proof_of_the_whole(tmp_path: Path) -> None:
    more = {
        "match": ["y = fuseconv.gelu_dropout.default(x, seed, p)", "z = aten.neg.default(y)"],
        "replace": ["d = fuseconv.gelu_dropout.default(x, seed, p)", "z = aten.mul.Tensor(d, -1)"],
    }
    own = Rule.model_validate({"name": "negated", "stage": "fuse", "doc": "For tests.", **more})
    model, x = model_of(lambda h: -functional.dropout(functional.gelu(h), P))
    fused = fuseconv.fuse(model, x, rules_with(tmp_path, own))
    assert {"gelu-dropout", "negated"} <= fused.plan.counts().keys()
    left = fused.plan.drawing_the_same()
    assert {step.rule for step in left.steps if not step.apply} == {"gelu-dropout", "negated"}


WRONG = {
    "scale": ["d = fuseconv.gelu_dropout.default(x, seed, p)", "y = aten.mul.Tensor(d, 1.01)"],
    "share": ["d = fuseconv.gelu_dropout.default(x, seed, 0.2)", "y = aten.mul.Tensor(d, 0.8888888888888888)"],
    "gradient": ["c = aten.detach.default(x)", "y = fuseconv.gelu_dropout.default(c, seed, p)"],
    "nothing drawn": ["g = aten.gelu.default(x)", "y = aten.div.Tensor(g, 0.9)"],
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_rule_is_rejected_at_its_site_with_numbers(name: str) -> None:
    (right,) = [rule for rule in load_rules() if rule.name == "gelu-dropout"]
    seed = right.replace[:2] if name != "nothing drawn" else []
    changed = {"name": "wrong", "replace": [*seed, *WRONG[name]]}
    wrong = Rule.model_validate(right.model_dump(exclude={"examples"}) | changed)
    lines = ["x: f32[n, 64]", "h = aten.gelu.default(x)", "y = aten.dropout.default(h, 0.1, True)", "return y"]
    found = checked_plan(example_program(lines), [wrong], device="cpu", targets=["export"])
    assert found.counts() == {}
    (miss,) = found.rejected
    assert "differs" in miss.reason
    assert "f32[3, 64]" in miss.reason


@pytest.mark.parametrize("p", [0.001, 0.1, 0.5, 0.82, 0.99])
@pytest.mark.parametrize("n", [1, 7, 40, 300, 2000])
def test_what_is_right_is_found_unlikely_as_rarely_as_is_said(p: float, n: int) -> None:
    """The sum of the binomial probabilities of all the counts that are refused."""
    refused = [count for count in range(n + 1) if shares._is_unlikely(torch.arange(n) < count, p)]
    logs = (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) for k in refused)
    chances = (log + k * math.log(p) + (n - k) * math.log(1 - p) for log, k in zip(logs, refused, strict=True))
    assert sum(map(math.exp, chances)) <= shares.FALSE_ALARM
    if n * min(p, 1 - p) > 30:
        assert {0, n} <= set(refused)

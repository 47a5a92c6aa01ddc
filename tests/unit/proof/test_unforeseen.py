"""An unexpected error at any step of a match excludes only that match: it is reported, and the rest is planned."""

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import pytest
import torch
from support.programs import Function, capture, run

from fuseconv.errors import RuleError
from fuseconv.matching import plan as planning
from fuseconv.matching import worklist
from fuseconv.matching.graph import Workspace
from fuseconv.matching.match import match_at
from fuseconv.matching.plan import plan
from fuseconv.matching.rewrite import apply, rewrite
from fuseconv.matching.steps import Step
from fuseconv.proof import checked
from fuseconv.proof.checked import checked_plan
from fuseconv.proof.ledger import Ledger
from fuseconv.rulebook.rule import Rule

EVERYWHERE: dict[str, Any] = {"device": "cpu", "targets": ()}


def rule(name: str, match: Sequence[str], replace: Sequence[str]) -> Rule:
    return Rule.model_validate({"name": name, "stage": "fuse", "doc": "d", "match": match, "replace": replace})


RULES = [
    rule("right", ["e = aten.exp.default(x)", "y = aten.log1p.default(e)"], ["y = aten.softplus.default(x)"]),
    rule("broken", ["y = aten.silu.default(x)"], ["s = aten.sigmoid.default(x)", "y = aten.mul.Tensor(x, s)"]),
]


def fail(function: Callable[..., Any], is_broken: Callable[[Any], bool]) -> Callable[..., Any]:
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if is_broken(args):
            raise KeyError("s77")
        return function(*args, **kwargs)

    return wrapped


def in_matching(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worklist, "match_at", fail(match_at, lambda args: args[1][0].rule.name == "broken"))


def in_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the graph was changed: what is half done is thrown away."""

    def halfway(workspace: Workspace, step: Step) -> None:
        apply(workspace, step)
        if step.rule == "broken":
            raise AttributeError("NoneType has no val")

    monkeypatch.setattr(planning, "apply", halfway)


def in_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ledger, "execute", fail(Ledger.execute, lambda args: args[1].rule == "broken"))


def in_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = checked._Trial._compared
    monkeypatch.setattr(checked._Trial, "_compared", fail(compared, lambda args: args[2].step.rule == "broken"))


@pytest.mark.parametrize("where", [in_matching, in_the_step, in_the_ledger, in_the_trial], ids=lambda f: f.__name__)
def test_the_site_is_left_alone_by_name(
    where: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = capture(
        Function(lambda _, x: torch.nn.functional.silu(torch.exp(torch.nn.functional.silu(x)).log1p())),
        torch.randn(3, 8),
    )
    where(monkeypatch)
    found = checked_plan(program, RULES, **EVERYWHERE)
    assert found.counts() == {"right": 1}
    assert [miss.rule for miss in found.rejected] == ["broken", "broken"]
    assert all("a bug in fuseconv, " in miss.reason for miss in found.rejected)
    torch.testing.assert_close(run(rewrite(program, found)), run(program))
    if where in (in_matching, in_the_step):
        assert plan(program, RULES, **EVERYWHERE).counts() == {"right": 1}


def test_an_error_on_purpose_and_memory_that_ran_out_are_no_such_thing(monkeypatch: pytest.MonkeyPatch) -> None:
    program = capture(Function(lambda _, x: torch.nn.functional.silu(x)), torch.randn(3, 8))
    for error in (RuleError("too long"), MemoryError()):

        def raises(*_: object, error: Exception = error) -> NoReturn:
            raise error

        for name, module in (("apply", planning), ("match_at", worklist)):
            with monkeypatch.context() as patch:
                patch.setattr(module, name, raises)
                with pytest.raises(type(error)):
                    plan(program, RULES, **EVERYWHERE)

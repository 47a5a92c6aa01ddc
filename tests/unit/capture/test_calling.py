"""How inputs are bound to forward's parameters: by name, in any order, in every source format."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict, Unpack

import pytest
import torch
from support.subjects import subject_of
from torch import Tensor, nn

from fuseconv.capture.capture import capture
from fuseconv.contract.input_text import parse_inputs
from fuseconv.contract.inputs import draw
from fuseconv.errors import UsageError
from fuseconv.program.calling import call_of
from fuseconv.sources import Options, read

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.:FutureWarning"),  # torch warns of its own use
]


def plain(left: Tensor, right: Tensor, scale: float = 2.0) -> None: ...
def keyword_only(*, left: Tensor, right: Tensor) -> None: ...
def mixed(left: Tensor, /, middle: Tensor, *, right: Tensor) -> None: ...
def any_number(*tensors: Tensor) -> None: ...
def any_keyword(**tensors: Tensor) -> None: ...
def some_keywords(left: Tensor, **more: Tensor) -> None: ...
def typed_keywords(left: Tensor | None = None, **more: Tensor) -> None: ...


class RequiredKeywords(TypedDict):
    third: Tensor


class Keywords(RequiredKeywords, total=False):
    right: Tensor


typed_keywords.__annotations__["more"] = Unpack[Keywords]


@pytest.mark.parametrize(
    ("forward", "names", "call"),
    [
        (plain, "left right", ()),
        (plain, "right left", ("right", "left")),
        (plain, "left right scale", ()),
        (plain, "a b", ()),
        (keyword_only, "left right", ("left", "right")),
        (keyword_only, "right left", ("right", "left")),
        (mixed, "left middle right", ("", "middle", "right")),
        (mixed, "right left middle", ("right", "", "middle")),
        (any_number, "a b c", ()),
        (any_keyword, "a b", ("a", "b")),
        (some_keywords, "left right", ("left", "right")),
        (some_keywords, "x", ()),
        (typed_keywords, "third right", ("third", "right")),
        (typed_keywords, "third other", "use the names of forward's parameters"),
        (typed_keywords, "left right", "add --input for third"),
        (plain, "left", "add --input for right"),
        (plain, "left other", "use the names of forward's parameters"),
        (plain, "right other", "use the names of forward's parameters"),
        (plain, "a", "add --input for right"),
        (plain, "a b c d", "one --input for each tensor"),
        (keyword_only, "a b", "add --input for left, right"),
        (mixed, "a b c", "add --input for right"),
    ],
)
def test_names_are_bound(forward: Callable[..., Any], names: str, call: tuple[str, ...] | str) -> None:
    parameters = tuple(inspect.signature(forward).parameters.values())
    if isinstance(call, tuple):
        assert call_of(names.split(), parameters, "model") == call
        return
    with pytest.raises(UsageError) as told:
        call_of(names.split(), parameters, "model")
    assert call in told.value.fix


class KeywordOnly(nn.Module):
    def forward(self, *, left: Tensor, right: Tensor) -> Tensor:
        return left - 2 * right


class Mixed(nn.Module):
    def forward(self, left: Tensor, /, *others: Tensor, right: Tensor) -> Tensor:
        return left - 2 * right


class Plain(nn.Module):
    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return left - 2 * right


@pytest.mark.parametrize("order", ["left right", "right left"])
@pytest.mark.parametrize("model_class", [KeywordOnly, Mixed, Plain])
def test_whatever_the_order_and_the_kind_of_parameter(model_class: type[nn.Module], order: str) -> None:
    first, second = order.split()
    specs = parse_inputs([f"{first}=f32[n:1..9,4]", f"{second}=f32[n,4]"])
    parameters = tuple(inspect.signature(model_class.forward).parameters.values())[1:]
    call = call_of(order.split(), parameters, "model")
    program = capture(subject_of(model_class(), specs=specs, call=call))
    assert program.contract.names == (first, second)
    inputs = dict(zip(program.contract.names, draw(program.contract, {"n": 3}, seed=0), strict=True))
    (result,) = program.exported.module()(*inputs.values())
    torch.testing.assert_close(result, inputs["left"] - 2 * inputs["right"])


@pytest.mark.parametrize("order", ["left right", "right left"])
@pytest.mark.parametrize("traced", [False, True], ids=["scripted", "traced"])
def test_a_torchscript_archive_takes_them_by_the_names_in_its_schema(traced: bool, order: str, tmp_path: Path) -> None:
    examples = torch.randn(3, 4), torch.randn(3, 4)
    module = torch.jit.trace(Plain(), examples) if traced else torch.jit.script(Plain())
    torch.jit.save(module, tmp_path / "model.ts")
    options = Options(
        inputs=parse_inputs([f"{name}=f32[3,4]" for name in order.split()]), trust=frozenset({"torchscript"})
    )
    program = capture(read(tmp_path / "model.ts", options=options))
    assert program.contract.names == ("left", "right")
    inputs = dict(zip(program.contract.names, draw(program.contract, {}, seed=0), strict=True))
    (result,) = program.exported.module()(*inputs.values())
    torch.testing.assert_close(result, module(inputs["left"], inputs["right"]))


@pytest.mark.parametrize("names", ["left other", "a b", "left"])
def test_other_names_for_a_torchscript_archive_are_an_error(names: str, tmp_path: Path) -> None:
    torch.jit.save(torch.jit.script(Plain()), tmp_path / "model.ts")
    options = Options(
        inputs=parse_inputs([f"{name}=f32[3,4]" for name in names.split()]), trust=frozenset({"torchscript"})
    )
    with pytest.raises(UsageError, match=r"the model's forward takes \(left, right\)"):
        read(tmp_path / "model.ts", options=options)

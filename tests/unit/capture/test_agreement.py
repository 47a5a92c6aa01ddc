"""A captured program is compared with the module itself, at the sizes that torch.export assumes."""

from __future__ import annotations

import pickle
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.subjects import subject_of
from torch import Tensor, nn

from fuseconv.bundle.manifest import Manifest, Source
from fuseconv.capture.capture import capture
from fuseconv.contract.input_text import parse_inputs
from fuseconv.errors import UnsupportedError
from fuseconv.matching.steps import Plan
from fuseconv.pipeline.assembly import Assembly
from fuseconv.program.original import Original
from fuseconv.sizes.named_sizes import named_sizes
from fuseconv.sources import Options, read

WAYS: dict[str, tuple[Callable[[Tensor], bool], str]] = {
    "more than one row": (lambda x: x.shape[0] > 1, "a = 1"),
    "one row": (lambda x: x.shape[0] == 1, "a = 1"),
    "fewer than two rows": (lambda x: x.shape[0] < 2, "a = 1"),
    "one column": (lambda x: x.shape[1] != 1, "b = 1"),
    "one of both": (lambda x: x.shape[0] * x.shape[1] > 1, "a = 1, b = 1"),
    "either is one": (lambda x: 1 in x.shape, "a = 1"),
    "a sum": (lambda x: x.shape[0] + x.shape[1] > 3, "a = 1, b = 1"),
    "a small product": (lambda x: x.shape[0] * x.shape[1] >= 4, "b = 1"),
    "half of the rows": (lambda x: x.shape[0] // 2 > 0, "a = 1"),
    "the number of elements": (lambda x: x.numel() > 8, "a = 1, b = 1"),
    "by the name of the method": (lambda x: x.size(1) >= 2, "b = 1"),
    "contiguous when turned": (lambda x: x.transpose(0, 1).is_contiguous(), "a = 1"),
    "squeezed": (lambda x: x.squeeze(1).dim() == 3, "b = 1"),
    "whether it is exported": (lambda _: torch.compiler.is_exporting(), ""),
    "the class of a size": (lambda x: isinstance(x.shape[0], int) and type(x.shape[0]) is int, ""),
}


class Either(nn.Module):
    """Twice the input, or four times."""

    def __init__(self, condition: Callable[[Tensor], bool]) -> None:
        super().__init__()
        self.condition = condition

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if self.condition(x) else x * 4


@pytest.mark.parametrize("name", WAYS)
def test_a_branch_that_the_exporter_drops_is_refused_with_its_sizes(name: str) -> None:
    condition, at = WAYS[name]
    with pytest.raises(UnsupportedError) as told:
        capture(subject_of(Either(condition), "x=f32[a:1..64,b:1..32,8]"))
    assert re.search(rf"at .*{at}", told.value.what)
    assert re.search(r"elements of output_0 differ, by up to \d", told.value.what)


@pytest.mark.parametrize("name", [name for name, (_, at) in WAYS.items() if at])
def test_it_goes_through_once_the_sizes_are_out(name: str) -> None:
    capture(subject_of(Either(WAYS[name][0]), "x=f32[a:3..64,b:3..32,8]"))


class Normalised(nn.Module):
    """Normalises over the rows where there are several."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"first": self.norm(x), "second": (y - y.mean(0)) / y.std(0) if y.shape[0] > 1 else y}


def test_the_error_names_the_output_and_the_range_that_remains() -> None:
    inputs = ["x=f32[n:1..16,8]", "y=f32[rows:1..64,8]"]
    with pytest.raises(UnsupportedError) as told:
        capture(subject_of(Normalised(), *inputs))
    assert re.search(r"at n = \d, rows = 1: 8 of 8 elements of second differ", told.value.what)
    assert told.value.fix.startswith("write rows:2..64 in --input")
    capture(subject_of(Normalised(), inputs[0], "y=f32[rows:2..64,8]"))


class Empty(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum(0) if x.shape[0] else x.new_ones(8)


def test_none_are_tried_where_the_contract_allows_none() -> None:
    with pytest.raises(UnsupportedError, match="at n = 0: 8 of 8 elements of output_0 differ, by up to 1") as told:
        capture(subject_of(Empty(), "x=f32[n:0..16,8]"))
    assert told.value.fix.startswith("write n:1..16 in --input")
    capture(subject_of(Empty(), "x=f32[n:1..16,8]"))


class Raises(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] < 2:
            raise ValueError("one row is not enough")
        return x * 2


def test_sizes_that_the_model_refuses_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"works only with n within 2..16; it fails at n = 1") as told:
        capture(subject_of(Raises(), "x=f32[n:1..16,8]"))
    assert "one row is not enough" in told.value.what
    assert told.value.fix.startswith("write n:2..16 in --input")
    assert "raise ValueError" in told.value.where


class Stateful(nn.Module):
    """Counts its calls outside of any buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * self.calls


class Chance(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * random.random()


@pytest.mark.parametrize("module", [Stateful(), Chance()], ids=["state", "chance"])
def test_a_model_that_is_no_function_of_its_inputs_is_refused(module: nn.Module) -> None:
    with pytest.raises(UnsupportedError, match="different results for the same inputs"):
        capture(subject_of(module, "x=f32[n:1..16,8]"))


class Writes(nn.Module):
    """Keeps what it saw last, where it saw one row."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] == 1:
            self.seen.copy_(x[0])
        return x * 2


def test_a_model_that_writes_to_itself_at_some_sizes_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="mutates seen when it is called"):
        capture(subject_of(Writes(), "x=f32[n:1..16,8]"))


class Keeps(nn.Module):
    """Keeps what it computed of a size in a buffer: None at first, not there at all, or larger than needed."""

    kept: Tensor

    def __init__(self, first: str) -> None:
        super().__init__()
        if first == "none":
            self.register_buffer("kept", None, persistent=False)
        if first == "long":
            self.register_buffer("kept", torch.arange(64.0).cos(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        kept = getattr(self, "kept", None)
        if kept is None or kept.shape[0] < x.shape[0]:
            self.register_buffer("kept", torch.arange(x.shape[0], dtype=x.dtype).cos(), persistent=False)
        return x * self.kept[: x.shape[0], None]


@pytest.mark.parametrize("first", ["none", "absent", "long"])
def test_a_model_that_keeps_what_it_computed_in_a_buffer_keeps_numbers(first: str) -> None:
    subject = subject_of(nn.Sequential(Keeps(first), nn.ReLU()), "x=f32[n:2..16,8]")
    program = capture(subject)
    kept = dict(subject.module.named_buffers()).get("0.kept")
    assert kept is None or type(kept) is Tensor
    x = torch.randn(5, 8)
    assert torch.equal(program.exported.module()(x)[0], subject.module(x))
    pickle.dumps(subject.module)


def test_the_original_leaves_inputs_and_random_numbers_alone() -> None:
    class Noisy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.add_(torch.rand(()))

    x = torch.zeros(3)
    before = torch.random.get_rng_state()
    Original(Noisy())(x)
    assert x.eq(0).all()
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_transformer_encoder_is_its_slow_path() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = encoder

        def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
            return self.encoder(x, src_key_padding_mask=hidden & (torch.arange(x.shape[1]) > 0))

    capture(subject_of(Masked(), "x=f32[batch:1..16,seq:1..32,8]", "hidden=bool[batch,seq]"))
    assert torch.backends.mha.get_fastpath_enabled()


def test_what_the_original_is_is_said(tmp_path: Path) -> None:
    model = nn.Linear(8, 4).eval()
    program = capture(subject_of(model, "x=f32[3,8]"))
    assert program.original is not None
    assert program.original.kind == "module"
    torch.save(model, tmp_path / "model.pt")
    torch.export.save(torch.export.export(model, (torch.ones(3, 8),)), tmp_path / "model.pt2")
    options = Options(inputs=parse_inputs(["x=f32[3,8]"]), trust=frozenset({"pickle"}))
    for name, read_as, original in (("model.pt", options, "module"), ("model.pt2", Options(), "archive")):
        subject = read(tmp_path / name, options=read_as)
        described = Assembly.of(subject, capture(subject), [], [], None).describe(Plan(()), [], [])
        assert described.source.original == original
        assert Manifest.read(described.render()).source.original == original
    assert "original" not in Source(form="pt2", sha256="").model_dump()


def helper(x: Tensor) -> bool:
    return x.shape[0] in (23, 29)


class Named(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = x[:, :77] if self.asks(x) or helper(x) else x
        return x * 3 if x.shape[1] >= 41 else x

    def asks(self, x: Tensor) -> bool:
        return x.shape[1] == 19


def test_the_numbers_of_a_model_s_source_are_found_those_of_comparisons_first() -> None:
    found = named_sizes(nn.Sequential(nn.Linear(2, 2), Named()))
    assert {*found} >= {19, 23, 29, 41, 77, 3}
    assert max(found.index(one) for one in (19, 23, 29, 41)) < min(found.index(one) for one in (77, 3))

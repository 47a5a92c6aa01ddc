"""Guards on sizes that torch.export cannot simplify: removed if proved, otherwise an error message."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.subjects import subject_of
from torch import Tensor, nn
from torch.nn import functional as F

from fuseconv.capture.capture import capture
from fuseconv.errors import FuseconvError, UnsupportedError
from fuseconv.sources import read

ROWS = "x=f32[batch:1..64,length:1..64,8]"


class Rows(nn.Module):
    """A layer whose result is written to as rows, by views whose strides torch.export guards on."""

    def __init__(self, write: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.write = write

    def forward(self, x: Tensor) -> Tensor:
        return self.write(self.layer(x), x)


def column(h: Tensor, x: Tensor) -> Tensor:
    rows = h.view(-1, 8)
    rows[:, 0] = 0
    return rows.view(x.shape[0], -1, 8)


def activation(h: Tensor, x: Tensor) -> Tensor:
    return h.view(-1, 8).relu_().view_as(x)


def twice(h: Tensor, x: Tensor) -> Tensor:
    h.view(-1, 8).add_(1.0)
    return h.view(-1, 8).view(x.shape) + x


def every_other_row(h: Tensor, x: Tensor) -> Tensor:
    rows = h.view(-1, 8)
    return rows.index_fill_(0, torch.arange(0, rows.shape[0], 2), 0.0).view(x.shape)


@pytest.mark.parametrize("write", [column, activation, twice, every_other_row])
def test_a_guard_that_always_holds_is_no_restriction(write: Callable[[Tensor, Tensor], Tensor]) -> None:
    module = Rows(write).eval()
    program = capture(subject_of(module, ROWS))
    assert "_assert_scalar" not in program.exported.graph_module.code
    for shape in ((1, 1, 8), (2, 5, 8), (64, 3, 8)):
        x = torch.randn(shape)
        torch.testing.assert_close(program.exported.module()(x)[0], module(x))


class Halves(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        half = x.shape[0] // 2
        return x[:half] * x[half:]


def test_a_guard_that_does_not_is_an_error() -> None:
    with pytest.raises(UnsupportedError, match="works only with n = "):
        capture(subject_of(Halves().eval(), "x=f32[n:2..64,8]"))


def parts(h: Tensor, x: Tensor) -> Tensor:
    heads = torch.cat(h.split(2, -1), 0)
    return torch.cat(heads.softmax(-1).split(x.shape[0], 0), -1) + x


def chunks(h: Tensor, x: Tensor) -> Tensor:
    padded = F.pad(h, (0, 0, 0, -h.shape[1] % 64)).view(h.shape[0], -1, 64, 8)
    rows = [padded[:, :, : row + 1].sum(2) for row in range(0, padded.shape[2], 16)]
    return torch.stack(rows, 2).flatten(1, 2).mean(1, keepdim=True) + x


@pytest.mark.parametrize("shape", [ROWS, "x=f32[batch:2..9,length:1..64,8]"])
@pytest.mark.parametrize("write", [parts, chunks])
def test_a_number_of_parts_is_no_restriction(write: Callable[[Tensor, Tensor], Tensor], shape: str) -> None:
    module = Rows(write).eval()
    program = capture(subject_of(module, shape))
    assert "_assert_scalar" not in program.exported.graph_module.code
    for batch, length in ((2, 1), (3, 64), (9, 7)):
        x = torch.randn(batch, length, 8)
        torch.testing.assert_close(program.exported.module(check_guards=False)(x)[0], module(x))


def test_the_number_of_parts_of_unbounded_dims_is_proved(tmp_path: Path) -> None:
    module, dims = Rows(parts).eval(), {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    exported = torch.export.export(module, (torch.randn(3, 7, 8),), dynamic_shapes=(dims,))
    torch.export.save(exported, tmp_path / "model.pt2")
    program = capture(read(tmp_path / "model.pt2"))
    assert min(dim.max for dim in program.contract.dims().values()) >= 2**31 - 1


def pooled(x: Tensor) -> Tensor:
    return F.conv1d(F.conv1d(x.mT, torch.ones(4, 8, 3), stride=2, padding=1), torch.ones(4, 4, 7), stride=4, padding=3)


def pooled_twice(x: Tensor) -> Tensor:
    return F.max_pool1d(F.conv1d(x.mT, torch.ones(4, 8, 3), padding=1), 2, 2, 1).mT.relu()


def windows(x: Tensor) -> Tensor:
    return x.reshape(x.shape[0], -1, 32)[:, 1:].cumsum(1)


UNUSUAL: dict[str, tuple[Callable[[Tensor], Tensor], str, list[int]]] = {
    "all but the first": (lambda x: torch.cat([x[:, :1], x[:, 1:].cumsum(1)], 1), "n:1..20", [2, 1]),
    "differences": (lambda x: F.pad(torch.diff(x, dim=1), (0, 0, 1, 0)).relu(), "n:1..20", [2]),
    "products": (lambda x: x[:, 1:] @ x[:, 1:].mT, "n:1..20", [2, 1]),
    "a layer of differences": (lambda x: F.linear(x[:, 1:] - x[:, :-1], torch.ones(4, 8)), "n:1..20", [2, 1]),
    "windows of windows": (pooled_twice, "n:1..20", [1]),
    "strides": (pooled, "n:1..20", [1, 2, 8]),
    "strides of long inputs": (pooled, "n:1..20000", [1, 2, 8]),
    "a dim of multiples": (windows, "n:4..64:4", [8]),
}
"""Functions with an axis that has one element or none at a few sizes, these sizes, and those of them that artifacts are
checked at, in this order."""


@pytest.mark.parametrize("name", UNUSUAL)
def test_a_program_is_compared_at_the_sizes_that_a_guard_excludes(name: str) -> None:
    function, dim, sizes = UNUSUAL[name]
    module = Rows(lambda h, x: function(h) + function(x)).eval()
    program = capture(subject_of(module, f"x=f32[batch:1..4,{dim},8]"))
    assert str(program.contract.dims()["n"]) == dim
    assert [*dict.fromkeys(one["n"] for one in program.unusual)] == sizes
    assert "_assert_scalar" not in program.exported.graph_module.code
    low, step = program.contract.dims()["n"].min, program.contract.dims()["n"].step
    for length in range(low, low + 10 * step, step):
        x = torch.randn(3, length, 8)
        torch.testing.assert_close(program.exported.module(check_guards=False)(x)[0], module(x))


def test_axes_of_images_may_be_one_pixel() -> None:
    strides = nn.Sequential(*(nn.Conv2d(3, 3, 3, 2, 1) for _ in range(4)))
    program = capture(subject_of(strides.eval(), "x=f32[batch:1..4,3,h:1..512,w:1..512]"))
    assert {(1, 1), (16, 16)} <= {(one["h"], one["w"]) for one in program.unusual}
    assert len(program.unusual) < 20
    for height, width in ((1, 1), (1, 40), (16, 16), (17, 9), (48, 3)):
        x = torch.randn(2, 3, height, width)
        torch.testing.assert_close(program.exported.module(check_guards=False)(x)[0], strides(x))


REFUSED: dict[str, tuple[Callable[[Tensor], Tensor], str, str, str]] = {
    "differs": (lambda x: x[:, 1:] * 2 if x.shape[1] == 2 else x[:, 1:], "n:1..20", "differs at", "write n:3..20 in"),
    "branches": (lambda x: x[:, 1:] if x.shape[1] < 9 else x[:, 1:] * 2, "n:1..20", "n within 1..8", "write n:1..8 in"),
    "of a long dim": (lambda x: x[:, 1:] if x.shape[1] < 9 else x, "n:1..200000", "n within 1..8", "write n:1..8 in"),
    "in the middle": (lambda x: x[:, 1:] if x.shape[1] != 9 else x, "n:1..20", "differs at", "write n:1..8 in"),
    "of a remainder": (
        lambda x: x * 2 if x.shape[1] % (x.shape[1] * (x.shape[1] - 1)) else x,
        "n:2..20",
        "differs at",
        "write n:3..20 in",
    ),
    "fails": (lambda x: x[:, 1:].amax(1), "n:1..20", "n within 2..20", "write n:2..20 in"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_sizes_at_which_the_program_differs_are_refused(name: str) -> None:
    function, dim, what, fix = REFUSED[name]
    with pytest.raises(FuseconvError) as caught:
        capture(subject_of(Rows(lambda h, x: function(x)).eval(), f"x=f32[batch:1..4,{dim},8]"))
    assert what in caught.value.what
    assert fix in caught.value.fix
    assert "test_deferred.py" in caught.value.where

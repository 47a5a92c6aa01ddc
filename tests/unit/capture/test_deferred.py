"""Guards on sizes that torch.export cannot simplify: removed if proved, otherwise an error message."""

from collections.abc import Callable

import pytest
import torch
from support.subjects import subject_of
from torch import Tensor, nn

from fuseconv.capture.capture import capture
from fuseconv.errors import UnsupportedError

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

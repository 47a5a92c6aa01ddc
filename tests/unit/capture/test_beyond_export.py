"""Models as people write them, which torch.export alone rejects, or exports for fewer sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from support.subjects import X, assert_same, subject_of
from torch import Tensor, nn

import fuseconv
from fuseconv.capture.capture import capture
from fuseconv.errors import UnsupportedError

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.:FutureWarning"),  # torch warns of its own use
    pytest.mark.filterwarnings("ignore:The tensor attributes .*_flat_weights"),  # as before
]


@pytest.fixture(autouse=True)
def slow_path() -> Iterator[None]:
    """The fast path of nn.TransformerEncoder computes other numbers than the layers that are exported."""
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(True)


class Causal(nn.Module):
    """The mask of a language model, which nn.TransformerEncoder compares with a causal one."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x, mask=nn.Transformer.generate_square_subsequent_mask(x.shape[1]))


class Decodes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), 1)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        return self.layers(x, memory, tgt_mask=mask)


@dataclass
class Heads:
    logits: Tensor
    hidden: tuple[Tensor, ...]
    loss: Tensor | None = None


@dataclass
class Result:
    heads: Heads
    more: dict[str, Any]


class Dataclasses(nn.Module):
    def forward(self, x: Tensor) -> Result:
        return Result(Heads(x + 1, (x * 2, x * 3)), {"last": Heads(x.sum(1), ())})


class Slow(nn.Module):
    """An op that has random numbers in training only."""

    def __init__(self) -> None:
        super().__init__()
        self.activation = nn.RReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(x)


class RoundsUp(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        half = nn.functional.max_pool2d(x, 2, ceil_mode=True)
        quarter = nn.functional.avg_pool2d(half, 2, ceil_mode=True)
        return x + nn.functional.interpolate(quarter, size=x.shape[2:], mode="nearest")


class PoolsLines(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        pool = nn.functional.max_pool1d
        largest, index = pool(x, 2, return_indices=True)
        return pool(x, 3, 2, 1), pool(x[0], 2, dilation=2), pool(x, 3, ceil_mode=True), largest, index


class Padded(nn.Module):
    """A length that is padded to a multiple, as of patches or windows."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(1, 9, 8))

    def forward(self, x: Tensor) -> Tensor:
        patches = nn.functional.pad(x, (0, 0, 0, -x.shape[1] % 4)).reshape(x.shape[0], -1, 8)
        patches = torch.cat((self.positions[:, :1].expand(x.shape[0], -1, -1), patches), 1)
        return patches + self.positions[:, : patches.shape[1]]


class ExtraKey(nn.Module):
    """An attention whose mask of keys is padded for its extra key, in two inputs with one dim."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 4, kdim=6, vdim=6, batch_first=True, add_bias_kv=True)

    def forward(self, q: Tensor, kv: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        return self.attention(q, kv, kv, key_padding_mask=hidden, average_attn_weights=False)


class Tags(nn.Module):
    """A recurrent network, whose loop over the steps torch.export unrolls to find the shape of its results."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 6, num_layers=2, bidirectional=True, batch_first=True, proj_size=3)
        self.gru = nn.GRU(6, 4)
        self.last = nn.RNN(4, 4)

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        steps, (_, cell) = self.lstm(x)
        steps, state = self.gru(steps.transpose(0, 1), state)
        return self.last(steps[:, 0])[0].view(-1, 2, 2), state, cell


class Windows(nn.Module):
    """Windows of 12 elements, four apart. At a length of 12 there are three, of which torch.export makes a guard."""

    def forward(self, mask: Tensor) -> Tensor:
        return ~nn.functional.pad(mask, (4, 4)).unfold(1, 12, 4)[:, None]


class PaddedWindows(nn.Module):
    """Windows of an image that is padded to whole windows, as of a Swin transformer, and the image again."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        batch, height, width, channels = x.shape
        padded = nn.functional.pad(x, (0, 0, 0, -width % 7, 0, (4 - height % 4) % 4))
        rows, columns = padded.shape[1] // 4, padded.shape[2] // 7
        windows = padded.view(batch, rows, 4, columns, 7, channels).transpose(2, 3).reshape(-1, 28, channels)
        image = windows.softmax(1).view(batch, rows, columns, 4, 7, channels).transpose(2, 3)
        return windows, image.reshape(batch, rows * 4, columns * 7, channels)[:, :height, :width]


class RoundedUp(nn.Module):
    """A residual block whose shortcut is a pool that rounds up. torch's solver fails on the equality of both sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1)
        self.conv = nn.Conv2d(8, 8, 3, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.max_pool2d(self.stem(x), 3, 2, ceil_mode=True)
        return self.conv(y) + nn.functional.avg_pool2d(y, 2, 2, ceil_mode=True, count_include_pad=False)


class Crops(nn.Module):
    """A crop in the middle of an image, whose strides are those of the image."""

    def forward(self, x: Tensor) -> Tensor:
        half = nn.functional.max_pool2d(x, 2)
        up = nn.functional.interpolate(half, scale_factor=2.0, mode="nearest")
        height, width = up.shape[2:]
        top, left = (x.shape[2] - height) // 2, (x.shape[3] - width) // 2
        return torch.cat((x[:, :, top : top + height, left : left + width], up), 1)


class Coordinates(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        rows = torch.linspace(-1, 1, x.shape[1])
        columns = torch.linspace(x.new_tensor(0.5), x.shape[2] - 0.5, steps=x.shape[2], dtype=torch.float64)
        return x + rows[:, None], columns, torch.linspace(0, 1, 4)


class Density(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.distributions.Normal(x.mean(1, keepdim=True), 2.0).log_prob(x).sum(1)


MODELS: dict[str, tuple[nn.Module, list[str], tuple[str, ...]]] = {
    "a causal mask": (Causal(), ["x=f32[batch:1..4,length:1..16,8]"], ("output_0",)),
    "a given mask": (
        Decodes(),
        ["x=f32[batch:1..4,length:1..9,8]", "memory=f32[batch,m:1..9,8]", "mask=f32[length,length]"],
        ("output_0",),
    ),
    "dataclasses": (
        Dataclasses(),
        [X],
        ("heads_logits", "heads_hidden_0", "heads_hidden_1", "more_last_logits"),
    ),
    "random in training": (Slow(), [X], ("output_0",)),
    "sizes that are rounded up": (RoundsUp(), ["x=f32[batch:1..4,3,h:5..60000,w:5..60000]"], ("output_0",)),
    "pools of lines": (PoolsLines(), ["x=f32[batch:1..4,3,n:6..64]"], tuple(f"output_{at}" for at in range(5))),
    "a padded length": (Padded(), ["x=f32[batch:1..4,n:5..32,2]"], ("output_0",)),
    "any number of steps": (
        Tags(),
        ["x=f32[batch:1..4,length:1..40,8]", "state=f32[1,batch,4]"],
        ("output_0", "output_1", "output_2"),
    ),
    "windows": (Windows(), ["mask=bool[batch:1..4,n:8..64:4]"], ("output_0",)),
    "padded windows": (PaddedWindows(), ["x=f32[batch:1..4,h:5..300,w:5..300,2]"], ("output_0", "output_1")),
    "crops": (Crops(), ["x=f32[batch:1..4,3,h:5..60000,w:5..60000]"], ("output_0",)),
    "pools that round up": (RoundedUp(), ["x=f32[batch:1..4,3,h:32..256,w:32..256]"], ("output_0",)),
    "a density": (Density(), ["x=f32[batch:1..4,n:1..9]"], ("output_0",)),
    "a padded mask": (
        ExtraKey(),
        ["q=f32[batch:1..4,n:1..9,8]", "kv=f32[batch,m:1..9,6]", "hidden=bool[batch,m]"],
        ("output_0", "output_1"),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_it_is_captured_for_all_sizes(name: str) -> None:
    module, texts, outputs = MODELS[name]
    subject = subject_of(module, *texts)
    program = capture(subject)
    assert program.contract.outputs == outputs
    assert program.contract.dims() == subject.contract.dims()
    assert "_assert_scalar" not in program.exported.graph_module.code
    assert_same(subject, program)


def test_linear_spaces_have_any_number_of_steps() -> None:
    module = Coordinates()
    program = capture(subject_of(module, "x=f32[batch:1..4,n:1..40,m:1..9]"))
    for sizes in ((1, 1, 1), (4, 40, 9), (2, 2, 8), (3, 17, 2)):
        x = torch.randn(sizes)
        torch.testing.assert_close(program.exported.module()(x), module(x), rtol=1e-6, atol=1e-6)


def test_a_fused_module_returns_the_dataclass() -> None:
    norm = nn.BatchNorm1d(4)
    fused = fuseconv.fuse(nn.Sequential(nn.Linear(4, 4), norm, Fresh()), torch.randn(3, 4))
    torch.testing.assert_close(norm.running_mean, torch.zeros(4), rtol=0, atol=0)
    assert isinstance(fused(torch.randn(3, 4)), FreshResult)


@dataclass
class FreshResult:
    value: Tensor


class Fresh(nn.Module):
    def forward(self, x: Tensor) -> FreshResult:
        return FreshResult(x + 1)


class Opaque(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return slice(x, x)


def test_another_class_is_an_error_that_says_what_to_return() -> None:
    with pytest.raises(UnsupportedError, match="not a known type") as caught:
        capture(subject_of(Opaque(), X))
    assert "dataclasses of tensors" in caught.value.fix


class PaddedAndBranches(Padded):
    def __init__(self, branch: str) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        if self.branch == "product":
            return y + 1 if x.shape[0] * x.shape[1] < 100 else y
        return y + 1 if x.shape[1] < 20 else y


BRANCHES = {
    "product": ("assumes batch*n < 100, which is not proved", "shape[0] * x.shape[1] < 100", "ranges of batch and n"),
    "length": ("works only with n within 5..19", "shape[1] < 20", "write n:5..19"),
}


@pytest.mark.parametrize("branch", BRANCHES)
def test_a_guard_that_is_not_proved_is_named(branch: str) -> None:
    what, where, fix = BRANCHES[branch]
    with pytest.raises(UnsupportedError) as caught:
        capture(subject_of(PaddedAndBranches(branch).eval(), "x=f32[batch:1..40,n:5..32,2]"))
    assert what in caught.value.what
    assert where in caught.value.where
    assert fix in caught.value.fix

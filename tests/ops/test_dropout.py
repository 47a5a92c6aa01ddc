"""gelu_dropout beyond the table of test_ops.py: its random numbers."""

import pytest
import torch
from torch import Tensor

from fuseconv import ops
from fuseconv.ops.gelu_dropout import _philox

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def seed_of(number: int, device: str = "cpu") -> Tensor:
    return torch.tensor([number], device=device)


def keeps(
    shape: tuple[int, ...], seed: int, p: float, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> Tensor:
    return ops.gelu_dropout(torch.full(shape, 8.0, device=device, dtype=dtype), seed_of(seed, device), p) != 0


def test_philox_gives_the_published_words() -> None:
    """The first of the known answers of philox4x32 with seven rounds in the Random123 distribution."""
    words = _philox(torch.zeros((), dtype=torch.int64), torch.zeros((), dtype=torch.int64))
    assert [int(word) for word in words] == [0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48]


def drawn(indices: Tensor, seed: int) -> Tensor:
    """The 16 bits of elements: eight a counter, the lower half of a word before the upper one."""
    words = torch.stack(_philox(indices // 8, seed_of(seed).reshape(())))
    chosen = words.gather(0, (indices % 8 // 2)[None])[0]
    return (chosen >> 16 * (indices % 2)) % 2**16


@pytest.mark.parametrize("seed", [0, 7, -1, 2**63 - 1, -(2**63), 3 << 40])
@pytest.mark.parametrize("device", DEVICES)
def test_an_element_is_dropped_where_its_bits_are_below_p(device: str, seed: int) -> None:
    for element, bits in enumerate(drawn(torch.arange(23), seed).tolist()):
        assert keeps((23,), seed, bits / 2**16, device)[element]
        assert not keeps((23,), seed, (bits + 1) / 2**16, device)[element]


@pytest.mark.parametrize("p", [0.01, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("device", DEVICES)
def test_keep_rate_and_independence(device: str, p: float) -> None:
    n = 2**20
    centered = [keeps((n,), seed, p, device).double() - (1 - p) for seed in (1, 2)]
    bound = 5 / n**0.5  # five standard deviations
    for values in centered:
        assert abs(values.mean()) < bound * (p * (1 - p)) ** 0.5
    first, second = centered
    others = [second, *(first.roll(distance) for distance in (1, 2, 3, 4, 8, 32, 256, 1024))]
    for other in others:
        assert abs((first * other).mean()) < bound * p * (1 - p)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_the_mask_does_not_depend_on_dtype_layout_or_device(device: str, dtype: torch.dtype) -> None:
    expected = keeps((6, 10, 64), 5, 0.3)
    x = torch.full((64, 10, 6), 8.0, device=device, dtype=dtype)
    wide = torch.full((6, 10, 128), 8.0, device=device, dtype=dtype)
    whole = torch.full((6 * 10 * 64 + 1,), 8.0, device=device, dtype=dtype)
    layouts = [x.permute(2, 1, 0), x.reshape(6, 10, 64), wide[..., ::2], wide[..., :64], whole[1:].view(6, 10, 64)]
    layouts += [x[:1, :1, :1].expand(6, 10, 64)]
    for layout in layouts:
        assert torch.equal((ops.gelu_dropout(layout, seed_of(5, device), 0.3) != 0).cpu(), expected)


@pytest.mark.gpu
def test_indices_beyond_32_bits() -> None:
    """On a GPU, for the memory: 8 GB of results."""
    n = 2**32 + 8
    x = torch.full((), 8.0, device="cuda", dtype=torch.float16).expand(n)
    last = ops.gelu_dropout(x, seed_of(9, "cuda"), 0.5)[-8:].cpu() != 0
    assert last.tolist() == (drawn(torch.arange(n - 8, n), 9) >= 2**15).tolist()


@pytest.mark.parametrize("device", DEVICES)
def test_for_models_the_seed_follows_the_default_generator(device: str) -> None:
    x = torch.randn(64, 100, device=device, requires_grad=True)
    torch.manual_seed(3)
    first = ops.gelu_with_dropout(x, 0.4)
    again = ops.gelu_with_dropout(x, 0.4)
    torch.manual_seed(3)
    assert torch.equal(first, ops.gelu_with_dropout(x, 0.4))
    assert not torch.equal(first, again)
    assert torch.equal(ops.gelu_with_dropout(x, 0.4, training=False), torch.nn.functional.gelu(x))
    assert not ops.gelu_with_dropout(x, 1.0).any()
    (gradient,) = torch.autograd.grad(first.sum(), x)
    assert torch.equal(gradient == 0, first == 0)


@pytest.mark.gpu
def test_a_cuda_graph_draws_a_new_mask_at_every_replay() -> None:
    x = torch.randn(4096, device="cuda")
    ops.gelu_with_dropout(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = ops.gelu_with_dropout(x)
    masks = []
    for _ in range(3):
        graph.replay()
        masks.append((y != 0).clone())
    assert not torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[1], masks[2])


def test_the_reference_exports_for_all_sizes() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Tensor, seed: Tensor) -> Tensor:
            return ops.gelu_dropout.reference(x, seed, 0.3)

    rows = torch.export.Dim("rows")
    x = torch.randn(3, 7)
    exported = torch.export.export(Model(), (x, seed_of(1)), dynamic_shapes=({0: rows}, {}))
    longer = torch.randn(50, 7)
    torch.testing.assert_close(exported.module()(longer, seed_of(2)), ops.gelu_dropout(longer, seed_of(2), 0.3))

"""Models that cannot be captured are rejected with the line of the model and a fix."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.subjects import X, subject_of
from torch import Tensor, nn

from fuseconv.capture.capture import capture
from fuseconv.errors import UnsupportedError, UsageError
from fuseconv.sources import read

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.:FutureWarning"),  # torch warns of its own use
]


class Specialised(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] == 3:
            return x + 1
        return x * 2


class Reshaped(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x + 1).view(3, 4)


class Positions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(10, 4))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table[: x.shape[1]]


class Halves(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], x.shape[1] // 2, 2) if x.shape[1] % 2 == 0 else x.sum()


class Together(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a.repeat(2, 1)[: a.shape[0]] + b


class Control(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return x + 1
        return x - 1


class Histogram(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.histc(x.int(), bins=4, min=0, max=4)


class Items(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros(int(x.max().item()))


class Numpy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.from_numpy(x.numpy() + 1)


class Mismatched(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x @ torch.ones(9, 2)


class Counter(nn.Module):
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return x + self.count


class BatchStatistics(nn.Module):
    mean: Tensor
    var: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("var", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.batch_norm(x, self.mean, self.var, training=True)


class InstanceStatistics(BatchStatistics):
    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.instance_norm(x.mT[None], self.mean, self.var, use_input_stats=True)


class Noise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand_like(x)


class AlwaysDrops(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.dropout(x, 0.5, training=True)


class NoFake(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.fuseconv_tests.no_fake(x)


class Bounded(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1 if x.shape[1] < 20 else x


class Quarters(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], -1, 16).sum(1) if x.shape[1] % 4 == 0 else x.sum(1)


class Tied(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        torch._check(a.shape[0] == b.shape[0])
        return a + b


class Large(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.shape[2] * x.shape[3] < 1000:
            return x + 1
        return x


class DownAndUp(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        half = torch.nn.functional.avg_pool2d(x, (2, 4))
        return x + torch.nn.functional.interpolate(half, scale_factor=(2, 4))


IMAGE = "x=f32[batch:1..4,3,h:8..64,w:8..64]"


@pytest.fixture(scope="module", autouse=True)
def no_fake() -> Iterator[None]:
    """An operator that runs, and of which torch does not know what shape it gives."""
    library = torch.library.Library("fuseconv_tests", "DEF")
    library.define("no_fake(Tensor x) -> Tensor")
    library.impl("no_fake", torch.clone, "CPU")
    yield
    library._destroy()


class Nothing(nn.Module):
    def forward(self, x: Tensor) -> None:
        return None


class Number(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        return x, x.shape[0]


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.jit.script(nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + 1


class Hidden(nn.Module):
    """A wrapper that does not say which inputs it takes."""

    def forward(self, **inputs: Tensor) -> Tensor:
        return self.layer(**inputs)

    @staticmethod
    def layer(value: Tensor) -> Tensor:
        return value + 1


REFUSED = {
    "a dim specialised by an if": (
        Specialised(),
        [X],
        UnsupportedError,
        "batch = 3",
        "if x.shape[0] == 3",
        "batch:1..64",
    ),
    "a dim specialised by a view": (Reshaped(), [X], UnsupportedError, "batch = 3", ".view(3, 4)", "x.shape"),
    "a bounded dim": (
        Positions(),
        ["x=f32[batch:1..64,seq:2..512,4]"],
        UnsupportedError,
        "seq within 2..10",
        "self.table[",
        "seq:2..10",
    ),
    "dims that must be equal": (
        Together(),
        ["a=f32[n:1..64,4]", "b=f32[m:1..64,4]"],
        UsageError,
        "a=f32[3, 4], b=f32[5, 4]",
        "+ b",
        "--input",
    ),
    "a dim of multiples specialised by an if": (
        Specialised(),
        ["x=f32[batch:1..64:1,4]"],
        UnsupportedError,
        "batch = 3",
        "if x.shape[0] == 3",
        "batch:1..64",
    ),
    "a bounded dim of multiples": (
        Bounded(),
        ["x=f32[batch:1..64,seq:2..512:2,4]"],
        UnsupportedError,
        "seq within 2..18, in multiples of 2",
        "if x.shape[1] < 20",
        "write seq:2..18:2 in --input",
    ),
    "a dim of multiples that begins above one": (
        Bounded(),
        ["x=f32[batch:1..64,seq:4..512:2,4]"],
        UnsupportedError,
        "seq within 4..18, in multiples of 2",
        "if x.shape[1] < 20",
        "write seq:4..18:2 in --input",
    ),
    "a dim of other multiples": (
        Quarters(),
        ["x=f32[batch:1..64,seq:12..64:3,4]"],
        UnsupportedError,
        "does not treat all sizes of seq:12..63:3 alike",
        "x.shape[1] % 4 == 0",
        "write seq:12..60:12 in --input: the model treats all of those sizes alike",
    ),
    "a dim of multiples of which every second is another branch": (
        Quarters(),
        ["x=f32[batch:1..64,seq:2..64:2,4]"],
        UnsupportedError,
        "does not treat all sizes of seq:2..64:2 alike",
        "x.shape[1] % 4 == 0",
        "write seq:4..64:4 in --input: the model treats all of those sizes alike",
    ),
    "a dim that must be multiples": (
        Quarters(),
        ["x=f32[batch:1..64,seq:32..64,4]"],
        UnsupportedError,
        "seq within 32..64, in multiples of 4",
        "x.shape[1] % 4 == 0",
        "write seq:32..64:4 in --input",
    ),
    "dims of multiples that must be equal": (
        Tied(),
        ["a=f32[n:4..8:4,4]", "b=f32[m:4..8:4,4]"],
        UnsupportedError,
        "the dims n and m must be equal",
        "torch._check(",
        "replace n with m",
    ),
    "dims of multiples that differ where they must be equal": (
        Tied(),
        ["a=f32[n:2..64:2,4]", "b=f32[m:4..64:4,4]"],
        UsageError,
        "does not accept a=f32[6, 4], b=f32[12, 4]",
        "torch._check(",
        "the dims n and m must be equal: write m instead of n",
    ),
    "another branch for large images": (
        Large(),
        [IMAGE],
        UnsupportedError,
        "the exported program assumes h*w < 1000, which does not hold at h=",
        "if x.shape[2] * x.shape[3] < 1000",
        "narrow the ranges of h and w in --input",
    ),
    "another branch for large images of multiples": (
        Large(),
        ["x=f32[batch:1..4,3,h:8..64:8,w:8..64:2]"],
        UnsupportedError,
        "the exported program assumes h*w < 1000, which does not hold at h=",
        "if x.shape[2] * x.shape[3] < 1000",
        "narrow the ranges of h and w in --input",
    ),
    "multiples that the model needs": (
        DownAndUp(),
        [IMAGE],
        UsageError,
        "does not accept x=f32[2, 3, 11, 13]",
        "return x + torch.nn.functional.interpolate",
        "the model accepts h:8..64:2 and w:8..64:4",
    ),
    "control flow on values": (Control(), [X], UnsupportedError, "values of a tensor", "if x.sum() > 0", "torch.where"),
    "an op that the CPU lacks": (
        Histogram(),
        [X],
        UnsupportedError,
        "does not implement on the CPU",
        "torch.histc(",
        "another dtype",
    ),
    "a size from values": (Items(), [X], UnsupportedError, "values of a tensor", "x.max().item()", "torch.where"),
    "a scripted submodule": (
        Scripted(),
        [X],
        UnsupportedError,
        "cannot be exported",
        "self.inner(x) + 1",
        "Python module in place of the scripted inner",
    ),
    "numpy": (Numpy(), [X], UnsupportedError, "cannot be exported", "x.numpy()", "torch operations"),
    "a model that rejects the sizes": (
        Mismatched(),
        [X],
        UsageError,
        "does not accept x=f32[3, 4]",
        "torch.ones(9, 2)",
        "--input",
    ),
    "a buffer that counts": (Counter(), [X], UnsupportedError, "mutates count", "self.count += 1", "after a first"),
    "statistics of instances": (InstanceStatistics(), [X], UnsupportedError, "mutates mean", "instance_norm", "pass"),
    "running statistics": (BatchStatistics(), [X], UnsupportedError, "mutates mean", "batch_norm", "pass the state"),
    "random numbers": (Noise(), [X], UnsupportedError, "aten.rand_like", "torch.rand_like", "pass the"),
    "dropout that stays on": (AlwaysDrops(), [X], UnsupportedError, "aten.dropout", "dropout", "pass the random"),
    "an operator without a fake": (
        NoFake(),
        [X],
        UnsupportedError,
        "fuseconv_tests.no_fake",
        "torch.ops.fuseconv_tests.no_fake(x)",
        "torch operations",
    ),
    "no output": (Nothing(), [X], UnsupportedError, "returns no tensor", "Nothing", "tensors"),
    "a number for an output": (Number(), [X], UnsupportedError, "output_1 is not a tensor", "output_1", "only tensors"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_the_line_and_the_remedy(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    module, texts, error, what, where, fix = REFUSED[name]
    with pytest.raises(error) as caught:
        capture(subject_of(module, *texts))
    assert what in caught.value.what
    assert where in caught.value.where
    assert fix in caught.value.fix
    assert "eval mode" not in caught.value.fix  # in which every module is converted
    assert caught.value.exit_status in (2, 4)
    assert capsys.readouterr() == ("", "")  # torch prints the graph so far before it raises


def test_a_name_that_a_wrapper_does_not_pass_on() -> None:
    with pytest.raises(UsageError, match="unexpected keyword argument 'x'") as caught:
        capture(subject_of(Hidden(), X, call=("x",)))
    assert "names of forward's parameters" in caught.value.fix


class Cached(nn.Module):
    """As positions that are computed anew when there are too few of them: whichever branch, the same numbers."""

    def forward(self, x: Tensor) -> Tensor:
        wide = x.reshape(-1, x.shape[3]) if x.shape[2] * x.shape[3] < 1000 else x.flatten(0, 2)
        return wide + 1


def test_a_branch_that_computes_the_same_is_no_other() -> None:
    program = capture(subject_of(Cached(), IMAGE))
    assert sorted(program.contract.dims()) == ["batch", "h", "w"]


def test_an_archive_has_no_model_to_hold_its_guards_against(tmp_path: Path) -> None:
    dims = {2: torch.export.Dim("h", min=8, max=64), 3: torch.export.Dim("w", min=8, max=64)}
    exported = torch.export.export(Large(), (torch.ones(1, 3, 10, 12),), dynamic_shapes=(dims,))
    torch.export.save(exported, tmp_path / "model.pt2")
    with pytest.raises(UnsupportedError, match=r"the exported program assumes dim0\*dim1 < 1000"):
        capture(read(tmp_path / "model.pt2"))


def test_restrictions_without_a_simple_form_are_explained() -> None:
    subject = subject_of(Halves(), "x=f32[batch:1..64,seq:6..64]")
    with pytest.raises(UnsupportedError, match="branches on its sizes") as caught:
        capture(subject)
    assert "seq" in caught.value.what
    assert "x.shape[1] % 2" in caught.value.where

"""Archives that call an op of a model library are read in a process that has not imported the library."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support import warm_python
from torch import Tensor

from fuseconv.errors import RefusedError
from fuseconv.sources import read
from fuseconv.sources.library_ops import LIBRARY_OPS, define_library_ops
from fuseconv.untrusted.permitted import lookup

READ = """
import sys, torch
from pathlib import Path
from fuseconv.capture.capture import capture
from fuseconv.sources import read

x = torch.load("x.pt")
subject = read(Path("experts.pt2"))
program = capture(subject)
assert "transformers" not in sys.modules
torch.testing.assert_close(program.exported.module()(x), (torch.load("expected.pt"),))
torch.testing.assert_close(program.original(x), (torch.load("expected.pt"),))
assert "transformers" not in str(program.exported.graph)
"""

IMPORT = """
import transformers.integrations.moe

torch.ops.transformers.grouped_mm_fallback(torch.ones(3, 4), torch.ones(2, 4, 5), torch.tensor([1, 3])).sum()
torch.testing.assert_close(program.original(x), (torch.load("expected.pt"),))
capture(read(Path("experts.pt2")))
"""


class Experts(torch.nn.Module):
    """Three experts for rows in the order of the experts. The last row belongs to none of them."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(3, 6, 2))

    def forward(self, x: Tensor) -> Tensor:
        ends = torch.tensor([2, 2, 1]).cumsum(0, dtype=torch.int32) * (x.shape[0] // 6)
        return torch.ops.transformers.grouped_mm_fallback(x, self.weight, ends)


def expected(model: Experts, x: Tensor) -> Tensor:
    first, second, third, rest = x.tensor_split((2, 4, 5))
    return torch.cat([first @ model.weight[0], second @ model.weight[1], third @ model.weight[2], rest.new_zeros(1, 2)])


@pytest.mark.parametrize("code", [READ, READ + IMPORT], ids=["not imported", "imported later"])
def test_an_archive_of_a_mixture_of_experts_is_captured(code: str, tmp_path: Path) -> None:
    define_library_ops()
    torch.manual_seed(0)
    model, x = Experts().requires_grad_(False), torch.randn(6, 6)
    torch.export.save(torch.export.export(model, (x,)), tmp_path / "experts.pt2")
    torch.save(x, tmp_path / "x.pt")
    torch.save(expected(model, x), tmp_path / "expected.pt")
    done = warm_python.run(code, tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_definition_is_that_of_the_library() -> None:
    """Also the arguments' names and types: a graph of either definition is one of the other."""
    code = """
import torch
from fuseconv.sources.library_ops import define_library_ops
define_library_ops()
ours = str(torch.ops.transformers.grouped_mm_fallback.default._schema)
import transformers.integrations.moe
assert str(torch.ops.transformers.grouped_mm_fallback.default._schema) == ours, ours
"""
    done = warm_python.run(code, Path.cwd())
    assert done.returncode == 0, done.stderr


def test_these_ops_may_be_called_and_no_others(tmp_path: Path) -> None:
    define_library_ops()
    assert all(lookup(name) for name in LIBRARY_OPS)
    with torch.library._scoped_library("transformers", "FRAGMENT") as library:
        library.define("unknown_experts(Tensor x) -> Tensor")
        library.impl("unknown_experts", torch.clone, "CompositeExplicitAutograd")

        class Unknown(torch.nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return torch.ops.transformers.unknown_experts(x)

        torch.export.save(torch.export.export(Unknown(), (torch.ones(3),)), tmp_path / "unknown.pt2")
        with pytest.raises(RefusedError, match=r"of another library: it calls torch\.ops\.transformers\.unknown_e"):
            read(tmp_path / "unknown.pt2")

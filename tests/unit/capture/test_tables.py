"""Tables that a model builds with in-place writes are constants of the captured program, or stay as they are."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.fx import Node

from fuseconv.capture.tables import LARGEST, compute_tables
from fuseconv.graph.nodes import written


class Positions(nn.Module):
    """The indices of relative positions, as vision transformers write them."""

    def __init__(self, layers: int = 1) -> None:
        super().__init__()
        self.tables = nn.ParameterList(nn.Parameter(torch.randn(12, 2)) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for table in self.tables:
            rows, columns = torch.meshgrid(torch.arange(2), torch.arange(2), indexing="ij")
            places = torch.stack([rows, columns]).flatten(1)
            apart = (places[:, :, None] - places[:, None, :]).permute(1, 2, 0).contiguous()
            apart[:, :, 0] += 1
            apart[:, :, 0] *= 3
            apart[:, :, 1] += 1
            index = torch.zeros(5, 5, dtype=torch.int64)
            index[1:, 1:] = apart.sum(-1)
            index[0, 0:] = 9
            index[0:, 0] = 10
            index[0, 0] = 11
            x = x + table[index.view(-1)].view(5, 5, 2).sum(-1)
        return x


class ReadBefore(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        table = torch.zeros(5)
        y = x + table
        table[1] = 1
        return y + table


class Returned(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        table = torch.zeros(5)
        table[1] = 1
        return x + 1, table


class WithInput(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        table = torch.zeros(5, 5)
        table[1] = 1
        table[2] = x[2]
        return x + table


class WithWeight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(5))

    def forward(self, x: Tensor) -> Tensor:
        table = torch.zeros(5, 5)
        table[1] = self.weight
        return x + table


class Large(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        table = torch.zeros(LARGEST // 4 + 5)
        table[1] = 1
        return x + (table + x.sum())[:5]


class Dynamic(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        table = torch.zeros(x.shape[0], 5)
        table[:, 1] = 1
        return x + table


class Written(nn.Module):
    """The whole table is read after the last write, but is then written with an input."""

    def forward(self, x: Tensor) -> Tensor:
        table = torch.zeros(5, 5)
        table[:, 1] = 1
        table += x
        return table


def exported(model: nn.Module, *, dynamic: bool = False) -> torch.export.ExportedProgram:
    shapes = {"x": {0: torch.export.Dim("rows", min=2, max=9)}} if dynamic else None
    return torch.export.export(model, (torch.randn(5, 5),), dynamic_shapes=shapes)


def writes(program: torch.export.ExportedProgram) -> list[Node]:
    return [node for node in program.graph.nodes if any(written(node))]


@pytest.mark.parametrize("layers", [1, 3])
def test_equal_tables_become_one_constant(layers: int) -> None:
    torch.manual_seed(0)
    model, x = Positions(layers), torch.randn(5, 5)
    program = exported(model)
    before = len(writes(program))
    assert before >= 7 * layers
    compute_tables(program)
    program.validate()
    assert writes(program) == []
    tables = [value for value in program.constants.values() if value.numel() > 1]
    assert [(table.dtype, list(table.shape)) for table in tables] == [(torch.int64, [25])]
    assert torch.equal(program.module()(x), model(x))


def test_tables_that_differ_in_the_sign_of_a_zero_are_two_constants() -> None:
    class Signed(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            one, other = torch.zeros(5), -torch.zeros(5)
            one[1] = other[1] = 1
            return x / one, x / other

    program = exported(Signed())
    compute_tables(program)
    assert writes(program) == []
    x = torch.ones(5, 5)
    torch.testing.assert_close(program.module()(x), Signed()(x), rtol=0, atol=0)


def test_the_sizes_of_a_table_are_numbers() -> None:
    program = exported(Positions())
    compute_tables(program)
    values = [node.meta["val"] for node in program.graph.nodes if isinstance(node.meta.get("val"), Tensor)]
    assert all(isinstance(size, int) for value in values for size in value.shape)


@pytest.mark.parametrize("model", [ReadBefore, Returned, WithInput, WithWeight, Large, Dynamic, Written])
def test_other_memory_stays_as_it_is(model: type[nn.Module]) -> None:
    program = exported(model(), dynamic=model is Dynamic)
    text, x = str(program.graph), torch.randn(5, 5)
    compute_tables(program)
    program.validate()
    assert str(program.graph) == text
    torch.testing.assert_close(program.module()(x), model()(x), rtol=0, atol=0)


def test_a_model_without_inputs_to_its_tables_keeps_its_order() -> None:
    """The constant is placed behind the parameters, as torch.export's verifier asks, also without a user input."""

    class Alone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(5))

        def forward(self) -> Tensor:
            table = torch.zeros(5)
            table[1] = 1
            return self.weight + table

    program = torch.export.export(Alone(), ())
    compute_tables(program)
    program.validate()
    assert writes(program) == []
    assert torch.equal(program.module()(), torch.tensor([1.0, 2.0, 1.0, 1.0, 1.0]))

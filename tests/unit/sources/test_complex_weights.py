"""Complex buffers and parameters keep their dtype, and programs that have them can be decomposed."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fuseconv.contract.input_text import parse_inputs
from fuseconv.program.graph_copy import with_weights
from fuseconv.program.loading import load_program
from fuseconv.sources import Options, read
from fuseconv.weights.store import Store, like


class Turned(nn.Module):
    """Turns points [n, 3, 2] of a plane by an angle each."""

    turn: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("turn", torch.polar(torch.ones(3), torch.arange(3.0)))
        self.weight = nn.Parameter(torch.ones(3, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return torch.view_as_real(torch.view_as_complex(x.float()) * self.turn * self.weight).to(x.dtype)


SAVERS: dict[str, Callable[[nn.Module, Path], None]] = {
    "pickle": torch.save,
    "torchscript": lambda module, path: torch.jit.save(torch.jit.script(module), path),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.:DeprecationWarning")
@pytest.mark.parametrize("form", SAVERS)
@pytest.mark.parametrize("short", ["f16", "f64"])
def test_a_cast_to_another_dtype_leaves_them(form: str, short: str, tmp_path: Path) -> None:
    SAVERS[form](module := Turned(), path := tmp_path / "model.pt")
    inputs = parse_inputs(["x=f32[4,3,2]"])
    trust = frozenset({form})
    subject = read(path, options=Options(dtype=short, inputs=inputs, trust=trust))
    for name, weight in module.state_dict().items():
        assert torch.equal(subject.module.state_dict()[name], weight)


@pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.:FutureWarning")  # torch warns of its own use
@pytest.mark.parametrize("stored", [False, True], ids=["in the archive", "in a bundle"])
def test_a_program_that_is_loaded_can_be_decomposed(stored: bool, tmp_path: Path) -> None:
    x = torch.randn(2, 3, 2)
    torch.export.save(torch.export.export(module := Turned(), (x,)), path := tmp_path / "model.pt2")
    program = load_program(path)
    if stored:
        table = Store.create(tmp_path, dict(program.state_dict)).put("export", dict(program.state_dict))
        weights = table.read(tmp_path, "cpu")
        changed = {name: like(program.state_dict[name], tensor) for name, tensor in weights.items()}
        program = with_weights(program, changed)
    assert torch.equal(program.run_decompositions({}).module()(x), module(x))

"""Wrappers of PyTorch around a module are removed; the module inside is converted under its own names."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from fuseconv.capture.capture import capture
from fuseconv.contract.input_text import parse_inputs
from fuseconv.sources import Options, read
from fuseconv.sources.wrappers import unwrapped


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, values: Tensor, scale: Tensor) -> Tensor:
        return self.layer(values) * scale


class Averaged(AveragedModel):
    """As in the reference scripts of torchvision."""


class Doubling(nn.DataParallel[nn.Module]):
    def forward(self, *inputs: Tensor) -> Tensor:
        return 2 * self.module(*inputs)


def compiled(module: nn.Module) -> nn.Module:
    result = torch.compile(module)
    assert isinstance(result, nn.Module)
    return result


WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "compiled": compiled,
    "parallel": nn.DataParallel,
    "averaged": AveragedModel,
    "a subclass": Averaged,
    "one in another": lambda module: AveragedModel(nn.DataParallel(module)),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_the_module_inside_is_read(name: str) -> None:
    module = Scaled()
    inside = unwrapped(WRAPPERS[name](module))
    assert type(inside) is Scaled
    assert list(inside.state_dict()) == ["layer.weight", "layer.bias"]
    outer = unwrapped(nn.Sequential(WRAPPERS[name](nn.Linear(4, 4)), nn.ReLU()))
    assert list(outer.state_dict()) == ["0.weight", "0.bias"]


class ReadsInside(nn.Module):
    """Calls a method of the module inside a wrapper, which has no such method."""

    def __init__(self, wrap: Callable[[nn.Module], nn.Module], attribute: str) -> None:
        super().__init__()
        self.wrapper, self.attribute = wrap(Scaled()), attribute

    def forward(self, values: Tensor) -> Tensor:
        return getattr(self.wrapper, self.attribute).layer(values)


READ = {"compiled": "_orig_mod", "parallel": "module", "averaged": "module", "a subclass": "module"}


@pytest.mark.parametrize("name", READ)
def test_a_model_may_read_the_module_inside(name: str) -> None:
    module, values = ReadsInside(WRAPPERS[name], READ[name]), torch.randn(3, 4)
    expected = module(values)
    assert torch.equal(unwrapped(module)(values), expected)
    assert list(module.state_dict()) == ["wrapper.layer.weight", "wrapper.layer.bias"]


def test_an_attribute_of_the_same_name_is_kept() -> None:
    inside = nn.DataParallel(nn.Linear(4, 4))
    inside.register_forward_hook(lambda module, inputs, output: output * 3)
    outer = unwrapped(nn.Sequential(AveragedModel(inside)))
    wrapper = outer.get_submodule("0")
    assert wrapper.module is not wrapper
    assert list(outer.state_dict()) == ["0.module.weight", "0.module.bias"]


def test_a_module_that_was_compiled_in_place_is_not() -> None:
    module = Scaled()
    module.compile()
    assert unwrapped(module)._compiled_call_impl is None


def test_a_wrapper_that_changes_the_result_stays() -> None:
    doubling, hooked = Doubling(nn.Linear(4, 4)), nn.DataParallel(nn.Linear(4, 4))
    hooked.register_forward_hook(lambda module, inputs, output: output * 3)
    assert unwrapped(doubling) is doubling
    assert unwrapped(hooked) is hooked


def test_the_names_of_inputs_are_those_of_the_module_inside(tmp_path: Path) -> None:
    module = Scaled()
    torch.save(nn.DataParallel(module), tmp_path / "model.pt")
    inputs = parse_inputs(["scale=f32[n:1..9,4]", "values=f32[n,4]"])
    subject = read(tmp_path / "model.pt", options=Options(inputs=inputs, trust=frozenset({"pickle"})))
    program = capture(subject)
    scale, values = torch.randn(5, 4), torch.randn(5, 4)
    torch.testing.assert_close(program.exported.module()(scale, values)[0], module(values, scale))

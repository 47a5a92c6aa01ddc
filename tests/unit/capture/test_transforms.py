"""Function transforms, and functions of torch that take sizes as numbers, in captured programs."""

import torch
from support.subjects import assert_same, subject_of
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from fuseconv.capture.capture import capture


class Ensemble(nn.Module):
    """Two layers of three models, whose parameters are stacked."""

    def __init__(self) -> None:
        super().__init__()
        models = [nn.Sequential(nn.Linear(8, 6), nn.GELU(), nn.Linear(6, 4)) for _ in range(3)]
        parameters, _ = stack_module_state(models)
        self.names = list(parameters)
        self.stacked = nn.ParameterList([one.detach() for one in parameters.values()])
        self.one = [models[0].to("meta")]

    def forward(self, x: Tensor) -> Tensor:
        def call(*state: Tensor) -> Tensor:
            result: Tensor = functional_call(self.one[0], dict(zip(self.names, state, strict=True)), (x,))
            return result

        every: Tensor = vmap(call)(*self.stacked)
        return every.mean(0)


def test_an_ensemble_is_captured_as_ops_on_all_its_models() -> None:
    subject = subject_of(Ensemble(), "x=f32[n:1..20,8]")
    program = capture(subject)
    assert "predispatch" not in program.exported.graph_module.code
    assert_same(subject, program)


class Filtered(nn.Module):
    """A filter of frequencies, whose result is as long as its input."""

    window: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(16))

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.stft(x, 16, 4, window=self.window, return_complex=True)
        return spectrum.istft(16, hop_length=4, window=self.window, length=x.shape[-1]) / 2


def test_an_inverse_stft_is_as_long_as_the_size_says() -> None:
    subject = subject_of(Filtered(), "x=f32[batch:1..4,n:16..100]")
    module = capture(subject).exported.module()
    for length in (16, 17, 19, 23, 64, 99):
        x = torch.randn(2, length)
        torch.testing.assert_close(module(x)[0], subject.module(x))

"""Recurrent layers: the number of steps is dynamic where the target has an op for the layer."""

from pathlib import Path

import pytest
import torch
from support import small_bundle
from torch import Tensor, nn

from fuseconv.targets import TARGETS, Context

pytestmark = [pytest.mark.filterwarnings("ignore:The tensor attributes self.layer._flat_weights")]  # torch.export's

LAYERS: dict[str, nn.RNNBase] = {
    "lstm": nn.LSTM(4, 6, num_layers=2, bidirectional=True, batch_first=True, dropout=0.5),
    "lstm without biases": nn.LSTM(4, 6, bias=False, batch_first=True),
    "gru": nn.GRU(4, 6, num_layers=2, batch_first=True),
    "gru of two directions": nn.GRU(4, 6, bidirectional=True),
    "tanh": nn.RNN(4, 6, batch_first=True),
    "relu": nn.RNN(4, 6, num_layers=2, nonlinearity="relu"),
}


class Layer(nn.Module):
    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        results, state = self.layer(x)
        return results.relu(), *(state if isinstance(state, tuple) else (state,))


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("target", ["onnx", "torchscript", "export"])
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("steps", ["6", "n:1..9"])
def test_any_number_of_steps(name: str, target: str, steps: str, tmp_path: Path) -> None:
    module = Layer(LAYERS[name]).eval()
    shape = f"b:1..8,{steps},4" if module.layer.batch_first else f"{steps},b:1..8,4"
    program = small_bundle.program(module, [f"x=f32[{shape}]"])
    if target == "onnx" and isinstance(module.layer, nn.RNN) and steps != "6":
        assert "over the steps is unrolled" in (TARGETS[target].unsupported(program) or "")
        return
    assert TARGETS[target].unsupported(program) is None
    run = TARGETS[target].load(tmp_path / TARGETS[target].write(program, tmp_path, Context(tmp_path)), "cpu")
    for batch, length in ((1, 1), (3, 6), (8, 9)) if steps != "6" else ((1, 6), (5, 6)):
        x = torch.randn((batch, length, 4) if module.layer.batch_first else (length, batch, 4))
        with torch.no_grad():
            expected = module(x)
        for found, value in zip(run(x), expected, strict=True):
            torch.testing.assert_close(found, value, rtol=1e-5, atol=1e-6)


def test_a_compiled_layer_needs_a_static_number() -> None:
    program = small_bundle.program(Layer(LAYERS["gru"]).eval(), ["x=f32[b:1..8,n:1..9,4]"])
    assert "aten.gru.input over the steps is unrolled" in (TARGETS["aoti"].unsupported(program) or "")
    program = small_bundle.program(Layer(LAYERS["gru"]).eval(), ["x=f32[b:1..8,6,4]"])
    assert TARGETS["aoti"].unsupported(program) is None


LACKING: dict[str, tuple[nn.RNNBase, str, str]] = {
    "a projection": (nn.LSTM(4, 6, proj_size=3, bidirectional=True), "x=f32[5,b:1..8,4]", "has one of size 3"),
    "lstm in f64": (nn.LSTM(4, 6).double(), "x=f64[n:1..9,b:1..8,4]", "no kernel for aten.lstm.input in float64"),
    "gru in f64": (nn.GRU(4, 6).double(), "x=f64[n:1..9,b:1..8,4]", "no kernel for aten.gru.input in float64"),
}


@pytest.mark.parametrize("name", LACKING)
def test_layers_that_onnx_lacks_are_named(name: str, tmp_path: Path) -> None:
    layer, text, reason = LACKING[name]
    module = Layer(layer).eval()
    program = small_bundle.program(module, [text])
    assert reason in (TARGETS["onnx"].unsupported(program) or "")
    run = TARGETS["torchscript"].load(
        tmp_path / TARGETS["torchscript"].write(program, tmp_path, Context(tmp_path)), "cpu"
    )
    (x,) = program.examples
    with torch.no_grad():
        torch.testing.assert_close(run(x), list(module(x)), rtol=1e-5, atol=1e-6)

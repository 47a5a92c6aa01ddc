"""torch.compile(backend="fuseconv"): what is fused, that results and gradients are right, and what is left alone."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from typing import Any

import pytest
import torch
from support import ROOT
from support.compiled import compiled, fused, logged, near, nothing_compiled
from support.hub_models import GROUPED, built
from torch import Tensor, nn
from torch.nn import functional

import fuseconv
from fuseconv.commands.demonstration import model_folder
from fuseconv.errors import UsageError
from fuseconv.fusing.compiled import CompiledGraph

INNER = ["eager", pytest.param("inductor", marks=pytest.mark.compiles)]


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    with nothing_compiled():
        yield


def tensors(outputs: Any) -> list[Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(outputs) if isinstance(leaf, Tensor)]


def agree(model: nn.Module, function: Any, inputs: dict[str, Tensor], *, grad: bool, tolerance: float) -> None:
    """Compares a compiled model with a twin that runs in eager mode: outputs, gradients, mutated inputs and buffers."""
    twin = copy.deepcopy(model)
    ours, theirs = ({name: one.clone() for name, one in inputs.items()} for _ in range(2))
    with torch.set_grad_enabled(grad):
        actual, expected = tensors(function(**ours)), tensors(twin(**theirs))
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        near(one, other, tolerance)
    for name, value in ours.items():
        near(value, theirs[name], tolerance)
    for one, other in zip(model.buffers(), twin.buffers(), strict=True):
        near(one, other, tolerance)
    if not grad:
        assert not any(one.requires_grad for one in actual)
        return
    for values in (actual, expected):
        sum(one.float().square().mean() for one in values if one.requires_grad).backward()  # type: ignore[union-attr]
    pairs = list(zip(model.named_parameters(), twin.parameters(), strict=True))
    assert all((one.grad is None) == (other.grad is None) for (_, one), other in pairs)
    size = torch.stack([other.grad.float().norm() for _, other in pairs if other.grad is not None]).norm()
    for (name, one), other in pairs:
        if one.grad is not None and other.grad is not None:
            assert (one.grad - other.grad).float().norm() <= tolerance * size, name
    model.zero_grad()


def ids(batch: int, length: int) -> dict[str, Tensor]:
    return {"input_ids": torch.randint(0, 100, (batch, length))}


def masked(batch: int, length: int) -> dict[str, Tensor]:
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[0, length // 2 :] = 0
    return {**ids(batch, length), "attention_mask": mask}


def images(batch: int, size: int) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(batch, 3, size, size)}


def minilm() -> nn.Module:
    from transformers import AutoModel

    model: nn.Module = AutoModel.from_pretrained(model_folder())
    return model


def llama() -> nn.Module:
    return built("LlamaModel", "LlamaConfig", GROUPED)


def resnet() -> nn.Module:
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}
    return built("ResNetModel", "ResNetConfig", sizes)


# A model, the inputs for a batch, and a rule that applies to it.
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], dict[str, Tensor]], str]] = {
    "minilm": (minilm, lambda batch: masked(batch, 9), "add-layer-norm"),
    "llama": (llama, lambda batch: ids(batch, 7), "add-rms-norm"),
    "resnet": (resnet, lambda batch: images(batch, 32), "add-relu"),
}


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("grad", [False, True], ids=["no grad", "grad"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", [pytest.param("minilm", marks=pytest.mark.compiles), "llama", "resnet"])
def test_computes_what_the_model_computes(name: str, dtype: torch.dtype, grad: bool) -> None:
    make, inputs, rule = MODELS[name]
    model = make().eval().to(dtype)
    function = compiled(model)
    given = {key: one.to(dtype) if one.is_floating_point() else one for key, one in inputs(2).items()}
    agree(model, function, given, grad=grad, tolerance=1e-4 if dtype == torch.float32 else 0.06)
    assert fused()[rule] > 0


@pytest.mark.compiles
@pytest.mark.parametrize("grad", [False, True], ids=["no grad", "grad"])
def test_inductor_compiles_what_was_fused(grad: bool) -> None:
    bert = {**GROUPED, "max_position_embeddings": 16}
    bert.pop("num_key_value_heads")
    model = built("BertModel", "BertConfig", bert).eval()
    function = compiled(model, "inductor")
    agree(model, function, masked(2, 7), grad=grad, tolerance=1e-4)
    assert fused()["add-layer-norm"] > 0


class Layers(nn.Module):
    """Two linear layers, each with an activation, with something between them."""

    def __init__(self, between: Callable[[Layers, Tensor], Tensor]) -> None:
        super().__init__()
        self.between = between
        self.first, self.last = nn.Linear(8, 300), nn.Linear(300, 8)
        self.norm = nn.BatchNorm1d(300)
        self.gain = nn.Parameter(torch.ones(300))
        self.kept: Tensor
        self.register_buffer("kept", torch.zeros(300))

    def forward(self, x: Tensor) -> Tensor:
        return functional.silu(self.last(self.between(self, torch.relu(self.first(x)))))


def breaks(_: Layers, h: Tensor) -> Tensor:
    torch._dynamo.graph_break()
    return h


def unused_norm(layers: Layers, h: Tensor) -> Tensor:
    layers.norm(h)
    return h


def moving_average(layers: Layers, h: Tensor) -> Tensor:
    with torch.no_grad():
        layers.kept.mul_(0.9).add_(h.mean(0), alpha=0.1)
    return h + layers.kept


def clamped_parameter(layers: Layers, h: Tensor) -> Tensor:
    with torch.no_grad():
        layers.gain.clamp_(max=0.5)
    return h * layers.gain


def without_gradient(_: Layers, h: Tensor) -> Tensor:
    with torch.no_grad():
        mean = torch.nn.functional.gelu(h).mean()
    return h * mean


def under_autocast(layers: Layers, h: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        low = functional.linear(h, layers.last.weight)
    return h + low.float().mean()


def under_two_modes(layers: Layers, h: Tensor) -> Tensor:
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        low = functional.linear(h, layers.last.weight)
    return h + low.float().mean()


def a_literal(_: Layers, h: Tensor) -> Tensor:
    return h * (torch.tensor([0.5, 2.0] * 150) + torch.arange(300)).exp().sqrt().clamp(max=3.0)


STEPS = (
    breaks,
    unused_norm,
    moving_average,
    clamped_parameter,
    without_gradient,
    under_autocast,
    under_two_modes,
    a_literal,
)


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("between", STEPS, ids=lambda function: function.__name__)
def test_what_happens_between_fusions_still_happens(between: Callable[[Layers, Tensor], Tensor], inner: str) -> None:
    model = Layers(between)
    function = compiled(model, inner)
    for _ in range(2):
        agree(model, function, {"x": torch.randn(5, 8)}, grad=True, tolerance=1e-4)
    graphs = fuseconv.compiled_graphs()
    assert len(graphs) == (2 if between is breaks else 1)
    assert not any(graph.plan.rejected for graph in graphs)
    assert fused()["linear-act"] >= 1


def test_a_gradient_does_not_cross_a_region_without_gradients() -> None:
    class Half(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            h = super().forward(x)
            with torch.no_grad():
                frozen = torch.relu(h)
            return frozen * h

    model = Half(8, 300)
    agree(model, compiled(model), {"x": torch.randn(5, 8)}, grad=True, tolerance=1e-5)
    assert not fused()


@pytest.mark.parametrize("inner", INNER)
def test_a_cache_that_is_written_in_place(inner: str) -> None:
    class Cached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.keys, self.out = nn.Linear(8, 300), nn.Linear(300, 8)

        def forward(self, x: Tensor, cache: Tensor, position: Tensor) -> Tensor:
            cache.index_copy_(1, position, torch.relu(self.keys(x)))
            cache[:, 0] += 1
            return functional.silu(self.out(cache.sum(1, keepdim=True)))

    model = Cached()
    function = compiled(model, inner)
    cache = torch.zeros(2, 16, 300)
    for position in range(3):
        inputs = {"x": torch.randn(2, 1, 8), "cache": cache, "position": torch.tensor([position])}
        agree(model, function, inputs, grad=False, tolerance=1e-5)
    assert len(fuseconv.compiled_graphs()) == 1
    assert fused() == {"linear-act": 2}


@pytest.mark.parametrize("inner", INNER)
def test_dropout_in_training(inner: str) -> None:
    class Dropping(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return functional.dropout(functional.gelu(x), 0.25)

    function = compiled(Dropping(), inner)
    x = torch.full((64, 256), 2.0, requires_grad=True)
    y = function(x)
    assert fused() == {"gelu-dropout": 1}
    kept = y != 0
    assert 0.73 < kept.float().mean().item() < 0.77
    torch.testing.assert_close(y[kept], (functional.gelu(x) / 0.75)[kept])
    assert not torch.equal(kept, function(x) != 0)
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad != 0, kept)
    twin = x.detach().clone().requires_grad_()
    (functional.gelu(twin) / 0.75).sum().backward()
    assert twin.grad is not None
    torch.testing.assert_close(x.grad[kept], twin.grad[kept])


@pytest.mark.parametrize("marked", [True, False], ids=["marked", "automatic"])
@pytest.mark.parametrize("grad", [False, True], ids=["no grad", "grad"])
def test_a_dynamic_batch_is_compiled_once(marked: bool, grad: bool) -> None:
    model = Layers(a_literal)
    function = compiled(model)
    for at, batch in enumerate((5, 3, 7, 2, 64)):
        x = torch.randn(batch, 8)
        if marked and not at:
            torch._dynamo.mark_dynamic(x, 0)
        with torch.set_grad_enabled(grad):
            near(function(x), model(x), 1e-5)
    graphs = fuseconv.compiled_graphs()
    assert len(graphs) == (1 if marked else 2)  # the first batch, then all
    assert graphs[-1].plan.counts()["linear-act"] == 2
    near(function(torch.randn(1, 8) * 0), model(torch.zeros(1, 8)), 1e-5)
    assert len(fuseconv.compiled_graphs()) == len(graphs) + 1  # 1 broadcasts


def test_a_number_that_is_a_size_is_guarded() -> None:
    def split(x: Tensor, parts: int) -> Tensor:
        return torch.relu(x.reshape(parts, -1)).sum(0)

    function = compiled(split, dynamic=True)
    x = torch.randn(12)
    for parts in (6, 4, 3, 2, 1):
        near(function(x, parts), split(x, parts), 1e-6)
    assert 1 <= len(fuseconv.compiled_graphs()) <= 2


def test_a_step_of_an_optimizer_is_seen() -> None:
    model = Layers(moving_average)
    function, x = compiled(model), torch.randn(5, 8)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        agree(model, function, {"x": x}, grad=True, tolerance=1e-4)
        function(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert len(fuseconv.compiled_graphs()) == 1


def test_compiling_changes_no_random_numbers_and_no_gradients() -> None:
    model = Layers(a_literal)
    state = torch.get_rng_state()
    compiled(model)(torch.randn(5, 8).detach())
    torch.set_rng_state(state)
    expected = torch.randn(5, 8), torch.rand(3)
    torch.set_rng_state(state)
    torch._dynamo.reset()
    x = torch.randn(5, 8)
    compiled(model)(x)
    assert torch.equal(x, expected[0])
    assert torch.equal(torch.rand(3), expected[1])
    assert all(one.grad is None for one in model.parameters())


def test_what_was_fused_and_missed_is_logged() -> None:
    with logged() as log:
        compiled(Layers(moving_average))(torch.randn(5, 8))
    assert any(line.startswith("INFO graph 0/0 at ") and "fused linear-act 1" in line for line in log)
    assert any(line.startswith("DEBUG graph 0/0 at ") and "rule linear-act misses" in line for line in log)


@pytest.mark.compiles
def test_a_mode_is_one_of_inductor() -> None:
    graph = torch.fx.symbolic_trace(nn.ReLU())
    with pytest.raises(UsageError, match="only Inductor has modes"):
        fuseconv.dynamo_backend(graph, [torch.randn(3)], mode="max-autotune", options={"inner": "eager"})
    x = torch.randn(3, 8)
    model = nn.Sequential(nn.Linear(8, 300), nn.GELU()).eval()
    near(torch.compile(model, backend=fuseconv.dynamo_backend, mode="max-autotune")(x), model(x), 1e-5)
    assert fused() == {"linear-act": 1}


def test_the_backend_has_a_name_once_the_package_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "pyproject.toml").read_text()
    ((name, value),) = tomllib.loads(text)["project"]["entry-points"]["torch_dynamo_backends"].items()
    entry = EntryPoint(name, value, "torch_dynamo_backends")
    assert (name, entry.load()) == ("fuseconv", fuseconv.dynamo_backend)
    from torch._dynamo.backends import registry

    registry._lazy_import()
    monkeypatch.setitem(registry._BACKENDS, name, entry)
    monkeypatch.delitem(registry._COMPILER_FNS, name, raising=False)
    x, model = torch.randn(3, 8), nn.Sequential(nn.Linear(8, 300), nn.GELU())
    near(torch.compile(model, backend="fuseconv", options={"inner": "eager"})(x), model(x), 1e-5)
    assert fused() == {"linear-act": 1}
    registry._COMPILER_FNS.pop(name)


def test_the_graphs_are_kept_until_they_are_forgotten() -> None:
    compiled(nn.Sequential(nn.Linear(8, 300), nn.GELU()))(torch.randn(3, 8))
    (graph,) = fuseconv.compiled_graphs()
    assert isinstance(graph, CompiledGraph)
    assert graph.name == "0/0"
    assert graph.seconds > 0
    assert fuseconv.compiled_graphs(forget=True) == (graph,)
    assert fuseconv.compiled_graphs() == ()

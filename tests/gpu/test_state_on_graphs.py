"""State in CUDA graphs: it stays in the buffers of a graph, and generations that share a graph do not mix."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from support import generating
from torch import Tensor

import fuseconv
from fuseconv.bundle.manifest import open_bundle
from fuseconv.runtime.cuda_graphs import Choice
from fuseconv.runtime.graphed_runner import GraphedRunner
from fuseconv.runtime.methods import Methods
from fuseconv.runtime.model import Model, load
from fuseconv.runtime.state import OwnedState, StateRunner

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

TARGETS = ["aoti", "torchscript"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("generating") / "cuda"
    generating.write_page(path, TARGETS, "cuda")
    return path


def methods_of(folder: Path, target: str, graphs: Choice) -> Methods:
    model = fuseconv.load(folder / "llama.fuseconv", target=target, cuda_graphs=graphs)
    assert isinstance(model, Methods)
    return model


def decode_of(folder: Path, target: str, graphs: Choice) -> Model:
    return load(folder / "llama.fuseconv/methods/decode", target, cuda_graphs=graphs)


def prompt_of(seed: int) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randint(3, 128, (1 + seed % 2, 1 + 2 * (seed % 3)), generator=generator, device="cuda")


def generated(model: Methods, seed: int) -> Tensor:
    return model.generate(input_ids=prompt_of(seed), max_new_tokens=20, eos=[])


def token_of(seed: int, batch: int) -> dict[str, Tensor]:
    tokens = torch.full((batch, 1), 5 + seed, device="cuda")
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("graphs", [True, "auto"])
def test_generations_of_several_threads_give_the_tokens_without_graphs(
    graphs: Choice, target: str, folder: Path
) -> None:
    plain, model, seeds = methods_of(folder, target, False), methods_of(folder, target, graphs), range(24)
    expected = [generated(plain, seed) for seed in seeds]
    found = [generated(model, seed) for seed in seeds]
    streams = threading.local()

    def on_a_stream(seed: int) -> Tensor:
        if not hasattr(streams, "own"):
            streams.own = torch.cuda.Stream()
        with torch.cuda.stream(streams.own):
            tokens = generated(model, seed)
            streams.own.synchronize()
            return tokens

    with ThreadPoolExecutor(6) as pool:
        found += list(pool.map(on_a_stream, [*seeds, *seeds]))
    for tokens, right in zip(found, expected * 3, strict=True):
        assert torch.equal(tokens, right)
    if graphs is True:
        assert model.decode.cuda_graphs.shapes


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("limit", [1, 64])
def test_states_and_plain_calls_take_turns(limit: int, target: str, folder: Path) -> None:
    """Two states of one shape, one of another, and plain calls; with a limit of 1, graphs are dropped all the time."""
    manifest = open_bundle(folder / "llama.fuseconv/methods/decode")
    plain = decode_of(folder, target, False)
    assert isinstance(plain._runner, StateRunner)
    graphed = GraphedRunner(
        plain._runner._runner, plain.contract, manifest.in_place[target], required=True, limit=limit
    )
    model = Model(plain.contract, target, graphed)
    batches = (2, 2, 3)
    owned = [OwnedState(model.zero_state(batch=batch)) for batch in batches]
    states = [plain.zero_state(batch=batch) for batch in batches]
    for count in range(20):
        for index, batch in enumerate(batches):
            if (count + index) % 3 == 0:
                continue
            inputs = token_of(count + index, batch)
            before = {name: tensor.clone() for name, tensor in states[index].items()}
            right = plain(**inputs, **states[index])
            pure, advanced = model(**inputs, **states[index]), model.advance(owned[index], **inputs)
            for name, tensor in before.items():
                assert torch.equal(states[index][name], tensor)
            states[index] = plain.next_state(right)
            for name, tensor in states[index].items():
                read = owned[index].tensors if count % 2 else owned[index].snapshot()
                torch.testing.assert_close(read[name], tensor, rtol=0, atol=0)
                torch.testing.assert_close(model.next_state(pure)[name], tensor, rtol=0, atol=0)
            for logits in (advanced["logits"], pure.logits):
                torch.testing.assert_close(logits, right.logits, rtol=0, atol=0)


@pytest.mark.parametrize("target", TARGETS)
def test_a_step_allocates_and_copies_nothing_of_the_size_of_the_cache(target: str, folder: Path) -> None:
    model, batch = decode_of(folder, target, True), 64
    state, inputs = OwnedState(model.zero_state(batch=batch)), token_of(0, batch)
    size = state.tensors["past_key_0"].nbytes
    for _ in range(4):
        model.advance(state, **inputs)
    before = torch.cuda.memory_stats()["allocated_bytes.all.allocated"]
    for _ in range(8):
        model.advance(state, **inputs)
    assert torch.cuda.memory_stats()["allocated_bytes.all.allocated"] - before < 8 * size
    places = {name: tensor.data_ptr() for name, tensor in state.tensors.items()}
    model.advance(state, **inputs)
    assert {name: tensor.data_ptr() for name, tensor in state.tensors.items()} == places


def test_a_state_goes_from_one_model_to_another(folder: Path) -> None:
    first, second = (decode_of(folder, target, True) for target in TARGETS)
    plain = decode_of(folder, "aoti", False)
    state, expected = OwnedState(first.zero_state(batch=2)), plain.zero_state(batch=2)
    for count in range(12):
        inputs = token_of(count, 2)
        right = plain(**inputs, **expected)
        expected = plain.next_state(right)
        found = (first if count % 3 else second).advance(state, **inputs)
        torch.testing.assert_close(found["logits"], right.logits)
    for name, tensor in expected.items():
        torch.testing.assert_close(state.tensors[name], tensor)

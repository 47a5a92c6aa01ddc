"""State in place: a call changes none of its inputs, and `advance` and `generate` copy nothing of a cache's size."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support import generating
from support.shared import made_once
from torch import Tensor

import fuseconv
from fuseconv.bundle.manifest import open_bundle, seal
from fuseconv.contract.input_text import parse_inputs
from fuseconv.errors import UsageError
from fuseconv.runtime.methods import Methods
from fuseconv.runtime.model import Model, load
from fuseconv.runtime.state import OwnedState
from fuseconv.sources import Options

pytestmark = [pytest.mark.compiles, pytest.mark.timeout(600)]

GENERATING = ["aoti", "torchscript"]
STEPPING = ["aoti", "export", "torchscript", "onnx"]
IN_PLACE = ["aoti", "export", "torchscript"]
STATE = {"cache": "next_cache", "hidden": "next_hidden", "one": "next_one", "other": "next_other"}


class Steps(torch.nn.Module):
    """Has states of each kind: one that is written to, one that is computed anew, and two that are exchanged.

    Inductor (torch 2.13) exchanges two inputs wrongly if both are updated in place.
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(4, 4)

    def forward(
        self, x: Tensor, at: Tensor, cache: Tensor, hidden: Tensor, one: Tensor, other: Tensor
    ) -> dict[str, Tensor]:
        """Returns the sum of the cache, and the next states."""
        kept = cache.clone()
        kept.index_copy_(1, at, self.linear(x)[:, None])
        new = torch.tanh(self.linear(hidden) + kept.sum(1))
        return {"y": new + one, "next_other": one, "next_cache": kept, "next_hidden": new, "next_one": other + x}


def convert(folder: Path, targets: list[str], state: dict[str, str]) -> Path:
    folder.mkdir(exist_ok=True)
    torch.save(Steps(), folder / "steps.pt")
    sizes = [f"{name}=f32[batch,4]" for name in ("hidden", "one", "other")]
    inputs = parse_inputs(["x=f32[batch:1..8,4]", "at=i64[1]", "cache=f32[batch,16,4]", *sizes])
    options = Options(inputs=inputs, input_ranges={"at": (0, 15)}, state=state, trust=frozenset({"pickle"}))
    fuseconv.convert(folder / "steps.pt", options=options, target=targets, output=folder / "steps.fuseconv")
    return folder / "steps.fuseconv"


@pytest.fixture(scope="module")
def steps_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_once(tmp_path_factory, "steps", lambda folder: convert(folder, STEPPING, STATE)) / "steps.fuseconv"


def inputs_of(seed: int) -> dict[str, Tensor]:
    return {"x": torch.randn(3, 4, generator=torch.Generator().manual_seed(seed)), "at": torch.tensor([seed % 16])}


def test_the_manifest_names_the_targets(steps_bundle: Path) -> None:
    manifest = json.loads((steps_bundle / "manifest.json").read_text())
    assert (manifest["in_place"], manifest["schema_version"]) == ({name: ["cache"] for name in IN_PLACE}, 4)
    assert "left_out" not in manifest


def test_a_bundle_from_before_loads(tmp_path: Path) -> None:
    """Its artifacts return every state as a new tensor, although the contract declares the state."""
    bundle = convert(tmp_path, ["torchscript"], {})
    manifest = open_bundle(bundle)
    contract = replace(manifest.contract, state=tuple(STATE.items()))
    seal(bundle, manifest.model_copy(update={"contract": contract}))
    assert (open_bundle(bundle).schema_version, open_bundle(bundle).in_place) == (2, {})
    assert_advance_is_a_call("torchscript", bundle)


@pytest.mark.parametrize("target", STEPPING)
def test_advance_gives_what_plain_calls_give_and_these_change_nothing(target: str, steps_bundle: Path) -> None:
    assert_advance_is_a_call(target, steps_bundle)


def assert_advance_is_a_call(target: str, bundle: Path) -> None:
    model, original = load(bundle, target), Steps()
    state, owned = model.zero_state(batch=3), OwnedState(model.zero_state(batch=3))
    expected = {name: tensor.clone() for name, tensor in state.items()}
    for seed in range(5):
        inputs = inputs_of(seed)
        before = {name: tensor.clone() for name, tensor in (inputs | state).items()}
        outputs = [model(**inputs, **state) for _ in range(2)]
        for name, tensor in before.items():
            assert torch.equal((inputs | state)[name], tensor), name
        assert not {one.data_ptr() for one in outputs[0]} & {one.data_ptr() for one in (inputs | state).values()}
        with torch.no_grad():
            right = original(**inputs, **expected)
        advanced = model.advance(owned, **inputs)
        assert list(advanced) == ["y"]
        state, expected = model.next_state(outputs[1]), {name: right[output] for name, output in STATE.items()}
        for name, tensor in expected.items():
            torch.testing.assert_close(state[name], tensor)
            torch.testing.assert_close(owned.snapshot()[name], state[name], rtol=0, atol=0)
        for result in (advanced["y"], outputs[0].y, outputs[1].y):
            torch.testing.assert_close(result, right["y"])


@pytest.mark.parametrize("target", IN_PLACE)
def test_advance_writes_into_the_cache(target: str, steps_bundle: Path) -> None:
    model = load(steps_bundle, target)
    state = OwnedState(model.zero_state(batch=3))
    cache, before = state.tensors["cache"], state.snapshot()
    for seed in range(3):
        model.advance(state, **inputs_of(seed))
    assert not before["cache"].any()
    assert state.tensors["cache"].data_ptr() == cache.data_ptr()
    assert (cache.abs().sum((0, 2)) > 0).sum() == 3


def test_tensors_that_code_cannot_write_to_are_replaced(steps_bundle: Path) -> None:
    model = load(steps_bundle, "aoti")
    strided = {"cache": torch.zeros(4, 16, 3).permute(2, 1, 0)}
    states = [OwnedState(model.zero_state(batch=3) | more) for more in ({}, strided)]
    for seed in range(3):
        results = [model.advance(state, **inputs_of(seed))["y"] for state in states]
        assert torch.equal(*results)


def test_a_model_without_state_cannot_advance(bundle: Path) -> None:
    with pytest.raises(UsageError, match="the model has no state"):
        load(bundle, "torchscript").advance(OwnedState({}))


def generated(model: Methods, prompt: Tensor, count: int = 12) -> Tensor:
    return model.generate(input_ids=prompt, max_new_tokens=count, eos=[])


@pytest.mark.parametrize("target", GENERATING)
def test_the_tokens_are_those_of_transformers(target: str, compiled_folder: Path) -> None:
    model, inputs = fuseconv.load(compiled_folder / "llama.fuseconv", target=target), generating.inputs_of("llama")
    assert isinstance(model, Methods)
    original = generating.page_model(compiled_folder)
    for count in (1, 2, 20):
        found = model.generate(**inputs, max_new_tokens=count)
        assert torch.equal(found, original.generate(**inputs, max_new_tokens=count, do_sample=False))


@pytest.mark.parametrize("target", GENERATING)
def test_generations_at_the_same_time_do_not_mix(target: str, compiled_folder: Path) -> None:
    model = fuseconv.load(compiled_folder / "llama.fuseconv", target=target)
    assert isinstance(model, Methods)
    prompts = [torch.randint(3, 128, (2, 5), generator=torch.Generator().manual_seed(seed)) for seed in range(12)]
    expected = [generated(model, prompt) for prompt in prompts]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda prompt: generated(model, prompt), prompts))
    for tokens, right in zip(found, expected, strict=True):
        assert torch.equal(tokens, right)


def of_the_size_of_the_cache(model: Model, state: OwnedState, inputs: dict[str, Tensor], *, plain: bool) -> list[str]:
    """Returns what one call allocates and copies of the size of one tensor of the cache: names of torch's profiler."""
    cache = state.tensors["past_key_0"]
    activities: Any = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True, record_shapes=True) as profile:
        _ = model(**inputs, **state.tensors) if plain else model.advance(state, **inputs)
    memory = [event.name() for event in profile.profiler.kineto_results.events() if event.nbytes() >= cache.nbytes]
    copies = ("aten::copy_", "aten::clone")
    ops = [one.name for one in profile.events() if one.name in copies and list(cache.shape) in one.input_shapes]
    return [*memory, *ops]


@pytest.mark.parametrize("target", GENERATING)
def test_a_step_of_a_generation_copies_nothing_of_the_size_of_the_cache(target: str, compiled_folder: Path) -> None:
    model = load(compiled_folder / "llama.fuseconv/methods/decode", target)
    state = OwnedState(model.zero_state(batch=64))
    inputs = {"input_ids": torch.full((64, 1), 5), "attention_mask": torch.ones(64, 1, dtype=torch.int64)}
    for _ in range(3):
        model.advance(state, **inputs)
    assert of_the_size_of_the_cache(model, state, inputs, plain=False) == []
    found = of_the_size_of_the_cache(model, state, inputs, plain=True)
    assert (found.count("[memory]"), found.count("aten::clone")) == (2, 2)  # the keys and the values

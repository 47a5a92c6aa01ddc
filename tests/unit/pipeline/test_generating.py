"""A Hugging Face folder of a model that generates becomes a bundle that generates the same tokens."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import generating

import fuseconv
from fuseconv.capture.capture import capture
from fuseconv.contract.input_text import parse_inputs
from fuseconv.contract.spec import Contract
from fuseconv.errors import UnsupportedError, UsageError
from fuseconv.pipeline.swap import swap
from fuseconv.runtime.methods import Methods
from fuseconv.sources import Options, read
from fuseconv.sources.generating import cache_length, read_generation


@pytest.fixture
def folder(generating_folder: Path) -> Path:
    return generating_folder / "llama"


@pytest.fixture
def bundle(generating_folder: Path) -> Path:
    return generating_folder / "llama.fuseconv"


@pytest.mark.parametrize("target", ["torchscript", "onnx"])
def test_the_bundle_generates_the_tokens_of_the_model(bundle: Path, generating_folder: Path, target: str) -> None:
    model, inputs = fuseconv.load(bundle, target=target), generating.inputs_of("llama")
    assert isinstance(model, Methods)
    found = model.generate(**inputs, max_new_tokens=12)
    assert torch.equal(
        found, generating.page_model(generating_folder).generate(**inputs, max_new_tokens=12, do_sample=False)
    )


@pytest.mark.compiles
def test_each_generation_has_the_tokens_of_the_old_or_the_new_weights(
    bundle: Path, folder: Path, tmp_path: Path
) -> None:
    old = load_file(folder / "model.safetensors")
    save_file({name: tensor.flip(0).contiguous() for name, tensor in old.items()}, tmp_path / "new.safetensors")
    new = swap(bundle, tmp_path / "new.safetensors", output=tmp_path / "new.fuseconv").bundle
    how: dict[str, Any] = {**generating.inputs_of("llama"), "max_new_tokens": 12, "eos": []}
    both = [fuseconv.load(one, target="torchscript").generate(**how) for one in (bundle, new)]  # type: ignore[union-attr]
    assert not torch.equal(*both)
    model, ended = fuseconv.load(bundle, target="torchscript"), threading.Event()
    assert isinstance(model, Methods)

    def generate() -> int:
        seen = set()
        while not ended.is_set():
            tokens = model.generate(**how)
            seen.add([torch.equal(tokens, one) for one in both].index(True))
        return len(seen)

    with ThreadPoolExecutor(3) as pool:
        threads = [pool.submit(generate) for _ in range(3)]
        for one in [new, bundle] * 4:
            model.swap(one)
        ended.set()
        assert max(thread.result() for thread in threads) == 2


def test_the_contract_declares_the_state(bundle: Path) -> None:
    contract = json.loads((bundle / "methods/decode/manifest.json").read_text())["contract"]
    names = ("past_length", "past_mask", "past_key_0", "past_value_0")
    assert contract["state"] == {name: name.replace("past", "present") for name in names}
    assert json.loads((bundle / "manifest.json").read_text())["generation"]["cache_length"] == generating.PAGE_LENGTH


def test_the_methods_share_the_weights(bundle: Path, folder: Path) -> None:
    stored = load_file(bundle / "weights.safetensors")
    given = load_file(folder / "model.safetensors")
    added = sum(tensor.nbytes for name, tensor in stored.items() if not name.startswith("onnx/")) - sum(
        tensor.nbytes for tensor in given.values()
    )
    assert abs(added) < 1024  # constants, such as the mask of the attention


class Counter(torch.nn.Module):
    """Adds up its inputs."""

    def forward(self, x: torch.Tensor, total: torch.Tensor) -> dict[str, torch.Tensor]:
        """Returns the sum so far, and its size."""
        return {"size": x.sum(), "next_total": total + x, "half": (total + x).half()}


def capture_counter(folder: Path, **state: str) -> Contract:
    torch.save(Counter(), folder / "counter.pt")
    inputs = parse_inputs(["x=f32[batch:1..8,3]", "total=f32[batch,3]"])
    options = Options(inputs=inputs, state=state, trust=frozenset({"pickle"}))
    return capture(read(folder / "counter.pt", options=options)).contract


def test_a_module_may_have_state(tmp_path: Path) -> None:
    assert capture_counter(tmp_path, total="next_total").state == (("total", "next_total"),)


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"sum": "next_total"}, "the model has no input sum"),
        ({"total": "next"}, "the model has no output next"),
        ({"total": "size"}, r"total is torch.float32 \[s\d+, 3\], but size is torch.float32 \[\]"),
        ({"total": "half"}, "but half is torch.float16"),
    ],
)
def test_a_state_that_is_not_one_is_a_usage_error(tmp_path: Path, state: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        capture_counter(tmp_path, **state)


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"method": "encode"}, UsageError, "the model has no encoder"),
        ({"method": "decode", "cache_length": 65}, UsageError, "longer than the model's 64 positions"),
        ({"method": "decode", "inputs": parse_inputs(["x=f32[8]"])}, UsageError, "the method decode takes no --input"),
        ({"method": "describe"}, UsageError, "the model has no method describe"),
    ],
)
def test_a_wrong_method_of_a_model_is_an_error(
    folder: Path, changes: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        read(folder, options=Options(**changes))


@pytest.mark.parametrize("asked", [{"num_beams": 4}, {"repetition_penalty": 1.2}, {"no_repeat_ngram_size": 3}])
def test_a_configuration_that_asks_for_another_search_is_unsupported(
    folder: Path, tmp_path: Path, asked: dict[str, Any]
) -> None:
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 2, **asked}))
    with pytest.raises(UnsupportedError, match=f"generation config sets {next(iter(asked))}"):
        read_generation(tmp_path, Options())


def test_a_window_of_attention_is_unsupported() -> None:
    from transformers import MistralConfig, MistralForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = MistralForCausalLM(MistralConfig(**sizes, num_key_value_heads=1, vocab_size=32, sliding_window=8))
    with pytest.raises(UnsupportedError, match="layer 0 has a StaticSlidingWindowLayer cache"):
        generating.method_of(model, "decode")


def test_the_cache_has_the_length_of_the_positions_by_default() -> None:
    assert cache_length(generating.gpt2().config, None) == 64
    assert cache_length(generating.t5().config, None) == 512

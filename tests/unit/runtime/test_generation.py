"""`generate` gives the tokens that transformers generates with the same model, whatever the model and the batch."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from support import generating
from torch import Tensor

from fuseconv.bundle.generation import Generation
from fuseconv.errors import ContractError, UsageError
from fuseconv.runtime.choosing_tokens import Choice
from fuseconv.runtime.methods import Methods
from fuseconv.sources import Options
from fuseconv.sources.generating import read_generation


@cache
def model_of(name: str) -> Any:
    return generating.made(name)


@cache
def methods_of(name: str) -> Methods:
    """The methods of a model, with what its configuration says about generation."""
    config = model_of(name).generation_config
    ends, first = config.eos_token_id, config.decoder_start_token_id
    known = Generation(
        cache_length=generating.LENGTH,
        eos=[ends],
        pad=config.pad_token_id,
        start=[] if first is None else [first],
        suppress=getattr(config, "suppress_tokens", None) or [],
        suppress_first=getattr(config, "begin_suppress_tokens", None) or [],
    )
    return generating.methods_of(model_of(name), known)


def expected(name: str, inputs: dict[str, Tensor], **options: Any) -> Tensor:
    """What transformers generates. Whisper's own function removes the first token and the end from this."""
    from transformers import GenerationMixin

    tokens: Tensor = GenerationMixin.generate(model_of(name), **inputs, **options)
    return tokens


@pytest.mark.parametrize("name", generating.MODELS)
@pytest.mark.parametrize("count", [1, 2, 16])
def test_the_tokens_are_those_of_transformers(name: str, count: int) -> None:
    inputs = generating.inputs_of(name)
    found = methods_of(name).generate(**inputs, max_new_tokens=count)
    assert torch.equal(found, expected(name, inputs, max_new_tokens=count, do_sample=False))


@pytest.mark.parametrize("name", generating.MODELS)
@pytest.mark.parametrize("options", [{"temperature": 0.7}, {"top_k": 5}, {"top_p": 0.6}, {"top_k": 20, "top_p": 0.9}])
def test_random_tokens_are_those_of_transformers(name: str, options: dict[str, Any]) -> None:
    inputs = generating.inputs_of(name)
    found = methods_of(name).generate(**inputs, max_new_tokens=12, sample=True, seed=3, **options)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        plain = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
        given = expected(name, inputs, max_new_tokens=12, do_sample=True, **{**plain, **options})
    assert torch.equal(found, given)


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_a_sequence_ends_at_its_token_and_is_padded(name: str) -> None:
    inputs, model = generating.inputs_of(name), methods_of(name)
    free = model.generate(**inputs, max_new_tokens=12)
    end = int(free[1, -8])
    found = model.generate(**inputs, max_new_tokens=12, eos=end)
    assert torch.equal(found, expected(name, inputs, max_new_tokens=12, do_sample=False, eos_token_id=end))
    assert (found == 0).any()
    every = model.generate(**inputs, max_new_tokens=12, eos=list(range(generating.VOCABULARY)))
    assert every.shape[1] == free.shape[1] - 11


def test_a_prompt_of_one_token_and_one_without_a_mask() -> None:
    for tokens in ([[9]], [[9, 11, 4]]):
        inputs: dict[str, Any] = {"input_ids": torch.tensor(tokens)}
        found = methods_of("llama").generate(**inputs, max_new_tokens=5)
        assert torch.equal(found, expected("llama", inputs, max_new_tokens=5, do_sample=False))


def test_decode_alone_generates_too() -> None:
    model = methods_of("llama")
    alone = Methods(model._manifest, {"decode": model.decode}, Path())
    inputs = generating.inputs_of("llama")
    assert torch.equal(alone.generate(**inputs, max_new_tokens=9), model.generate(**inputs, max_new_tokens=9))


def test_the_first_tokens_of_a_decoder_may_be_given() -> None:
    inputs: dict[str, Any] = {**generating.inputs_of("t5"), "decoder_input_ids": torch.tensor([[0, 9, 11]] * 3)}
    found = methods_of("t5").generate(**inputs, max_new_tokens=4)
    assert torch.equal(found, expected("t5", inputs, max_new_tokens=4, do_sample=False))


def test_the_state_is_zero_at_the_start_and_then_what_a_call_returned() -> None:
    model = methods_of("gpt2").decode
    state = model.zero_state(batch=2)
    assert state.keys() == dict(model.contract.state).keys()
    assert not any(tensor.any() for tensor in state.values())
    token, mask = torch.tensor([[5], [6]]), torch.ones(2, 1, dtype=torch.int64)
    for count in (1, 2, 3):
        state = model.next_state(model(token, mask, **state))
        assert state["past_length"] == count
        assert state["past_mask"].sum() == 2 * count
        assert (state["past_key_0"].abs().sum((0, 1, 3)) > 0).sum() == count


@pytest.mark.parametrize(
    ("sizes", "said"),
    [({}, "has the dims batch, but the sizes are those of none"), ({"batch": 65}, "batch is 65, outside batch:1..64")],
)
def test_wrong_sizes_of_the_state_are_usage_errors(sizes: dict[str, int], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        methods_of("gpt2").decode.zero_state(**sizes)


def without(*names: str) -> Callable[[], object]:
    """A call of what has not these methods."""

    def wrong() -> object:
        model = methods_of("t5")
        left = {name: one for name, one in model.methods.items() if name not in names}
        return Methods(model._manifest, left, Path()).generate(**generating.inputs_of("t5"))

    return wrong


def call(**given: Any) -> Callable[[], object]:
    return lambda: methods_of("gpt2").generate(**{**generating.inputs_of("gpt2"), "max_new_tokens": 2, **given})


@pytest.mark.parametrize(
    ("wrong", "error", "said"),
    [
        (call(max_new_tokens=19), UsageError, "7 tokens and 19 new tokens exceed the cache of 24"),
        (call(max_new_tokens=0), UsageError, "max_new_tokens is 0"),
        (call(input_ids=torch.zeros(2, 0, dtype=torch.int64)), UsageError, "the prompt has no tokens"),
        (call(pixels=torch.zeros(2)), ContractError, "generate takes input_ids, attention_mask, but the call passes"),
        (call(input_ids=torch.zeros(3, 7)), ContractError, "input_ids has dtype f32"),
        (call(attention_mask=torch.ones(2, 7, dtype=torch.int64)), ContractError, "batch"),
        (call(temperature=0.0, sample=True), UsageError, "temperature is 0.0"),
        (call(top_k=0, sample=True), UsageError, "top_k is 0"),
        (call(top_p=1.5, sample=True), UsageError, "top_p is 1.5"),
        (call(top_k=5), UsageError, "apply only if tokens are sampled"),
        (without("encode", "prefill"), UsageError, "the bundle has no method encode, prefill"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(wrong: Callable[[], object], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        wrong()


def test_the_cache_is_used_up_to_its_end() -> None:
    assert methods_of("gpt2").generate(**generating.inputs_of("gpt2"), max_new_tokens=18).shape == (3, 25)


def test_the_chosen_tokens_have_the_probabilities_of_the_logits() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().expand(20_000, 4)
    generator = torch.Generator().manual_seed(0)
    for choice, shares in (
        (Choice(sample=True), [0.5, 0.3, 0.15, 0.05]),
        (Choice(sample=True, top_k=2), [0.625, 0.375, 0, 0]),
        (Choice(sample=True, top_p=0.7), [0.625, 0.375, 0, 0]),
        (Choice(sample=True, suppress=(0,)), [0, 0.6, 0.3, 0.1]),
    ):
        counts = torch.bincount(choice.next(logits, generator), minlength=4) / len(logits)
        torch.testing.assert_close(counts, torch.tensor(shares), atol=0.015, rtol=0)


@pytest.mark.parametrize("name", generating.MODELS)
def test_the_configuration_says_how_a_model_generates(name: str, tmp_path: Path) -> None:
    model_of(name).save_pretrained(tmp_path)
    assert read_generation(tmp_path, Options(cache_length=generating.LENGTH)) == methods_of(name).generation

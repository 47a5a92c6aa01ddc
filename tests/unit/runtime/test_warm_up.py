"""Calls of a model before its user's first one."""

import math
from contextlib import nullcontext

import pytest
import torch

from fuseconv.contract.input_text import parse_inputs
from fuseconv.contract.spec import Contract
from fuseconv.errors import UpstreamError
from fuseconv.runtime.warm_up import default_seconds, has_memory, warm_up

DYNAMIC = Contract(parse_inputs(["x=f32[batch:1..16,tokens:2..64]"]), ("y",))
STATIC = Contract(parse_inputs(["x=f32[3,4]"]), ("y",))
OUT_OF_MEMORY = "CUDA out of memory. Tried to allocate 2 GiB"
UNSAID = "run_func_(...) API call failed at model_container_runner.cpp, line 147"


@pytest.mark.parametrize("contract", [DYNAMIC, STATIC], ids=["dynamic", "static"])
def test_sizes_ascend_from_a_first_one_that_is_called_twice(contract: Contract) -> None:
    seen: list[int] = []

    def model(x: torch.Tensor) -> None:
        seen.append(math.prod(x.shape))
        torch.rand(())

    torch.manual_seed(5)
    assert warm_up(model, contract, seconds=60) == len(seen) > 1
    assert seen[0] == seen[1]
    assert seen == sorted(seen)
    assert seen[-1] == (16 * 64 if contract is DYNAMIC else 12)
    assert torch.rand(()) == torch.rand((), generator=torch.Generator().manual_seed(5))


def test_no_call_begins_when_the_time_is_over() -> None:
    assert warm_up(lambda x: None, DYNAMIC, seconds=0) == 0


def test_no_call_begins_that_would_end_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("fuseconv.runtime.warm_up.time.monotonic", lambda: clock[0])

    def model(x: torch.Tensor) -> None:
        clock[0] += x.numel() / 1000 + (0 if clock[0] else 0.2)  # the first call also compiles

    assert warm_up(model, DYNAMIC, seconds=1) > 4
    assert 0.5 < clock[0] <= 1


@pytest.mark.parametrize(("at", "calls"), [(0, None), (1, 1), (4, 4)])
def test_a_model_that_fails_at_its_smallest_size_raises(at: int, calls: int | None) -> None:
    """AOTInductor does not say that memory is out; a model that works at smaller sizes lacks memory."""
    made = iter(range(100))

    def model(x: torch.Tensor) -> None:
        if next(made) == at:
            raise UpstreamError(UNSAID)

    with pytest.raises(UpstreamError) if calls is None else nullcontext():
        assert warm_up(model, DYNAMIC, seconds=60) == calls


@pytest.mark.parametrize(
    ("any_failure", "words", "raised"),
    [(False, OUT_OF_MEMORY, False), (False, UNSAID, True), (True, UNSAID, False)],
)
def test_a_size_that_does_not_fit_is_left_out(any_failure: bool, words: str, raised: bool) -> None:
    def model(x: torch.Tensor) -> None:
        raise UpstreamError(f"the target aoti failed: {words}")

    with pytest.raises(UpstreamError) if raised else nullcontext():
        assert not has_memory(model, STATIC, {}, any_failure=any_failure)


@pytest.mark.gpu
def test_memory_is_free_again() -> None:
    contract = Contract(DYNAMIC.inputs, ("y",), "cuda")
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    assert warm_up(lambda x: torch.empty(1 << 24, device=x.device), contract, seconds=60) > 1
    assert torch.cuda.memory_reserved() == before


@pytest.mark.parametrize(
    ("inputs", "device", "seconds"),
    [("x=f32[batch:1..16,8]", "cuda", 0.5), ("x=f32[3,4]", "cuda", 0), ("x=f32[batch:1..16,8]", "cpu", 0)],
)
def test_only_dynamic_sizes_on_cuda_are_warmed_up_by_default(inputs: str, device: str, seconds: float) -> None:
    assert default_seconds(Contract(parse_inputs([inputs]), ("y",), device)) == seconds

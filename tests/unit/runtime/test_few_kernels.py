"""Which tactics of a family are kept: few that serve all sizes."""

import pytest

from fuseconv.runtime.few_kernels import Problems, few_kernels


def sizes(**times: dict[str, float]) -> dict[str, dict[str, dict[str, float]]]:
    """Returns sizes, written s16={tactic: microseconds}."""
    return {
        size[1:]: {name: {"us": us, "noise": 0.001} for name, us in tactics.items()} for size, tactics in times.items()
    }


def names(problems: Problems) -> dict[str, list[str]]:
    """Returns the tactics of each size of the family f."""
    return {size: list(times) for size, times in problems["f"].items()}


FAMILIES = {
    "one tactic is as good at each size": (
        sizes(s8={"a": 10.0, "b": 10.1}, s16={"c": 20.0, "b": 20.1, "a": 22.0}, s32={"b": 40.0, "d": 41.0}),
        {"8": ["b"], "16": ["b"], "32": ["b"]},
    ),
    "one that is slower at a size is not enough": (
        sizes(s8={"a": 10.0, "b": 10.3}, s16={"b": 20.0, "a": 30.0}),
        {"8": ["a", "b"], "16": ["b", "a"]},
    ),
    "of two that serve all sizes, the faster one": (
        sizes(s8={"a": 10.0, "b": 10.1}, s16={"a": 20.0, "b": 20.1}),
        {"8": ["a"], "16": ["a"]},
    ),
    "what asks cuBLAS, only where it is faster by a tenth": (
        sizes(s8={"aten": 10.0, "b": 10.1}, s16={"aten": 20.0, "b": 21.0}, s32={"aten": 30.0, "b": 33.1}),
        {"8": ["b"], "16": ["b"], "32": ["aten", "b"]},
    ),
    "what asks cuBLAS is left out where others serve all sizes": (
        sizes(s8={"aten": 10.0, "b": 10.9}, s16={"aten": 20.0, "c": 20.1}),
        {"8": ["b"], "16": ["c"]},
    ),
    "what asks cuBLAS, where there is nothing else": (
        sizes(s8={"aten": 10.0}, s16={"aten": 20.0, "c": 20.1}),
        {"8": ["aten"], "16": ["c"]},
    ),
    "a family of one size has no other size to serve": (
        sizes(s8={"aten": 10.0, "a": 10.1, "b": 14.0}),
        {"8": ["aten", "a", "b"]},
    ),
    "no tactic": (sizes(s8={}, s16={"a": 1.0}), {"8": [], "16": ["a"]}),
}


@pytest.mark.parametrize("what", FAMILIES)
def test_few_tactics_serve_all_sizes(what: str) -> None:
    given, kept = FAMILIES[what]
    found = few_kernels({"f": given})
    assert names(found) == kept
    assert few_kernels(found) == found


def test_each_size_keeps_one_as_good_as_its_fastest() -> None:
    given = sizes(
        **{f"s{8 << i}": {f"t{j}": 10.0 + (i * 7 + j * 3) % 5 + 0.01 * j for j in range(6)} for i in range(8)}
    )
    for size, times in few_kernels({"f": given})["f"].items():
        fastest = min(time["us"] for time in given[size].values())
        assert min(time["us"] for time in times.values()) <= 1.02 * fastest

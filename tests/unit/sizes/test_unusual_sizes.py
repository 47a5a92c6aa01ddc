"""The sizes at which an assumption of torch.export does not hold, and those of them that artifacts are checked at."""

from fuseconv.contract.input_text import parse_inputs
from fuseconv.contract.spec import Contract
from fuseconv.sizes.unusual_sizes import Assumption, all_unusual, chosen_unusual, line_of, spread

IMAGE = Contract(parse_inputs(["x=f32[batch:1..8,3,h:4..64,w:4..64]"]), ())
ORDINARY = {"batch": 5, "h": 7, "w": 11}
HIGH = Assumption("in high", ("h",), tuple({"h": size} for size in range(8, 16)))
WIDE = Assumption("in wide", ("w",), tuple({"w": size} for size in range(4, 8)))
BOTH = Assumption("in both", ("h", "w"), ({"h": 8, "w": 8}, {"h": 16, "w": 4}))


def test_a_program_is_compared_at_each_of_them() -> None:
    found = all_unusual([HIGH, WIDE, BOTH], IMAGE)
    assert found[:8] == [{**ORDINARY, "h": size} for size in range(8, 16)]
    assert found[8:12] == [{**ORDINARY, "w": size} for size in range(4, 8)]
    assert found[12:14] == [{**ORDINARY, "h": 8, "w": 8}, {**ORDINARY, "h": 16, "w": 4}]
    assert found[14:] == [{"batch": 1, "h": 8, "w": 4}, {"batch": 5, "h": 15, "w": 7}]


def test_an_artifact_is_checked_at_both_ends_of_each() -> None:
    found = chosen_unusual([HIGH, WIDE, BOTH], IMAGE)
    ends = [(8, 11), (15, 11), (7, 4), (7, 7), (8, 8), (16, 4), (8, 4), (15, 7)]
    assert [(sizes["h"], sizes["w"]) for sizes in found] == ends
    assert all(sizes in all_unusual([HIGH, WIDE, BOTH], IMAGE) for sizes in found)


def test_none_are_chosen_twice_or_without_a_reason() -> None:
    assert chosen_unusual([], IMAGE) == all_unusual([], IMAGE) == []
    once = Assumption("", ("w",), ({"w": 4},))
    assert chosen_unusual([once, once], IMAGE) == [{**ORDINARY, "w": 4}, {"batch": 1, "h": 4, "w": 4}]


def test_the_line_of_the_assumption_that_fails_is_known() -> None:
    known = [HIGH, WIDE, BOTH]
    assert line_of(known, {"batch": 1, "h": 9, "w": 9}) == "in high"
    assert line_of(known, {"batch": 1, "h": 16, "w": 4}) == "in wide"
    assert line_of([BOTH], {"batch": 1, "h": 16, "w": 4}) == "in both"
    assert line_of(known, ORDINARY) == ""


def test_of_many_sizes_some_are_taken_at_equal_distances() -> None:
    assert spread(range(4), 4) == [0, 1, 2, 3]
    assert spread(range(101), 5) == [0, 25, 50, 75, 100]

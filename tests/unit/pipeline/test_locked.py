"""Choices that a lock records: an error points at the choice that cannot be followed."""

from __future__ import annotations

import json
import re
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from support import small_bundle

from fuseconv.bundle.tuned import Tuned
from fuseconv.errors import FrozenError
from fuseconv.matching.lock import Chosen, write_lock
from fuseconv.matching.steps import Choice, Plan
from fuseconv.pipeline.locked import check_frozen


def resolved(value: Any, pointer: str) -> Any:
    """The value at an RFC 6901 pointer."""
    keys = [key.replace("~1", "/").replace("~0", "~") for key in pointer.split("/")[1:]]
    return reduce(lambda inner, key: inner[key], keys, value)


@pytest.mark.parametrize("entry", ["model.fuseconv", "model.fuseconv/encode", "a~b/c"])
def test_an_error_points_at_the_choice(entry: str, tmp_path: Path) -> None:
    lock, name = tmp_path / "fuseconv.lock", "linear-act(x/y~z)"
    choices = {"aoti": {name: Choice(applied=False, fused_us=2, unfused_us=1, noise_us=0)}}
    chosen = Chosen(tuned=Tuned(device="a device", speeds={}), choices=choices)
    write_lock(lock, entry, {}, chosen)
    program = small_bundle.program(small_bundle.Block(fused=False))
    with pytest.raises(FrozenError, match="leaves alone a match in the target aoti that was not found") as caught:
        check_frozen(lock, entry, Plan(()), program, (), chosen)
    found = re.fullmatch(r"(.*) \((.*)\)", caught.value.where)
    assert found is not None
    assert found[1] == str(lock)
    assert resolved(json.loads(lock.read_text()), found[2])["applied"] is False

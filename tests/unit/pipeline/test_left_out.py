"""A target that cannot express the model is left out: an error only if it was named."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from fuseconv.bundle.manifest import LeftOut
from fuseconv.errors import ParityError, UnsupportedError
from fuseconv.parity.report import Report
from fuseconv.pipeline.conversion import Conversion


@pytest.mark.parametrize(
    ("cause", "by_name", "expected"),
    [
        ("unsupported", False, None),
        ("upstream", False, None),
        ("parity", False, None),
        ("plan", False, ParityError),
        ("unsupported", True, UnsupportedError),
        ("upstream", True, UnsupportedError),
        ("plan", True, ParityError),
    ],
)
def test_a_target_that_was_left_out(cause: Any, by_name: bool, expected: type[Exception] | None) -> None:
    left = LeftOut(target="onnx", cause=cause, reason="it has no kernel for Add in bf16")
    plan = cast("Any", None)  # only read with `strict`
    error = Conversion(Path("m.fuseconv"), plan, (), (left,), (), Report(()), by_name=by_name).error()
    assert (None if error is None else type(error)) is expected
    assert error is None or "onnx: it has no kernel for Add in bf16" in error.what

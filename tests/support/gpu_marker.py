"""The marker `gpu`: such a test is skipped where torch sees no GPU, unless FUSECONV_REQUIRE_GPU=1: then it fails.

A machine that is there for its GPU must not pass because its driver is broken. Without a GPU no test is collected,
since a test that takes a list of devices would leave out CUDA in silence. With one, a test of the marker that skips
itself fails, whether it lacks a library or an execution provider.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest
import torch

VARIABLE = "FUSECONV_REQUIRE_GPU"


def required() -> bool:
    """Returns what the environment says; anything but 0 and 1 is an error."""
    value = os.environ.get(VARIABLE, "0")
    if value not in {"0", "1"}:
        raise pytest.UsageError(f"{VARIABLE} is {value!r}: set it to 1, or to 0 for tests that may be skipped")
    return value == "1"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"gpu: needs a GPU; skipped where there is none, an error where {VARIABLE}=1")
    if required() and not torch.cuda.is_available():
        raise pytest.UsageError(
            f"{VARIABLE}=1, and torch {torch.__version__} sees no GPU here. Look at nvidia-smi, and install a CUDA "
            f"build of torch; or unset {VARIABLE}: the tests that need a GPU are skipped then"
        )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a GPU"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and item.get_closest_marker("gpu") and required():
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"{VARIABLE}=1, and this test was not run. {reason}"
    return report

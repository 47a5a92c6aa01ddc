"""A state in the C++ runtime stays on the GPU, with and without CUDA graphs, and has the bits of plain calls."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import generating
from support.cpp_calls import advance, assert_advanced, built_from_sources

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_from_sources(tmp_path_factory.mktemp("build"), "advance") / "advance"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("generating") / "cuda"
    generating.write_page(folder, ["aoti", "torchscript"], "cuda")
    return folder / "llama.fuseconv"


@pytest.mark.parametrize("graphs", ["off", "on", "auto"])
@pytest.mark.parametrize("targets", [("aoti", "torchscript"), ("torchscript", "aoti")], ids="-".join)
def test_a_state_on_the_gpu_is_that_of_plain_calls(
    targets: tuple[str, str], graphs: str, program: Path, bundle: Path, tmp_path: Path
) -> None:
    told = advance(program, bundle, targets, tmp_path, 20, graphs, "cuda")
    assert_advanced(told)
    if graphs != "auto":  # by itself, a graph is captured only if it pays off
        assert told["graphs"] == ("1" if graphs == "on" else "0")

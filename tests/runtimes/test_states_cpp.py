"""A state in the C++ runtime stays on the device, and has the bits of plain calls."""

from pathlib import Path

import pytest
from support.cpp_calls import advance, assert_advanced

pytestmark = [pytest.mark.compiles, pytest.mark.timeout(1200)]  # the build of the runtime, and a package


@pytest.mark.parametrize("targets", [("aoti", "torchscript"), ("torchscript", "aoti")], ids="-".join)
def test_a_state_that_is_written_in_place_is_that_of_plain_calls(
    targets: tuple[str, str], advance_program: Path, compiled_folder: Path, tmp_path: Path
) -> None:
    told = advance(advance_program, compiled_folder / "llama.fuseconv", targets, tmp_path, 6, "auto", "cpu")
    assert_advanced(told)
    assert told["graphs"] == "0"


@pytest.mark.parametrize("targets", [("onnx", "torchscript"), ("torchscript", "onnx")], ids="-".join)
def test_a_state_moves_between_libraries(
    targets: tuple[str, str], advance_program: Path, generating_folder: Path, tmp_path: Path
) -> None:
    assert_advanced(advance(advance_program, generating_folder / "llama.fuseconv", targets, tmp_path, 6, "auto", "cpu"))

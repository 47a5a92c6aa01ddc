"""Calls of the C++ runtime next to the same calls in Python."""

import os
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from fuseconv.errors import FuseconvError
from fuseconv.runtime import cpp
from fuseconv.runtime.model import load
from support import ROOT, generating
from support.calls import draw

NAMES = ("x", "skip", "keep")


INPUTS = dict(zip(NAMES, draw(3, 5), strict=True))


def assert_same_refusal(
    run_in_cpp: Callable[..., tuple[int, str, Path]], bundle: Path, target: str, tensors: Mapping[str, Tensor] = INPUTS
) -> None:
    """Python and C++ end with the same status and say the same three lines."""
    with pytest.raises(FuseconvError) as caught:
        load(bundle, target)(**tensors)
    status, text, _ = run_in_cpp(bundle, tensors, "--target", target)
    # Of a build's suffix, as in 2.13.0+cpu, LibTorch knows nothing.
    assert text == f"error: {caught.value}\n".replace(torch.__version__, torch.__version__.split("+")[0])
    assert status == caught.value.exit_status


def built_from_sources(build: Path, *targets: str) -> Path:
    """Builds programs of tests/cpp together with the runtime, against this environment's LibTorch."""
    settings = {
        "CMAKE_BUILD_TYPE": "Debug",
        "CMAKE_CXX_FLAGS_DEBUG": "-O0",
        "CMAKE_PREFIX_PATH": torch.utils.cmake_prefix_path,
        "fuseconv_DIR": ROOT / "csrc" / "runtime",
        "FUSECONV_JSON": cpp.json_headers(),
    }
    defined = [f"-D{name}={value}" for name, value in settings.items()]
    for command in (
        ["cmake", "-S", f"{ROOT}/tests/cpp", "-B", f"{build}", "-G", "Ninja", *defined],
        ["cmake", "--build", f"{build}", "--target", *targets],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return build


SAME = {"alone": "0", "last": "same", "in turns": "0", "last in turns": "same", "far": "0", "copy": "same"}
"""What tests/cpp/advance.cpp prints if a state that stays on the device is that of plain calls."""

_LINES = ("last in turns", "in turns", "changed", "graphs", "alone", "batch", "sizes", "twice", "copy", "last", "far")


def advance(
    program: Path, bundle: Path, targets: tuple[str, str], folder: Path, steps: int, graphs: str, device: str
) -> dict[str, str]:
    """Runs tests/cpp/advance.cpp with a target, and another that continues its state. Returns what it printed."""
    prompts = folder / "prompts.safetensors"
    save_file(generating.inputs_of("llama"), prompts)
    done = subprocess.run(
        [program, bundle, *targets, prompts, str(steps), graphs],
        capture_output=True,
        text=True,
        env={**os.environ, **cpp.libraries(device)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [(next(name for name in _LINES if line.startswith(name)), line) for line in done.stdout.splitlines()]
    return {name: line.removeprefix(name).strip() for name, line in lines}


def assert_advanced(told: Mapping[str, str]) -> None:
    """Checks what `advance` returned, apart from the number of graphs."""
    assert {name: told[name] for name in SAME} == SAME
    assert "changed" not in told
    assert re.fullmatch(r"2 input \w+ has batch=\d+ at axis \d+, but \w+ has \d+", told["batch"]), told["batch"]
    assert re.match(r"2 the model takes \d+ inputs .*, but the call passes ", told["twice"]), told["twice"]
    assert told["sizes"] == "2 the size of batch is missing"

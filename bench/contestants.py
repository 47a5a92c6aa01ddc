"""Who serves in bench/serving.py: bundles of fuseconv, and what users of torch or ONNX Runtime would serve instead.

A contestant is built once, into a folder of its own. Each process that is measured loads it in two steps: the first one
imports and makes what it needs on the CPU, and returns the second one, which uses the GPU and returns a function of the
inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from peers import compiler
from served import Served, cut
from source import saved
from traffic import outside

from fuseconv.pipeline.convert import convert
from fuseconv.runtime.model import load

Server = Callable[..., Any]
OURS = "fuseconv "
BUNDLE = "model.fuseconv"


@dataclass(frozen=True)
class Contestant:
    """How to build and how to load one.

    Attributes:
        folder: the name of the folder that it is built in.
        build: writes there what takes long to make.
        load: `(served, folder) -> () -> server`.
    """

    folder: str
    build: Callable[[Served, Path], None]
    load: Callable[[Served, Path], Callable[[], Server]]


def contestants(
    targets: Sequence[str], peers: Sequence[str], warm_seconds: Sequence[float | None] = (None,)
) -> dict[str, Contestant]:
    """Returns those asked for, by name.

    Our targets share one bundle. They are warmed up for each of these times, where None is what `load` does by itself.
    """
    build = partial(_bundle, tuple(targets))
    ours = {
        f"{OURS}{target}{'' if seconds is None else f', warmed {seconds:g} s'}": Contestant(
            "fuseconv", build, partial(_target, target, seconds)
        )
        for target in targets
        for seconds in warm_seconds
    }
    return ours | {name: PEERS[name] for name in peers}


def _bundle(targets: Sequence[str], served: Served, folder: Path) -> None:
    source, options = saved(served.module(), served.inputs(), served.axes, folder, served.device)
    done = convert(source, target=targets, output=folder / BUNDLE, options=options)
    assert not done.left_out, done.left_out


def _target(name: str, warm_seconds: float | None, _served: Served, folder: Path) -> Callable[[], Server]:
    return lambda: load(folder / BUNDLE, name, warm_seconds=warm_seconds)


def _nothing(_served: Served, _folder: Path) -> None:
    """Builds nothing."""


def _eager(served: Served, _folder: Path) -> Callable[[], Server]:
    module = served.module()
    return lambda: module.to(served.device)


def _compiled(served: Served, _folder: Path) -> Callable[[], Server]:
    module = served.module()
    return lambda: torch.compile(module.to(served.device), dynamic=True)


def _compile(served: Served, folder: Path) -> None:
    """Fills Inductor's cache with the program of the call that is not measured."""
    first = (one.to(served.device) for one in cut(served.inputs(), served.axes, outside(served.ranges)))
    with torch.no_grad():
        _compiled(served, folder)()(*first)


def _package(served: Served, folder: Path) -> None:
    from torch import _inductor

    options = {"cpp.cxx": (None, compiler(folder))}
    path = str(folder / "model.pt2")
    _inductor.aoti_compile_and_package(served.exported(served.device), package_path=path, inductor_configs=options)


def _packaged(_served: Served, folder: Path) -> Callable[[], Server]:
    from torch import _inductor

    return lambda: _inductor.aoti_load_package(str(folder / "model.pt2"))


def _onnx(served: Served, folder: Path) -> None:
    _providers(served.device)
    torch.onnx.export(served.exported("cpu"), (), folder / "model.onnx", dynamo=True, verbose=False, report=False)


def _providers(device: str) -> list[Any]:
    """Returns the execution providers for a device.

    Raises:
        LookupError: the installed ONNX Runtime has none.
    """
    import onnxruntime as ort

    if device == "cpu":
        return ["CPUExecutionProvider"]
    if "CUDAExecutionProvider" not in ort.get_available_providers():
        raise LookupError("this ONNX Runtime has no CUDA provider")
    ort.preload_dlls()
    return [("CUDAExecutionProvider", {"use_tf32": "0"})]


def _session(served: Served, folder: Path) -> Callable[[], Server]:
    """ONNX Runtime allocates the outputs, on the device, and waits until they are computed."""
    import onnxruntime as ort

    def start() -> Server:
        options = ort.SessionOptions()
        options.log_severity_level = 3
        session = ort.InferenceSession(str(folder / "model.onnx"), options, providers=_providers(served.device))
        taken, given = ([one.name for one in ends] for ends in (session.get_inputs(), session.get_outputs()))

        def call(*inputs: torch.Tensor) -> Any:
            binding = session.io_binding()
            for name, one in zip(taken, inputs, strict=True):
                binding.bind_ortvalue_input(name, ort.OrtValue.from_dlpack(one))
            for name in given:
                binding.bind_output(name, served.device)
            session.run_with_iobinding(binding)
            return binding.get_outputs()

        return call

    return start


PEERS = {
    "eager": Contestant("eager", _nothing, _eager),
    "compile": Contestant("compile", _compile, _compiled),
    "aoti": Contestant("aoti", _package, _packaged),
    "onnxruntime": Contestant("onnxruntime", _onnx, _session),
}
"""torch.compile and AOTInductor are as users have them, with dynamic sizes and without CUDA graphs."""

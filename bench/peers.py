"""What an artifact is measured against: the ways in which a user of torch or of ONNX Runtime would run the same model.

A builder takes a `Problem` and whether its calls are to be replayed from a CUDA graph, and returns a call without
arguments that returns the outputs. It raises whatever its tool raises: why a peer is absent is a result.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from clock import Call, captured
from torch import Tensor, nn

from fuseconv.targets import aoti as targets_aoti

GRAPH = "+graph"
"""What ends the name of a peer whose calls are replays of a CUDA graph."""


@dataclass(frozen=True)
class Problem:
    """A model and the one call of it that is timed.

    Attributes:
        module: takes the inputs by position, returns a tuple of tensors; on the device.
        inputs: on the device.
        device: `cpu` or `cuda`.
        kind: what onnxruntime.transformers' optimizer calls the model, or empty.
        scratch: a folder of its own, where what is compiled stays for the next builder.
        compiler: the C++ compiler of AOTInductor.
    """

    module: nn.Module
    inputs: tuple[Tensor, ...]
    device: str
    kind: str
    scratch: Path
    compiler: str


def eager(problem: Problem, graph: bool) -> Call:
    """The module as it is."""
    return _called(problem.module, problem, graph)


def compiled(mode: str) -> Callable[[Problem, bool], Call]:
    """Returns the builder of torch.compile; our own graphs take the place of those that a mode would make."""

    def build(problem: Problem, graph: bool) -> Call:
        return _called(torch.compile(problem.module, mode=mode, dynamic=False), problem, graph)

    return build


def channels_last(build: Callable[[Problem, bool], Call]) -> Callable[[Problem, bool], Call]:
    """Returns a builder that takes a model of images with its weights and inputs in the channels-last format."""

    def laid_out(problem: Problem, graph: bool) -> Call:
        if all(one.dim() != 4 for one in problem.inputs):
            raise LookupError("no input is a batch of images")
        module = copy.deepcopy(problem.module).to(memory_format=torch.channels_last)
        inputs = (one.to(memory_format=torch.channels_last) if one.dim() == 4 else one for one in problem.inputs)
        return build(replace(problem, module=module, inputs=tuple(inputs)), graph)

    return laid_out


def aoti(**configuration: object) -> Callable[[Problem, bool], Call]:
    """Returns the builder of a package that AOTInductor compiles with this configuration, without fuseconv."""

    def build(problem: Problem, graph: bool) -> Call:
        from torch import _inductor

        path = problem.scratch / f"{'-'.join(configuration) or 'plain'}.pt2"
        if not path.exists():
            exported = torch.export.export(problem.module, problem.inputs, strict=False)
            options = {"cpp.cxx": (None, problem.compiler), **configuration}
            _inductor.aoti_compile_and_package(exported, package_path=str(path), inductor_configs=options)
        return packaged(path, problem, graph)

    return build


def packaged(path: Path, problem: Problem, graph: bool) -> Call:
    """Returns a call of an AOTInductor package; only a single-threaded runner can be captured."""
    from torch import _inductor

    return _called(_inductor.aoti_load_package(str(path), run_single_threaded=graph), problem, graph)


def onnxruntime(*, optimized: bool) -> Callable[[Problem, bool], Call]:
    """Returns the builder of ONNX Runtime on torch's export, which onnxruntime.transformers may have optimized."""

    def build(problem: Problem, graph: bool) -> Call:
        if optimized and not problem.kind:
            raise LookupError("onnxruntime.transformers has no optimizer for such models")
        path = problem.scratch / "model.onnx"
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            torch.onnx.export(
                problem.module, problem.inputs, path, dynamo=True, external_data=True, verbose=False, report=False
            )
        return session(_optimized(path, problem) if optimized else path, problem, graph)

    return build


def _optimized(path: Path, problem: Problem) -> Path:
    from onnxruntime.transformers import optimizer

    made = path.with_name("optimized.onnx")
    if not made.exists():
        config = problem.module.model.config  # type: ignore[union-attr]
        optimizer.optimize_model(
            str(path),
            model_type=problem.kind,
            num_heads=config.num_attention_heads,
            hidden_size=config.hidden_size,
            use_gpu=problem.device == "cuda",
        ).save_model_to_file(str(made), use_external_data_format=True)
    return made


def session(path: Path, problem: Problem, graph: bool, library: Path | None = None) -> Call:
    """Binds inputs and outputs once, to memory of torch, and works on torch's stream: nothing is copied or awaited.

    Args:
        path: of the model.
        problem: what it is called with.
        graph: whether ONNX Runtime captures its work, and replays it.
        library: of the ops that the model needs besides ONNX Runtime's.
    """
    import onnxruntime as ort

    options, providers = ort.SessionOptions(), ["CPUExecutionProvider"]
    options.log_severity_level = 3
    if library is not None:
        options.register_custom_ops_library(str(library))
    run_options = ort.RunOptions()
    if problem.device == "cuda":
        ort.preload_dlls()
        stream = str(torch.cuda.current_stream().cuda_stream)
        settings = {"use_tf32": "0", "user_compute_stream": stream, "enable_cuda_graph": str(int(graph))}
        providers = [("CUDAExecutionProvider", settings)]
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        run_options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    else:
        options.intra_op_num_threads = torch.get_num_threads()
    session = ort.InferenceSession(str(path), options, providers=providers)
    outputs = tuple(torch.empty_like(one, memory_format=torch.contiguous_format) for one in _results(problem))
    binding = session.io_binding()
    held = (*(one.contiguous() for one in problem.inputs), *outputs)
    values = [ort.OrtValue.from_dlpack(one) for one in held]
    for node, value in zip(session.get_inputs(), values[: len(problem.inputs)], strict=True):
        binding.bind_ortvalue_input(node.name, value)
    for node, value in zip(session.get_outputs(), values[len(problem.inputs) :], strict=True):
        binding.bind_ortvalue_output(node.name, value)

    def call(_held: Sequence[Any] = (values, held)) -> tuple[Tensor, ...]:
        session.run_with_iobinding(binding, run_options)
        return outputs

    return call


def _results(problem: Problem) -> tuple[Tensor, ...]:
    return tuple(problem.module(*problem.inputs))


def compiler(scratch: Path) -> str:
    """Returns the C++ compiler that the target aoti uses."""
    return targets_aoti.compilers(os.environ, scratch).get("CXX", os.environ.get("CXX", "g++"))


def _called(model: Callable[..., Any], problem: Problem, graph: bool) -> Call:
    inputs = problem.inputs
    call = lambda: model(*inputs)  # noqa: E731
    return captured(call) if graph else call


PEERS: dict[str, Callable[[Problem, bool], Call]] = {
    "eager": eager,
    "eager_channels_last": channels_last(eager),
    "compile": compiled("default"),
    "compile_channels_last": channels_last(compiled("default")),
    "aoti": aoti(),
    "onnxruntime": onnxruntime(optimized=False),
    "onnxruntime_optimized": onnxruntime(optimized=True),
    "max_autotune": compiled("max-autotune-no-cudagraphs"),
    "max_autotune_channels_last": channels_last(compiled("max-autotune-no-cudagraphs")),
    "aoti_max_autotune": aoti(max_autotune=True),
}
"""The cheap ones first: a run that is short of time leaves the last."""

TIMED = ("max_autotune", "max_autotune_channels_last", "aoti_max_autotune")
"""Those that time kernels while they are built."""

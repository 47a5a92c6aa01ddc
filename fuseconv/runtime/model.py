"""Loads a bundle. Rejects damaged, incompatible or invalid bundles and inputs before anything is computed."""

from __future__ import annotations

import warnings
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fuseconv.bundle.manifest import (
    Manifest,
    check_private,
    open_bundle,
)
from fuseconv.bundle.methods import weights_folder
from fuseconv.bundle.packages import Package
from fuseconv.bundle.replaced import unreplaced
from fuseconv.contract.spec import Contract
from fuseconv.errors import FuseconvError, RefusedError, UnsupportedError, UpstreamError, UsageError
from fuseconv.ops.library import PLUGINS
from fuseconv.rulebook.packs import load_library
from fuseconv.runtime.choosing_targets import choose_target, default_target
from fuseconv.runtime.cuda_graphs import (
    Choice,
    CudaGraphs,
    ungraphed_reason,
)
from fuseconv.runtime.failed_call import explain_call, message
from fuseconv.runtime.graphed_runner import GraphedRunner
from fuseconv.runtime.packages import package_here
from fuseconv.runtime.state import OwnedState, StateRunner, next_state, zero_state
from fuseconv.runtime.warm_up import default_seconds, warm_up
from fuseconv.targets import TARGETS, Runner, onnx_session, spec_of


class Model:
    """A loaded artifact, which is called like the module that it was converted from.

    Attributes:
        contract: the declared inputs and outputs. Every call is checked against the contract.
        target: the name of the target.
        device: `cpu` or `cuda`.
        passed_over: the targets that are preferred to this one but were not compiled for this machine, with the reason.
            Empty if the target was named.
    """

    def __init__(self, contract: Contract, target: str, runner: Runner, ungraphed: str | None = None) -> None:
        self.contract = contract
        self.target = target
        self.device = contract.device
        self.passed_over: Mapping[str, str] = {}
        has_state_runner = isinstance(runner, StateRunner | GraphedRunner) or not contract.state
        self._runner = runner if has_state_runner else StateRunner(runner, contract)
        self._ungraphed = ungraphed
        self._loaded: dict[str, Any] = {}  # the load options, which `with_weights` reuses
        # The fields are named after the outputs. `rename` replaces names that are invalid in Python with numbered ones.
        outputs = namedtuple("Outputs", contract.outputs, rename=True)  # type: ignore[misc]  # noqa: PYI024
        self._pack: Callable[[tuple[torch.Tensor, ...]], Any] = (
            outputs._make if len(contract.outputs) != 1 else lambda tensors: tensors[0]
        )

    def __call__(self, *args: torch.Tensor, **kwargs: torch.Tensor) -> Any:
        """Computes the outputs without gradients, in the artifact's own dtypes. torch.autocast has no effect.

        Args:
            args: the inputs by position, in the order of the contract.
            kwargs: the inputs by name.

        Returns:
            The output, or a named tuple if the model has several outputs.

        Raises:
            ContractError: the inputs violate the contract, or the artifact failed and an index is out of range.
            UpstreamError: the artifact failed, for example because memory ran out, or a required capture in a CUDA
                graph failed.
        """
        inputs = self.contract.bind(args, kwargs)
        return self._pack(self._called(self._runner, inputs, *inputs))

    def advance(self, state: OwnedState, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        """Computes the outputs and replaces a state by the next state, without a copy where the target needs none.

        Args:
            state: the state, which is changed. No other call may use it at the same time.
            inputs: the other inputs by name.

        Returns:
            The outputs by name, without those of the state.

        Raises:
            UsageError: the model has no state.
            ContractError: the inputs or the state violate the contract.
            UpstreamError: the artifact failed, as for a call. The state is then undefined.
        """
        runner, contract = self._runner, self.contract
        if not isinstance(runner, StateRunner | GraphedRunner) or not contract.state:
            raise UsageError("the model has no state", where="advance", fix="call the model")
        tensors = contract.bind((), {**inputs, **state.tensors})
        outputs = self._called(runner.advance, tensors, state, tensors)
        state_outputs = dict(contract.state).values()
        named = zip(contract.outputs, outputs, strict=True)
        return {name: tensor for name, tensor in named if name not in state_outputs}

    def _called(self, function: Callable[..., Any], inputs: Sequence[torch.Tensor], *args: Any) -> Any:
        """Calls a function of the runner without gradients and autocast. `inputs` are named in the error."""
        grad = torch.is_grad_enabled()
        try:
            torch._C._set_grad_enabled(False)  # a microsecond faster than torch.no_grad
            if torch.is_autocast_enabled(self.device):
                with torch.autocast(self.device, enabled=False):  # artifacts are verified in their own dtypes
                    return function(*args)
            return function(*args)
        except FuseconvError:
            raise
        except Exception as error:
            raise explain_call(error, self.target, self.contract, inputs) from error
        finally:
            torch._C._set_grad_enabled(grad)

    def swap(self, bundle: str | Path) -> None:
        """Replaces the weights with the weights of a bundle that `fuseconv swap` made from the loaded bundle.

        Loads the artifact with the new weights while the old artifact stays in use, and then switches atomically: every
        call, from any thread, uses either only the old or only the new weights. During the swap, a GPU holds both
        copies. Afterwards, CUDA graphs are captured again as calls recur.

        Raises:
            UsageError: the bundle does not exist, does not have the target, or has a different contract.
            FuseconvError: the bundle does not load, as for `load`. The model is unchanged.
        """
        self.adopt(self.with_weights(bundle))

    def adopt(self, fresh: Model) -> None:
        """Takes over the weights of a model that `with_weights` returned."""
        self._runner = fresh._runner  # one atomic assignment: a call reads `_runner` once

    def with_weights(self, bundle: str | Path) -> Model:
        """Loads another bundle with the same target and options, and returns it as a new model.

        Raises:
            UsageError: the bundle does not exist, does not have the target, or has a different contract.
            FuseconvError: the bundle does not load, as for `load`.
        """
        folder = Path(bundle).absolute()
        return unreplaced(folder, lambda: self._with_weights(folder))

    def _with_weights(self, folder: Path) -> Model:
        check_signature(folder, self._loaded.get("signer"))
        manifest = open_bundle(folder)
        if manifest.contract != self.contract:
            raise UsageError(
                "the bundle has another contract than the model",
                where=str(folder),
                fix="load the bundle as another model",
            )
        chosen = choose_target(manifest, self.target, folder)
        return load_target(folder, manifest, chosen, **self._loaded)

    def zero_state(self, **sizes: int) -> dict[str, torch.Tensor]:
        """Returns the initial state: a tensor of zeros for each state input, by the input's name.

        `sizes` gives the size of each dim of the state, such as `batch=2`.

        Raises:
            UsageError: a size is missing or not allowed, or `sizes` names a dim that the state does not have.
        """
        return zero_state(self.contract, **sizes)

    def next_state(self, outputs: Any) -> dict[str, torch.Tensor]:
        """Returns the state for the next call, by input name. `outputs` is what the previous call returned."""
        return next_state(self.contract, outputs)

    def __repr__(self) -> str:
        """Shows the target, the device, the inputs and the outputs."""
        taken, given = ", ".join(map(str, self.contract.inputs)), ", ".join(self.contract.outputs)
        return f"<{self.target} on {self.device}: ({taken}) -> ({given})>"

    @property
    def cuda_graphs(self) -> CudaGraphs:
        """The shapes captured in CUDA graphs so far, the memory of the graphs, and why calls are not captured."""
        if isinstance(self._runner, GraphedRunner):
            return self._runner.status()
        return CudaGraphs((), 0, self._ungraphed)


def load(
    bundle: str | Path,
    target: str | None = None,
    device: str | None = None,
    cuda_graphs: Choice = "auto",
    cuda_graphs_memory: int | None = None,
    warm_seconds: float | None = None,
    signer: str | Path | None = None,
) -> Model:
    """Loads a bundle of one model, or one method of a bundle. Arguments and errors are those of `methods.load`.

    The caller has checked the signature of the bundle. `signer` is for the bundles that `Model.swap` loads.
    """
    folder = Path(bundle).absolute()
    options = (device, cuda_graphs, cuda_graphs_memory, warm_seconds, signer)
    model = load_chosen(folder, open_bundle(folder), target, *options)
    warn_passed_over(model)
    return model


def check_signature(folder: Path, signer: str | Path | None) -> None:
    """Checks that a signer has signed every file of a bundle, or of the bundle to which a method belongs.

    Raises the errors of `methods.load`. Does nothing if `signer` is None.
    """
    if signer is not None:
        from fuseconv.provenance.signature import verify_signature

        verify_signature(weights_folder(folder), Path(signer))


def load_chosen(folder: Path, manifest: Manifest, wanted: str | None, *options: Any) -> Model:
    """Loads the wanted target, or the default target if `wanted` is None, of a bundle that `open_bundle` has checked.

    The options and errors are those of `load_target`.
    """
    target, passed_over = (wanted, {}) if wanted is not None else default_target(manifest, folder)
    model = load_target(folder, manifest, choose_target(manifest, target, folder), *options)
    model.passed_over = passed_over
    return model


def warn_passed_over(model: Model) -> None:
    """Warns the caller of the calling function if a preferred target was passed over."""
    for name, reason in model.passed_over.items():
        text = f"{reason}; the target {model.target} is loaded instead of {name}"
        warnings.warn(text, RuntimeWarning, stacklevel=3)


def load_target(
    folder: Path,
    manifest: Manifest,
    target: str,
    device: str | None = None,
    cuda_graphs: Choice = False,
    cuda_graphs_memory: int | None = None,
    warm_seconds: float | None = 0.0,
    signer: str | Path | None = None,
) -> Model:
    """Loads one target of a bundle that `open_bundle` has checked. Arguments and errors are those of `methods.load`."""
    contract = manifest.contract
    ungraphed = ungraphed_reason(cuda_graphs, contract.device, target)
    if cuda_graphs_memory is not None and cuda_graphs_memory < 0:
        raise UsageError(
            f"cuda_graphs_memory is {cuda_graphs_memory}",
            where=f"cuda_graphs_memory={cuda_graphs_memory}",
            fix="pass a number of bytes, or None for a tenth of the free memory",
        )
    package = check_target(folder, manifest, target, device)
    load_libraries(folder, manifest, target)
    try:
        runner = TARGETS[target].load(folder / package.path, contract.device)
    except FuseconvError:
        raise
    except Exception as error:
        raise UpstreamError(
            f"the target {target} failed to load: {message(error)}",
            where=str(folder),
            fix="convert the model on this machine",
        ) from error
    in_place = manifest.in_place.get(target, ())
    pure = StateRunner(runner, contract, in_place) if contract.state else runner
    seconds = default_seconds(contract) if warm_seconds is None else warm_seconds
    if seconds > 0:
        warm_up(Model(contract, target, pure), contract, seconds)
    if ungraphed is None:
        required = cuda_graphs != "auto"
        pure = GraphedRunner(runner, contract, in_place, required=required, memory=cuda_graphs_memory)
    model = Model(contract, target, pure, ungraphed)
    model._loaded = {
        "cuda_graphs": cuda_graphs,
        "cuda_graphs_memory": cuda_graphs_memory,
        "warm_seconds": warm_seconds,
        "signer": signer,
    }
    return model


def check_target(folder: Path, manifest: Manifest, target: str, device: str | None = None) -> Package:
    """Checks whether a target can be loaded here, without loading it, and returns the artifact to load.

    Checks the device, the runtime, this machine, the op libraries and their file permissions. Raises the errors of
    `methods.load`.
    """
    contract = manifest.contract
    if device is not None and torch.device(device).type != contract.device:
        raise UnsupportedError(
            f"the bundle is for {contract.device}, not {device}",
            where=str(folder),
            fix=f"convert again with --device {torch.device(device).type}",
        )
    check_device(contract.device, folder)
    if spec_of(target).runtime == "onnxruntime":
        onnx_session.check_installed(contract.device)
    package = package_here(manifest, target, folder)
    for library in op_libraries(manifest, target):
        if not (folder / library).is_file():
            raise RefusedError(
                "the op library for ONNX Runtime is missing", where=str(folder / library), fix="copy the bundle again"
            )
    check_private(folder, package.path, op_libraries(manifest, target))
    return package


def check_device(device: str, folder: Path) -> None:
    """Checks that a CUDA device is available if `device` is `cuda`. The error names the bundle in `folder`.

    Raises:
        UpstreamError: no CUDA device is available.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise UpstreamError(
            "no CUDA device is available",
            where=str(folder),
            fix="check nvidia-smi and that torch is a CUDA build, or convert the model with --device cpu",
        )


def op_libraries(manifest: Manifest, target: str) -> tuple[str, ...]:
    """Returns the op libraries that a target calls, as paths in the bundle, in load order."""
    spec = spec_of(target)
    if spec.plugin:
        return (f"lib/{PLUGINS[manifest.contract.device]}",)
    return tuple(manifest.libraries) if spec.runtime == "torch" else ()


def load_libraries(folder: Path, manifest: Manifest, target: str) -> None:
    """Loads the op libraries that a target calls. ONNX Runtime sessions load their op libraries themselves.

    Raises:
        UnsupportedError: a library cannot be loaded, or a different version is loaded already.
    """
    if spec_of(target).runtime == "torch":
        for library in op_libraries(manifest, target):
            _load_library(folder / library)


def _load_library(path: Path) -> None:
    """Loads an op library by its absolute path. Opening the bundle has already verified the library's hash.

    Raises:
        UnsupportedError: the library cannot be loaded, or a different version is loaded already.
    """
    try:
        load_library(path)
    except (OSError, RuntimeError) as error:
        raise UnsupportedError(
            f"the op library failed to load: {error}",
            where=str(path),
            fix="use the version of fuseconv that wrote the bundle, or convert the model again",
        ) from error

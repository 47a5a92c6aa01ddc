"""Loads a bundle with one or several methods. A method of several is a model, with its own contract and target."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fuseconv.bundle.manifest import open_bundle
from fuseconv.bundle.methods import MethodsManifest, has_methods, method_folder, open_methods
from fuseconv.errors import UsageError
from fuseconv.runtime import model
from fuseconv.runtime.cuda_graphs import Choice
from fuseconv.runtime.model import Model, choose_target, load_target


class Methods:
    """A loaded bundle of several methods. Each is an attribute, called like the method that it was converted from.

    Attributes:
        methods: the models by the names of the methods.
    """

    def __init__(self, manifest: MethodsManifest, methods: Mapping[str, Model], folder: Path) -> None:
        self.methods = dict(methods)
        self._manifest = manifest
        self._folder = folder

    def __getattr__(self, name: str) -> Any:
        """Returns the model of a method."""
        methods: Mapping[str, Model] = self.__dict__.get("methods", {})
        if name not in methods:
            raise AttributeError(f"the bundle has no method {name}: it has {', '.join(methods)}")
        return methods[name]

    def __dir__(self) -> list[str]:
        """Lists the methods too."""
        return sorted({*super().__dir__(), *self.methods})

    def __call__(self, *_: Any, **__: Any) -> Any:
        """Raises UsageError: a call must name one of the methods."""
        names = list(self.methods)
        raise UsageError(
            f"the bundle has the methods {', '.join(names)}, and the call names none of them",
            where=str(self._folder),
            fix=f"call one of them, such as model.{names[0]}(...)",
        )

    def __repr__(self) -> str:
        """Shows each method with its target, device, inputs and outputs."""
        return "\n".join(f"{name}: {one!r}" for name, one in self.methods.items())

    def swap(self, bundle: str | Path) -> None:
        """Takes the weights of another bundle, as `Model.swap` does, in one method after the other.

        Raises:
            UsageError: the bundle does not exist, or has other methods, targets or contracts.
            FuseconvError: it does not load. The methods that were swapped before keep the new weights.
        """
        folder = Path(bundle).absolute()
        if not has_methods(folder) or open_methods(folder).methods != list(self.methods):
            raise UsageError(
                f"the bundle does not have the methods {', '.join(self.methods)}",
                where=str(folder),
                fix="give a bundle that `fuseconv swap` made of the one that was loaded",
            )
        for name, one in self.methods.items():
            one.swap(method_folder(folder, name))


def load(
    bundle: str | Path,
    target: str | None = None,
    device: str | None = None,
    cuda_graphs: Choice = "auto",
    cuda_graphs_memory: int | None = None,
) -> Model | Methods:
    """Loads a bundle.

    A bundle is a program: loading it runs the code of its author. The hashes detect damage, not malice.

    Args:
        bundle: the folder of the bundle, or of one of its methods.
        target: the name of a target. Default: the one that was measured fastest at conversion, if this is the
            same device; else the first of `PREFERENCE` that the bundle has.
        device: the device that the bundle must be for. Default: not checked.
        cuda_graphs: whether calls are captured in CUDA graphs, one per shape, and replayed. `auto` captures shapes of
            the targets aoti and torchscript on CUDA when they recur often enough to pay, keeps a graph only if its
            replay is faster than a direct call, and runs without CUDA graphs if a capture fails; `model.cuda_graphs`
            gives the reason. With True, every shape is captured at its first call and always replayed, and a call that
            cannot be captured is an error.
        cuda_graphs_memory: the maximum number of bytes of GPU memory that the graphs of the model hold, for each
            method. Default: a tenth of what is free when the model is loaded.

    Returns:
        The model, which is called with the inputs of the contract; or for a bundle of several methods, an object of
        which each method is an attribute.

    Raises:
        UsageError: the bundle or the target does not exist, `cuda_graphs=True` is not possible for the target, or
            `cuda_graphs_memory` is negative.
        RefusedError: the bundle is damaged, or a library in it is writable by everyone.
        UnsupportedError: the artifact was built for another device or processor, or for a newer version of torch or
            ONNX Runtime than the installed one.
        UpstreamError: no CUDA device is available, or the artifact failed to load (out of memory?).

    Examples:
        >>> model = fuseconv.load("mlp.fuseconv")
        >>> model(torch.zeros(2, 8)).shape
        torch.Size([2, 4])
    """
    folder = Path(bundle).absolute()
    if not has_methods(folder):
        return model.load(folder, target, device, cuda_graphs, cuda_graphs_memory)
    manifest = open_methods(folder)

    def loaded(method: Path) -> Model:
        own = open_bundle(method, shared=False)
        return load_target(method, own, choose_target(own, target, method), device, cuda_graphs, cuda_graphs_memory)

    return Methods(manifest, {name: loaded(method_folder(folder, name)) for name in manifest.methods}, folder)

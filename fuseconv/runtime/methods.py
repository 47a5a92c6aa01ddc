"""Loads a bundle with one or several methods. A method of several is a model, with its own contract and target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fuseconv.bundle.generation import Generation
from fuseconv.bundle.manifest import open_bundle
from fuseconv.bundle.methods import MethodsManifest, has_methods, method_folder, open_methods
from fuseconv.errors import ContractError, UsageError
from fuseconv.runtime import model
from fuseconv.runtime.choosing_tokens import Choice
from fuseconv.runtime.cuda_graphs import Choice as GraphChoice
from fuseconv.runtime.generation import generate
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

    @property
    def generation(self) -> Generation | None:
        """What `generate` knows about the model. None if the methods do not generate tokens."""
        return self._manifest.generation

    def generate(
        self,
        *,
        max_new_tokens: int = 20,
        sample: bool = False,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        eos: int | Sequence[int] | None = None,
        seed: int | None = None,
        **inputs: torch.Tensor,
    ) -> torch.Tensor:
        """Generates tokens with the methods `prefill` and `decode`, and `encode` for a model with an encoder.

        Args:
            max_new_tokens: the largest number of tokens that are added.
            sample: whether tokens are random, by their probabilities. Else the most likely token is chosen.
            temperature: the logits are divided by it before a random token is chosen.
            top_k: only so many tokens are possible, the most likely ones. Default: all.
            top_p: only the most likely tokens are possible, as few as have this probability together.
            eos: the tokens that end a sequence. Default: those of the model.
            seed: the seed of the random tokens. Default: they differ between calls.
            inputs: the inputs of the model by name, such as `input_ids` [batch, tokens], i64. Prompts of different
                lengths are padded on the left, and `attention_mask` is 0 there. For a model with an encoder,
                `decoder_input_ids` [batch, tokens] are the first tokens. Default: the start token of the model.

        Returns:
            The tokens, i64 of shape [batch, tokens]: the prompts and the new tokens; for a model with an encoder the
            start token and the new tokens. After its end, a sequence has the padding token of the model.

        Raises:
            UsageError: the bundle does not generate tokens, an option is out of range, or the cache has no room.
            ContractError: an input is missing or violates the contract.
        """
        needed = ("encode", "prefill", "decode") if self.generation and self.generation.start else ("decode",)
        if self.generation is None or (lacking := [name for name in needed if name not in self.methods]):
            said = "no methods that generate tokens" if self.generation is None else f"no method {', '.join(lacking)}"
            raise UsageError(
                f"the bundle has {said}",
                where=str(self._folder),
                fix="convert a Hugging Face folder with --method prefill --method decode, "
                "and --method encode for a model with an encoder",
            )
        first = self.methods["encode" if "encode" in needed else "decode"].contract
        main = next(spec.name for spec in first.inputs)
        taken = [main, *(name for name in ("attention_mask",) if name in first.names)]
        taken += ["decoder_input_ids"] if self.generation.start else []
        if main not in inputs or not inputs.keys() <= set(taken):
            given = ", ".join(sorted(inputs)) or "nothing"
            what = f"generate takes {', '.join(taken)}, but the call passes {given}"
            raise ContractError(what, where="the call's arguments", fix=f"pass {main}, and the others if needed")
        ends = self.generation.eos if eos is None else [eos] if isinstance(eos, int) else eos
        generator = None if seed is None else torch.Generator(first.device).manual_seed(seed)
        choice = Choice(sample, temperature, top_k, top_p, tuple(self.generation.suppress))
        return generate(
            self.methods,
            self.generation,
            inputs,
            choice,
            max_new_tokens=max_new_tokens,
            eos=tuple(ends),
            generator=generator,
        )

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
    cuda_graphs: GraphChoice = "auto",
    cuda_graphs_memory: int | None = None,
    warm_seconds: float = 0.0,
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
        warm_seconds: for about how long each method is called at sizes through the ranges of its contract, small ones
            first, before the model is returned. CUDA loads a kernel when it is first launched, and other sizes launch
            other kernels: such a call takes milliseconds longer. Default: it is not called.

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
        return model.load(folder, target, device, cuda_graphs, cuda_graphs_memory, warm_seconds)
    manifest = open_methods(folder)

    def loaded(method: Path) -> Model:
        own = open_bundle(method, shared=False)
        name = choose_target(own, target, method)
        return load_target(method, own, name, device, cuda_graphs, cuda_graphs_memory, warm_seconds)

    return Methods(manifest, {name: loaded(method_folder(folder, name)) for name in manifest.methods}, folder)

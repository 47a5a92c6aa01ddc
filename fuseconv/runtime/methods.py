"""Loads a bundle of one or several methods. Each method is loaded as a model with its own contract and target."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any

import torch

from fuseconv.bundle.generation import Generation
from fuseconv.bundle.manifest import open_bundle
from fuseconv.bundle.methods import MethodsManifest, has_methods, method_folder, open_methods
from fuseconv.bundle.replaced import unreplaced
from fuseconv.errors import ContractError, UsageError
from fuseconv.runtime.choosing_tokens import Choice
from fuseconv.runtime.cuda_graphs import Choice as GraphChoice
from fuseconv.runtime.generation import generate
from fuseconv.runtime.model import Model, check_signature, load_chosen, warn_passed_over
from fuseconv.weights.table import sharing_weights


class Methods:
    """A loaded bundle of several methods. Each method is an attribute that is called like the original method.

    Attributes:
        methods: the models by the names of the methods.
    """

    def __init__(self, manifest: MethodsManifest, methods: Mapping[str, Model], folder: Path) -> None:
        self.methods = dict(methods)
        self._manifest = manifest
        self._folder = folder
        self._swapping = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        """Returns the model of a method."""
        methods: Mapping[str, Model] = self.__dict__.get("methods", {})
        if name not in methods:
            raise AttributeError(f"the bundle has no method {name}: it has {', '.join(methods)}")
        return methods[name]

    def __dir__(self) -> list[str]:
        """Lists the attributes, including the methods."""
        return sorted({*super().__dir__(), *self.methods})

    def __call__(self, *_: Any, **__: Any) -> Any:
        """Raises UsageError: a call must name one of the methods."""
        names = list(self.methods)
        raise UsageError(
            f"the bundle has the methods {', '.join(names)}, but the call names none of them",
            where=str(self._folder),
            fix=f"call one of them, such as model.{names[0]}(...)",
        )

    def __repr__(self) -> str:
        """Shows each method with its target, device, inputs and outputs."""
        return "\n".join(f"{name}: {one!r}" for name, one in self.methods.items())

    @property
    def generation(self) -> Generation | None:
        """The model's settings for `generate`, such as its start tokens. None if the methods do not generate tokens."""
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
            max_new_tokens: the maximum number of new tokens.
            sample: whether to sample tokens by their probabilities. Otherwise the most likely token is chosen.
            temperature: the number above 0 by which the logits are divided before sampling.
            top_k: the number of most likely tokens from which to sample. Default: all tokens.
            top_p: the probability in (0, 1] that the tokens to sample from must reach in total. They are the smallest
                set of most likely tokens that reaches it. Default: all tokens.
            eos: the id of the token that ends a sequence, or several such ids. Default: the model's end tokens.
            seed: the seed for sampling. Default: torch's random state, so that the tokens differ between calls.
            inputs: the inputs of the model by name, such as `input_ids` [batch, tokens], i64. Prompts of different
                lengths must be padded on the left, with an `attention_mask` of 0 at the padding. For a model with an
                encoder, `decoder_input_ids` [batch, tokens] gives the first tokens. Default: the model's start token.

        Returns:
            The tokens, i64 of shape [batch, tokens]: the prompts followed by the new tokens; for a model with an
            encoder, the first tokens followed by the new tokens. A sequence that has ended is filled with the model's
            padding token.

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
            raise ContractError(what, where="the call's arguments", fix=f"pass {main}, and the other inputs if needed")
        ends = self.generation.eos if eos is None else [eos] if isinstance(eos, int) else eos
        generator = None if seed is None else torch.Generator(first.device).manual_seed(seed)
        choice = Choice(sample, temperature, top_k, top_p, tuple(self.generation.suppress))
        with self._swapping:
            methods = {name: copy(one) for name, one in self.methods.items()}  # with the weights that they have now
        return generate(
            methods,
            self.generation,
            inputs,
            choice,
            max_new_tokens=max_new_tokens,
            eos=tuple(ends),
            generator=generator,
        )

    def swap(self, bundle: str | Path) -> None:
        """Replaces the weights of all methods at once with the weights of another bundle.

        A call of `generate`, from any thread, uses either only the old or only the new weights.

        Raises:
            UsageError: the bundle does not exist, or has different methods, targets or contracts.
            FuseconvError: a method of the bundle does not load. Every method keeps its weights.
        """
        folder = Path(bundle).absolute()
        fresh = unreplaced(folder, lambda: self._with_weights(folder))
        with self._swapping:
            for name, one in fresh.items():
                self.methods[name].adopt(one)

    def _with_weights(self, folder: Path) -> dict[str, Model]:
        if not has_methods(folder) or open_methods(folder).methods != list(self.methods):
            raise UsageError(
                f"the bundle does not have the methods {', '.join(self.methods)}",
                where=str(folder),
                fix="give a bundle that `fuseconv swap` wrote from the loaded bundle",
            )
        with sharing_weights():
            return {name: one.with_weights(method_folder(folder, name)) for name, one in self.methods.items()}


def load(
    bundle: str | Path,
    target: str | None = None,
    device: str | None = None,
    cuda_graphs: GraphChoice = "auto",
    cuda_graphs_memory: int | None = None,
    warm_seconds: float | None = None,
    signer: str | Path | None = None,
) -> Model | Methods:
    """Loads a bundle, and returns a model that is called like the original module.

    A bundle is a program: loading it runs its author's code. The hashes in a bundle detect damage, not malice. With
    `signer`, only a bundle that this signer has signed is loaded.

    Args:
        bundle: the folder of the bundle, or of one of its methods.
        target: the name of a target. Default: the target that was measured fastest on this device, if the bundle was
            measured on it; otherwise the first target of `PREFERENCE` in the bundle. A target that was compiled only
            for other machines is passed over with a warning, and `model.passed_over` gives the reason.
        device: the device that the bundle must be for. Default: not checked.
        cuda_graphs: whether calls are captured in CUDA graphs, one per input shape, and replayed. `auto` applies to the
            targets aoti and torchscript on CUDA. It captures a shape once the shape recurs often enough to pay for the
            capture, keeps a graph only if its replay is faster than a direct call, and runs without CUDA graphs if a
            capture fails; `model.cuda_graphs` gives the reason. True captures every shape at its first call and always
            replays it; a call that cannot be captured raises an error. False captures nothing.
        cuda_graphs_memory: the maximum GPU memory of the CUDA graphs in bytes, per method. Default: a tenth of the
            memory that is free when the model is loaded.
        warm_seconds: for about how many seconds to warm up each method before returning. The warm-up calls the method
            at sizes across the ranges of its contract, small sizes first. Without it, a call at a new size can take
            milliseconds longer, because CUDA loads each kernel at its first launch. Default: 0.5 for a bundle for CUDA
            with dynamic sizes, otherwise 0, which is no warm-up.
        signer: the path of a PEM file with a public key, whose holder must have signed every file of the bundle with
            `fuseconv sign`. The signature is checked before anything of the bundle is loaded, and again by
            `model.swap` for the other bundle. Default: a signature is not checked.

    Returns:
        The model, which is called with the inputs of the contract. For a bundle of several methods, an object that has
        each method as an attribute.

    Raises:
        UsageError: the bundle or the target does not exist, `cuda_graphs=True` is not possible for the target,
            `cuda_graphs_memory` is negative, or `signer` contains no public key.
        RefusedError: the bundle is damaged, a library in it is writable by everyone, or `signer` has not signed it.
        FileError: `signer` cannot be read.
        UnsupportedError: the artifact was built for another device or processor, or for a newer version of torch or
            ONNX Runtime than the installed one.
        UpstreamError: the bundle requires a CUDA device but none is available, or the artifact failed to load, for
            example because memory ran out; or the packages for `signer` are not installed.

    Examples:
        >>> model = fuseconv.load("mlp.fuseconv")
        >>> model(torch.zeros(2, 8)).shape
        torch.Size([2, 4])
    """
    folder = Path(bundle).absolute()
    how = (target, device, cuda_graphs, cuda_graphs_memory, warm_seconds, signer)
    loaded = unreplaced(folder, lambda: _load(folder, *how))
    for one in loaded.methods.values() if isinstance(loaded, Methods) else (loaded,):
        warn_passed_over(one)
    return loaded


def _load(folder: Path, target: str | None, *how: Any) -> Model | Methods:
    check_signature(folder, how[-1])
    if not has_methods(folder):
        return load_chosen(folder, open_bundle(folder), target, *how)
    manifest = open_methods(folder)
    with sharing_weights():
        methods = {
            name: load_chosen(own := method_folder(folder, name), open_bundle(own, shared=False), target, *how)
            for name in manifest.methods
        }
    return Methods(manifest, methods, folder)

"""Defines `Subject`, a model that is ready to be captured, and prepares models of all formats alike."""

from __future__ import annotations

import hashlib
import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import torch
from torch.nn import Module

from fuseconv.contract.inputs import (
    apply_ranges,
    contract_of,
    draw,
    example_sizes,
    from_file,
    torch_dtype,
)
from fuseconv.contract.options import FLOATS, Options
from fuseconv.contract.spec import Contract, TensorSpec
from fuseconv.errors import FileError, UsageError
from fuseconv.program.calling import call_of, parameters_named
from fuseconv.untrusted import hub
from fuseconv.untrusted.files import open_plain
from fuseconv.untrusted.hub import Snapshot
from fuseconv.untrusted.plain_tensors import check_plain_tensors

logger = logging.getLogger("fuseconv")


@dataclass(frozen=True)
class Subject:
    """A model that is ready to be captured, with its inputs.

    Attributes:
        module: the module in eval mode, on the device of the contract.
        examples: one tensor per contract input, positional.
        contract: the inputs. Outputs are named during capture.
        call: for each input, its keyword, or "" if the input is positional. () if all inputs are positional.
        source: the format: pt2, torchscript, pickle, state-dict or huggingface.
        sha256: the hash of the source file or folder, as `digest` returns it.
        original: the model from which `module` was made, and with which the program is compared. None if this is
            `module` itself.
        drawn: whether the examples are random.
        snapshot: the files on a hub from which the model was read. None if the user gave a local path.
    """

    module: Module
    examples: tuple[torch.Tensor, ...]
    contract: Contract
    call: tuple[str, ...]
    source: str
    sha256: str
    original: Module | None = None
    drawn: bool = False
    snapshot: Snapshot | None = None


@dataclass(frozen=True)
class Loaded:
    """A model as read from its files, before `prepare` determines its final inputs.

    Attributes:
        module: the module to export.
        inputs: the specs that the format provides, or ().
        examples: a tensor for each of these specs, or ().
        call: the keywords of these inputs, or () if they are positional.
        parameters: the positional parameter names of a program. If empty, the signature of `forward` is used.
        by_keyword: whether inputs must have the names of parameters, because `forward` has many optional ones.
        original: the user's callable, if it is not `module` itself but the object from which `module` was made.
        state: pairs of an input and the output that is its value in the next call.
    """

    module: Module
    inputs: tuple[TensorSpec, ...] = ()
    examples: tuple[torch.Tensor, ...] = ()
    call: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    by_keyword: bool = False
    original: Module | None = None
    state: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Settled:
    """The final inputs of a model. The command line takes precedence over an inputs file, and this over the format.

    Attributes:
        contract: the declared inputs.
        examples: one tensor per input, on the device of the contract.
        call: for each input, its keyword, or "" if the input is positional. () if all inputs are positional.
        drawn: whether the examples are random.
    """

    contract: Contract
    examples: tuple[torch.Tensor, ...]
    call: tuple[str, ...]
    drawn: bool


def prepare(loaded: Loaded, source: str, path: Path, options: Options) -> Subject:
    """Puts a model in eval mode, converts it to the requested dtype and device, and determines its inputs.

    Raises:
        UsageError: the inputs are missing or do not match the module.
    """
    module = loaded.module
    check_plain_tensors(dict(chain(module.named_parameters(), module.named_buffers())), str(path))
    training = any(part.training for part in module.modules())
    try:
        module.eval()
    except NotImplementedError:  # an exported program rejects eval(); `capture` checks its ops instead
        for part in module.modules():
            part.training = False
    else:
        if training:
            logger.info("%s: the model was saved in training mode; fuseconv converts it in eval mode", path)
    module = module.requires_grad_(requires_grad=False)
    if options.dtype is not None:
        module = CASTS[options.dtype](module)
    settled = settle(loaded, path, options)
    settled.contract.bind(settled.examples, {})
    module = module.to(options.device)
    sha256 = digest(path)
    return Subject(
        module, settled.examples, settled.contract, settled.call, source, sha256, loaded.original, settled.drawn
    )


CASTS: Mapping[str, Callable[[Module], Module]] = {
    "f64": Module.double,
    "f32": Module.float,
    "f16": Module.half,
    "bf16": Module.bfloat16,
}
"""Casts the real floating-point weights of a module. `Module.to` would also take the real parts of complex weights."""


def settle(loaded: Loaded, path: Path, options: Options) -> Settled:
    """Determines the inputs of a model, and generates random tensors if no examples are given.

    Raises:
        UsageError: the inputs are not specified or do not match `forward`.
    """
    specs, examples, call = options.inputs, loaded.examples, loaded.call
    if options.inputs_file is not None:
        tensors = from_file(options.inputs_file, Contract(specs, (), "cpu") if specs else None)
        specs, examples = specs or contract_of(tensors), tuple(tensors.values())
        call = keywords(loaded, specs, path, in_order=bool(options.inputs))
    elif specs:
        examples, call = (), keywords(loaded, specs, path)
    elif loaded.inputs:
        specs = loaded.inputs
    else:
        raise UsageError(
            "the model's inputs are not specified",
            where=str(path),
            fix=f"its forward takes ({', '.join(one.name for one in parameters(loaded))}): specify each input with "
            "--input 'NAME=DTYPE[DIM,...]', or give a file of tensors with --inputs",
        )
    if loaded.parameters and call:  # a program, which takes inputs only by position
        places = sorted(range(len(call)), key=lambda place: loaded.parameters.index(call[place]))
        specs, call = tuple(specs[place] for place in places), ()
        examples = tuple(examples[place] for place in places) if examples else ()
    if options.dtype is not None:
        specs = tuple(replace(spec, dtype=options.dtype) if spec.dtype in FLOATS else spec for spec in specs)
    specs = apply_ranges(specs, options.input_ranges)
    contract = Contract(specs, (), options.device, state=tuple(options.state.items()) or loaded.state)
    given = examples or draw(contract, example_sizes(contract), seed=0)
    converted = tuple(
        example.detach().to(options.device, torch_dtype(spec.dtype)) for example, spec in zip(given, specs, strict=True)
    )
    return Settled(contract, converted, call, drawn=not examples)


def keywords(loaded: Loaded, specs: tuple[TensorSpec, ...], path: Path, *, in_order: bool = True) -> tuple[str, ...]:
    """Returns the keyword of each input in a call of `forward`, or "" if the input is positional.

    `calling.call_of` describes the result and `in_order`.

    Raises:
        UsageError: `forward` does not accept these inputs.
    """
    names = [spec.name for spec in specs]
    return call_of(names, parameters(loaded), str(path), by_keyword=loaded.by_keyword, in_order=in_order)


def parameters(loaded: Loaded) -> tuple[inspect.Parameter, ...]:
    """Returns the parameters of the model's `forward`."""
    if loaded.parameters:
        return parameters_named(loaded.parameters)
    return tuple(inspect.signature(loaded.module.forward).parameters.values())


def digest(path: Path) -> str:
    """Returns the sha256 of a file or folder, as hexadecimal digits.

    The hash of a folder covers the relative path and the content of each file, in the order of the paths. Of a model on
    a hub, only the data is hashed, because other programs may have downloaded further files to the same folder.

    Raises:
        FileError: a file cannot be read.
    """
    total, on_hub = hashlib.sha256(), hub.reference(path) is not None
    path = hub.local(path)
    try:
        if path.is_file():
            with open_plain(path) as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        for part in sorted(part for part in path.rglob("*") if part.is_file()):
            name = part.relative_to(path).as_posix()
            if on_hub and not hub.is_data(name):
                continue
            with open_plain(part) as file:
                total.update(name.encode() + b"\0")
                total.update(hashlib.file_digest(file, "sha256").digest())
    except OSError as error:
        what = f"the source cannot be read: {error.strerror}"
        raise FileError(what, where=str(path), fix="check the path and its read permission") from error
    return total.hexdigest()

"""Small models, and every form they can be saved in. A plain module: it is also what `--model` names in the tests."""

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor, nn

from fuseconv.contract.input_text import parse_inputs
from fuseconv.contract.spec import TensorSpec
from fuseconv.sources import Options
from fuseconv.sources.subject import Subject


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.norm = nn.LayerNorm(8)
        self.last = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.nn.functional.gelu(self.norm(self.first(x))))


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 5)

    def forward(self, image: Tensor) -> Tensor:
        features = torch.relu(self.norm(self.stem(image)))
        return self.head(features.mean((2, 3)))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.embed(ids))


def broken() -> NoReturn:
    raise ValueError("no weights here")


def not_a_module() -> int:
    return 3


INPUTS: dict[type[nn.Module], tuple[TensorSpec, ...]] = {
    Perceptron: parse_inputs(["x=f32[batch:1..64,4]"]),
    Convolution: parse_inputs(["image=f32[batch:1..64,3,height:4..32,width:4..32]"]),
    Tied: parse_inputs(["ids=i64[batch:1..8,seq:1..9]"]),
}

Saved = dict[tuple[type[nn.Module], str], Path]
"""The file of each model in each form of SAVERS."""

Made = TypeVar("Made", bound=nn.Module)


def made(model_class: Callable[[], Made]) -> Made:
    torch.manual_seed(0)
    model = model_class()
    for buffer in model.buffers():
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 1.5)
    return model.eval()


def export(model: nn.Module, specs: tuple[TensorSpec, ...]) -> torch.export.ExportedProgram:
    from fuseconv.contract.inputs import draw, example_sizes
    from fuseconv.contract.spec import Contract

    contract = Contract(specs, ())
    dims = {name: torch.export.Dim(name, min=dim.min, max=dim.max) for name, dim in contract.dims().items()}
    shapes = tuple(
        {axis: dims[size.name] for axis, size in enumerate(spec.shape) if hasattr(size, "name")} for spec in specs
    )
    return torch.export.export(model, draw(contract, example_sizes(contract), seed=0), dynamic_shapes=shapes)


def save_archive(exported: torch.export.ExportedProgram, path: Path) -> None:
    """Through a file object: torch.export.save complains of any path that does not end in .pt2."""
    with path.open("wb+") as file:
        torch.export.save(exported, file)


def save_safetensors(model: nn.Module, path: Path) -> None:
    from safetensors.torch import save_model

    save_model(model, path)


SAVERS: dict[str, Callable[[Any, Path], None]] = {
    "pt2": lambda model, path: save_archive(export(model, INPUTS[type(model)]), path),
    "traced": lambda model, path: torch.jit.save(torch.jit.trace(model, example(model)), path),
    "scripted": lambda model, path: torch.jit.save(torch.jit.script(model), path),
    "pickle": torch.save,
    "old pickle": lambda model, path: torch.save(model, path, _use_new_zipfile_serialization=False),
    "state dict": lambda model, path: torch.save(model.state_dict(), path),
    "nested state dict": lambda model, path: torch.save({"epoch": 3, "state_dict": model.state_dict()}, path),
    "old state dict": lambda model, path: torch.save(model.state_dict(), path, _use_new_zipfile_serialization=False),
    "safetensors": save_safetensors,
}
"""How to save a model in each form: (model, path)."""

FORMS = {
    "pt2": "pt2",
    "traced": "torchscript",
    "scripted": "torchscript",
    "pickle": "pickle",
    "old pickle": "pickle",
}
"""What `sniff` says of each; `state-dict` of the others."""

TRUST: dict[str, set[str]] = {
    "torchscript": {"torchscript"},
    "pickle": {"pickle"},
    "state-dict": {"code"},
    "pt2": set(),
}


def options_for(model_class: type[nn.Module], form: str, **changes: Any) -> Options:
    """Returns what `read` must be told of a saved model."""
    from fuseconv.sources import Options

    source = FORMS.get(form, "state-dict")
    arguments: dict[str, Any] = {"trust": frozenset(TRUST[source])}
    if source != "pt2":
        arguments["inputs"] = INPUTS[model_class]
    if source == "state-dict":
        arguments["model"] = f"{__file__}:{model_class.__name__}"
    return Options(**{**arguments, **changes})


def run(subject: Subject) -> list[Tensor]:
    """Returns the tensors that the subject's module gives for its examples, flat."""
    with torch.no_grad():
        call = dict(zip(subject.call, subject.examples, strict=True)) if subject.call else {}
        output = subject.module(**call) if call else subject.module(*subject.examples)
    return [leaf for leaf in torch.utils._pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)]


def example(model: nn.Module) -> tuple[Tensor, ...]:
    from fuseconv.contract.inputs import draw, example_sizes
    from fuseconv.contract.spec import Contract

    contract = Contract(INPUTS[type(model)], ())
    return draw(contract, example_sizes(contract), seed=1)


class Payload:
    """Writes a file when it is unpickled."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.proof),)


def edit_zip(path: Path, edit: Callable[[dict[str, bytes]], object]) -> None:
    """Rewrites a zip: `edit` takes {name without root: bytes} and changes it."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    root = next(iter(members)).partition("/")[0] + "/"
    members = {name.removeprefix(root): data for name, data in members.items()}
    edit(members)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(root + name, data)


def edit_program(change: Callable[[Any], object]) -> Callable[[dict[str, bytes]], None]:
    """Returns an edit of the serialized graph in a .pt2."""

    def edit(members: dict[str, bytes]) -> None:
        program = json.loads(members["models/model.json"])
        change(program)
        members["models/model.json"] = json.dumps(program).encode()

    return edit

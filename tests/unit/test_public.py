"""The public names, and that `help` of each shows its arguments, results and errors."""

import dataclasses
import doctest
import inspect
import pydoc
import re
import subprocess
import sys
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support import ROOT

import fuseconv
from fuseconv import errors, nn, ops, ray
from fuseconv.ops.description import DTYPES
from fuseconv.sources import Options

FUNCTIONS = [
    fuseconv.convert_methods,
    fuseconv.convert,
    fuseconv.verify,
    fuseconv.blame,
    fuseconv.load,
    fuseconv.fuse,
    fuseconv.tune,
    fuseconv.add,
]
OPS = sorted(path.stem for path in (ROOT / "csrc" / "ops").glob("*.h"))
NAMES = {
    fuseconv: sorted(
        [
            *(function.__name__ for function in FUNCTIONS),
            *("__version__", "compiled_graphs", "dynamo_backend", "errors", "nn", "ops", "ray"),
        ]
    ),
    errors: [
        "ContractError",
        "FileError",
        "FrozenError",
        "FuseconvError",
        "ParityError",
        "RefusedError",
        "RuleError",
        "SlowerError",
        "UnsupportedError",
        "UpstreamError",
        "UsageError",
    ],
    ray: ["Predictor"],
    nn: ["MLP", "AddLayerNorm", "LinearAct", "LinearGated"],
    ops: sorted([*OPS, "ACTIVATIONS", "NAMESPACE", "OPS", "Op", "Sample", "gelu_with_dropout", "library_paths"]),
}
PAGES = "\n".join(path.read_text() for path in sorted((ROOT / "docs" / "api").glob("*.md")))


@pytest.mark.parametrize("module", NAMES, ids=lambda module: module.__name__)
def test_the_public_names(module: types.ModuleType) -> None:
    assert sorted(module.__all__) == sorted(NAMES[module])
    for name in module.__all__:
        assert getattr(module, name) is not None
    assert set(module.__all__) <= set(dir(module))


def test_dir_lists_what_was_not_imported_yet() -> None:
    code = """import fuseconv, sys
print("torch" in sys.modules, {name for name in dir(fuseconv) if name[:2] != "__"} ^ set(fuseconv.__all__))"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False {'__version__'}\n"


def test_every_error_is_public() -> None:
    defined = {name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)}
    assert defined == set(errors.__all__)


def sections(text: str | None) -> dict[str, str]:
    """The sections of a docstring in Google's style: title to text."""
    assert text is not None
    parts = re.split(r"^(\w+):\n", inspect.cleandoc(text), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize(
    "function", [*FUNCTIONS, fuseconv.dynamo_backend, ops.gelu_with_dropout], ids=lambda function: function.__name__
)
def test_a_function_says_what_it_takes(function: Callable[..., Any]) -> None:
    documented = re.findall(r"^    (\w+):", sections(function.__doc__)["Args"], re.MULTILINE)
    assert documented == list(inspect.signature(function).parameters)
    assert "Raises" in sections(function.__doc__)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_a_function_says_what_it_returns(function: Callable[..., Any]) -> None:
    assert {"Returns", "Examples"} <= sections(function.__doc__).keys()


def test_the_fields_of_options_are_documented() -> None:
    documented = re.findall(r"^    (\w+):", sections(Options.__doc__)["Attributes"], re.MULTILINE)
    assert documented == [field.name for field in dataclasses.fields(Options)]


def classes_of(hint: Any) -> Iterator[type]:
    """The classes of fuseconv in a type."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is not None:
        for inner in typing.get_args(hint):
            yield from classes_of(inner)
    elif inspect.isclass(hint) and hint.__module__.startswith("fuseconv."):
        yield hint


def public_classes() -> list[type]:
    """The classes of fuseconv in the signatures of the public functions, in the fields of these classes, and so on."""
    found: set[type] = set()
    hints = [hint for function in FUNCTIONS for hint in typing.get_type_hints(function).values()]
    while hints:
        for one in set(classes_of(hints.pop())) - found:
            found.add(one)
            hints += [hint for name, hint in typing.get_type_hints(one).items() if not name.startswith("_")]
    return sorted(found, key=lambda one: one.__qualname__)


@pytest.mark.parametrize("one", public_classes(), ids=lambda one: one.__name__)
def test_a_class_that_a_public_function_takes_or_gives_is_in_the_reference(one: type) -> None:
    assert one.__doc__
    home = "fuseconv.sources" if one is Options else one.__module__
    assert re.search(rf"^::: {home}\.{one.__name__}$", PAGES, re.MULTILINE)


def test_every_public_function_takes_or_gives_a_documented_class() -> None:
    for function in FUNCTIONS:
        assert any(any(classes_of(hint)) for hint in typing.get_type_hints(function).values()), function


@pytest.mark.parametrize(
    "name",
    [
        "convert",
        "verify",
        "load",
        "fuse",
        "dynamo_backend",
        "compiled_graphs",
        *(f"nn.{name}" for name in nn.__all__),
        "ray.Predictor",
        "errors",
    ],
)
def test_a_public_name_is_in_the_reference(name: str) -> None:
    assert re.search(rf"^::: fuseconv\.{name}$", PAGES, re.MULTILINE)


def run_examples(*documented: object) -> None:
    """Runs the examples in the docstring of each object, and fails if one of them has none."""
    runner = doctest.DocTestRunner()
    for one in documented:
        (found,) = doctest.DocTestFinder(recurse=False).find(one, globs={"fuseconv": fuseconv, "torch": torch})
        assert found.examples
        assert runner.run(found).failed == 0


def test_the_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)).eval()
    torch.save(model, "mlp.pt")
    torch.export.save(torch.export.export(model, (torch.randn(2, 8),)), "mlp.pt2")
    # What convert writes, verify, load and the predictor read.
    run_examples(*FUNCTIONS, fuseconv.dynamo_backend, fuseconv.compiled_graphs, ray.Predictor)


@pytest.mark.parametrize("name", nn.__all__)
def test_the_examples_of_a_module(name: str) -> None:
    run_examples(getattr(nn, name))


@pytest.mark.parametrize("name", OPS)
def test_the_examples_of_an_op(name: str) -> None:
    run_examples(getattr(ops, name).reference)


def test_the_examples_of_gelu_with_dropout() -> None:
    run_examples(ops.gelu_with_dropout)


@pytest.mark.parametrize("name", nn.__all__)
def test_a_module_says_what_it_takes(name: str) -> None:
    assert {"Shape", "Raises", "Examples"} <= sections(getattr(nn, name).__doc__).keys()


@pytest.mark.parametrize("name", OPS)
def test_an_op_has_the_signature_of_its_schema(name: str) -> None:
    op = getattr(ops, name)
    schema, parameters = op.overload._schema, inspect.signature(op).parameters
    assert list(parameters) == [argument.name for argument in schema.arguments]
    for argument in schema.arguments:
        default = parameters[argument.name].default
        assert argument.has_default_value() == (default is not inspect.Parameter.empty)
        assert not argument.has_default_value() or argument.default_value == default
    returned = inspect.signature(op).return_annotation
    assert len(typing.get_args(returned) or (returned,)) == len(schema.returns)


@pytest.mark.parametrize("name", OPS)
def test_help_describes_an_op(name: str) -> None:
    op = getattr(ops, name)
    text = pydoc.plain(pydoc.render_doc(op))
    assert f"{name}(" in text
    described = inspect.getdoc(op.reference)
    assert described is not None
    for line in described.splitlines():
        assert line in text
    for title in ("Dtypes", "Autocast", "Raises", "Defined in"):
        assert f"    {title}:\n" in text
    assert all(str(dtype).removeprefix("torch.") in text for dtype in DTYPES)
    said = " ".join(text.split())
    for sample in op.errors("cpu"):
        assert re.search(sample.matches, said), sample.name
    for path in re.findall(r"\S+\.(?:py|h)\b", text.partition("Defined in:")[2]):
        assert (ROOT / path).is_file()


@pytest.mark.parametrize("name", OPS)
def test_the_docstring_of_an_op_says_which_shapes_it_takes(name: str) -> None:
    said = sections(getattr(ops, name).reference.__doc__)
    assert re.findall(r"^    (\w+):", said["Args"], re.MULTILINE) == list(
        inspect.signature(getattr(ops, name)).parameters
    )
    assert {"Returns", "Examples"} <= said.keys()
    assert re.search(r"\[.*\]|of any shape", said["Args"])


def test_the_class_of_ops_keeps_its_own_docstring() -> None:
    assert str(ops.Op.__doc__).startswith("An op of the library")

"""Valid sources of a kind that is not supported: the right class of error, never a bug in fuseconv."""

from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.saved_models import edit_program, edit_zip

import fuseconv
from fuseconv import sources
from fuseconv.contract.input_text import parse_inputs
from fuseconv.contract.inputs import from_file
from fuseconv.errors import FuseconvError, RefusedError, UnsupportedError, UsageError
from fuseconv.sources import Options
from fuseconv.untrusted.plain_tensors import check_plain_tensors, oddity

TRUSTED = Options(inputs=parse_inputs(("x=f32[2,3]",)), trust=frozenset({"pickle"}))

ODD: dict[str, tuple[Callable[[], torch.Tensor], str]] = {
    "meta": (lambda: torch.empty(3, device="meta"), "is on the meta device: it has a shape but no values"),
    "sparse": (lambda: torch.eye(3).to_sparse(), "is sparse coo, not strided"),
    "compressed rows": (lambda: torch.eye(3).to_sparse_csr(), "is sparse csr, not strided"),
    "quantized": (lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), "is quantized"),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "is nested"),
    "mkldnn": (lambda: torch.ones(3).to_mkldnn(), "is mkldnn, not strided"),
    "not initialized": (torch.nn.UninitializedBuffer, "is not initialized: its module was never called"),
}
SAVED = sorted(set(ODD) - {"mkldnn", "not initialized"})
"""Those that torch.save takes."""

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state:UserWarning"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*quantize_per_tensor.*"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated:UserWarning"),
]


@pytest.mark.parametrize("name", ODD)
def test_what_is_not_plain_numbers_is_named(name: str) -> None:
    make, words = ODD[name]
    assert oddity(make()) == words
    with pytest.raises(UnsupportedError, match=r"^part.weight is ") as caught:
        check_plain_tensors({"fine": torch.ones(3), "part.weight": make()}, "model.pt")
    assert caught.value.where == "model.pt"


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "complex64", "bool", "int8", "float8_e4m3fn"])
def test_plain_numbers_are_plain(dtype: str) -> None:
    tensor = torch.ones(4, 6).to(getattr(torch, dtype))
    for one in (tensor, tensor.t(), tensor[::2], tensor[:0], tensor[0, 0], torch.nn.Parameter(tensor, False)):
        assert oddity(one) == ""


@pytest.mark.parametrize("name", SAVED)
def test_a_source_of_odd_tensors_is_not_supported(name: str, tmp_path: Path) -> None:
    module = torch.nn.Linear(3, 3)
    module.register_buffer("odd", ODD[name][0]())
    torch.save(module, tmp_path / "module.pt")
    with pytest.raises(UnsupportedError, match=r"^odd is "):
        sources.read(tmp_path / "module.pt", options=TRUSTED)
    torch.save({"x": ODD[name][0]()}, tmp_path / "inputs.pt")
    with pytest.raises(FuseconvError, match=r"^x is |it contains other objects") as caught:
        from_file(tmp_path / "inputs.pt")
    assert caught.value.exit_status in (3, 4)


def test_a_module_that_was_never_called(tmp_path: Path) -> None:
    torch.save(torch.nn.LazyLinear(3), tmp_path / "lazy.pt")
    with pytest.raises(UnsupportedError, match=r"^weight is not initialized"):
        sources.read(tmp_path / "lazy.pt", options=TRUSTED)


@pytest.mark.parametrize("gone", ["class", "module"])
def test_a_pickle_of_a_class_that_is_not_here(gone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = types.ModuleType("module_of_a_test")
    module.Gone = type("Gone", (torch.nn.Module,), {"__module__": "module_of_a_test"})
    monkeypatch.setitem(sys.modules, "module_of_a_test", module)
    torch.save(module.Gone(), tmp_path / "gone.pt")
    if gone == "class":
        del module.Gone
    else:
        monkeypatch.delitem(sys.modules, "module_of_a_test")
    with pytest.raises(
        UnsupportedError, match=r"needs classes that cannot be imported here: .*(Gone|module_of_a_test)"
    ) as caught:
        sources.read(tmp_path / "gone.pt", options=TRUSTED)
    assert "PYTHONPATH" in caught.value.fix


def test_a_pickle_of_a_class_of_the_script_that_saved_it(tmp_path: Path) -> None:
    code = "import sys, torch\nclass Own(torch.nn.Linear): pass\ntorch.save(Own(2, 3), sys.argv[1])\n"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "own.pt")], check=True)
    with pytest.raises(UnsupportedError, match=r"classes of the script that saved it: __main__\.Own\n") as caught:
        sources.read(tmp_path / "own.pt", options=TRUSTED)
    assert "--model script.py:CLASS" in caught.value.fix


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("archive") / "model.pt2"
    torch.export.save(torch.export.export(torch.nn.Linear(3, 3), (torch.ones(2, 3),)), path)
    return path.read_bytes()


VERSIONS: dict[str, tuple[Callable[[dict[str, Any]], object], type[FuseconvError]]] = {
    "a newer schema": (lambda program: program["schema_version"].update(major=99), UnsupportedError),
    "an older schema": (lambda program: program["schema_version"].update(major=1), UnsupportedError),
    "no schema": (lambda program: program.pop("schema_version"), RefusedError),
    "a schema that is none": (lambda program: program.update(schema_version=[8]), RefusedError),
    "nothing": (lambda program: program.clear(), RefusedError),
}


@pytest.mark.parametrize("name", VERSIONS)
def test_an_archive_of_another_version(name: str, archive: bytes, tmp_path: Path) -> None:
    change, error = VERSIONS[name]
    path = tmp_path / "model.pt2"
    path.write_bytes(archive)
    edit_zip(path, edit_program(change))
    with pytest.raises(error, match="schema") as caught:
        sources.read(path)
    assert caught.value.fix


def test_an_artifact_of_a_bundle_has_no_weights(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(2, 2), tmp_path / "layer.pt")
    inputs = parse_inputs(["x=f32[n:1..4,2]"])
    fuseconv.convert(
        tmp_path / "layer.pt", target=["export"], options=Options(inputs=inputs, trust=frozenset({"pickle"}))
    )
    with pytest.raises(UsageError, match="an artifact of a bundle") as caught:
        sources.read(tmp_path / "layer.fuseconv" / "export" / "model.pt2")
    assert "fuseconv materialize" in caught.value.fix

"""The options of `convert` with several methods: plans, the lock, and what is written."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.autoencoder import INPUTS, Autoencoder, options, save

import fuseconv
from fuseconv import cli
from fuseconv.bundle.methods import method_folder
from fuseconv.errors import FrozenError, UsageError
from fuseconv.matching.lock import read_lock
from fuseconv.pipeline.methods import match_methods
from fuseconv.runtime.methods import Methods
from fuseconv.sources import Options
from fuseconv.weights.table import Table

METHODS = {name: options(name, inputs) for name, inputs in INPUTS.items()}
BOTH = ("auto.fuseconv/decode", "auto.fuseconv/encode")


def converted(folder: Path, methods: dict[str, Options] = METHODS, **how: Any) -> Path:
    how = {"target": ["export"], "output": folder / "auto.fuseconv", **how}
    return fuseconv.convert_methods(save(folder), methods, **how).bundle


def outputs(bundle: Path) -> tuple[torch.Tensor, torch.Tensor]:
    model = fuseconv.load(bundle)
    assert isinstance(model, Methods)
    return model.encode(torch.ones(3, 8)), model.decode(torch.ones(2, 16))


pytestmark = pytest.mark.compiles


@pytest.fixture(scope="module")
def expected() -> tuple[torch.Tensor, torch.Tensor]:
    module = Autoencoder()
    with torch.no_grad():
        return module.encode(torch.ones(3, 8)), module.decode(torch.ones(2, 16))


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a bundle, and of the lock that was written with it."""
    folder = tmp_path_factory.mktemp("locked")
    converted(folder, lock=folder / "fuseconv.lock")
    return folder


def test_the_lock_has_an_entry_per_method(locked: Path, tmp_path: Path) -> None:
    lock = read_lock(locked / "fuseconv.lock")
    assert tuple(lock.bundles) == BOTH
    assert [list(lock.bundles[entry]) for entry in BOTH] == [["linear-act"], ["mlp"]]
    path = tmp_path / "fuseconv.lock"
    path.write_bytes((locked / "fuseconv.lock").read_bytes())
    converted(tmp_path, {"encode": METHODS["encode"]}, lock=path)  # the method that is gone leaves no entry
    converted(tmp_path, {"decode": METHODS["decode"]}, lock=path, output=tmp_path / "other.fuseconv")
    assert tuple(read_lock(path).bundles) == ("auto.fuseconv/encode", "other.fuseconv/decode")


def test_a_frozen_conversion_finds_the_matches_of_every_method(
    locked: Path, expected: tuple[torch.Tensor, torch.Tensor], tmp_path: Path
) -> None:
    lock = locked / "fuseconv.lock"
    before = lock.read_bytes()
    torch.testing.assert_close(outputs(converted(tmp_path, frozen=lock)), expected)
    assert lock.read_bytes() == before
    assert (
        match_methods(save(tmp_path), METHODS, output=tmp_path / "auto.fuseconv", frozen=lock).keys() == INPUTS.keys()
    )


def _lose(lock: dict[str, Any]) -> None:
    rule = next(iter(lock["bundles"][BOTH[0]]))
    lock["bundles"][BOTH[0]][rule]["."] = 9


def _forget(lock: dict[str, Any]) -> None:
    del lock["bundles"][BOTH[0]]


def _add(lock: dict[str, Any]) -> None:
    lock["bundles"]["auto.fuseconv/third"] = {}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_lose, r"the matches differ from the lock: 8 lost"),
        (_forget, "the lock has no entry for auto.fuseconv/decode"),
        (_add, "the lock has the method third, which is not converted"),
    ],
)
def test_another_lock_is_an_error_before_anything_is_written(
    change: Callable[[dict[str, Any]], None], said: str, locked: Path, tmp_path: Path
) -> None:
    value, path = json.loads((locked / "fuseconv.lock").read_text()), tmp_path / "fuseconv.lock"
    change(value)
    path.write_text(json.dumps(value))
    for run in (
        lambda: converted(tmp_path, frozen=path),
        lambda: match_methods(save(tmp_path), METHODS, output=tmp_path / "auto.fuseconv", frozen=path),
    ):
        with pytest.raises(FrozenError, match=said):
            run()
    assert not (tmp_path / "auto.fuseconv").exists()


def test_the_plan_of_a_method_is_executed(
    locked: Path, expected: tuple[torch.Tensor, torch.Tensor], tmp_path: Path
) -> None:
    own = json.loads((method_folder(locked / "auto.fuseconv", "decode") / "plan.json").read_text())
    for step in own["steps"]:
        step["apply"] = False
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(own))
    bundle = converted(tmp_path, plan={"decode": path})
    fused = {
        name: "fuseconv" in str(torch.export.load(method_folder(bundle, name) / "export/model.pt2").graph)
        for name in INPUTS
    }
    assert fused == {"encode": True, "decode": False}
    torch.testing.assert_close(outputs(bundle), expected)
    with pytest.raises(UsageError, match="there is a plan for forward, which is no method"):
        converted(tmp_path, plan={"forward": path})


def test_artifacts_of_methods_may_contain_their_weights(
    expected: tuple[torch.Tensor, torch.Tensor], tmp_path: Path
) -> None:
    bundle = converted(tmp_path, target=["export", "torchscript", "onnx"], self_contained=["torchscript", "onnx"])
    for name in INPUTS:
        folder = method_folder(bundle, name)
        assert Table.of(folder / "torchscript/model.pt") is None
        assert Table.of(folder / "export/model.pt2") is not None
    for target in ("export", "torchscript", "onnx"):
        model = fuseconv.load(bundle, target=target)
        torch.testing.assert_close(model.encode(torch.ones(3, 8)), expected[0])  # type: ignore[union-attr]


def test_the_same_bytes_again(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        converted(tmp_path / name, reproducible=True)
    files = [
        {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        for folder in (tmp_path / "one/auto.fuseconv", tmp_path / "two/auto.fuseconv")
    ]
    assert files[0] == files[1]


def test_the_command_prints_the_fusions_of_each_method_and_writes_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], locked: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    module = options("encode", INPUTS["encode"]).model
    words = ["convert", str(save(tmp_path)), "--model", str(module), "--trust", "code", "--target", "export"]
    words += [word for name, text in INPUTS.items() for word in ("--method", name, "--input", f"{name}:{text}")]
    words += ["-o", "auto.fuseconv"]
    plan = ("--plan", str(locked / "auto.fuseconv/methods"))
    assert cli.main([*words, *plan, "--dry-run", "--strict"]) == 0
    out = capsys.readouterr().out
    assert out.index("encode") < out.index("mlp") < out.index("decode") < out.index("linear-act")
    assert cli.main([*words, "--dry-run", "--frozen", "--json"]) == 6
    assert "there is no fuseconv.lock" in json.loads(capsys.readouterr().out)["error"]["message"]
    assert cli.main([*words, *plan, "--lock", "--json"]) == 0
    capsys.readouterr()
    assert cli.main([*words, "--dry-run", "--frozen", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["result"]["methods"].keys() == INPUTS.keys()
    assert all(one["fusions"] for one in record["result"]["methods"].values())

"""What `tune` does with a bundle. What is measured is given, because a CPU has no tactics."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fuseconv.bundle.manifest import open_bundle, read_manifest, seal
from fuseconv.errors import FileError, RefusedError, UnsupportedError
from fuseconv.pipeline.convert import convert
from fuseconv.pipeline.tactics import tune
from fuseconv.runtime import tactics

FAMILY = "gpu; linear"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tactics")
    torch.export.save(torch.export.export(nn.Linear(4, 4), (torch.randn(2, 4),)), folder / "model.pt2")
    return convert(folder / "model.pt2", target=["export"]).bundle


@pytest.fixture
def bundle(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "model.fuseconv"))


@pytest.fixture
def measures(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the bundle one that has tactics, and lets a test say what happens while they are measured."""

    def given(us: float = 2.0, meanwhile: Any = lambda: None) -> None:
        def measure(*_: object, **__: object) -> tactics.Measured:
            meanwhile()
            return tactics.Measured({FAMILY: {"16": {"a": {"us": us, "noise": 0.0}}}}, {"export": 1}, {"export": 0})

        monkeypatch.setattr(tactics, "has_tactics", lambda *_: True)
        monkeypatch.setattr(tactics, "measure", measure)

    return given


def test_the_bundle_has_what_was_measured_and_the_old_files_are_unchanged(bundle: Path, measures: Any) -> None:
    before = open_bundle(bundle).files
    with (bundle / "manifest.json").open() as old:
        measures()
        tuned = tune(bundle)
        assert set(json.load(old)["files"]) == set(before)
    after = open_bundle(bundle).files
    assert set(after) - set(before) == {"tuning.json"}
    assert {name: after[name] for name in before} == before
    assert tactics.read(bundle / "tuning.json") == tuned.measured.problems
    assert [path.name for path in bundle.parent.iterdir()] == [bundle.name]


def test_a_link_to_a_bundle_stays_one(bundle: Path, measures: Any) -> None:
    link = bundle.with_name("current")
    link.symlink_to(bundle.name)
    measures()
    tune(link)
    assert link.is_symlink()
    assert (bundle / "tuning.json").is_file()


def test_a_bundle_that_is_written_again_meanwhile_is_not_mixed_with_the_old_one(bundle: Path, measures: Any) -> None:
    def write_again() -> None:
        (bundle / "plan.json").write_text((bundle / "plan.json").read_text() + "\n")
        seal(bundle, read_manifest(bundle).model_copy(update={"fuseconv": "another"}))

    measures(meanwhile=write_again)
    tune(bundle)
    assert open_bundle(bundle).fuseconv == "another"


def test_changes_are_told(bundle: Path, measures: Any) -> None:
    tactics.write(
        bundle / "tuning.json", {FAMILY: {"16": {"b": {"us": 1.0, "noise": 0.6}, "a": {"us": 9.0, "noise": 0.6}}}}
    )
    seal(bundle, read_manifest(bundle))
    measures()
    tuned = tune(bundle)
    assert (tuned.changed, tuned.ties) == ((f"{FAMILY} at 16",), ())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[" * 100_000,
        '{"format": "fuseconv tuning 1", "problems": []}',
        '{"format": "fuseconv tuning 1", "problems": {"f": {"16": {"a": {"us": NaN, "noise": 0}}}}}',
        '{"format": "fuseconv tuning 1", "problems": {"f": {"16": {"a": {"us": "1", "noise": 0}}}}}',
        '{"format": "fuseconv tuning 1", "problems": {"f": {"16": {"a": 1}}}}',
        '{"format": "fuseconv tuning 1", "problems": {"f": {"x": {}}}}',
        '{"format": "fuseconv tuning 1", "problems": {"f": [1]}}',
    ],
)
def test_a_damaged_file_is_refused_before_anything_is_measured(bundle: Path, measures: Any, text: str) -> None:
    (bundle / "tuning.json").write_text(text)
    seal(bundle, read_manifest(bundle))
    measures(meanwhile=lambda: pytest.fail("it was measured"))
    with pytest.raises(RefusedError, match=r"tuning\.json cannot be read"):
        tune(bundle)


def test_a_read_only_bundle_is_refused_before_anything_is_measured(
    bundle: Path, measures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    measures(meanwhile=lambda: pytest.fail("it was measured"))
    # Not by its mode, because root may write everywhere.
    monkeypatch.setattr("os.access", lambda path, _: Path(path).name != "export")
    with pytest.raises(FileError, match="read-only"):
        tune(bundle)


def test_a_bundle_for_the_cpu_has_nothing_to_measure(bundle: Path) -> None:
    with pytest.raises(UnsupportedError, match="the bundle is for cpu"):
        tune(bundle)

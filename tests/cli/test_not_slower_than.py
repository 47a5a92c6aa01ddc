"""`convert --not-slower-than`: a bundle that is slower than the original model is not written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.sleepy import write_model

from fuseconv import cli
from fuseconv.errors import SlowerError, UsageError
from fuseconv.measure import peers
from fuseconv.measure.ways import peers_of
from fuseconv.pipeline.convert import convert
from fuseconv.sources import Options

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sleep of 20 ms is seen in a few pairs."""
    monkeypatch.setattr(peers, "SECONDS", 0.3)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gate") / "model.pt2"
    write_model(path)
    return path


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(model: Path, sleepy_rules: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Converts without tuning, so that the op that sleeps stays in unless its rule is left out."""
    words = ["convert", str(model), "--rules", str(sleepy_rules), "--trust", "code", "--tune", "none"]

    def converted(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        status = cli.main([*words, "-o", str(tmp_path / "out"), *arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return converted


def test_a_bundle_that_loses_is_not_written(run: Run, tmp_path: Path) -> None:
    arguments = ("--target", "export", "--target", "torchscript", "--not-slower-than", "eager")
    status, out, err = run(*arguments)
    assert status == SlowerError.exit_status == 1
    header, row = (line.split() for line in out.splitlines()[:2])
    assert header == ["target", "peer", "us", "peer", "us", "ratio", "interval"]
    assert row[0] in {"export", "torchscript"}
    assert (row[1], row[-1]) == ("eager", "slower")
    assert "error: the bundle is slower than eager: " in err
    assert list(tmp_path.iterdir()) == []


def test_the_error_has_the_rows_and_the_output_stays(model: Path, sleepy_rules: Path, tmp_path: Path) -> None:
    output, lock = tmp_path / "out", tmp_path / "fuseconv.lock"
    wanted: dict[str, Any] = {"rules": sleepy_rules, "target": ["export"], "output": output}
    trusted = Options(trust=frozenset({"code"}))
    before = convert(model, without=["lerp-relu"], options=trusted, **wanted)
    manifest = (output / "manifest.json").read_bytes()
    with pytest.raises(SlowerError) as caught:
        convert(model, options=trusted, lock=lock, not_slower_than=["eager"], **wanted)
    assert (output / "manifest.json").read_bytes() == manifest
    assert not lock.exists()
    (row,) = caught.value.rows
    assert (row.target, row.peer, row.loses) == ("export", "eager", True)
    assert row.us > row.peer_us
    assert before.peers == ()


def test_a_good_bundle_is_written_and_has_the_times(run: Run, tmp_path: Path) -> None:
    arguments = ("--no-rule", "lerp-relu", "--target", "torchscript", "--not-slower-than", "eager", "--json")
    status, out, err = run(*arguments)
    assert status == 0, err
    (row,) = json.loads(out)["result"]["peers"]
    assert (row["target"], row["peer"], row["loses"]) == ("torchscript", "eager", False)
    assert 0 < row["low"] < row["ratio"] < row["high"]
    assert (tmp_path / "out" / "manifest.json").is_file()


@pytest.mark.compiles
def test_json_has_the_rows_of_a_bundle_that_loses_to_the_unfused_program(run: Run) -> None:
    status, out, _ = run("--target", "export", "--not-slower-than", "aoti", "--json")
    record = json.loads(out)
    assert (status, record["ok"], record["error"]["code"]) == (1, False, "slower")
    (row,) = record["result"]["peers"]
    assert (row["peer"], row["loses"]) == ("aoti", True)


@pytest.mark.usefixtures("own_server")
def test_a_peer_that_cannot_be_run_is_an_error(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "no-compiler"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    status, _, err = run("--target", "export", "--not-slower-than", "compile")
    assert status == 5
    assert "the peer compile cannot be timed: the original model failed: " in err
    assert not (tmp_path / "out").exists()


REFUSED = {
    "no such peer": (["--not-slower-than", "eager,tensorrt"], "unknown peer 'tensorrt'"),
    "nothing is written": (["--not-slower-than", "eager", "--dry-run"], "--dry-run writes no bundle"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_timed_is_refused(name: str, model: Path, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, words = REFUSED[name]
    if "--dry-run" in arguments:  # it refuses --tune too
        capsys.readouterr()
        status = cli.main(["convert", str(model), *arguments])
        err = capsys.readouterr().err
    else:
        status, _, err = run(*arguments)
    assert status == UsageError.exit_status
    assert words in err


@pytest.mark.parametrize(
    ("wanted", "expected"), [((), ()), (("aoti", "eager", "aoti"), ("aoti", "eager"))], ids=["none", "twice"]
)
def test_peers_are_timed_once(wanted: tuple[str, ...], expected: tuple[str, ...]) -> None:
    assert peers_of(wanted) == expected

"""Lists of models: what they may say, what is made again, and what becomes of conversions that fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fuseconv import cli
from fuseconv.errors import FileError, FuseconvError, UnsupportedError, UpstreamError, UsageError
from fuseconv.many import conversion, output
from fuseconv.many.attempt import Task, attempt
from fuseconv.many.conversion import Children, How
from fuseconv.many.fingerprint import environment, fingerprint
from fuseconv.many.listing import Entry, read_listing
from fuseconv.many.output import finished, held, publish, stage
from fuseconv.many.pool import Pool
from fuseconv.many.row import Row
from fuseconv.many.run import convert_many

KNOWN = ("target", "bucket", "rules", "strict", "no-rule")


class Scale(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x * 2)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("many") / "scale.pt2"
    torch.export.save(torch.export.export(Scale(), (torch.ones(2, 3),)), path)
    return path


def test_a_list(tmp_path: Path) -> None:
    (tmp_path / "rules.json").write_text("{}")
    (tmp_path / "list.yaml").write_text(
        """
        options: {target: "torchscript,export", strict: true, rules: rules.json}
        models:
          - a.pt2
          - {model: /models/b, name: b-32, bucket: "batch=1,8,32", strict: false, no-rule: [x, y]}
        """
    )
    (tmp_path / "a.pt2").touch()
    first, second = read_listing(tmp_path / "list.yaml", KNOWN)
    rules = str(tmp_path / "rules.json")
    shared = ["--target", "torchscript,export", "--strict", "--rules", rules]
    assert (first.name, first.model, first.words()) == ("a", tmp_path / "a.pt2", shared)
    assert (second.name, second.model) == ("b-32", Path("/models/b"))
    more = ["--bucket", "batch=1,8,32", "--no-rule", "x", "--no-rule", "y"]
    assert second.words() == [*shared[:2], *shared[3:], *more]


def test_a_folder(tmp_path: Path) -> None:
    for name in ("b.pt2", "a.safetensors", "notes.txt", "hub/config.json", "other/x.pt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [(entry.name, entry.model.name) for entry in read_listing(tmp_path, KNOWN)] == [
        ("a", "a.safetensors"),
        ("b", "b.pt2"),
        ("hub", "hub"),
    ]


WRONG = {
    "nothing": ("", "but no other keys"),
    "no mapping": ("- a", "but no other keys"),
    "no list": ("models: a", "but no other keys"),
    "no models": ("models: []", "there are no models"),
    "another key": ("{models: [a], jobs: 3}", "but no other keys"),
    "not YAML": ("models: [", "not valid YAML"),
    "an object of Python": ("models: !!python/object/apply:os.system [id]", "not valid YAML"),
    "a number": ("models: [3]", "a model must be a path"),
    "no path": ("models: [{name: a}]", "a model must be a path"),
    "an unknown option": ("models: [{model: a, targets: export}]", "unknown option targets"),
    "an option of a single run": ("{models: [a], options: {output: x}}", "unknown option output"),
    "a number as an option": ("models: [{model: a, target: 3}]", "target must be a text"),
    "no options": ("{models: [a], options: [x]}", "must be a mapping"),
    "a name twice": ("models: [a, {model: b, name: a}]", "two models have the name a"),
    "a path as a name": ("models: [{model: b, name: ../a}]", "cannot be the name"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_list(case: str, tmp_path: Path) -> None:
    text, said = WRONG[case]
    path = tmp_path / "list.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=said) as caught:
        read_listing(path, KNOWN)
    assert str(path) in caught.value.where
    assert caught.value.fix


def test_finished_bundles_are_kept_and_a_model_that_fails_stops_no_other(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listing, out = tmp_path / "list.yaml", tmp_path / "out"

    def run(text: str, *words: str) -> tuple[int, list[Row], str]:
        listing.write_text(text)
        capsys.readouterr()
        status = cli.main(["convert-many", str(listing), "-o", str(out), "--json", *words])
        captured = capsys.readouterr()
        rows = json.loads(captured.out)["result"]["rows"]
        return status, [Row(**{**row, "targets": tuple(row["targets"])}) for row in rows], captured.err

    both = f"{{options: {{target: export}}, models: [absent.pt2, {model}]}}"
    status, (absent, made), said = run(both)
    assert (status, absent.status, absent.exit_status, made.status) == (1, "failed", 6, "made")
    assert (made.targets, made.tries, made.max_abs) == (("export",), 1, 0.0)
    assert "scale  made" in said
    assert "absent  failed  0.0 s: " in said
    manifest = (out / "scale.fuseconv" / "manifest.json").read_bytes()
    assert json.loads((out / "scale.json").read_text())["fingerprint"] == made.fingerprint
    page = (out / "index.html").read_text()
    assert "2 models, 1 failed" in page
    assert 'href="scale.json"' in page

    status, (kept,), _ = run(f"{{options: {{target: export}}, models: [{model}]}}")
    assert (status, kept.status, kept.seconds) == (0, "kept", made.seconds)
    assert (out / "scale.fuseconv" / "manifest.json").read_bytes() == manifest

    entry = Entry("scale", model, {"target": "export"})
    assert finished(out, "scale", made.fingerprint) is not None
    for other in (Entry("scale", model, {"target": "onnx"}), Entry("scale", model, {})):
        assert fingerprint(other, {}) != made.fingerprint
    assert fingerprint(entry, {}) == made.fingerprint
    assert fingerprint(entry, {"strict": True}) != made.fingerprint
    (out / "scale.fuseconv" / "manifest.json").write_text("{}")
    assert finished(out, "scale", made.fingerprint) is None


ENDINGS: dict[str, tuple[str, int, int, str]] = {
    "a tool fails": ("sys.exit(5)", 3, 5, "exit status 5"),
    "a bug": ("print('trace', file=sys.stderr); sys.exit(7)", 3, 7, "trace"),
    "a signal": ("os.kill(os.getpid(), 9)", 3, -9, "SIGKILL"),
    "nothing is said": ("sys.exit(0)", 3, 7, "exit status 7"),
    "a wrong option": ("sys.exit(2)", 1, 2, "exit status 2"),
    "too slow": ("import time; time.sleep(60)", 3, -9, "took more than 0.3 s"),
}


@pytest.mark.parametrize("case", ENDINGS)
def test_a_conversion_is_tried_again_if_that_may_help(
    case: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, tries, status, said = ENDINGS[case]
    monkeypatch.setattr(conversion, "COMMAND", (sys.executable, "-ISc", f"import os, sys; {code}"))
    (row,) = convert_many([Entry("a", model, {})], tmp_path, Pool(), How(tries=3, limit=0.3))
    assert (row.status, row.tries, row.exit_status) == ("failed", tries, status)
    assert said in row.error


def test_an_interrupt_leaves_no_child(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sleep = "import time, pathlib, sys; time.sleep(0.2 if sys.argv[3].endswith('first') else 60)"
    monkeypatch.setattr(conversion, "COMMAND", (sys.executable, "-ISc", sleep))
    entries = [Entry(name, model.with_name(name), {}) for name in ("first", "second", "third")]
    for entry in entries:
        entry.model.touch()

    def interrupted(row: Row) -> None:
        raise KeyboardInterrupt

    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        convert_many(entries, tmp_path, Pool(2), How(), interrupted)
    assert time.monotonic() - begun < 30


def test_one_run_at_a_time_holds_a_folder_and_removes_what_killed_runs_left(tmp_path: Path) -> None:
    with held(tmp_path) as run:
        assert run.is_dir()
        with pytest.raises(UsageError, match="another convert-many"), held(tmp_path):
            pass
        left = run.parent / "left"
        (left / "a-1" / "a.fuseconv").mkdir(parents=True)
    with held(tmp_path) as run:
        assert sorted(run.parent.iterdir()) == sorted([run, run.parent / "lock"])
    assert [path.name for path in (tmp_path / ".convert-many").iterdir()] == ["lock"]


def staged(folder: Path, run: Path, text: str) -> Row:
    """A bundle in the folder of a run, as an attempt leaves it there."""
    made = folder / "scratch" / "a.fuseconv"
    made.mkdir(parents=True)
    (made / "manifest.json").write_text(json.dumps({"format": "fuseconv bundle", "text": text}, separators=(",", ":")))
    return replace(stage(Row("a", "a.pt2", "made", bundle=str(made)), run), fingerprint=text)


def test_a_bundle_replaces_an_older_one_and_an_attempt_that_was_given_up_changes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with held(out) as run:
        first, given_up, second = (staged(tmp_path, run, text) for text in ("first", "given up", "second"))
        assert list(out.glob("*.fuseconv")) == []
        row = publish(first, out)
        assert row.bundle == str(out / "a.fuseconv")
        assert finished(out, "a", "first") == replace(row, status="kept")
        publish(second, out)
        assert (finished(out, "a", "first"), finished(out, "a", "given up")) == (None, None)
        assert finished(out, "a", "second") is not None
    assert not Path(given_up.bundle).exists()
    with pytest.raises(FileError, match="cannot be moved to the output folder"):
        staged(tmp_path, run, "of a run that has ended")
    assert sorted(path.name for path in out.iterdir()) == [".convert-many", "a.fuseconv", "a.json"]


def killed(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_run_that_is_killed_before_it_moves_a_bundle_makes_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with held(out) as run:
        publish(staged(tmp_path, run, "first"), out)
        second = staged(tmp_path, run, "second")
        monkeypatch.setattr(output, "put", killed)
        with pytest.raises(KeyboardInterrupt):
            publish(second, out)
    assert (finished(out, "a", "first"), finished(out, "a", "second")) == (None, None)
    assert json.loads((out / "a.fuseconv" / "manifest.json").read_text())["text"] == "first"


def test_a_folder_that_is_no_bundle_is_not_replaced(model: Path, tmp_path: Path) -> None:
    (tmp_path / "a.fuseconv").mkdir()
    (tmp_path / "a.fuseconv" / "notes.txt").touch()
    (row,) = convert_many([Entry("a", model, {})], tmp_path, Pool(), How())
    assert (row.status, row.exit_status, row.tries) == ("failed", UsageError.exit_status, 0)
    assert "is not a bundle" in row.error
    assert (tmp_path / "a.fuseconv" / "notes.txt").exists()


OTHER_NODES: dict[str, tuple[dict[str, Any], type[FuseconvError], str]] = {
    "no output folder": ({"run": Path("/absent/run")}, FileError, "node b does not see the folder"),
    "no project": ({"how": How(project=Path("/absent/project"))}, FileError, "node b does not see the folder"),
    "another torch": (
        {"environment": {**environment(), "torch": "1.0"}},
        UnsupportedError,
        f"torch {torch.__version__.replace('+', '.')} instead of 1.0",
    ),
}


@pytest.mark.parametrize("case", OTHER_NODES)
def test_a_node_that_would_lose_a_bundle_or_make_another_stops_the_run(case: str, model: Path, tmp_path: Path) -> None:
    changed, kind, said = OTHER_NODES[case]
    task = replace(Task(Entry("a", model, {}), tmp_path, tmp_path, How(), environment()), **changed)
    with pytest.raises(kind, match=said) as caught:
        attempt(task, Children(), "b")
    assert caught.value.fix


def is_running(process: int) -> bool:
    """Whether a process has not ended: one that has, but is not waited for, has no command line."""
    try:
        return bool(Path(f"/proc/{process}/cmdline").read_bytes())
    except FileNotFoundError:
        return False


def test_a_child_ends_with_its_parent(tmp_path: Path) -> None:
    started = tmp_path / "started"
    child = f"import os, time; open({str(started)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    bound = f"import os, sys; from fuseconv.processes.lifetime import end_with; end_with(int(sys.argv[1])); {child}"
    parent = f"import os, subprocess, sys; subprocess.run([sys.executable, '-c', {bound!r}, str(os.getpid())])"
    with subprocess.Popen([sys.executable, "-c", parent]) as process:
        until = time.monotonic() + 30
        while not (started.exists() and started.read_text()):
            assert time.monotonic() < until
            time.sleep(0.05)
        process.kill()
    while is_running(int(started.read_text())):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_child_does_not_start_without_its_parent() -> None:
    command = [sys.executable, "-m", "fuseconv.many.child", "1", "--version"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "the parent process has ended\n")
    command[3] = str(os.getpid())
    assert "fuseconv" in subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_ray_is_an_extra(model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "fuseconv.many.on_ray", raising=False)
    words = ["convert-many", str(model.parent), "-o", "out"]
    assert cli.main([*words, "--ray", "local"]) == UpstreamError.exit_status
    said = capsys.readouterr().err
    assert "error: the package ray is not installed" in said
    assert "fix: pip install 'fuseconv[ray]'" in said
    assert cli.main([*words, "--gpus", "1"]) == UsageError.exit_status
    assert "--cpus and --gpus apply only to Ray" in capsys.readouterr().err

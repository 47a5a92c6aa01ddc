"""Streams that are closed, full or have no reader: each command ends with the right exit status."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support import ROOT

from fuseconv import cli
from fuseconv.commands import streams
from fuseconv.errors import on_one_line, printable

# ---- from outside ----

COMMANDS = {
    "help": ["--help"],
    "text": ["rules", "list"],
    "json": ["rules", "list", "--json"],
    "an error": ["rules", "show", "absent"],
}
FINE = dict.fromkeys(COMMANDS, 0) | {"an error": 2}
UNWRITTEN = {**dict.fromkeys(COMMANDS, 6), "an error": 2}
UNREAD = {**dict.fromkeys(COMMANDS, 141), "an error": 2}
# Of a stdout that is not there click says nothing.
CLOSED = {**UNWRITTEN, "help": 0}

SHELL = {
    "as usual": ("{}", FINE),
    "stdout full": ("{} > /dev/full", UNWRITTEN),
    "stdout closed": ("{} >&-", CLOSED),
    "stderr full": ("{} 2> /dev/full", FINE),
    "stderr closed": ("{} 2>&-", FINE),
    "stdin closed": ("{} <&-", FINE),
    "all closed": ("{} <&- >&- 2>&-", CLOSED),
    "nobody reads": ("{} | exec 0<&-; exit ${{PIPESTATUS[0]}}", UNREAD),
    "ascii": ("LC_ALL=C PYTHONUTF8=0 PYTHONIOENCODING=ascii {}", FINE),
}


def shell(script: str, arguments: list[str], folder: Path = ROOT) -> subprocess.CompletedProcess[bytes]:
    # The reader is gone before a word is written.
    command = f"{sys.executable} -c 'import sys, time; time.sleep({0.3 if '|' in script else 0}); {MAIN}' " + " ".join(
        arguments
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(["bash", "-c", script.format(command)], cwd=folder, env=environment, capture_output=True)


MAIN = "from fuseconv.cli import main; sys.exit(main())"


@pytest.mark.diagonal(3)
@pytest.mark.parametrize("fault", SHELL)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_stream_that_fails_is_an_error_of_files(command: str, fault: str) -> None:
    script, expected = SHELL[fault]
    done = shell(script, COMMANDS[command])
    assert done.returncode == expected[command], done.stderr
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr
    if expected is UNWRITTEN and done.returncode == 6:
        assert b"error: " in done.stderr
        assert b"fix: " in done.stderr


@pytest.mark.parametrize("fault", ["stdout full", "nobody reads"])
@pytest.mark.parametrize("shown", ["--version", "completion"])
def test_what_click_prints_is_written_or_an_error(shown: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if shown == "completion":
        monkeypatch.setenv("_FUSECONV_COMPLETE", "bash_source")
    done = shell(SHELL[fault][0], ["--version"])
    assert done.returncode == (6 if fault == "stdout full" else 141), done.stderr
    assert (b"error: " in done.stderr) == (fault == "stdout full")
    assert b"Traceback" not in done.stderr


def test_a_working_directory_that_is_gone(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    done = shell(f"rmdir {gone}; {{}}", ["rules", "list"], gone)
    assert done.returncode == 6
    assert b"the working directory no longer exists" in done.stderr


def test_a_closed_stream_does_not_lend_its_number_to_a_file(tmp_path: Path) -> None:
    """Else a library that prints would write into the first file that is opened."""
    code = (
        "import os, sys; from fuseconv.commands import streams; streams.prepare();"
        f"file = open({str(tmp_path / 'x')!r}, 'wb'); os.write(1, b'printed'); sys.exit(file.fileno() < 3)"
    )
    done = subprocess.run(["bash", "-c", f'{sys.executable} -c "$0" >&- <&- 2>&-', code], cwd=ROOT)
    assert done.returncode == 0
    assert (tmp_path / "x").read_bytes() == b""


# ---- from inside, the commands that take a model ----


class Scale(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x * 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("streams")
    torch.export.save(torch.export.export(Scale(), (torch.ones(2, 3),)), folder / "scale.pt2")
    assert cli.main(["convert", str(folder / "scale.pt2"), "--target", "export"]) == 0
    return folder


DONE = {
    "inspect": ["inspect", "{}/scale.pt2"],
    "inspect a bundle": ["inspect", "{}/scale.fuseconv"],
    "explain": ["explain", "{}/scale.pt2"],
    "match": ["match", "{}/scale.pt2", "-o", "{}/plan.json"],
    "convert": ["convert", "{}/scale.pt2", "--target", "export", "-o", "{}/again.fuseconv"],
    "verify": ["verify", "{}/scale.fuseconv"],
    "doctor": ["doctor", "{}/scale.fuseconv"],
}


@pytest.mark.parametrize("command", ["match", "run"])
def test_an_output_file_that_is_full(command: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"x": torch.ones(2, 3)}, folder / "x.pt")
    words = {"match": ["{}/scale.pt2"], "run": ["{}/scale.fuseconv", "--inputs", "{}/x.pt"]}[command]
    assert cli.main([command, *(word.format(folder) for word in words), "-o", "/dev/full", "-q"]) == 6
    said = capsys.readouterr()
    assert said.out == ""
    assert "cannot be written: No space left on device\n  at: /dev/full\n  fix: free disk space" in said.err


class Failing(io.StringIO):
    """A stream whose writes fail."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self.error = error

    def write(self, text: str) -> int:
        if text:
            raise self.error
        return 0

    def fileno(self) -> int:
        return os.open(os.devnull, os.O_WRONLY)


FAILING = {"full": (OSError(28, "No space left on device"), 6), "unread": (BrokenPipeError(32, "Broken pipe"), 141)}


@pytest.mark.parametrize("fault", FAILING)
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
@pytest.mark.parametrize("command", DONE)
def test_every_command_says_the_same_of_its_output(
    command: str,
    as_json: bool,
    fault: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    error, expected = FAILING[fault]
    monkeypatch.setattr(sys, "stdout", Failing(error))
    arguments = [word.format(folder) for word in DONE[command]] + ["--json"] * as_json
    assert cli.main(arguments) == expected
    assert ("cannot be written" in capsys.readouterr().err) == (fault == "full")


def test_progress_that_cannot_be_shown_stops_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stderr", Failing(OSError(28, "No space left on device")))
    assert cli.main(["explain", str(folder / "scale.pt2")]) == 0


@pytest.mark.parametrize("model", ["/dev/stdin", "/proc/self/fd/0"])
def test_a_model_from_a_stream_has_no_place_beside_it(
    model: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with (folder / "scale.pt2").open("rb") as file:
        kept = os.dup(0)
        os.dup2(file.fileno(), 0)
        try:
            assert cli.main(["convert", model, "--target", "export"]) == 2
            assert "-o FOLDER" in capsys.readouterr().err
            assert cli.main(["convert", model, "--target", "export", "-o", str(folder / "streamed.fuseconv")]) == 0
        finally:
            os.dup2(kept, 0)
            os.close(kept)


def test_a_model_from_a_pipe_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    reader, writer = os.pipe()
    kept = os.dup(0)
    os.dup2(reader, 0)
    try:
        assert cli.main(["inspect", "/dev/stdin"]) == 6
        assert "it is a pipe" in capsys.readouterr().err
    finally:
        os.dup2(kept, 0)
        for descriptor in (kept, reader, writer):
            os.close(descriptor)


# ---- what code and machines do ----

CODE = {
    "import sys\nsys.exit(0)": (5, "raised SystemExit(0)"),
    "import no_such_package_at_all": (2, "no_such_package_at_all"),
    "raise MemoryError": (2, "MemoryError"),
}


@pytest.mark.parametrize("code", CODE)
def test_what_a_models_code_does(code: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.py").write_text(f"import torch\ndef make():\n    {code.replace(chr(10), chr(10) + '    ')}\n")
    torch.save({"w": torch.ones(1)}, tmp_path / "state.pt")
    words = ["inspect", str(tmp_path / "state.pt"), "--trust", "code", "--model", f"{tmp_path / 'model.py'}:make"]
    status, said = CODE[code]
    assert cli.main(words) == status
    assert said in capsys.readouterr().err


RAISED: dict[str, tuple[Callable[[], Exception], int]] = {
    "no memory": (MemoryError, 5),
    "no memory, of the system": (lambda: OSError(12, "Cannot allocate memory"), 5),
    "no memory, of torch": (lambda: RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), 5),
    "no memory, of C++": (lambda: RuntimeError("std::bad_alloc"), 5),
    "no memory, of the loader": (lambda: ImportError("libtorch.so: failed to map segment from shared object"), 5),
    "a package that is broken": (lambda: ImportError("undefined symbol: x", name="torch._C"), 5),
    "a disk": (lambda: OSError(5, "Input/output error", "/somewhere"), 6),
    "a bug": (lambda: KeyError("x"), 7),
    "a bug in an import": (lambda: ImportError("no name", name="fuseconv.x"), 7),
}


@pytest.mark.parametrize("name", RAISED)
def test_what_nobody_foresaw_has_a_status_of_its_kind(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fuseconv.rulebook import own_rules

    make, status = RAISED[name]

    def fail(*_: object) -> None:
        raise make()

    monkeypatch.setattr(own_rules, "load_rules", fail)
    assert cli.main(["rules", "list"]) == status
    said = capsys.readouterr().err
    assert ("a bug in fuseconv" in said) == (status == 7)


# ---- text of strangers ----

ESCAPE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp.\x7f\r"


def test_what_a_terminal_would_obey_is_spelled_out() -> None:
    assert printable(ESCAPE) == r"\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp.\x7f\x0d"
    assert printable("a\tb\nc é 漢 🙂") == "a\tb\nc é 漢 🙂"
    assert on_one_line("a\nb") == r"a\nb"
    assert printable(os.fsdecode(b"a\xffb")) == r"a\xffb"


def hostile(doc: str) -> dict[str, object]:
    hit = ["x: f32[8]", "y = aten.relu.default(x)", "return y"]
    rule = {"name": "hostile", "stage": "fuse", "doc": doc, "match": ["y = aten.relu.default(x)"]}
    return {"rules": [{**rule, "replace": ["y = aten.clamp_min.default(x, 0)"], "examples": {"hit": [hit]}}]}


SHOWN = {
    "list": ["rules", "list", "--rules"],
    "show": ["rules", "show", "hostile", "--rules"],
}


@pytest.mark.parametrize("command", SHOWN)
def test_a_rules_words_do_not_reach_the_terminal_as_orders(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rules.json"
    path.write_text(json.dumps(hostile(f"A rule. {ESCAPE} [link=http://evil]here[/link]")))
    assert cli.main([*SHOWN[command], str(path)]) == 0
    out = capsys.readouterr().out
    assert r"\x1b]0;owned" in out
    assert "[link=http://evil]here[/link]" in out
    assert not set(out) & set("\x1b\x07\x9b\u202e\x7f\r")


@pytest.mark.parametrize("name", [f"evil{ESCAPE}.json", os.fsdecode(b"evil\xff.json"), "two\n  fix: lines.json"])
def test_a_name_does_not_reach_the_terminal_as_an_order(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_text("{")
    assert cli.main(["rules", "list", "--rules", str(path)]) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 3
    assert not set(err) & set("\x1b\x07\x9b\u202e\x7f\r")


def test_what_is_logged_is_printable(capsys: pytest.CaptureFixture[str]) -> None:
    import logging

    streams.prepare()
    logging.getLogger("fuseconv").warning("evil%s", "\x1b[2J")
    assert r"evil\x1b[2J" in capsys.readouterr().err

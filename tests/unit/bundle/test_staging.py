"""A folder is replaced completely or not at all, whatever happens to the writer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fuseconv.bundle.staging import staged
from fuseconv.errors import FileError, UsageError


def anything(path: Path) -> None:
    """Any folder may be replaced."""


def put(output: Path, text: str) -> None:
    with staged(output, anything) as folder:
        (folder / "sub").mkdir()
        (folder / "sub" / "a").write_text(text)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_is_made_and_replaced(tmp_path: Path) -> None:
    for text in ("one", "two"):
        put(tmp_path / "out", text)
        assert (tmp_path / "out" / "sub" / "a").read_text() == text
        assert names(tmp_path) == ["out"]


def test_a_relative_output_stands_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    put(Path("out"), "one")
    assert (tmp_path / "out" / "sub" / "a").read_text() == "one"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_error_or_an_interrupt_leaves_the_old_folder_and_nothing_else(
    error: type[BaseException], tmp_path: Path
) -> None:
    put(tmp_path / "out", "old")

    def write() -> None:
        with staged(tmp_path / "out", anything) as folder:
            (folder / "a").write_text("new")
            raise error

    with pytest.raises(error):
        write()
    assert (tmp_path / "out" / "sub" / "a").read_text() == "old"
    assert names(tmp_path) == ["out"]


def test_the_check_runs_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()

    def refuse(path: Path) -> None:
        raise UsageError(f"{path.name} is mine")

    with pytest.raises(UsageError, match="out is mine"), staged(tmp_path / "out", refuse):
        pytest.fail("the block must not run")
    assert names(tmp_path) == ["out"]


def child(script: str, folder: Path) -> subprocess.Popen[str]:
    prelude = (
        "import os, resource, signal, sys, time\nfrom pathlib import Path\nfrom fuseconv.bundle.staging import staged\n"
    )
    prelude += "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background job ignores it
    return subprocess.Popen(
        [sys.executable, "-c", prelude + script, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


WAIT = """
with staged(Path(sys.argv[1]) / "out", lambda path: None) as folder:
    (folder / "half").write_text("x" * 100000)
    print("ready", flush=True)
    time.sleep(60)
"""


def test_a_killed_run_leaves_the_old_folder_and_the_next_run_removes_its_leftovers(tmp_path: Path) -> None:
    put(tmp_path / "out", "old")
    with child(WAIT, tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.kill()
    assert (tmp_path / "out" / "sub" / "a").read_text() == "old"
    assert len(names(tmp_path)) == 2
    put(tmp_path / "out", "new")
    assert (tmp_path / "out" / "sub" / "a").read_text() == "new"
    assert names(tmp_path) == ["out"]


def test_a_folder_that_another_machine_fills_stays_until_it_is_a_day_old(tmp_path: Path) -> None:
    other = tmp_path / ".out.staging-0a1b2c3d-00000000"  # no lock of another machine is seen on NFS
    (other / "sub").mkdir(parents=True)
    put(tmp_path / "out", "one")
    assert names(tmp_path) == [other.name, "out"]
    hours = time.time() - 25 * 3600
    os.utime(other, (hours, hours))
    put(tmp_path / "out", "two")
    assert names(tmp_path) == [other.name, "out"]  # what is in it has changed since
    os.utime(other / "sub", (hours, hours))
    put(tmp_path / "out", "three")
    assert names(tmp_path) == ["out"]


def test_an_interrupted_process_cleans_up(tmp_path: Path) -> None:
    put(tmp_path / "out", "old")
    with child(WAIT, tmp_path) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert "KeyboardInterrupt" in errors
    assert names(tmp_path) == ["out"]


def test_a_run_does_not_remove_what_a_living_run_writes(tmp_path: Path) -> None:
    with child(WAIT, tmp_path) as process:
        assert process.stdout is not None
        process.stdout.readline()
        put(tmp_path / "out", "mine")
        assert len(names(tmp_path)) == 2
        process.kill()


def test_two_writers_of_one_folder_leave_one_of_two_whole_results(tmp_path: Path) -> None:
    def write(text: str) -> None:
        for _ in range(20):
            put(tmp_path / "out", text)

    put(tmp_path / "out", "old")
    writers = [threading.Thread(target=write, args=(text,)) for text in ("one", "two")]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert (tmp_path / "out").exists()  # at every moment there is one
    assert (tmp_path / "out" / "sub" / "a").read_text() in {"one", "two"}
    assert names(tmp_path) == ["out"]


def test_a_full_disk_leaves_the_old_folder(tmp_path: Path) -> None:
    put(tmp_path / "out", "old")
    script = """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50000, 50000))
with staged(Path(sys.argv[1]) / "out", lambda path: None) as folder:
    (folder / "a").write_bytes(b"x" * 100000)
"""
    with child(script, tmp_path) as process:
        _, errors = process.communicate()
    assert "FileError: the folder cannot be written: File too large" in errors
    assert names(tmp_path) == ["out"]
    assert (tmp_path / "out" / "sub" / "a").read_text() == "old"


def test_a_place_that_cannot_be_written_is_a_file_error() -> None:
    with pytest.raises(FileError, match="cannot be written") as caught, staged(Path("/proc/out"), anything):
        pytest.fail("the block must not run")
    assert caught.value.exit_status == 6


def test_a_missing_parent_is_made(tmp_path: Path) -> None:
    with staged(tmp_path / "none" / "out", anything) as folder:
        (folder / "file").write_text("new")
    assert (tmp_path / "none" / "out" / "file").read_text() == "new"


@pytest.mark.parametrize("output", ["file/out", "file/none/out", "link/out"])
def test_a_parent_that_is_no_folder_is_said_to_be_none(output: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    what = r"the parent of the output is a (file|broken symbolic link), not a folder"
    with pytest.raises(FileError, match=what) as caught, staged(tmp_path / output, anything):
        pytest.fail("the block must not run")
    assert caught.value.where == str(tmp_path / output.partition("/")[0])
    assert "space" not in caught.value.fix


def test_without_the_exchange_of_names_a_kill_between_the_renames_is_undone(tmp_path: Path) -> None:
    put(tmp_path / "out", "old")
    (tmp_path / "out").rename(tmp_path / ".out.previous")  # as far as such a run got
    with staged(tmp_path / "out", anything) as folder:
        assert (tmp_path / "out" / "sub" / "a").read_text() == "old"
        (folder / "a").write_text("new")
    assert (tmp_path / "out" / "a").read_text() == "new"

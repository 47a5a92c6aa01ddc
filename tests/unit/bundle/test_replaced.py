"""A bundle that is replaced while it is read is read again; another error is raised at once."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from fuseconv.bundle.files import MANIFEST
from fuseconv.bundle.replaced import unchanged, unreplaced
from fuseconv.bundle.staging import previous, staged
from fuseconv.errors import FileError, RefusedError, UsageError


def put(folder: Path, text: str) -> None:
    with staged(folder, lambda _: None) as staging:
        (staging / MANIFEST).write_text(text)


def text_of(folder: Path) -> str:
    if not folder.exists():
        raise UsageError("the bundle does not exist", where=str(folder), fix="name another")
    return (folder / MANIFEST).read_text()


def damaged() -> RefusedError:
    return RefusedError("damaged", where="here", fix="copy it again")


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("text", ["new", "old"])  # the same contents again are another bundle
def test_what_was_replaced_is_read_again(text: str, fails: bool, tmp_path: Path) -> None:
    folder, calls = tmp_path / "b", list[str]()
    put(folder, "old")

    def read() -> str:
        calls.append(text_of(folder))
        if len(calls) == 1:
            put(folder, text)
            if fails:
                raise damaged()
        return calls[-1]

    assert unreplaced(folder, read) == text
    assert calls == ["old", text]


def test_an_error_of_a_bundle_that_stays_is_raised_at_once(tmp_path: Path) -> None:
    put(tmp_path / "b", "old")
    calls = []

    def read() -> None:
        calls.append(1)
        raise damaged()

    with pytest.raises(RefusedError, match="damaged"):
        unreplaced(tmp_path / "b", read)
    with pytest.raises(UsageError, match="does not exist"):
        unreplaced(tmp_path / "none", lambda: text_of(tmp_path / "none"))
    assert calls == [1]


@pytest.mark.parametrize("inside", [".", "methods/encode"])
def test_a_bundle_that_is_not_there_for_a_moment_is_waited_for(inside: str, tmp_path: Path) -> None:
    """As on a file system that cannot exchange two names."""
    bundle = tmp_path / "b"
    folder = bundle / inside
    folder.mkdir(parents=True)
    (folder / MANIFEST).write_text("old")
    bundle.rename(previous(bundle))

    def put_back() -> None:
        time.sleep(0.2)
        previous(bundle).rename(bundle)

    thread = threading.Thread(target=put_back)
    thread.start()
    assert unreplaced(folder, lambda: text_of(folder)) == "old"
    thread.join()


def test_a_bundle_that_is_always_replaced_is_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "b"
    put(folder, "0")
    with pytest.raises(FileError, match="replaced 20 times while it was read"):
        unreplaced(folder, lambda: put(folder, text_of(folder) + "0"))


def test_a_bundle_that_has_changed_is_not_replaced(tmp_path: Path) -> None:
    put(tmp_path / "b", "old")
    checked: list[Path] = []
    check = unchanged(tmp_path / "b", checked.append)
    check(tmp_path / "b")
    put(tmp_path / "b", "new")
    with pytest.raises(FileError, match="another process has changed the bundle in the meantime"):
        check(tmp_path / "b")
    assert checked == [tmp_path / "b"] * 2

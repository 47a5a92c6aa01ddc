"""A file is written wholly or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fuseconv.bundle.whole_file import write_whole
from fuseconv.errors import FileError
from fuseconv.matching.lock import read_lock, write_lock

TOO_LARGE = """
import resource, sys
from pathlib import Path
from fuseconv.bundle.whole_file import write_whole

resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
write_whole(Path(sys.argv[1]), bytes(20))
"""


@pytest.mark.parametrize("old", [None, b"old"])
def test_a_write_that_fails_changes_nothing(old: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "file"
    if old is not None:
        path.write_bytes(old)
    done = subprocess.run([sys.executable, "-c", TOO_LARGE, path], capture_output=True, text=True)
    assert "OSError: [Errno 27]" in done.stderr
    assert {one.name: one.read_bytes() for one in tmp_path.iterdir()} == ({} if old is None else {"file": old})


def test_a_file_keeps_its_permissions_and_a_link_stays_a_link(tmp_path: Path) -> None:
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_bytes(b"old")
    path.chmod(0o640)
    link.symlink_to("file")
    write_whole(link, b"new")
    assert link.is_symlink()
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o640
    assert {one.name for one in tmp_path.iterdir()} == {"file", "link"}


WRITES_BETWEEN = """
from pathlib import Path
from fuseconv.bundle.whole_file import write_whole
print("before", flush=True)
write_whole(Path("/dev/stdout"), b"content")
"""


def test_an_open_stream_is_written_in_place(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", WRITES_BETWEEN], stdout=subprocess.PIPE, check=True)
    assert done.stdout == b"before\ncontent"
    with (tmp_path / "file").open("ab") as file:
        subprocess.run([sys.executable, "-c", WRITES_BETWEEN], stdout=file, check=True)
        assert (tmp_path / "file").stat().st_ino == os.fstat(file.fileno()).st_ino


def test_writers_of_one_lock_lose_no_entry(tmp_path: Path) -> None:
    lock, names = tmp_path / "fuseconv.lock", [f"{number}.fuseconv" for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: write_lock(lock, name, {"rule": {"": 1}}), names))
    assert sorted(read_lock(lock).bundles) == sorted(names)


def test_a_lock_that_cannot_be_written_is_a_named_error(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"fuseconv\.lock cannot be written: No such file or directory") as caught:
        write_lock(tmp_path / "none" / "fuseconv.lock", "a.fuseconv", {})
    assert caught.value.where == str(tmp_path / "none" / "fuseconv.lock")

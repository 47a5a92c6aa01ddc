"""Hostile and damaged zips, pickles and serialized graphs are rejected quickly, and nothing in them runs."""

import stat
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch

from fuseconv.errors import FileError, RefusedError
from fuseconv.sources.screening import Limits, member_root, read_member, screen_zip


def write_zip(
    path: Path, members: Iterable[tuple[str | zipfile.ZipInfo, bytes]], method: int = zipfile.ZIP_STORED
) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return path


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("size", [0, 1, 1000, 3_000_001])
def test_reads_members(tmp_path: Path, method: int, size: int) -> None:
    data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    path = write_zip(tmp_path / "a", [("m/a", data), ("m/b/c", b"other")], method)
    members = screen_zip(path)
    assert [member.name for member in members] == ["m/a", "m/b/c"]
    assert read_member(path, members[0]) == data
    assert read_member(path, members[1]) == b"other"
    assert member_root(members, path) == "m/"


def test_reads_what_torch_writes(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    torch.save(model.state_dict(), tmp_path / "a")
    torch.jit.save(torch.jit.trace(model, torch.ones(1, 3)), tmp_path / "b")
    torch.export.save(torch.export.export(model, (torch.ones(1, 3),)), tmp_path / "c.pt2")
    for name in ("a", "b", "c.pt2"):
        path = tmp_path / name
        with zipfile.ZipFile(path) as archive:
            assert {member.name: read_member(path, member) for member in screen_zip(path)} == {
                name: archive.read(name) for name in archive.namelist()
            }


def test_reads_zip64(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with zipfile.ZipFile(path, "w") as archive, archive.open("m/a", "w", force_zip64=True) as member:
        member.write(b"data")
    assert read_member(path, screen_zip(path)[0]) == b"data"


@pytest.mark.parametrize(
    "name",
    [
        "../evil",
        "m/../../evil",
        "m/..",
        "/evil",
        "m//evil",
        "./evil",
        "m/./evil",
        "..\\evil",
        "m\\evil",
        "C:evil",
        "c:/evil",
        "m/e\x01vil",
        "m/e\nvil",
        "/",
        "x" * 1025,
    ],
)
def test_refuses_names(tmp_path: Path, name: str) -> None:
    path = write_zip(tmp_path / "a", [("m/good", b""), (name, b"")])
    with pytest.raises(RefusedError, match="leave its folder"):
        screen_zip(path)


def test_refuses_nul_in_a_name(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a", [("m/eXvil", b"")])
    path.write_bytes(path.read_bytes().replace(b"m/eXvil", b"m/e\0vil"))
    with pytest.raises(RefusedError, match="leave its folder"):
        screen_zip(path)


def test_refuses_symlinks(tmp_path: Path) -> None:
    link = zipfile.ZipInfo("m/link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    path = write_zip(tmp_path / "a", [(link, b"/etc/passwd")])
    with pytest.raises(RefusedError, match="symbolic link"):
        screen_zip(path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("names", [("m/a", "m/a"), ("m/a", "m/a/")])
def test_refuses_duplicates(tmp_path: Path, names: tuple[str, ...]) -> None:
    path = write_zip(tmp_path / "a", [(name, b"") for name in names])
    with pytest.raises(RefusedError, match="two members"):
        screen_zip(path)


def changed(data: bytes, at: int, value: bytes) -> bytes:
    return data[:at] + value + data[at + len(value) :]


def central(data: bytes) -> int:
    return data.rindex(b"PK\x01\x02")


def end(data: bytes) -> int:
    return data.rindex(b"PK\x05\x06")


DAMAGE = {
    "empty": lambda data: data[:0],
    "short": lambda data: data[:10],
    "cut by one": lambda data: data[:-1],
    "cut in half": lambda data: data[: len(data) // 2],
    "bytes in front": lambda data: b"#!/bin/sh\n" + data,
    "bytes behind": lambda data: data + b"\n",
    "comment": lambda data: changed(data, end(data) + 20, struct.pack("<H", 3)) + b"abc",
    "second end record": lambda data: data + data[end(data) :],
    "more members said": lambda data: changed(data, end(data) + 8, struct.pack("<2H", 3, 3)),
    "fewer members said": lambda data: changed(data, end(data) + 8, struct.pack("<2H", 1, 1)),
    "other disk": lambda data: changed(data, end(data) + 4, struct.pack("<H", 1)),
    "encrypted": lambda data: changed(data, central(data) + 8, struct.pack("<H", 1)),
    "unknown method": lambda data: changed(data, central(data) + 10, struct.pack("<H", 14)),
    "two sizes": lambda data: changed(data, central(data) + 24, struct.pack("<L", 99)),
    "too large": lambda data: changed(data, central(data) + 20, struct.pack("<2L", 10**6, 10**6)),
    "zip64 without sizes": lambda data: changed(data, central(data) + 24, b"\xff" * 4),
    "header elsewhere": lambda data: changed(data, central(data) + 42, struct.pack("<L", 7)),
    "header beyond": lambda data: changed(data, central(data) + 42, struct.pack("<L", 2**31)),
    "same header twice": lambda data: changed(data, central(data) + 42, struct.pack("<L", 0)),
    "other name in the header": lambda data: data.replace(b"m/b", b"m/x", 1),
    "bit in the bytes": lambda data: data.replace(b"hello", b"jello", 1),
    "not UTF-8": lambda data: data.replace(b"m/b", b"m/\xff"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_refuses_damage(tmp_path: Path, damage: str) -> None:
    path = write_zip(tmp_path / "a", [("m/a", b"hello"), ("m/b", b"world")])
    assert len(screen_zip(path)) == 2
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    with pytest.raises(RefusedError) as caught:
        screen_zip(path)
    assert str(path) in caught.value.where
    assert caught.value.fix


def test_every_flipped_byte_is_refused_or_harmless(tmp_path: Path) -> None:
    """A change anywhere either is refused, or changes no name and no byte that is read."""
    path = write_zip(tmp_path / "a", [("m/a", b"hello"), ("m/b", b"world" * 9)], zipfile.ZIP_DEFLATED)
    data = path.read_bytes()
    good = {member.name: read_member(path, member) for member in screen_zip(path)}
    for at in range(len(data)):
        path.write_bytes(changed(data, at, bytes([data[at] ^ 0x20])))
        try:
            members = screen_zip(path)
        except RefusedError:
            continue
        assert {member.name: read_member(path, member) for member in members} == good, at


@pytest.mark.parametrize(
    ("limits", "members", "said"),
    [
        (Limits(entries=2), [("m/a", b""), ("m/b", b""), ("m/c", b"")], "3 members"),
        (Limits(directory=60), [("m/a", b""), ("m/b", b"")], "directory of"),
        (Limits(floor=1000), [("m/a", b"\0" * 1_000_000)], "unpacks to 1000000 bytes"),
    ],
)
def test_refuses_beyond_limits(tmp_path: Path, limits: Limits, members: list[tuple[str, bytes]], said: str) -> None:
    path = write_zip(tmp_path / "a", members, zipfile.ZIP_DEFLATED)
    with pytest.raises(RefusedError, match=said):
        screen_zip(path, limits)


def bomb(path: Path) -> None:
    """A zip of 11 MB that unpacks to 11 GB: 11,000 members share what one holds."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = packer.compress(b"\0" * 1_000_000) + packer.flush()
    crc = zlib.crc32(b"\0" * 1_000_000)
    with path.open("wb") as file:
        directory = b""
        for index in range(11_000):
            name, at = b"m/%05d" % index, file.tell()
            fields = (8, 0, 0, crc, len(packed), 1_000_000, len(name), 0)
            file.write(struct.pack("<4s2H", b"PK\x03\x04", 20, 0) + struct.pack("<3H3L2H", *fields) + name + packed)
            directory += struct.pack("<4s3H", b"PK\x01\x02", 20, 20, 0) + struct.pack("<3H3L2H", *fields)
            directory += struct.pack("<3H2L", 0, 0, 0, 0, at) + name
        at = file.tell()
        file.write(directory + struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 11_000, 11_000, len(directory), at, 0))


def crowd(path: Path) -> None:
    """A zip of a million empty members."""
    count = 1_000_000
    with path.open("wb") as file:
        names = [b"m/%06d" % index for index in range(count)]
        size = 30 + len(names[0])
        file.writelines(b"PK\x03\x04" + bytes(22) + b"\x08\0\0\0" + name for name in names)
        at = file.tell()
        for index, name in enumerate(names):
            file.write(b"PK\x01\x02" + bytes(24) + b"\x08\0" + bytes(12) + struct.pack("<L", index * size) + name)
        end = file.tell()
        record = (44, 45, 45, 0, 0, count, count, end - at, at)
        file.write(b"PK\x06\x06" + struct.pack("<Q2H2L4Q", *record))
        file.write(b"PK\x06\x07" + struct.pack("<LQL", 0, end, 1))
        file.write(struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, end - at, at, 0))


@pytest.mark.parametrize("make", [bomb, crowd])
def test_refuses_bombs_without_opening_them(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """In a process of its own, so that its memory is its own."""
    path = tmp_path / "model.pt"
    make(path)
    assert zipfile.is_zipfile(path)
    program = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from fuseconv.errors import RefusedError\n"
        "from fuseconv.sources.screening import screen_zip\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try: screen_zip(Path(sys.argv[1]))\n"
        "except RefusedError as error:\n"
        "    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before\n"
        "    print(grown / 1024)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 256


def test_missing_file_is_a_file_error(tmp_path: Path) -> None:
    with pytest.raises(FileError):
        screen_zip(tmp_path / "nothing")


def test_member_root_needs_one_folder(tmp_path: Path) -> None:
    for names in (["a"], ["m/a", "n/b"], ["m/a", "b"]):
        path = write_zip(tmp_path / "a", [(name, b"") for name in names])
        with pytest.raises(RefusedError, match="single folder"):
            member_root(screen_zip(path), path)


def test_refuses_a_second_name(tmp_path: Path) -> None:
    """Newer versions of Python's zip reader would know the member by that one."""
    member, other = zipfile.ZipInfo("m/notes"), b"m/models/model.json"
    field = struct.pack("<BL", 1, zlib.crc32(b"m/notes")) + other
    member.extra = struct.pack("<2H", 0x7075, len(field)) + field
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, b"")
    with pytest.raises(RefusedError, match="second name"):
        screen_zip(path)

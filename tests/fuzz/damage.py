"""Damage: random bytes, and edits that know the format, of zips, JSON, pickles, safetensors and folders."""

from __future__ import annotations

import io
import json
import random
import stat
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

CANARY = "CANARY"
"""In hostile names and payloads; the trier puts the path of its canary folder there."""

HOSTILE_NAMES = (
    "../escaped",
    "../../../../../../tmp/escaped",
    f"{CANARY}/escaped",
    "/etc/passwd",
    "a\\..\\b",
    "x" * 5000,
    "",
    "\0",
    "a\0b",
    "CON",
    "./data.pkl",
    "archive//data.pkl",
    "\x1b[31mred\x1b[0m\x1b]0;title\x07",
    "\u202egpj.exe",
    "\ud800".encode("utf-8", "surrogatepass").decode("utf-8", "replace"),
    "/dev/zero",
    f"{CANARY}/secret",
)

HOSTILE_VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2,
    2**31,
    2**63,
    -(2**63),
    10**400,
    0.5,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "a",
    [],
    {},
    [[]],
    {"": {}},
    {"__class__": "x"},
    "torch.ops.aten.from_file.default",
    "__import__('os').system('true')",
    "é" * 200,
    "\x1b[2J",
    *HOSTILE_NAMES,
)


def random_bytes(data: bytes, draw: random.Random) -> bytes:
    """Returns bytes with a few random changes, or none of what was there."""
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 4, 16))):
        size = len(changed)
        at, length = draw.randrange(size + 1), draw.choice((1, 1, 2, 4, 8, 64, 1024))
        match draw.randrange(9):
            case 0:
                changed = changed[:at]
            case 1 if size:
                changed[min(at, size - 1)] ^= 1 << draw.randrange(8)
            case 2:
                changed[at : at + length] = draw.randbytes(length)
            case 3:
                changed[at : at + length] = draw.choice((b"\0", b"\xff", b"{", b'"')) * length
            case 4:
                changed[at:at] = draw.randbytes(length)
            case 5:
                del changed[at : at + length]
            case 6:
                changed[at:at] = changed[at : at + length] * draw.choice((1, 2, 50))
            case 7:
                other = draw.randrange(size + 1)
                changed[at : at + length] = changed[other : other + length]
            case _ if draw.random() < 0.2:
                changed = bytearray(data[: draw.choice((0, 1, 2, 4, 8, 16))] + draw.randbytes(draw.choice((0, 3, 500))))
    return bytes(changed)


def hostile_json(data: bytes, draw: random.Random) -> bytes:
    """Returns JSON with values, keys or its spelling changed."""
    if draw.random() < 0.15:
        return draw.choice(_SPELLINGS)(data)
    try:
        value = json.loads(data)
    except ValueError:
        return random_bytes(data, draw)
    for _ in range(draw.choice((1, 1, 2, 5))):
        value = _edited(value, draw)
    return json.dumps(value, ensure_ascii=draw.random() < 0.5).encode("utf-8", "surrogatepass")


def _edited(value: Any, draw: random.Random) -> Any:
    """Changes one place, any of them as likely."""
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, child in items:
            places.append((node, key))
            walk(child)

    walk(value)
    if not places or draw.random() < 0.02:
        return draw.choice(HOSTILE_VALUES)
    owner, key = draw.choice(places)
    match draw.randrange(7):
        case 0 | 1 | 2:
            owner[key] = draw.choice(HOSTILE_VALUES)
        case 3:
            other, at = draw.choice(places)
            if at in other if isinstance(other, dict) else at < len(other):
                owner[key] = json.loads(json.dumps(other[at]))
        case 4:
            del owner[key]
        case 5 if isinstance(owner, dict):
            owner[str(draw.choice(HOSTILE_VALUES))] = owner.pop(key)
        case 6 if isinstance(owner[key], str) and owner[key]:
            text = owner[key]
            at = draw.randrange(len(text))
            owner[key] = (
                text[:at] + draw.choice(("", "x", "(", "/", "\n", "\\", "9", ".", *HOSTILE_NAMES)) + text[at + 1 :]
            )
        case _:
            owner[key] = [owner[key]] * draw.choice((1, 2, 100))
    return value


_SPELLINGS: tuple[Callable[[bytes], bytes], ...] = (
    lambda data: b"\xef\xbb\xbf" + data,
    lambda data: data.decode("utf-8", "replace").encode("utf-16"),
    lambda data: b"[" * 100_000 + data,
    lambda data: data + data,
    lambda data: data.replace(b":", b": NaN,", 1),
    lambda data: data.replace(b'"', b"'"),
    lambda data: data.replace(b"{", b'{"rules": [], "rules": [],', 1),
    lambda data: data.replace(b"}", b",}", 1),
    lambda data: data + b" " * 1_000_000,
    lambda data: data.replace(b'"', b'"\\ud800', 1),
    lambda data: b"9" * 100_000,
    lambda data: data.replace(b"1", b"1" * 5000),
    lambda data: b"",
    lambda data: b"\0" * 64,
)


def hostile_pickle(data: bytes, draw: random.Random) -> bytes:
    """Returns a pickle that calls what it should not, is nested, or is damaged."""
    calls = [b"cos\nmkdir\n", b"cposix\nsystem\n", b"cbuiltins\neval\n", b"cbuiltins\nopen\n", b"ctorch\nload\n"]
    calls += [b"ctorch.hub\nload\n", b"cnumpy\nmemmap\n", b"ctorch\nfrom_file\n", b"cshutil\nrmtree\n"]
    path = f"{CANARY}/ran".encode()
    payload = draw.choice(calls) + b"X" + struct.pack("<I", len(path)) + path + b"\x85R"
    match draw.randrange(7):
        case 0:
            return b"\x80\x02" + payload + b"."
        case 1:
            return data[:2] + payload + b"0" + data[2:]
        case 2:
            at = draw.randrange(len(data) + 1)
            return data[:at] + payload + data[at:]
        case 3:
            return b"\x80\x02" + b"(" * draw.choice((100, 100_000)) + b"."
        case 4:
            return b"\x80\x04" + b"\x8e" + struct.pack("<Q", 2**60) + b"x."
        case 5:
            for word in (b"_rebuild_tensor_v2", b"FloatStorage", b"OrderedDict", b"collections", b"torch._utils"):
                if word in data and draw.random() < 0.6:
                    data = data.replace(
                        word, draw.choice((b"system", b"Parameter", b"eval", b"_rebuild_qtensor", b"load"))
                    )
            return data
    return random_bytes(data, draw)


def hostile_safetensors(data: bytes, draw: random.Random) -> bytes:
    """Returns a safetensors file with another header, or another length of it."""
    if len(data) < 8:
        return data
    (length,) = struct.unpack("<Q", data[:8])
    header, rest = data[8 : 8 + length], data[8 + length :]
    if draw.random() < 0.25:
        wrong = draw.choice((0, 1, length + 1, length - 1, 2**63, 2**64 - 1, len(data), 100_000_001, 0x80))
        return struct.pack("<Q", wrong) + header + rest
    header = hostile_json(header, draw)
    return struct.pack("<Q", len(header)) + header + rest


def hostile_zip(data: bytes, draw: random.Random) -> bytes:
    """Returns a zip with members renamed, doubled, left out, damaged, linked or swollen."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [(info, archive.read(info)) for info in archive.infolist()]
    except (zipfile.BadZipFile, OSError, ValueError, EOFError):
        return random_bytes(data, draw)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        at = draw.randrange(len(members)) if members else 0
        root = members[0][0].filename.partition("/")[0] if members else "archive"
        match draw.randrange(9):
            case 0 | 1 | 2 | 3 if members:
                info, content = members[at]
                members[at] = (info, damaged_content(info.filename, content, draw))
            case 4 if members:
                name = draw.choice(HOSTILE_NAMES)
                members[at] = (_named(draw.choice((name, f"{root}/{name}"))), members[at][1])
            case 5 if members:
                members.append(members[at])
            case 6 if members:
                del members[at]
            case 7:
                link = _named(f"{root}/{draw.choice(('data/9', 'link', 'extra/x'))}")
                link.external_attr = (stat.S_IFLNK | 0o777) << 16
                members.append((link, draw.choice((b"/etc/passwd", f"{CANARY}/secret".encode()))))
            case _ if members:
                other = draw.randrange(len(members))
                members[at] = (members[at][0], members[other][1])
    out = io.BytesIO()
    kind = draw.choice((zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(out, "w", kind) as archive:
        for info, content in members:
            info.compress_type = kind
            archive.writestr(info, content)
        if draw.random() < 0.03:
            archive.writestr("archive/data/bomb", b"\0" * 50_000_000, zipfile.ZIP_DEFLATED)
    changed = out.getvalue()
    return random_bytes(changed, draw) if draw.random() < 0.1 else changed


def _named(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo("x")
    info.filename = name
    return info


def damaged_content(name: str, data: bytes, draw: random.Random) -> bytes:
    """Returns content damaged by what its name, or its first bytes, say that it is."""
    if draw.random() < 0.2:
        return random_bytes(data, draw)
    if data[:2] == b"PK":
        return hostile_zip(data, draw)
    if name.endswith((".json", ".lock")) or data[:1] in (b"{", b"["):
        return hostile_json(data, draw)
    if name.endswith((".pkl", "data.pkl")) or data[:1] == b"\x80":
        return hostile_pickle(data, draw)
    if name.endswith(".safetensors"):
        return hostile_safetensors(data, draw)
    return random_bytes(data, draw)


def replaced(path: Path, draw: random.Random, canary: Path) -> str:
    """Puts something that is no plain file in the place of a file; returns what."""
    import os
    import shutil

    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    match draw.randrange(6):
        case 0:
            os.mkfifo(path)
            return "a fifo"
        case 1:
            path.symlink_to(canary / "secret")
            return "a link to the canary"
        case 2:
            path.symlink_to("/dev/zero")
            return "a link to /dev/zero"
        case 3:
            path.mkdir()
            return "a folder"
        case 4:
            path.symlink_to(path)
            return "a link to itself"
    return "nothing"

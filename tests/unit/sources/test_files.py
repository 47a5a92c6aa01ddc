"""Untrusted files: every reader rejects what is not a plain file, and code that others may change."""

from __future__ import annotations

import ast
import grp
import json
import os
import pwd
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import fuseconv
from fuseconv import sources
from fuseconv.bundle.manifest import bundle_folder, open_bundle
from fuseconv.contract.inputs import from_file
from fuseconv.errors import FileError, FuseconvError, RefusedError, RuleError, UsageError
from fuseconv.matching.lock import read_lock
from fuseconv.matching.steps import read_plan
from fuseconv.rulebook.rule_file import load_rules
from fuseconv.sources.huggingface import _screen_files
from fuseconv.sources.state_dict import read_tensors
from fuseconv.untrusted import files
from fuseconv.untrusted.containers import container_of

pytestmark = pytest.mark.timeout(60)

# ---- what a path may lead to ----


def bind(path: Path) -> None:
    """Leaves a socket behind; its name is short, as sockets' must be."""
    folder = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(f"/proc/self/fd/{folder}/{path.name}")
    os.close(folder)


KINDS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a pipe": (os.mkfifo, "it is a pipe"),
    "a device that never ends": (lambda path: path.symlink_to("/dev/zero"), "it is a device"),
    "a device": (lambda path: path.symlink_to("/dev/tty"), "it is a device"),
    "a socket": (bind, "it is a socket"),
    "a folder": (lambda path: path.mkdir(), "it is a folder"),
    "a link to itself": (lambda path: path.symlink_to(path.name), "symbolic links"),
    "a link to nothing": (lambda path: path.symlink_to("nothing"), "No such file"),
    "nothing": (lambda path: None, "No such file"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_only_plain_files_are_opened(kind: str, tmp_path: Path) -> None:
    make, words = KINDS[kind]
    make(tmp_path / "x")
    for read in (files.open_plain, files.read_plain, files.check_plain):
        with pytest.raises(OSError, match=words):
            read(tmp_path / "x")
    assert not files.is_plain(tmp_path / "x")


@pytest.mark.parametrize(
    "name", ["a\0b", "a\ud800b", "x" * 300, "x/" * 3000], ids=["nul", "surrogate", "long name", "long path"]
)
def test_names_that_no_file_can_have(name: str, tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"no file can have this name|too long|No such"):
        files.open_plain(tmp_path / name)
    assert not files.is_plain(tmp_path / name)
    assert not files.leads_somewhere(tmp_path / name)
    with pytest.raises(RuleError):
        load_rules(tmp_path / name)


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        (["convert", "a\udcff.pt2"], r"a\xff.pt2"),
        (["convert", "a.pt2", "-o", "b\udcff/out"], r"b\xff/out"),
        (["inspect", "a\udcff.pt2"], r"a\xff.pt2"),
        (["verify", "a\udcff.fuseconv"], r"a\xff.fuseconv"),
    ],
    ids=["a model", "an output", "a model to read", "a bundle"],
)
def test_a_path_that_is_not_text_is_refused_before_torch_is_imported(
    arguments: list[str], where: str, tmp_path: Path
) -> None:
    for name in ("a.pt2", "a\udcff.pt2"):
        (tmp_path / name).write_bytes(b"")
    code = "import sys; from fuseconv import cli; sys.exit(cli.main(sys.argv[1:]) + 100 * ('torch' in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code, *arguments], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == UsageError.exit_status
    assert "the path is not valid UTF-8" in done.stderr
    assert where in done.stderr
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("read", [sources.read, partial(bundle_folder, "a.pt2"), open_bundle])
def test_a_path_that_is_not_text_is_refused_by_the_library(read: Callable[[Path], object], tmp_path: Path) -> None:
    (tmp_path / "a\udcff").mkdir()
    with pytest.raises(UsageError, match="the path is not valid UTF-8"):
        read(tmp_path / "a\udcff")


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"12345")
    assert files.read_plain(tmp_path / "x", 5) == files.read_plain(tmp_path / "x", None) == b"12345"
    with pytest.raises(OSError, match="larger than 4 bytes"):
        files.read_plain(tmp_path / "x", 4)


def test_a_link_is_followed_unless_it_must_not_be_there(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"1")
    (tmp_path / "link").symlink_to("x")
    assert files.read_plain(tmp_path / "link") == b"1"
    with pytest.raises(OSError, match="symbolic link"):
        files.read_plain(tmp_path / "link", links=False)


def included(path: Path) -> object:
    (path.parent / "main.json").write_text(json.dumps({"include": [path.name]}))
    return load_rules(path.parent / "main.json")


def brought(path: Path) -> object:
    (path.parent / "main.json").write_text(json.dumps({"ops": [path.name]}))
    return load_rules(path.parent / "main.json")


def shard(path: Path) -> None:
    index = {"weight_map": {"w": path.name}}
    (path.parent / "model.safetensors.index.json").write_text(json.dumps(index))
    _screen_files(path.parent)


READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a rule file": ("rules.json", load_rules),
    "a file of a folder of rules": ("rules.json", lambda path: load_rules(path.parent)),
    "an included file": ("rules.json", included),
    "a file of ops": ("ops.py", brought),
    "a plan": ("plan.json", read_plan),
    "a lock": ("fuseconv.lock", read_lock),
    "a manifest": ("manifest.json", lambda path: open_bundle(path.parent)),
    "a model": ("model.pt", sources.read),
    "inputs": ("inputs.npz", from_file),
    "a config": ("config.json", lambda path: sources.read(path.parent)),
    "a shard": ("model-00001.safetensors", shard),
    "an index": ("model.safetensors.index.json", lambda path: _screen_files(path.parent)),
}


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"nothing"}))
@pytest.mark.parametrize("reader", READERS)
def test_no_reader_waits_or_reads_for_ever(reader: str, kind: str, tmp_path: Path) -> None:
    name, read = READERS[reader]
    KINDS[kind][0](tmp_path / name)
    with pytest.raises(FuseconvError) as caught:
        read(tmp_path / name)
    assert caught.value.exit_status in (2, 3, 6)
    assert caught.value.fix


# ---- who may change what runs ----


MODES = {0o644: "", 0o600: "", 0o755: "", 0o646: "is writable by everyone", 0o666: "is writable by everyone"}


@pytest.mark.parametrize("mode", MODES)
def test_code_that_everybody_may_write_is_refused(mode: int, tmp_path: Path) -> None:
    library = tmp_path / "lib.so"
    library.touch()
    library.chmod(mode)
    if not MODES[mode]:
        files.check_unshared([tmp_path, library])
        return
    with pytest.raises(RefusedError, match=MODES[mode]) as caught:
        files.check_unshared([tmp_path, library])
    assert caught.value.fix == f"chmod o-w {library}"


GROUPS = {
    "the user's own, by number": (lambda uid: (uid, "somebody", []), True),
    "the user's own, by name": (lambda uid: (uid + 7, pwd.getpwuid(uid).pw_name, []), True),
    "the user's own, with the user in it": (lambda uid: (uid, "x", [pwd.getpwuid(uid).pw_name]), True),
    "the user's own, with another in it": (lambda uid: (uid, "x", ["mallory"]), False),
    "one of many": (lambda uid: (uid + 7, "users", []), False),
}


@pytest.mark.parametrize("name", GROUPS)
def test_a_group_may_write_if_it_is_the_users_own(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make, fine = GROUPS[name]
    library = tmp_path / "lib.so"
    library.touch()
    library.chmod(0o664)
    found = library.stat()
    gid, group, members = make(found.st_uid)
    fields = list(found)
    fields[5] = gid
    monkeypatch.setattr(Path, "stat", lambda self, **_: os.stat_result(fields))
    monkeypatch.setattr(grp, "getgrgid", lambda asked: grp.struct_group((group, "x", asked, members)))
    if fine:
        files.check_unshared([library])
        return
    with pytest.raises(RefusedError, match="is writable by a group"):
        files.check_unshared([library])


def test_code_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "lib.so"
    library.touch()
    fields = list(library.stat())
    fields[4] = os.geteuid() + 1
    monkeypatch.setattr(Path, "stat", lambda self, **_: os.stat_result(fields))
    with pytest.raises(RefusedError, match="belongs to another user") as caught:
        files.check_unshared([library])
    assert "chown" in caught.value.fix


def test_in_a_folder_with_the_sticky_bit_others_may_write_theirs(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    files.check_unshared([tmp_path])
    tmp_path.chmod(0o777)
    with pytest.raises(RefusedError, match="is writable by everyone"):
        files.check_unshared([tmp_path])


# ---- what a file is ----


@pytest.mark.parametrize("low", range(256))
def test_a_safetensors_file_is_known_by_any_length_of_its_header(low: int, tmp_path: Path) -> None:
    """One header of each low byte; 0x80 is a pickle's first byte, 0x50 0x4b a zip's, 0x7f 0x45 that of ELF."""
    high = {0x80: 0x02, 0x50: 0x4B, 0x7F: 0x45, 0x4D: 0x5A}.get(low, 0x01)
    length = high << 8 | low
    entry = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", length) + entry.ljust(length) + struct.pack("<f", 2.0))
    assert sources.sniff(path) == "state-dict"
    assert read_tensors(path)["w"].tolist() == [2.0]
    assert from_file(path)["w"].tolist() == [2.0]


def test_what_torch_writes_is_never_taken_for_safetensors(tmp_path: Path) -> None:
    for protocol in range(2, 6):
        for zipped in (True, False):
            path = tmp_path / f"{protocol}{zipped}.pt"
            torch.save({"w": torch.ones(1)}, path, pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
            data = path.read_bytes()
            assert container_of(data[:300], len(data)) == ("zip" if zipped else "pickle")


HEADS = {
    "a header longer than the file": (struct.pack("<Q", 100) + b"{" + bytes(50), ""),
    "a header longer than any": (struct.pack("<Q", 1 << 40) + b"{" + bytes(50), ""),
    "no header": (struct.pack("<Q", 0) + b"{" + bytes(50), ""),
    "a header that is no object": (struct.pack("<Q", 20) + b"[" + bytes(50), ""),
    "nothing": (b"", ""),
    "eight bytes": (struct.pack("<Q", 2), ""),
    "a pickle's first byte": (b"\x80", ""),
    "a protocol that is none": (b"\x80\x09" + bytes(50), ""),
    "the smallest pickle": (b"\x80\x02N.", "pickle"),
    "a library": (b"\x7fELF" + bytes(50), "native"),
}


@pytest.mark.parametrize("name", HEADS)
def test_heads(name: str) -> None:
    data, kind = HEADS[name]
    assert container_of(data, len(data)) == kind


# ---- Hugging Face folders ----


SHARDS = {
    "above": "../model.safetensors",
    "far above": "../../etc/passwd",
    "absolute": "/etc/passwd",
    "a pickle": "pytorch_model.bin",
    "below": "sub/model.safetensors",
    "not there": "absent.safetensors",
    "no name": "",
    "a number": 3,
    "a list": ["model.safetensors"],
}


@pytest.mark.parametrize("name", SHARDS)
def test_an_index_names_files_of_its_folder_alone(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    for path in (folder / "model.safetensors", folder / "sub/model.safetensors", tmp_path / "model.safetensors"):
        save_file({"w": torch.ones(1)}, path)
    torch.save({"w": torch.ones(1)}, folder / "pytorch_model.bin")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"v": "model.safetensors"}}))
    _screen_files(folder)
    index.write_text(json.dumps({"weight_map": {"v": "model.safetensors", "w": SHARDS[name]}}))
    with pytest.raises(RefusedError) as caught:
        _screen_files(folder)
    assert caught.value.where == str(index)


def test_links_of_a_cache_are_followed(tmp_path: Path) -> None:
    """As Hugging Face's library keeps them: names that are links to files named by their hash."""
    (tmp_path / "blobs").mkdir()
    save_file({"w": torch.ones(1)}, tmp_path / "blobs/0123")
    folder = tmp_path / "snapshot"
    folder.mkdir()
    (folder / "model.safetensors").symlink_to("../blobs/0123")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": "model.safetensors"}}))
    _screen_files(folder)


# ---- one place that opens ----

PACKAGE = Path(fuseconv.__file__).parent
OPENING = {"open", "read_bytes", "read_text", "safe_open", "load_file", "fdopen", "ZipFile"}
OWN = {
    "untrusted/files.py": "it is the place",
    "untrusted/confinement.py": "/proc",
    "measure/busy.py": "/proc",
    "measure/cold_start.py": "files of its own scratch folder, and /proc",
    "measure/duel.py": "files of its own scratch folder",
    "measure/peers.py": "files of its own scratch folder",
    "measure/separate.py": "files of its own scratch folder",
    "runtime/environment.py": "/proc",
    "runtime/cpp.py": "files of its own scratch folder, and its own sources",
    "parity/reference.py": "a member of a bundle that `open_bundle` has measured",
    "bundle/staging.py": "folders that are locked and flushed",
    "bundle/whole_file.py": "what it writes",
    "pipeline/assembly.py": "libraries of trusted packs",
    "proof/checker.py": "its own stdout",
    "rulebook/packs.py": "trusted",
    "report/archive.py": "a member of a bundle that `open_bundle` has measured, opened by untrusted/files.py",
    "report/page.py": "the page that was built with fuseconv",
    "sources/archive.py": "a zip in memory",
    "sources/on_cpu.py": "members of an archive that was screened, and its own copy",
    "sources/state_dict.py": "safetensors, by a path that was looked at before",
    "contract/inputs.py": "a zip in memory",
    "targets/aoti.py": "what its compiler wrote",
    "targets/artifact.py": "what it writes",
    "targets/aoti_compile.py": "what its compiler wrote",
    "targets/inductor_interface.py": "a template of torch",
    "provenance/sbom.py": "what our build wrote",
    "targets/onnx_plugin.py": "our own library",
    "commands/outputs.py": "an .npz in memory",
    "commands/streams.py": "/dev/null",
    "weights/tensor_file.py": "what it writes",
    "untrusted/records.py": "members of an archive that was screened, opened by untrusted/files.py",
    "parity/child.py": "its own stdout and its log",
    "parity/process.py": "the log of its child",
    "processes/forked.py": "/dev/null",
    "many/output.py": "its own lock, and rows and bundles that it wrote",
    "tritonserver/repository.py": "members of a bundle that `open_bundle` has measured",
    "serving/engine.py": "members of a bundle that `open_bundle` has measured",
}
"""Modules that open files by themselves, and which."""


def calls(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    found = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return {getattr(function, "id", "") or getattr(function, "attr", "") for function in found}


def test_files_from_outside_are_opened_in_one_place() -> None:
    opening = {
        str(path.relative_to(PACKAGE)): names
        for path in sorted(PACKAGE.rglob("*.py"))
        if (names := calls(path) & OPENING)
    }
    assert set(opening) <= set(OWN), {name: opening[name] for name in set(opening) - set(OWN)}


def test_a_model_that_is_no_file_is_said_to_be_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.pt")
    with pytest.raises(FileError, match="it is a pipe, not a file"):
        sources.read(tmp_path / "model.pt")

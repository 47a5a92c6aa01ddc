"""Provenance as a user meets it: two conversions with the same bytes, what the manifest records, sign and verify."""

from __future__ import annotations

import filecmp
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from support import warm_python

from fuseconv import cli
from fuseconv.bundle.files import MANIFEST, SIGNATURE
from fuseconv.bundle.invocation import Invocation
from fuseconv.bundle.manifest import open_bundle
from fuseconv.provenance.sbom import SBOM

NAMES = ("export", "torchscript", "onnx")
WORDS = ("--target", ",".join(NAMES), "--reproducible")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Git repository with a model, and `first.fuseconv`, which another process converted."""
    folder = tmp_path_factory.mktemp("provenance")
    module = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 8)).eval()
    batch = {0: torch.export.Dim("batch", min=1, max=16)}
    torch.export.save(torch.export.export(module, (torch.randn(3, 8),), dynamic_shapes=(batch,)), folder / "model.pt2")
    git = ["git", "-c", "user.name=A", "-c", "user.email=a@b.c"]
    subprocess.run([*git, "init", "-q"], cwd=folder, check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "A model"], cwd=folder, check=True)
    words = [sys.executable, "-m", "fuseconv", "convert", "model.pt2", "-o", "first.fuseconv", "-q", *WORDS]
    subprocess.run(words, cwd=folder, env={**os.environ, "PYTHONHASHSEED": "1"}, check=True)
    return folder


def as_json(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    status = cli.main([*map(str, words), "--json"])
    record: dict[str, Any] = json.loads(capsys.readouterr().out)
    return status, record


def test_two_conversions_give_the_same_bytes_and_record_how(folder: Path) -> None:
    words = ["convert", str(folder / "model.pt2"), "-o", "other/second.fuseconv", "-v", "--json", *WORDS]
    done = warm_python.run(f"import sys; from fuseconv.cli import main; sys.exit(main({words!r}))", folder)
    assert done.returncode == 0, done.stdout
    assert json.loads(done.stdout)["result"]["varying"] == {}
    first, second = folder / "first.fuseconv", folder / "other" / "second.fuseconv"
    files = sorted(path.relative_to(first) for path in first.rglob("*") if path.is_file())
    assert files == sorted(path.relative_to(second) for path in second.rglob("*") if path.is_file())
    assert Path(SBOM) in files
    assert [str(name) for name in files if not filecmp.cmp(first / name, second / name, shallow=False)] == []

    made = open_bundle(first).invocation
    assert made is not None
    targets = [word for name in NAMES for word in ("--target", name)]
    assert made.command == ["fuseconv", "convert", "model.pt2", *targets, "--reproducible"]
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, check=True)
    assert made.revision == head.stdout.strip()
    assert str(folder) not in (first / MANIFEST).read_text()


@pytest.mark.parametrize("words", [("--tune", "quick"), ("--search",), ("--not-slower-than", "eager")])
def test_a_reproducible_conversion_measures_nothing(
    words: tuple[str, ...], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, record = as_json(capsys, "convert", folder / "model.pt2", "-o", folder / "none", "--reproducible", *words)
    assert status == 2, record["error"]
    assert f"cannot be combined with {words[0]}: " in record["error"]["message"]
    assert not (folder / "none").exists()


def test_a_bundle_is_signed_verified_and_not_signed_after_a_swap(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = tmp_path / "m.fuseconv"
    assert cli.main(["convert", str(folder / "model.pt2"), "-o", str(bundle), "--target", "export", "-q"]) == 0
    key, public = tmp_path / "key.pem", tmp_path / "key.pub"
    private = ec.generate_private_key(ec.SECP256R1())
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    key.write_bytes(private.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    public.write_bytes(private.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo))

    assert as_json(capsys, "sign", bundle, "--key", key)[1]["result"] == {"signature": str(bundle / SIGNATURE)}
    status, record = as_json(capsys, "verify", bundle, "--signer", public)
    assert (status, record["result"]["signature"]) == (0, "ok")
    output = tmp_path / "y.npz"
    assert as_json(capsys, "run", bundle, "--signer", public, "-o", output)[0] == 0
    assert output.is_file()

    state = torch.export.load(folder / "model.pt2").state_dict
    torch.save({name: tensor * 0.5 for name, tensor in state.items()}, tmp_path / "half.pt")
    status, record = as_json(capsys, "swap", bundle, tmp_path / "half.pt")
    assert (status, record["result"]["signature"]) == (0, "removed")
    status, record = as_json(capsys, "verify", bundle, "--signer", public)
    assert status == 3
    assert record["error"]["message"] == "the bundle is not signed: it contains no model.sig"
    assert f"fuseconv sign {bundle} --key KEY" in record["error"]["hint"]
    output.unlink()
    assert as_json(capsys, "run", bundle, "--signer", public, "-o", output)[0] == 3
    assert not output.exists()


ORIGINALS: dict[str, tuple[list[str], str | None]] = {
    "a state dict": (
        ["convert", "m.pt", "--target", "aoti", "--model", "net.py:Net", "--trust", "pickle", "--trust", "code"],
        "m.pt --model net.py:Net --trust pickle --trust code",
    ),
    "a name with a space": (["convert", "my model.pt2"], "'my model.pt2'"),
    "a method": (["convert", "m.pt", "--method", "encode"], None),
    "no model": (["demo"], None),
}


@pytest.mark.parametrize("name", ORIGINALS)
def test_the_record_names_the_original_and_how_to_read_it(name: str) -> None:
    words, original = ORIGINALS[name]
    assert Invocation(command=["fuseconv", *words]).original() == original

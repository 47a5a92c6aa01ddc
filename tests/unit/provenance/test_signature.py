"""The signature of a bundle covers every file of it, and errors name what differs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from fuseconv.bundle.files import MANIFEST, SIGNATURE, WEIGHTS
from fuseconv.bundle.links import link
from fuseconv.bundle.manifest import open_bundle, seal
from fuseconv.errors import FuseconvError, RefusedError, UsageError
from fuseconv.provenance.signature import PASSWORD, sign, verify_signature
from fuseconv.runtime.methods import Methods, load

PEM, SUBJECT = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo


@dataclass(frozen=True)
class Keys:
    private: Path
    public: Path


def write_keys(
    folder: Path, name: str, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey, password: str = ""
) -> Keys:
    secret = serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
    keys = Keys(folder / f"{name}.pem", folder / f"{name}.pub")
    keys.private.write_bytes(key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, secret))
    keys.public.write_bytes(key.public_key().public_bytes(PEM, SUBJECT))
    return keys


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return write_keys(tmp_path_factory.mktemp("keys"), "own", ec.generate_private_key(ec.SECP256R1()))


@pytest.fixture
def signed(bundle_copy: Path, keys: Keys) -> Path:
    assert sign(bundle_copy, keys.private) == bundle_copy / SIGNATURE
    return bundle_copy


def test_a_signed_bundle_is_verified_also_as_a_copy_and_is_opened_as_before(
    signed: Path, keys: Keys, tmp_path: Path
) -> None:
    verify_signature(signed, keys.public)
    copy = Path(shutil.copytree(signed, tmp_path / "elsewhere" / "renamed"))
    verify_signature(copy, keys.public)
    assert SIGNATURE not in open_bundle(copy).files
    sign(copy, keys.private)  # again
    verify_signature(copy, keys.public)
    assert sorted(path.name for path in copy.parent.iterdir()) == ["renamed"]


def test_load_with_a_signer_loads_and_swaps_only_what_is_signed(
    signed: Path, keys: Keys, bundle: Path, tmp_path: Path
) -> None:
    model = load(signed, "torchscript", signer=keys.public)
    copy = Path(shutil.copytree(signed, tmp_path / "swapped.fuseconv"))
    model.swap(copy)
    with pytest.raises(RefusedError, match="the bundle is not signed"):
        model.swap(bundle)
    with pytest.raises(RefusedError, match="the bundle is not signed"):
        load(bundle, "torchscript", signer=str(keys.public))
    load(bundle, "torchscript")
    manifest = open_bundle(copy)
    seal(copy, manifest.model_copy(update={"fuseconv": "9.9"}))
    with pytest.raises(RefusedError, match="the files differ from the signed files"):
        load(copy, "torchscript", signer=keys.public)
    other = write_keys(tmp_path, "other", ec.generate_private_key(ec.SECP256R1()))
    with pytest.raises(RefusedError, match="Key mismatch"):
        load(signed, "torchscript", signer=other.public)


def test_load_with_a_signer_checks_every_method(generating_folder: Path, keys: Keys, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(generating_folder / "llama.fuseconv", tmp_path / "llama.fuseconv"))
    sign(bundle, keys.private)
    loaded = load(bundle, signer=keys.public)
    assert isinstance(loaded, Methods)
    assert set(loaded.methods) == {"prefill", "decode"}
    method = bundle / "methods" / "decode"
    load(method, signer=keys.public)
    seal(method, open_bundle(method).model_copy(update={"fuseconv": "9.9"}))
    for path in (bundle, method, bundle / "methods" / "prefill"):
        with pytest.raises(RefusedError):
            load(path, signer=keys.public)


def reseal(bundle: Path) -> None:
    """What someone does who changes a bundle and knows its format."""
    manifest = open_bundle(bundle)
    (bundle / "plan.json").write_text('{"changed": true}\n')
    seal(bundle, manifest)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def linked(bundle: Path) -> None:
    (bundle / SIGNATURE).rename(bundle.parent / "sig")
    (bundle / SIGNATURE).symlink_to("../sig")


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a changed file": (lambda bundle: flip(bundle / WEIGHTS), "weights.safetensors does not have the sha256"),
    "an added file": (lambda bundle: (bundle / "lib" / "more.so").touch(), "lib/more.so is not in the manifest"),
    "a file that Git would ignore": (lambda bundle: (bundle / ".gitignore").touch(), ".gitignore is not in the manif"),
    "an added folder": (lambda bundle: (bundle / "more").mkdir(), "more is not in the manifest"),
    "a removed file": (lambda bundle: (bundle / "plan.json").unlink(), "plan.json is missing"),
    "another manifest": (reseal, "the files differ from the signed files"),
    "no manifest": (lambda bundle: (bundle / MANIFEST).unlink(), "manifest.json is missing"),
    "no signature": (
        lambda bundle: (bundle / SIGNATURE).unlink(),
        "the bundle is not signed: it contains no model.sig",
    ),
    "a signature that is a link": (linked, "the signature cannot be read"),
    "an empty signature": (lambda bundle: (bundle / SIGNATURE).write_text(""), "the signature is not valid"),
    "JSON that is no signature": (lambda bundle: (bundle / SIGNATURE).write_text("[]"), "the signature is not valid"),
    "deep JSON": (lambda bundle: (bundle / SIGNATURE).write_text("[" * 200_000), "the signature is not valid"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_was_not_signed_is_refused(damage: str, signed: Path, keys: Keys) -> None:
    make, said = DAMAGES[damage]
    make(signed)
    with pytest.raises(RefusedError) as caught:
        verify_signature(signed, keys.public)
    assert said in caught.value.what
    assert caught.value.where.startswith(str(signed))
    assert caught.value.fix


def test_a_payload_that_was_changed_is_not_by_this_signer(signed: Path, keys: Keys) -> None:
    record = json.loads((signed / SIGNATURE).read_text())
    payload = record["dsseEnvelope"]["payload"]
    record["dsseEnvelope"]["payload"] = payload[:-8] + ("A" if payload[-8] != "A" else "B") + payload[-7:]
    (signed / SIGNATURE).write_text(json.dumps(record))
    with pytest.raises(RefusedError, match="not made with this signer's private key"):
        verify_signature(signed, keys.public)


def test_another_signer_is_refused(signed: Path, tmp_path: Path) -> None:
    other = write_keys(tmp_path, "other", ec.generate_private_key(ec.SECP384R1()))
    with pytest.raises(RefusedError, match="Key mismatch"):
        verify_signature(signed, other.public)


def test_an_encrypted_key_needs_its_password(
    bundle_copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = write_keys(tmp_path, "secret", ec.generate_private_key(ec.SECP256R1()), password="word")
    for given in (None, "wrong"):
        if given is not None:
            monkeypatch.setenv(PASSWORD, given)
        with pytest.raises(UsageError) as caught:
            sign(bundle_copy, keys.private)
        assert PASSWORD in caught.value.fix
        assert not (bundle_copy / SIGNATURE).exists()
    monkeypatch.setenv(PASSWORD, "word")
    sign(bundle_copy, keys.private)
    verify_signature(bundle_copy, keys.public)


def test_what_is_not_a_key_is_an_error(bundle: Path, keys: Keys, tmp_path: Path) -> None:
    other = write_keys(tmp_path, "rsa", rsa.generate_private_key(65537, 2048))
    (tmp_path / "noise").write_bytes(bytes(range(256)))
    for wrong in (tmp_path / "noise", keys.public, other.private):
        with pytest.raises(UsageError, match="cannot be read as a private ECDSA key"):
            sign(bundle, wrong)
    for wrong in (tmp_path / "noise", keys.private, other.public):
        with pytest.raises(UsageError, match="cannot be read as a public ECDSA key"):
            verify_signature(bundle, wrong)
    for function in (sign, verify_signature):
        with pytest.raises(FuseconvError, match="the key cannot be read: it is a folder"):
            function(bundle, tmp_path)


def test_a_damaged_bundle_is_not_signed(bundle_copy: Path, keys: Keys) -> None:
    flip(bundle_copy / WEIGHTS)
    with pytest.raises(RefusedError, match="does not have the sha256"):
        sign(bundle_copy, keys.private)
    assert not (bundle_copy / SIGNATURE).exists()


def test_a_copy_that_will_be_another_bundle_has_no_signature(signed: Path, tmp_path: Path) -> None:
    link(signed, tmp_path / "next")
    assert not (tmp_path / "next" / SIGNATURE).exists()
    assert (signed / SIGNATURE).is_file()
    assert (tmp_path / "next" / MANIFEST).is_file()

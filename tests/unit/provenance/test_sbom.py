"""The SBOM of a bundle is valid CycloneDX, and has every library with its hash, its licence and its origins."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from fuseconv.errors import FileError
from fuseconv.ops import library
from fuseconv.provenance.sbom import _ORIGINS, BUILT_WITH, SBOM, write_sbom
from fuseconv.version import __version__


def sbom(bundle: Path, built_in: Path) -> dict[str, Any]:
    (bundle / SBOM).unlink(missing_ok=True)
    write_sbom(bundle, built_in)
    text = (bundle / SBOM).read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    found: dict[str, Any] = json.loads(text)
    return found


def test_every_library_is_listed(bundle_copy: Path) -> None:
    foreign = bundle_copy / "lib" / "libmine.so"
    foreign.write_bytes(b"code of a pack")
    found = sbom(bundle_copy, library.FOLDER)
    components = {one["bom-ref"]: one for one in found["components"]}
    for path in (bundle_copy / "lib").iterdir():
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        assert components[f"lib/{path.name}"]["hashes"] == [{"alg": "SHA-256", "content": sha256}]
    uses = {one["ref"]: one["dependsOn"] for one in found["dependencies"]}
    assert uses["model"] == ["lib/libfuseconv_cpu.so", "lib/libfuseconv_ort_cpu.so", "lib/libmine.so"]
    own, torch = uses["lib/libfuseconv_cpu.so"]
    assert components[own]["version"] == components["lib/libfuseconv_cpu.so"]["version"] == __version__
    assert components[torch]["licenses"] == [{"license": {"id": "BSD-3-Clause"}}]
    assert components[torch]["purl"].startswith("pkg:pypi/torch@2.")
    assert "licenses" not in components["lib/libmine.so"]
    assert "lib/libmine.so" not in uses


def test_a_library_of_another_build_is_not_said_to_be_of_this_one(bundle_copy: Path) -> None:
    path = bundle_copy / "lib" / "libfuseconv_cpu.so"
    path.write_bytes(path.read_bytes() + b"\0")
    (first, *_) = sbom(bundle_copy, library.FOLDER)["components"]
    assert (first["name"], first["type"]) == (path.name, "library")
    assert "version" not in first
    assert "are not known" in first["description"]


def test_everything_a_build_may_use_has_a_licence(tmp_path: Path) -> None:
    """Also of libraries that were not built here."""
    for folder in ("bundle", "built"):
        (tmp_path / folder / "lib").mkdir(parents=True)
        for parent in (tmp_path / folder, tmp_path / folder / "lib"):
            (parent / "libfuseconv_cuda.so").write_bytes(b"code")
    built = {"compiler": "GNU 12", "libraries": {"libfuseconv_cuda.so": dict.fromkeys(_ORIGINS, "1.2")}}
    (tmp_path / "built" / BUILT_WITH).write_text(json.dumps(built))
    found = sbom(tmp_path / "bundle", tmp_path / "built")
    named = {one["name"]: one for one in found["components"]}
    assert named.keys() == {"libfuseconv_cuda.so", "fuseconv", *(origin.name for origin in _ORIGINS.values())}
    assert all(one["licenses"] for one in named.values())


def test_the_build_writes_what_it_used() -> None:
    built = json.loads((library.FOLDER / BUILT_WITH).read_text())
    assert built["libraries"].keys() == {path.name for path in library.FOLDER.glob("*.so")}
    for versions in built["libraries"].values():
        assert versions.keys() <= _ORIGINS.keys()
        assert all(version[0].isdigit() for version in versions.values())


def test_an_older_build_says_what_to_do(bundle_copy: Path, tmp_path: Path) -> None:
    shutil.copy(library.FOLDER / "libfuseconv_cpu.so", tmp_path)
    with pytest.raises(FileError, match=r"built_with\.json is missing next to the op libraries") as caught:
        write_sbom(bundle_copy, tmp_path)
    assert "make build" in caught.value.fix

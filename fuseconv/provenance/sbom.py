"""Writes the software bill of materials (SBOM) of the op libraries in a bundle, as CycloneDX 1.6 JSON.

The SBOM is written during the conversion, because the libraries come from the fuseconv that converts. The fuseconv that
later reads the bundle may be built from other versions of its dependencies. The SBOM contains no time and no random
serial number, so that two conversions write the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuseconv.bundle.files import LIBRARIES, measure_file
from fuseconv.bundle.sealed_text import spell
from fuseconv.errors import FileError
from fuseconv.version import __version__

SBOM = "sbom.cdx.json"

BUILT_WITH = "built_with.json"
"""The file that the build writes beside the libraries. It names the compiler and, for each library, the versions of the
projects from which the library was compiled."""


@dataclass(frozen=True)
class Origin:
    """A software project from which libraries are compiled.

    Attributes:
        name: the name of the project.
        license: the SPDX identifier of the project's license, or the license's name if it has no identifier.
        package: the package URL (purl) of the project without the version. Empty if the project is in no package
            registry.
        part: a description of the part of the project that a library contains or uses.
    """

    name: str
    license: str
    package: str
    part: str


_SPDX = ("BSD-3-Clause", "MIT")

_OWN = Origin("fuseconv", "MIT", "pkg:pypi/fuseconv", "the kernels and the bindings")

_ORIGINS = {
    "cublas": Origin("cuBLAS", "NVIDIA CUDA Toolkit EULA", "", "headers; the library is loaded at run time"),
    "cuda": Origin("CUDA Toolkit", "NVIDIA CUDA Toolkit EULA", "", "headers, and the CUDA runtime, linked statically"),
    "nlohmann-json": Origin("JSON for Modern C++", "MIT", "pkg:github/nlohmann/json", "headers"),
    "onnxruntime": Origin("ONNX Runtime", "MIT", "pkg:github/microsoft/onnxruntime", "the header of its C API"),
    "torch": Origin("PyTorch", "BSD-3-Clause", "pkg:pypi/torch", "headers of its stable ABI; loaded at run time"),
}
"""The projects, by their names in the file `BUILT_WITH`."""


def write_sbom(bundle: Path, built_in: Path) -> None:
    """Writes `sbom.cdx.json` into a bundle.

    Args:
        bundle: the folder of the bundle. Its libraries that do not belong to the installed fuseconv, such as libraries
            of custom ops, are listed with their hashes only.
        built_in: the folder of the installed fuseconv's libraries.

    Raises:
        FileError: `built_with.json` is missing because an older version built the libraries, or a file cannot be
            written.
    """
    path = built_in / BUILT_WITH
    try:
        built = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        fix = "run `make build`, or reinstall fuseconv"
        raise FileError(f"{BUILT_WITH} is missing next to the op libraries", where=str(path), fix=fix) from None
    try:
        files = {path.name: measure_file(path).sha256 for path in sorted((bundle / LIBRARIES).iterdir())}
        known: Mapping[str, Mapping[str, str]] = built["libraries"]
        versions = {name: known[name] for name in files if name in known and _is(built_in / name, files[name])}
        (bundle / SBOM).write_bytes(spell(_document(files, versions, built["compiler"])))
    except OSError as error:
        raise FileError(f"the SBOM cannot be written: {error.strerror}", where=str(bundle / SBOM)) from error


def _is(path: Path, sha256: str) -> bool:
    return path.is_file() and measure_file(path).sha256 == sha256


def _document(libraries: Mapping[str, str], versions: Mapping[str, Mapping[str, str]], compiler: str) -> dict[str, Any]:
    """Returns the SBOM as a CycloneDX document.

    Args:
        libraries: the SHA-256 of each library, by the file name of the library.
        versions: the versions of the projects from which a library of fuseconv was compiled, by the file name of the
            library and the name of the project. Libraries that are not part of fuseconv are not listed.
        compiler: the compiler that built the libraries in `versions`.
    """
    own = _component(_OWN, __version__)
    origins: dict[str, dict[str, Any]] = {own["bom-ref"]: own}
    files, depends = [], []
    for name, sha256 in libraries.items():
        file: dict[str, Any] = {"type": "library", "bom-ref": f"{LIBRARIES}/{name}", "name": name}
        file["hashes"] = [{"alg": "SHA-256", "content": sha256}]
        files.append(file)
        if name not in versions:
            file["description"] = "not a library of fuseconv: its sources are not known"
            continue
        file |= {
            "version": __version__,
            "licenses": _licenses(_OWN.license),
            "properties": [{"name": "fuseconv:compiler", "value": compiler}],
        }
        used = [own, *(_component(_ORIGINS[origin], version) for origin, version in sorted(versions[name].items()))]
        origins |= {one["bom-ref"]: one for one in used}
        depends.append({"ref": file["bom-ref"], "dependsOn": [one["bom-ref"] for one in used]})
    model = {"type": "machine-learning-model", "bom-ref": "model", "name": "model"}
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": model, "tools": {"components": [_tool()]}},
        "components": [*files, *origins.values()],
        "dependencies": [{"ref": "model", "dependsOn": [file["bom-ref"] for file in files]}, *depends],
    }


def _tool() -> dict[str, Any]:
    return {"type": "application", "name": _OWN.name, "version": __version__}


def _component(origin: Origin, version: str) -> dict[str, Any]:
    """Returns the CycloneDX component for one version of a project."""
    located = {"purl": f"{origin.package}@{version.replace('+', '%2B')}"} if origin.package else {}
    return {
        "type": "library",
        "bom-ref": f"{origin.name} {version}",
        "name": origin.name,
        "version": version,
        "description": origin.part,
        "licenses": _licenses(origin.license),
        **located,
    }


def _licenses(name: str) -> list[dict[str, Any]]:
    return [{"license": {"id" if name in _SPDX else "name": name}}]

"""Hashes everything from which a bundle is built. A bundle with an unchanged hash is up to date and is kept."""

from __future__ import annotations

import hashlib
import json
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from fuseconv.errors import FileError
from fuseconv.many.listing import Entry, Options
from fuseconv.rulebook.own_rules import load_rules
from fuseconv.sources.subject import digest
from fuseconv.untrusted.files import leads_somewhere
from fuseconv.untrusted.hub import reference
from fuseconv.version import __version__

PACKAGES = ("torch", "onnx", "onnx-ir", "onnxscript", "onnxruntime", "onnxruntime-gpu", "transformers", "egglog")
"""The packages on which the content of a bundle depends."""

FILES = ("inputs", "plan")
"""The options whose values are files that a conversion reads. The rules are hashed separately."""


def fingerprint(entry: Entry, defaults: Options) -> str:
    """Returns one SHA-256 over the model, its rules, options and their files, the package versions, and the machine.

    Args:
        entry: the model to convert, with its options.
        defaults: the options from the project's settings, which the options of the entry override.

    Raises:
        FileError: the model or a file in its options cannot be read.
        RuleError: the rules cannot be read.
    """
    if reference(entry.model) is None and not leads_somewhere(entry.model):
        raise FileError.absent(entry.model)
    options = {**defaults, **entry.options}
    rules = entry.options.get("rules")
    files = [entry.options[key] for key in FILES if key in entry.options]
    made_from = {
        "source": digest(entry.model),
        "rules": sorted(rule.sha256 for rule in load_rules(rules if isinstance(rules, str) else None)),
        "options": options,
        "files": [digest(Path(str(file))) for file in files],
        "environment": environment(),
    }
    return hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()


def environment() -> dict[str, str | None]:
    """Returns what a bundle depends on besides its files, by name: the versions of packages, and the kind of machine.

    The version of a package that is not installed is None.
    """
    python, processor = platform.python_version(), platform.machine()
    packages = {name: _version(name) for name in PACKAGES}
    return {"fuseconv": __version__, **packages, "python": python, "processor": processor}


def _version(package: str) -> str | None:
    """Returns the version of an installed package, or None if the package is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None

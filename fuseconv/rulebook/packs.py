"""Rule packs: rules with custom ops. Python files register the ops, and bundles contain the libraries that they load.

A rule file lists the Python files under `ops`. The files are code and run only if the user passes `--trust code`.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Collection, Iterable
from pathlib import Path

from fuseconv.errors import RefusedError, RuleError, UnsupportedError
from fuseconv.rulebook.rule import Rule
from fuseconv.untrusted.files import open_plain

_RUN: dict[Path, tuple[Path, ...]] = {}
"""Maps each op file that was run in this process to the libraries that it loaded. No file is run twice, because an op
can be registered only once."""

_LIBRARIES: dict[str, str] = {}
"""Maps the file name of each pack library loaded in this process to the library's SHA-256 hash."""

_OURS = "libfuseconv_"


def op_files(rules: Iterable[Rule]) -> tuple[Path, ...]:
    """Returns the files that register the custom ops of the rules, without duplicates."""
    return tuple(dict.fromkeys(path for rule in rules for path in rule.ops))


def require_trust(files: Iterable[Path], trust: Collection[str]) -> None:
    """Checks that the user trusts the code of op files. Does nothing if there are no files.

    Raises:
        RefusedError: there are op files, and `trust` does not contain `code`.
    """
    for path in files:
        if "code" not in trust:
            what = f"the rules use custom ops, and {path.name} must run to register them"
            raise RefusedError(what, where=str(path), fix="if you trust its author, add --trust code")


def load_ops(files: Iterable[Path], trust: Collection[str]) -> tuple[Path, ...]:
    """Runs the op files, each once per process, so that they register their ops.

    Args:
        files: the files to run, as returned by `op_files`.
        trust: the kinds of code that may run. If there are files, `trust` must contain `code`.

    Returns:
        The libraries that the files loaded with `torch.ops.load_library`, in the order of the files.

    Raises:
        RefusedError: the code is not trusted.
        RuleError: running a file fails.
    """
    from fuseconv.untrusted.permitted import trust_libraries

    files = tuple(files)
    require_trust(files, trust)
    libraries: list[Path] = []
    for path in files:
        trust_libraries()
        if path not in _RUN:
            _RUN[path] = _run(path)
        libraries += _RUN[path]
    return tuple(dict.fromkeys(libraries))


def _run(path: Path) -> tuple[Path, ...]:
    import torch

    before = set(torch.ops.loaded_libraries)
    try:
        spec = importlib.util.spec_from_file_location(f"fuseconv_pack_{path.parent.name}_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    except Exception as error:
        what = f"{path.name} cannot be run: {type(error).__name__}: {error}"
        raise RuleError(
            what, where=str(path), fix="see the README of the rule pack; its library may have to be built first"
        ) from error
    loaded = tuple(Path(library) for library in sorted(set(torch.ops.loaded_libraries) - before))
    for library in loaded:
        _LIBRARIES[library.name] = _digest(library)
    return loaded


def load_library(path: Path) -> None:
    """Loads an op library of a bundle, unless the same library is already loaded.

    An op can be registered only once per process.

    Raises:
        UnsupportedError: a different library with the same name is already loaded, or a library that has another schema
            of an op.
        OSError, RuntimeError: the library cannot be loaded.
    """
    from fuseconv.ops.library import load_into_torch

    if not path.name.startswith(_OURS):  # copies of ours find each other, see docs/adr/0002-op-library.md
        digest = _digest(path)
        known = _LIBRARIES.get(path.name)
        if known is not None and known != digest:
            raise UnsupportedError(
                f"another {path.name} is already loaded in this process, and an op can be registered only once",
                where=str(path),
                fix="load one of the two bundles in a separate process",
            )
        if known == digest:
            return
        _LIBRARIES[path.name] = digest
    load_into_torch(path)


def _digest(path: Path) -> str:
    with open_plain(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

"""Models on a Hugging Face hub: the reference `hf://OWNER/NAME@REVISION`, and the download of the files it names.

Only data is downloaded: weights in .safetensors, JSON, and the files of tokenizers, all from the top folder of the
repository. Python files are downloaded only if the caller trusts code. Pickles are never downloaded. A download is a
local folder, which is read like any other Hugging Face folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

from fuseconv.errors import FileError, FuseconvError, UnsupportedError, UsageError, is_out_of_memory

SCHEME = "hf:"
"""The first part of a reference that was converted to a path. `Path` makes one slash of two."""

DATA = ("*.safetensors", "*.json", "*.model", "*.txt", "*.jinja")
"""The patterns of the files to download: weights, configs, and tokenizers with their vocabularies and templates."""

CODE = ("*.py",)

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_REVISION = re.compile(r"[\w./-]+")
_COMMIT = re.compile(r"[0-9a-f]{40}")

_ELSEWHERE = "convert a local folder instead, or set HF_ENDPOINT to the URL of a mirror"


@dataclass(frozen=True)
class Reference:
    """A model on a hub.

    Attributes:
        repository: `OWNER/NAME`, or `NAME` for the hub's oldest models.
        revision: a branch, a tag or a commit. None for the default branch.
    """

    repository: str
    revision: str | None = None

    @property
    def name(self) -> str:
        """The name of the model without its owner."""
        return self.repository.rpartition("/")[2]

    def __str__(self) -> str:
        return f"hf://{self.repository}" + (f"@{self.revision}" if self.revision else "")


@dataclass(frozen=True)
class Snapshot:
    """The files of a model at one commit.

    Attributes:
        folder: the local folder of the files, in the cache that all programs of Hugging Face share. It may also contain
            files that another program downloaded.
        repository: the repository on the hub.
        commit: the commit to which the revision was resolved, 40 hexadecimal digits.
    """

    folder: Path
    repository: str
    commit: str


def reference(path: str | Path) -> Reference | None:
    """Returns the model that a path such as `hf://OWNER/NAME@REVISION` names, or None for the path of a local file.

    Raises:
        UsageError: the path begins with `hf:`, but what follows is not the name of a model.
    """
    first, *others = Path(path).parts or ("",)
    if first != SCHEME:
        return None
    name, at, revision = "/".join(others).partition("@")
    if not _NAME.fullmatch(name) or ".." in name or (at and not _REVISION.fullmatch(revision)):
        raise UsageError(
            f"{'/'.join(others)!r} does not name a model of the hub",
            where=str(path),
            fix="write hf://OWNER/NAME@REVISION, where REVISION is a commit, a tag or a branch",
        )
    return Reference(name, revision or None)


def local(path: str | Path, trust: Collection[str] = ()) -> Path:
    """Returns the path of a model's files: that of the download for a model on a hub, else the path itself.

    Args:
        path: a path, or a reference to a model on a hub.
        trust: the kinds of code that are trusted; see `Options.trust`.

    Raises:
        FuseconvError: see `download`.
    """
    found = reference(path)
    return Path(path) if found is None else download(found, code="code" in trust).folder


def is_data(name: str) -> bool:
    """Returns whether a file of a snapshot is data that `download` downloads, by its path in the folder."""
    return "/" not in name and any(fnmatch(name, pattern) for pattern in DATA)


def download(model: Reference, *, code: bool = False) -> Snapshot:
    """Downloads the files of a model into the cache of huggingface_hub, and returns their folder.

    Files that are in the cache are not downloaded again. Without a network, a commit whose files are all in the cache
    is still found.

    Args:
        model: the model.
        code: whether Python files are downloaded too.

    Raises:
        FileError: the hub cannot be reached, has no such model or revision, refuses access, or the download stopped.
        UnsupportedError: huggingface_hub is not installed.
    """
    try:
        from huggingface_hub import snapshot_download, utils
    except ImportError as error:
        raise UnsupportedError(
            "a model on a hub needs the package huggingface_hub",
            where=str(model),
            fix="pip install 'fuseconv[huggingface]'",
        ) from error
    try:
        with _quiet(utils):
            commit = _commit(model, _endpoint())
            folder = snapshot_download(
                model.repository,
                revision=commit,
                endpoint=_endpoint(),
                allow_patterns=[*DATA, *(CODE if code else ())],
                ignore_patterns=["*/*"],
            )
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise _explained(error, model) from error
    return Snapshot(Path(folder), model.repository, commit)


@cache
def _commit(model: Reference, endpoint: str) -> str:
    """Returns the commit of a reference. A process asks once, so a branch that moves does not mix two versions."""
    from huggingface_hub import HfApi

    if model.revision is not None and _COMMIT.fullmatch(model.revision):
        return model.revision
    return str(HfApi(endpoint=endpoint).model_info(model.repository, revision=model.revision).sha)


def _endpoint() -> str:
    """Returns the URL of the hub. huggingface_hub reads HF_ENDPOINT when it is imported, which may be too early."""
    from huggingface_hub import constants

    return (os.environ.get("HF_ENDPOINT") or str(constants.ENDPOINT)).rstrip("/")


@contextmanager
def _quiet(bars: Any) -> Iterator[None]:
    """Disables the progress bars of huggingface_hub within the block, because the command shows its own."""
    before = bars.are_progress_bars_disabled()
    bars.disable_progress_bars()
    try:
        yield
    finally:
        if not before:
            bars.enable_progress_bars()


def _explained(error: Exception, model: Reference) -> FuseconvError:
    """Returns the error to report for an error of huggingface_hub, from the most specific to the most general."""
    from huggingface_hub import constants, errors

    where, endpoint = str(model), _endpoint()
    status = getattr(getattr(error, "response", None), "status_code", None)
    login = "log in with `hf auth login`, or set HF_TOKEN"
    if isinstance(error, errors.GatedRepoError) or status == 403:
        what = f"{endpoint} refuses access to {model.repository}"
        fix = f"ask for access at {endpoint}/{model.repository}, and {login}"
    elif isinstance(error, errors.RevisionNotFoundError):
        what = f"{model.repository} has no revision {model.revision}"
        fix = f"give a commit, tag or branch that {endpoint}/{model.repository} lists"
    elif isinstance(error, errors.RepositoryNotFoundError) or status == 401:
        what = f"{endpoint} has no model {model.repository}, or it is private"
        fix = f"check the name; for a private model, {login}"
    elif constants.is_offline_mode():
        what, fix = "HF_HUB_OFFLINE is set, and the files of this revision are not all in the cache", _offline(model)
    elif isinstance(error, OSError) and error.errno is not None and status is None:
        what = f"the download cannot be written: {error.strerror}"
        fix = "free space, or set HF_HOME to a folder on another disk"
    else:
        cause = error
        while isinstance(cause.__cause__, Exception):  # the first error says what happened, the last that files miss
            cause = cause.__cause__
        said = " ".join(str(cause).split())[:300]
        what = f"{endpoint} cannot be reached, or the download stopped: {type(cause).__name__}: {said}"
        fix = f"try again, which continues the download; or {_ELSEWHERE}"
    return FileError(what, where=where, fix=fix)


def _offline(model: Reference) -> str:
    exact = "" if _COMMIT.fullmatch(model.revision or "") else "give the commit of a cached version after @; or "
    return f"{exact}unset HF_HUB_OFFLINE; or {_ELSEWHERE}"

"""A bundle of several methods of one model: a folder per method, and one weights file that all methods share.

The folder `methods/NAME` is itself a bundle, except that its weights are in the folder that contains `methods`. The
names of weights files are relative to that outer folder. The manifest in `methods/NAME` lists the files of the method.
The outer manifest lists all other files, including the manifests of the methods. Nothing here imports torch.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from fuseconv.bundle.files import AGAIN, MANIFEST, SIGNATURE, WEIGHTS, File, compare, measure, measure_file
from fuseconv.bundle.generation import Generation
from fuseconv.bundle.sealed_text import SealedText
from fuseconv.errors import RefusedError, UsageError
from fuseconv.untrusted.files import is_plain, read_plain

METHODS = "methods"

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_TAKEN = ("generate", "generation", "methods", "swap")
"""Names that a method cannot have, because they are attributes of a loaded bundle."""


class MethodsManifest(SealedText):
    """The contents of a bundle of several methods.

    Attributes:
        format: identifies the file as a fuseconv manifest.
        schema_version: the version of this schema: 3.
        fuseconv: the version that wrote the bundle.
        methods: the names of the methods that the bundle contains.
        generation: the settings with which the methods generate tokens. None if they do not generate tokens.
        files: maps the relative path of each file to its size and hash. Not included are this manifest, the signature,
            and the files that the methods' manifests list.
    """

    optional: ClassVar[tuple[str, ...]] = ("generation",)

    format: Literal["fuseconv bundle"] = "fuseconv bundle"
    schema_version: Literal[3] = 3
    fuseconv: str
    methods: list[str]
    generation: Generation | None = None
    files: dict[str, File] = Field(default_factory=dict)


def method_folder(bundle: Path, method: str) -> Path:
    """Returns the path of a method's folder in a bundle."""
    return bundle / METHODS / method


def weights_folder(folder: Path) -> Path:
    """Returns the folder to which names of weights files are relative.

    This is the folder of the whole bundle for a method without its own weights, else `folder` itself.

    Args:
        folder: a bundle, or the folder of a method.
    """
    is_method = folder.parent.name == METHODS and not (folder / WEIGHTS).exists()
    return folder.parents[1] if is_method else folder


def has_methods(folder: Path) -> bool:
    """Returns whether a folder is a bundle of several methods."""
    path = folder / MANIFEST
    return (folder / METHODS).is_dir() and is_plain(path) and b'"schema_version": 3' in read_plain(path)


def check_names(names: Iterable[str]) -> None:
    """Checks that method names are lower-case Python identifiers, because they become attributes and folders.

    Raises:
        UsageError: a name is not allowed.
    """
    for name in names:
        if not _NAME.fullmatch(name) or keyword.iskeyword(name) or name in _TAKEN:
            raise UsageError(
                f"{name!r} cannot be the name of a method",
                where="--method",
                fix="use a lower-case Python name, such as encode",
            )


def seal_methods(folder: Path, manifest: MethodsManifest) -> MethodsManifest:
    """Writes the manifest of a bundle of several methods, and returns it with the hashes of its files.

    Hashes the files that the methods share, and the manifests of the methods.

    Raises:
        OSError: a file cannot be read or written.
        RefusedError: the folder contains something other than regular files and folders.
    """
    sealed = manifest.model_copy(update={"files": _shared(folder, manifest)})
    (folder / MANIFEST).write_bytes(sealed.render())
    return sealed


def read_methods(folder: Path) -> MethodsManifest:
    """Reads the manifest of a bundle of several methods without checking any other file.

    Raises:
        RefusedError: the manifest is damaged.
    """
    path = folder / MANIFEST
    try:
        manifest = MethodsManifest.read(read_plain(path, links=False))
    except (OSError, ValueError, RecursionError) as error:
        raise RefusedError(f"{MANIFEST} is damaged: {error}", where=str(path), fix=AGAIN) from error
    check_names(manifest.methods)
    return manifest


def open_methods(folder: Path) -> MethodsManifest:
    """Reads the manifest and checks that the folder contains exactly the files that the manifest lists.

    The files that the manifests of the methods list are not checked.

    Raises:
        RefusedError: the manifest or a file is missing, damaged, swapped or unexpected. The error names the file.
    """
    manifest = read_methods(folder)
    compare(folder, manifest.files, _shared(folder, manifest))
    return manifest


def check_weights(method: Path) -> None:
    """Checks the hashes of the weights file that a method shares with other methods, and of the method's manifest.

    Does nothing for a bundle that contains its weights.

    Raises:
        RefusedError: the weights file is missing or damaged, or the method's manifest is not the one that the bundle
            lists.
    """
    bundle = weights_folder(method)
    if bundle == method:
        return
    own = (method / MANIFEST).relative_to(bundle).as_posix()
    listed = read_methods(bundle).files
    expected = {name: listed[name] for name in (WEIGHTS, own) if name in listed}
    found = {name: measure_file(bundle / name) for name in (WEIGHTS, own) if (bundle / name).is_file()}
    compare(bundle, expected, found)


def _shared(folder: Path, manifest: MethodsManifest) -> dict[str, File]:
    own = [method_folder(folder, name) for name in manifest.methods]
    listed = measure(folder, {}, (folder / MANIFEST, folder / SIGNATURE, *own))
    return listed | {
        path.relative_to(folder).as_posix(): measure_file(path) for one in own if (path := one / MANIFEST).is_file()
    }

"""Joins several bundles into one bundle, in which they are the methods. The weights are written once, to one file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fuseconv.bundle.generation import Generation
from fuseconv.bundle.manifest import Manifest, read_manifest, seal
from fuseconv.bundle.methods import MethodsManifest, method_folder, seal_methods
from fuseconv.pipeline.original import ARTIFACT
from fuseconv.targets import move_weights
from fuseconv.version import __version__
from fuseconv.weights.joined import Joined, files_of
from fuseconv.weights.table import Table, set_table


def join(bundle: Path, methods: Sequence[str], generation: Generation | None = None) -> None:
    """Joins the bundles in `methods/NAME`, and seals the joined bundle. The artifacts then refer to one weight file.

    Args:
        bundle: the folder of the joined bundle.
        methods: the names of the methods. The folder of each method contains a sealed bundle with its own weights.
        generation: the settings with which the methods generate tokens. None if they do not generate tokens.

    Raises:
        FileError: a file cannot be written.
        RefusedError: a file is damaged.
    """
    folders = [method_folder(bundle, name) for name in methods]
    joined = Joined.write(bundle, folders)
    for folder in folders:
        manifest = read_manifest(folder)
        _refer(folder, manifest, joined)
        for path in files_of(folder):
            path.unlink()
        for path in [one for one in folder.iterdir() if one.is_dir() and not any(one.iterdir())]:
            path.rmdir()
        seal(folder, manifest)
    seal_methods(bundle, MethodsManifest(fuseconv=__version__, methods=list(methods), generation=generation))


def _refer(folder: Path, manifest: Manifest, joined: Joined) -> None:
    """Makes the artifacts and the original program of a method refer to the joined weight file."""
    packages = ((package.target, package.path) for package in manifest.packages)
    for target, artifact in (*manifest.targets.items(), *packages):
        move_weights(target, folder / artifact, joined, folder)
    if (table := Table.of(folder / ARTIFACT)) is not None:
        set_table(folder / ARTIFACT, joined.adopt(ARTIFACT.parent.name, table, folder))

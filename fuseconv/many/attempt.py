"""One attempt at converting a model of a list, on any machine that shares the folders. Does not import torch.

An attempt does not change the output folder, except for the folder of its run: it may be repeated, and two attempts at
the same model may run at the same time.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from fuseconv.bundle.manifest import check_replaceable
from fuseconv.errors import FileError, FuseconvError, UnsupportedError
from fuseconv.many.conversion import Children, How, convert
from fuseconv.many.fingerprint import environment, fingerprint
from fuseconv.many.listing import Entry
from fuseconv.many.output import bundle_of, finished, stage
from fuseconv.many.row import Row


@dataclass(frozen=True)
class Task:
    """A model to convert in a run.

    Attributes:
        entry: the model, with its options.
        folder: the output folder.
        run: the folder of the run, in which a finished bundle waits.
        how: how the model is converted.
        environment: the versions and the machine of the process that runs the list, from `fingerprint.environment`.
    """

    entry: Entry
    folder: Path
    run: Path
    how: How
    environment: Mapping[str, str | None]

    def failed(self, error: FuseconvError, tries: int = 0) -> Row:
        """Returns the row for a model that failed with an error outside of a conversion."""
        name, model, status = self.entry.name, str(self.entry.model), error.exit_status
        return Row(name, model, "failed", error=str(error), exit_status=status, tries=tries)


def attempt(task: Task, children: Children, node: str) -> Row:
    """Returns the stored row of an up-to-date bundle, or converts the model and returns the new row.

    Args:
        task: the model to convert.
        children: starts the child process, and kills it if the run is interrupted.
        node: the name of this machine.

    Returns:
        The row. If its status is `made`, its bundle is in the folder of the run, from where `output.publish` moves it.

    Raises:
        FileError: this machine does not see the output folder or the folder of the project's settings.
        UnsupportedError: this machine has other versions than the process that runs the list.
    """
    _check_node(task, node)
    entry, how = task.entry, task.how
    try:
        made_from = fingerprint(entry, how.defaults)
        if os.path.lexists(bundle := bundle_of(entry.name, task.folder)):
            check_replaceable(bundle)
        if not how.again and (row := finished(task.folder, entry.name, made_from)) is not None:
            return row
        # In a folder of this machine: the output folder may be slow, and may not support the locks of a conversion.
        with tempfile.TemporaryDirectory(prefix="fuseconv-") as scratch:
            row = convert(entry, Path(scratch, bundle.name), how, children)
            row = row if row.status == "failed" else stage(row, task.run)
    except FuseconvError as error:
        return replace(task.failed(error), node=node)
    return replace(row, fingerprint=made_from, node=node)


def _check_node(task: Task, node: str) -> None:
    """Raises an error if a bundle that this machine makes would be lost, or would differ from others of the run."""
    for folder in filter(None, (task.run, task.how.project)):
        if not folder.is_dir():
            raise FileError(
                f"the node {node} does not see the folder",
                where=str(folder),
                fix="mount a shared file system at the same path on every node, "
                "with the list, the models, the output folder and the project's settings",
            )
    here = environment()
    if other := [key for key in here if here[key] != task.environment[key]]:
        found = ", ".join(f"{key} {here[key]} instead of {task.environment[key]}" for key in other)
        raise UnsupportedError(
            f"the node {node} would make other bundles: it has {found}",
            where=f"the node {node}",
            fix="use the same image, with the same versions, on every node",
        )

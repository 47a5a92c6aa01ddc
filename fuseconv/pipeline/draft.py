"""Drafts a rule for a subgraph of a model, and writes it as a rule file or as the folder of a pack."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from fuseconv.drafting import draft as drafting
from fuseconv.drafting.draft import Draft
from fuseconv.drafting.pack import op_named
from fuseconv.errors import FileError
from fuseconv.pipeline.assembly import Progress
from fuseconv.pipeline.read import read_program, silent
from fuseconv.rulebook.own_rules import load_rules
from fuseconv.rulebook.packs import load_ops, op_files
from fuseconv.sources import Options

OWN = "rules/default.json"
"""The name by which a rule file includes the default rules from any folder."""


def draft(
    model: str | Path,
    *,
    first: Sequence[str],
    last: Sequence[str],
    op: str | None = None,
    rules: str | Path | None = None,
    output: str | Path | None = None,
    options: Options | None = None,
    progress: Progress = silent,
) -> tuple[Draft, Path]:
    """Drafts a rule for the subgraph between the first and the last nodes of a model, and writes the rule.

    Args:
        model: the source: a model file or a Hugging Face folder, as in `convert`.
        first: the names of the first nodes, as `explain` and `match` print them.
        last: the names of the last nodes. Their values are the results of the subgraph.
        op: the name of a new op that replaces the subgraph, as `NAME` or `NAMESPACE.NAME`. A pack with the op is then
            written. Default: an existing op that computes the subgraph replaces it, and only a rule file is written.
        rules: the rule file or folder on which the drafted rule builds, as in `convert`.
        output: the path of the rule file, or the folder of the pack. Default: a file or folder in the current folder,
            named after the rule or the op.
        options: how to read the model.
        progress: called with the name of each step; returns a context manager in which the step runs.

    Returns:
        The draft, and the path of the written file or folder.

    Raises:
        UsageError: a node does not exist, the nodes do not enclose a subgraph, `op` is not a valid name, or no existing
            op computes the subgraph.
        UnsupportedError: an op cannot replace the subgraph.
        FileError: the output already exists, or cannot be written.
    """
    name, known = None if op is None else op_named(op), load_rules(rules)
    path = Path(output) if output is not None else None if name is None else Path(name.name)
    if path is not None:
        _check_free(path)
    load_ops(op_files(known), options.trust if options else ())
    _, program = read_program(model, options, progress)
    with progress("draft"):
        made = drafting.draft(program, known, first, last, name)
    if path is None:
        path = Path(f"{made.rule}.json")
        _check_free(path)
    folder = path if made.is_pack else path.parent
    include = OWN if rules is None else os.path.relpath(Path(rules).resolve(), folder.resolve())
    for inside, text in made.files(include).items():
        _write(path / inside if made.is_pack else path, text)
    return made, path


def _check_free(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise FileError(
            "the output path already exists", where=str(path), fix="choose another path with -o, or remove it"
        )
    parent = path.absolute().parent
    if not parent.is_dir():
        raise FileError(
            "the folder of the output does not exist", where=str(parent), fix="create it, or choose another"
        )


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise FileError.unwritable("the file cannot be written", error, str(path)) from error

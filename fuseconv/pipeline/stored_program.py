"""Makes the fused program of a target from the files of its bundle, with the weights that the bundle stores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from fuseconv.bundle.manifest import PLAN, Manifest
from fuseconv.bundle.methods import weights_folder
from fuseconv.errors import UnsupportedError
from fuseconv.matching.rewrite import rewrite
from fuseconv.matching.steps import read_plan
from fuseconv.parity.reference import REFERENCE, read_reference, tried_of
from fuseconv.pipeline.assembly import program_hash
from fuseconv.pipeline.original import ARTIFACT, given, read_original
from fuseconv.program.captured import Program
from fuseconv.program.loading import load_program
from fuseconv.runtime.model import load_libraries
from fuseconv.targets import exported
from fuseconv.weights.store import Store, weights_of
from fuseconv.weights.table import STORE, Table, weights_of_artifact
from fuseconv.weights.tensor_file import mapped


def stored_program(folder: Path, manifest: Manifest, target: str, copy: Path) -> tuple[Program, Store, str]:
    """Returns the fused program of a torch target with the stored weights, a store with these, and the program's hash.

    The bundle contains weights that the plan merges or folds only in the merged or folded form. So the captured program
    is rewritten with NaN in their place, and the result gets the stored weights of the same names. A constant that is
    not stored, because the compiler has written its values into the code, is the one that the rewrite computes. If the
    code of the program depends on NaN, the program of the target export is used instead, if it is the same.

    Args:
        folder: the folder of the bundle, or of one of its methods.
        manifest: the manifest of the bundle. The caller has checked the files.
        target: the name of the target, whose artifact is in the bundle.
        copy: the folder of a copy of the bundle, for whose new artifacts the store is.

    Raises:
        UnsupportedError: the program cannot be made: the artifact contains its weights, the bundle was written without
            its original program, or the program depends on a value that the bundle does not contain.
        RefusedError: a file is damaged.
    """
    table = Table.of(folder / manifest.targets[target])
    if table is None:
        raise _unmakable(target, "its artifact contains the weights", folder)
    load_libraries(folder, manifest, target)
    captured, _ = read_original(folder, manifest)
    inputs = tried_of(read_reference(folder / REFERENCE, manifest.contract))[0].case.inputs
    stored = weights_of_artifact(folder / ARTIFACT, manifest.contract.device) or {}
    program = Program(given(captured, stored), manifest.contract, inputs)
    fused = rewrite(program, read_plan(folder / PLAN).untested().of(target))
    tables = [one for one in _others(folder, manifest) if one.program in ("", table.program)]
    if program_hash(fused) != table.program:
        path = folder / manifest.targets.get(exported.SPEC.name, "")
        if not path.is_file() or (same := Table.of(path)) is None or same.program != table.program:
            why = "it depends on the value of a weight that the bundle contains only merged or folded"
            raise _unmakable(target, why, folder)
        fused = replace(program, exported=load_program(path))
    entries = {name: entry for one in (*tables, table) for name, entry in one.tensors.items()}
    tensors = weights_of(fused.exported)
    if lost := [name for name in tensors if name not in entries and tensors[name].isnan().any()]:
        raise _unmakable(target, f"the bundle does not contain its weight {lost[0]}", folder)
    needed = [name for name in tensors if name in entries]
    whole, files = weights_folder(folder), dict.fromkeys(file for one in (*tables, table) for file in one.files)
    weights = Table(tuple(files), {name: entries[name] for name in needed}).read(whole, manifest.contract.device)
    keys = mapped(whole / STORE).keys()  # the others belong to one artifact, and each artifact has a file for its own
    shared = {name: entries[name] for name in needed if entries[name].key in keys}
    store = Store.reopen(weights_folder(copy), Table((STORE,), shared), {name: weights[name] for name in shared})
    return replace(fused, exported=given(fused.exported, weights)), store, table.program


def _others(folder: Path, manifest: Manifest) -> Iterator[Table]:
    """Yields the tables of the artifacts whose weights are named as in the program: the original and the export."""
    for path in (ARTIFACT.as_posix(), manifest.targets.get(exported.SPEC.name)):
        if path is not None and (table := Table.of(folder / path)) is not None:
            yield table


def _unmakable(target: str, why: str, folder: Path) -> UnsupportedError:
    return UnsupportedError(
        f"the program of the target {target} cannot be made from the bundle: {why}",
        where=str(folder),
        fix="convert the model on this machine",
    )

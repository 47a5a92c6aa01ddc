"""Stores the captured program in a bundle, so that `fuseconv swap` can verify new weights against this program.

`original/model.pt2` is a torch.export archive without weights. `original/weights.json` lists the weights that the fused
program uses unchanged. Of the other weights, which the fused program uses only in merged or folded form, the bundle
contains those of one element, because a rule may write their value into the code.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from torch.export import ExportedProgram

from fuseconv.bundle.manifest import Manifest
from fuseconv.errors import FileError, RefusedError, UnsupportedError
from fuseconv.program.graph_copy import with_weights
from fuseconv.program.loading import load_program
from fuseconv.targets import exported as target
from fuseconv.untrusted.files import read_plain
from fuseconv.weights.store import Store, is_storable, like, weights_of
from fuseconv.weights.table import weights_of_artifact

ARTIFACT = Path("original", "model.pt2")
GIVEN = Path("original", "given.json")


def write_original(exported: ExportedProgram, bundle: Path, store: Store, names: Collection[str] = ()) -> None:
    """Writes a captured program into a bundle, together with the names of the model's weights.

    Args:
        exported: the captured program before fusion.
        bundle: the folder of the bundle.
        store: the weight store of the bundle, which contains the weights that the fused program uses unchanged.
        names: the names of the model's weights. Empty for the parameters and persistent buffers of the program. They
            are required for a program that was read from a bundle, because its state dict contains constants too.

    Raises:
        FileError: a file cannot be written.
    """
    state = {name: tensor for name, tensor in exported.state_dict.items() if is_storable(tensor)}
    given = {name: state[name] for name in names or state}
    others = [name for name, tensor in given.items() if tensor.numel() != 1]
    target.save(exported, bundle / ARTIFACT, store.table(weights_of(exported)), others)
    first: dict[object, str] = {}
    tied = {
        name: first.setdefault((tensor.data_ptr() or name, tensor.shape, tensor.stride()), name)
        for name, tensor in given.items()
    }
    try:
        (bundle / GIVEN).write_text(json.dumps(tied, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise FileError.unwritable("the bundle cannot be written", error, str(bundle / GIVEN)) from error


def read_original(bundle: Path, manifest: Manifest) -> tuple[ExportedProgram, dict[str, str]]:
    """Reads the captured program of an opened bundle. The program contains dummy values for the model's weights.

    Returns:
        The program, and a dict for tied weights. The dict maps each weight's name to the name of the first weight with
        which the weight shares memory: its own name if it shares memory with no earlier weight.

    Raises:
        UnsupportedError: the bundle was written by a version that did not store the program.
        RefusedError: a file is damaged.
    """
    if str(ARTIFACT) not in manifest.files:
        raise UnsupportedError(
            "the bundle does not contain the original program, which the parity check of new weights needs",
            where=str(bundle),
            fix="convert the model again with this version of fuseconv",
        )
    exported = load_program(bundle / ARTIFACT)
    stored = weights_of_artifact(bundle / ARTIFACT, manifest.contract.device) or {}
    try:
        tied = {str(name): str(first) for name, first in json.loads(read_plain(bundle / GIVEN, links=False)).items()}
    except (OSError, ValueError, AttributeError) as error:
        raise RefusedError(f"{GIVEN} is damaged: {error}", where=str(bundle / GIVEN)) from error
    kept = {name: tensor for name, tensor in stored.items() if name not in tied}
    return with_weights(exported, {name: like(exported.state_dict[name], kept[name]) for name in kept}), tied


def given(exported: ExportedProgram, weights: Mapping[str, torch.Tensor]) -> ExportedProgram:
    """Returns the program with the given tensors in place of the model's weights of the same names."""
    return with_weights(exported, {name: like(exported.state_dict[name], one) for name, one in weights.items()})

"""Chooses the target of a bundle to load, without loading any."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import torch

from fuseconv.bundle.manifest import Manifest
from fuseconv.bundle.named_targets import check_named, no_target
from fuseconv.errors import UnsupportedError
from fuseconv.runtime.environment import architecture_problems, device_name, environment
from fuseconv.runtime.packages import why_none
from fuseconv.targets import PREFERENCE, onnx_session, spec_of


def choose_target(manifest: Manifest, wanted: str | None, folder: Path) -> str:
    """Returns the name of the requested target, or of the bundle's default target if `wanted` is None.

    Raises:
        UsageError: the bundle does not contain the target.
    """
    if wanted is None:
        return default_target(manifest, folder)[0]
    check_named(manifest, [wanted], folder)
    return wanted


def choose_targets(manifest: Manifest, wanted: Sequence[str], folder: Path) -> tuple[str, ...]:
    """Returns the names of the requested targets without duplicates. If none is requested, returns all of the bundle.

    Raises:
        UsageError: the bundle does not contain one of the targets.
    """
    return tuple(dict.fromkeys(choose_target(manifest, name, folder) for name in wanted or sorted(manifest.targets)))


def default_target(manifest: Manifest, folder: Path) -> tuple[str, dict[str, str]]:
    """Returns the name of the bundle's default target, and why the targets that are preferred to it were passed over.

    If the targets were timed on a device of the same name, the targets are preferred by their speed there, as far as
    their runtime is installed, and otherwise in the order of `PREFERENCE`. A target is passed over if none of its
    packages was compiled for this machine. If this leaves no target, the default is the first one.

    Raises:
        UsageError: the bundle contains no target that this version of fuseconv knows.
    """
    order = [name for name in dict.fromkeys(chain(_fastest(manifest), PREFERENCE)) if name in manifest.targets]
    if not order:
        raise no_target("", manifest, folder)
    passed_over: dict[str, str] = {}
    for name in order:
        reason = _other_architecture(manifest, name)
        if reason is None:
            return name, passed_over
        passed_over[name] = reason
    return order[0], {}


def _other_architecture(manifest: Manifest, target: str) -> str | None:
    """Returns why this machine runs no package of a target if all of them are for other CPUs or GPUs, otherwise None.

    Returns None too if the bundle is for a GPU and there is none: then no target runs, and loading one says so.
    """
    device = manifest.contract.device
    if device == "cuda" and not torch.cuda.is_available():
        return None
    packages, here = manifest.packages_of(target), environment(device)
    if not all(architecture_problems(one.environment, here, target) for one in packages):
        return None
    return why_none(packages, here)


def _fastest(manifest: Manifest) -> Iterator[str]:
    """Yields the targets whose runtime is installed, fastest first. Yields none if this device was not timed."""
    tuned, device = manifest.tuned, manifest.contract.device
    if tuned is None or (device == "cuda" and not torch.cuda.is_available()) or tuned.device != device_name(device):
        return
    for name in tuned.fastest():
        if name in manifest.targets and spec_of(name).runtime == "onnxruntime":
            try:
                onnx_session.check_installed(device)
            except UnsupportedError:
                continue
        yield name

"""Picks the artifact of a target that this machine runs, before any part of an artifact is loaded.

Machine code runs only on the architecture for which it was compiled, so a bundle may contain several artifacts of a
target that contains machine code: `bundle.packages`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fuseconv.bundle.environment import Environment
from fuseconv.bundle.manifest import Manifest
from fuseconv.bundle.packages import Package
from fuseconv.errors import UnsupportedError
from fuseconv.runtime.environment import architecture_problems, environment, instructions, version_problems
from fuseconv.targets import spec_of


def package_here(manifest: Manifest, target: str, folder: Path) -> Package:
    """Returns the artifact of a target that this machine runs.

    Raises:
        UnsupportedError: every artifact requires another machine architecture or GPU architecture, instructions that
            this processor lacks, or a newer version of torch or ONNX Runtime.
    """
    packages, here = manifest.packages_of(target), environment(manifest.contract.device)
    if (found := fitting(packages, here)) is not None:
        return found
    raise UnsupportedError(why_none(packages, here), where=str(folder), fix=_fix(packages, here))


def why_none(packages: Sequence[Package], here: Environment) -> str:
    """Returns what the packages of a target were built for. The machine must run none of them."""
    target = packages[0].target
    if len(packages) == 1:
        return f"the target {target} was built for {_reason(packages[0], here)}"
    each = ", ".join(_described(one, here) for one in packages)
    return f"the target {target} has packages for {each}, but this machine is {here.architecture}"


def _described(package: Package, here: Environment) -> str:
    """Returns the architecture of a package and, if it is the machine's, what else the package was built for."""
    made = package.environment
    return made.architecture + (f" ({_reason(package, here)})" if made.architecture == here.architecture else "")


def fitting(packages: Sequence[Package], here: Environment) -> Package | None:
    """Returns the package that a machine runs, or None if it runs none.

    Of several, returns the one with the most instructions, and of these the first.
    """
    found = [one for one in packages if not _reason(one, here)]
    return max(found, key=lambda one: len(instructions(one.environment)), default=None)


def _reason(package: Package, here: Environment) -> str:
    """Returns what a package was built for and the machine is not. Empty if the machine runs the package."""
    made, target = package.environment, package.target
    return "; ".join([*architecture_problems(made, here, target), *version_problems(made, here, target)])


def _fix(packages: Sequence[Package], here: Environment) -> str:
    """Returns how to get an artifact for this machine: `fuseconv add` can compile one for another CPU or GPU."""
    first = packages[0].environment
    is_same_kind = first.machine == here.machine and (first.gpu is None) == (here.gpu is None)
    is_old = any(version_problems(one.environment, here, one.target) for one in packages)
    if spec_of(packages[0].target).machine_code and is_same_kind and not is_old:
        return "run `fuseconv add BUNDLE` on this machine, or load another target"
    return "convert the model on this machine"

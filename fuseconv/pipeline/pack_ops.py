"""Registers the ops of the rule packs whose libraries a bundle contains, so that its programs can be compiled again."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from fuseconv.bundle.files import measure_file
from fuseconv.bundle.manifest import Manifest
from fuseconv.errors import UnsupportedError
from fuseconv.ops import library
from fuseconv.rulebook.own_rules import load_rules
from fuseconv.rulebook.packs import load_ops, op_files


def load_pack_ops(
    folder: Path, manifest: Manifest, rules: str | Path | None, trust: Collection[str]
) -> tuple[Path, ...]:
    """Runs the Python files that register the ops of a bundle's rule packs, and returns the files.

    A bundle contains the libraries of its rule packs, but no Python files. Without the files, ops run on tensors, and
    the shapes of their outputs are unknown to torch.export and to the compilers.

    Args:
        folder: the folder of the bundle.
        manifest: the manifest of the bundle. The caller has checked the files.
        rules: the path of the rules with which the model was converted. None if they have no custom ops.
        trust: the kinds of code that may run. If the bundle calls ops of rule packs, it must contain `code`.

    Returns:
        The files; none if the bundle calls only ops of fuseconv.

    Raises:
        UnsupportedError: the bundle calls ops of a rule pack, and `rules` is None or loads no library of this name or
            another library.
        RefusedError: the code is not trusted.
        RuleError: the rules are invalid, or running a file fails.
    """
    own = {path.name for path in library.library_paths(manifest.contract.device)}
    packs = [name for name in manifest.libraries if Path(name).name not in own]
    if not packs:
        return ()
    if rules is None:
        raise UnsupportedError(
            f"the bundle calls ops of a rule pack ({packs[0]}), whose Python files it does not contain",
            where=str(folder),
            fix="give the rules of the conversion with --rules, and, if you trust their author, --trust code",
        )
    files = op_files(load_rules(rules))
    loaded = {path.name: path for path in load_ops(files, trust)}
    for name in packs:
        path = loaded.get(Path(name).name)
        if path is None:
            raise UnsupportedError(
                f"the rules do not load {Path(name).name}, whose ops the bundle calls",
                where=str(rules),
                fix="give the rules of the conversion with --rules",
            )
        if measure_file(path).sha256 != manifest.files[name].sha256:
            raise UnsupportedError(
                f"{path.name} is not the library of the bundle: its bytes differ",
                where=str(path),
                fix=f"copy {folder / name} to this path, if you trust the bundle, or convert the model again",
            )
    return files

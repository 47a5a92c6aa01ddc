"""A bundle is a folder with a manifest that lists the size and hash of every other file.

Nothing here imports torch. The hashes detect damage: truncation, a flipped bit, and files that were swapped, added or
removed. They do not detect malice, because whoever can change a file can also change the manifest. docs/bundle.md
describes every part.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    Field,
    JsonValue,
    PlainSerializer,
    PlainValidator,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)

from fuseconv.bundle.environment import Environment
from fuseconv.bundle.files import AGAIN, MANIFEST, SIGNATURE, WEIGHTS, File, compare, measure
from fuseconv.bundle.invocation import Invocation
from fuseconv.bundle.methods import METHODS, check_weights, has_methods, read_methods, weights_folder
from fuseconv.bundle.packages import Package
from fuseconv.bundle.sealed_text import SealedText, Strict
from fuseconv.bundle.tuned import Tuned
from fuseconv.contract.spec import Contract
from fuseconv.errors import RefusedError, UsageError
from fuseconv.untrusted.files import check_text, check_unshared, is_plain, read_plain
from fuseconv.untrusted.hub import reference

PLAN = "plan.json"
REFERENCE = "reference.safetensors"
"""The file with the inputs and the original's outputs of every case, under keys such as `0/input/x`, `0/original/y`."""

ONNX = "onnx"
"""The folder of weights that only ONNX models use.

The models themselves are next to this folder, because a model can refer to `WEIGHTS` only if both are in one folder."""

SUFFIX = ".fuseconv"


def _contract(value: Any) -> Contract:
    if isinstance(value, Contract):
        return value
    try:
        return Contract.from_json(value)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"invalid contract: {error}") from error


class Source(Strict):
    """The source of a conversion.

    Attributes:
        form: the format of the source, such as `pt2` or `huggingface`.
        sha256: the hash of the source file or folder.
        dtype: the dtype given with `--dtype`, as a short name. None if it was not given.
        original: what the bundle was verified against: `module` (the module itself) or `archive` (the program of an
            archive). None in older manifests.
        repository: the repository on a Hugging Face hub, as `OWNER/NAME`. None if the model was a local file or folder.
        commit: the commit of the repository that was downloaded, to which the given revision was resolved.
    """

    form: str
    sha256: str
    dtype: str | None = None
    original: Literal["module", "archive"] | None = None
    repository: str | None = None
    commit: str | None = None

    @model_serializer(mode="wrap")
    def _spelled(self, handler: SerializerFunctionWrapHandler) -> dict[str, str]:
        """Omits unset fields, so that a manifest that is older than a field still serializes to the same bytes."""
        return {name: value for name, value in handler(self).items() if value is not None}


class RuleUse(Strict):
    """A rule that was applied.

    Attributes:
        name: the name of the rule.
        sha256: the SHA-256 of the rule's text.
        count: the number of times the rule was applied.
    """

    name: str
    sha256: str
    count: int


class LeftOut(Strict):
    """A target that was requested but is not in the bundle.

    Attributes:
        target: the name of the target.
        cause: `unsupported`: the target cannot express the model; `upstream`: its exporter, compiler or runtime failed;
            `parity`: the unfused model's results differ on this target; `plan`: only the fused model's results differ.
        reason: what happened, with the measured values.
    """

    target: str
    cause: Literal["unsupported", "upstream", "parity", "plan"]
    reason: str


class Limit(Strict):
    """A difference between an artifact and the original for NaN, infinities or the limits of a dtype.

    Either the unfused model shows the same difference on that target, or finite inputs at the limits of a dtype make
    the operands of a match exceed the values for which its rule holds.

    Attributes:
        target: the name of the target that differs.
        case: the name of the case in which the target differs.
        output: the name of the output that differs.
        reason: a description of the difference.
    """

    target: str
    case: str
    output: str
    reason: str


class Manifest(SealedText):
    """The contents of a bundle.

    Attributes:
        format: identifies the file as a fuseconv manifest.
        schema_version: the version of this schema: 2, or 4 if `in_place` is not empty, or 5 if `packages` is not empty,
            so that an older fuseconv refuses the bundle. In bundles of version 1, every artifact contains its weights.
        fuseconv: the version that wrote the bundle.
        source: describes the original model.
        contract: the declared inputs and outputs, and the device.
        dtype: the dtype of the weights, as a short name.
        targets: maps the name of each target to the path of its artifact, relative to the bundle.
        packages: more artifacts of a target, compiled for other machines than `environment`. Omitted from the file if
            empty.
        in_place: maps a target to the state inputs into which its artifact writes the next state. Omitted from the file
            if empty.
        rules: the rules that were applied.
        libraries: the paths of the op libraries, relative to the bundle, in the order in which they must be loaded.
        environment: the machine and the software versions with which the bundle was built.
        tolerances: the tolerance table used for the parity rows.
        parity: one row per target, case and output.
        mismatch: whether a parity row fails and the bundle was kept because of `--allow-mismatch`.
        left_out: the targets that were requested but are not in the bundle. Omitted from the file if empty.
        limits: the failing rows that are limitations of a target's runtime. Omitted from the file if empty.
        invocation: how `fuseconv convert` was called. Omitted from the file if the conversion was called from Python.
        tuned: the times of the targets, if they were measured at conversion. Omitted from the file if they were not.
        files: maps the relative path of every file except the manifest and the signature to its size and hash.
    """

    format: Literal["fuseconv bundle"] = "fuseconv bundle"
    schema_version: Literal[1, 2, 4, 5] = 2
    fuseconv: str
    source: Source
    contract: Annotated[Contract, PlainValidator(_contract), PlainSerializer(Contract.to_json)]
    dtype: str
    targets: dict[str, str]
    packages: list[Package] = Field(default_factory=list)
    in_place: dict[str, list[str]] = Field(default_factory=dict)
    rules: list[RuleUse]
    libraries: list[str]
    environment: Environment
    tolerances: dict[str, dict[str, float]]
    parity: list[dict[str, JsonValue]]
    mismatch: bool
    left_out: list[LeftOut] = Field(default_factory=list)
    limits: list[Limit] = Field(default_factory=list)
    invocation: Invocation | None = None
    tuned: Tuned | None = None
    files: dict[str, File] = Field(default_factory=dict)

    optional: ClassVar[tuple[str, ...]] = ("in_place", "invocation", "left_out", "limits", "packages", "tuned")

    def updating_in_place(self, inputs: Mapping[str, Iterable[str]]) -> Manifest:
        """Returns the manifest with another `in_place`, and with the schema version that goes with it."""
        return self._updating(in_place={target: names for target, some in inputs.items() if (names := list(some))})

    def updating_packages(self, packages: Iterable[Package]) -> Manifest:
        """Returns the manifest with other `packages`, and with the schema version that goes with them."""
        return self._updating(packages=list(packages))

    def _updating(self, **fields: Any) -> Manifest:
        changed = self.model_copy(update=fields)
        version = 5 if changed.packages else 4 if changed.in_place else min(self.schema_version, 2)
        return changed.model_copy(update={"schema_version": version})

    def packages_of(self, target: str) -> tuple[Package, ...]:
        """Returns every artifact of a target: first the one in `targets`, which was built on `environment`."""
        first = Package(target=target, path=self.targets[target], environment=self.environment, parity=[])
        return first, *(one for one in self.packages if one.target == target)

    def only(self, package: Package) -> Manifest:
        """Returns the manifest of a bundle in which a package is the only artifact of its target."""
        fields = {"targets": {**self.targets, package.target: package.path}, "environment": package.environment}
        return self.model_copy(update=fields).updating_packages([])


def seal(folder: Path, manifest: Manifest, known: Mapping[str, File] | None = None) -> Manifest:
    """Hashes every file in `folder`, writes the manifest, and returns it with the hashes.

    Args:
        folder: the bundle.
        manifest: the manifest, whose `files` is replaced by the measured hashes.
        known: the `files` of an earlier manifest whose files have not changed since. These files are not hashed again.

    Raises:
        OSError: a file cannot be read or written.
        RefusedError: the folder contains something other than regular files and folders.
    """
    sealed = manifest.model_copy(update={"files": measure(folder, known or {}, _unlisted(folder))})
    (folder / MANIFEST).write_bytes(sealed.render())
    return sealed


def _unlisted(folder: Path) -> tuple[Path, ...]:
    """Returns the paths of the files that a bundle's manifest does not list: the manifest itself and the signature."""
    return folder / MANIFEST, folder / SIGNATURE


def require_folder(folder: Path) -> None:
    """Checks that the folder exists.

    Raises:
        UsageError: the folder does not exist, or its path is not UTF-8.
    """
    check_text(folder)
    if not folder.is_dir():
        problem = "is not a folder" if folder.exists() else "does not exist"
        fix = "give the folder that `fuseconv convert` wrote"
        if folder.is_file():
            fix += f"; if this is a model, convert it first: fuseconv convert {shlex.quote(str(folder))}"
        raise UsageError(f"the bundle {problem}", where=str(folder), fix=fix)


def open_bundle(folder: Path, *, shared: bool = True) -> Manifest:
    """Reads the manifest and checks that the folder contains exactly the files that the manifest lists.

    Args:
        folder: the bundle to open.
        shared: whether to also check the weights file that a method shares with other methods, if `folder` is a method.

    Raises:
        UsageError: the folder does not exist, or it is a bundle of several methods.
        RefusedError: the manifest or a file is missing, damaged, swapped or unexpected. The error names the file.
    """
    manifest, path = read_manifest(folder), folder / MANIFEST
    compare(folder, manifest.files, measure(folder, {}, _unlisted(folder)))
    if shared:
        check_weights(folder)
    packages = [one.path for one in manifest.packages]
    for name in [*manifest.targets.values(), *packages, *manifest.libraries]:
        if name not in manifest.files:
            raise RefusedError(f"{name} is not a file in the bundle", where=str(path), fix=AGAIN)
    if not manifest.targets:
        raise RefusedError("the bundle has no target: there is nothing to run", where=str(path), fix=AGAIN)
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """Reads the manifest without checking any other file.

    Use this for a bundle whose files were just written or checked; otherwise use `open_bundle`.

    Raises:
        UsageError: the folder does not exist, or it is a bundle of several methods.
        RefusedError: the manifest is missing or damaged.
    """
    require_folder(folder)
    path = folder / MANIFEST
    if has_methods(folder):
        names = read_methods(folder).methods
        raise UsageError(
            f"the bundle has the methods {', '.join(names)}, and this needs one of them",
            where=str(folder),
            fix=f"give the folder of one of them, such as {folder / METHODS / names[0]}",
        )
    try:
        return Manifest.read(read_plain(path, links=False))
    except FileNotFoundError:
        raise RefusedError(f"{MANIFEST} is missing: this is not a bundle", where=str(path), fix=AGAIN) from None
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise RefusedError(
            f"{MANIFEST} is not supported by this version of fuseconv: {field}: {first['msg']}",
            where=str(path),
            fix=AGAIN,
        ) from error
    except OSError as error:
        raise RefusedError(f"{MANIFEST} is damaged: {error.strerror}", where=str(path), fix=AGAIN) from error
    except (ValueError, RecursionError) as error:
        raise RefusedError(f"{MANIFEST} is damaged: {error}", where=str(path), fix=AGAIN) from error


def check_private(folder: Path, artifact: str, libraries: Iterable[str] = ()) -> None:
    """Checks that no other user can change the files that a target loads, or the folders that contain these files.

    These files are the artifact, the files next to it and in subfolders there, the weights and the op libraries.

    Args:
        folder: the bundle.
        artifact: the path of the target's artifact, relative to the bundle.
        libraries: the paths of the op libraries that the target calls, relative to the bundle.

    Raises:
        RefusedError: another user can change one of these files or folders.
    """
    beside = (folder / artifact).parent
    own = [*folder.iterdir(), folder / ONNX / WEIGHTS] if beside == folder else [*beside.rglob("*")]
    own.append(weights_folder(folder) / WEIGHTS)
    inside = [] if beside == folder else sorted(path for path in beside.rglob("*") if path.is_dir())
    files = [*sorted(path for path in own if path.is_file()), *(folder / name for name in libraries)]
    folders = dict.fromkeys([folder, *inside, *(path.parent for path in files)])
    check_unshared([*folders, *files])


def check_outside(path: Path, folder: Path) -> None:
    """Checks that an output path is not inside the folder of a bundle.

    Raises:
        UsageError: the path is inside the folder.
    """
    if folder.resolve() in path.absolute().resolve().parents:
        raise UsageError("the output is inside of the bundle", where=str(path), fix="choose another path with -o")


def check_replaceable(path: Path) -> None:
    """Checks that an existing path may be replaced by a bundle: it must be an empty folder, or a bundle itself.

    The existing bundle may be damaged.

    Raises:
        UsageError: the path is neither an empty folder nor a bundle.
    """
    if path.is_dir() and not path.is_symlink():
        if not any(path.iterdir()):
            return
        manifest = path / MANIFEST
        if is_plain(manifest) and b'"fuseconv bundle"' in read_plain(manifest):
            return
    raise UsageError(
        "the output path already exists and is not a bundle",
        where=str(path),
        fix="remove it, or choose another name with -o",
    )


def bundle_folder(model: str | Path, output: str | Path | None = None) -> Path:
    """Returns the folder to which the bundle is written.

    Args:
        model: the path of the model.
        output: the folder that the user gave. None means a folder next to the model: its name without the extension,
            and with `.fuseconv` added. For a model on a hub, this folder is in the working directory.

    Raises:
        UsageError: the path is not UTF-8; or no folder is given and the model is read from a stream such as /dev/stdin.
    """
    if output is not None:
        check_text(Path(output))
        return Path(output)
    if (on_hub := reference(model)) is not None:
        return Path(on_hub.name + SUFFIX)
    model = Path(model).absolute()
    if model.parts[1:2] in (("dev",), ("proc",)):
        raise UsageError(
            f"the bundle cannot be written next to {model}", where=str(model), fix="choose a folder with -o FOLDER"
        )
    return model.with_name((model.name if model.is_dir() else model.stem) + SUFFIX)

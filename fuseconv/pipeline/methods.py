"""Converts several methods of one model to one bundle with one shared weight file."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fuseconv.bundle.generation import Generation
from fuseconv.bundle.invocation import Invocation
from fuseconv.bundle.manifest import bundle_folder, check_replaceable
from fuseconv.bundle.methods import check_names, method_folder
from fuseconv.bundle.staging import staged
from fuseconv.errors import FuseconvError, UsageError
from fuseconv.matching.lock import NAME, check_methods, method_entry, write_methods
from fuseconv.matching.steps import Plan
from fuseconv.parity.report import Report
from fuseconv.pipeline.assembly import Progress
from fuseconv.pipeline.conversion import Conversion
from fuseconv.pipeline.convert import convert
from fuseconv.pipeline.join import join
from fuseconv.pipeline.match import match
from fuseconv.pipeline.read import silent
from fuseconv.pipeline.tune import Tune
from fuseconv.pipeline.verify import verify
from fuseconv.sources import Options, sniff
from fuseconv.sources.generating import KNOWN, read_generation
from fuseconv.untrusted import hub
from fuseconv.weights.table import STORE


@dataclass(frozen=True)
class MethodsConversion:
    """The result of converting several methods.

    Attributes:
        bundle: the folder of the bundle.
        methods: the conversion of each method, by the name of the method.
        report: the parity of the joined bundle. A target of a method is named `METHOD/TARGET`.
    """

    bundle: Path
    methods: Mapping[str, Conversion]
    report: Report

    @property
    def weights(self) -> int:
        """The size of the weight file that the methods share, in bytes."""
        return (self.bundle / STORE).stat().st_size

    def error(self) -> FuseconvError | None:
        """Returns the error of the first method whose bundle is incomplete, or None if every method is complete."""
        return next((error for one in self.methods.values() if (error := one.error()) is not None), None)

    def to_json(self) -> dict[str, Any]:
        """Returns the result as JSON-serializable values."""
        methods = {name: one.to_json() for name, one in self.methods.items()}
        return {
            "bundle": str(self.bundle),
            "methods": methods,
            "weights": self.weights,
            "parity": self.report.to_json(),
        }


def convert_methods(
    model: str | Path,
    methods: Mapping[str, Options],
    *,
    rules: str | Path | None = None,
    without: Collection[str] = (),
    target: Sequence[str] = (),
    output: str | Path | None = None,
    plan: Mapping[str, str | Path] = MappingProxyType({}),
    allow: Collection[str] = (),
    allow_mismatch: bool = False,
    strict: bool = False,
    lock: str | Path | None = None,
    frozen: str | Path | None = None,
    tune: Tune | None = None,
    search: bool | None = None,
    not_slower_than: Sequence[str] = (),
    self_contained: Sequence[str] = (),
    reproducible: bool = False,
    invocation: Invocation | None = None,
    progress: Progress = silent,
) -> MethodsConversion:
    """Converts several methods of a model to one bundle. The methods share one weight file, which stores tensors once.

    Every method is converted as `convert` converts a model, and every artifact is verified again in the bundle.

    Args:
        model: the source: a model file or a Hugging Face folder.
        methods: how to read each method, by its name in the bundle. `Options.method` is the attribute of the module,
            and `Options.inputs` specifies the inputs of the method.
        rules: a rule file or folder, as for `convert`.
        without: the names of rules not to apply to any method.
        target: the names of the targets to write for each method. Default: all targets.
        output: the folder of the bundle. Default: the model's name with the suffix `.fuseconv`, next to the model.
        plan: the path of a plan.json to execute, by the name of the method. The rules are matched for other methods.
        allow: the `allow` names of rules that change numerical results and may be applied, as for `convert`.
        allow_mismatch: whether to keep a bundle that fails the parity check. Its manifests mark it as failing.
        strict: whether to fail if a match or a target has to be left out of any method.
        lock: the path of the fuseconv.lock in which to record the matches and the choices, with an entry
            `BUNDLE/METHOD` per method. The file is written once, after the bundle.
        frozen: the path of a fuseconv.lock. Exactly the methods and matches that it records must be found again.
        tune: how much to measure for each method, as for `convert`.
        search: whether to time equivalent forms of the linear algebra, as for `convert`.
        not_slower_than: the peers against which each method is timed, as for `convert`.
        self_contained: the names of targets whose artifacts contain their weights, in every method.
        reproducible: whether another conversion must produce the same bytes, as for `convert`.
        invocation: how the conversion was called. The manifests of the methods record it.
        progress: called with the name of each step; returns a context manager in which the step runs.

    Returns:
        The conversion of each method, and the parity of the bundle.

    Raises:
        UsageError: `methods` is empty or contains an invalid method name, or `plan` names another method.
        FrozenError: a method or a match of `frozen` is not found, or a match is not recorded. Nothing is written.
        FuseconvError: the conversion of a method fails; see `convert`. Nothing is written.

    Examples:
        >>> from fuseconv.contract.input_text import parse_inputs
        >>> from fuseconv.sources import Options
        >>> first = Options(method="0", inputs=parse_inputs(["input=f32[batch:1..64,8]"]), trust=frozenset({"pickle"}))
        >>> last = Options(method="2", inputs=parse_inputs(["input=f32[batch:1..64,16]"]), trust=frozenset({"pickle"}))
        >>> done = fuseconv.convert_methods("mlp.pt", {"first": first, "last": last}, target=["export"])
        >>> fuseconv.load(done.bundle).first(torch.zeros(2, 8)).shape
        torch.Size([2, 16])
    """
    if not methods:
        raise UsageError("no method is given", where="methods", fix="name the methods to convert")
    check_names(methods)
    _check_plans(plan, methods)
    folder = bundle_folder(model, output)
    if frozen is not None:
        check_methods(Path(frozen), folder.name, methods)
    done: dict[str, Conversion] = {}
    with tempfile.TemporaryDirectory() as scratch:
        found = Path(scratch, NAME)
        with staged(folder, check_replaceable) as staging:
            for name, options in methods.items():
                one = convert(
                    model,
                    rules=rules,
                    without=without,
                    target=target,
                    output=method_folder(staging, name),
                    options=options,
                    plan=plan.get(name),
                    allow=allow,
                    allow_mismatch=allow_mismatch,
                    strict=strict,
                    lock=None if lock is None else found,
                    frozen=frozen,
                    entry=method_entry(folder.name, name),
                    tune=tune,
                    search=search,
                    not_slower_than=not_slower_than,
                    self_contained=self_contained,
                    reproducible=reproducible,
                    invocation=invocation,
                    progress=_of(name, progress),
                )
                done[name] = replace(one, bundle=method_folder(folder, name))
            with progress("join weights"):
                join(staging, list(methods), _generation(Path(model), methods))
            report = verify(staging, progress=progress)
            if not allow_mismatch and (error := report.error(str(folder))) is not None:
                raise error
        if lock is not None:
            write_methods(Path(lock), folder.name, found)
    return MethodsConversion(folder, done, report)


def match_methods(
    model: str | Path,
    methods: Mapping[str, Options],
    *,
    plan: Mapping[str, str | Path] = MappingProxyType({}),
    output: str | Path | None = None,
    frozen: str | Path | None = None,
    progress: Progress = silent,
    **how: Any,
) -> dict[str, Plan]:
    """Returns the plans that `convert_methods` would execute with the same arguments, by the name of the method.

    Args:
        model: the source: a model file or a Hugging Face folder.
        methods: how to read each method, by its name in the bundle.
        plan: the path of a plan.json to execute, by the name of the method.
        output: the folder of the bundle, whose name is that of its entries in `frozen`.
        frozen: the path of a fuseconv.lock with the methods and matches that must be found.
        progress: called with the name of each step; returns a context manager in which the step runs.
        how: the other arguments of `match`: `rules`, `without`, `target` and `allow`.

    Raises:
        UsageError: a method name is invalid, or `plan` names another method.
        FrozenError: the methods or the matches differ from the lock in `frozen`.
        FuseconvError: reading, capturing, matching or executing failed.
    """
    check_names(methods)
    _check_plans(plan, methods)
    bundle = bundle_folder(model, output).name
    if frozen is not None:
        check_methods(Path(frozen), bundle, methods)
    return {
        name: match(
            model,
            options=options,
            plan=plan.get(name),
            frozen=frozen,
            entry=method_entry(bundle, name),
            progress=_of(name, progress),
            **how,
        )
        for name, options in methods.items()
    }


def _check_plans(plan: Mapping[str, str | Path], methods: Collection[str]) -> None:
    """Checks that each plan is that of a method that is converted. Raises UsageError if not."""
    for name in plan:
        if name not in methods:
            fix = f"use one of {', '.join(methods)}"
            raise UsageError(f"there is a plan for {name}, which is no method of the conversion", where="plan", fix=fix)


def _generation(model: Path, methods: Mapping[str, Options]) -> Generation | None:
    """Returns the settings for generating tokens, or None if the methods are not those of a generating model."""
    known = [options for options in methods.values() if options.method in KNOWN]
    if not known or sniff(place := hub.local(model, known[0].trust)) != "huggingface":
        return None
    return read_generation(place, known[0])


def _of(method: str, progress: Progress) -> Progress:
    def step(name: str) -> AbstractContextManager[None]:
        return progress(f"{method}: {name}")

    return step

"""Converts a model and compares every target with the model itself in float64, at several sizes."""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from fuseconv.capture.capture import capture, export
from fuseconv.contract.inputs import draw, example_sizes
from fuseconv.contract.spec import Contract
from fuseconv.errors import FuseconvError
from fuseconv.matching.rewrite import rewrite
from fuseconv.program.captured import Program
from fuseconv.proof.checked import checked_plan
from fuseconv.rulebook.rule import Rule
from fuseconv.sources import Subject
from fuseconv.targets import TARGETS, Context

from .program import Made, make

Tensors = tuple[torch.Tensor, ...]


@dataclass
class Outcome:
    """What became of a model.

    Attributes:
        counts: what is counted.
        kind: of what is wrong: `wrong`, `bug`, `raises`; empty when nothing is.
        key: by what two findings are told to be one.
        said: what is wrong, in some lines.
    """

    counts: Counter[str] = field(default_factory=Counter)
    kind: str = ""
    key: str = ""
    said: str = ""

    def found(self, kind: str, key: str, said: str) -> Outcome:
        """Sets what is wrong."""
        self.kind, self.key, self.said = kind, key, said
        return self


_WIDE = {torch.float16: torch.float64, torch.bfloat16: torch.float64, torch.float32: torch.float64}
_WIDE[torch.complex64] = torch.complex128


class Float64(TorchDispatchMode):
    """Widens every floating tensor and dtype that an op is given."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Calls the op in float64."""
        args, kwargs = pytree.tree_map(_widen, (args, kwargs or {}))
        return func(*args, **kwargs)


def _widen(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return _WIDE.get(value, value)
    if isinstance(value, torch.Tensor) and value.dtype in _WIDE:
        return value.to(_WIDE[value.dtype])
    return value


def in_float64(module: torch.nn.Module, inputs: Tensors) -> Tensors:
    """Runs a module with everything widened to float64."""
    wide = copy.deepcopy(module).double()  # its integers stay
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad(), Float64():
            return tuple(map(_widen, wide(*(_widen(one.clone()) for one in inputs))))
    finally:
        torch.set_default_dtype(before)


def subject_of(made: Made, device: str = "cpu") -> Subject:
    """Returns what is captured of a model, as a reader would give it."""
    contract = Contract(made.inputs, (), device)
    examples = draw(contract, example_sizes(contract), seed=0)
    return Subject(made.module.to(device), examples, contract, (), "pickle", "0" * 64)


def convert(text: str, rules: Sequence[Rule], device: str = "cpu") -> Outcome:
    """Converts the model of a file to its targets in this process, and judges each of them.

    Args:
        text: the file.
        rules: those to apply.
        device: where.
    """
    outcome, made = Outcome(), make(text)
    outcome.counts["models"] += 1
    step = "capture"
    try:
        subject = subject_of(made, device)
        program = capture(subject)
        step = "match"
        plan = checked_plan(program, rules, device=device, targets=made.targets)
        step = "rewrite"
        fused = rewrite(program, plan)
    except FuseconvError as error:
        return _refused(outcome, made, step, error)
    except Exception as error:  # noqa: BLE001 - each one is a finding
        return outcome.found("bug", f"{step}: {_short(error)}", f"{step} raised {_full(error)}")
    outcome.counts.update(f"rule {step.rule}" for step in plan.applied)
    outcome.counts.update(f"rejected {miss.rule}" for miss in plan.rejected)
    cases = list(_cases(made, device))
    with TemporaryDirectory() as folder, TemporaryDirectory() as scratch:
        for name in made.targets:
            _try(outcome, name, program, fused, cases, Path(folder), Path(scratch))
            if outcome.kind:
                outcome.said += f"\nrules applied: {dict(plan.counts())}"
                break
    return outcome


def _try(
    outcome: Outcome,
    name: str,
    program: Program,
    fused: Program,
    cases: Sequence[Case],
    folder: Path,
    scratch: Path,
) -> None:
    """Writes, loads and runs a target, and judges what it gives."""
    target = TARGETS[name]
    try:
        if reason := target.unsupported(fused):
            outcome.counts[f"skipped {name}: {_words(reason)}"] += 1
            return
        artifact = target.write(fused, folder, Context(scratch))
        runner = target.load(folder / artifact, program.contract.device)
    except FuseconvError as error:
        outcome.counts[f"skipped {name}: {type(error).__name__}: {_words(error.what)}"] += 1
        if error.code == "internal":
            outcome.found("bug", f"{name}: {_words(error.what)}", str(error))
        return
    except Exception as error:  # noqa: BLE001 - each one is a finding
        outcome.found("bug", f"{name}: {_short(error)}", f"{name} raised {_full(error)}")
        return
    outcome.counts[f"converted {name}"] += 1
    for case in cases:
        try:
            with torch.no_grad():
                results = tuple(runner(*(one.clone() for one in case.inputs)))
        except Exception as error:  # noqa: BLE001 - as above
            outcome.found("raises", f"{name}: {_short(error)}", f"{name} at {case.name} raised {_full(error)}")
            return
        if said := differs(results, case):
            outcome.found("wrong", name, f"{name} at {case.name}: {said}")
            return


@dataclass(frozen=True)
class Case:
    """One call: what the model gives for it, the same in float64, and in float64 of inputs next to these."""

    name: str
    inputs: Tensors
    original: Tensors
    fp64: Tensors
    nearby: Tensors


def _cases(made: Made, device: str) -> Iterator[Case]:
    contract = Contract(made.inputs, (), device)
    dims = contract.dims()
    example = example_sizes(contract)
    chosen = [("example", example, 1)]
    if dims:
        chosen.append(("smallest", {name: dim.min for name, dim in dims.items()}, 2))
        chosen.append(("one", {name: max(1, dim.min) for name, dim in dims.items()}, 3))
        chosen.append(("largest", {name: dim.max for name, dim in dims.items()}, 4))
        for name, dim in dims.items():
            chosen.append((f"smallest {name}", {**example, name: max(dim.min, 1)}, 5))
    for name, sizes, seed in chosen:
        inputs = draw(contract, sizes, seed=seed)
        try:
            with torch.no_grad():
                original = tuple(made.module(*(one.clone() for one in inputs)))
            fp64 = in_float64(made.module, inputs)
            nearby = in_float64(made.module, tuple(_moved(one) for one in inputs))
        except (RuntimeError, IndexError, ValueError, TypeError):
            continue  # the model itself does not run at these sizes
        if not all(isinstance(one, torch.Tensor) for one in original):
            continue  # cuDNN's attention gives an undefined tensor for a batch of 0
        yield Case(f"{name} {sizes}", inputs, original, fp64, nearby)


def _moved(value: torch.Tensor) -> torch.Tensor:
    """Values next to those given: what an answer depends on beyond its dtype's digits is no matter of fusing."""
    if not value.dtype.is_floating_point:
        return value
    eps = torch.finfo(value.dtype).eps
    signs = torch.sign(torch.randn(value.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    return value.double() * (1 + eps * signs.to(value.device))


COARSE = 1e-9
"""The relative error allowed in float64: the reference rounds, and exp and sin of ONNX Runtime are less exact."""


def differs(results: Tensors, case: Case) -> str:
    """Says how results differ from the model's; nothing when they do not."""
    if len(results) != len(case.original):
        return f"{len(results)} outputs, the model gives {len(case.original)}"
    for at, (result, original, fp64, nearby) in enumerate(
        zip(results, case.original, case.fp64, case.nearby, strict=True)
    ):
        if said := _differs(result, original, fp64, nearby):
            return f"output {at}: {said}"
    return ""


def _differs(result: torch.Tensor, original: torch.Tensor, fp64: torch.Tensor, nearby: torch.Tensor) -> str:
    result, original, fp64, nearby = (one.cpu() for one in (result, original, fp64, nearby))
    if result.dtype != original.dtype or result.shape != original.shape:
        return f"{result.dtype}{list(result.shape)}, the model gives {original.dtype}{list(original.shape)}"
    if not original.dtype.is_floating_point and not original.dtype.is_complex:
        count = int((result != original).sum())
        return f"{count} of {original.numel()} elements differ" if count else ""
    for name, of in (("NaN", torch.isnan), ("infinite", torch.isinf)):
        if not torch.equal(of(result), of(original)) and not torch.equal(of(result), of(fp64.to(original.dtype))):
            return f"{int(of(result).sum())} elements are {name}, {int(of(original).sum())} of the model's"
    finite = result.isfinite() & original.isfinite() & fp64.isfinite() & nearby.isfinite()
    result, original, fp64, nearby = (one[finite] for one in (result, original, fp64, nearby))
    eps = max(torch.finfo(original.dtype).eps, COARSE)
    wide = torch.complex128 if original.is_complex() else torch.float64
    error = (result.to(wide) - fp64).abs()
    own = (original.to(wide) - fp64).abs()
    moved = (nearby - fp64).abs()
    scale = fp64.abs()
    allowed = 10 * (_rms(own) + _rms(moved)) + 8 * eps * _rms(scale)
    peak = 10 * (_max(own) + _max(moved)) + 16 * eps * _max(scale)
    if _rms(error) > allowed or _max(error) > peak:
        return (
            f"{original.dtype}: error rms {_rms(error):.3g}, largest {_max(error):.3g}; "
            f"the model's own {_rms(own):.3g}, {_max(own):.3g}; values of {_rms(scale):.3g}"
        )
    return ""


def _rms(values: torch.Tensor) -> float:
    return float(values.square().mean().sqrt()) if values.numel() else 0.0


def _max(values: torch.Tensor) -> float:
    return float(values.max()) if values.numel() else 0.0


def _refused(outcome: Outcome, made: Made, step: str, error: FuseconvError) -> Outcome:
    """Counts a refusal; one of a model that torch.export takes is counted apart."""
    said = f"{type(error).__name__}: {_words(error.what)}"
    if error.code == "internal" or step != "capture":
        return outcome.found("bug", f"{step}: {said}", f"{step} raised {error}")
    subject = subject_of(made)
    try:
        export(subject, draw(subject.contract, example_sizes(subject.contract), seed=0))
    except Exception:  # noqa: BLE001 - torch's word that it cannot
        outcome.counts[f"not exported: {said}"] += 1
        return outcome
    outcome.counts[f"refused though torch exports it: {said}"] += 1
    return outcome


def _words(text: str) -> str:
    """A message without the names and numbers of one model, to count those alike."""
    first = str(text).strip().splitlines()[0] if str(text).strip() else ""
    return re.sub(r"\bv?\d+(\.\d+)?(e[+-]\d+)?\b|\b[vxnsp]\d+\w*\b", "#", first)[:160]


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {_words(str(error))}"


def _full(error: BaseException) -> str:
    import traceback

    return "".join(traceback.format_exception(error))[-3000:]

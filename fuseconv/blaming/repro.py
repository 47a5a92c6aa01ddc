"""Writes scripts that reproduce a numerical difference: a .py file, with its tensors in one .safetensors file.

A script either contains the ops as PyTorch code, or loads a part of an artifact. This part is stored among the tensors
as a tensor of bytes. The script prints the error, and exits with status 1 while the difference exists.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import runpy
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from fuseconv.blaming import templates
from fuseconv.blaming.listing import Piece
from fuseconv.blaming.segment import Segment
from fuseconv.errors import FileError
from fuseconv.numerics.tolerance import TOLERANCES

_GLOBALS = frozenset({"torch", "device", "inf", "nan", "NoneType", "fx_pytree", "pytree"})
"""The global names that the printed code of a graph may use. `templates.HEAD` imports the first four."""

_DELETIONS = re.compile(r";\s*(?:\w+ = )+None(?=\s|$)(?:\s*#.*)?")
"""The statements that torch.fx appends to a line of code to free values."""

_BLANK = re.compile(r"\n{4,}")


@dataclass(frozen=True)
class Script:
    """A script and its tensors.

    Attributes:
        text: the source code.
        tensors: the tensors that the script loads, by their key in the .safetensors file.
    """

    text: str
    tensors: Mapping[str, torch.Tensor]

    def write(self, path: Path) -> None:
        """Writes the script to a file, and its tensors to a .safetensors file with the same name.

        Raises:
            FileError: a file cannot be written.
        """
        from safetensors.torch import save

        owned = {
            key: one.detach().cpu().clone(memory_format=torch.contiguous_format) for key, one in self.tensors.items()
        }
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.text, encoding="utf-8")
            path.with_suffix(".safetensors").write_bytes(save(owned))
        except OSError as error:
            raise FileError.unwritable("the repro cannot be written", error, str(path)) from error


def why_not(path: Path) -> str:
    """Runs a script in this process. Returns why it does not show the difference, or an empty string if it does."""
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()), quiet():
            runpy.run_path(str(path), run_name="__main__")
    except SystemExit as end:
        return "" if end.code == 1 else "the ops by themselves do not show the difference"
    except Exception as error:  # noqa: BLE001 - a script that cannot run here shows nothing, and the verdict says why
        line = next(iter(str(error).strip().splitlines()), "")
        return f"the script cannot run here: {type(error).__name__}: {line}"
    return "the script ended without an exit status"


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silences Python warnings, and log messages up to the level WARNING, inside the `with` block."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@dataclass(frozen=True)
class Evidence:
    """The expected values with which a script compares its result.

    Attributes:
        original: the value that the model computes in its own dtype.
        fp64: the float64 reference.
        special: whether the inputs of the case contain NaN, infinities or the limits of a dtype.
        op_files: Python files that register ops of rule packs.
    """

    original: torch.Tensor
    fp64: torch.Tensor
    special: bool = False
    op_files: Sequence[Path] = field(default_factory=tuple)


def eager(what: str, before: Segment, after: Segment, evidence: Evidence) -> Script | None:
    """Returns a script that shows a difference in PyTorch, or None if the ops cannot be printed as code."""
    return _of_modules(what, {"Original": before, "Fused": after}, templates.EAGER, evidence)


def through_target(what: str, target: str, before: Segment, after: Segment, evidence: Evidence) -> Script | None:
    """Returns a script that shows a difference in fuseconv's export, or None if the ops cannot be printed as code."""
    modules = {"Original": before} if before is after else {"Original": before, "Fused": after}
    run = templates.TARGET.format(target=target, module=list(modules)[-1])
    return _of_modules(what, modules, run, evidence)


def upstream(what: str, target: str, before: Segment, evidence: Evidence) -> Script | None:
    """Returns a script that shows, without fuseconv, a difference introduced by an exporter or runtime.

    Returns None if there is no template for the target, if the ops include an op of fuseconv, or if the ops cannot be
    printed as code.
    """
    run = templates.PLAIN.get(target)
    if run is None or any("fuseconv" in str(op) for op in before.ops):
        return None
    return _of_modules(what, {"Original": before}, run, evidence, alone=True)


def overflow(what: str, before: Segment, evidence: Evidence) -> Script | None:
    """Returns a script that shows an overflow of the model itself, or None if the ops cannot be printed as code."""
    return _of_modules(what, {"Original": before}, "", evidence, end=templates.OVERFLOW, alone=True)


def of_piece(what: str, target: str, piece: Piece, inputs: Mapping[str, torch.Tensor], evidence: Evidence) -> Script:
    """Returns a script that shows a difference by running a part of a target's artifact."""
    tensors = {
        "artifact": torch.frombuffer(bytearray(piece.data), dtype=torch.uint8),
        **{f"weight.{at}": one for at, one in enumerate(piece.weights)},
    }
    run = templates.PIECE.format(
        target=target, inputs=list(inputs), weights=[f"weight.{at}" for at in range(len(piece.weights))]
    )
    return _script(what, "", run, templates.COMPARED, tensors, inputs, evidence, original="")


def _of_modules(
    what: str,
    modules: Mapping[str, Segment],
    run: str,
    evidence: Evidence,
    *,
    end: str = "",
    alone: bool = False,
) -> Script | None:
    printed = {name: _class(name, one) for name, one in modules.items()}
    if any(text is None for text in printed.values()):
        return None
    tensors = {
        f"{name}.{weight}": tensor for name, one in modules.items() for weight, tensor in one.module.named_buffers()
    }
    inputs = {name: tensor for one in modules.values() for name, tensor in one.inputs.items()}
    calls = {name: ", ".join(f'inputs["{given}"]' for given in one.inputs) for name, one in modules.items()}
    original = templates.ORIGINAL.format(arguments=calls["Original"])
    run = run.replace("FUSED_ARGUMENTS", calls.get("Fused", "")).replace("ARGUMENTS", list(calls.values())[-1])
    uses_fuseconv = any("fuseconv" in str(op) for one in modules.values() for op in one.ops)
    ending = end or (templates.COMPARED_ALONE if alone and not uses_fuseconv else templates.COMPARED)
    classes = "\n\n".join(text for text in printed.values() if text is not None)
    return _script(what, classes, run, ending, tensors, inputs, evidence, original=original)


def _script(
    what: str,
    classes: str,
    run: str,
    end: str,
    tensors: Mapping[str, torch.Tensor],
    inputs: Mapping[str, torch.Tensor],
    evidence: Evidence,
    *,
    original: str,
) -> Script:
    held = {
        **tensors,
        **{f"input.{name}": tensor for name, tensor in inputs.items()},
        "original": evidence.original,
        "fp64": evidence.fp64,
    }
    tolerance = TOLERANCES.get(evidence.original.dtype)
    numbers = {
        "factor": 0 if tolerance is None else tolerance.factor,
        "eps": torch.finfo(evidence.original.dtype).eps if evidence.original.is_floating_point() else 0,
        "special": evidence.special,
    }
    ending = end.format(**numbers)
    packs = "".join(templates.PACK.format(path=str(path)) for path in evidence.op_files)
    needs = "fuseconv" in classes + run + ending
    head = templates.HEAD.format(
        what=what.replace("\\", "/").replace('"', "'"),
        needs="fuseconv" if needs else "torch and safetensors",
        imports=templates.OPS if needs else "",
        device="" if evidence.original.device.type == "cpu" else f', device="{evidence.original.device.type}"',
    )
    parts = [head + packs, *([classes] if classes else []), original + run + ending]
    return Script(_BLANK.sub("\n\n\n", "\n".join(parts)), held)


def _class(name: str, segment: Segment) -> str | None:
    """Returns a segment as the code of a class, or None if it contains control flow or uses unsupported globals."""
    printed = segment.module.graph.python_code("self")
    if set(printed.globals) - _GLOBALS or any(True for _ in segment.module.children()):
        return None
    body = printed.src[printed.src.index("def forward") :]
    lines = [_DELETIONS.sub("", line).rstrip() for line in body.splitlines()]
    forward = "\n".join(f"    {line}" for line in lines if line.strip())
    names = [weight for weight, _ in segment.module.named_buffers()]
    init = templates.INIT.format(name=name, weights=names) if names else ""
    return templates.CLASS.format(name=name, init=init, forward=forward)

"""Compares both sides of a rule's examples on operands of every dtype, including the extremes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch.fx import Graph, Interpreter

from fuseconv.contract.inputs import torch_dtype
from fuseconv.contract.spec import TensorSpec
from fuseconv.matching.pattern import Pattern
from fuseconv.proof.difference import run_in_float64
from fuseconv.proof.example import Text
from fuseconv.proof.operands import takes, within
from fuseconv.proof.soundness import NO_PROGRAM, Pair, applied
from fuseconv.rulebook.rule import Rule

_FLOATS = ("f64", "f32", "f16", "bf16")
_ROOT = torch.nn.Module()


def wrong(rule: Rule, patterns: Sequence[Pattern], text: Text, draw: random.Random) -> tuple[str, str]:
    """Returns the kind of operands on which a rule computes something else, and what; or two empty strings."""
    for changed, other in _recast(text):
        try:
            pair = applied(rule, patterns, other, changed, draw.randrange(1000))
        except NO_PROGRAM:
            continue
        if pair is None:
            continue
        for kind in KINDS:
            if kind == "special" and not takes(rule, pair.after, "special"):
                continue
            for seed in range(2):
                if said := _compared(pair, kind, seed):
                    return kind, f"{changed}, {kind} operands: {said}"
    return "", ""


def _recast(text: Text) -> Iterator[tuple[str, Text]]:
    yield "as written", text
    specs = {spec.dtype for spec in (*text.inputs.values(), *text.parameters.values())}
    for dtype in ("f32", "f16", "bf16"):
        if specs & {"f64", "f32"} and specs != {dtype}:
            yield f"in {dtype}", _with(text, {"f64": dtype, "f32": dtype})
    for dtype in ("i32", "i8", "u8"):
        if "i64" in specs:
            yield f"in {dtype}", _with(text, {"i64": dtype})


def _with(text: Text, to: dict[str, str]) -> Text:
    def change(specs: object) -> dict[str, TensorSpec]:
        assert isinstance(specs, dict)
        return {name: replace(spec, dtype=to.get(spec.dtype, spec.dtype)) for name, spec in specs.items()}

    return replace(text, inputs=change(dict(text.inputs)), parameters=change(dict(text.parameters)))


KINDS = ("ordinary", "large", "tiny", "small integers", "negative integers", "extreme", "one large", "special")
"""Kinds of operands; of `special` ones NaN and infinities are no fault where a kernel may leave them out."""


def _drawn(spec: TensorSpec, kind: str, seed: int, sizes: dict[str, int]) -> torch.Tensor:
    for dim in spec.dims():
        sizes.setdefault(dim.name, 5 + 2 * len(sizes))
    shape, dtype = spec.sizes(sizes), torch_dtype(spec.dtype)
    generator = torch.Generator().manual_seed(seed * 7919 + len(spec.name) + 31 * sum(shape))
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).to(dtype)
    if not dtype.is_floating_point and not dtype.is_complex:
        top = min(torch.iinfo(dtype).max, 2**40)
        low, high = {
            "small integers": (0, 9),
            "ordinary": (0, 9),
            "negative integers": (max(-9, -top), 9),
            "large": (max(-600, -top), min(600, top)),
            "one large": (max(-600, -top), min(600, top)),
        }.get(kind, (-top, top))
        low = max(low, torch.iinfo(dtype).min)
        return torch.randint(low, high, shape, generator=generator).to(dtype)
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    flat = values.view(-1)
    match kind:
        case "large":
            values *= 300.0
        case "tiny":
            values *= 1e-6
        case "extreme":
            values *= float(torch.finfo(dtype).max) ** 0.5 / 4 if dtype.is_floating_point else 1e3
        case "one large" if flat.numel():
            flat[seed % flat.numel()] = 3e4
            flat[(seed + 3) % flat.numel()] = -3e4
        case "special" if flat.numel():
            flat[:: max(1, flat.numel() // 3)] = torch.tensor(
                [torch.inf, -torch.inf, torch.nan][seed % 3], dtype=torch.float64
            )
    return values.to(dtype)


def _compared(pair: Pair, kind: str, seed: int) -> str:
    sizes: dict[str, int] = {}
    drawn = (_drawn(spec, kind, seed, sizes) for spec in pair.traced.inputs)
    operands = [*pair.parameters, *(within(one, pair.rule.domain) for one in drawn)]
    try:
        before = _run(pair.before, operands)
        fp64 = run_in_float64(pair.before, operands)
    except NO_PROGRAM:
        return ""
    try:
        after = _run(pair.after, operands)
    except NO_PROGRAM as problem:
        return f"the replacement cannot run: {str(problem).splitlines()[0][:200]}"
    for at, (old, new, true) in enumerate(zip(before, after, fp64, strict=True)):
        if said := _differs(old, new, true, special=kind == "special"):
            return f"output {at}: {said}"
    return ""


def _run(graph: Graph, operands: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    with torch.no_grad():
        return list(Interpreter(_ROOT, graph=graph).run(*(one.clone() for one in operands)))


def _differs(old: torch.Tensor, new: torch.Tensor, true: torch.Tensor, *, special: bool) -> str:
    if old.dtype != new.dtype or old.shape != new.shape:
        return f"{new.dtype}{list(new.shape)} for {old.dtype}{list(old.shape)}"
    if not old.dtype.is_floating_point and not old.dtype.is_complex:
        return "" if torch.equal(old, new) else f"{int((old != new).sum())} of {old.numel()} elements differ"
    if special:
        same = torch.equal(old.isnan(), new.isnan()) or torch.equal(new.isnan(), true.isnan())
        return "" if same else f"{int(new.isnan().sum())} elements are NaN, {int(old.isnan().sum())} before"
    good = old.isfinite() & true.isfinite()
    if bool((good & ~new.isfinite()).any()):
        return f"{int((good & ~new.isfinite()).sum())} elements are not finite any more"
    old, new, true = old[good], new[good], true[good]
    if not old.numel():
        return ""
    wide = torch.complex128 if old.is_complex() else torch.float64
    eps = torch.finfo(old.dtype).eps
    own, error = (old.to(wide) - true).abs(), (new.to(wide) - true).abs()
    scale = true.abs()
    if float(error.max()) > 12 * float(own.max()) + 32 * eps * float(scale.max()) + float(torch.finfo(old.dtype).tiny):
        return f"error {float(error.max()):.3g}, before {float(own.max()):.3g}, values up to {float(scale.max()):.3g}"
    return ""

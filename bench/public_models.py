"""Converts small models of public packages: which torch exports, which convert whole, and what is left unfused.

    python bench/public_models.py -o build/public_models.json [--only timm monai] [--resume]

Not part of `make test`: docs/public-models.md says what to install. Nothing is downloaded. Each model is converted in a
process of its own, with a limit on its time; rows are written as they come.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

TARGETS = ("export", "torchscript", "onnx")
STUBBED = ("timm", "vit-pytorch", "open_clip")
"""The packages that import torchvision."""

PACKAGES = {"open_clip": "open_clip_torch"}
LIMIT = 600.0
"""Seconds for one model."""

Row = dict[str, Any]


def main() -> int:
    """Converts what is asked for; returns 0 whatever is found: the rows say."""
    options = _options()
    warnings.simplefilter("ignore")
    from public_zoo_hub import ENTRIES

    _warm()
    rows: list[Row] = []
    if options.resume and options.output.exists():
        rows = json.loads(options.output.read_text())["rows"]
    done = {(row["library"], row["model"]) for row in rows}
    chosen = [one for one in ENTRIES if not options.only or one.library in options.only or one.name in options.only]
    for entry in chosen:
        if (entry.library, entry.name) in done:
            continue
        start = time.monotonic()
        row = {"library": entry.library, "model": entry.name, **_in_child(entry, options.limit)}
        row["seconds"] = round(time.monotonic() - start, 1)
        rows.append(row)
        print(_line(row), flush=True)
        options.output.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({**_machine(), "summary": summary(rows), "rows": rows}, indent=1)
        options.output.write_text(text + "\n")
    print(json.dumps(summary(rows), indent=1))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="the file of rows")
    parser.add_argument("--only", nargs="+", default=[], help="packages, or models")
    parser.add_argument("--resume", action="store_true", help="keep the rows of the file, and add those it lacks")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for one model")
    return parser.parse_args()


def _warm() -> None:
    """Converts a first model in this process: its forks have the rules, the exporter and the runtime in memory."""
    import torch

    from fuseconv.contract.input_text import parse_inputs
    from fuseconv.sources import Options

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "model.pt")
        torch.save(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.LayerNorm(8)), model)
        options = Options(trust=frozenset({"pickle"}), inputs=parse_inputs(["input=f32[b:1..4,4]"]))
        _convert(model, options, list(TARGETS), Path(folder, "all.fuseconv"))


def _in_child(entry: Any, limit: float) -> Row:
    """Tries a model in a fork of this process, which has torch in memory already."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        try:
            row = try_model(entry)
        except BaseException:  # noqa: BLE001 - the row says what it was
            row = {"exports": False, "error": traceback.format_exc().strip().splitlines()[-1]}
        with os.fdopen(writer, "w") as file:
            json.dump(row, file)
        os._exit(0)
    os.close(writer)
    data, end = b"", time.monotonic() + limit
    while True:
        if not select.select([reader], [], [], max(0.0, end - time.monotonic()))[0]:
            os.kill(child, signal.SIGKILL)
            break
        part = os.read(reader, 1 << 16)
        if not part:
            break
        data += part
    os.close(reader)
    _, status = os.waitpid(child, 0)
    if data:
        row = json.loads(data)
        assert isinstance(row, dict)
        return row
    return {"exports": False, "error": f"killed after {limit:.0f} s" if status == signal.SIGKILL else f"died: {status}"}


def try_model(entry: Any) -> Row:
    """Builds a model, exports it with torch, and converts it."""
    if entry.library in STUBBED:
        import torchvision_stub

        torchvision_stub.install()
    import torch

    from fuseconv.contract.input_text import parse_inputs
    from fuseconv.contract.inputs import draw, example_sizes
    from fuseconv.contract.spec import Contract

    torch.set_num_threads(1)
    torch.manual_seed(0)
    module = entry.build().eval().requires_grad_(False)
    specs = parse_inputs(list(entry.inputs))
    contract = Contract(specs, ())
    inputs = draw(contract, example_sizes(contract), seed=0)
    row: Row = {"exports": False}
    with tempfile.TemporaryDirectory() as folder:
        # Before torch exports it: a model that keeps what it computed keeps tensors of the trace, which no file takes.
        model, options = _saved(module, entry, Path(folder), specs)
        try:
            exported = _exported(module, specs, inputs)
        except Exception as error:  # noqa: BLE001 - torch's word that it cannot
            return {**row, "error": _first(error)}
        from unfused import families

        row |= {"exports": True, "before": dict(families(exported.graph))}
        row |= _convert(model, options, list(TARGETS), Path(folder, "all.fuseconv"))
        reasons: dict[str, str] = {}
        for target in TARGETS:
            if row["converted"].get(target) is None:
                alone = _convert(model, options, [target], Path(folder, f"{target}.fuseconv"))
                if alone["converted"].get(target) is None:
                    reasons[target] = alone["error"] or alone["skipped"].get(target, "")
        row["reasons"] = reasons
        row["whole"] = all(row["converted"].get(target) for target in TARGETS)
    return row


_FACTORY = """from public_zoo_hub import ENTRIES

build = next(entry for entry in ENTRIES if (entry.library, entry.name) == {key!r}).build
"""


def _saved(module: Any, entry: Any, folder: Path, specs: Any) -> tuple[Path, Any]:
    """Saves a model as its users would: whole, or, where parametrizations forbid that, as what fills a new one."""
    import torch
    from torch.nn.utils import parametrize

    from fuseconv.sources import Options

    model = folder / "model.pt"
    if not any(map(parametrize.is_parametrized, module.modules())):
        torch.save(module, model)
        return model, Options(trust=frozenset({"pickle"}), inputs=specs)
    torch.save(module.state_dict(), model)
    factory = folder / "factory.py"
    factory.write_text(_FACTORY.format(key=(entry.library, entry.name)), encoding="utf-8")
    return model, Options(trust=frozenset({"code"}), inputs=specs, model=f"{factory}:build")


def _exported(module: Any, specs: Sequence[Any], inputs: Sequence[Any]) -> Any:
    """Calls torch.export as a user would, with the batch dynamic."""
    import inspect

    import torch

    from fuseconv.contract.dims import Dim

    dims = {"b": torch.export.Dim("b", min=1, max=4)}
    shapes = [
        {axis: dims[size.name] for axis, size in enumerate(spec.shape) if isinstance(size, Dim)} for spec in specs
    ]
    names = [spec.name for spec in specs]
    with torch.no_grad():
        if set(names) <= set(inspect.signature(module.forward).parameters):
            named = dict(zip(names, inputs, strict=True))
            return torch.export.export(
                module, (), named, dynamic_shapes=dict(zip(names, shapes, strict=True)), strict=False
            )
        return torch.export.export(module, tuple(inputs), dynamic_shapes=tuple(shapes), strict=False)


def _convert(model: Path, options: Any, targets: Sequence[str], output: Path) -> Row:
    """Converts to some targets at once."""
    import torch

    from fuseconv.pipeline.convert import convert

    row: Row = {"converted": {}, "skipped": {}, "error": "", "rules": {}, "left": {}}
    try:
        done = convert(model, target=targets, output=output, options=options, tune="none")
    except Exception as error:  # noqa: BLE001 - the row says what it was
        row["error"] = f"{type(error).__name__}: {_first(error)}"
        return row
    row["converted"] = {one.target: True for one in done.written}
    row["skipped"] = {one.target: one.reason for one in done.left_out}
    row["rules"] = done.plan.counts()
    row["rejected"] = dict(Counter(miss.rule for miss in done.plan.rejected))
    if (path := output / "export" / "model.pt2").is_file():
        from unfused import families

        row["left"] = dict(families(torch.export.load(path).graph))
    return row


def _first(error: BaseException) -> str:
    return " ".join(str(error).split())[:600]


def _line(row: Row) -> str:
    what = "whole" if row.get("whole") else "exports" if row["exports"] else "not exported"
    said = "; ".join(f"{target}: {reason[:160]}" for target, reason in row.get("reasons", {}).items())
    return (
        f"{row['seconds']:6.1f} s  {row['library']:13} {row['model']:32} {what}  {said or row.get('error', '')[:160]}"
    )


def summary(rows: Sequence[Row]) -> Row:
    """Returns the counts of all rows."""
    exported = [row for row in rows if row["exports"]]
    before: Counter[str] = Counter()
    left: Counter[str] = Counter()
    for row in exported:
        if row["left"] or row["converted"].get("export"):
            before.update(row["before"])
            left.update(row["left"])
    return {
        "models": len(rows),
        "exported by torch": len(exported),
        "whole": sum(row["whole"] for row in exported),
        "whole at once": sum(all(row["converted"].get(target) for target in TARGETS) for row in exported),
        **{target: sum(target not in row["reasons"] for row in exported) for target in TARGETS},
        "left unfused": {family: f"{left[family]} of {before[family]}" for family in sorted(before | left)},
        "libraries": {
            name: f"{sum(row['whole'] for row in exported if row['library'] == name)} of "
            f"{sum(row['library'] == name for row in exported)}"
            for name in dict.fromkeys(row["library"] for row in rows)
        },
    }


def _machine() -> Row:
    from public_zoo_hub import ENTRIES

    names = ["torch", *sorted({PACKAGES.get(entry.library, entry.library) for entry in ENTRIES})]
    versions = {}
    for name in names:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {"versions": versions}


if __name__ == "__main__":
    sys.exit(main())

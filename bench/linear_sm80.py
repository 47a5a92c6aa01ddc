"""Times backend sm80 against torch's mm and the other backends on one GPU, from CUDA graphs; writes JSON.

    python bench/linear_sm80.py build/libfuseconv_linear.so bench/results/h200_linear_sm80.json

Library and checks are those of bench/linear_library.py.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import torch
from cases import SIX, SMALL
from clock import microseconds
from linear_library import ACTIVATIONS, BACKENDS, Choice, Library, draw, error
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

SHAPES = ("128x256", "128x128", "64x64")


def measure(library: Library, shape: tuple[int, int, int], act: str, dtype: torch.dtype) -> list[dict[str, object]]:
    """A row for each tile."""
    m, n, k = shape
    x, weight, bias = draw(m, n, k, dtype)
    reference = ACTIVATIONS[act](F.linear(x.double(), weight.double(), bias.double()))
    problem, y = library.problem(x, weight, bias, act)
    calls = {"mm": [lambda: torch.mm(x, weight.t())]}
    rows = []
    for variant, tile in enumerate(SHAPES):
        choice = Choice(BACKENDS.index("sm80"), variant)
        y.fill_(float("nan"))
        library.run(problem, choice)
        calls[tile] = [lambda c=choice: library.run(problem, c)]
        rows.append({"op": "linear_act", "act": act, "backend": "sm80", "variant": tile, "shape": list(shape)})
        rows[-1] |= {"dtype": str(dtype).removeprefix("torch."), "error": error(y, reference)}
    times = microseconds(calls, "cuda", 7)
    for row in rows:
        row |= {"us": statistics.median(times[row["variant"]]), "limit_us": statistics.median(times["mm"])}
    return rows


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    library, rows = Library(arguments.library), []
    for shape in SIX + SMALL:
        for act, dtype in (("none", torch.bfloat16), ("gelu", torch.bfloat16), ("silu", torch.float16)):
            rows += measure(library, shape, act, dtype)
            both = " ".join(
                f"{r['variant']} {r['us']:.2f} ({r['limit_us'] / r['us']:.2f} of mm)" for r in rows[-len(SHAPES) :]
            )
            print(
                f"{act:5} {shape!s:19} mm {rows[-1]['limit_us']:.2f} {both} error {rows[-1]['error']:.2e}", flush=True
            )
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda}
    text = json.dumps({"device": torch.cuda.get_device_name(), "versions": versions, "rows": rows}, indent=1)
    arguments.out.write_text(text + "\n")


if __name__ == "__main__":
    main()

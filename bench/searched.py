"""Five graphs whose best form depends on a size: what `search` takes, what is fastest, and what the other rules leave.

    python bench/searched.py --device cpu     # writes bench/results/cpu_searched.json
    python bench/searched.py --device cuda -o bench/results/h200_searched.json

Every form that the search proposes is timed twice: once to choose, as `convert --search` does but in this process, and
once more, all forms in turn, to judge the choice.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import record
import torch
from torch import Tensor

from fuseconv.contract.inputs import contract_of
from fuseconv.contract.spec import Contract
from fuseconv.matching.plan import plan
from fuseconv.matching.rewrite import rewrite
from fuseconv.matching.steps import Form, Forms, Plan
from fuseconv.measure.pairs import ratio
from fuseconv.measure.timing import samples
from fuseconv.measure.turns import Duel, timed
from fuseconv.program.captured import Program
from fuseconv.proof.checked import checked_plan
from fuseconv.rulebook.own_rules import load_rules
from fuseconv.searching.kinds import kinds
from fuseconv.tuning.forms import FormChoice, brief

SECONDS = 1.0
"""How long each form is timed for the choice, in seconds."""

Call = Callable[[], object]


class Chain(torch.nn.Module):
    """Attention without softmax: (q k) v."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Returns the result."""
        return torch.relu(q @ k @ v)


class Two(torch.nn.Module):
    """A linear after a linear."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.down = torch.nn.Linear(width, inner, bias=False)
        self.up = torch.nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the result."""
        return torch.relu(self.up(self.down(x)))


class Adapter(torch.nn.Module):
    """A low-rank adapter that is computed in the call, such as by a hypernetwork: x W + (x A) B."""

    def forward(self, x: Tensor, w: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """Returns the result."""
        return torch.relu(x @ w + (x @ a) @ b)


class Sum(torch.nn.Module):
    """Two products of one matrix: x V + x W."""

    def forward(self, x: Tensor, v: Tensor, w: Tensor) -> Tensor:
        """Returns the result."""
        return torch.relu(x @ v + x @ w)


class Attention(torch.nn.Module):
    """The projection behind the attention of one head, to fewer features."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.out = torch.nn.Linear(width, out, bias=False)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Returns the result."""
        return torch.relu(self.out(torch.nn.functional.scaled_dot_product_attention(q, k, v)))


Made = tuple[torch.nn.Module, Sequence[tuple[int, ...]]]
"""A module and the shapes of its inputs."""


def made(graph: str, n: int, d: int) -> Made:
    """Returns a graph at one size.

    Args:
        graph: a name of `SIZES`.
        n: the size that changes: the inner width of the linears, else the number of rows, or of queries.
        d: the width of the matrices.
    """
    graphs: dict[str, Callable[[], Made]] = {
        "chain": lambda: (Chain(), [(n, d), (d, n), (n, d)]),
        "linears": lambda: (Two(d, n), [(d, d)]),
        "adapter": lambda: (Adapter(), [(n, d), (d, d), (d, d // 4), (d // 4, d)]),
        "sum": lambda: (Sum(), [(n, d), (d, d), (d, d)]),
        "attention": lambda: (Attention(d, d // 8), [(1, n, d), (1, d, d), (1, d, d)]),
    }
    return graphs[graph]()


SIZES = {
    "chain": (16, 64, 512, 1024),
    "linears": (16, 32, 256, 1024),
    "adapter": (16, 64, 512, 2048),
    "sum": (1, 16, 256, 1024),
    "attention": (16, 64, 256, 1024),
}
"""The sizes of each graph on a CPU."""

WIDTH = {"cpu": 256, "cuda": 2048}
"""The width of the matrices. On a GPU the sizes grow by as much."""


@dataclass
class Models:
    """Makes and times the models of one program."""

    program: Program
    device: str
    made: dict[tuple[str, ...], Call] = field(default_factory=dict)

    def plan(self, forms: Forms, find: Callable[..., Plan] = plan) -> Plan:
        """Returns the plan with some forms."""
        return find(self.program, RULES, device=self.device, targets=["export"], forms=forms)

    def write(self, forms: Forms) -> Call:
        """Returns a call of the program with some forms, on a GPU from a CUDA graph."""
        module = rewrite(self.program, self.plan(forms)).exported.module()
        inputs = self.program.examples
        call: Call = lambda: module(*inputs)  # noqa: E731
        if self.device == "cuda":
            for _ in range(3):
                call()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                call()
            call = graph.replay
        self.made[next((form.lines for form in forms.values()), ())] = call
        return call

    def race(self, base: Call, challengers: Sequence[Call]) -> list[Duel]:
        """Times models against a base."""
        return [timed([base], [one], ["export"], SECONDS) for one in challengers]


RULES = load_rules()


def measured(name: str, at: int, device: str, dtype: torch.dtype) -> dict[str, Any]:
    """Returns the row of one graph at one size."""
    size = SIZES[name][at] * WIDTH[device] // WIDTH["cpu"]
    torch.manual_seed(0)
    module, shapes = made(name, size, WIDTH[device])
    module = module.eval().to(device, dtype).requires_grad_(False)
    inputs = tuple(torch.randn(shape, device=device, dtype=dtype) / shape[-1] ** 0.5 for shape in shapes)
    exported = torch.export.export(module, inputs)
    names = dict(zip(map(str, exported.graph_signature.user_inputs), inputs, strict=True))
    program = Program(exported, Contract(contract_of(names), (), device=device), inputs)
    models = Models(program, device)
    with torch.no_grad():
        given = models.write({})
        every = kinds(program, models.plan({}), RULES, [{}], {}, gain=math.inf)
        promising = kinds(program, models.plan({}), RULES, [{}], {})
        choice = FormChoice(given, models.write, models.race)
        forms = {kind.text: choice.best({}, kind) for kind in promising}
        chosen = next((form.lines for form in forms.values()), ())
        for kind in every:
            for candidate in kind.candidates:
                if candidate.lines not in models.made:
                    models.write({kind.text: Form(candidate.lines)})
        proved = not chosen or any(step.replace == chosen for step in models.plan(forms, checked_plan).applied)
        times = samples({str(lines): call for lines, call in models.made.items()}, rounds=31, warmup=5)
    medians = {lines: statistics.median(times[str(lines)]) * 1e3 for lines in models.made}
    best = min(medians, key=lambda lines: medians[lines])

    def slower(lines: tuple[str, ...]) -> bool:
        return lines != best and ratio(times[str(best)], times[str(lines)]).slower

    told = {lines: brief(lines) if lines else "as it is" for lines in medians}
    return {
        "graph": name,
        "size": size,
        "width": WIDTH[device],
        "dtype": str(dtype).removeprefix("torch."),
        "forms": {told[lines]: round(us, 2) for lines, us in medians.items()},
        "chosen": told[chosen],
        "fastest": told[best],
        "chosen_us": round(medians[chosen], 2),
        "fastest_us": round(medians[best], 2),
        "greedy_us": round(medians[()], 2),
        "chosen_is_slower": slower(chosen),
        "greedy_is_slower": slower(()),
        "proved": proved,
    }


def main() -> None:
    """Measures every graph at every size and prints and writes the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--graph", choices=tuple(SIZES), action="append", help="measure only this graph")
    parser.add_argument("-o", "--output", type=Path, help="[default on a CPU: bench/results/cpu_searched.json]")
    given = parser.parse_args()
    dtype = torch.float16 if given.device == "cuda" else torch.float32
    rows = []
    for name in given.graph or SIZES:
        for at in range(4):
            rows.append(row := measured(name, at, given.device, dtype))
            greedy = f"greedy {row['greedy_us']:9.1f} us {'slower' if row['greedy_is_slower'] else '      '}"
            search = f"search {row['chosen_us']:9.1f} us {'SLOWER' if row['chosen_is_slower'] else 'fastest'}"
            print(f"{name:10} {row['size']:5}  {greedy}  {search}: {row['chosen']}", flush=True)
    right = sum(not row["chosen_is_slower"] for row in rows)
    slower = sum(row["greedy_is_slower"] for row in rows)
    print(
        f"{len(rows)} sizes: search takes the fastest form at {right}; the other rules leave a slower one at {slower}"
    )
    output = given.output or Path(__file__).parent / "results" / f"{given.device}_searched.json"
    record.write(output, rows, record.machine(given.device), ["graph", "size", "dtype"])


if __name__ == "__main__":
    main()

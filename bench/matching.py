"""How long planning and explaining take on graphs of 1,000 to 100,000 nodes: encoder blocks spelled out.

    python bench/matching.py [OUT.json] [--nodes 1000,3000,10000]

Seconds are of the processor, from a captured program to its plan under the whole default set.
The claim is that they grow no faster than the number of nodes.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export.graph_signature import ExportGraphSignature, InputKind, InputSpec, OutputSpec, TensorArgument
from torch.fx import Graph, Node

from fuseconv.contract.spec import Contract
from fuseconv.matching.explanation import explain
from fuseconv.matching.plan import plan
from fuseconv.matching.steps import Plan
from fuseconv.program.captured import Program
from fuseconv.rulebook.own_rules import load_rules

OUT = Path(__file__).parent / "results" / "cpu_matching.json"
NODES = (1_000, 3_000, 10_000, 30_000, 100_000)


class Block(nn.Module):
    """An encoder block in which nothing is called by its name: attention, GELU and both norms are spelled out."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [batch, length, width] to the same."""
        q, k, v = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        score = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
        mixed = torch.matmul(self.dropout(torch.softmax(score, -1)), v).transpose(1, 2).contiguous().flatten(2)
        x = self._norm(self.dropout(self.output(mixed)) + x, self.norms[0])
        h = self.up(x)
        h = h * 0.5 * (1.0 + torch.erf(h / math.sqrt(2.0)))
        return self._norm(self.dropout(self.down(h)) + x, self.norms[1])

    @staticmethod
    def _norm(x: Tensor, layer: nn.Module) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + 1e-5) * layer.weight + layer.bias


@dataclass(frozen=True)
class Repeated:
    """A program one after the other, many times: what planning reads of a torch.export.ExportedProgram."""

    graph: Graph
    graph_module: nn.Module
    graph_signature: ExportGraphSignature
    state_dict: Mapping[str, Any]
    constants: Mapping[str, Any]
    range_constraints: Mapping[Any, Any]


def block() -> torch.export.ExportedProgram:
    """Captures one block, its batch and length dynamic."""
    batch, length = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("length", min=2, max=512)
    module = Block().eval().requires_grad_(requires_grad=False)
    return torch.export.export(module, (torch.randn(3, 7, 32),), dynamic_shapes=({0: batch, 1: length},))


def repeated(one: torch.export.ExportedProgram, nodes: int) -> Program:
    """Returns blocks one after the other, each with parameters of its own: a program of about so many nodes."""
    graph = Graph()
    leaves = [node for node in one.graph.nodes if node.op == "placeholder"]
    body = [node for node in one.graph.nodes if node.op == "call_function"]
    specs = {spec.arg.name: spec for spec in one.graph_signature.input_specs}
    kept: list[InputSpec] = []
    state: dict[str, Any] = {}
    copies: list[dict[Node, Node]] = [{} for _ in range(max(1, (nodes - 2) // (len(leaves) - 1 + len(body))))]
    for number, made in enumerate(copies):
        for leaf in leaves:
            spec = specs[leaf.name]
            if spec.kind is InputKind.USER_INPUT:
                continue
            made[leaf] = graph.placeholder(f"{leaf.name}_{number}")
            made[leaf].meta = dict(leaf.meta)
            target = f"{number}.{spec.target}"
            state[target] = one.state_dict[str(spec.target)]
            kept.append(InputSpec(spec.kind, TensorArgument(made[leaf].name), target, spec.persistent))
    (x,) = (leaf for leaf in leaves if specs[leaf.name].kind is InputKind.USER_INPUT)
    at = graph.placeholder("x")
    at.meta = dict(x.meta)
    kept.append(InputSpec(InputKind.USER_INPUT, TensorArgument("x"), None))
    (returned,) = one.graph.output_node().args[0]  # type: ignore[misc,union-attr]  # one output
    for made in copies:
        made[x] = at
        for node in body:
            made[node] = graph.node_copy(node, made.__getitem__)
        at = made[returned]  # type: ignore[index]  # a node
    graph.output((at,)).meta["val"] = (at.meta["val"],)
    (spec,) = one.graph_signature.output_specs
    signature = ExportGraphSignature(kept, [OutputSpec(spec.kind, TensorArgument(at.name), spec.target)])
    exported: Any = Repeated(graph, nn.Module(), signature, state, {}, one.range_constraints)
    return Program(exported, Contract((), ()), ())


def measure(one: torch.export.ExportedProgram, nodes: int) -> tuple[dict[str, float], Plan]:
    """Returns a row, and the plan."""
    program = repeated(one, nodes)
    rules = load_rules()
    count = len(program.exported.graph.nodes)
    gc.collect()
    start = time.process_time()
    found = plan(program, rules, device="cpu", targets=())
    seconds = time.process_time() - start
    start = time.process_time()
    explain(found, rules)
    explained = time.process_time() - start
    row = {"nodes": count, "seconds": seconds, "seconds_per_1000": 1000 * seconds / count, "explain_seconds": explained}
    return row, found


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, nargs="?", default=OUT)
    parser.add_argument("--nodes", default=",".join(map(str, NODES)), help="the sizes, about")
    arguments = parser.parse_args()
    one = block()
    measure(one, 0)  # imports, and what torch computes once
    rows = []
    print(f"{'nodes':>8} {'seconds':>9} {'seconds per 1000':>17} {'explain':>8} {'steps':>8}")
    for nodes in map(int, arguments.nodes.split(",")):
        row, found = measure(one, nodes)
        rows.append(row)
        print(
            f"{row['nodes']:8} {row['seconds']:9.2f} {row['seconds_per_1000']:17.3f} {row['explain_seconds']:8.2f}",
            f"{len(found.steps):8}",
            flush=True,
        )
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    arguments.out.write_text(json.dumps({"versions": versions, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()

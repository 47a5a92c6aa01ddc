"""What CUDA graphs save or cost where a bundle serves calls: `cuda_graphs="auto"` beside none, and a hit's overhead.

    python bench/graph_overhead.py OUT.json [--targets torchscript aoti] [--only mlp bert] [--layers 4] [--calls 1000]

Two models are converted, with a dynamic batch and, for BERT, a dynamic sequence. A row is a model, a target and a load.
Each round loads the bundle twice anew, with and without graphs, so that captures count; what is chosen by timing for a
size is chosen before. `off_us` and `auto_us` are wall clock per call, medians of the rounds, and `ratio` the median of
auto by off: 1.02 is the most that is allowed. The row of the load `hit` has the host's time of a call that is replayed,
of the bare replay of its graph, and of a call without graphs, all not awaited.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from record import Row, machine, write

from fuseconv.pipeline.convert import convert
from fuseconv.runtime.graphed_runner import GraphedRunner
from fuseconv.runtime.model import Model, load
from fuseconv.sources import Options

Inputs = tuple[torch.Tensor, ...]
THREADS = 8
ROUNDS = 3
BURST = 50
"""Calls that are launched before the host waits: few enough that no queue of launches fills up."""


class Mlp(torch.nn.Module):
    """Three layers of 128: its kernels take a few microseconds."""

    def __init__(self) -> None:
        super().__init__()
        layers = [m for _ in range(3) for m in (torch.nn.Linear(128, 128), torch.nn.ReLU())]
        self.layers = torch.nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the last activations."""
        return self.layers(x)


class Bert(torch.nn.Module):
    """The encoder of BERT-base with random weights."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel

        config = BertConfig(num_hidden_layers=layers, attn_implementation="sdpa")
        self.model = BertModel(config, add_pooling_layer=False)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Returns the last hidden state."""
        return self.model(input_ids=ids, attention_mask=mask).last_hidden_state


def mlp_inputs(size: int) -> Inputs:
    """Returns the inputs of one of 100 sizes."""
    return (torch.randn(1 + 41 * size, 128, dtype=torch.float16, device="cuda"),)


def bert_inputs(size: int) -> Inputs:
    """Returns the inputs of one of 100 sizes."""
    batch, tokens = 1 + size % 8, 8 + size // 8 * 10 % 121
    ids = torch.randint(0, 30000, (batch, tokens), device="cuda")
    return ids, torch.ones_like(ids)


def bundle(name: str, layers: int, targets: Sequence[str], folder: Path) -> Path:
    """Converts a model for some targets and returns its bundle."""
    batch = torch.export.Dim("batch", min=1, max=8 if name == "bert" else 4096)
    tokens = torch.export.Dim("tokens", min=8, max=128)
    module: torch.nn.Module = Bert(layers) if name == "bert" else Mlp()
    module = module.half().cuda().eval()
    inputs = bert_inputs(99) if name == "bert" else mlp_inputs(5)
    dims = tuple({0: batch, 1: tokens} if name == "bert" else {0: batch} for _ in inputs)
    source = folder / f"{name}.pt2"
    with torch.no_grad():
        torch.export.save(torch.export.export(module, inputs, dynamic_shapes=dims, strict=False), source)
    output = folder / f"{name}-{'-'.join(targets)}.fuseconv"
    return convert(source, target=targets, output=output, options=Options(device="cuda")).bundle


def loads(calls: int) -> dict[str, tuple[list[int], bool, int]]:
    """Returns the sizes of the calls of one thread, whether each is awaited, and the number of threads."""
    draw = random.Random(0)  # noqa: S311
    ranked = list(range(100))
    draw.shuffle(ranked)
    zipf = draw.choices(ranked, [1 / (rank + 1) for rank in range(100)], k=calls)
    uniform = draw.choices(range(100), k=calls)
    one = [7] * calls
    return {
        "one size, awaited": (one, True, 1),
        "one size, back to back": (one, False, 1),
        "100 sizes by Zipf": (zipf, True, 1),
        "100 sizes, uniformly random": (uniform, True, 1),
        "8 threads, one size": (one, True, THREADS),
        "8 threads, 100 sizes by Zipf": (zipf, True, THREADS),
    }


def microseconds(model: Model, inputs: Sequence[Inputs], sizes: Sequence[int], awaited: bool, threads: int) -> float:
    """Returns the wall clock per call; each thread makes its share of the calls on a stream of its own."""
    ready = threading.Barrier(threads + 1)

    def work(share: Sequence[int]) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(3):  # TorchScript optimises in the second call
                model(*inputs[50])
            torch.cuda.current_stream().synchronize()
            ready.wait()
            for size in share:
                model(*inputs[size])
                if awaited:
                    torch.cuda.current_stream().synchronize()
            torch.cuda.current_stream().synchronize()

    workers = [threading.Thread(target=work, args=(sizes[first::threads],)) for first in range(threads)]
    for worker in workers:
        worker.start()
    ready.wait()
    start = time.perf_counter()
    for worker in workers:
        worker.join()
    return (time.perf_counter() - start) / len(sizes) * 1e6


def served(path: Path, inputs: Sequence[Inputs], sizes: Sequence[int], awaited: bool, threads: int) -> Row:
    """Measures one load with and without graphs."""
    times: dict[str, list[float]] = {"off": [], "auto": []}
    graphs = 0
    for number in range(ROUNDS):
        for choice in ("off", "auto") if number % 2 else ("auto", "off"):
            model = load(path, cuda_graphs="auto" if choice == "auto" else False)
            times[choice].append(microseconds(model, inputs, sizes, awaited, threads))
            graphs = len(model.cuda_graphs.shapes) if choice == "auto" else graphs
            del model
    ratio = statistics.median(auto / off for auto, off in zip(times["auto"], times["off"], strict=True))
    median = {f"{name}_us": round(statistics.median(values), 1) for name, values in times.items()}
    return {**median, "ratio": round(ratio, 3), "graphs": graphs}


def launched(call: Callable[[], object]) -> float:
    """Returns the least time per call that the host takes to launch a burst."""
    times = []
    for _ in range(30):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(BURST):
            call()
        times.append((time.perf_counter() - start) / BURST * 1e6)
    return min(times)


def hit(path: Path, inputs: Inputs) -> Row:
    """Measures what the host adds to a bare replay."""
    model, plain = load(path, cuda_graphs=True), load(path, cuda_graphs=False)
    for _ in range(3):
        model(*inputs)
        plain(*inputs)
    runner = model._runner
    assert isinstance(runner, GraphedRunner)
    (graph,) = runner._graphs.values()
    calls = {"replay": graph.captured.replay, "hit": lambda: model(*inputs), "direct": lambda: plain(*inputs)}
    times = {f"{name}_us": round(launched(call), 2) for name, call in calls.items()}
    return {**times, "added_us": round(times["hit_us"] - times["replay_us"], 2)}


def measured(name: str, target: str, layers: int, calls: int, folder: Path) -> list[Row]:
    """Returns the rows of one model and target."""
    path = bundle(name, layers, [target], folder)
    inputs = [(bert_inputs if name == "bert" else mlp_inputs)(size) for size in range(100)]
    model = load(path, cuda_graphs=False)
    start = time.perf_counter()
    for given in inputs:  # products are timed when a size is new
        model(*given)
    torch.cuda.synchronize()
    print(f"{name} {target}: 100 new sizes in {time.perf_counter() - start:.1f} s", flush=True)
    key = {"model": name, "target": target}
    rows = [{**key, "load": "hit", **hit(path, inputs[7])}]
    print(rows[-1], flush=True)
    for load_name, (sizes, awaited, threads) in loads(calls).items():
        rows.append({**key, "load": load_name, **served(path, inputs, sizes, awaited, threads)})
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--targets", nargs="+", default=["torchscript"])
    parser.add_argument("--only", nargs="+", default=["mlp", "bert"])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--calls", type=int, default=1000)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as scratch:
        for name in arguments.only:
            for target in arguments.targets:
                rows = measured(name, target, arguments.layers, arguments.calls, Path(scratch))
                write(arguments.out, rows, machine("cuda", ["transformers"]), ["model", "target", "load"])


if __name__ == "__main__":
    main()

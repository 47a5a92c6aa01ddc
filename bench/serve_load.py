"""Puts a server under load and compares every answer with a direct call of the model.

    fuseconv convert MODEL --target torchscript --bucket batch=1,2,4,8,16,32 -o demo.fuseconv
    python bench/serve_load.py demo.fuseconv bench/results/cpu_serve.json [--server local|ray|triton]

`local` is `fuseconv serve --local`, one process. `ray` has two replicas on Ray Serve, and `triton` two instances of
tritonserver's Python backend; in the middle of the load, one of the two is killed.

MODEL is the one of `fuseconv demo`. There are 64 requests of 1 to 4 rows of 4, 8, 12 or 16 tokens, in random order.

- `saturated`: how many rows/s the server answers to 48 clients, each of which waits for its answer, over how many
  rows/s the bare model computes in one process with the same requests in batches of the same limit. Both have one
  thread of torch, and take turns; `of_bare` is the median of the ratios of all rounds. `of_bare_by_cpu` is the same of
  rows per second of processor time, which other processes of the machine affect less.
- `load`: requests arrive at random times (a Poisson process) at 0.8 of the requests/s of the slowest round of
  `saturated`, whether or not earlier ones are answered. `lost` have no answer or an error, `wrong` differ from
  the direct call by more than the tolerance table allows (docs/numerics.md). A request without an answer is sent again,
  at most twice; `retried` counts these. Latencies are from the arrival to the last byte of the answer. `waiting` is how
  many processes of the machine wanted to run (the load average), before and after.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import torch
from record import machine, write
from servers import SERVERS, Server

from fuseconv.contract.inputs import draw
from fuseconv.numerics.tolerance import compare
from fuseconv.runtime.model import Model, load
from fuseconv.serving.client import answer_of, request_of
from fuseconv.serving.requests import HEADER_LENGTH
from fuseconv.serving.responses import Body

DISTINCT = 64
ROWS, TOKENS = (1, 2, 3, 4), (4, 8, 12, 16)
LIMIT = 32
CLIENTS = 48
SHARE = 0.8
TRIES = 3


@dataclass(frozen=True)
class Asked:
    """One of the requests, and its outputs by a direct call."""

    inputs: tuple[torch.Tensor, ...]
    expected: Mapping[str, torch.Tensor]
    body: Body

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.inputs[0])


@dataclass
class Seen:
    """What clients saw: latencies in seconds, the answers, and how many requests had no answer, or not at once."""

    latencies: list[float] = field(default_factory=list)
    answers: list[tuple[Asked, bytes, str | None]] = field(default_factory=list)
    lost: int = 0
    retried: int = 0

    def wrong(self) -> int:
        """Returns how many answers differ from the direct call. They are compared when nothing is timed any more."""
        known: dict[tuple[int, bytes, str | None], bool] = {}  # many answers have the same bytes
        for one, content, length in self.answers:
            if (id(one), content, length) not in known:
                known[id(one), content, length] = _is_right(one, content, length)
        return sum(not known[id(one), content, length] for one, content, length in self.answers)


def _is_right(one: Asked, content: bytes, header_length: str | None) -> bool:
    outputs = answer_of(content, header_length)
    pairs = ((torch.from_numpy(outputs[name].array), direct) for name, direct in one.expected.items())
    return all(compare(actual, direct, direct.double()).ok for actual, direct in pairs)


def requests_of(model: Model) -> list[Asked]:
    """Returns the requests."""
    contract = model.contract
    made = []
    for seed in range(DISTINCT):
        sizes = {"batch": ROWS[seed % 4], "seq": TOKENS[seed // 4 % 4]}
        inputs = draw(contract, sizes, seed=seed)
        body = request_of(contract, [tensor.numpy() for tensor in inputs], binary=True)
        made.append(Asked(inputs, model(*inputs)._asdict(), body))
    return made


def bare(model: Model, stream: Sequence[Asked]) -> float:
    """Returns the rows/s of the model alone, with the requests of each length in batches up to the limit."""
    begun = time.perf_counter()
    groups: dict[int, list[Asked]] = defaultdict(list)
    for one in stream:
        group = groups[one.inputs[0].shape[1]]
        if sum(each.rows for each in group) + one.rows > LIMIT:
            model(*(torch.cat(tensors) for tensors in zip(*(each.inputs for each in group), strict=True)))
            group.clear()
        group.append(one)
    for group in filter(None, groups.values()):
        model(*(torch.cat(tensors) for tensors in zip(*(each.inputs for each in group), strict=True)))
    return sum(one.rows for one in stream) / (time.perf_counter() - begun)


class Client:
    """Sends requests and keeps the answers."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = f"{url}/v2/models/demo/infer"
        self.seen = Seen()

    async def ask(self, one: Asked) -> None:
        """Sends a request."""
        begun = time.perf_counter()
        for tried in range(1, TRIES + 1):
            try:
                async with self._session.post(self._url, data=one.body.content, headers=one.body.headers) as answer:
                    content = await answer.read()
                    answer.raise_for_status()
            except (aiohttp.ClientError, TimeoutError):
                self.seen.retried += tried == 1
                await asyncio.sleep(tried)
            else:
                self.seen.latencies.append(time.perf_counter() - begun)
                self.seen.answers.append((one, content, answer.headers.get(HEADER_LENGTH)))
                return
        self.seen.lost += 1


@contextmanager
def quiet_collector() -> Iterator[None]:
    """Makes the latencies those of the server: a collection of a million objects of torch stops this process."""
    import gc

    gc.freeze()
    yield
    gc.unfreeze()


async def saturate(url: str, stream: Sequence[Asked]) -> tuple[float, Seen]:
    """Returns the rows/s of the server if `CLIENTS` always wait for an answer."""
    left = iter(stream)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        client = Client(session, url)

        async def work() -> None:
            for one in left:
                await client.ask(one)

        begun = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(CLIENTS)))
        return sum(one.rows for one in stream) / (time.perf_counter() - begun), client.seen


async def arrive(server: Server, stream: Sequence[Asked], rate: float) -> tuple[Seen, int]:
    """Sends requests at random times, `rate` per second, and kills a replica, if there is one, in the middle."""
    chance = random.Random(1)  # noqa: S311 - traffic, not a secret
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        client, killed = Client(session, server.url), 0
        at, begun, tasks = 0.0, time.perf_counter(), []
        for number, one in enumerate(stream):
            if number == len(stream) // 2 and (replicas := server.replicas()):
                os.kill(replicas[0], signal.SIGKILL)
                killed += 1
            at += chance.expovariate(rate)
            await asyncio.sleep(begun + at - time.perf_counter())
            tasks.append(asyncio.create_task(client.ask(one)))
        await asyncio.gather(*tasks)
        return client.seen, killed


def main() -> int:
    """Measures and prints; 1 if a request was lost or answered wrongly."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--server", choices=SERVERS, default="local")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    model = load(arguments.bundle, target="torchscript")
    every = requests_of(model)
    chance = random.Random(0)  # noqa: S311 - traffic, not a secret
    few = chance.choices(every, k=max(arguments.requests // 20, CLIENTS))
    stream = chance.choices(every, k=arguments.requests)
    rounds, lost, wrong = [], 0, 0
    waiting = [os.getloadavg()[0]]
    with quiet_collector(), SERVERS[arguments.server](arguments.bundle) as server:
        for _ in range(arguments.rounds):
            before = time.process_time()
            alone, taken = bare(model, few), time.process_time() - before
            before = server.cpu_seconds()
            answered, seen = asyncio.run(saturate(server.url, few))
            lost, wrong = lost + seen.lost, wrong + seen.wrong()
            by_cpu = taken / (server.cpu_seconds() - before)
            figures = {"bare_rows_per_s": alone, "server_rows_per_s": answered, "of_bare_by_cpu": by_cpu}
            rounds.append({name: round(figure, 3) for name, figure in figures.items()})
            print(rounds[-1], file=sys.stderr, flush=True)
        capacity = min(one["server_rows_per_s"] for one in rounds) * len(few) / sum(x.rows for x in few)
        waiting.append(os.getloadavg()[0])
        begun = time.perf_counter()
        seen, killed = asyncio.run(arrive(server, stream, SHARE * capacity))
        seconds = time.perf_counter() - begun
        waiting.append(os.getloadavg()[0])
        replicas = len(server.replicas())
    cuts = [1000 * cut for cut in statistics.quantiles(seen.latencies, n=100)]
    ratios = [one["server_rows_per_s"] / one["bare_rows_per_s"] for one in rounds]
    rows: list[dict[str, Any]] = [
        {
            "server": arguments.server,
            "measure": "saturated",
            "requests": len(few) * arguments.rounds,
            "clients": CLIENTS,
            "lost": lost,
            "wrong": wrong,
            "of_bare": round(statistics.median(ratios), 3),
            "of_bare_by_cpu": statistics.median(one["of_bare_by_cpu"] for one in rounds),
            "rounds": rounds,
            "waiting": waiting[:2],
        },
        {
            "server": arguments.server,
            "measure": "load",
            "requests": len(stream),
            "requests_per_s": round(len(stream) / seconds, 1),
            "share_of_capacity": SHARE,
            "lost": seen.lost,
            "wrong": seen.wrong(),
            "retried": seen.retried,
            "killed": killed,
            "replicas_after": replicas,
            "p50_ms": round(cuts[49], 1),
            "p99_ms": round(cuts[98], 1),
            "worst_ms": round(1000 * max(seen.latencies), 1),
            "waiting": waiting[1:],
        },
    ]
    if summary := server.summary:
        rows[1]["rows_per_batch"] = round(summary["rows"] / summary["batches"], 2)
    about = machine("cpu", ("starlette", "uvicorn", "aiohttp", "orjson", "ray", "nvidia-pytriton"))
    write(arguments.out, rows, about, ("server", "measure"))
    print(json.dumps(rows, indent=1))
    return int(any(row["lost"] or row["wrong"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())

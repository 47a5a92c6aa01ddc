"""Manages the models of a server by name: their metadata, inference through a batcher, and swaps of weights.

This module is independent of HTTP and of the server process, so that `fuseconv serve --local` and the replicas on Ray
Serve share it.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from fuseconv.contract.dims import Dim
from fuseconv.errors import UsageError
from fuseconv.serving.batching import Batcher, Limits
from fuseconv.serving.datatypes import DATATYPES
from fuseconv.serving.engine import Call, Engine, Result
from fuseconv.serving.metrics import Metrics
from fuseconv.serving.refusals import DrainingError, ForbiddenError, NotFoundError
from fuseconv.serving.requests import Request


class Served:
    """One served model: its engine, its batcher, and the threads that run its batches."""

    def __init__(self, name: str, engine: Engine, limits: Limits, metrics: Metrics) -> None:
        """Creates the batcher and the worker threads of a model, which one event loop calls.

        Raises:
            UsageError: `limits.rows` is larger than the contract allows.
        """
        self.name = name
        self.engine = engine
        self.limits = replace(limits, rows=_max_rows(name, engine, limits.rows))
        self._metrics = metrics
        self._pool = ThreadPoolExecutor(limits.workers, thread_name_prefix=f"fuseconv-{name}")
        self._batcher: Batcher[Call, Result] = Batcher(self._call, self.limits, functools.partial(metrics.batch, name))
        self._exchange = asyncio.Lock()
        metrics.watch_queue(name, lambda: self._batcher.waiting)

    async def infer(self, request: Request) -> Result:
        """Runs a request and returns its outputs. Raises the errors of `Batcher.submit` and `Engine.run`."""
        engine, arrays = self.engine, request.arrays
        return await self._batcher.submit(arrays, engine.key(arrays), engine.rows(arrays))

    async def swap(self, bundle: Path) -> None:
        """Replaces the weights with another bundle's, while calls continue. Raises the errors of `Engine.swap`."""
        async with self._exchange:
            await asyncio.to_thread(self.engine.swap, bundle)
        self._metrics.swap(self.name)

    async def drain(self) -> None:
        """Refuses new requests, and waits until all accepted requests are done."""
        await self._batcher.drain()
        self._pool.shutdown()

    def metadata(self) -> dict[str, Any]:
        """Returns the model's metadata as the protocol defines it. A dynamic size is -1."""
        engine = self.engine
        inputs = [
            {
                "name": spec.name,
                "datatype": DATATYPES[spec.dtype],
                "shape": [-1 if isinstance(size, Dim) else size for size in spec.shape],
            }
            for spec in engine.contract.inputs
        ]
        outputs = [{"name": one.name, "datatype": one.datatype, "shape": one.shape} for one in engine.outputs]
        platform = f"fuseconv_{engine.target.replace('-', '_')}"
        described = {"versions": [engine.version], "platform": platform, "inputs": inputs, "outputs": outputs}
        return {"name": self.name, **described}

    async def _call(self, calls: Sequence[Call]) -> Sequence[Result]:
        """Runs a batch in a worker thread, and records the duration of the model call."""
        begun = time.perf_counter()
        results = await asyncio.get_running_loop().run_in_executor(self._pool, self.engine.run, calls)
        self._metrics.call(self.name, time.perf_counter() - begun)
        return results


class Service:
    """The models of a server.

    Attributes:
        models: each model by its name.
        metrics: the metrics of the server.
    """

    def __init__(self, engines: Mapping[str, Engine], limits: Limits, swap_from: Path | None = None) -> None:
        """Prepares the models.

        Args:
            engines: the engine of each model, by the model's name.
            limits: the limits of each model. If `rows` is 0, the limit is the largest bucket.
            swap_from: the folder from which clients may load bundles as new weights. None to refuse such requests.

        Raises:
            UsageError: `limits.rows` is set but no bundle has buckets, or it is larger than a contract allows.
        """
        if limits.rows and all(engine.contract.buckets is None for engine in engines.values()):
            what = "no bundle has buckets, so no requests can be batched"
            raise UsageError(what, where="--max-batch", fix="convert with --bucket, or leave --max-batch out")
        self.metrics = Metrics()
        self.models = {name: Served(name, engine, limits, self.metrics) for name, engine in engines.items()}
        self._swap_from = swap_from
        self._draining = False

    @property
    def is_live(self) -> bool:
        """Whether this process can still run its models. If not, the process must be restarted."""
        return all(model.engine.is_alive for model in self.models.values())

    @property
    def is_ready(self) -> bool:
        """Whether the service accepts requests."""
        return self.is_live and not self._draining

    def model(self, name: str, version: str | None = None) -> Served:
        """Returns the model with this name. If `version` is given, checks that the model's weights have this version.

        Raises:
            NotFoundError: no model has this name, or the model's weights have a different version.
        """
        if name not in self.models:
            fix = f"use one of {', '.join(sorted(self.models))}"
            raise NotFoundError(f"there is no model {name[:64]!r}", where="the path", fix=fix)
        model = self.models[name]
        if version not in (None, model.engine.version):
            what = f"the model {name} has no version {version[:64]!r}" if version else "the version is empty"
            raise NotFoundError(what, where="the path", fix=f"use {model.engine.version}, or leave the version out")
        return model

    async def swap(self, name: str, bundle: str | None) -> None:
        """Loads new weights for a model.

        Args:
            name: the name of the model.
            bundle: the name of a bundle in the folder for new weights. None reloads the model's own folder, whose
                content was replaced.

        Raises:
            ForbiddenError: the server was started without a folder for new weights.
            DrainingError: the server is shutting down.
            NotFoundError: there is no such model.
            UsageError: `bundle` is a path instead of a name.
            FuseconvError: the bundle does not load, or belongs to another model. The weights are unchanged.
        """
        model = self.model(name)
        if self._swap_from is None:
            what = "this server does not let clients replace weights"
            raise ForbiddenError(what, where="the path", fix="start the server with --swap-from FOLDER")
        if self._draining:
            raise DrainingError(
                "the server is shutting down", where="the server", fix="send the request to another server"
            )
        if bundle is not None and (Path(bundle).name != bundle or bundle == ".."):
            what = f"{bundle[:64]!r} is not the name of a bundle"
            raise UsageError(what, where="parameters.bundle", fix="send a name, not a path")
        await model.swap(model.engine.bundle if bundle is None else self._swap_from / bundle)

    async def drain(self) -> None:
        """Refuses new requests to all models, and waits until all accepted requests are done."""
        self._draining = True
        await asyncio.gather(*(model.drain() for model in self.models.values()))


def _max_rows(name: str, engine: Engine, wanted: int) -> int:
    """Returns the maximum number of rows in a batch: `wanted`, or by default the largest bucket.

    Returns 1 if the bundle has no buckets. Raises UsageError if `wanted` is larger than the contract allows.
    """
    buckets = engine.contract.buckets
    if buckets is None or wanted == 0:
        return engine.max_rows()
    dim = engine.contract.dims()[buckets.dim]
    if wanted > dim.max:
        what = f"batches of {wanted} rows are too large for the model {name}: {dim}"
        raise UsageError(what, where="--max-batch", fix=f"use at most {dim.max}")
    return wanted

"""The models that a server has, by name: metadata, inference through the batcher, and exchange of weights.

It knows neither HTTP nor what runs it, so that a server of one process and replicas of Ray Serve have it in common.
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
    """One model: its engine, the batcher in front of it, and the threads on which it computes."""

    def __init__(self, name: str, engine: Engine, limits: Limits, metrics: Metrics) -> None:
        """Prepares a model to be called from one event loop.

        Raises:
            UsageError: `limits.rows` is not a number of rows that the bundle can compute together.
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
        """Returns the outputs of a request. Raises the errors of `Batcher.submit` and `Engine.run`."""
        engine, arrays = self.engine, request.arrays
        return await self._batcher.submit(arrays, engine.key(arrays), engine.rows(arrays))

    async def swap(self, bundle: Path) -> None:
        """Takes the weights of another bundle while calls go on. Raises the errors of `Engine.swap`."""
        async with self._exchange:
            await asyncio.to_thread(self.engine.swap, bundle)
        self._metrics.swap(self.name)

    async def drain(self) -> None:
        """Refuses further requests, and returns when those that wait are computed."""
        await self._batcher.drain()
        self._pool.shutdown()

    def metadata(self) -> dict[str, Any]:
        """Returns the metadata of the protocol. -1 is a size that varies."""
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
            engines: the loaded bundle of each name.
            limits: the limits of each model. `rows` is 0 for the largest bucket.
            swap_from: the folder whose bundles clients may load as new weights. None: clients may not.

        Raises:
            UsageError: the limits do not fit a bundle.
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
        """Whether this process is able to compute. If not, it must be restarted."""
        return all(model.engine.is_alive for model in self.models.values())

    @property
    def is_ready(self) -> bool:
        """Whether requests are accepted."""
        return self.is_live and not self._draining

    def model(self, name: str, version: str | None = None) -> Served:
        """Returns a model.

        Raises:
            NotFoundError: there is none with this name, or its weights have another version.
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
        """Takes new weights for a model: of a bundle in the folder for them, or of its own folder, which was replaced.

        Raises:
            ForbiddenError: the server was not given a folder for new weights.
            FuseconvError: the bundle does not load, or is of another model. The weights are unchanged.
        """
        model = self.model(name)
        if self._swap_from is None:
            what = "this server does not let clients exchange weights"
            raise ForbiddenError(what, where="the path", fix="start it with --swap-from FOLDER")
        if self._draining:
            raise DrainingError("the server is shutting down", where="the server", fix="send the request to another")
        if bundle is not None and (Path(bundle).name != bundle or bundle == ".."):
            what = f"{bundle[:64]!r} is not the name of a bundle"
            raise UsageError(what, where="parameters.bundle", fix="send a name, not a path")
        await model.swap(model.engine.bundle if bundle is None else self._swap_from / bundle)

    async def drain(self) -> None:
        """Refuses further requests, and returns when those that wait are computed."""
        self._draining = True
        await asyncio.gather(*(model.drain() for model in self.models.values()))


def _max_rows(name: str, engine: Engine, wanted: int) -> int:
    """Returns the number of rows of a batch: the largest bucket, or what the user wants if the contract has that."""
    buckets = engine.contract.buckets
    if buckets is None or wanted == 0:
        return engine.max_rows()
    dim = engine.contract.dims()[buckets.dim]
    if wanted > dim.max:
        what = f"batches of {wanted} rows are too large for the model {name}: {dim}"
        raise UsageError(what, where="--max-batch", fix=f"use at most {dim.max}")
    return wanted

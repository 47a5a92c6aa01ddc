"""Implements the HTTP endpoints of the KServe v2 protocol as an ASGI application. Does not import torch.

An error response has the body `{"error": "what, where, fix"}` and the HTTP status of the error.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fuseconv.errors import FuseconvError, printable
from fuseconv.serving.bodies import Bodies
from fuseconv.serving.messages import LoadRequest, parsed
from fuseconv.serving.metrics import CONTENT_TYPE
from fuseconv.serving.refusals import BusyError, status_of
from fuseconv.serving.requests import HEADER_LENGTH, read_request
from fuseconv.serving.responses import write_response
from fuseconv.serving.service import Served, Service
from fuseconv.serving.tracing import LOGGER, Event, Trace
from fuseconv.version import __version__

GONE = 499
"""The HTTP status that logs and metrics record for a request whose client disconnected before the response."""

EXTENSIONS = ("binary_tensor_data", "model_repository")

Endpoint = Callable[[Request], Awaitable[Response]]


def application(service: Service, bodies: Bodies) -> Starlette:
    """Returns the ASGI application of a service. Shutting down the application drains the service."""
    endpoints = _Endpoints(service, bodies)
    model = "/v2/models/{model}"
    routes = [
        Route("/v2/health/live", endpoints.live),
        Route("/v2/health/ready", endpoints.ready),
        Route("/v2", endpoints.server),
        Route("/metrics", endpoints.metrics),
        Route("/v2/repository/index", endpoints.answered(endpoints.index), methods=["POST"]),
        Route("/v2/repository/models/{model}/load", endpoints.answered(endpoints.load), methods=["POST"]),
    ]
    for path in (model, f"{model}/versions/{{version}}"):
        routes += [
            Route(path, endpoints.answered(endpoints.metadata)),
            Route(f"{path}/ready", endpoints.answered(endpoints.model_ready)),
            Route(f"{path}/infer", endpoints.answered(endpoints.infer), methods=["POST"]),
        ]

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        yield
        await service.drain()

    return Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: _no_route})


async def _no_route(request: Request, error: Exception) -> Response:
    """Returns the error response for an unknown path, or for a method that the path does not support."""
    assert isinstance(error, HTTPException)
    what = f"{error.detail}: {request.method} {request.url.path[:200]}"
    return JSONResponse({"error": printable(what)}, error.status_code, headers=error.headers)


class _Endpoints:
    """The endpoints of the application. Each coroutine method implements one endpoint."""

    def __init__(self, service: Service, bodies: Bodies) -> None:
        self._service = service
        self._bodies = bodies

    def answered(self, endpoint: Endpoint) -> Endpoint:
        """Wraps an endpoint: turns exceptions into error responses, logs requests, and records inference metrics."""
        infers = endpoint == self.infer

        async def answer(request: Request) -> Response:
            begun = time.perf_counter()
            trace = Trace.of(request.headers)
            why = ""
            try:
                response = await endpoint(request)
            except ClientDisconnect:
                response = Response(status_code=GONE)
            except FuseconvError as error:
                why = str(error)
                retry = {"retry-after": "1"} if isinstance(error, BusyError) else None
                response = JSONResponse({"error": why}, status_of(error), headers=retry)
            except Exception as error:  # noqa: BLE001 - logs a bug and continues to serve other requests
                why = f"{type(error).__name__}: {error}"
                LOGGER.exception(Event("bug", request_id=trace.request_id))
                what = f"a bug in the server; its log shows the details under the request id {trace.request_id}"
                response = JSONResponse({"error": what}, 500)
            response.headers["x-request-id"] = trace.request_id
            seconds, status = time.perf_counter() - begun, response.status_code
            name = request.path_params["model"] if request.path_params.get("model") in self._service.models else ""
            if infers:
                self._service.metrics.request(name, status, seconds)
            level = logging.INFO if status < 400 else logging.WARNING if status < 500 else logging.ERROR
            if LOGGER.isEnabledFor(level):
                names = {"request_id": trace.request_id, "trace_id": trace.trace_id}
                about = {"method": request.method, "path": printable(request.url.path[:200]), "model": name}
                LOGGER.log(level, Event("request", **about, status=status, seconds=seconds, **names, error=why))
            return response

        return answer

    async def live(self, _request: Request) -> Response:
        return _state("live", self._service.is_live)

    async def ready(self, _request: Request) -> Response:
        return _state("ready", self._service.is_ready)

    async def server(self, _request: Request) -> Response:
        return JSONResponse({"name": "fuseconv", "version": __version__, "extensions": EXTENSIONS})

    async def metrics(self, _request: Request) -> Response:
        return Response(self._service.metrics.text(), headers={"content-type": CONTENT_TYPE})

    def _model(self, request: Request) -> Served:
        return self._service.model(request.path_params["model"], request.path_params.get("version"))

    async def metadata(self, request: Request) -> Response:
        return JSONResponse(self._model(request).metadata())

    async def model_ready(self, request: Request) -> Response:
        model = self._model(request)
        return JSONResponse(
            {"name": model.name, "ready": self._service.is_ready}, 200 if self._service.is_ready else 503
        )

    async def infer(self, request: Request) -> Response:
        model = self._model(request)
        async with self._bodies.read(request) as body:
            asked = read_request(body, request.headers.get(HEADER_LENGTH), model.engine.contract)
            result = await model.infer(asked)
        made = write_response(model.name, result.version, asked.id, result.outputs, asked.outputs)
        return Response(made.content, headers=dict(made.headers))

    async def index(self, _request: Request) -> Response:
        state = "READY" if self._service.is_ready else "UNAVAILABLE"
        models = self._service.models.values()
        return JSONResponse([{"name": one.name, "version": one.engine.version, "state": state} for one in models])

    async def load(self, request: Request) -> Response:
        async with self._bodies.read(request) as body:
            asked: LoadRequest = parsed(LoadRequest, memoryview(body or b"{}"))
        model = self._service.model(request.path_params["model"])
        await self._service.swap(model.name, asked.parameters.bundle)
        LOGGER.warning(
            Event("weights", model=model.name, version=model.engine.version, bundle=str(model.engine.bundle))
        )
        return JSONResponse({"name": model.name, "version": model.engine.version})


def _state(name: str, holds: bool) -> Response:
    """Returns the response to a health check: status 200 if the checked state `name` holds, else 503."""
    return JSONResponse({name: holds}, 200 if holds else 503)

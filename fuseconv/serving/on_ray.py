"""Serves bundles on Ray Serve: replicas, which batch requests, behind a front, which retries requests.

    serve run fuseconv.serving.on_ray:app bundles=demo=/models/demo.fuseconv replicas=2

A front receives HTTP requests and forwards each request unchanged to a replica; the front of `fuseconv serve` is the
process of the command. A replica runs the same application as `fuseconv serve --local`, with an engine and a batcher
per model. If a replica dies, the front sends the replica's requests to another replica, which is safe because a call
has no side effects.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import ray
from pydantic import BaseModel, ConfigDict, Field, field_validator
from ray import serve
from ray.exceptions import RayActorError
from ray.serve import Application
from ray.serve.config import ProxyLocation
from ray.serve.exceptions import BackPressureError
from ray.serve.handle import DeploymentHandle
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fuseconv.errors import UpstreamError
from fuseconv.serving import server
from fuseconv.serving.bodies import Bodies
from fuseconv.serving.exchange import Answered, Sent, answer
from fuseconv.serving.names import named_bundle
from fuseconv.serving.refusals import BusyError, RequestError

TRIES = 5
"""The maximum number of replicas to which the front sends a request, one after the other, if replicas die."""

MOST = 4096
"""The maximum number of requests that a front handles at the same time."""

LOGGER = logging.getLogger("ray.serve")


class Arguments(BaseModel):
    """The arguments of the application, from `args` in a YAML file or `name=value` on the command line of `serve run`.

    Attributes:
        bundles: the bundle folder of each model name. As text: `NAME=PATH` or paths, separated by commas.
        target: the target to load. Default: as for `fuseconv.load`.
        replicas: the number of processes that run the models.
        fronts: the number of processes that receive HTTP requests.
        gpus: the number of GPUs that each replica reserves, such as 0.5.
        cpus: the number of CPU cores that each replica reserves.
        max_batch: the maximum number of rows in a batch. 0 means the largest bucket.
        delay: for how many seconds the first request of a batch waits for others.
        workers: the number of batches of a model that a replica runs at the same time.
        queue: the maximum number of waiting requests of a model in a replica.
        timeout: the number of seconds after which a request times out.
        max_body: the maximum size of a body in bytes.
        warm_seconds: for about how many seconds a replica warms up each model before it accepts requests.
        signer: the public key of whoever must have signed every bundle, also those with new weights. Default: unsigned
            bundles are served too.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    bundles: dict[str, Path]
    target: str | None = None
    replicas: int = Field(default=1, ge=1)
    fronts: int = Field(default=1, ge=1)
    gpus: float = Field(default=0, ge=0)
    cpus: float = Field(default=1, ge=0)
    max_batch: int = Field(default=0, ge=0)
    delay: float = Field(default=0.002, ge=0, le=10)
    workers: int = Field(default=1, ge=1)
    queue: int = Field(default=256, ge=1)
    timeout: float = Field(default=30.0, gt=0)
    max_body: int = Field(default=64 * 2**20, ge=1)
    warm_seconds: float = Field(default=5.0, ge=0)
    signer: Path | None = None

    @field_validator("bundles", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        return dict(named_bundle(word) for word in value.split(",")) if isinstance(value, str) else value


class Replica:
    """A process that runs the models. Its `user_config` names bundles with new weights: `{"bundles": {NAME: PATH}}`."""

    def __init__(self, arguments: Arguments) -> None:
        """Loads the bundles. Raises the errors of `fuseconv.load`."""
        from fuseconv.serving.app import application
        from fuseconv.serving.batching import Limits
        from fuseconv.serving.engine import Engine
        from fuseconv.serving.service import Service

        engines = {
            name: Engine(
                path.absolute(),
                target=arguments.target,
                signer=arguments.signer,
                warm_seconds=arguments.warm_seconds,
            )
            for name, path in arguments.bundles.items()
        }
        limits = Limits(arguments.max_batch, arguments.delay, arguments.queue, arguments.timeout, arguments.workers)
        self._service = Service(engines, limits)
        bodies = Bodies(arguments.max_body, 8 * arguments.max_body, arguments.timeout)
        self._app = application(self._service, bodies)

    async def answer(self, sent: Sent) -> Answered:
        """Returns the response to a request."""
        return await answer(self._app, sent)

    async def reconfigure(self, user_config: Mapping[str, Any]) -> None:
        """Replaces the weights of each model that the configuration names, while calls continue.

        Raises:
            FuseconvError: a bundle does not load, or belongs to another model. The model for which the configuration
                names the bundle keeps its weights.
        """
        for name, path in user_config.get("bundles", {}).items():
            await self._service.model(name).swap(Path(path).absolute())

    def check_health(self) -> None:
        """Raises UpstreamError if the process must be replaced because it has lost its GPU."""
        if not self._service.is_live:
            raise UpstreamError("a model can no longer be called", where="the replica", fix="it is replaced")


class Front:
    """Receives HTTP requests and forwards them to the replicas."""

    def __init__(self, replicas: DeploymentHandle, max_body: int, timeout: float) -> None:
        """Stores the handle of the replicas, and sets the limits for bodies."""
        self._replicas = replicas
        self._bodies = Bodies(max_body, 8 * max_body, timeout)

    async def __call__(self, request: Request) -> Response:
        """Forwards a request to a replica, and to another replica if the first one dies. Returns the response."""
        try:
            async with self._bodies.read(request) as body:
                headers = tuple(request.headers.raw)
                sent = Sent(request.method, request.url.path, headers, bytes(body))
                answered = await self._forward(sent)
        except RequestError as error:
            return JSONResponse({"error": str(error)}, error.status)
        made = Response(answered.body, answered.status)
        made.raw_headers = list(answered.headers)
        return made

    async def _forward(self, sent: Sent) -> Answered:
        """Sends a request to up to `TRIES` replicas, one after the other, until one of them answers.

        Raises:
            BusyError: every replica is at its limit of requests.
            NoReplicaError: each of the replicas died.
        """
        for tried in range(1, TRIES + 1):
            try:
                answered: Answered = await self._replicas.answer.remote(sent)
            except BackPressureError as error:
                what = "every replica has as many requests as it accepts"
                raise BusyError(what, where="the queue", fix="try again later, or start more replicas") from error
            except RayActorError as error:
                LOGGER.warning("a replica died; try %d of %d: %s", tried, TRIES, type(error).__name__)
            else:
                return answered
        raise NoReplicaError(f"{TRIES} replicas died", where="the replicas", fix="see the logs of the replicas")


class NoReplicaError(RequestError):
    """Every replica that received the request died before it answered."""

    status = 503


def app(args: Arguments | Mapping[str, Any]) -> Application:
    """Returns the Ray Serve application, for `serve run`, a YAML file, or `ray.serve.run`.

    Raises:
        ValueError: an argument is missing, unknown or out of its range in `Arguments`.
    """
    args = Arguments.model_validate(args)
    front = serve.deployment(num_replicas=args.fronts, max_ongoing_requests=MOST, ray_actor_options={"num_cpus": 0})(
        Front
    )
    return front.bind(_replicas(args), args.max_body, args.timeout)


def _replicas(args: Arguments) -> Application:
    most = args.queue * len(args.bundles)
    replicas = serve.deployment(
        num_replicas=args.replicas,
        max_ongoing_requests=most,
        max_queued_requests=most,
        health_check_period_s=5,
        graceful_shutdown_timeout_s=args.timeout,
        ray_actor_options={"num_cpus": args.cpus, "num_gpus": args.gpus},
        user_config={"bundles": {}},
    )(Replica)
    return replicas.bind(args)


def run(arguments: Arguments, listener: socket.socket, begun: Callable[[], None]) -> None:
    """Serves until SIGTERM or SIGINT, on the cluster at RAY_ADDRESS or on a new local cluster.

    This process is the front. A proxy of Ray Serve would copy each request and response once more.

    Args:
        arguments: the arguments of the application. `fronts` is ignored.
        listener: the socket from `server.listen`, which is closed at the end.
        begun: called once the server accepts requests.
    """
    with _connected():
        serve.start(proxy_location=ProxyLocation.Disabled)
        replicas = serve.run(_replicas(arguments), name="fuseconv", route_prefix=None)
        front = Front(replicas, arguments.max_body, arguments.timeout)

        async def forward(request: Request) -> Response:
            return await front(request)

        methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
        application = Starlette(routes=[Route("/{path:path}", forward, methods=methods)])
        server.run(application, listener, arguments.timeout, begun)


@contextlib.contextmanager
def _connected() -> Iterator[None]:
    """Connects this process to a cluster for the block, in which SIGTERM raises KeyboardInterrupt.

    At the end of the block, Ray Serve is shut down, which another SIGTERM does not stop.

    Raises:
        KeyboardInterrupt: SIGTERM arrived while Ray started.
    """
    before = signal.getsignal(signal.SIGTERM)
    try:
        try:
            ray.init(include_dashboard=False, log_to_driver=False)
        except SystemExit as error:  # from Ray's own handler of SIGTERM
            raise KeyboardInterrupt from error
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if ray.is_initialized():
            serve.shutdown()
        ray.shutdown()
        signal.signal(signal.SIGTERM, before)

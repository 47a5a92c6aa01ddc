"""Serves an ASGI application with uvicorn in this process until a signal stops it. Does not import torch."""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn
from starlette.applications import Starlette

from fuseconv.errors import UpstreamError

MAX_CONNECTIONS = 4096
KEEP_ALIVE_S = 75
"""How long an idle connection stays open. Common proxies reuse a connection for a minute and would otherwise find it
closed."""


def listen(host: str, port: int) -> socket.socket:
    """Opens and returns a listening socket. Port 0 chooses a free port.

    Raises:
        UpstreamError: the address is in use, or does not belong to this machine.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        what = f"cannot listen on {host} port {port}: {error.strerror or error}"
        raise UpstreamError(
            what, where="--host, --port", fix="stop the program that uses the port, or choose another port"
        ) from error


def address(listener: socket.socket) -> str:
    """Returns the URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Server(uvicorn.Server):
    """A uvicorn server that stops at a signal, but does not raise the signal again, which would end the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def _stop(self) -> None:
        self.force_exit = self.should_exit  # the second signal does not wait for requests
        self.should_exit = True


def run(app: Starlette, listener: socket.socket, drain: float, begun: Callable[[], None] = lambda: None) -> None:
    """Serves until SIGTERM or SIGINT, and answers the accepted requests before it returns.

    Args:
        app: the application.
        listener: the socket from `listen`, which is closed at the end.
        drain: for how many seconds accepted requests may run after the signal. A second signal ends them at once.
        begun: called once the server accepts requests.
    """
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=math.ceil(drain),
        ws="none",
    )
    server = _Server(config)

    async def serve() -> None:
        serving = asyncio.create_task(server.serve([listener]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        if server.started:
            begun()
        await serving

    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(serve())

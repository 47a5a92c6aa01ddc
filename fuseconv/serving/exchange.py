"""Calls an ASGI application in this process, without a socket: takes a request object and returns a response object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message

Headers = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True)
class Sent:
    """An HTTP request: its method, path, headers and whole body."""

    method: str
    path: str
    headers: Headers
    body: bytes


@dataclass(frozen=True)
class Answered:
    """An HTTP response: its status, headers and whole body."""

    status: int
    headers: Headers
    body: bytes


async def answer(app: ASGIApp, sent: Sent, parts: Sequence[bytes] | None = None) -> Answered:
    """Calls an ASGI application with a request and returns its response.

    Args:
        app: the application.
        sent: the request.
        parts: the body of the request, split into the chunks that the application receives. Default: one chunk.
    """
    left = list((sent.body,) if parts is None else parts)
    scope: dict[str, Any] = {
        "type": "http",
        "method": sent.method,
        "path": sent.path,
        "query_string": b"",
        "headers": list(sent.headers),
    }
    messages: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": left.pop(0) if left else b"", "more_body": bool(left)}

    async def send(message: Message) -> None:
        messages.append(message)

    await app(scope, receive, send)
    start = messages[0]
    body = b"".join(message.get("body", b"") for message in messages[1:])
    return Answered(start["status"], tuple(start["headers"]), body)

"""Calls an ASGI application without a socket, with the HTTP request and its response as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message

Headers = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True)
class Sent:
    """A request with its whole body."""

    method: str
    path: str
    headers: Headers
    body: bytes


@dataclass(frozen=True)
class Answered:
    """A response with its whole body."""

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

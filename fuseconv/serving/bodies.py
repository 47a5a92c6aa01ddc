"""Reads request bodies, and limits their sizes, their total memory and their arrival time. Does not import torch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import Request

from fuseconv.serving.refusals import BusyError, EncodingError, RequestError, SlowBodyError, TooLargeError


class Bodies:
    """Reads request bodies. All bodies in memory have at most `memory` bytes in total."""

    def __init__(self, largest: int, memory: int, timeout: float) -> None:
        """Sets the limits.

        Args:
            largest: the maximum size of one body in bytes.
            memory: the maximum total size of all bodies in bytes. A body counts from its first byte to the response.
            timeout: the number of seconds within which a body must arrive.
        """
        self._largest = largest
        self._free = max(memory, largest)
        self._timeout = timeout

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytearray]:
        """Reads the body of a request. The body counts toward the memory limit until the context exits.

        Raises:
            BusyError: the memory for bodies is used up.
            EncodingError: the body is compressed.
            RequestError: the header `content-length` is not a number.
            SlowBodyError: the body did not arrive within the time limit.
            TooLargeError: the body is larger than the maximum size.
        """
        if (encoding := request.headers.get("content-encoding", "identity")) != "identity":
            what = f"the body has the content encoding {encoding[:32]}"
            raise EncodingError(what, where="content-encoding", fix="send the body without compression")
        body = bytearray()
        taken = 0
        try:
            self._check_size(_declared(request))
            async with asyncio.timeout(self._timeout):
                async for chunk in request.stream():
                    self._check_size(len(body) + len(chunk))
                    if len(chunk) > self._free:
                        what = "the bodies of the requests in progress fill the memory that is reserved for bodies"
                        raise BusyError(what, where="the body", fix="try again later")
                    self._free -= len(chunk)
                    taken += len(chunk)
                    body += chunk
            yield body
        except TimeoutError:
            what = f"the body did not arrive within {self._timeout:g} s"
            raise SlowBodyError(what, where="the body", fix="send the body faster, or raise --timeout") from None
        finally:
            self._free += taken

    def _check_size(self, size: int) -> None:
        if size > self._largest:
            what = f"the body has more than {self._largest} bytes"
            raise TooLargeError(what, where="the body", fix="send fewer rows in a request, or raise --max-body")


def _declared(request: Request) -> int:
    """Returns the size in bytes that the header `content-length` declares, or 0 if the header is missing."""
    declared = request.headers.get("content-length", "0")
    if not (declared.isascii() and declared.isdigit() and len(declared) < 19):
        raise RequestError(
            "the content length is not a number", where="content-length", fix="send the number of bytes of the body"
        )
    return int(declared)

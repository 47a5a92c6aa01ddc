"""Bodies of requests, read within limits of size, memory and time. Nothing here imports torch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import Request

from fuseconv.serving.refusals import BusyError, EncodingError, RequestError, SlowBodyError, TooLargeError


class Bodies:
    """Reads bodies. Together, those that are held at a time have at most `memory` bytes."""

    def __init__(self, largest: int, memory: int, timeout: float) -> None:
        """Sets the limits.

        Args:
            largest: the maximum number of bytes of one body.
            memory: the maximum number of bytes of all bodies from their first byte to the response.
            timeout: the number of seconds within which a body must arrive.
        """
        self._largest = largest
        self._free = max(memory, largest)
        self._timeout = timeout

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytearray]:
        """Reads the body of a request, whose memory is accounted for until the context ends.

        Raises:
            BusyError: the memory for bodies is used up.
            EncodingError: the body is compressed.
            SlowBodyError: it did not arrive in time.
            TooLargeError: it is too large.
        """
        if (encoding := request.headers.get("content-encoding", "identity")) != "identity":
            what = f"the body is encoded as {encoding[:32]}"
            raise EncodingError(what, where="content-encoding", fix="send the body without compression")
        body = bytearray()
        taken = 0
        try:
            self._check_size(_declared(request))
            async with asyncio.timeout(self._timeout):
                async for chunk in request.stream():
                    self._check_size(len(body) + len(chunk))
                    if len(chunk) > self._free:
                        what = "the bodies of the requests that are being served fill the memory for them"
                        raise BusyError(what, where="the body", fix="try again later")
                    self._free -= len(chunk)
                    taken += len(chunk)
                    body += chunk
            yield body
        except TimeoutError:
            what = f"the body did not arrive within {self._timeout:g} s"
            raise SlowBodyError(what, where="the body", fix="send it faster, or raise --timeout") from None
        finally:
            self._free += taken

    def _check_size(self, size: int) -> None:
        if size > self._largest:
            what = f"the body has more than {self._largest} bytes"
            raise TooLargeError(what, where="the body", fix="send fewer rows per request, or raise --max-body")


def _declared(request: Request) -> int:
    """Returns the size that the request declares, or 0 if it does not."""
    declared = request.headers.get("content-length", "0")
    if not (declared.isascii() and declared.isdigit() and len(declared) < 19):
        raise RequestError("the length is not a number", where="content-length", fix="send the number of bytes")
    return int(declared)

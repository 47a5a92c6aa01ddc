"""Defines the errors of a request, each with its HTTP status. Does not import torch."""

from __future__ import annotations

from typing import ClassVar

from fuseconv.errors import ContractError, FuseconvError, RefusedError, UnsupportedError, UsageError


class RequestError(FuseconvError):
    """The base class of the errors for refused requests. `status` is the HTTP status of the response."""

    code = "request"
    status: ClassVar[int] = 400


class ForbiddenError(RequestError):
    """The request requires a server option that was not set when the server was started."""

    status = 403


class NotFoundError(RequestError):
    """The requested model or version does not exist."""

    status = 404


class SlowBodyError(RequestError):
    """The body did not arrive within the time limit."""

    status = 408


class TooLargeError(RequestError):
    """The body, or the JSON in it, is larger than the limit."""

    status = 413


class EncodingError(RequestError):
    """The body is compressed. The server accepts only uncompressed bodies."""

    status = 415


class NotFiniteError(RequestError):
    """A tensor contains NaN or infinities, which JSON cannot express."""

    status = 422


class BusyError(RequestError):
    """The queue or the memory for request bodies is full."""

    status = 429


class DrainingError(RequestError):
    """The server is shutting down, or a model cannot be called any more."""

    status = 503


class LateError(RequestError):
    """The outputs were not computed within the time limit."""

    status = 504


def status_of(error: BaseException) -> int:
    """Returns the HTTP status of an error: the status of a RequestError, 400 if the request is at fault, else 500."""
    if isinstance(error, RequestError):
        return error.status
    return 400 if isinstance(error, ContractError | RefusedError | UnsupportedError | UsageError) else 500

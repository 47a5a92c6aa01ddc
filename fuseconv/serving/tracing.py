"""Identifies requests in logs by a request id and the trace that they belong to. Does not import torch."""

from __future__ import annotations

import json
import logging
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

LOGGER = logging.getLogger("fuseconv.serving")

_ID = re.compile(r"[\w.:/+=@-]{1,128}", re.ASCII)
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-[0-9a-f]{2}(-.*)?", re.ASCII)


@dataclass(frozen=True)
class Trace:
    """The identifiers of a request.

    Attributes:
        request_id: the value of the header `x-request-id`, or a new id.
        trace_id: the trace id in the header `traceparent` (W3C Trace Context), or "".
    """

    request_id: str
    trace_id: str

    @staticmethod
    def of(headers: Mapping[str, str]) -> Trace:
        """Returns the identifiers in a request's headers. Ignores malformed values, which could mislead in a log."""
        given = headers.get("x-request-id", "")
        found = _TRACEPARENT.fullmatch(headers.get("traceparent", "")[:256])
        return Trace(given if _ID.fullmatch(given) else uuid.uuid4().hex, found["trace"] if found else "")


class Event:
    """The content of a log line: the name of an event and named values. As text: `event=NAME name=value ...`."""

    def __init__(self, event: str, **fields: str | float) -> None:
        """Creates an event with its values. Leaves out empty values."""
        self.fields = {"event": event, **{name: value for name, value in fields.items() if value != ""}}

    def __str__(self) -> str:
        return " ".join(f"{name}={_value(value)}" for name, value in self.fields.items())


def _value(value: str | float) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    return json.dumps(text) if re.search(r'[\s"=]', text) else text

"""Records the metrics of a server and exports them in Prometheus's text format. Does not import torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

CONTENT_TYPE = CONTENT_TYPE_LATEST

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """The metrics of one server. Each server has its own registry, so that one process can run several servers."""

    def __init__(self) -> None:
        """Creates the metrics, without any values."""
        self._registry = CollectorRegistry()
        model = ["model"]
        self._requests = Counter(
            "fuseconv_requests", "Inference requests by HTTP status.", ["model", "status"], registry=self._registry
        )
        self._latency = self._histogram(
            "request_seconds", "Time from the first byte of a request to its response.", SECONDS
        )
        self._waited = self._histogram("queue_seconds", "Time that the first request of a batch waited.", SECONDS)
        self._calls = self._histogram("call_seconds", "Calls of the model, one for each batch.", SECONDS)
        self._batch_requests = self._histogram("batch_requests", "Requests per batch.", COUNTS)
        self._batch_rows = self._histogram("batch_rows", "Rows per batch.", COUNTS)
        self._queue = Gauge("fuseconv_queue_requests", "Requests that are waiting.", model, registry=self._registry)
        self._swaps = Counter("fuseconv_swaps", "Replacements of the weights.", model, registry=self._registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"fuseconv_{name}", text, ["model"], buckets=buckets, registry=self._registry)

    def request(self, model: str, status: int, seconds: float) -> None:
        """Records the HTTP status of a request and its duration in seconds. `model` is "" if the model is unknown."""
        self._requests.labels(model, str(status)).inc()
        self._latency.labels(model).observe(seconds)

    def batch(self, model: str, requests: int, rows: int, waited: float) -> None:
        """Records the requests and rows of a batch that starts, and for how many seconds its first request waited."""
        self._batch_requests.labels(model).observe(requests)
        self._batch_rows.labels(model).observe(rows)
        self._waited.labels(model).observe(waited)

    def call(self, model: str, seconds: float) -> None:
        """Records the duration in seconds of one model call, which runs one batch."""
        self._calls.labels(model).observe(seconds)

    def swap(self, model: str) -> None:
        """Records that the weights of a model were replaced."""
        self._swaps.labels(model).inc()

    def watch_queue(self, model: str, length: Callable[[], int]) -> None:
        """Registers the function that returns the number of waiting requests. Each export of the metrics calls it."""
        self._queue.labels(model).set_function(length)

    def text(self) -> bytes:
        """Returns all metrics in Prometheus's text format."""
        return generate_latest(self._registry)

    def summary(self, model: str) -> dict[str, Any]:
        """Returns a model's requests by HTTP status, batches, rows, swaps, and mean latency in ms as JSON values.

        The mean latency is None if no request was answered.
        """
        requests = {
            sample.labels["status"]: int(sample.value)
            for metric in self._requests.collect()
            for sample in metric.samples
            if sample.name.endswith("_total") and sample.labels["model"] == model
        }
        batches, rows = self._value("batch_rows_count", model), self._value("batch_rows_sum", model)
        answered, seconds = self._value("request_seconds_count", model), self._value("request_seconds_sum", model)
        return {
            "requests": dict(sorted(requests.items())),
            "batches": int(batches),
            "rows": int(rows),
            "mean_latency_ms": round(1000 * seconds / answered, 3) if answered else None,
            "swaps": int(self._value("swaps_total", model)),
        }

    def _value(self, name: str, model: str) -> float:
        return self._registry.get_sample_value(f"fuseconv_{name}", {"model": model}) or 0.0

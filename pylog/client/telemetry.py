"""OpenTelemetry for clients: metrics as instruments, and traces through record headers.

    pip install 'pylog-broker[otel]'
    telemetry.observe(producer)
    Producer(interceptor_classes=[telemetry.Tracing()], ...)

Owns: the instruments it registers.
Invariants: metrics cost the client's threads nothing except when they are read; a record without a
  trace is not changed; no other module imports opentelemetry.
Source: OpenTelemetry's conventions for messaging; W3C Trace Context (the header traceparent).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pylog.client.errors import MissingExtraError

try:
    from opentelemetry import metrics, propagate, trace
    from opentelemetry.metrics import CallbackOptions, Observation
except ModuleNotFoundError as _missing:
    raise MissingExtraError("pylog.client.telemetry", "opentelemetry", "otel") from _missing

SCOPE = "pylog.client"
SYSTEM = {"messaging.system": "kafka"}


def observe(client: Any, provider: Any = None) -> None:
    """Register an instrument for each current metric of a client: counters for totals, gauges for
    the rest. provider: a MeterProvider, the global one by default.
    """
    meter = metrics.get_meter(SCOPE, meter_provider=provider)
    identity = {**SYSTEM, "messaging.client.id": client.settings["client.id"]}
    names = {(group.partition(".")[0], name): None
             for group, row in client.metrics().items() for name in row}
    for group, name in names:
        make = (meter.create_observable_counter if name.endswith("-total")
                else meter.create_observable_gauge)
        make(f"kafka.{group}.{name}".replace("-", "_"),
             callbacks=[_reader(client, group, name, identity)])


def _reader(client: Any, group: str, name: str, identity: dict[str, Any]) -> Any:
    def read(options: CallbackOptions) -> Iterable[Observation]:
        for found, row in client.metrics().items():
            kind, _, topic = found.partition(".")
            if kind == group and name in row and not topic:
                yield Observation(row[name], identity)

    return read


class Tracing:
    """An interceptor: records carry the trace in which they were sent, and consumers link to it."""

    def __init__(self, provider: Any = None):
        self.tracer = trace.get_tracer(SCOPE, tracer_provider=provider)

    def on_send(self, *, topic: str, headers: Any, **record: Any) -> dict[str, Any]:
        carried: dict[str, str] = {}
        with self.tracer.start_as_current_span(
                f"send {topic}", kind=trace.SpanKind.PRODUCER,
                attributes={**SYSTEM, "messaging.destination.name": topic}):
            propagate.inject(carried)
        if not carried:  # There is no trace to add.
            return {}
        pairs = headers.items() if isinstance(headers, dict) else headers or ()
        return {"headers": [*pairs, *((key, value.encode()) for key, value in carried.items())]}

    def on_consume(self, records: list[Any]) -> list[Any]:
        links = [trace.Link(context) for context in map(context_of, records)
                 if context is not None]
        if links:
            with self.tracer.start_as_current_span("poll", kind=trace.SpanKind.CONSUMER,
                                                   links=links, attributes=SYSTEM):
                pass
        return records


def context_of(record: Any) -> Any:
    """Return the SpanContext of the trace in which a record was sent, or None."""
    carried = {key: (value or b"").decode("latin-1") for key, value in record.headers}
    found = trace.get_current_span(propagate.extract(carried)).get_span_context()
    return found if found.is_valid else None

"""Logs requests and connections that the reactors report.

Owns: nothing.
Invariants: each line contains the number of suppressed lines of its kind before it.
Source: Kafka's request logger.
"""

from __future__ import annotations

import logging

from pylog.protocol import tables

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from pylog._native.server.reactor import Slow, Unsafe

requests = logging.getLogger("pylog.request")
connections = logging.getLogger("pylog.tls")


def unsafe(event: Unsafe) -> None:
    connections.warning("no TLS with this peer", extra={
        "peer": event.peer, "reason": event.reason, "left_out": event.left_out})


def slow(event: Slow) -> None:
    """Log a slow request."""
    requests.warning("slow request", extra={
        "api": tables.api_name(event.api_key), "version": event.api_version,
        "client": event.client_id.decode("utf-8", "replace"), "peer": event.peer,
        "connection": event.connection, "correlation": event.correlation_id,
        "total_ms": f"{event.total_ns / 1e6:.3f}", "local_ms": f"{event.local_ns / 1e6:.3f}",
        "remote_ms": f"{event.remote_ns / 1e6:.3f}", "send_ms": f"{event.send_ns / 1e6:.3f}",
        "request_bytes": event.request_bytes, "response_bytes": event.response_bytes,
        "left_out": event.left_out})

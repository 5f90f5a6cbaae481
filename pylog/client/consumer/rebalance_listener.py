"""Callbacks that notify an application of assigned and revoked partitions.

Owns: nothing.
Invariants: `on_partitions_lost` falls back to `on_partitions_revoked`, as in Kafka.
Source: Kafka's ConsumerRebalanceListener; confluent-kafka's on_assign, on_revoke, on_lost.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from pylog.client.types import TopicPartition


class RebalanceListener:
    """Derive from it and override callbacks; each receives a list of TopicPartition."""

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> object:
        """Called with new partitions, before anything is fetched: seeking is possible here."""

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> object:
        """Called before partitions are revoked: committing is still possible here."""


class Callbacks:
    """A listener made of three functions."""

    def __init__(self, on_assign: Callable[..., Any] | None, on_revoke: Callable[..., Any] | None,
                 on_lost: Callable[..., Any] | None):
        self.on_partitions_assigned = on_assign
        self.on_partitions_revoked = on_revoke
        self.on_partitions_lost = on_lost or on_revoke  # Lost falls back to revoked.


def listener_of(listener: Any, on_assign: Any, on_revoke: Any, on_lost: Any) -> Any:
    """Return the given listener, or one made of the functions."""
    if on_assign is None and on_revoke is None and on_lost is None:
        return listener
    if listener is not None:
        raise ValueError("a listener or functions, not both")
    return Callbacks(on_assign, on_revoke, on_lost)


def weakly(listener: Any) -> Any:
    """Return a proxy of a listener that the caller must hold, or the listener if it allows none.

    A callback usually refers to its consumer. If the client's thread held it, a dropped consumer
    would stay in its group.
    """
    try:
        return None if listener is None else weakref.proxy(listener)
    except TypeError:
        return listener


def callback_of(listener: Any, what: str) -> Callable[..., Any] | None:
    """Return the listener's on_partitions_assigned, _revoked or _lost; lost falls back to revoked.
    """
    try:
        found = getattr(listener, f"on_partitions_{what}", None)
        if found is None and what == "lost":
            found = getattr(listener, "on_partitions_revoked", None)
    except ReferenceError:
        return None  # The application dropped the consumer.
    return found

"""What an application may pass to be informed of its partitions coming and going.

Owns: nothing.
Invariants: (1) `on_partitions_lost` falls back to `on_partitions_revoked`, as in Kafka.
Source: Kafka's ConsumerRebalanceListener; confluent-kafka's on_assign, on_revoke, on_lost.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any


class RebalanceListener:
    """Derive from it and override what is of interest; each gets a list of TopicPartition."""

    def on_partitions_assigned(self, partitions: list[Any]) -> Any:
        """These are new; seeking here comes before anything is fetched."""

    def on_partitions_revoked(self, partitions: list[Any]) -> Any:
        """These go as soon as this returns; committing here is still in time."""


class Callbacks:
    """The three as functions."""

    def __init__(self, on_assign: Callable[..., Any] | None, on_revoke: Callable[..., Any] | None,
                 on_lost: Callable[..., Any] | None):
        self.on_partitions_assigned = on_assign
        self.on_partitions_revoked = on_revoke
        self.on_partitions_lost = on_lost or on_revoke  # Keeps (1).


def listener_of(listener: Any, on_assign: Any, on_revoke: Any, on_lost: Any) -> Any:
    """The listener to use: the one given, or one made of functions."""
    if on_assign is None and on_revoke is None and on_lost is None:
        return listener
    if listener is not None:
        raise ValueError("a listener or functions, not both")
    return Callbacks(on_assign, on_revoke, on_lost)


def weakly(listener: Any) -> Any:
    """A proxy of a listener that the caller must hold, or the listener where it allows none.

    A callback usually refers to its consumer: held by the client's thread, it would keep a consumer
    that the application dropped in its group.
    """
    try:
        return None if listener is None else weakref.proxy(listener)
    except TypeError:
        return listener


def callback_of(listener: Any, what: str) -> Callable[..., Any] | None:
    """The listener's on_partitions_assigned, _revoked or _lost. Keeps (1)."""
    try:
        found = getattr(listener, f"on_partitions_{what}", None)
        if found is None and what == "lost":
            found = getattr(listener, "on_partitions_revoked", None)
    except ReferenceError:
        return None  # The application dropped the consumer.
    return found

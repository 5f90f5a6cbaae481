"""What groups obey: the broker's settings, and time.

Owns: nothing.
Called by: coordinator.groups and the modules beside it; coordinator.service.
Invariants: (1) limits do not change while the broker runs.
Source: Kafka's group.* and offset.* settings.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol


class Limits(NamedTuple):
    """The broker's settings that groups obey."""

    session_ms_min: int
    session_ms_max: int
    members_max: int
    initial_delay_ms: int
    metadata_characters_max: int
    retention_ms: int


class Time(Protocol):
    """now_ms() never goes back; wall_ms() is since 1970."""

    @property
    def wall_ms(self) -> Callable[[], int]: ...

    def now_ms(self) -> int: ...


def limits_from(settings: Any) -> Limits:
    return Limits(
        settings["group.min.session.timeout.ms"], settings["group.max.session.timeout.ms"],
        settings["group.max.size"], max(0, settings["group.initial.rebalance.delay.ms"]),
        settings["offset.metadata.max.bytes"], settings["offsets.retention.minutes"] * 60_000)

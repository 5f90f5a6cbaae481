"""Settings of a share group: its own, or the broker's defaults.

Owns: nothing.
Invariants: a changed setting takes effect the next time it is read.
Source: KIP-932, GROUP config resources.
"""

import re
from collections.abc import Callable
from typing import Any

from pylog.config import groups, values
from pylog.coordinator.groups.share.heartbeat import ShareGroupConfig
from pylog.metadata.image.image import Image
from pylog.share.in_flight import Limits

RESOURCE_GROUP = 32
LATEST, EARLIEST = "latest", "earliest"
_PARTS = re.compile(
    r"by_duration:P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.I)


class GroupSettings:
    """Reads group settings. image: returns the current metadata image."""

    def __init__(self, settings: Any, image: Callable[[], Image]):
        self._settings = settings
        self._image = image

    def value(self, group_id: str, name: str) -> Any:
        """Return the effective value of a group setting."""
        text = self._image().configs.get((RESOURCE_GROUP, group_id), {}).get(name)
        if text is not None:
            return values.parse(groups.group(name), text)
        return self._settings[groups.SYNONYMS[name]] if name in groups.SYNONYMS \
            else groups.group(name).default

    def config_of(self, group_id: str) -> ShareGroupConfig:
        return ShareGroupConfig(
            self.value(group_id, "share.session.timeout.ms"),
            self.value(group_id, "share.heartbeat.interval.ms"),
            self.value(group_id, "share.assignment.interval.ms"),
            self._settings["group.share.max.size"],
            self._settings["group.share.initialize.retry.interval.ms"])

    def limits(self, group_id: str) -> Limits:
        return Limits(
            self.value(group_id, "share.record.lock.duration.ms"),
            self.value(group_id, "share.delivery.count.limit"),
            self.value(group_id, "share.partition.max.record.locks"),
            self.value(group_id, "share.renew.acknowledge.enable"),
            bool(self.dead_letter_topic(group_id)))

    def dead_letter_topic(self, group_id: str) -> str:
        """Return the topic for records that could not be processed, or ""."""
        return str(self.value(group_id, "errors.deadletterqueue.topic.name"))

    def copies_records(self, group_id: str) -> bool:
        """Return True if dead letters contain the record."""
        return bool(self.value(group_id, "errors.deadletterqueue.copy.record.enable"))

    def lock_ms(self, group_id: str) -> int:
        return int(self.value(group_id, "share.record.lock.duration.ms"))

    def is_committed(self, group_id: str) -> bool:
        """Return True if records of open and aborted transactions are skipped."""
        return bool(self.value(group_id, "share.isolation.level") == "read_committed")

    def begins(self, group_id: str) -> str | int:
        """Return LATEST, EARLIEST, or an age in ms."""
        text = self.value(group_id, "share.auto.offset.reset")
        found = _PARTS.fullmatch(text)
        if found is None:
            return EARLIEST if text == EARLIEST else LATEST
        days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
        return int(((days * 24 + hours) * 60 + minutes) * 60_000 + seconds * 1000)

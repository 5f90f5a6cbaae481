"""The source's options: those of Spark's Kafka connector with the same names, and a few more.

Owns: nothing.
Invariants: an option has the connector's meaning and default if the connector has it; each error is
  one line that names the option.
Source: Structured Streaming + Kafka Integration Guide (Spark 4), for names and meanings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pylog.client.errors import ConfigError
from pylog.client.spark.formats import OPTIONS as FORMAT_OPTIONS
from pylog.client.spark.formats import Formats, formats
from pylog.client.types import EARLIEST, LATEST, TopicPartition

SPLIT_BYTES = 128 << 20
FETCH_BYTES = 4 << 20
_PREFIX = "kafka."
_STRATEGIES = ("subscribe", "subscribepattern", "assign")
_UNITS = {"ms": 1, "millisecond": 1, "second": 1000, "sec": 1000, "s": 1000, "minute": 60_000,
          "min": 60_000, "m": 60_000, "hour": 3_600_000, "h": 3_600_000, "day": 86_400_000,
          "d": 86_400_000, "week": 604_800_000}
_RELATIVE = re.compile(r"\s*-\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]+)\s*")
# The connector's options without effect here.
_PASSED_OVER = {
    "groupidprefix", "fetchoffset.numretries", "fetchoffset.retryintervalms",
    "kafkaconsumer.polltimeoutms", "path",
}
_KNOWN = {
    *_STRATEGIES, "startingoffsets", "endingoffsets", "startingoffsetsbytimestamp",
    "endingoffsetsbytimestamp", "startingtimestamp", "endingtimestamp",
    "startingoffsetsbytimestampstrategy", "maxoffsetspertrigger", "minpartitions",
    "minoffsetspertrigger", "maxtriggerdelay", "maxrecordsperpartition", "failondataloss",
    "includeheaders", "splitbytes", "topic", "pushfilters", *FORMAT_OPTIONS,
}


@dataclass(frozen=True)
class Bound:
    """Start or end of reading.

    kind: earliest, latest, offsets, times; given: an offset (also EARLIEST and LATEST) or a time in
    ms per partition; time_ms: for all partitions.
    """

    kind: str
    given: dict[TopicPartition, int] = field(default_factory=dict)
    time_ms: int = -1


@dataclass(frozen=True)
class ReadOptions:
    """The parsed options of a reader."""

    settings: dict[str, Any]
    topics: tuple[str, ...]
    pattern: str
    assigned: tuple[TopicPartition, ...]
    starting: Bound
    ending: Bound
    none_at_time: str
    offsets_per_trigger: int
    offsets_per_trigger_min: int
    trigger_delay_ms: int
    partitions_min: int
    partition_records_max: int
    split_bytes: int
    fail_on_data_loss: bool
    headers: bool
    push_filters: bool
    formats: Formats

    def named_topics(self) -> set[str]:
        """Return the topics that the options name; none with a pattern."""
        return {*self.topics, *(tp.topic for tp in self.assigned)}


def read_options(options: Mapping[str, str], streaming: bool, now_ms: int) -> ReadOptions:
    """Parse a reader's options. Raises ConfigError."""
    given = {name.lower(): str(value) for name, value in options.items()}
    unknown = {name for name in given if not name.startswith(_PREFIX)} - _KNOWN - _PASSED_OVER
    if unknown:
        raise ConfigError(f"no such option: {', '.join(sorted(unknown))}")
    chosen = [name for name in _STRATEGIES if given.get(name, "").strip()]
    if len(chosen) != 1:
        raise ConfigError("exactly one of subscribe, subscribePattern and assign is needed")
    strategy = given.get("startingoffsetsbytimestampstrategy", "error").lower()
    if strategy not in ("error", "latest"):
        raise ConfigError("startingOffsetsByTimestampStrategy: error or latest")
    if streaming and {"endingoffsets", "endingtimestamp", "endingoffsetsbytimestamp"} & set(given):
        raise ConfigError("a streaming query has no ending offsets")
    topics = tuple(part.strip() for part in given.get("subscribe", "").split(",") if part.strip())
    return ReadOptions(
        settings=_settings(given, {
            "enable.auto.commit": False, "max.partition.fetch.bytes": FETCH_BYTES,
            "fetch.max.wait.ms": 100, "check.crcs": True}),
        topics=topics, pattern=given.get("subscribepattern", ""),
        assigned=_assigned(given["assign"]) if chosen == ["assign"] else (),
        starting=_bound(given, "starting", "latest" if streaming else "earliest", now_ms),
        ending=_bound(given, "ending", "latest", now_ms), none_at_time=strategy,
        offsets_per_trigger=_count(given, "maxoffsetspertrigger"),
        offsets_per_trigger_min=_least(given), trigger_delay_ms=_delay(given),
        partitions_min=_count(given, "minpartitions"),
        partition_records_max=_count(given, "maxrecordsperpartition"),
        split_bytes=_count(given, "splitbytes", SPLIT_BYTES),
        fail_on_data_loss=_truth(given, "failondataloss", True),
        headers=_truth(given, "includeheaders", False),
        push_filters=_truth(given, "pushfilters", False), formats=formats(given))


class WriteOptions(NamedTuple):
    """The parsed options of a writer. settings: a producer's; topic, exactly_once_id: "" if unset.
    """

    settings: dict[str, Any]
    topic: str
    formats: Formats
    exactly_once_id: str


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Parse a writer's options. Raises ConfigError."""
    given = {name.lower(): str(value) for name, value in options.items()}
    unknown = {name for name in given if not name.startswith(_PREFIX)} - {
        "topic", "includeheaders", "checkpointlocation", "queryname", "path", "exactlyonceid", *(
            FORMAT_OPTIONS - {"expandvalue", "mode"})}
    if unknown:
        raise ConfigError(f"no such option: {', '.join(sorted(unknown))}")
    settings = _settings(given, {"buffer.memory": 64 << 20})
    if "transactional.id" in settings:
        raise ConfigError("kafka.transactional.id is not supported: use exactlyOnceId; a "
                          "streaming query chooses its own transactional ids")
    sink = given.get("exactlyonceid", "").strip()
    if "exactlyonceid" in given and not sink:
        raise ConfigError("exactlyOnceId: expected a name that no other query uses")
    return WriteOptions(settings, given.get("topic", "").strip(), formats(given), sink)


def _settings(given: Mapping[str, str], defaults: dict[str, Any]) -> dict[str, Any]:
    settings = {**defaults, **{name[len(_PREFIX):]: value for name, value in given.items()
                               if name.startswith(_PREFIX)}}
    if not settings.get("bootstrap.servers"):
        raise ConfigError("kafka.bootstrap.servers is missing")
    for refused in ("auto.offset.reset", "key.deserializer", "value.deserializer",
                    "key.serializer", "value.serializer", "interceptor.classes"):
        if refused in settings:
            raise ConfigError(f"kafka.{refused} is not supported: see startingOffsets")
    settings.pop("group.id", None)
    return settings


def _assigned(text: str) -> tuple[TopicPartition, ...]:
    found = _json("assign", text)
    if not all(isinstance(numbers, list) for numbers in found.values()):
        raise ConfigError('assign: JSON like {"topic": [0, 1]}')
    return tuple(TopicPartition(topic, int(number))
                 for topic, numbers in found.items() for number in numbers)


def _bound(given: Mapping[str, str], which: str, default: str, now_ms: int) -> Bound:
    """Parse a bound. The connector's precedence: a time for all, times per partition, offsets."""
    text = given.get(f"{which}timestamp")
    if text is not None:
        return Bound("times", time_ms=_time(f"{which}Timestamp", text, now_ms))
    name = f"{which}OffsetsByTimestamp"
    text = given.get(name.lower())
    if text is not None:
        return Bound("times", _per_partition(
            name, text, lambda value: _time(name, str(value), now_ms)))
    name = f"{which}Offsets"
    text = given.get(name.lower(), default).strip()
    if text.lower() in ("earliest", "latest"):
        if (which, text.lower()) == ("ending", "earliest"):
            raise ConfigError("endingOffsets: earliest would read nothing")
        return Bound(text.lower())
    if _RELATIVE.fullmatch(text):
        return Bound("times", time_ms=_time(name, text, now_ms))
    found = _per_partition(name, text, int)
    wrong = EARLIEST if which == "ending" else None
    if any(value < EARLIEST or value == wrong for value in found.values()):
        raise ConfigError(f"{name}: an offset, {LATEST} for latest"
                          + ("" if which == "ending" else f", {EARLIEST} for earliest"))
    return Bound("offsets", found)


def _per_partition(name: str, text: str, convert: Callable[[Any], int]
                   ) -> dict[TopicPartition, int]:
    try:
        return {TopicPartition(topic, int(number)): convert(value)
                for topic, rows in _json(name, text).items() for number, value in rows.items()}
    except (AttributeError, TypeError, ValueError) as broken:
        raise ConfigError(f'{name}: JSON like {{"topic": {{"0": 23}}}}, not {text!r}') from broken


def _json(name: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f"{name}: a JSON object, a word or a time is expected, not {text!r}")
    return found


def _time(name: str, text: str, now_ms: int) -> int:
    """Parse a time to ms since the epoch: a number, or "-10 minutes"."""
    span = _span_ms(text)
    if span is not None:
        return max(0, now_ms - span)
    if text.strip().isdigit():
        return int(text)
    raise ConfigError(f"{name}: ms since the epoch or a time like '-10 minutes', not {text!r}")


def _span_ms(text: str) -> int | None:
    found = _RELATIVE.fullmatch(text)
    if found is None:
        return None
    unit = found[2].lower()
    unit = unit if unit in _UNITS else unit.removesuffix("s")
    return round(float(found[1]) * _UNITS[unit]) if unit in _UNITS else None


def _least(given: Mapping[str, str]) -> int:
    least = _count(given, "minoffsetspertrigger")
    if 0 < _count(given, "maxoffsetspertrigger") < least:
        raise ConfigError("minOffsetsPerTrigger is more than maxOffsetsPerTrigger")
    return least


def _delay(given: Mapping[str, str]) -> int:
    """Return maxTriggerDelay in ms."""
    text = given.get("maxtriggerdelay", "15m").strip()
    span = int(text) if text.isdigit() else _span_ms(f"-{text}")
    if span is None:
        raise ConfigError(f"maxTriggerDelay: ms or a time like '15m', not {text!r}")
    return span


def _count(given: Mapping[str, str], name: str, default: int = 0) -> int:
    text = given.get(name)
    if text is None:
        return default
    if not text.strip().isdigit() or int(text) <= 0:
        raise ConfigError(f"{name}: a positive whole number, not {text!r}")
    return int(text)


def _truth(given: Mapping[str, str], name: str, default: bool) -> bool:
    text = given.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise ConfigError(f"{name}: true or false, not {text!r}")
    return text == "true"

"""The broker's bounds on group settings."""

import pytest

from pylog.config import ConfigError, Settings
from pylog.config.groups import BOUNDS, group_config, validate_group_configs


@pytest.mark.parametrize(("bound", "value", "name", "inside", "outside"), [
    ("group.consumer.min.assignment.interval.ms", 500, "consumer.assignment.interval.ms", 500, 499),
    ("group.consumer.max.assignment.interval.ms", 2000, "consumer.assignment.interval.ms",
     2000, 2001),
    ("group.consumer.min.session.timeout.ms", 40_000, "consumer.session.timeout.ms",
     40_000, 39_999),
    ("group.consumer.max.session.timeout.ms", 50_000, "consumer.session.timeout.ms",
     50_000, 50_001),
    ("group.share.min.assignment.interval.ms", 500, "share.assignment.interval.ms", 500, 499),
    ("group.share.max.assignment.interval.ms", 2000, "share.assignment.interval.ms", 2000, 2001),
    ("group.share.min.partition.max.record.locks", 200, "share.partition.max.record.locks",
     200, 199),
    ("group.share.max.partition.max.record.locks", 3000, "share.partition.max.record.locks",
     3000, 3001),
    ("group.share.min.record.lock.duration.ms", 20_000, "share.record.lock.duration.ms",
     20_000, 19_999),
    ("group.share.max.record.lock.duration.ms", 40_000, "share.record.lock.duration.ms",
     40_000, 40_001),
    ("group.streams.min.assignment.interval.ms", 500, "streams.assignment.interval.ms", 500, 499),
    ("group.streams.max.assignment.interval.ms", 2000, "streams.assignment.interval.ms",
     2000, 2001),
    ("group.streams.max.standby.replicas", 1, "streams.num.standby.replicas", 1, 2),
])
def test_group_setting_is_limited_by_its_broker_setting(bound, value, name, inside, outside):
    base = name.replace(".assignment.interval", "")
    own = {} if base == name else {f"group.{name}": "1000"}  # Within the bounds itself.
    settings = Settings({**own, bound: str(value)})
    validate_group_configs({name: str(inside)}, settings)
    low, high = BOUNDS[name]
    text = f"in the range {settings[low]} to {settings[high]} inclusive." if low and high \
        else f"less than or equal to {settings[high]}"
    with pytest.raises(ConfigError, match=f"^{name} must be {text}$"):
        validate_group_configs({name: str(outside)}, settings)


def test_task_offset_interval_has_a_minimum():
    settings = Settings({"group.streams.min.task.offset.interval.ms": "20000"})
    validate_group_configs({"streams.task.offset.interval.ms": "20000"}, settings)
    with pytest.raises(ConfigError, match="greater than or equal to 20000"):
        validate_group_configs({"streams.task.offset.interval.ms": "19999"}, settings)


@pytest.mark.parametrize(("name", "text", "words"), [
    ("streams.assignor.name", "no-such", "is not a registered task assignor"),
    ("streams.rack.aware.assignment.tags", "zone,zone", "must not contain duplicate tag keys"),
])
def test_invalid_setting_of_a_streams_group_is_rejected(name, text, words):
    with pytest.raises(ConfigError, match=words):
        validate_group_configs({name: text}, Settings())


def test_assignor_of_a_streams_group_is_by_default_the_brokers_first():
    assert group_config({}, Settings())["streams.assignor.name"] == "sticky"

"""The coordinator's limits come from the broker's settings."""

import pytest

from pylog.config import ConfigError, Settings
from pylog.coordinator.groups.state.group_config import limits_from


@pytest.mark.parametrize(("name", "text", "field", "value"), [
    ("group.min.session.timeout.ms", "5000", "session_ms_min", 5000),
    ("group.max.session.timeout.ms", "7000", "session_ms_max", 7000),
    ("group.max.size", "3", "members_max", 3),
    ("group.initial.rebalance.delay.ms", "9", "initial_delay_ms", 9),
    ("offset.metadata.max.bytes", "11", "metadata_characters_max", 11),
    ("offsets.retention.minutes", "2", "retention_ms", 120_000),
    ("group.streams.max.size", "4", "streams_members_max", 4),
])
def test_limit_of_groups_is_a_broker_setting(name, text, field, value):
    assert getattr(limits_from(Settings()), field) != value
    assert getattr(limits_from(Settings({name: text})), field) == value


@pytest.mark.parametrize(("name", "text", "field", "value"), [
    ("group.consumer.max.size", "5", "members_max", 5),
    ("group.consumer.regex.refresh.interval.ms", "20000", "refresh_ms", 20_000),
])
def test_limit_of_consumer_groups_is_a_broker_setting(name, text, field, value):
    assert getattr(limits_from(Settings()).consumer, field) != value
    assert getattr(limits_from(Settings({name: text})).consumer, field) == value


@pytest.mark.parametrize(("policy", "upgrade", "downgrade"), [
    ("bidirectional", True, True), ("UPGRADE", True, False), ("downgrade", False, True),
    ("disabled", False, False)])
def test_migration_policy_decides_which_conversions_are_allowed(policy, upgrade, downgrade):
    limits = limits_from(Settings({"group.consumer.migration.policy": policy})).consumer
    assert (limits.may_upgrade, limits.may_downgrade) == (upgrade, downgrade)


def test_unknown_assignor_of_streams_groups_is_rejected():
    with pytest.raises(ConfigError, match="group.streams.assignors: com.example.Mine: "):
        limits_from(Settings({"group.streams.assignors": "sticky,com.example.Mine"}))

"""Settings of share groups: the broker's, unless the group has its own."""

from types import SimpleNamespace

from pylog.config import Settings
from pylog.share.group_config import RESOURCE_GROUP, GroupSettings


def of(broker: dict, group: dict) -> GroupSettings:
    image = SimpleNamespace(configs={(RESOURCE_GROUP, "g"): group})
    return GroupSettings(Settings(broker), lambda: image)


def test_group_without_settings_uses_the_brokers():
    found = of({"group.share.partition.max.record.locks": "150",
                "group.share.record.lock.duration.ms": "20000",
                "group.share.delivery.count.limit": "7"}, {}).limits("g")
    assert (found.lock_ms, found.deliveries_max, found.records_max) == (20_000, 7, 150)


def test_group_settings_override_the_brokers():
    found = of({"group.share.partition.max.record.locks": "150"},
               {"share.partition.max.record.locks": "160"})
    assert found.limits("g").records_max == 160
    assert found.limits("other").records_max == 150


def test_member_of_a_share_group_gets_the_brokers_intervals():
    found = of({"group.share.initialize.retry.interval.ms": "5432",
                "group.share.heartbeat.interval.ms": "6000", "group.share.max.size": "9"},
               {}).config_of("g")
    assert (found.heartbeat_ms, found.members_max, found.retry_ms) == (6000, 9, 5432)

"""The lag of all groups over the last minutes: readings, rates, unknown lags, limits, rights."""

import asyncio
import json
import time

import pytest

from pylog.client import Admin
from pylog.client.admin.admin import Admin as AsyncAdmin
from pylog.client.admin.types import AclBinding
from pylog.client.errors import KafkaError
from pylog.client.types import TopicPartition
from pylog.console.groups import history
from pylog.console.groups import lag as group_lag
from pylog.console.groups.history import GroupLag, LagHistory
from pylog.console.groups.samples import LagSample
from pylog.testing import Broker
from tests.console.served import WAIT_S, Served
from tests.console.views import test_login

T = TopicPartition


class Readings:
    """A history with a clock that the test moves."""

    def __init__(self, bootstrap):
        self.now_ms = 1_000_000
        self.bootstrap = bootstrap
        self.history = LagHistory(lambda: self.now_ms)

    def read(self, after_ms=10_000):
        async def work():
            async with AsyncAdmin(bootstrap_servers=self.bootstrap) as admin:
                await self.history.read(admin)

        self.now_ms += after_ms
        asyncio.run(work())


def commit(broker, group, offsets):
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.alter_consumer_group_offsets(group, offsets)


@pytest.fixture(scope="module")
def broker():
    with Broker() as one:
        one.create_topic("orders", partitions=2).append(*[b"x"] * 8, partition=0)
        one.create_topic("mails").append(*[b"x"] * 3)
        commit(one, "slow", {T("orders", 0): 1, T("orders", 1): 0, T("mails", 0): 0})
        commit(one, "fast", {T("orders", 0): 8})
        yield one


@pytest.fixture
def readings(broker):
    return Readings(broker.bootstrap)


def test_readings_add_up_to_a_trend_of_each_group(broker, readings):
    readings.read()
    broker.topic("orders").append(*[b"y"] * 5, partition=1)
    readings.read()
    topics = {"orders", "mails"}
    assert readings.history.samples("slow", topics) == [
        LagSample(1_010_000, 10), LagSample(1_020_000, 15)]
    assert readings.history.top(1, None, topics) == (
        [GroupLag("slow", 15, True, 5, 1_010_000)], 0)
    assert readings.history.worst(None) == {
        "orders": GroupLag("slow", 12, True), "mails": GroupLag("slow", 3, True)}


def test_a_clock_that_was_set_back_gives_no_change_over_negative_time(readings):
    readings.read()
    readings.read(-60_000)
    row, = readings.history.top(1, {"slow"}, {"orders", "mails"})[0]
    assert (row.change, row.since_ms) == (None, None)


def test_offsets_of_an_earlier_reading_give_rates(broker, readings):
    commit(broker, "paced", {T("orders", 0): 2})
    readings.read()
    assert readings.history.before("paced") is None
    readings.now_ms += 20_000
    time_ms, rows = readings.history.before("paced")
    assert time_ms == 1_010_000
    assert rows[T("orders", 0)] == {"committed_offset": 2, "end_offset": 8}
    readings.read(30_000)
    assert readings.history.before("paced")[0] == 1_010_000
    readings.now_ms += history.RATE_MS_MAX + 1
    assert readings.history.before("paced") is None


def test_groups_and_topics_that_a_user_may_not_see_are_left_out(readings):
    readings.read()
    assert readings.history.samples("slow", {"orders"}) == []
    assert readings.history.top(5, {"fast"}, {"orders", "mails"}) == ([], 0)
    assert readings.history.worst({"fast"})["orders"].group == "fast"
    assert [row.group for row in readings.history.top(5, {"slow"}, {"mails"})[0]] == ["slow"]


def test_a_lag_that_could_not_be_read_is_unknown(readings, monkeypatch):
    readings.read()

    async def unreadable(admin, groups):
        return {"slow": {T("orders", 0): group_lag.Offsets(1, None, None),
                         T("mails", 0): group_lag.Offsets(0, 3, 3)}}

    monkeypatch.setattr(group_lag, "offsets_and_ends", unreadable)
    readings.read()
    assert readings.history.samples("slow", {"orders", "mails"})[-1].records is None
    found, unknown = readings.history.top(5, {"slow", "fast"}, {"orders", "mails"})
    assert (found, unknown) == ([GroupLag("slow", 3, False)], 2)
    assert readings.history.worst({"slow"})["orders"] == GroupLag("slow", None, False)


def test_a_failed_reading_is_a_gap_and_names_its_reason(readings, monkeypatch):
    readings.read()

    async def fails(admin):
        raise KafkaError("no broker responds")

    monkeypatch.setattr(group_lag, "listed", fails)
    readings.read()
    assert readings.history.error == "no broker responds"
    assert [one.records is None for one in readings.history.samples("fast", {"orders"})] == [
        False, True]


def test_groups_beyond_a_limit_are_counted_and_not_shown_in_part(readings, monkeypatch):
    monkeypatch.setattr(history, "SERIES_MAX", 2)
    readings.read()
    assert readings.history.left_out > 0
    assert sum(map(len, readings.history._series.values())) <= 2
    monkeypatch.setattr(history, "COMMITTED_MAX", 0)
    readings.read()
    assert readings.history.left_out >= 2 and not readings.history._older


def test_deleted_groups_are_forgotten(broker, readings):
    commit(broker, "short", {T("orders", 0): 2})
    readings.read()
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.delete_consumer_groups(["short"])
    readings.read()
    assert readings.history.samples("short", {"orders"}) == []
    assert "short" not in readings.history._series


def wait_for_reading(served):
    """Wait until the console has read the lags at the current time of its clock."""
    deadline = time.monotonic() + WAIT_S
    while served.console.lag_histories["test"].read_ms != served.clock.now_ms():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_console_with_an_account_samples_before_a_page_is_opened(broker):
    with Served({"test": {"bootstrap.servers": broker.bootstrap}},
                console_lag_interval_ms=50) as served:
        wait_for_reading(served)
        served.clock.now_s += 60
        wait_for_reading(served)
        client = served.client()
        assert "<polyline points=" in client.get("/groups/slow").text
        text = client.get("/groups/slow/explain").text
        assert "samples of the last 60 s" in text and "The group has no members" in text
        row, *_ = json.loads(client.get("/topics?q=mails&format=json").text)["rows"]
        assert (row["lag_records"], row["lag_group"]) == (3, "slow")
        assert "Largest lag" in client.get("/").text


def test_without_samples_pages_read_the_lags_of_few_groups(broker, monkeypatch):
    from pylog.console import visible_lags

    with Served({"test": {"bootstrap.servers": broker.bootstrap}}) as served:
        client = served.client()
        row, *_ = json.loads(client.get("/topics?q=mails&format=json").text)["rows"]
        assert (row["lag_records"], row["lag_group"]) == (3, "slow")
        monkeypatch.setattr(visible_lags, "GROUPS_READ_MAX", 1)
        for path in ("/", "/topics"):
            text = client.get(path).text
            assert "too many to read" in text and "unknown" in text, path


def test_samples_of_the_console_show_each_user_only_own_groups_and_topics():
    with Broker(settings=test_login.SETTINGS) as broker:
        root = test_login.cluster(broker, **{
            "sasl.mechanism": "PLAIN", "sasl.username": "root", "sasl.password": "root-password"})
        with Admin(root) as admin:
            admin.create_topics(["orders-ann", "orders-bob"])
            admin.create_acls([
                AclBinding(kind, f"orders-{user}", "LITERAL", f"User:{user}", "*", "ALL", "ALLOW")
                for user in ("ann", "bob") for kind in ("TOPIC", "GROUP")])
            for user in ("ann", "bob"):
                admin.alter_consumer_group_offsets(
                    f"orders-{user}", {T(f"orders-{user}", 0): 0})
        with Served({"test": root}, console_auth="sasl", console_lag_interval_ms=50) as served:
            wait_for_reading(served)
            client = served.client()
            assert client.log_in("ann", "ann-password").status == 303
            for path in ("/", "/topics", "/topics?format=json", "/groups/orders-ann"):
                text = client.get(path).text
                assert "orders-bob" not in text, path
            rows = json.loads(client.get("/topics?format=json").text)["rows"]
            assert [(row["topic"], row["lag_group"]) for row in rows] == [
                ("orders-ann", "orders-ann")]

"""Groups: lag in records and seconds, offsets that are reset only on confirmation, and reasons for
lag.
"""

import asyncio
import time
from types import SimpleNamespace

import pytest
from confluent_kafka import Consumer, TopicPartition

from pylog.client import types
from pylog.tools.cli import cluster_queries
from pylog.tools.groups import lag as lags
from tests.monitor import scrape
from tests.tools.support import run, topic_of
from tests.wire import raw
from tests.wire.talk import append, unique

BROKER_SETTINGS = {"group.initial.rebalance.delay.ms": "0", "metrics.listener": "127.0.0.1:0"}


def records(count: int, timestamp: int) -> bytes:
    return raw.batch([raw.record(b"k", b"v", offset_delta=number) for number in range(count)],
                     base_timestamp=timestamp, max_timestamp=timestamp)


def filled(broker, partitions: int = 2, count: int = 10, age_s: int = 60) -> str:
    topic = topic_of(broker, partitions)
    for partition in range(partitions):
        append(broker.port, topic, records(count, int(time.time() - age_s) * 1000), partition)
    return topic


def member(broker, group: str, topic: str, **settings):
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group,
                         "auto.offset.reset": "earliest", "enable.auto.commit": False,
                         "client.id": "reader", **settings})
    consumer.subscribe([topic])
    end_s = time.monotonic() + 30
    while not consumer.assignment() and time.monotonic() < end_s:
        consumer.poll(0.1)
    assert consumer.assignment()
    return consumer


def committed(broker, group: str) -> dict:
    told = run("groups", "describe", group, "--json", broker=broker).json[0]
    return {row["partition"]: row["committed_offset"] for row in told["partitions"]}


def test_lag_is_shown_in_records_and_seconds(target):
    topic, group = filled(target), unique("group")
    run("groups", "reset-offsets", group, "-t", topic, "--to-offset", 4, "--execute",
        broker=target)
    told = run("groups", "describe", group, "--json", broker=target).json[0]
    assert told["state"] == "Empty" and told["lag_records"] == 12
    assert 59 <= told["lag_seconds"] <= 120
    assert [row["lag_records"] for row in told["partitions"]] == [6, 6]
    run("groups", "reset-offsets", group, "--to-latest", "--execute", broker=target)
    told = run("groups", "describe", group, "--json", broker=target).json[0]
    assert (told["lag_records"], told["lag_seconds"]) == (0, 0)
    listed = run("groups", "list", group, "-l", "--json", broker=target).json[0]
    assert listed["lag_records"] == 0 and listed["members"] == 0 and listed["partitions"] == 2


def test_offsets_are_changed_only_with_execute(target):
    topic, group = filled(target), unique("group")
    reset = ["groups", "reset-offsets", group]
    run(*reset, "-t", f"{topic}:1", "--to-earliest", "--execute", broker=target)
    assert committed(target, group) == {1: 0}
    shown = run(*reset, "--shift-by", "3", "--json", broker=target).json
    assert shown["executed"] is False and shown["partitions"][0]["new_offset"] == 3
    assert committed(target, group) == {1: 0}
    run(*reset, "--shift-by", "300", "--execute", broker=target)
    assert committed(target, group) == {1: 10}
    run(*reset, "-t", topic, "--to-time", "-1m30s", "--execute", broker=target)
    assert committed(target, group) == {0: 0, 1: 0}
    assert "name one of" in run(*reset, broker=target, fails=True).err
    assert "has no partition 7" in run(*reset, "-t", f"{topic}:7", "--to-latest", broker=target,
                                       fails=True).err


def test_offset_outside_the_log_is_reported(target):
    topic, group = filled(target, 1), unique("group")
    reset = ["groups", "reset-offsets", group, "-t", topic]
    told = run(*reset, "--to-offset", "300", "--execute", broker=target).out
    assert f"{topic}-0: 300 is not there, the log ends at 10: 10 it is" in told
    told = run(*reset, "--shift-by", "-11", broker=target).out
    assert f"{topic}-0: -1 is not there, the log begins at 0: 0 it is" in told
    row = run(*reset, "--shift-by", "-11", "--json", broker=target).json["partitions"][0]
    assert (row["wanted_offset"], row["new_offset"]) == (-1, 0)
    assert "not there" not in run(*reset, "--shift-by", "-2", broker=target).out


def test_offsets_of_one_topic_are_deleted(target):
    topic, other, group = filled(target), filled(target, 1), unique("group")
    for name in (topic, other):
        run("groups", "reset-offsets", group, "-t", name, "--to-latest", "--execute", broker=target)
    run("groups", "delete-offsets", group, "-t", f"{topic}:1", "--yes", broker=target)
    told = run("groups", "describe", group, "--json", broker=target).json[0]["partitions"]
    assert sorted((row["topic"], row["partition"]) for row in told) == sorted(
        [(topic, 0), (other, 0)])
    assert "has committed nothing there" in run(
        "groups", "delete-offsets", group, "-t", f"{topic}:1", "-y", broker=target, fails=True).err
    reader = member(target, group, topic)
    try:
        assert "subscribed" in run("groups", "delete-offsets", group, "-t", topic, "-y",
                                   broker=target, fails=True).err
    finally:
        reader.close()


def test_group_with_members_cannot_be_reset_or_deleted(target):
    topic, group = filled(target), unique("group")
    consumer = member(target, group, topic)
    try:
        consumer.commit(offsets=[TopicPartition(topic, 0, 3)], asynchronous=False)
        rows = run("groups", "members", group, "--json", broker=target).json
        assert [row["client_id"] for row in rows] == ["reader"]
        assert rows[0]["assigned"] == f"{topic}:0,1" and rows[0]["lag_records"] == 7
        ended = run("groups", "reset-offsets", group, "--to-latest", "--execute", broker=target,
                    fails=True)
        assert "has 1 member (reader): stop the group first" in ended.err
        assert "members" in run("groups", "delete", group, "--yes", broker=target, fails=True).err \
            or "not empty" in run("groups", "delete", group, "--yes", broker=target, fails=True).err
    finally:
        consumer.close()
    assert run("groups", "delete", group, "--yes", broker=target).out == f"{group} deleted\n"


def test_similar_group_name_is_suggested(target):
    topic, group = filled(target), unique("reading")
    run("groups", "reset-offsets", group, "-t", topic, "--to-earliest", "--execute", broker=target)
    ended = run("groups", "describe", group.replace("reading", "readin"), broker=target, fails=True)
    assert f"nearest valid name: {group}" in ended.err


def explained(broker, group: str, *words) -> dict:
    return run("groups", "explain", group, "-s", 1, "--json", *words, broker=broker).json


def test_state_filter_ignores_case_and_rejects_misspellings(target):
    topic, group = topic_of(target, 1), unique("group")
    run("groups", "reset-offsets", group, "-t", topic, "--to-earliest", "--execute", broker=target)
    found = run("groups", "list", group, "--state", "empty", "--json", broker=target).json
    assert [row["group"] for row in found] == [group]
    assert run("groups", "list", group, "--state", "Stable", "--json", broker=target).json == []
    refused = run("groups", "list", "--state", "Stabel", broker=target, fails=True).err
    assert "completingrebalance" in refused.lower()


def test_group_without_members_is_explained(target):
    topic, group = filled(target), unique("group")
    run("groups", "reset-offsets", group, "-t", topic, "--to-earliest", "--execute", broker=target)
    view = explained(target, group, "--sample")
    assert view["reasons"][0]["reason"] == "no_members"
    assert view["sentence"].startswith(f"{group} is 20 records (")
    assert view["source"].startswith("two samples")
    told = run("groups", "explain", group, "-s", 1, "--sample", broker=target).out
    assert told.startswith(view["sentence"].partition(" (")[0]) and "group has no members" in told


def test_stalled_member_is_explained(target):
    topic, group = filled(target), unique("group")
    consumer = member(target, group, topic)
    try:
        consumer.commit(offsets=[TopicPartition(topic, 0, 3), TopicPartition(topic, 1, 3)],
                        asynchronous=False)
        assert explained(target, group, "--sample")["reasons"][0]["reason"] == "stopped"
        consumer.commit(offsets=[TopicPartition(topic, 0, 10), TopicPartition(topic, 1, 10)],
                        asynchronous=False)
        assert explained(target, group, "--sample")["reasons"][0]["reason"] == "no_lag"
    finally:
        consumer.close()


def test_metrics_endpoint_is_queried_if_available(brokerd):
    import re

    found = re.search(r"metrics endpoint.*?address=(\S+:\d+)", brokerd.log.read_text())
    topic, group = filled(brokerd), unique("group")
    run("groups", "reset-offsets", group, "-t", topic, "--to-earliest", "--execute",
        broker=brokerd)
    view = explained(brokerd, group, "-m", found[1])
    assert view["reasons"][0]["reason"] == "no_members" and view["lag_records"] == 20
    assert "does not report" in run("groups", "explain", group, "-m", "127.0.0.1:1", broker=brokerd,
                                  fails=True).err


def test_hot_partition_is_distinguished_from_a_slow_member(target):
    import threading

    topic, group = topic_of(target, 4), unique("group")
    run("groups", "reset-offsets", group, "-t", topic, "--to-earliest", "--execute", broker=target)
    over = threading.Event()

    def load():
        while not over.wait(0.05):
            append(target.port, topic, records(20, int(time.time() * 1000)), 2)

    thread = threading.Thread(target=load)
    thread.start()
    try:
        view = explained(target, group, "--sample")
    finally:
        over.set()
        thread.join()
    found = {row["reason"]: row for row in view["reasons"]}
    assert found["hot_partition"]["partition"] == f"{topic}-2"
    assert found["hot_partition"]["produce_rate"] > 0 and "no_members" in found
    rates = {row["partition"]: row["produce_rate"] for row in view["partitions"]}
    assert rates[2] > 0 == rates[0]


def test_frequent_joins_and_departures_are_reported(target):
    import threading

    topic, group = filled(target, 4), unique("group")
    first = member(target, group, topic)
    over = threading.Event()

    def come_and_go():
        while not over.is_set():
            second = Consumer({"bootstrap.servers": target.bootstrap, "group.id": group})
            second.subscribe([topic])
            end_s = time.monotonic() + 5
            while not second.assignment() and time.monotonic() < end_s:
                second.poll(0.05)
                first.poll(0)
            second.close()
            for _ in range(10):
                first.poll(0.05)

    thread = threading.Thread(target=come_and_go)
    try:
        first.commit(offsets=[TopicPartition(topic, number, 2) for number in range(4)],
                     asynchronous=False)
        thread.start()
        for _ in range(4):
            view = explained(target, group, "--sample", "-s", 6)
            if view["reasons"][0]["reason"] == "rebalancing":
                break  # Otherwise too few of them occurred within these seconds.
    finally:
        over.set()
        thread.join()
        first.close()
    assert view["reasons"][0]["reason"] == "rebalancing", view["reasons"]


def test_group_without_commits_is_not_reported_as_keeping_up(target):
    topic, group = filled(target), unique("group")
    consumer = member(target, group, topic)
    try:
        view = explained(target, group, "--sample")
    finally:
        consumer.close()
    assert "has committed nothing yet" in view["sentence"]


@pytest.mark.kafka
def test_groups_work_on_apache_kafka(kafka):
    for test in (test_lag_is_shown_in_records_and_seconds,
                 test_offsets_are_changed_only_with_execute,
                 test_group_with_members_cannot_be_reset_or_deleted,
                 test_similar_group_name_is_suggested, test_group_without_members_is_explained,
                 test_stalled_member_is_explained,
                 test_hot_partition_is_distinguished_from_a_slow_member):
        test(kafka)


@pytest.mark.kafka
def test_open_transaction_is_reported(kafka):
    from confluent_kafka import Producer

    topic, group = topic_of(kafka, 1), unique("group")
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    for _ in range(5):
        producer.produce(topic, "v")
    producer.flush(30)
    run("groups", "reset-offsets", group, "-t", topic, "--to-earliest", "--execute", broker=kafka)
    found = {row["reason"]: row for row in explained(kafka, group, "--sample")["reasons"]}
    assert found["open_transaction"]["lag_records"] == 5
    producer.abort_transaction(30)


def test_history_names_the_members_that_caused_rebalances(brokerd):
    topic, group = filled(brokerd), unique("group")
    member(brokerd, group, topic).close()
    words = "groups", "history", group, "--metrics", scrape.address_of(brokerd)
    end_s = time.monotonic() + 30
    while len(rows := run(*words, "--json", broker=brokerd).json) < 2:
        assert time.monotonic() < end_s, rows
        time.sleep(0.2)
    left, joined = rows
    assert [row["cause"] for row in left["causes"]] == ["left"] and left["members"] == 0
    assert [row["cause"] for row in joined["causes"]] == ["joined"]
    assert joined["causes"][0]["client_id"] == "reader" and joined["generation"] == 1
    assert "reader (127.0.0.1) joined; " in run(*words, broker=brokerd).out
    told = run(*words, "--long", "-n", 1, broker=brokerd).out
    assert "left" in told and "joined" not in told


def test_history_without_endpoint_or_group_prints_the_reason(target):
    topic, group = filled(target), unique("group")
    assert "no such group" in run("groups", "history", group, broker=target, fails=True).err
    member(target, group, topic).close()
    assert "metrics.listener" in run("groups", "history", group, broker=target, fails=True).err


def test_lag_is_unknown_without_an_end_offset(monkeypatch):
    part = types.TopicPartition("t", 0)

    async def refresh(topics):
        pass

    async def described(groups):
        return {name: SimpleNamespace(members=[]) for name in groups}

    async def committed(groups):
        return {name: {part: SimpleNamespace(offset=5)} for name in groups}

    async def ends(cluster, parts):
        return ends.of, ends.of

    admin = SimpleNamespace(cluster=SimpleNamespace(refresh=refresh),
                            describe_consumer_groups=described,
                            list_offsets_of_consumer_groups=committed)
    monkeypatch.setattr(cluster_queries, "offset_bounds", ends)
    for ends.of, lag in (({part: "LEADER_NOT_AVAILABLE"}, None), ({part: 5}, 0)):
        assert asyncio.run(lags.totals(admin, ["g"])) == {
            "g": {"members": 0, "partitions": 1, "lag_records": lag, "error": None,
                  "missing_partitions": [] if lag == 0 else [
                      {"topic": "t", "partition": 0, "error": "LEADER_NOT_AVAILABLE"}]}}

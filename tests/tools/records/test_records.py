"""Producing and consuming: records are read back from any position and in any format."""

import asyncio
import io
import json
import sys
import time
from types import SimpleNamespace

import pytest

from pylog.tools.cli import cluster_queries
from pylog.tools.cli.session import ToolError
from pylog.tools.records import produce
from tests.fixtures.registries import played
from tests.tools.support import run, topic_of
from tests.wire.talk import unique

pytest.importorskip("fastavro")


def send(broker, topic: str, text: str, *words, fails: bool = False):
    kept = sys.stdin
    sys.stdin = SimpleNamespace(buffer=io.BytesIO(text.encode()), isatty=lambda: False)
    try:
        return run("produce", topic, *words, broker=broker, fails=fails)
    finally:
        sys.stdin = kept


def rows(broker, topic: str, *words) -> list:
    return run("consume", topic, "--json", *words, broker=broker).lines


def test_lines_go_in_and_come_out(target):
    topic = topic_of(target, 1)
    told = send(target, topic, "a\nb\n\nä\n", "--json").json
    assert told["records"] == 4
    assert told["partitions"] == {"0": {"records": 4, "first_offset": 0, "last_offset": 3}}
    assert run("consume", topic, broker=target).out == "a\nb\n\nä\n"
    assert send(target, topic, "c\n").out.startswith(f"1 record to {topic}, 1 B in ")


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_have_the_given_fields(target, codec):
    topic = topic_of(target, 3)
    send(target, topic, "k1:v1\nk2:\n", "-K", ":", "-H", "h=1", "-p", "2", "-z", codec,
         "-t", "2026-01-01T00:00:00Z", "--tombstones")
    assert rows(target, topic) == [
        {"topic": topic, "partition": 2, "offset": offset, "timestamp": 1_767_225_600_000,
         "key": key, "value": value, "headers": [{"key": "h", "value": "1"}]}
        for offset, key, value in ((0, "k1", "v1"), (1, "k2", None))]


def test_topics_of_a_pattern_are_consumed_by_hand_and_by_a_group(target):
    stem = unique("many")
    for end in ("a", "b"):
        run("topics", "create", f"{stem}-{end}", "-p", 1, broker=target)
        send(target, f"{stem}-{end}", f"{end}\n")
    assert sorted(run("consume", f"{stem}-*", broker=target).out) == ["\n", "\n", "a", "b"]
    told = run("consume", f"{stem}-*", "-g", unique("group"), "-n", 2, broker=target)
    assert sorted(told.out) == ["\n", "\n", "a", "b"]


def test_consumed_json_can_be_produced_unchanged(target):
    first, second = topic_of(target, 2), topic_of(target, 2)
    send(target, first, "k:v\nq:0x41\n", "-K", ":", "-H", "h=\x01")
    text = run("consume", first, "--json", broker=target).out
    send(target, second, text, "-f", "records")
    # Partitions are in order of arrival.
    found = [sorted(rows(target, topic), key=lambda row: (row["partition"], row["offset"]))
             for topic in (first, second)]
    assert [{**row, "topic": first} for row in found[1]] == found[0] and len(found[0]) == 2


def test_keys_decide_the_partition_as_in_every_client(target):
    from confluent_kafka import Producer

    ours, theirs = topic_of(target, 5), topic_of(target, 5)
    keys = [f"key-{number}" for number in range(50)]
    send(target, ours, "".join(f"{key} v\n" for key in keys), "-K", " ")
    producer = Producer({"bootstrap.servers": target.bootstrap, "partitioner": "murmur2_random"})
    for key in keys:
        producer.produce(theirs, "v", key)
    producer.flush(10)
    placed = [{row["key"]: row["partition"] for row in rows(target, topic)}
              for topic in (ours, theirs)]
    assert placed[0] == placed[1] and len(placed[0]) == 50


def test_reading_starts_at_the_given_position(target):
    topic = topic_of(target, 1)
    send(target, topic, "a\nb\n", "-t", "2026-01-01T00:00:00Z")
    send(target, topic, "c\nd\n", "-t", "2026-01-01T01:00:00Z")

    def values(*words):
        return "".join(row["value"] for row in rows(target, topic, *words))

    assert values("-s", "beginning") == "abcd" and values("-s", "end") == ""
    assert values("-s", "1") == "bcd" and values("-s", "-1") == "d" and values("-s", "-9") == "abcd"
    assert values("-s", "2026-01-01T00:30:00Z") == "cd" and values("-s", "-1s") == ""
    assert values("-u", "3") == "abc" and values("-s", "1", "-u", "2") == "b"
    assert values("-u", "2026-01-01T00:30:00Z") == "ab" and values("-n", "3") == "abc"
    assert values("-s", "@1767225601") == "cd" and values("-p", "0", "-n", "1") == "a"


def test_group_resumes_from_its_offsets(target):
    topic, group = topic_of(target, 2), unique("reader")
    send(target, topic, "a\nb\n")
    assert sorted(row["value"] for row in rows(target, topic, "-g", group)) == ["a", "b"]
    send(target, topic, "c\n")
    assert [row["value"] for row in rows(target, topic, "-g", group)] == ["c"]
    told = run("groups", "describe", group, "--json", broker=target).json[0]
    assert told["lag_records"] == 0
    assert "a group has its own" in run("consume", topic, "-g", group, "-s", "5", broker=target,
                                        fails=True).err


def test_rejected_record_is_reported_with_its_reason_but_not_unsent_ones(brokerd):
    topic = topic_of(brokerd, 1, **{"max.message.bytes": "1000"})
    told = send(brokerd, topic, "x" * 5000 + "\n" + "y\n" * 100_000, "-k", "k", fails=True)
    assert "records were acknowledged; then: " in told.err and "within 0 s" not in told.err


@pytest.mark.parametrize("words", [(), ("--follow", "--from", "beginning")])
def test_stop_time_does_not_end_a_partition_early(target, words):
    topic, count = topic_of(target, 2), 12_000
    for partition in ("0", "1"):
        for text, day in (("old\n", "01"), ("new\n", "02")):
            send(target, topic, text * count, "-p", partition, "-t", f"2026-01-{day}T00:00:00Z")
    told = run("consume", topic, "-u", "2026-01-01T12:00:00Z", *words, broker=target).out
    assert told == "old\n" * 2 * count


def test_follow_prints_later_records(brokerd):
    import subprocess

    from tests.tools.test_app import PYLOG

    topic = topic_of(brokerd, 1)
    send(brokerd, topic, "before\n")
    with subprocess.Popen([*PYLOG, "consume", topic, "-f", "-n", "1", "-b", brokerd.bootstrap],
                          stdout=subprocess.PIPE, text=True) as process:
        end_s = time.monotonic() + 30
        while process.poll() is None and time.monotonic() < end_s:
            time.sleep(0.5)
            send(brokerd, topic, "after\n")
        assert process.communicate(timeout=30)[0] == "after\n" and process.returncode == 0


def test_values_are_shown_as_json_table_or_with_keys(target):
    topic = topic_of(target, 1)
    send(target, topic, 'k {"a": 1}\nk nothing\n', "-K", " ", "-H", "h=1",
         "-t", "2026-01-01T00:00:00Z")
    found = run("consume", topic, "-F", "json", broker=target).lines
    assert found[0]["value"] == {"a": 1}
    assert found[1]["value"] == "nothing" and "error" in found[1]
    assert run("consume", topic, "-k", "-H", "-n", "1", broker=target).out == 'h=1\tk\t{"a": 1}\n'
    assert run("consume", topic, "-F", "table", "-H", "-n", "1", broker=target).out == (
        "TIME                      PARTITION        OFFSET  KEY                       VALUE\n"
        "2026-01-01T00:00:00.000Z          0             0  k                         "
        '{"a": 1}  h=1\n')


def test_bytes_that_are_no_text_come_through(target, tmp_path):
    topic, again = topic_of(target, 1), topic_of(target, 1)
    file = tmp_path / "raw"
    file.write_bytes(b"\x00\xff\n\x80")
    run("produce", topic, file, "-f", "raw", broker=target)
    found = run("consume", topic, "--json", broker=target).out
    assert json.loads(found)["value"] == "0x00ff0a80"
    send(target, again, found, "-f", "records")
    assert rows(target, again)[0]["value"] == "0x00ff0a80"


@pytest.mark.parametrize(("text", "words", "told"), [
    ("{\n", ["-f", "json"], "line 1: "), ("{}\n", ["-f", "records"], 'expected {"value"'),
    ("a\n", ["-K", ":"], "a line without ':'"), ("a\n", ["-p", "7"], "has 2 partitions"),
    ("{}\n", ["-f", "avro"], "avro needs --registry URL"),
    ("x" * 2_000_000, [], "max.request.size"),
])
def test_unsendable_records_are_reported(brokerd, text, words, told):
    topic = topic_of(brokerd)
    assert told in send(brokerd, topic, text, *words, fails=True).err


def test_topic_is_created_only_on_request(brokerd):
    topic = unique("made")
    assert "add --create to create it" in send(brokerd, topic, "a\n", fails=True).err
    send(brokerd, topic, "a\n", "--create")
    assert run("consume", topic, broker=brokerd).out == "a\n"


@pytest.mark.parametrize(("error", "hinted"), [
    (ToolError("topic t: Not authorized for the topic."), False),
    (cluster_queries.unknown("topic", "t", []), True)])
def test_only_a_missing_topic_suggests_creating_it(monkeypatch, error, hinted):
    async def topics(*_):
        raise error

    monkeypatch.setattr(cluster_queries, "topics", topics)
    with pytest.raises(ToolError) as caught:
        asyncio.run(produce._ready(SimpleNamespace(cluster=None), "t", False, None))
    assert ("add --create to create it" in str(caught.value)) == hinted


def test_rate_limit_is_respected(brokerd):
    topic = topic_of(brokerd)
    told = send(brokerd, topic, "a\n" * 50, "-r", "100", "--json").json
    assert 0.4 <= told["seconds"] < 5 and told["records"] == 50


ROW = json.dumps({"type": "record", "name": "Row", "fields": [
    {"name": "id", "type": "long"}, {"name": "raw", "type": ["null", "bytes"]}]})


def test_avro_is_written_and_read_through_a_registry(target):
    topic = topic_of(target, 1)
    with played() as registry:
        registry.schemas[7], registry.subjects[f"{topic}-value"] = {"schema": ROW}, {1: 7}
        words = ["--registry", registry.url]
        send(target, topic, '{"id": 5, "raw": null}\n', "-f", "avro", *words)
        send(target, topic, "plain\n")
        found = run("consume", topic, "-F", "avro", *words, broker=target).lines
    assert found[0]["value"] == {"id": 5, "raw": None}
    assert found[1]["value"] == "plain" and "wire format" in found[1]["error"]
    assert run("consume", topic, "--json", "-n", "1", broker=target).lines[0]["value"] \
        == "\0\0\0\0\7\n\0"


@pytest.mark.kafka
def test_records_go_through_apache_kafka(kafka):
    test_lines_go_in_and_come_out(kafka)
    test_records_have_the_given_fields(kafka, "zstd")
    for test in (test_consumed_json_can_be_produced_unchanged,
                 test_reading_starts_at_the_given_position, test_group_resumes_from_its_offsets,
                 test_avro_is_written_and_read_through_a_registry):
        test(kafka)


def test_a_topic_is_copied_with_the_partitions_of_its_source(target):
    source = topic_of(target, 4)
    copy, by_key, small = unique("copy"), unique("copy"), unique("copy")
    for partition in range(4):
        send(target, source, f"{partition}\n", "-p", str(partition), "-k", "same")
    text = run("consume", source, "--json", broker=target).out
    send(target, copy, text, "--create", "--format", "records")
    assert sorted((row["partition"], row["value"]) for row in rows(target, copy)) == [
        (number, str(number)) for number in range(4)]
    send(target, by_key, text, "--create", "--partitions", "2", "--format", "records", "--by-key")
    assert len({row["partition"] for row in rows(target, by_key)}) == 1
    refused = send(target, small, text, "--create", "--partitions", "2", "--format", "records",
                   fails=True)
    assert "has 2 partitions, from 0; no partition" in refused.err and "--by-key" in refused.err

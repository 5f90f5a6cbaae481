"""Apache Kafka's command line tools against the broker and against its files."""

import re

import pytest

from tests.fixtures.brokers import Brokerd
from tests.wire.mixed import mixed_batches
from tests.wire.talk import append, create_topic, unique

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]
TOPICS = "org.apache.kafka.tools.TopicCommand"
PERF = "org.apache.kafka.tools.ProducerPerformance"
PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
DUMP = "org.apache.kafka.tools.DumpLogSegments"


def _tool(name: str, *arguments, **options) -> str:
    from bench.kafka import run_tool

    done = run_tool(name, *arguments, wait_s=120, heap="256m", **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_kafka_topics_creates_describes_and_deletes(target):
    topic = unique("java-topic")
    server = ("--bootstrap-server", target.bootstrap)
    made = _tool(TOPICS, *server, "--create", "--topic", topic, "--partitions", 3,
                 "--replication-factor", 1)
    assert f"Created topic {topic}" in made
    listed = _tool(TOPICS, *server, "--list")
    assert topic in listed.splitlines()
    _tool(TOPICS, *server, "--delete", "--topic", topic)
    assert topic not in _tool(TOPICS, *server, "--list").splitlines()


def test_kafka_topics_describes_partitions(target, against):
    topic = unique("java-described")
    create_topic(target.port, topic, 2)
    told = _tool(TOPICS, "--bootstrap-server", target.bootstrap, "--describe", "--topic", topic)
    assert re.search(rf"Topic: {topic}\s.*PartitionCount: 2\s+ReplicationFactor: 1", told)
    assert re.search(r"Partition: 1\s+Leader: 1\s+Replicas: 1\s+Isr: 1", told)


@pytest.mark.parametrize("codec, acks, idempotent", [
    ("none", "all", "true"), ("lz4", "all", "true"), ("zstd", "1", "false"),
    ("gzip", "0", "false"), ("snappy", "1", "false")])
def test_all_records_of_producer_performance_exist(target, codec, acks, idempotent):
    topic = unique("java-perf")
    create_topic(target.port, topic, 2)
    told = _tool(PERF, "--topic", topic, "--num-records", 20000, "--record-size", 200,
                 "--throughput", -1, "--producer-props", f"bootstrap.servers={target.bootstrap}",
                 f"acks={acks}", f"compression.type={codec}", f"enable.idempotence={idempotent}")
    assert "20000 records sent" in told
    ends = _tool(OFFSETS, "--bootstrap-server", target.bootstrap, "--topic", topic)
    assert sum(int(line.split(":")[2]) for line in ends.splitlines()
               if line.startswith(f"{topic}:")) == 20000


def test_console_consumer_reads_console_producer_output(target):
    topic = unique("java-console")
    create_topic(target.port, topic)
    lines = [f"key{number}\tvalue {number}" for number in range(200)]
    _tool(PRODUCER, "--bootstrap-server", target.bootstrap, "--topic", topic,
          "--reader-property", "parse.key=true", input="\n".join(lines) + "\n")
    read = _tool(CONSUMER, "--bootstrap-server", target.bootstrap, "--topic", topic,
                 "--partition", 0, "--offset", "earliest", "--max-messages", 200,
                 "--formatter-property", "print.key=true", "--timeout-ms", 30000)
    assert [line for line in read.splitlines() if line.startswith("key")] == lines


def test_get_offsets_returns_earliest_latest_max_timestamp_and_by_time(target):
    topic = unique("java-offsets")
    create_topic(target.port, topic, retention_ms=-1)
    batches = mixed_batches()
    for records in batches[:9]:
        end = append(target.port, topic, records)
    end += int.from_bytes(batches[8][57:61], "big")
    for time, offset in (("earliest", 0), ("latest", end), ("-1", end), ("-2", 0), ("0", 0)):
        told = _tool(OFFSETS, "--bootstrap-server", target.bootstrap, "--topic", topic,
                     "--time", time)
        assert f"{topic}:0:{offset}" in told.splitlines()


def _dump_problems(told: str) -> list[str]:
    marks = ("Found timestamp mismatch", "Found out of order timestamp", "Mismatches in",
             "Non-consecutive offsets", "isvalid: false", "corrupt", "Exception", "Index timestamp",
             "failed")
    # The tool starts each file as if it followed offset -1, so it reports every later segment.
    told = re.sub(r"Non-consecutive offsets in .*\n +-1 is followed by \d+\n?", "", told)
    return [line for line in told.splitlines() if any(mark in line for mark in marks)]


def test_dump_log_accepts_every_file_after_a_clean_stop(against, tmp_path):
    if against == "kafka":
        pytest.skip("examines our files")
    broker = Brokerd(tmp_path, {"log.index.interval.bytes": 512}).start()
    topic = unique("dumped")
    create_topic(broker.port, topic, retention_ms=-1, segment_bytes=1 << 20)
    for turn in range(20):
        for records in mixed_batches(4711 + turn):
            append(broker.port, topic, records)
    assert broker.stop() == 0
    assert broker.alarms() == []
    folder = broker.data_dir / f"{topic}-0"
    logs = sorted(folder.glob("*.log"))
    assert len(logs) > 1
    files = ",".join(map(str, [
        *logs, *sorted(folder.glob("*.index")), *sorted(folder.glob("*.timeindex")),
        *sorted(folder.glob("*.snapshot"))]))
    told = _tool(DUMP, "--deep-iteration", "--files", files)
    assert _dump_problems(told) == []
    bases = [int(found) for found in re.findall(r"^baseOffset: (\d+)", told, re.MULTILINE)]
    assert len(bases) == 20 * len(mixed_batches()) and bases == sorted(bases)
    assert "producerId: 4711" in told
    _tool(DUMP, "--index-sanity-check", "--files", files)


def test_dump_log_reads_our_metadata_log(against, tmp_path):
    if against == "kafka":
        pytest.skip("examines our files")
    broker = Brokerd(tmp_path).start()
    topic = unique("in-metadata")
    create_topic(broker.port, topic)
    broker.stop()
    logs = sorted((broker.data_dir / "__cluster_metadata-0").glob("*.log"))
    told = _tool(DUMP, "--cluster-metadata-decoder", "--files", ",".join(map(str, logs)))
    assert "TOPIC_RECORD" in told and topic in told and "PARTITION_RECORD" in told
    assert _dump_problems(told) == []

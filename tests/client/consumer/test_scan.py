"""scan() against a running broker, and its results in pandas, Polars, DuckDB and datasets."""

import datetime
import gc

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pylog.client.admin.blocking import Admin
from pylog.client.consumer import scan as scanning
from pylog.client.consumer.scan import _inside, milliseconds, scan
from pylog.client.errors import LogTruncationError, UnknownTopicOrPartitionError
from pylog.client.producer.producer import Producer
from pylog.client.types import TopicPartition
from tests.client.reading import new_topic
from tests.wire.talk import unique

NOW = 1_700_000_000_000
PARTITIONS, ROWS = 3, 30_000


@pytest.fixture(scope="module")
def filled(target):
    """Return (bootstrap, topic): row i has timestamp NOW + i and is in partition i % 3."""
    topic = new_topic(target.bootstrap, PARTITIONS)
    numbers = range(ROWS)
    table = pa.table({
        "value": pa.array([b"%d" % i for i in numbers]),
        "timestamp": pa.array([NOW + i for i in numbers]),
        "partition": pa.array([i % PARTITIONS for i in numbers])})
    with Producer(bootstrap_servers=target.bootstrap, compression_type="lz4") as producer:
        producer.send_arrow(table, topic).result(30)
    return target.bootstrap, topic


def numbers_of(reader):
    return sorted(int(value) for value in reader.read_all()["value"].to_pylist())


def test_a_whole_topic_is_read_once_in_order_per_partition(filled):
    bootstrap, topic = filled
    table = scan(topic, bootstrap_servers=bootstrap).read_all()
    assert sorted(map(int, table["value"].to_pylist())) == list(range(ROWS))
    for partition in range(PARTITIONS):
        rows = table.filter(pa.compute.equal(table["partition"], partition))
        assert rows["offset"].to_pylist() == list(range(ROWS // PARTITIONS))
    assert set(table["topic"].to_pylist()) == {topic}


@pytest.mark.parametrize("since, until, wanted", [
    (NOW + 100, NOW + 200, range(100, 200)),
    (None, NOW + 10, range(10)),
    (NOW + ROWS - 5, None, range(ROWS - 5, ROWS)),
    (datetime.datetime.fromtimestamp((NOW + 500) / 1000, datetime.UTC), NOW + 501, [500]),
    (NOW + ROWS, None, []), (NOW + 50, NOW + 50, []),
])
def test_since_and_until_limit_the_scan(filled, since, until, wanted):
    bootstrap, topic = filled
    reader = scan(topic, since=since, until=until, bootstrap_servers=bootstrap)
    assert numbers_of(reader) == list(wanted)


def test_columns_and_partitions_are_chosen(filled):
    bootstrap, topic = filled
    reader = scan(topic, columns=["value", "timestamp"], partitions=[1],
                  config={"bootstrap.servers": bootstrap})
    assert reader.schema.names == ["timestamp", "value"]
    assert numbers_of(reader) == list(range(1, ROWS, PARTITIONS))
    with pytest.raises(ValueError, match="no such columns"):
        scan(topic, columns=["colour"], bootstrap_servers=bootstrap)
    with pytest.raises(UnknownTopicOrPartitionError):
        scan(topic, partitions=[7], bootstrap_servers=bootstrap)


def test_batches_are_read_lazily_and_may_be_abandoned(filled):
    bootstrap, topic = filled
    reader = scan(topic, batch_records_max=100, bootstrap_servers=bootstrap)
    assert 0 < reader.read_next_batch().num_rows <= 100
    del reader
    gc.collect()


def test_scan_does_not_read_later_records(target):
    topic = new_topic(target.bootstrap)
    with Producer(bootstrap_servers=target.bootstrap) as producer:
        producer.send(topic, b"1").result(20)
        reader = scan(topic, bootstrap_servers=target.bootstrap)
        producer.send(topic, b"2").result(20)
    assert numbers_of(reader) == [1]
    assert numbers_of(scan(topic, bootstrap_servers=target.bootstrap)) == [1, 2]


def test_empty_topic_returns_no_rows(target):
    topic = new_topic(target.bootstrap, 2)
    assert scan(topic, bootstrap_servers=target.bootstrap).read_all().num_rows == 0


def test_pandas_polars_duckdb_and_datasets_read_it(filled):
    bootstrap, topic = filled
    duckdb, polars = pytest.importorskip("duckdb"), pytest.importorskip("polars")
    dataset = pytest.importorskip("pyarrow.dataset")

    def reader():
        return scan(topic, since=NOW + 1000, until=NOW + 1300, bootstrap_servers=bootstrap)

    frame = reader().read_pandas()
    assert len(frame) == 300 and frame["partition"].nunique() == 3
    assert polars.from_arrow(reader()).height == 300
    found = reader()
    sums = duckdb.from_arrow(found).aggregate('count(*), min("offset"), max("partition")')
    assert sums.fetchall() == [(300, 333, 2)]
    scanner = dataset.Scanner.from_batches(reader(), filter=dataset.field("partition") == 1)
    assert scanner.to_table().num_rows == 100


def test_times_are_accepted_in_several_types():
    moment = datetime.datetime(2024, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    wanted = 1_704_164_645_000
    assert milliseconds(moment) == milliseconds("2024-01-02T03:04:05+00:00") == wanted
    assert milliseconds(wanted) == wanted and milliseconds(None) is None
    assert milliseconds(datetime.date(2024, 1, 2)) == milliseconds("2024-01-02")
    ago = milliseconds(datetime.timedelta(hours=1))
    assert abs(ago + 3_600_000 - milliseconds(datetime.datetime.now())) < 5000


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), min_size=1, max_size=8),
       st.lists(st.integers(0, 12), min_size=3, max_size=3), st.integers(0, 2))
def test_rows_behind_an_end_are_cut_off(runs, ends, gap):
    partitions, offsets, at = [], [], [0, 0, 0]
    for partition, count in runs:
        for _ in range(count):
            partitions.append(partition)
            offsets.append(at[partition])
            at[partition] += 1 + gap
    batch = pa.record_batch({"partition": pa.array(partitions, pa.int32()),
                             "offset": pa.array(offsets, pa.int64())})
    left = {TopicPartition("t", p): end for p, end in enumerate(ends)}
    pieces, ended = _inside(batch, "t", left)
    found = [row for piece in pieces for row in zip(*piece.to_pydict().values())]
    assert found == [(p, o) for p, o in zip(partitions, offsets) if o < ends[p]]
    for p in range(3):
        last = max((o for q, o in zip(partitions, offsets) if q == p), default=None)
        assert (TopicPartition("t", p) in ended) == (last is not None and last >= ends[p] - 1)


def test_scan_of_a_missing_topic_raises_and_creates_none(target):
    name = unique("missing")
    with pytest.raises(UnknownTopicOrPartitionError):
        scan(name, bootstrap_servers=target.bootstrap)
    with Admin(bootstrap_servers=target.bootstrap) as admin:
        assert name not in admin.list_topics()


# Topics that change during a scan.


@pytest.fixture
def growing(target):
    """Return (bootstrap, topic) of a topic with 1,000 records in batches of one."""
    topic = new_topic(target.bootstrap, 1)
    with Producer(bootstrap_servers=target.bootstrap, batch_size=1) as producer:
        for number in range(1000):
            producer.send(topic, b"%d" % number)
    return target.bootstrap, topic


def small_fetches(bootstrap, topic):
    return scan(topic, bootstrap_servers=bootstrap, batch_records_max=10, fetch_max_bytes=1000,
                max_partition_fetch_bytes=1000, queued_max_messages_kbytes=1)


def values_of(batches):
    return [int(value) for batch in batches for value in batch.column("value").to_pylist()]


@pytest.mark.parametrize("read_before", [0, 1])
def test_scan_continues_after_records_deleted_during_it(growing, caplog, read_before):
    bootstrap, topic = growing
    reader = small_fetches(bootstrap, topic)
    found = values_of([reader.read_next_batch() for _ in range(read_before)])
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.delete_records({TopicPartition(topic, 0): 995})
    found += values_of(reader)
    # Already fetched records may still be returned; after the gap, all records are returned.
    assert found[-5:] == list(range(995, 1000)) and found == sorted(set(found))
    assert "were deleted before they were read" in caplog.text


def test_scan_ends_when_all_remaining_records_are_deleted(growing):
    bootstrap, topic = growing
    reader = small_fetches(bootstrap, topic)
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.delete_records({TopicPartition(topic, 0): -1})
    assert values_of(reader) == []


@pytest.mark.timeout(120)
@pytest.mark.parametrize("is_created_again", [False, True])
def test_a_scan_of_a_topic_that_is_deleted_raises(growing, monkeypatch, is_created_again):
    monkeypatch.setattr(scanning, "MISSING_S", 1.0)
    bootstrap, topic = growing
    reader = small_fetches(bootstrap, topic)
    reader.read_next_batch()
    with Admin(bootstrap_servers=bootstrap) as admin, \
            Producer(bootstrap_servers=bootstrap) as producer:
        admin.delete_topics([topic])
        if is_created_again:
            admin.create_topics([topic])
            for number in range(2000, 4000):
                producer.send(topic, b"%d" % number)
            producer.flush(20)
        found = []
        with pytest.raises(UnknownTopicOrPartitionError, match="no topic|deleted"):
            for batch in reader:
                found += values_of([batch])
    assert max(found, default=0) < 1000


def test_a_scan_of_a_log_that_was_cut_before_its_end_raises(target, monkeypatch):
    topic = new_topic(target.bootstrap)
    with Producer(bootstrap_servers=target.bootstrap) as producer:
        producer.send(topic, b"1").result(20)
    def with_lost_records(*given):
        """Return offset ranges as if the log had ended two records later when the scan began."""
        return {tp: (start, end + 2) for tp, (start, end) in offset_ranges(*given).items()}

    offset_ranges = scanning.offset_ranges
    monkeypatch.setattr(scanning, "POLL_S", 0.2)
    monkeypatch.setattr(scanning, "offset_ranges", with_lost_records)
    reader, found = scan(topic, bootstrap_servers=target.bootstrap), []
    with pytest.raises(LogTruncationError, match="ends at 1, before the end of the scan, 3"):
        for batch in reader:
            found += values_of([batch])
    assert found == [1]

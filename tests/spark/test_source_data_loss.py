"""Re-created topics, missing partitions and truncated logs under a streaming query: with each
trigger and with each failOnDataLoss. Calls the reader as Spark does, without a JVM.
"""

import contextlib
import json
import logging
import pickle

import pytest

from pylog.client import Admin, NewTopic, TopicPartition
from pylog.client.errors import KafkaTimeoutError, UnknownTopicOrPartitionError
from pylog.client.spark.checkpoint import Positions
from pylog.client.spark.planning import Planner
from pylog.client.spark.ranges import DataLossError
from pylog.client.spark.source import PylogSource
from tests.client.reading import new_topic
from tests.spark.topics import sent

TRIGGERS = ["processing time", "available now", "limited"]
# timeout of a task whose topic is missing
TASK_TIMEOUT_MS = "1500"


class Stream:
    """One checkpoint. Each call starts the query again, runs its batches and returns its values."""

    def __init__(self, bootstrap, trigger, **options):
        self.trigger, self.checkpoint = trigger, None
        self.options = {"kafka.bootstrap.servers": bootstrap, "startingoffsets": "earliest",
                        "kafka.default.api.timeout.ms": TASK_TIMEOUT_MS, **options}
        if trigger == "limited":
            self.options["maxoffsetspertrigger"] = "7"

    @contextlib.contextmanager
    def reader(self, **options):
        source = PylogSource({**self.options, **options})
        made = source.streamReader(source.schema())
        try:
            yield made
        finally:
            made.stop()

    def run(self, **options):
        with self.reader(**options) as reader:
            if self.trigger == "available now":
                reader.prepareForTriggerAvailableNow()
            found = []
            self.checkpoint = self.checkpoint or reader.initialOffset()
            for _ in range(100):
                end = json.loads(json.dumps(reader.latestOffset(
                    self.checkpoint, reader.getDefaultReadLimit())))
                if end == self.checkpoint:
                    return sorted(found)
                found += rows(reader, self.checkpoint, end)
                self.checkpoint = end
            raise AssertionError("the query does not end")


def rows(reader, start, end):
    return [value.decode() for part in pickle.loads(pickle.dumps(reader.partitions(start, end)))
            for batch in reader.read(part) for value in batch.column("value").to_pylist()]


def fill(broker, topic, name, count, partitions=1):
    """Send and return values name-0 and so on, to each partition in turn."""
    values = [f"{name}-{number:02}" for number in range(count)]
    sent(broker.bootstrap, topic, [(value.encode(), None, number % partitions)
                                   for number, value in enumerate(values)])
    return values


def delete(broker, topic):
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.delete_topics([topic])


def recreate(broker, topic, partitions=1):
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.delete_topics([topic])
        admin.create_topics([NewTopic(topic, partitions, 1)])


def set_position(checkpoint, topic, partition, offset):
    checkpoint[topic][str(partition)] = offset


@pytest.fixture(params=TRIGGERS)
def trigger(request):
    return request.param


@pytest.fixture
def topic(target):
    return new_topic(target.bootstrap)


@pytest.fixture
def stream(target, trigger, topic):
    """A query that has read 20 records."""
    made = Stream(target.bootstrap, trigger, subscribe=topic)
    assert made.run() == [] and made.checkpoint
    assert fill(target, topic, "old", 20) == made.run()
    return made


@pytest.mark.parametrize("count", [0, 5, 20, 35])
def test_recreated_topic_is_read_from_its_start(target, topic, stream, caplog, count):
    recreate(target, topic)
    new = fill(target, topic, "new", count)
    with pytest.raises(DataLossError, match=f"Topic {topic} was deleted and re-created.*failOn"):
        stream.run()
    with caplog.at_level(logging.WARNING, "pylog.client"):
        assert stream.run(failondataloss="false") == new
    assert f"Topic {topic} was deleted and re-created" in caplog.text
    assert fill(target, topic, "later", 3) == stream.run()


def test_recreated_topic_of_a_checkpoint_without_ids_is_read_if_it_ends_before_the_position(
        target, topic, stream):
    del stream.checkpoint[topic]["topicId"]
    recreate(target, topic)
    new = fill(target, topic, "new", 15)
    with pytest.raises(DataLossError, match="re-created"):
        stream.run()
    assert stream.run(failondataloss="false") == new
    assert "topicId" in stream.checkpoint[topic]


def test_checkpoint_without_ids_continues_and_gains_them(target, topic, stream):
    del stream.checkpoint[topic]["topicId"]
    more = fill(target, topic, "more", 3)
    assert stream.run() == more
    assert "topicId" in stream.checkpoint[topic]


def test_topic_recreated_with_fewer_partitions_is_read_from_its_start(target, trigger):
    topic = new_topic(target.bootstrap, 3)
    stream = Stream(target.bootstrap, trigger, subscribe=topic)
    fill(target, topic, "old", 21, partitions=3)
    stream.run()
    recreate(target, topic)
    new = fill(target, topic, "new", 12)
    with pytest.raises(DataLossError, match="re-created"):
        stream.run()
    assert stream.run(failondataloss="false") == new
    assert stream.checkpoint[topic].keys() == {"0", "topicId"}


@pytest.mark.parametrize("how", ["subscribe", "subscribepattern", "assign"])
def test_vanished_topic_is_data_loss_unless_allowed_and_is_read_when_it_returns(
        target, trigger, how, caplog):
    first, other = new_topic(target.bootstrap), new_topic(target.bootstrap)
    chosen = {"subscribe": f"{first},{other}", "subscribepattern": f"{first}|{other}",
              "assign": json.dumps({first: [0], other: [0]})}[how]
    stream = Stream(target.bootstrap, trigger, **{how: chosen})
    fill(target, first, "a", 4), fill(target, other, "b", 9)
    stream.run()
    delete(target, other)
    more = fill(target, first, "more", 5)
    with pytest.raises(DataLossError, match=f"{other}-0.*no longer exists.*failOnDataLoss"):
        stream.run()
    with caplog.at_level(logging.WARNING, "pylog.client"):
        assert stream.run(failondataloss="false") == more
    assert f"{other}-0 no longer exists" in caplog.text
    with Admin(bootstrap_servers=target.bootstrap) as admin:
        admin.create_topics([NewTopic(other, 1, 1)])
    back = fill(target, other, "back", 11)
    assert stream.run(failondataloss="false") == back


def test_missing_topic_without_a_position_is_an_error(target, topic, stream):
    for loss in ("true", "false"):
        with pytest.raises(UnknownTopicOrPartitionError, match="nowhere"):
            stream.run(subscribe=f"{topic},nowhere", failondataloss=loss)


def test_log_that_shrank_continues_at_its_end(target, topic, stream, caplog):
    # An unclean leader election leaves a position beyond the end of the same topic.
    set_position(stream.checkpoint, topic, 0, 25)
    with pytest.raises(DataLossError, match="ends at 20, before the position 25.*failOnDataLoss"):
        stream.run()
    with caplog.at_level(logging.WARNING, "pylog.client"):
        assert stream.run(failondataloss="false") == []
    assert "ends at 20, before the position 25" in caplog.text
    assert fill(target, topic, "later", 8) == stream.run()


def test_records_that_were_deleted_before_they_were_read_are_data_loss(
        target, topic, stream, caplog):
    more = fill(target, topic, "more", 10)
    with Admin(bootstrap_servers=target.bootstrap) as admin:
        admin.delete_records({TopicPartition(topic, 0): 24})
    before = dict(stream.checkpoint)
    with pytest.raises(DataLossError, match="log has offsets 24 to 30.*failOnDataLoss"):
        stream.run()
    stream.checkpoint = before
    with caplog.at_level(logging.WARNING, "pylog.client"):
        assert stream.run(failondataloss="false") == more[4:]
    assert "skipping records from offset 20" in caplog.text


def test_new_partition_whose_first_records_are_gone_is_data_loss(target, topic, stream, caplog):
    other = new_topic(target.bootstrap)
    values = fill(target, other, "other", 6)
    with Admin(bootstrap_servers=target.bootstrap) as admin:
        admin.delete_records({TopicPartition(other, 0): 2})
    stream.options["subscribe"] = f"{topic},{other}"
    with pytest.raises(DataLossError, match=f"new partition {other}-0 starts at 2.*failOnDataLoss"):
        stream.run()
    with caplog.at_level(logging.WARNING, "pylog.client"):
        assert stream.run(failondataloss="false") == values[2:]
    assert "starts at 2" in caplog.text


@pytest.mark.parametrize("is_recreated", [False, True], ids=["deleted", "re-created"])
def test_batch_whose_topic_is_gone_when_it_runs_reads_nothing_of_another_topic(
        target, topic, stream, is_recreated):
    start, _ = stream.checkpoint, fill(target, topic, "more", 5)
    with stream.reader() as reader:
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
    recreate(target, topic) if is_recreated else delete(target, topic)
    if is_recreated:
        fill(target, topic, "new", 30)
    with stream.reader() as reader, pytest.raises(DataLossError, match="deleted or re-created"):
        rows(reader, start, end)
    with stream.reader(failondataloss="false") as reader:
        assert rows(reader, start, end) == []


def test_batch_read_of_a_topic_that_is_recreated_before_its_tasks_is_data_loss(target, topic):
    fill(target, topic, "old", 5)
    source = PylogSource({"kafka.bootstrap.servers": target.bootstrap, "subscribe": topic,
                          "kafka.default.api.timeout.ms": TASK_TIMEOUT_MS})
    reader = source.reader(source.schema())
    parts = reader.partitions()
    recreate(target, topic)
    fill(target, topic, "new", 9)
    with pytest.raises(DataLossError, match="deleted or re-created"):
        list(reader.read(parts[0]))


def test_timeout_of_an_unreachable_broker_is_not_data_loss(target, topic, stream):
    start, _ = stream.checkpoint, fill(target, topic, "more", 5)
    with stream.reader(failondataloss="false") as reader:
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        [part] = reader.partitions(start, end)
        reader.options.settings["bootstrap.servers"] = "127.0.0.1:1"
        with pytest.raises(KafkaTimeoutError):
            list(reader.read(part))


def test_broker_that_still_lists_the_old_topic_does_not_reset_the_position_again(
        target, topic, stream, monkeypatch):
    old = Positions.from_json(stream.checkpoint)
    recreate(target, topic)
    new = fill(target, topic, "new", 6)
    with stream.reader(failondataloss="false") as reader:
        limit = reader.getDefaultReadLimit()
        end = reader.latestOffset(stream.checkpoint, limit)
        assert rows(reader, stream.checkpoint, end) == new
        with monkeypatch.context() as patched:
            patched.setattr(Planner, "end_positions", lambda *_, **__: Positions(
                dict(old.offsets), dict(old.topic_ids)))
            assert reader.latestOffset(end, limit) == end
        assert reader.latestOffset(end, limit) == end


def test_each_loss_is_logged_once_and_not_at_each_trigger(target, topic, stream, caplog):
    delete(target, topic)
    with stream.reader(failondataloss="false") as reader:
        with caplog.at_level(logging.WARNING, "pylog.client"):
            for _ in range(3):
                assert reader.latestOffset(
                    stream.checkpoint, reader.getDefaultReadLimit()) == stream.checkpoint
        assert caplog.text.count("no longer exists") == 1
        assert reader.reportLatestOffset() == {}


def test_open_transaction_behind_the_position_is_not_data_loss(target, topic, stream):
    from pylog.client import Producer

    with Producer(bootstrap_servers=target.bootstrap, transactional_id=topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"open", partition=0)
        producer.flush()
        assert stream.run() == ["open"]
        assert stream.run(**{"kafka.isolation.level": "read_committed"}) == []
        producer.commit_transaction()


def test_records_that_arrive_while_available_now_starts_are_not_data_loss(target, topic):
    fill(target, topic, "old", 5)
    stream = Stream(target.bootstrap, "available now", subscribe=topic, startingoffsets="latest")
    with stream.reader() as reader:
        reader.prepareForTriggerAvailableNow()
        fill(target, topic, "more", 5)
        start = reader.initialOffset()
        assert reader.latestOffset(start, reader.getDefaultReadLimit()) == start


def test_available_now_reads_no_topic_that_appears_after_its_start(target, topic):
    stream = Stream(target.bootstrap, "available now", subscribepattern=f"{topic}.*")
    values = fill(target, topic, "old", 5)
    with stream.reader() as reader:
        reader.prepareForTriggerAvailableNow()
        start = reader.initialOffset()
        with Admin(bootstrap_servers=target.bootstrap) as admin:
            admin.create_topics([NewTopic(f"{topic}-late", 1, 1)])
        late = fill(target, f"{topic}-late", "late", 4)
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        assert rows(reader, start, end) == values
    stream.checkpoint = end
    assert stream.run() == late

"""The exactly-once sink, by the calls that Spark makes: on the driver, in tasks, and by a restarted
driver.
"""

import io
import multiprocessing
import pickle
import struct

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructType
from pyspark.sql.worker import python_streaming_sink_runner, write_into_data_source
from pyspark.worker_util import pickleSer

from pylog.client import Admin, KafkaError, Producer, TopicPartition
from pylog.client.errors import ConfigError
from pylog.client.producer.transaction_manager import Transactions
from pylog.client.spark.epoch_decision import Task
from pylog.client.spark.source import PylogSource
from pylog.client.spark.writing import current_task
from tests.client.reading import read_topic
from tests.spark.queries import PARTITIONS, SCHEMA, Query, drive


class Died(BaseException):
    """A driver, paused at one of its steps."""


class WorkersQuery(Query):
    """The same through the programs that Spark's JVM runs: one plans a batch, one runs a task and
    one ends the batch.
    """

    def plan(self):
        said = Said().pickled(PylogSource).text("pylog").text(SCHEMA.json())
        said.text(StructType().add("answer", "binary").json()).number(len(self.options))
        for name, value in self.options.items():
            said.text(name).text(value)
        answer = said.truth(False).truth(True).truth(False).to(write_into_data_source._main)
        return pickleSer._read_with_length(answer)[0]

    def run(self, plan, batch, number, rows, attempt=0):
        TaskContext._setTaskContext(None)
        TaskContext.from_json({
            "stageId": 7, "partitionId": number, "attemptNumber": 0, "taskAttemptId": 70 + attempt,
            "cpus": 1, "resources": {}, "localProperties": {
                "streaming.sql.batchId": str(batch), "sql.streaming.queryId": self.name}})
        try:
            [answer] = plan(iter([pa.RecordBatch.from_pydict({
                "value": rows, "partition": pa.array([0] * len(rows), pa.int32())})]))
        finally:
            TaskContext._setTaskContext(None)
        return answer.column(0)[0].as_py()

    def end(self, answers, batch, is_abort):
        options = CaseInsensitiveDict(self.options)
        said = Said().pickled(PylogSource(options)).text(SCHEMA.json()).truth(False)
        said.number(len(answers))
        for answer in answers:
            said.raw(answer)
        said.long(batch).truth(is_abort).to(python_streaming_sink_runner._main)


class Said(io.BytesIO):
    """The bytes that Spark's JVM writes to a Python worker."""

    def number(self, value):
        self.write(struct.pack("!i", value))
        return self

    def long(self, value):
        self.write(struct.pack("!q", value))
        return self

    def truth(self, value):
        self.write(struct.pack("!?", value))
        return self

    def raw(self, data):
        self.number(len(data)).write(data)
        return self

    def text(self, value):
        return self.raw(value.encode())

    def pickled(self, value):
        return self.raw(pickleSer.dumps(value))

    def to(self, program):
        """Run the worker and return its response."""
        answer = io.BytesIO()
        self.seek(0)
        program(self, answer)
        answer.seek(0)
        return answer


def wanted(*batches):
    return [f"{batch}-{row}" for batch in batches for row in "abc"]


@pytest.fixture
def query(target):
    return Query(target.bootstrap)


@pytest.fixture(params=["the brokers add partitions", "the client adds partitions"])
def protocol(request, monkeypatch):
    """Brokers with transaction.version 2, and older ones."""
    if request.param.startswith("the client"):
        def learn(self, connection):
            self.brokers_add, self.produce_version_max = False, 11
        monkeypatch.setattr(Transactions, "_learn", learn)


def steps_of(monkeypatch):
    """[n]: the driver dies instead of ending a transaction for the n-th time; None: it does not."""
    true_end = Transactions.end
    limit = [None]

    async def end(self, committed):
        if limit[0] is not None:
            if limit[0] == 0:
                raise Died
            limit[0] -= 1
        await true_end(self, committed)

    monkeypatch.setattr(Transactions, "end", end)
    return limit


def test_batch_becomes_visible_atomically(query):
    plan = query.plan()
    answers = query.tasks(plan, 0)
    found = read_topic(query.bootstrap, query.topic, PARTITIONS)
    assert found == {0: [], 1: []}
    query.writer().commit(answers, 0)
    assert query.seen() == wanted(0)


def test_batches_follow_each_other(query):
    for batch in range(4):
        query.whole(batch)
    assert query.seen() == wanted(0, 1, 2, 3)


@pytest.mark.parametrize("steps", range(4))
def test_driver_death_during_a_commit_leaves_each_record_once(
        query, protocol, monkeypatch, steps):
    query.whole(0)
    answers = query.tasks(query.plan(), 1)
    limit = steps_of(monkeypatch)
    limit[0] = steps  # Before the decision, after it, after the first part, after all of them.
    if steps < 3:
        with pytest.raises(Died):
            query.writer().commit(answers, 1)
    else:
        query.writer().commit(answers, 1)
    limit[0] = None
    again = query.whole(1)
    assert [part.is_decided for part in again] == [steps > 0] * 2
    query.whole(2)
    assert query.seen() == wanted(0, 1, 2)


def test_driver_death_between_tasks_leaves_each_record_once(query):
    query.run(query.plan(), 0, 0, (b"a", b"b"))
    query.whole(0)
    assert query.seen() == wanted(0)


@pytest.mark.timeout(600)
def test_repeatedly_killed_driver_writes_each_record_once(
        query, tmp_path, random_source):
    drivers = multiprocessing.get_context("forkserver")
    drivers.set_forkserver_preload([drive.__module__])
    lasts = ["begin", "planned", "written", "committed"] * 2
    random_source.shuffle(lasts)
    batches = 2 * len(lasts)

    def started():
        steps, end = drivers.Pipe()
        driver = drivers.Process(target=drive, args=(query, tmp_path / "at", batches, end))
        driver.start()
        end.close()
        return driver, steps

    for number, last in enumerate(lasts):
        driver, steps = started()
        while steps.recv() != last:
            steps.send("on")
        if number % 2:
            steps.send("on")  # Then it dies during the next steps.
        driver.kill()
        driver.join()
    driver, steps = started()
    while steps.recv() != "done":
        steps.send("on")
    driver.join()
    assert query.seen() == sorted(wanted(*range(batches)))


def test_rerun_batch_with_different_splits_is_written_once(query):
    query.tasks(query.plan(), 0, ((b"a",), (b"b",), (b"c",)))
    answers = query.tasks(query.plan(), 0, ((b"c", b"a", b"b"),))
    query.writer().commit(answers, 0)
    assert query.seen() == wanted(0)  # No transaction stays open either, or this would not end.


def test_attempt_committed_by_spark_is_used(query):
    plan = query.plan()
    taken = [query.run(plan, 0, 0, (b"a", b"b")), query.run(plan, 0, 1, (b"c",), attempt=1)]
    query.run(plan, 0, 0, (b"a", b"b"), attempt=1)
    query.run(plan, 0, 1, (b"c",))
    query.writer().commit(taken, 0)
    assert query.seen() == wanted(0)


def test_second_attempt_with_the_same_number_leaves_the_first_transaction_open(target):
    query = WorkersQuery(target.bootstrap)  # Both attempts have attemptNumber 0.
    plan = query.plan()
    taken = [query.run(plan, 0, 0, [b"0-a"]), query.run(plan, 0, 1, [b"0-b"], attempt=1)]
    query.run(plan, 0, 0, [b"0-a"], attempt=2)
    query.end(taken, 0, is_abort=False)
    assert query.seen() == ["0-a", "0-b"]


def test_late_task_of_an_earlier_driver_leaves_the_next_drivers_transactions_open(query):
    late = query.plan()
    plan = query.plan()
    taken = query.tasks(plan, 0)
    query.run(late, 0, 0, (b"a", b"b"))  # Its task attempt id is that of the new driver's task.
    query.writer().commit(taken, 0)
    assert query.seen() == wanted(0)


def test_transactions_left_open_by_an_older_version_are_ended(query):
    with Producer(bootstrap_servers=query.bootstrap,
                  transactional_id=f"{query.sink}-task-3-0") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(query.topic, b"stray", partition=0)
        producer.flush()
        query.whole(0)
        assert query.seen() == wanted(0)


def test_a_driver_that_was_thought_dead_can_decide_nothing_any_more(query):
    late = query.tasks(query.plan(), 0)
    plan = query.plan()
    with pytest.raises(KafkaError):
        query.writer().commit(late, 0)
    query.writer().abort(late, 0)
    query.writer().commit(query.tasks(plan, 0), 0)
    assert query.seen() == wanted(0)


def test_open_transactions_of_a_failed_batch_are_ended(query, protocol):
    answers = [*query.tasks(query.plan(), 0), None]
    query.writer().abort(answers, 0)
    assert query.seen() == []
    query.whole(0)
    assert query.seen() == wanted(0)


def test_failure_after_the_decision_does_not_abort_the_batch(
        query, monkeypatch):
    answers = query.tasks(query.plan(), 0)
    limit = steps_of(monkeypatch)
    limit[0] = 1
    with pytest.raises(Died):
        query.writer().commit(answers, 0)
    limit[0] = None
    query.writer().abort(answers, 0)
    query.whole(0)
    assert query.seen() == wanted(0)


def test_failure_before_the_decision_cancels_it(
        query, monkeypatch):
    answers = query.tasks(query.plan(), 0)
    limit = steps_of(monkeypatch)
    limit[0] = 0  # The offset is in the transaction, which is still open.
    with pytest.raises(Died):
        query.writer().commit(answers, 0)
    limit[0] = None
    query.writer().abort(answers, 0)
    assert query.seen() == []
    query.whole(0)
    assert query.seen() == wanted(0)


def test_part_ended_early_is_reported_before_the_decision(query):
    answers = query.tasks(query.plan(), 0)
    with Admin(bootstrap_servers=query.bootstrap) as admin:
        admin.fence_producers([answers[1].part.transactional_id])
    with pytest.raises(KafkaError, match="batch 0 is not committed.*transaction.timeout.ms"):
        query.writer().commit(answers, 0)
    query.writer().abort(answers, 0)
    assert query.seen() == []
    query.whole(0)
    assert query.seen() == wanted(0)


def test_parts_aborted_after_the_decision_are_reported(query, monkeypatch):
    answers = query.tasks(query.plan(), 0)
    limit = steps_of(monkeypatch)
    limit[0] = 1
    with pytest.raises(Died):
        query.writer().commit(answers, 0)
    limit[0] = None
    with Admin(bootstrap_servers=query.bootstrap) as admin:
        admin.fence_producers([answers[1].part.transactional_id])
    with pytest.raises(KafkaError, match="batch 0 was decided.*task-1-.*records are lost"):
        query.whole(0)


def test_tasks_without_rows_and_batches_without_any_are_counted(query):
    answers = query.tasks(query.plan(), 0, ((), ()))
    assert [part.part for part in answers] == [None, None]
    query.writer().commit(answers, 0)
    answers = query.tasks(query.plan(), 1, ((b"a", b"b", b"c"), ()))
    query.writer().commit(answers, 1)
    assert query.seen() == wanted(1)


def test_two_queries_do_not_share_an_id(query):
    query.whole(0)
    other = Query(query.bootstrap, "another")
    other.options["topic"], other.options["exactlyOnceId"] = query.topic, query.sink
    with pytest.raises(ConfigError, match="belongs to the query q"):
        other.tasks(other.plan(), 1)
    assert query.seen() == wanted(0)


def test_failed_task_leaves_no_open_transaction(query):
    def rows():
        yield pa.RecordBatch.from_pydict({"value": [b"x"], "partition": pa.array([0], pa.int32())})
        raise ArithmeticError("of the query")

    writer = pickle.loads(query.plan())
    with pytest.raises(ArithmeticError):
        writer.write_task(rows(), Task("q", 0, 0, 0))
    assert query.seen() == []


def test_sinks_do_not_affect_each_others_transactions(query):
    other = Query(query.bootstrap, "another")
    other.options["exactlyOnceId"] = f"{query.sink}-task"
    answers = other.tasks(other.plan(), 0)
    query.whole(0)
    other.writer().commit(answers, 0)
    assert other.seen() == wanted(0)


def test_sink_progress_is_readable_as_a_group_offset(query):
    query.whole(0)
    query.whole(1)
    with Admin(bootstrap_servers=query.bootstrap) as admin:
        found = admin.list_consumer_group_offsets(query.sink)
    row = found[TopicPartition(query.topic, 0)]
    assert row.offset == 2 and row.metadata.startswith("q ")


def test_the_programs_that_spark_runs_call_it_as_these_tests_do(target):
    query = WorkersQuery(target.bootstrap)
    failed = [query.run(query.plan(), 0, 0, [b"a"])]
    query.end(failed, 0, is_abort=True)
    for batch in (0, 0, 1):
        plan = query.plan()
        answers = [query.run(plan, batch, number, [b"%d-%d" % (batch, number)])
                   for number in range(2)]
        query.end(answers, batch, is_abort=False)
    assert query.seen() == ["0-0", "0-1", "1-0", "1-1"]


def test_task_outside_a_micro_batch_is_rejected():
    with pytest.raises(ConfigError, match="micro-batches"):
        current_task()


@pytest.mark.parametrize("given, word", [
    ({"exactlyOnceId": " "}, "exactlyOnceId: expected a name"), ({"topic": ""}, "option topic"),
    ({"kafka.transactional.id": "mine"}, "kafka.transactional.id")])
def test_options_incompatible_with_exactly_once_are_reported_in_one_line(given, word):
    options = {"kafka.bootstrap.servers": "localhost:1", "topic": "t", "exactlyOnceId": "s",
               **given}
    schema = StructType().add("value", "binary").add("topic", "string")
    with pytest.raises(ConfigError, match=word) as refused:
        PylogSource(options).streamWriter(schema, False)
    assert "\n" not in str(refused.value)


def test_a_batch_write_is_not_exactly_once():
    options = {"kafka.bootstrap.servers": "localhost:1", "topic": "t", "exactlyOnceId": "s"}
    with pytest.raises(ConfigError, match="writeStream"):
        PylogSource(options).writer(SCHEMA, False)

"""Calls that exist for typed programs, and the same calls with asyncio."""

import ast
import asyncio
import dataclasses
import warnings
from pathlib import Path

import pyarrow as pa
import pytest

import pylog.client
from pylog.client import (
    Admin, Consumer, Producer, Record, RecordMetadata, ShareConsumer, TopicPartition, aio, errors,
)
from pylog.client.serialization import (
    Format, Int64, Json, Msgspec, Pydantic, SchemaRegistry, Text,
)
from tests.client.support import new_name, new_topic, put, reader, rows

CLIENT = Path(pylog.client.__file__).parent
# Values of any type: JSON and Avro, and functions of the application.
MAY_BE_ANY = {"Json", "Avro", "json_column", "json_rows", "avro_column", "arrow_type",
              "without_uuids", "LogTruncationError"}
PUBLIC = ("consumer/consumer.py", "consumer/aio_consumer.py", "consumer/scan.py",
          "consumer/aio_scan.py", "consumer/rebalance_listener.py", "producer/producer.py",
          "producer/aio_producer.py", "share/share_consumer.py", "share/aio_share_consumer.py",
          "admin/admin.py", "admin/groups.py", "admin/security.py", "admin/share_groups.py",
          "admin/streams_groups.py", "admin/transactions.py", "admin/types.py", "interfaces.py",
          "serialization/plain.py", "serialization/models.py", "serialization/registry.py",
          "config/configured.py", "options.pyi")


@dataclasses.dataclass
class Order:
    number: int


class Upper:
    """A format that is neither a function nor derived from Format."""

    def serialize(self, topic, value):
        return f"{topic}: {value}".upper().encode()

    def deserialize(self, data):
        return data.decode().lower()


# ---- generic classes


@pytest.mark.parametrize("kind", [Record, Consumer, Producer, ShareConsumer, aio.Consumer,
                                  aio.Producer, aio.ShareConsumer])
def test_classes_can_be_parameterized_at_run_time(kind):
    assert kind[bytes, str].__args__ == (bytes, str)


def _any_signatures(module: str) -> list[str]:
    """Return the public functions whose parameters or results can be of any type."""
    found = []

    def visit(node, names) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                visit(child, [*names, child.name])
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                arguments = child.args
                annotations = [argument.annotation for argument in (
                    *arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
                text = [ast.unparse(one) for one in [*annotations, child.returns] if one]
                # A client or record of any type is an argument that every program can pass.
                text = [one.replace("[Any, Any]", "") for one in text]
                if any("Any" in one for one in text):
                    found.append(".".join([*names, child.name]))
    visit(ast.parse((CLIENT / module).read_text()), [])
    return [name for name in found
            if not any(part.startswith("_") and part != "__init__" for part in name.split("."))
            and name.split(".")[0] not in MAY_BE_ANY]


def test_public_signatures_name_their_types():
    found = {f"{module}: {name}" for module in PUBLIC for name in _any_signatures(module)}
    assert found == {
        "consumer/rebalance_listener.py: listener_of", "consumer/rebalance_listener.py: weakly",
        "consumer/rebalance_listener.py: callback_of",
        "consumer/rebalance_listener.py: Callbacks.__init__",
        "admin/admin.py: Admin.list_offsets", "admin/admin.py: Admin.elect_leaders",
        "admin/admin.py: Admin.list_partition_reassignments",
        "admin/admin.py: Admin.incremental_alter_configs",
        "admin/groups.py: Groups.alter_consumer_group_offsets", "config/configured.py: given"}


def test_option_types_contain_no_any():
    assert "Any" not in (CLIENT / "options.pyi").read_text()


def test_asyncio_has_every_public_name():
    assert set(pylog.client.__all__) == set(aio.__all__)
    for name in aio.__all__:
        getattr(aio, name), getattr(pylog.client, name)


def _parameters(kind, name) -> list[str]:
    import inspect

    return [*inspect.signature(getattr(kind, name)).parameters]


@pytest.mark.parametrize("blocking, asynchronous", [
    (Consumer, aio.Consumer), (Producer, aio.Producer), (ShareConsumer, aio.ShareConsumer)])
def test_asyncio_clients_have_the_same_calls_and_arguments(blocking, asynchronous):
    names = {name for name in dir(blocking) if not name.startswith("_")} - {"routes"}
    assert names - {name for name in dir(asynchronous)} == set()
    different = {name for name in names
                 if callable(getattr(blocking, name))
                 and _parameters(blocking, name) != _parameters(asynchronous, name)}
    assert different == set()


# ---- settings from elsewhere


@pytest.mark.parametrize("kind", [Admin, Consumer, Producer])
def test_clients_are_created_from_a_mapping_and_from_a_file(brokerd, tmp_path, kind):
    text = {"bootstrap.servers": brokerd.bootstrap, "request.timeout.ms": "5000"}
    with kind.from_settings(text) as client:
        assert _settings_of(client)["request.timeout.ms"] == 5000
    file = tmp_path / "client.properties"
    file.write_text("# of the cluster\n" + "".join(f"{key} = {text[key]}\n" for key in text))
    with kind.from_properties(file) as client:
        assert _settings_of(client)["request.timeout.ms"] == 5000


def _settings_of(client):
    return client._admin.settings if isinstance(client, Admin) else client.settings


def test_an_unknown_setting_in_a_file_is_rejected(tmp_path):
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.server=localhost:9092\n")
    with pytest.raises(errors.ConfigError, match="did you mean 'bootstrap.servers'"):
        aio.Producer.from_properties(str(file))
    file.write_text("client.id=\\u00g0\n")
    with pytest.raises(errors.ConfigError, match=r"client\.properties:1"):
        aio.Producer.from_properties(file)


# ---- batches


def test_batches_contain_every_record_once_and_at_most_the_given_number(brokerd):
    topic = new_topic(brokerd)
    put(brokerd, topic, rows(25), batch_records=3)
    offsets = []
    with reader(brokerd, topic) as consumer:
        for batch in consumer.batches(10, timeout=20.0):
            assert 1 <= len(batch) <= 10
            offsets += [record.offset for record in batch]
            if len(offsets) >= 25:
                break
    assert offsets == list(range(25))


def test_records_before_an_undeserializable_one_are_yielded_first(brokerd):
    topic = new_topic(brokerd)
    put(brokerd, topic, [(key, value, timestamp, headers) for (key, _, timestamp, headers), value in
                         zip(rows(4), (b"1", b"2", b"no", b"4"))])
    part, values = TopicPartition(topic, 0), []
    with reader(brokerd, topic, value_deserializer=int) as consumer:
        with pytest.raises(errors.RecordDeserializationError):
            for batch in consumer.batches(10, timeout=20.0):
                values += [record.value for record in batch]
        consumer.seek(part, 3)
        values += [record.value for record in next(consumer.batches(10, timeout=20.0))]
    assert values == [1, 2, 4]


def test_a_commit_after_a_batch_covers_all_its_records(brokerd):
    topic = new_topic(brokerd)
    put(brokerd, topic, rows(20), batch_records=3)
    part = TopicPartition(topic, 0)
    with reader(brokerd, topic, group_id=new_name("g"), enable_auto_commit=False) as consumer:
        for batch in consumer.batches(8, 20.0):
            assert [record.offset for record in batch] == list(range(len(batch)))
            assert consumer.commit()[part].offset == len(batch)
            break


def test_batches_without_size_or_wait_are_rejected(brokerd):
    with reader(brokerd, new_topic(brokerd)) as consumer:
        with pytest.raises(ValueError, match="at least one record, not 0"):
            next(consumer.batches(0, 1.0))
        with pytest.raises(ValueError, match="waits for records: timeout is above 0, not 0"):
            next(consumer.batches(10, 0.0))


# ---- producers


def test_send_and_wait_returns_the_metadata_or_raises(brokerd):
    topic = new_topic(brokerd)
    with Producer(bootstrap_servers=brokerd.bootstrap) as producer:
        found = producer.send_and_wait(topic, "one", key="k", headers={"a": b"b"}, timeout=30)
        assert type(found) is RecordMetadata and found.offset == 0
    with Producer(bootstrap_servers=brokerd.bootstrap, linger_ms=60_000) as producer:
        with pytest.raises(errors.KafkaTimeoutError, match="no acknowledgement within 0.05 s"):
            producer.send_and_wait(topic, "two", timeout=0.05)


@pytest.mark.parametrize("call", ["result", "exception"])
def test_the_old_name_of_the_timeout_still_works(brokerd, call):
    with Producer(bootstrap_servers=brokerd.bootstrap) as producer:
        delivery = producer.send(new_topic(brokerd), b"v")
        with pytest.warns(DeprecationWarning, match="timeout_s is now named timeout"):
            getattr(delivery, call)(timeout_s=30)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            getattr(delivery, call)(timeout=30), getattr(delivery, call)(30)


def test_a_schema_registry_takes_the_old_name_of_its_timeout():
    with pytest.warns(DeprecationWarning, match="timeout_s is now named timeout"):
        assert SchemaRegistry("http://localhost:1", timeout_s=3.0).timeout == 3.0
    assert SchemaRegistry("http://localhost:1", timeout=4.0).timeout == 4.0


# ---- asyncio


def test_asyncio_calls_wait_for_at_most_their_timeout(brokerd):
    topic = new_topic(brokerd)

    async def work():
        async with aio.Producer(bootstrap_servers=brokerd.bootstrap, linger_ms=60_000) as producer:
            with pytest.raises(errors.KafkaTimeoutError, match="no acknowledgement within 0.05 s"):
                await producer.send_and_wait(topic, b"v", timeout=0.05)
        async with aio.Producer(bootstrap_servers=brokerd.bootstrap,
                                transactional_id=new_name("t")) as producer:
            await producer.init_transactions(timeout=30)
            producer.begin_transaction()
            await producer.send_and_wait(topic, b"v", timeout=30)
            with pytest.raises(errors.KafkaTimeoutError, match="not done within 0 s"):
                await producer.commit_transaction(timeout=0.0)
            await producer.commit_transaction(timeout=30)

    asyncio.run(work())


def test_asyncio_reads_batches_and_scans(brokerd):
    topic = new_topic(brokerd)
    put(brokerd, topic, rows(30), batch_records=4)

    async def work():
        async with aio.Consumer(bootstrap_servers=brokerd.bootstrap,
                                auto_offset_reset="earliest") as consumer:
            await consumer.assign([TopicPartition(topic, 0)])
            offsets = []
            async for batch in consumer.batches(20, 20.0):
                assert 1 <= len(batch) <= 20
                offsets += [record.offset for record in batch]
                if len(offsets) >= 30:
                    break
            assert offsets == list(range(30))
        return [rows async for rows in aio.scan(
            topic, columns=["offset"], bootstrap_servers=brokerd.bootstrap)]

    found = pa.Table.from_batches(asyncio.run(work()))
    assert found.column("offset").to_pylist() == list(range(30))


# ---- formats


@pytest.mark.parametrize("form, value", [
    (Msgspec(Order), Order(5)), (Msgspec(Order, encoding="msgpack"), Order(6)),
    (Pydantic(Order), Order(7)), (Pydantic(list[Order]), [Order(8), Order(9)])])
def test_formats_of_typed_objects_restore_them(form, value):
    data = form.serialize("t", value)
    assert type(data) is bytes and form.deserialize(data) == value
    for damaged in (b"{", b'{"number": "x"}', b""):
        with pytest.raises(errors.SerializationError, match=type(form).__name__):
            form.deserialize(damaged)


@pytest.mark.parametrize("kind, library", [(Msgspec, "msgspec"), (Pydantic, "pydantic")])
def test_formats_of_typed_objects_name_their_extra(monkeypatch, kind, library):
    import sys

    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(errors.MissingExtraError, match=rf"pip install 'pylog-broker\[{library}\]'"):
        kind(Order)


@pytest.mark.parametrize("form, value", [
    (Msgspec(Order), Order(1)), (Upper(), "x"), (Int64(), 5), (Text(), "y"), (Json(), {"a": 1})])
def test_consumers_return_what_their_formats_read(brokerd, form, value):
    topic = new_topic(brokerd)
    with Producer(bootstrap_servers=brokerd.bootstrap, value_serializer=form) as producer:
        producer.send_and_wait(topic, value, timeout=30)
    expected = f"{topic}: x".lower() if isinstance(form, Upper) else value
    with reader(brokerd, topic, value_deserializer=form) as consumer:
        assert [record.value for record in consumer.poll(30.0)] == [expected]


def test_format_without_methods_names_the_missing_one():
    with pytest.raises(errors.SerializationError, match="Format has no encode"):
        Format().serialize("t", 5)

"""The topic of schemas: durability, restarts, damage, other writers."""

import json

import pytest

from pylog.client import Admin, ConfigResource, Consumer, NewTopic, Producer, ResourceType
from pylog.client.types import TopicPartition
from pylog.registry.formats import avro
from pylog.registry.topic import TopicError
from tests.registry.served import Served, code, record


def records_of(bootstrap, topic):
    """Return (key, value) of all records of a topic."""
    place = TopicPartition(topic, 0)
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([place])
        end = consumer.end_offsets([place])[place]
        found = []
        while consumer.position(place) < end:
            found += [(one.key, one.value) for one in consumer.poll(1.0)]
        return found


def served(registry_broker, topic):
    return Served({"bootstrap.servers": registry_broker.bootstrap}, topic=topic)


def test_everything_is_there_after_a_restart(registry_broker, topic):
    paths = ["/subjects?deleted=true", "/schemas?deleted=true&subjectPrefix=:*:", "/config",
             "/config/a", "/mode/b", "/contexts", "/subjects/a/versions?deleted=true"]
    with served(registry_broker, topic) as one:
        client = one.client()
        client.put("/config", {"compatibility": "NONE"})
        client.register("a", '"string"')
        client.register("a", '"int"')
        client.delete("/subjects/a/versions/1")
        client.register(":.c:a", '"long"')
        client.register("b", record("R", "a"), metadata={"properties": {"x": "y"}})
        client.put("/config/a", {"compatibility": "FULL"})
        client.put("/mode/b", {"mode": "READONLY"})
        client.register("gone", '"bytes"')
        client.delete("/subjects/gone")
        client.delete("/subjects/gone?permanent=true")
        before = [client.get(path) for path in paths]
    stored = records_of(registry_broker.bootstrap, topic)
    with served(registry_broker, topic) as one:
        client = one.client()
        assert [client.get(path) for path in paths] == before
        assert records_of(registry_broker.bootstrap, topic) == stored, "reads add no records"
        assert client.register("c", '"float"') > max(
            row["id"] for row in client.get("/schemas?deleted=true")[1] if row["subject"] != "c")


def test_a_topic_that_loses_records_is_refused(registry_broker, topic):
    with Admin(bootstrap_servers=registry_broker.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1, configs={"cleanup.policy": "delete"})])
        with pytest.raises(TopicError, match="cleanup.policy=delete.*Expected compact"):
            with served(registry_broker, topic):
                pass
        admin.create_topics([NewTopic(f"{topic}-wide", 2, configs={"cleanup.policy": "compact"})])
        with pytest.raises(TopicError, match="has 2 partitions"):
            with served(registry_broker, f"{topic}-wide"):
                pass


def test_the_topic_is_created_compacted_with_one_partition(registry, registry_broker):
    with Admin(bootstrap_servers=registry_broker.bootstrap) as admin:
        resource = ConfigResource(ResourceType.TOPIC, "_schemas")
        assert admin.describe_configs([resource])[resource]["cleanup.policy"].value == "compact"
        assert len(admin.describe_topics(["_schemas"])["_schemas"].partitions) == 1


def test_records_of_other_registries_are_read_and_removed_by_their_own_keys(registry_broker, topic):
    odd = b'{"keytype": "SCHEMA", "subject": "odd", "version": 1, "magic": 1, "seq": 1, "node": 0}'
    with Admin(bootstrap_servers=registry_broker.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1, configs={"cleanup.policy": "compact"})])
    names = json.dumps(record("R-1", "a b"))
    canonical = avro.parse(names, is_strict=False).canonical()
    with Producer(bootstrap_servers=registry_broker.bootstrap) as producer:
        producer.send(topic, b"nonsense", b"nonsense")
        producer.send(topic, json.dumps({"version": 1, "id": 8, "schema": canonical}).encode(),
                      b'{"keytype":"SCHEMA","subject":"names","version":1,"magic":1}')
        producer.send(topic, b'{"version":1,"id":9,"schema":"\\"string\\""}', odd)
        producer.send(topic, json.dumps({
            "subject": "proto", "version": 1, "id": 10, "schemaType": "PROTOBUF",
            "schema": 'syntax = "proto3";', "deleted": False}).encode(),
            b'{"keytype":"SCHEMA","subject":"proto","version":1,"magic":1}')
        producer.flush()
    with served(registry_broker, topic) as one:
        client = one.client()
        assert client.get("/_health")[1]["status"]["schema_registry_records_skipped"] == 1
        assert client.get("/schemas/ids/9") == (200, {"schema": '"string"'})
        assert client.get("/schemas/ids/10")[1]["schemaType"] == "PROTOBUF"
        assert client.register("new", '"long"') == 11
        assert client.post("/subjects/names", {"schema": names})[1]["id"] == 8
        assert code(client.post("/subjects/others/versions", {"schema": names})) == (422, 42201)
        client.delete("/subjects/odd")
        client.delete("/subjects/odd?permanent=true")
    tombstones = [key for key, value in records_of(registry_broker.bootstrap, topic)
                  if value is None and b"SCHEMA" in key]
    assert tombstones == [odd, b'{"keytype":"SCHEMA","subject":"odd","version":1,"magic":1}']


def test_a_change_by_another_registry_is_seen(registry_broker, topic):
    with served(registry_broker, topic) as first, served(registry_broker, topic) as second:
        one, other = first.client(), second.client()
        ids = [one.register("a", '"string"'), other.register("b", '"int"'),
               one.register("c", '"long"'), other.register("d", '"float"')]
        assert len(set(ids)) == 4
        assert code(other.post("/subjects/a/versions", {"schema": '"int"'})) == (409, 409)


def test_registries_that_write_at_the_same_time_give_each_id_one_meaning(registry_broker, topic):
    from concurrent.futures import ThreadPoolExecutor

    with served(registry_broker, topic) as first, served(registry_broker, topic) as second:
        clients = [first.client(), second.client()]
        clients[0].put("/config", {"compatibility": "NONE"})

        def register(number):
            return clients[number % 2].register(f"s{number % 4}", record(f"R{number}"))

        with ThreadPoolExecutor(8) as pool:
            ids = list(pool.map(register, range(40)))
        assert len(set(ids)) == 40
        for number, id_ in enumerate(ids):
            for client in clients:
                assert f'"R{number}"' in client.get(f"/schemas/ids/{id_}")[1]["schema"]

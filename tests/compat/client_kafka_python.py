"""kafka-python, 2.0 or 3: `python -m tests.compat.client_kafka_python BOOTSTRAP SCENARIO TOPIC`.

Owns: nothing.
Invariants: Client contains the calls common to both versions or specific to 2.0, ClientOf3 the
  rest.
"""

import time

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import (
    ConfigResource,
    ConfigResourceType,
    KafkaAdminClient,
    NewPartitions,
    NewTopic,
)
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata

from tests.compat import flows

STATIC = {"group_instance_id": flows.INSTANCE} if flows.INSTANCE else {}


try:
    from kafka.net.sasl.oauth import AbstractTokenProvider
except ImportError:  # version 2.0
    from kafka.oauth import AbstractTokenProvider


class Token(AbstractTokenProvider):
    """Provides bearer tokens to the library."""

    def token(self) -> str:
        return flows.SECURITY["token"]

    def extensions(self) -> dict:
        return {}


def security() -> dict:
    """Return the security settings that the driver requests."""
    given = flows.SECURITY
    names = {"trusted": "ssl_cafile", "certificate": "ssl_certfile", "key": "ssl_keyfile",
             "mechanism": "sasl_mechanism", "user": "sasl_plain_username",
             "password": "sasl_plain_password"}
    settings = {name: given[key] for key, name in names.items() if key in given}
    if given:
        settings["security_protocol"] = "SASL_SSL" if "mechanism" in given else "SSL"
    if "token" in given:
        settings["sasl_oauth_token_provider"] = Token()
    return settings


class Member(flows.Member):
    def work(self) -> None:
        consumer = KafkaConsumer(self.topic, bootstrap_servers=self.bootstrap,
                                 group_id=self.group, auto_offset_reset="earliest",
                                 session_timeout_ms=6000, heartbeat_interval_ms=1000,
                                 metadata_max_age_ms=5000, **STATIC)
        while not self.ending.is_set():
            for messages in consumer.poll(200).values():
                self.keys += [message.key for message in messages]
            self.share = {one.partition for one in consumer.assignment()}
        consumer.close()


class Client:
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")

    def __init__(self, bootstrap: str):
        self.bootstrap = bootstrap

    def produce(self, topic, rows, codec, partition=0):
        producer = KafkaProducer(bootstrap_servers=self.bootstrap, linger_ms=20, **security(),
                                 compression_type=None if codec == "none" else codec)
        sent = [producer.send(topic, value, key, partition=partition, timestamp_ms=timestamp)
                for key, value, timestamp in rows]
        for one in sent:
            one.get(30)
        producer.close()

    @staticmethod
    def _take(consumer, count):
        end_s = time.monotonic() + 30
        taken = []
        while len(taken) < count:
            assert time.monotonic() < end_s, f"{len(taken)} of {count} records in 30 s"
            for messages in consumer.poll(500, max_records=count - len(taken)).values():
                taken += messages
        return taken

    def _consumer(self, *topics, group=None, policy="earliest", **more):
        return KafkaConsumer(*topics, bootstrap_servers=self.bootstrap, group_id=group,
                             enable_auto_commit=False, auto_offset_reset=policy, **security(),
                             **more)

    @staticmethod
    def _first(consumer, nudge):
        def poll():
            for messages in consumer.poll(500, max_records=1).values():
                return messages[0].offset
            return None

        try:
            return flows.first(poll, nudge)
        finally:
            consumer.close()

    def first(self, topic, group, policy, nudge=None):
        return self._first(self._consumer(topic, group=group, policy=policy), nudge)

    def lost(self, topic, start):
        consumer = self._consumer()
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), start)
        return self._first(consumer, None)

    def read(self, topic, start, count, **isolation):
        consumer = self._consumer(**isolation)
        try:
            where = TopicPartition(topic, 0)
            consumer.assign([where])
            consumer.seek(where, start)
            return [(one.key, one.value, one.timestamp) for one in self._take(consumer, count)]
        finally:
            consumer.close()

    def member(self, topic, group):
        return Member(self.bootstrap, topic, group)

    def take(self, topic, group, count):
        consumer = self._consumer(topic, group=group)
        try:
            messages = self._take(consumer, count)
            consumer.commit()
            return [one.key for one in messages]
        finally:
            consumer.close()

    def offset_at(self, topic, timestamp):
        consumer = self._consumer()
        try:
            where = TopicPartition(topic, 0)
            return consumer.offsets_for_times({where: timestamp})[where].offset
        finally:
            consumer.close()

    def _admin(self, call, *arguments, **options):
        client = KafkaAdminClient(bootstrap_servers=self.bootstrap)
        try:
            return getattr(client, call)(*arguments, **options)
        finally:
            client.close()

    def create(self, name, partitions):
        self._admin("create_topics", [NewTopic(name, partitions, 1)])

    def partition_count(self, name):
        if name not in self._admin("list_topics"):
            return 0
        return len(self._admin("describe_topics", [name])[0]["partitions"])

    def grow(self, name, total):
        self._admin("create_partitions", {name: NewPartitions(total)})

    def delete(self, name):
        self._admin("delete_topics", [name])

    def set_config(self, topic, key, value):
        self._admin("alter_configs", [
            ConfigResource(ConfigResourceType.TOPIC, topic, configs={key: value})])

    def _config(self, kind, name, key):
        told = self._admin("describe_configs", [ConfigResource(kind, name)])
        entries = told[0].resources[0][4]
        return next(entry[1] for entry in entries if entry[0] == key)

    def config(self, topic, key):
        return self._config(ConfigResourceType.TOPIC, topic, key)

    def broker_config(self, key):
        return self._config(ConfigResourceType.BROKER, "1", key)

    def groups(self):
        return [name for name, _ in self._admin("list_consumer_groups")]

    def group_state(self, group):
        return self._admin("describe_consumer_groups", [group])[0].state

    def committed(self, topic, group):
        return self._admin("list_consumer_group_offsets", group)[TopicPartition(topic, 0)].offset

    def delete_group(self, group):
        for _, error in self._admin("delete_consumer_groups", [group]):
            assert error.errno == 0, error


class ClientOf3(Client):
    def read(self, topic, start, count, committed=False):
        isolation = "read_committed" if committed else "read_uncommitted"
        return super().read(topic, start, count, isolation_level=isolation)

    def _transactional(self, name):
        producer = KafkaProducer(bootstrap_servers=self.bootstrap, transactional_id=name)
        producer.init_transactions()
        return producer

    def move(self, topic, goal, group, count, is_committed):
        consumer = self._consumer(topic, group=group)
        producer = self._transactional(f"{group}-id")
        try:
            messages = self._take(consumer, count)
            producer.begin_transaction()
            for one in messages:
                producer.send(goal, one.value, one.key, partition=0, timestamp_ms=one.timestamp)
            producer.send_offsets_to_transaction(
                {TopicPartition(topic, 0): OffsetAndMetadata(messages[-1].offset + 1, "", -1)},
                consumer.group_metadata())
            if is_committed:
                producer.commit_transaction()
            else:
                producer.flush(30)
                producer.abort_transaction()
        finally:
            producer.close()
            consumer.close()

    def overtaken(self, topic, name):
        first = self._transactional(name)
        first.begin_transaction()
        first.send(topic, b"open", partition=0).get(30)
        second = self._transactional(name)
        try:
            first.commit_transaction()
        except KafkaError:
            return
        finally:
            first.close(5)
            second.close()
        raise AssertionError("a producer that was overtaken could commit")

    def _config(self, kind, name, key):
        told = self._admin("describe_configs", [ConfigResource(kind, name)], config_filter="all")
        return told[kind.name.lower()][name][key]["value"]

    def groups(self):
        return [one["group_id"] for one in self._admin("list_groups")]

    def group_state(self, group):
        return self._admin("describe_groups", [group])[group]["group_state"]

    def committed(self, topic, group):
        return self._admin("list_group_offsets", group)[group][TopicPartition(topic, 0)].offset

    def set_committed(self, topic, group, offset):
        wanted = OffsetAndMetadata(offset, "", -1)
        told = self._admin("alter_group_offsets", group, {TopicPartition(topic, 0): wanted})
        assert all(error.errno == 0 for error in told.values()), told

    def delete_group(self, group):
        told = self._admin("delete_groups", [group])
        assert told[group] == "OK", told

    def trim(self, topic, offset):
        self._admin("delete_records", {TopicPartition(topic, 0): offset})


if __name__ == "__main__":
    flows.main(ClientOf3 if hasattr(KafkaAdminClient, "list_groups") else Client)

"""confluent-kafka: `python -m tests.compat.client_confluent BOOTSTRAP SCENARIO TOPIC`.

Owns: nothing.
Invariants: only the library's public calls are used.
"""

import time

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)

from tests.compat import flows


def security() -> dict:
    """Return the security settings that the driver requests."""
    given = flows.SECURITY
    if not given:
        return {}
    settings = {"security.protocol": "sasl_ssl" if "mechanism" in given else "ssl",
                "ssl.ca.location": given["trusted"]}
    if "certificate" in given:
        settings |= {"ssl.certificate.location": given["certificate"],
                     "ssl.key.location": given["key"]}
    if "mechanism" in given:
        settings["sasl.mechanism"] = given["mechanism"]
    if "user" in given:
        settings |= {"sasl.username": given["user"], "sasl.password": given["password"]}
    if "token" in given:
        settings["oauth_cb"] = lambda _: (given["token"], time.time() + 3600)
    return settings


class Member(flows.Member):
    def work(self) -> None:
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": self.group,
                             "auto.offset.reset": "earliest", "session.timeout.ms": 6000,
                             "heartbeat.interval.ms": 1000,
                             **({"group.instance.id": flows.INSTANCE} if flows.INSTANCE else {})})
        consumer.subscribe([self.topic])
        while not self.ending.is_set():
            message = consumer.poll(0.2)
            if message is not None and not message.error():
                self.keys.append(message.key())
            self.share = {one.partition for one in consumer.assignment()}
        consumer.close()


class Client:
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")

    def __init__(self, bootstrap: str):
        self.bootstrap = bootstrap
        self.settings = {"bootstrap.servers": bootstrap, **security()}
        self.admin = AdminClient(self.settings)

    def produce(self, topic, rows, codec, partition=0):
        producer = Producer({**self.settings, "compression.type": codec, "linger.ms": 20,
                             "enable.idempotence": True})
        failed = []
        for key, value, timestamp in rows:
            producer.produce(topic, value, key, partition, timestamp=timestamp,
                             on_delivery=lambda error, _: error and failed.append(error))
        assert producer.flush(30) == 0, "not all records were acknowledged"
        assert not failed, failed[0]

    def _consumer(self, group, **more):
        return Consumer({**self.settings, "group.id": group, "enable.auto.commit": False,
                         "auto.offset.reset": "earliest", **more})

    @staticmethod
    def _take(consumer, count):
        end_s = time.monotonic() + 30
        messages = []
        while len(messages) < count:
            assert time.monotonic() < end_s, f"{len(messages)} of {count} records in 30 s"
            message = consumer.poll(0.5)
            if message is not None:
                assert not message.error(), message.error()
                messages.append(message)
        return messages

    def read(self, topic, start, count, committed=False):
        isolation = "read_committed" if committed else "read_uncommitted"
        consumer = self._consumer("unused", **{"isolation.level": isolation})
        try:
            consumer.assign([TopicPartition(topic, 0, start)])
            return [(one.key(), one.value(), one.timestamp()[1])
                    for one in self._take(consumer, count)]
        finally:
            consumer.close()

    def _transactional(self, name):
        producer = Producer({**self.settings, "transactional.id": name})
        producer.init_transactions(30)
        return producer

    def move(self, topic, goal, group, count, is_committed):
        consumer, producer = self._consumer(group), self._transactional(f"{group}-id")
        try:
            consumer.subscribe([topic])
            messages = self._take(consumer, count)
            producer.begin_transaction()
            for one in messages:
                producer.produce(goal, one.value(), one.key(), 0, timestamp=one.timestamp()[1])
            producer.send_offsets_to_transaction(
                [TopicPartition(topic, 0, messages[-1].offset() + 1)],
                consumer.consumer_group_metadata(), 30)
            if is_committed:
                producer.commit_transaction(30)
            else:
                producer.flush(30)
                producer.abort_transaction(30)
        finally:
            consumer.close()

    def overtaken(self, topic, name):
        first = self._transactional(name)
        first.begin_transaction()
        first.produce(topic, b"open", partition=0)
        assert first.flush(30) == 0
        self._transactional(name)
        try:
            first.commit_transaction(30)
        except KafkaException:
            return
        raise AssertionError("a producer that was overtaken could commit")

    def member(self, topic, group):
        return Member(self.bootstrap, topic, group)

    def take(self, topic, group, count):
        consumer = self._consumer(group)
        try:
            consumer.subscribe([topic])
            messages = self._take(consumer, count)
            consumer.commit(message=messages[-1], asynchronous=False)
            return [one.key() for one in messages]
        finally:
            consumer.close()

    @staticmethod
    def _first(consumer, nudge):
        def poll():
            message = consumer.poll(0.5)
            return None if message is None or message.error() else message.offset()

        try:
            return flows.first(poll, nudge)
        finally:
            consumer.close()

    def first(self, topic, group, policy, nudge=None):
        consumer = self._consumer(group, **{"auto.offset.reset": policy})
        consumer.subscribe([topic])
        return self._first(consumer, nudge)

    def lost(self, topic, start):
        consumer = self._consumer("unused")
        consumer.assign([TopicPartition(topic, 0, start)])
        return self._first(consumer, None)

    def offset_at(self, topic, timestamp):
        consumer = self._consumer("unused")
        try:
            return consumer.offsets_for_times([TopicPartition(topic, 0, timestamp)], 20)[0].offset
        finally:
            consumer.close()

    def create(self, name, partitions):
        self.admin.create_topics([NewTopic(name, partitions, 1)])[name].result(20)

    def partition_count(self, name):
        topics = self.admin.list_topics(timeout=20).topics
        return len(topics[name].partitions) if name in topics else 0

    def grow(self, name, total):
        self.admin.create_partitions([NewPartitions(name, total)])[name].result(20)

    def delete(self, name):
        try:
            self.admin.delete_topics([name])[name].result(20)
        except KafkaException as refusal:
            raise AssertionError(f"delete: {refusal}") from refusal

    def set_config(self, topic, key, value):
        entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
        self.admin.incremental_alter_configs([resource])[resource].result(20)

    def _config(self, kind, name, key):
        resource = ConfigResource(kind, name)
        return self.admin.describe_configs([resource])[resource].result(20)[key].value

    def config(self, topic, key):
        return self._config(ConfigResource.Type.TOPIC, topic, key)

    def broker_config(self, key):
        return self._config(ConfigResource.Type.BROKER, "1", key)

    def groups(self):
        return [one.group_id for one in self.admin.list_consumer_groups().result(20).valid]

    def group_state(self, group):
        return self.admin.describe_consumer_groups([group])[group].result(20).state.name

    def committed(self, topic, group):
        asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0)])
        told = self.admin.list_consumer_group_offsets([asked])[group].result(20)
        return told.topic_partitions[0].offset

    def set_committed(self, topic, group, offset):
        wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, offset)])
        self.admin.alter_consumer_group_offsets([wanted])[group].result(20)

    def delete_group(self, group):
        self.admin.delete_consumer_groups([group])[group].result(20)

    def trim(self, topic, offset):
        partition = TopicPartition(topic, 0, offset)
        assert self.admin.delete_records([partition])[partition].result(20).low_watermark == offset


if __name__ == "__main__":
    flows.main(Client)

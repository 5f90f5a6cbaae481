"""kafka-python, 2.0 or 3: `python -m tests.compat.client_kafka_python BOOTSTRAP SCENARIO TOPIC`.

Owns: nothing.
Called by: tests.compat, once for each version.
Invariants: (1) only calls that both versions have.
"""

import time

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic

from tests.compat import flows


class Member(flows.Member):
    def work(self) -> None:
        consumer = KafkaConsumer(self.topic, bootstrap_servers=self.bootstrap,
                                 group_id=self.group, auto_offset_reset="earliest",
                                 session_timeout_ms=10000, heartbeat_interval_ms=1000,
                                 metadata_max_age_ms=5000)
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
        producer = KafkaProducer(bootstrap_servers=self.bootstrap, linger_ms=20,
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

    def _consumer(self, *topics, group=None):
        return KafkaConsumer(*topics, bootstrap_servers=self.bootstrap, group_id=group,
                             enable_auto_commit=False, auto_offset_reset="earliest")

    def read(self, topic, start, count):
        consumer = self._consumer()
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

    def _admin(self):
        return KafkaAdminClient(bootstrap_servers=self.bootstrap)

    def create(self, name, partitions):
        client = self._admin()
        client.create_topics([NewTopic(name, partitions, 1)])
        client.close()

    def partition_count(self, name):
        client = self._admin()
        try:
            if name not in client.list_topics():
                return 0
            return len(client.describe_topics([name])[0]["partitions"])
        finally:
            client.close()

    def delete(self, name):
        client = self._admin()
        client.delete_topics([name])
        client.close()


if __name__ == "__main__":
    flows.main(Client)

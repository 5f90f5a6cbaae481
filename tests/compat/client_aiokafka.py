"""aiokafka: `python -m tests.compat.client_aiokafka BOOTSTRAP SCENARIO TOPIC`.

Owns: nothing.
Invariants: each call runs its own event loop, and each member one in its own thread.
"""

import asyncio
import ssl

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.abc import AbstractTokenProvider
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError

from tests.compat import flows


class Token(AbstractTokenProvider):
    """Provides bearer tokens to the library."""

    async def token(self) -> str:
        return flows.SECURITY["token"]


def security() -> dict:
    """Return the security settings that the driver requests."""
    given = flows.SECURITY
    if not given:
        return {}
    context = ssl.create_default_context(cafile=given["trusted"])
    if "certificate" in given:
        context.load_cert_chain(given["certificate"], given["key"])
    settings = {"security_protocol": "SASL_SSL" if "mechanism" in given else "SSL",
                "ssl_context": context}
    if "mechanism" in given:
        settings["sasl_mechanism"] = given["mechanism"]
    if "user" in given:
        settings |= {"sasl_plain_username": given["user"],
                     "sasl_plain_password": given["password"]}
    if "token" in given:
        settings["sasl_oauth_token_provider"] = Token()
    return settings


class Member(flows.Member):
    def work(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        consumer = AIOKafkaConsumer(self.topic, bootstrap_servers=self.bootstrap,
                                    group_id=self.group, auto_offset_reset="earliest",
                                    session_timeout_ms=6000, heartbeat_interval_ms=1000,
                                    group_instance_id=flows.INSTANCE)
        await consumer.start()
        try:
            while not self.ending.is_set():
                for messages in (await consumer.getmany(timeout_ms=200)).values():
                    self.keys += [message.key for message in messages]
                self.share = {one.partition for one in consumer.assignment()}
        finally:
            await consumer.stop()


class Client:
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")

    def __init__(self, bootstrap: str):
        self.bootstrap = bootstrap

    def produce(self, topic, rows, codec, partition=0):
        async def work():
            producer = AIOKafkaProducer(
                bootstrap_servers=self.bootstrap, enable_idempotence=True, linger_ms=20,
                **security(),
                compression_type=None if codec == "none" else codec)
            await producer.start()
            try:
                sent = [await producer.send(topic, value, key, partition, timestamp)
                        for key, value, timestamp in rows]
                await asyncio.wait_for(asyncio.gather(*sent), 30)
            finally:
                await producer.stop()

        asyncio.run(work())

    def _with_consumer(self, use, *topics, group=None, policy="earliest", **more):
        async def work():
            consumer = AIOKafkaConsumer(*topics, bootstrap_servers=self.bootstrap,
                                        group_id=group, enable_auto_commit=False,
                                        auto_offset_reset=policy, **security(), **more)
            await consumer.start()
            try:
                return await asyncio.wait_for(use(consumer), 40)
            finally:
                await consumer.stop()

        return asyncio.run(work())

    def read(self, topic, start, count, committed=False):
        async def use(consumer):
            where = TopicPartition(topic, 0)
            consumer.assign([where])
            consumer.seek(where, start)
            messages = [await consumer.getone() for _ in range(count)]
            return [(one.key, one.value, one.timestamp) for one in messages]

        isolation = "read_committed" if committed else "read_uncommitted"
        return self._with_consumer(use, isolation_level=isolation)

    async def _transactional(self, name):
        producer = AIOKafkaProducer(bootstrap_servers=self.bootstrap, transactional_id=name)
        await producer.start()
        return producer

    def move(self, topic, goal, group, count, is_committed):
        async def use(consumer):
            messages = [await consumer.getone() for _ in range(count)]
            producer = await self._transactional(f"{group}-id")
            try:
                await producer.begin_transaction()
                for one in messages:
                    await producer.send(goal, one.value, one.key, 0, one.timestamp)
                await producer.send_offsets_to_transaction(
                    {TopicPartition(topic, 0): messages[-1].offset + 1}, group)
                if is_committed:
                    await producer.commit_transaction()
                else:
                    await producer.flush()
                    await producer.abort_transaction()
            finally:
                await producer.stop()

        self._with_consumer(use, topic, group=group)

    def overtaken(self, topic, name):
        async def work():
            first = await self._transactional(name)
            await first.begin_transaction()
            await first.send_and_wait(topic, b"open", partition=0)
            second = await self._transactional(name)
            try:
                await first.commit_transaction()
            except KafkaError:
                return
            finally:
                await first.stop()
                await second.stop()
            raise AssertionError("a producer that was overtaken could commit")

        asyncio.run(work())

    def member(self, topic, group):
        return Member(self.bootstrap, topic, group)

    def take(self, topic, group, count):
        async def use(consumer):
            messages = [await consumer.getone() for _ in range(count)]
            last = messages[-1]
            await consumer.commit({TopicPartition(topic, last.partition): last.offset + 1})
            return [one.key for one in messages]

        return self._with_consumer(use, topic, group=group)

    def first(self, topic, group, policy, nudge=None):
        async def use(consumer):
            while True:
                for messages in (await consumer.getmany(timeout_ms=500)).values():
                    return messages[0].offset
                if nudge is not None:
                    await asyncio.to_thread(nudge)

        return self._with_consumer(use, topic, group=group, policy=policy)

    def lost(self, topic, start):
        async def use(consumer):
            where = TopicPartition(topic, 0)
            consumer.assign([where])
            consumer.seek(where, start)
            return (await consumer.getone()).offset

        return self._with_consumer(use)

    def offset_at(self, topic, timestamp):
        async def use(consumer):
            where = TopicPartition(topic, 0)
            return (await consumer.offsets_for_times({where: timestamp}))[where].offset

        return self._with_consumer(use)

    def _with_admin(self, use):
        async def work():
            client = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
            await client.start()
            try:
                return await asyncio.wait_for(use(client), 30)
            finally:
                await client.close()

        return asyncio.run(work())

    def _call(self, name, *arguments):
        return self._with_admin(lambda client: getattr(client, name)(*arguments))

    def create(self, name, partitions):
        answer = self._call("create_topics", [NewTopic(name, partitions, 1)])
        assert all(row[1] == 0 for row in answer.topic_errors), answer

    def grow(self, name, total):
        answer = self._call("create_partitions", {name: NewPartitions(total)})
        assert all(row[1] == 0 for row in answer.topic_errors), answer

    def partition_count(self, name):
        async def use(client):
            if name not in await client.list_topics():
                return 0
            return len((await client.describe_topics([name]))[0]["partitions"])

        return self._with_admin(use)

    def delete(self, name):
        answer = self._call("delete_topics", [name])
        assert all(row[1] == 0 for row in answer.topic_error_codes), answer

    def set_config(self, topic, key, value):
        answer = self._call("alter_configs", [
            ConfigResource(ConfigResourceType.TOPIC, topic, configs={key: value})])
        assert all(row[0] == 0 for one in answer for row in one.resources), answer

    def _config(self, kind, name, key):
        answer = self._call("describe_configs", [ConfigResource(kind, name)])
        return next(entry[1] for entry in answer[0].resources[0][4] if entry[0] == key)

    def config(self, topic, key):
        return self._config(ConfigResourceType.TOPIC, topic, key)

    def broker_config(self, key):
        return self._config(ConfigResourceType.BROKER, "1", key)

    def groups(self):
        return [row[0] for row in self._call("list_consumer_groups")]

    def group_state(self, group):
        return self._call("describe_consumer_groups", [group])[0].groups[0][2]

    def committed(self, topic, group):
        return self._call("list_consumer_group_offsets", group)[TopicPartition(topic, 0)].offset

    def trim(self, topic, offset):
        self._call("delete_records", {TopicPartition(topic, 0): RecordsToDelete(offset)})


if __name__ == "__main__":
    flows.main(Client)

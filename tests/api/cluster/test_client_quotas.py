"""Client quotas through the handlers: changed, described, and applied to topic changes."""

import asyncio
import threading

import pytest

from pylog._native.server.reactor import RequestContext
from pylog.api.cluster import client_quotas
from pylog.config import Settings
from pylog.config.client_quotas import ClientQuotas, packed
from pylog.protocol import api, messages
from pylog.protocol.errors import ErrorCode
from tests.api.support import with_broker

ALTER, DESCRIBE = messages.AlterClientQuotasRequest, messages.DescribeClientQuotasRequest
EXACT, DEFAULT, SPECIFIED = range(3)


async def _set(broker, parts: dict, validate_only=False, **values):
    entry = ALTER.EntryData(
        entity=[ALTER.EntityData(entity_type=kind, entity_name=name)
                for kind, name in parts.items()],
        ops=[ALTER.OpData(key=key, value=0.0 if value is None else value, remove=value is None)
             for key, value in values.items()])
    answer = await broker.ask(
        api.ALTER_CLIENT_QUOTAS, 1, ALTER(validate_only=validate_only, entries=[entry]))
    return answer.entries[0]


async def _shown(broker, *components, strict=False):
    answer = await broker.ask(api.DESCRIBE_CLIENT_QUOTAS, 1, DESCRIBE(strict=strict, components=[
        DESCRIBE.ComponentData(entity_type=kind, match_type=how, match=match)
        for kind, how, match in components]))
    assert answer.error_code == 0, answer
    return {tuple((part.entity_type, part.entity_name) for part in entry.entity):
            {value.key: value.value for value in entry.values} for entry in answer.entries}


def test_altered_quotas_are_described_and_in_force():
    async def scenario(broker):
        done = await _set(broker, {"user": None, "client-id": "c"}, producer_byte_rate=5.0)
        assert (done.error_code, done.error_message) == (0, None)
        key = (("client-id", "c"), ("user", None))
        assert await _shown(broker) == {key: {"producer_byte_rate": 5.0}}
        broker.quotas.install(0, b"c")
        assert broker.quotas.native.charge(0, b"c", 0, 51, 0) > 0
        await _set(broker, {"user": None, "client-id": "c"}, producer_byte_rate=None)
        assert await _shown(broker) == {}
    with_broker(scenario)


def test_a_dry_run_changes_nothing():
    async def scenario(broker):
        assert (await _set(broker, {"user": "u"}, True, producer_byte_rate=5.0)).error_code == 0
        assert await _shown(broker) == {}
        assert (await _set(broker, {"user": "u"}, True, nonsense=5.0)).error_code == 42
    with_broker(scenario)


def test_filters_choose_by_name_by_default_and_by_kind():
    async def scenario(broker):
        for parts in ({"user": "u"}, {"user": None}, {"user": "u", "client-id": "c"},
                      {"client-id": "c"}):
            assert (await _set(broker, parts, producer_byte_rate=5.0)).error_code == 0

        async def found(*components, strict=False):
            return len(await _shown(broker, *components, strict=strict))
        assert await found() == 4 and await found(strict=True) == 0
        assert await found(("user", EXACT, "u")) == 2
        assert await found(("user", EXACT, "u"), strict=True) == 1
        assert await found(("user", DEFAULT, None)) == 1
        assert await found(("user", SPECIFIED, None)) == 3
        assert await found(("user", SPECIFIED, None), ("client-id", EXACT, "c")) == 1
    with_broker(scenario)


def test_invalid_quota_filter_is_rejected():
    async def scenario(broker):
        answer = await broker.ask(api.DESCRIBE_CLIENT_QUOTAS, 1, DESCRIBE(components=[
            DESCRIBE.ComponentData(entity_type="shoe", match_type=EXACT, match="x")]))
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION and answer.entries is None
        assert answer.error_message == "Unsupported entity type shoe"
    with_broker(scenario)


def test_host_names_of_addresses_are_resolved():
    async def scenario(broker):
        for name, error in (("127.0.0.1", 0), ("::1", 0), ("localhost", 0), ("x" * 300, 42),
                            ("no.such.host.invalid", 42)):
            done = await _set(broker, {"ip": name}, connection_creation_rate=7.0)
            assert done.error_code == error, name
    with_broker(scenario)


def test_hanging_resolver_delays_neither_addresses_nor_the_event_loop(
        monkeypatch):
    answered, asked = threading.Event(), threading.Event()

    def resolve(name, flags=0):
        if flags:
            return "10.0.0.1" if name == "10.0.0.1" else None
        asked.set()
        answered.wait(30)

    monkeypatch.setattr(client_quotas, "_address", resolve)
    monkeypatch.setattr(client_quotas, "_resolver", client_quotas._Resolver())
    entries = [ALTER.EntryData(entity=[ALTER.EntityData(entity_type="ip", entity_name=name)])
               for name in ("10.0.0.1", "slow.example", "slower.example")]

    async def ask():
        return await client_quotas._hosts(entries, seconds=0.05)

    # asyncio.run() waits for the loop's own threads: it returns while the resolver is still
    # blocked.
    assert asyncio.run(ask()) == {"10.0.0.1": "10.0.0.1"}
    assert asked.is_set() and not answered.is_set()
    answered.set()


NEW = messages.CreateTopicsRequest


def creation(*rows):
    return NEW(topics=[NEW.CreatableTopic(name=name, num_partitions=count, replication_factor=1)
                       for name, count in rows])


@pytest.mark.parametrize("version", [5, 6])
def test_topics_beyond_the_mutation_quota_are_rejected_since_version_6(version):
    async def scenario(broker):
        await _set(broker, {"client-id": "c"}, controller_mutation_rate=1.0)
        answer = await broker.ask(
            api.CREATE_TOPICS, version, creation(("a", 8), ("b", 8), ("d", 1)))
        strict = version >= 6
        assert [topic.error_code for topic in answer.topics] == [
            0, 0, ErrorCode.THROTTLING_QUOTA_EXCEEDED if strict else 0]
        assert ("d" in broker.image.topics) != strict
    with_broker(scenario)


def test_deletions_and_partitions_come_out_of_the_same_account():
    async def scenario(broker):
        await broker.ask(api.CREATE_TOPICS, 7, creation(("a", 8), ("b", 8)))
        await _set(broker, {"client-id": "c"}, controller_mutation_rate=1.0)
        delete = messages.DeleteTopicsRequest
        answer = await broker.ask(api.DELETE_TOPICS, 6, delete(timeout_ms=1000, topics=[
            delete.DeleteTopicState(name="a"), delete.DeleteTopicState(name="b")]))
        assert [row.error_code for row in answer.responses] == [0, 0]
        await broker.ask(api.CREATE_TOPICS, 5, creation(("e", 1)))
        more = messages.CreatePartitionsRequest
        answer = await broker.ask(api.CREATE_PARTITIONS, 3, more(
            timeout_ms=1000,
            topics=[more.CreatePartitionsTopic(name="e", count=2, assignments=None)]))
        assert answer.results[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        broker.clock_ns += 7 * 1_000_000_000
        answer = await broker.ask(api.CREATE_PARTITIONS, 3, more(
            timeout_ms=1000,
            topics=[more.CreatePartitionsTopic(name="e", count=2, assignments=None)]))
        assert answer.results[0].error_code == 0
    with_broker(scenario)


def test_a_topic_that_the_quota_does_not_allow_yet_is_unknown_to_metadata():
    async def scenario(broker):
        await _set(broker, {"client-id": "c"}, controller_mutation_rate=0.1)
        ask = messages.MetadataRequest
        codes = []
        for name in ("a", "b", "d"):
            answer = await broker.ask(api.METADATA, 12, ask(
                allow_auto_topic_creation=True, topics=[ask.MetadataRequestTopic(name=name)]))
            codes.append(answer.topics[0].error_code)
        assert codes == [0, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    with_broker(scenario)


def test_chunked_request_returns_its_longest_throttle_time():
    async def scenario(broker):
        await _set(broker, {"client-id": "c"}, controller_mutation_rate=1.0)
        context = RequestContext(
            token=1, api_key=api.CREATE_TOPICS, api_version=5, client_id="c")
        handle = broker.handlers()[api.CREATE_TOPICS]
        await handle(context, creation(("a", 30)))
        longest = context.throttle_ms
        broker.clock_ns += 5_000_000_000
        await handle(context, creation(("a", 30)))  # The topic exists: nothing is charged.
        assert longest > 0 and context.throttle_ms == longest
    with_broker(scenario)


def test_a_resolver_that_does_not_answer_holds_no_quotas_up(monkeypatch):
    going_on = threading.Event()

    def slow(name, flags=0):
        assert going_on.wait(30)
        return "127.0.0.1"
    monkeypatch.setattr(client_quotas, "_address", slow)

    async def scenario():
        limits = ClientQuotas(Settings({}), lambda: 0)
        limits.take({(("ip", "a.host"),): {"connection_creation_rate": 0.01}})
        client_quotas.resolve_later(limits)
        await asyncio.sleep(0)
        assert limits.unresolved() == ["a.host"]
        going_on.set()
        async with asyncio.timeout(30):
            while limits.unresolved():
                await asyncio.sleep(0.005)
        assert limits.native.connection(packed("127.0.0.1"), 0) > 0
    asyncio.run(scenario())

"""Client quotas in force: a client gets its rate, and other clients are not affected."""

import threading
import time

import pytest

from tests.fixtures.brokers import Brokerd
from tests.wire import raw
from tests.wire.messages import ask, decode, encode
from tests.wire.raw import Connection
from tests.wire.talk import append, create_topic, unique

pytestmark = pytest.mark.timeout(120)
DESCRIBE, ALTER = 48, 49
MB = 1 << 20


class Client(Connection):
    """One connection under one client id. `told_ms`: the throttle times of its responses."""

    def __init__(self, port: int, client_id: str, wait_s: float = 60.0):
        super().__init__(port, wait_s)
        self.client_id = client_id.encode()
        self.told_ms = []

    def ask(self, key: int, version: int, **fields) -> dict:
        answer = decode(key, version, self.call(key, version, encode(key, version, **fields),
                                                client_id=self.client_id))
        self.told_ms.append(answer["throttle_time"])
        return answer

    def produce(self, topic: str, records: bytes, acks: int = 1) -> dict:
        body = raw.produce_body(9, topic, [(0, records)], acks=acks)
        answer = decode(0, 9, self.call(0, 9, body, client_id=self.client_id))
        self.told_ms.append(answer["throttle_time"])
        return answer["responses"][0]["partition_responses"][0]

    def fetch(self, topic: str, offset: int, **options) -> tuple[dict, list]:
        body = raw.fetch_body(12, [(topic, [(0, offset, 1 << 26, -1)])], **options)
        answer = decode(1, 12, self.call(1, 12, body, client_id=self.client_id))
        self.told_ms.append(answer["throttle_time"])
        return answer, [cell for row in answer["responses"] for cell in row["partitions"]]


def limit(port: int, parts: dict, **values) -> None:
    """Set quotas of an entity; None removes."""
    with Connection(port) as connection:
        answer = ask(connection, ALTER, 1, validate_only=False, entries=[{
            "entity": [{"entity_type": kind, "entity_name": name} for kind, name in parts.items()],
            "ops": [{"key": key, "value": float(value or 0), "remove": value is None}
                    for key, value in values.items()]}])
    assert answer["entries"][0]["error_code"] == 0, answer


@pytest.fixture(scope="module")
def brokerd(tmp_path_factory):
    """One reactor, so that all clients share it."""
    broker = Brokerd(tmp_path_factory.mktemp("quotas"), {"num.network.threads": 1}).start()
    yield broker
    broker.stop()


@pytest.fixture
def limited(brokerd):
    """Create a client id with specific quotas: limited(**values) -> client id."""
    made = []

    def make(**values) -> str:
        made.append((unique("client"), values))
        limit(brokerd.port, {"client-id": made[-1][0]}, **values)
        return made[-1][0]

    yield make
    for client_id, values in made:
        limit(brokerd.port, {"client-id": client_id}, **dict.fromkeys(values))


def _batch(size: int) -> bytes:
    return raw.batch([raw.record(value=bytes(size))])


class Spectator(threading.Thread):
    """Measures another client on the same reactors: its longest wait for a response."""

    def __init__(self, port: int, topic: str):
        super().__init__()
        self.port, self.topic, self.records = port, topic, _batch(100)
        self.done, self.worst_s, self.count = threading.Event(), 0.0, 0

    def run(self) -> None:
        with Client(self.port, unique("spectator")) as client:
            while not self.done.is_set():
                start_s = time.monotonic()
                client.produce(self.topic, self.records)
                self.worst_s = max(self.worst_s, time.monotonic() - start_s)
                self.count += 1
                time.sleep(0.005)
            assert not any(client.told_ms)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *exception) -> None:
        self.done.set()
        self.join()


def test_producer_quota_limits_one_producer_and_not_others(brokerd, limited):
    """1 MB/s: ten windows' worth at once, then the rate that throttling allows."""
    topic, others = unique("produced"), unique("others")
    create_topic(brokerd.port, topic), create_topic(brokerd.port, others)
    records, sent = _batch(MB // 2), 0
    start_s = time.monotonic()
    with Client(brokerd.port, limited(producer_byte_rate=MB)) as client, \
            Spectator(brokerd.port, others) as spectator:
        while time.monotonic() - start_s < 5:
            assert client.produce(topic, records)["error_code"] == 0
            sent += len(records)
    took_s = time.monotonic() - start_s
    # Measured by bytes and by throttle times: at any end the rate over ten seconds equals the
    # quota.
    assert 10 * MB <= sent <= (10 + took_s) * MB + len(records), (sent, took_s)
    assert sum(client.told_ms[:-1]) / 1000 <= took_s + 0.2
    assert max(client.told_ms) > 0
    assert spectator.worst_s < 1 and spectator.count > 100, spectator.worst_s


def test_consumer_quota_limits_one_consumer_and_not_others(brokerd, limited):
    topic, others = unique("fetched"), unique("others")
    create_topic(brokerd.port, topic), create_topic(brokerd.port, others)
    records = _batch(MB // 2)
    for _ in range(40):
        append(brokerd.port, topic, records)
    offset = taken = 0
    start_s = time.monotonic()
    with Client(brokerd.port, limited(consumer_byte_rate=MB)) as client, \
            Spectator(brokerd.port, others) as spectator:
        while time.monotonic() - start_s < 5 and offset < 40:
            answer, cells = client.fetch(topic, offset, bytes_max=MB)
            if answer["throttle_time"]:
                assert cells == [], "a throttled answer is empty"
                continue
            taken += len(cells[0]["records"])
            offset += len(cells[0]["records"]) // len(records)
    took_s = time.monotonic() - start_s
    assert 9 * MB <= taken <= (10 + took_s) * MB + 2 * len(records), (taken, took_s)
    assert max(client.told_ms) > 0
    assert spectator.worst_s < 1 and spectator.count > 100, spectator.worst_s


def test_muted_connection_waits_for_the_announced_throttle_time(brokerd, limited):
    topic = unique("muted")
    create_topic(brokerd.port, topic)
    with Client(brokerd.port, limited(producer_byte_rate=10_000)) as client:
        client.produce(topic, _batch(105_000))
        told_ms, start_s = client.told_ms[-1], time.monotonic()
        assert 100 < told_ms < 3000, told_ms
        client.ask(raw.METADATA, 12, topics=[], allow_auto_topic_creation=False)
        took_s = time.monotonic() - start_s
        assert told_ms / 1000 - 0.02 <= took_s <= told_ms / 1000 + 2, (told_ms, took_s)


def test_a_silent_producer_is_throttled_too(brokerd, limited):
    topic = unique("silent")
    create_topic(brokerd.port, topic)
    with Client(brokerd.port, limited(producer_byte_rate=10_000)) as client:
        client.send(raw.frame(raw.header(0, 9, 1, client.client_id)
                              + raw.produce_body(9, topic, [(0, _batch(105_000))], acks=0)))
        start_s = time.monotonic()
        client.ask(raw.METADATA, 12, topics=[], allow_auto_topic_creation=False)
        assert 0.1 < time.monotonic() - start_s < 5


def test_clients_of_a_user_share_its_quota_across_reactors(tmp_path):
    broker = Brokerd(tmp_path, {"num.network.threads": 2}).start()
    try:
        topic = unique("shared")
        create_topic(broker.port, topic)
        limit(broker.port, {"user": "ANONYMOUS"}, producer_byte_rate=100_000)
        with Client(broker.port, "a") as one, Client(broker.port, "b") as other, \
                Client(broker.port, "c") as third:
            for client in (one, other):
                client.produce(topic, _batch(495_000))
                assert client.told_ms == [0]
            third.produce(topic, _batch(30_000))
            assert third.told_ms[0] > 100
    finally:
        broker.stop()


def test_fetch_session_continues_after_a_throttled_response(brokerd, limited):
    topic = unique("session")
    create_topic(brokerd.port, topic)
    for _ in range(3):
        append(brokerd.port, topic, _batch(6_000))
    with Client(brokerd.port, limited(consumer_byte_rate=1_000)) as client:
        options = {"bytes_max": 7_000, "wait_ms_max": 0}
        answer, cells = client.fetch(topic, 0, session_epoch=0, **options)
        session, = {answer["session_id"]} - {0}
        assert len(cells) == 1
        answer, cells = client.fetch(topic, 1, session_id=session, session_epoch=1, **options)
        assert (answer["error_code"], answer["session_id"], cells) == (0, session, [])
        assert answer["throttle_time"] > 0
        limit(brokerd.port, {"client-id": client.client_id.decode()}, consumer_byte_rate=10_000)
        answer, cells = client.fetch(topic, 1, session_id=session, session_epoch=2, **options)
        assert (answer["error_code"], answer["throttle_time"]) == (0, 0)
        assert len(cells[0]["records"]) > 6_000


def test_a_throttled_first_fetch_begins_no_session(brokerd, limited):
    topic = unique("no-session")
    create_topic(brokerd.port, topic)
    for _ in range(2):
        append(brokerd.port, topic, _batch(7_000))
    with Client(brokerd.port, limited(consumer_byte_rate=1_000)) as client:
        client.fetch(topic, 0, bytes_max=8_000)
        answer, cells = client.fetch(topic, 0, session_epoch=0, bytes_max=8_000)
        assert (answer["error_code"], answer["session_id"], cells) == (0, 0, [])
        assert answer["throttle_time"] > 0


def test_a_batch_beyond_every_window_still_arrives(brokerd, limited):
    """In Kafka the consumer waits forever (docs/reference/differences.md)."""
    topic = unique("large")
    create_topic(brokerd.port, topic)
    append(brokerd.port, topic, _batch(200_000))
    with Client(brokerd.port, limited(consumer_byte_rate=1_000)) as client:
        _, cells = client.fetch(topic, 0)
        assert len(cells[0]["records"]) > 200_000


def test_time_on_the_threads_is_limited_for_every_kind_of_request(brokerd, limited):
    topic = unique("timed")
    create_topic(brokerd.port, topic)
    client_id = limited(request_percentage=0.00001)
    with Client(brokerd.port, client_id) as client:
        for _ in range(4):
            client.ask(raw.METADATA, 12, topics=None, allow_auto_topic_creation=False)
        assert max(client.told_ms) > 0 and max(client.told_ms) <= 1000
        client.told_ms.clear()
        client.produce(topic, _batch(10))
        assert 0 < client.told_ms[-1] <= 1000
        answer, cells = client.fetch(topic, 0)
        assert 0 < client.told_ms[-1] <= 1000 and cells == []
    with Client(brokerd.port, unique("free")) as client:
        client.ask(raw.METADATA, 12, topics=None, allow_auto_topic_creation=False)
        assert client.told_ms == [0]


def test_quota_changes_take_effect_immediately(brokerd, limited):
    topic = unique("altered")
    create_topic(brokerd.port, topic)
    client_id = unique("changing")
    with Client(brokerd.port, client_id) as client:
        client.produce(topic, _batch(50_000))
        limit(brokerd.port, {"client-id": client_id}, producer_byte_rate=1_000)
        client.produce(topic, _batch(11_000))
        assert client.told_ms[-1] > 0
        limit(brokerd.port, {"client-id": client_id}, producer_byte_rate=None)
        client.produce(topic, _batch(50_000))
        assert client.told_ms[-1] == 0


def test_quotas_survive_a_kill_and_are_in_force_afterwards(tmp_path):
    broker = Brokerd(tmp_path).start()
    try:
        topic = unique("kept")
        create_topic(broker.port, topic)
        limit(broker.port, {"user": None, "client-id": "kept"}, producer_byte_rate=1_000)
        broker.kill()
        broker.start()
        with Client(broker.port, "kept") as client:
            shown = ask(client, DESCRIBE, 1, components=[], strict=False)
            assert [value["value"] for value in shown["entries"][0]["values"]] == [1_000.0]
            client.produce(topic, _batch(11_000))
            assert client.told_ms[-1] > 0
    finally:
        broker.stop()


def test_connection_rate_per_address_is_limited(brokerd):
    limit(brokerd.port, {"ip": "127.0.0.1"}, connection_creation_rate=1)
    try:
        began = []
        for _ in range(14):
            connection = Connection(brokerd.port, 3)
            try:
                ask(connection, raw.API_VERSIONS, 0)
                began.append(connection)
            except raw.Closed:
                connection.close()
        assert 9 <= len(began) <= 13, len(began)
        for connection in began:
            ask(connection, raw.API_VERSIONS, 0)
            connection.close()
    finally:
        # Retry until the connection that removes the limit is accepted.
        for _ in range(60):
            try:
                limit(brokerd.port, {"ip": "127.0.0.1"}, connection_creation_rate=None)
                break
            except raw.Closed:
                time.sleep(0.2)

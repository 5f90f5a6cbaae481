"""One broker's side of a differential test: the same steps on each side, and comparable responses.

Values in which two correct brokers may differ are normalized only here: unique names of a test,
ids, ports, session and producer ids, throttle times, messages, and the order of topics and
partitions.
"""

import time
import uuid
from concurrent.futures import ThreadPoolExecutor

from tests.wire import raw
from tests.wire.messages import ask
from tests.wire.raw import Closed, Connection
from tests.wire.talk import append, create_topic, unique

DROPPED = {"throttle_time", "cluster_id", "port", "host"}
TEXTS = {"error_message", "batch_index_error_message"}
ORDERED_BY = ("name", "topic", "topic_id", "partition_index", "index", "partition", "node_id",
              "broker_id", "api_key")


# Kafka's broker applies a change some time after its controller has confirmed it.
SETTLE_S = (0.05, 1.0)


class Side:
    """Requests to one broker; `answers` collects (label, comparable response).

    settle_s: the pause after a change of Kafka's metadata.
    """

    def __init__(self, broker, settle_s: float = SETTLE_S[-1]):
        self.broker = broker
        self.settle_s = settle_s
        self.port = broker.port
        self.connection = Connection(broker.port, wait_s=20)
        self.answers: list[tuple[str, object]] = []
        self.stems: dict[str, str] = {}
        self.ids: dict[str, str] = {}
        self.numbers: dict[tuple[str, int], str] = {}

    def name(self, stem: str) -> str:
        """Return a new topic name, displayed as `stem`."""
        name = unique(stem)
        self.stems[name] = stem
        return name

    def topic(self, stem: str, partitions: int = 1, **configs) -> str:
        """Create a topic displayed as `stem`; return its name on this side."""
        name = self.name(stem)
        self.ids[create_topic(self.port, name, partitions, **configs)] = f"id of {stem}"
        return name

    def id_of(self, name: str) -> str:
        """Return the id in hex of a topic created by topic()."""
        wanted = f"id of {self.stems[name]}"
        return next(identity for identity, shown in self.ids.items() if shown == wanted)

    def append(self, topic: str, records: bytes, partition: int = 0) -> int:
        return append(self.port, topic, records, partition)

    def ask(self, label: str, key: int, version: int, /, **fields) -> dict | None:
        """Send, store the comparable response under `label`, return the original one (None:
        closed).
        """
        try:
            answer = ask(self.connection, key, version, **fields)
        except Closed:
            self.connection.close()
            self.connection = Connection(self.port, wait_s=20)
            self.note(label, "closed")
            return None
        self.note(label, answer)
        return answer

    def note(self, label: str, value) -> None:
        self.answers.append((label, self.comparable(value)))

    def settle(self) -> None:
        """Wait until the broker has applied the last change."""
        if self.broker.name == "kafka":
            time.sleep(self.settle_s)

    def timed(self, label: str, key: int, version: int, *, after_s: float = 0.0, then=None,
              bounds_s: tuple[float, float], **fields) -> dict:
        """Like ask(), with `then` run on another thread after `after_s`; the duration is stored
        too.
        """
        start_s = time.monotonic()
        with ThreadPoolExecutor(1) as pool:
            if then is not None:
                pool.submit(lambda: (time.sleep(after_s), then()))
            answer = ask(self.connection, key, version, **fields)
            took_s = time.monotonic() - start_s
        self.note(label, answer)
        low_s, high_s = bounds_s
        state = "early" if took_s < low_s else "late" if took_s > high_s else "in time"
        self.note(f"{label}: time", state)
        return answer

    def comparable(self, value, name: str = ""):
        if isinstance(value, dict):
            # docs/reference/differences.md: eligible leader replicas make this a dynamic default.
            dropped = DROPPED | ({"config_source"} if value.get("name") == "min.insync.replicas"
                                 else set())
            return {key: self.comparable(part, key) for key, part in value.items()
                    if key not in dropped}
        if name == "records" and isinstance(value, bytes):
            return whole_batches(value)
        if isinstance(value, list):
            rows = [self.comparable(row, name) for row in value]
            if rows and isinstance(rows[0], dict):
                rows.sort(key=lambda row: [str(row.get(key)) for key in ORDERED_BY])
            return rows
        if name in TEXTS:
            return value if value is None else "text"
        # The first producer of a broker has the id 0; session 0 means no session.
        if (name == "session_id" and value > 0) or (name == "producer_id" and value >= 0):
            known = sum(1 for kind, _ in self.numbers if kind == name)
            return self.numbers.setdefault((name, value), f"{name} {known + 1}")
        if isinstance(value, str):
            for true, stem in self.stems.items():
                value = value.replace(true, stem)
            return self.ids.get(value, value)
        return value

    def close(self) -> None:
        self.connection.close()


def once(value):
    """Return a response without duplicate rows."""
    if isinstance(value, dict):
        return {key: once(part) for key, part in value.items()}
    if isinstance(value, list):
        rows = [once(row) for row in value]
        return [row for number, row in enumerate(rows) if row not in rows[:number]]
    return value


def whole_batches(records: bytes) -> bytes:
    """Remove a truncated batch at the end: only Kafka has one (docs/reference/differences.md)."""
    end = 0
    while end + 12 <= len(records):
        size = 12 + int.from_bytes(records[end + 8:end + 12], "big")
        if end + size > len(records):
            break
        end += size
    return records[:end]


def differences(left, right, path: str = "") -> list[str]:
    """Return the differences of two comparable values, one line each."""
    if isinstance(left, dict) and isinstance(right, dict):
        found = []
        for key in sorted(set(left) | set(right)):
            found += differences(left.get(key, "<none>"), right.get(key, "<none>"),
                                 f"{path}.{key}")
        return found
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        return [line for number, (one, other) in enumerate(zip(left, right))
                for line in differences(one, other, f"{path}[{number}]")]
    if isinstance(left, bytes) and isinstance(right, bytes) and left != right:
        at = next((i for i, (a, b) in enumerate(zip(left, right)) if a != b),
                  min(len(left), len(right)))
        return [f"{path}: {len(left)} and {len(right)} bytes, differ at {at}: "
                f"{left[at:at + 16].hex()} != {right[at:at + 16].hex()}"]
    return [] if left == right else [f"{path}: kafka {left!r:.300} != ours {right!r:.300}"]


def compare(reference, subject, scenario, *arguments) -> None:
    """Run `scenario(side, *arguments)` on both brokers and require the same responses.

    If they differ, repeat it once with a long pause after each change.
    """
    for settle_s in SETTLE_S:
        found = _differences(reference, subject, settle_s, scenario, arguments)
        if not found:
            return
    raise AssertionError("\n" + "\n".join(found[:30]) + f"\n{len(found)} differences")


def _differences(reference, subject, settle_s: float, scenario, arguments) -> list[str]:
    collected = []
    for broker in (reference, subject):
        side = Side(broker, settle_s)
        try:
            scenario(side, *arguments)
        finally:
            side.close()
        collected.append(side.answers)
    kafka, ours = collected
    assert [label for label, _ in kafka] == [label for label, _ in ours]
    found = []
    for (label, left), (_, right) in zip(kafka, ours):
        found += differences(left, right, label)
    return found


def produce(side: Side, label: str, version: int, rows, *, acks: int = -1) -> dict | None:
    """Produce to [(topic name or id in hex, [(partition, records)])]; by id from version 13."""
    topics = []
    for topic, partitions in rows:
        cells = [{"index": index, "records": records} for index, records in partitions]
        where = {"topic_id": uuid.UUID(topic)} if version >= 13 else {"name": topic}
        topics.append({**where, "partition_data": cells})
    return side.ask(label, raw.PRODUCE, version, acks=acks, timeout=5000,
                    transactional_id=None, topic_data=topics)


def fetch_fields(side: Side, version: int, rows, *, wait_ms_max: int = 0, bytes_min: int = 0,
                 bytes_max: int = 1 << 26, isolation: int = 0, session_id: int = 0,
                 session_epoch: int = -1, forgotten=()) -> dict:
    """Return the fields of a Fetch of [(topic name, [{"partition": 0, "fetch_offset": 0, ...}])].
    """
    def where(topic: str) -> dict:
        if version < 13:
            return {"topic": topic}
        known = topic in side.stems and f"id of {side.stems[topic]}" in side.ids.values()
        return {"topic_id": uuid.UUID(side.id_of(topic) if known else topic)}

    topics = [{**where(topic), "partitions": [
        {"current_leader_epoch": -1, "last_fetched_epoch": -1, "log_start_offset": -1,
         "partition_max_bytes": 1 << 20, "fetch_offset": 0, **cell} for cell in cells
    ]} for topic, cells in rows]
    return {
        "max_wait": wait_ms_max, "min_bytes": bytes_min, "max_bytes": bytes_max,
        "isolation_level": isolation, "topics": topics, "session_id": session_id,
        "session_epoch": session_epoch, **({"replica_id": -1} if version < 15 else {}),
        "forgotten_topics_data": [
            {**where(topic), "partitions": partitions} for topic, partitions in forgotten],
    }


def fetch(side: Side, label: str, version: int, rows, **options) -> dict | None:
    return side.ask(label, raw.FETCH, version, **fetch_fields(side, version, rows, **options))

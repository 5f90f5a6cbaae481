"""kill -9 while topics are created and deleted: exactly the acknowledged changes survive."""

import threading
import time

from tests.fixtures.brokers import Brokerd
from tests.wire import raw
from tests.wire.messages import ask
from tests.wire.raw import Closed, Connection
from tests.wire.talk import unique

ROUNDS = 4


class _Churn:
    """Create topics and delete every third, and record the acknowledged and the unknown results."""

    def __init__(self, broker: Brokerd):
        self.broker = broker
        self.there: dict[str, str] = {}
        self.gone: set[str] = set()
        self.unknown: set[str] = set()
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def wait_answered(self, wait_s: float = 60.0) -> None:
        """Wait until the first topic exists."""
        end_s = time.monotonic() + wait_s
        while not self.there and not self.gone:
            assert self.thread.is_alive() and time.monotonic() < end_s
            time.sleep(0.01)

    def stop(self) -> None:
        self.stopping.set()
        self.thread.join(30)
        assert not self.thread.is_alive()

    def _run(self) -> None:
        while not self.stopping.is_set():
            try:
                with Connection(self.broker.port) as connection:
                    while not self.stopping.is_set():
                        self._step(connection)
            except (Closed, OSError):
                time.sleep(0.01)

    def _step(self, connection: Connection) -> None:
        name = unique("churned")
        self.unknown.add(name)
        answer = ask(connection, raw.CREATE_TOPICS, 7, timeout=5000, topics=[
            {"name": name, "num_partitions": 2, "replication_factor": 1}])["topics"][0]
        assert answer["error_code"] == 0, answer
        self.unknown.discard(name)
        self.there[name] = answer["topic_id"]
        if len(self.there) % 3 == 0:
            victim = next(iter(self.there))
            del self.there[victim]
            self.unknown.add(victim)
            answer = ask(connection, raw.DELETE_TOPICS, 6, timeout=5000,
                         topics=[{"name": victim, "topic_id": None}])["responses"][0]
            assert answer["error_code"] == 0, answer
            self.unknown.discard(victim)
            self.gone.add(victim)


def test_acknowledged_topics_survive_kill_9_and_deleted_ones_do_not(ram, random_source):
    with Brokerd(ram) as broker:
        for _ in range(ROUNDS):
            churn = _Churn(broker)
            churn.wait_answered()
            time.sleep(random_source.uniform(0.1, 0.5))
            broker.kill()
            churn.stop()
            broker.start()
            with Connection(broker.port) as connection:
                rows = ask(connection, raw.METADATA, 12, topics=None,
                           allow_auto_topic_creation=False)["topics"]
            found = {row["name"]: row for row in rows}
            assert len(churn.there) + len(churn.gone) > 0
            for name, identity in churn.there.items():
                assert found[name]["topic_id"] == identity
                assert [cell["error_code"] for cell in found[name]["partitions"]] == [0, 0]
            assert not churn.gone & set(found)
            for row in rows:
                assert len(row["partitions"]) == 2, "half of a topic"
        assert broker.alarms() == []

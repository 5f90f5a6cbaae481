"""Our controller compared with Kafka's: same requests, same responses, same records."""

import random

import pytest

from tests.cluster import oracle
from tests.cluster.oracle import (
    all_configs, configs, creation, credentials, deletion, directories, directory, election,
    features, growth, heartbeat, isr_change, producer_ids, quotas, reassignment, reassignments,
    registration, rules, rules_described, rule_deletions, unregistration,
)

# Slow because of Kafka: on a busy machine, sessions and reassignments time out in its controller,
# and the records differ.
pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300)]

BROKERS = (1, 2, 3, 4, 5)
TOPIC, BROKER, GROUP, METRICS = 2, 4, 32, 16
SET, DELETE, APPEND, SUBTRACT = range(4)
PREFERRED, UNCLEAN = 0, 1
UPGRADE, SAFE, UNSAFE = 1, 2, 3
# Versions of the requests.
REGISTER, BEAT, ALTER_ISR, CREATE, DROP, GROW, ELECT = 4, 2, 3, 7, 6, 3, 2
MOVE, CONFIGS, ALL_CONFIGS, QUOTAS, SCRAM, FEATURES = 1, 1, 2, 1, 0, 1
ACLS = 3


@pytest.fixture
def controllers(tmp_path):
    """Kafka's controller and ours, new for each test: old state would cause differences."""
    nodes = oracle.controllers(tmp_path)
    try:
        for node in nodes:
            node.start()
        yield nodes
        assert nodes[1].alarms() == []
    finally:
        for node in nodes:
            node.kill()


async def join(both, broker_id, incarnation=1, **options):
    await both.ask(registration(broker_id, incarnation, **options), REGISTER)
    await both.ask(heartbeat(broker_id), BEAT)


async def joined(both, count=5):
    """Register and unfence all brokers, and read the records up to the log's end."""
    for side in both.sides:
        await side.records()
    for id_ in BROKERS[:count]:
        number = len(both.image.topics) % 250 + 1
        if id_ in both.image.brokers:
            # A new process can register only after the session of the previous one.
            await both.ask(unregistration(id_), 0)
        await join(both, id_, number, rack=f"rack-{id_ % 2}", directories=2)


def test_controllers_start_with_the_same_records(controllers):
    async def scenario(both):
        theirs, ours = [await side.records() for side in both.sides]
        levels = [record["name"] for kind, record in ours if kind == "FeatureLevelRecord"]
        # Kafka has features that we do not have.
        assert sorted(ours, key=repr) == sorted((
            (kind, record) for kind, record in theirs
            if kind != "FeatureLevelRecord" or record["name"] in levels), key=repr)

    oracle.compared(controllers, scenario)


def test_registrations_and_heartbeats_match_kafka(controllers):
    async def scenario(both):
        for side in both.sides:
            await side.records()
        await both.ask(heartbeat(7), BEAT, "of nobody")
        await both.ask(registration(7, directories=0), REGISTER, "without directories")
        await both.ask(registration(7, features={"metadata.version": (7, 20)}), REGISTER, "old")
        await both.ask(registration(7, features={
            **oracle.FEATURES, "transaction.version": (0, 1)}), REGISTER, "too low a level")
        await both.ask(registration(7, rack="r", directories=2), REGISTER)
        await both.ask(heartbeat(7, epoch=1), BEAT, "of a former epoch")
        await both.ask(heartbeat(7, fence=True), BEAT)
        await both.ask(heartbeat(7, seen=0), BEAT, "that has not caught up")
        await both.ask(heartbeat(7), BEAT)
        await both.ask(heartbeat(7), BEAT, "again")
        await both.ask(registration(7, 2), REGISTER, "while the former one lives")
        await both.ask(registration(7, rack="other", directories=2), REGISTER, "amended")
        await both.ask(heartbeat(7), BEAT)
        await both.ask(heartbeat(7, stop=True), BEAT, "that leads nothing")
        await both.ask(unregistration(7), 0)
        await both.ask(registration(7, 3, directories=2, previous=5), REGISTER)
        await both.ask(registration(7, 4, directories=2, previous=5), REGISTER, "not heard of")
        await both.ask(heartbeat(7, fence=True), BEAT)
        await both.ask(heartbeat(7), BEAT)
        await both.ask(producer_ids(7), 0)
        await both.ask(producer_ids(7, epoch=3), 0, "with a former epoch")
        await both.ask(producer_ids(77), 0, "of nobody")
        await both.ask(unregistration(7), 0)
        await both.ask(unregistration(7), 0, "again")
        await both.ask(registration(7), REGISTER)
        await both.ask(unregistration(7), 0)

    oracle.compared(controllers, scenario)


def test_topics_and_partitions_match_kafka(controllers):
    async def scenario(both):
        await joined(both)
        await both.ask(creation("a", [[1, 2, 3], [2, 3, 4]], [("retention.ms", "1000")]), CREATE)
        await both.ask(creation("a", [[1]]), CREATE, "already exists")
        for label, replicas in (("twice", [[1, 1]]), ("unknown", [[1, 9]]), ("empty", [[]]),
                                ("uneven", [[1, 2], [3]])):
            await both.ask(creation("bad", replicas), CREATE, label)
        await both.ask(creation("bad/name", [[1]]), CREATE)
        await both.ask(creation("c", [[1]], [("retention.ms", "x")]), CREATE)
        await both.ask(creation("c", [[1]], [("nonsense", "1")]), CREATE)
        await both.ask(creation("c", partitions=1, factor=9), CREATE)
        await both.ask(creation("c", partitions=0, factor=1), CREATE)
        await both.ask(creation("c", [[1]], validate=True), CREATE)
        await both.ask(heartbeat(5, fence=True), BEAT)
        await both.ask(creation("d", [[5, 1], [1, 5]]), CREATE, "on a fenced broker")
        await both.ask(creation("e", [[5]]), CREATE, "on a fenced broker alone")
        await both.ask(growth("a", 3, [[4, 5, 1]]), GROW)
        await both.ask(growth("a", 3, [[4, 5]]), GROW, "no growth")
        await both.ask(growth("a", 5, [[4, 5, 1]]), GROW, "of one of two")
        await both.ask(growth("a", 4, [[4, 5]]), GROW, "of another factor")
        await both.ask(growth("nothing", 4), GROW)
        await both.ask(heartbeat(5), BEAT)
        for name in ("a", "d", "a", "nothing"):
            await both.ask(deletion(name), DROP)

    oracle.compared(controllers, scenario)


def test_isr_changes_and_elections_match_kafka(controllers):
    async def scenario(both):
        await joined(both)
        await both.ask(creation("i", [[1, 2, 3], [2, 3, 1]], [("min.insync.replicas", "2")]),
                       CREATE)
        await both.ask(isr_change("i", 0, [1, 2]), ALTER_ISR)
        await both.ask(isr_change("i", 0, [1, 2]), ALTER_ISR, "the same")
        await both.ask(isr_change("i", 0, [1]), ALTER_ISR, "below min.insync.replicas")
        for label, options in (
                ("stale leader epoch", {"leader_epoch": -1}),
                ("future leader epoch", {"leader_epoch": 1}),
                ("stale partition epoch", {"partition_epoch": -1}),
                ("future partition epoch", {"partition_epoch": 1}),
                ("of another", {"of": 2}), ("a replica's former epoch", {"stale": 3}),
                ("without epochs", {"epochs": False}), ("recovery", {"recovery": 1})):
            await both.ask(isr_change("i", 0, [1, 3], **options), ALTER_ISR, label)
        await both.ask(isr_change("i", 0, [2, 3]), ALTER_ISR, "without the leader")
        await both.ask(isr_change("i", 0, [1, 4]), ALTER_ISR, "with a stranger")
        await both.ask(heartbeat(1, fence=True), BEAT, "the leader is fenced")
        await both.ask(isr_change("i", 1, [2, 1]), ALTER_ISR, "with a fenced one")
        await both.ask(heartbeat(1), BEAT)
        await both.ask(isr_change("i", 0, [3, 1]), ALTER_ISR)
        await both.ask(election(PREFERRED, [("i", 0), ("i", 1), ("i", 7), ("no", 0)]), ELECT)
        await both.ask(heartbeat(2, fence=True), BEAT)
        await both.ask(heartbeat(3, fence=True), BEAT)
        await both.ask(heartbeat(1, fence=True), BEAT, "the last one")
        await both.ask(heartbeat(2), BEAT)
        await both.ask(election(UNCLEAN, [("i", 0), ("i", 1)]), ELECT)
        await both.ask(heartbeat(1), BEAT)
        await both.ask(heartbeat(3), BEAT)
        await both.ask(election(PREFERRED, None), ELECT)
        await both.ask(heartbeat(2, stop=True), BEAT)
        await both.ask(configs(TOPIC, "i", [("min.insync.replicas", SET, "1")]), CONFIGS)
        # The topic stays: Kafka's controller fails when a broker is unregistered that was eligible
        # for a deleted topic.

    oracle.compared(controllers, scenario)


def test_reassignments_match_kafka(controllers):
    async def scenario(both):
        await joined(both)
        await both.ask(creation("r", [[1, 2], [2, 3]]), CREATE)
        await both.ask(reassignment("r", 0, [3, 4]), MOVE)
        await both.ask(reassignments(), 0)
        await both.ask(isr_change("r", 0, [1, 2, 3]), ALTER_ISR)
        await both.ask(isr_change("r", 0, [1, 2, 3, 4]), ALTER_ISR, "which completes it")
        await both.ask(reassignment("r", 0, None), MOVE, "none to cancel")
        await both.ask(reassignment("r", 1, [4, 5]), MOVE)
        await both.ask(isr_change("r", 1, [2, 3, 4]), ALTER_ISR)
        await both.ask(reassignment("r", 1, None), MOVE, "cancelled")
        for label, replicas in (("twice", [1, 1]), ("unknown", [1, 9]), ("none", []),
                                ("order", [3, 2]), ("the same", [3, 2])):
            await both.ask(reassignment("r", 1, replicas), MOVE, label)
        await both.ask(reassignment("r", 1, [1, 2, 3], change_factor=False), MOVE)
        await both.ask(reassignment("r", 1, [1]), MOVE, "to fewer")
        await both.ask(reassignment("r", 1, [5]), MOVE, "another one meanwhile")
        await both.ask(reassignments(), 0)
        await both.ask(isr_change("r", 1, [3, 2, 5]), ALTER_ISR)
        await both.ask(reassignment("r", 9, [1]), MOVE)
        await both.ask(reassignment("no", 0, [1]), MOVE)
        await both.ask(deletion("r"), DROP)

    oracle.compared(controllers, scenario)


def test_settings_quotas_credentials_and_features_match_kafka(controllers):
    async def scenario(both):
        await joined(both)
        await both.ask(creation("s", [[1]]), CREATE)
        for kind, resource, changes in (
                (TOPIC, "s", [("retention.ms", SET, "5"), ("cleanup.policy", SET, "compact")]),
                (TOPIC, "s", [("cleanup.policy", APPEND, "delete")]),
                (TOPIC, "s", [("cleanup.policy", SUBTRACT, "compact"),
                              ("retention.ms", DELETE, None)]),
                (TOPIC, "s", [("retention.ms", SET, "x")]), (TOPIC, "s", [("no", SET, "x")]),
                (TOPIC, "s", [("retention.ms", APPEND, "5")]), (TOPIC, "no", [
                    ("retention.ms", SET, "5")]),
                (BROKER, "", [("min.insync.replicas", SET, "2")]),
                (BROKER, "", [("min.insync.replicas", DELETE, None)]),
                (BROKER, "1", [("log.cleaner.threads", SET, "2")]),
                (BROKER, "9", [("log.cleaner.threads", SET, "2")]),
                (GROUP, "g", [("consumer.session.timeout.ms", SET, "50000")]),
                (METRICS, "m", [("interval.ms", SET, "1000")])):
            await both.ask(configs(kind, resource, changes), CONFIGS)
        await both.ask(configs(TOPIC, "s", [("retention.ms", SET, "9")], validate=True), CONFIGS)
        await both.ask(all_configs(TOPIC, "s", [("segment.ms", "99999")]), ALL_CONFIGS)
        await both.ask(all_configs(TOPIC, "s", []), ALL_CONFIGS)
        for entity, changes in (
                ([("user", "u")], [("producer_byte_rate", 100.0, False)]),
                ([("user", "u"), ("client-id", None)], [("request_percentage", 10.0, False)]),
                ([("user", "u")], [("producer_byte_rate", 0.0, True)]),
                ([("user", "u")], [("nonsense", 1.0, False)]),
                ([("ip", "127.0.0.1")], [("connection_creation_rate", 10.0, False)]),
                ([("ip", "127.0.0.1")], [("producer_byte_rate", 10.0, False)]),
                ([("ip", "127.0.0.1")], [("connection_creation_rate", 0.0, True)])):
            await both.ask(quotas(entity, changes), QUOTAS)
        for user, mechanism, iterations in (
                ("u", 1, 4096), ("u", 2, 8192), ("u", 1, 8192), ("u", 1, 1), ("u", 9, 4096),
                ("", 1, 4096), ("u", 1, None), ("u", 1, None), ("u", 2, None)):
            await both.ask(credentials(user, mechanism, iterations), SCRAM)
        for updates in (
                [("transaction.version", 1, SAFE)], [("transaction.version", 0, UPGRADE)],
                [("transaction.version", 7, UPGRADE)], [("nonsense", 1, UPGRADE)],
                [("nonsense", 0, SAFE)], [("transaction.version", 1, 9)],
                [("transaction.version", 2, UPGRADE), ("metadata.version", 99, UPGRADE)],
                [("transaction.version", 1, UNSAFE)], [("transaction.version", 2, UPGRADE)],
                [("eligible.leader.replicas.version", 0, SAFE)],
                [("eligible.leader.replicas.version", 1, UPGRADE)],
                [("metadata.version", 30, UPGRADE)]):
            await both.ask(features(updates, validate=True), FEATURES)
            await both.ask(features(updates), FEATURES)
        await both.ask(deletion("s"), DROP)

    oracle.compared(controllers, scenario)


def test_directories_of_replicas_match_kafka(controllers):
    async def scenario(both):
        await joined(both)
        await both.ask(creation("d", [[1, 2], [2, 1]]), CREATE)
        first, second = directory(1, 0), directory(1, 1)
        await both.ask(directories(1, [(first, "d", 0), (second, "d", 1)]), 0)
        await both.ask(directories(1, [(first, "d", 0)]), 0, "again")
        await both.ask(directories(1, [(first, "no", 0), (first, "d", 9)]), 0)
        await both.ask(directories(3, [(directory(3), "d", 0)]), 0, "of a stranger")
        await both.ask(heartbeat(1, offline=[1]), BEAT, "a directory failed")
        await both.ask(heartbeat(1, offline=[1]), BEAT, "again")
        await both.ask(directories(1, [(b"\x11" * 16, "d", 0)]), 0, "unknown")
        await both.ask(deletion("d"), DROP)

    oracle.compared(controllers, scenario)


def test_cordoned_directories_match_kafka(controllers):
    async def scenario(both):
        await joined(both)
        await both.ask(heartbeat(1, cordoned=[]), BEAT, "nothing, said for the first time")
        await both.ask(heartbeat(1, cordoned=[0]), BEAT)
        await both.ask(heartbeat(1, cordoned=[0]), BEAT, "again")
        await both.ask(heartbeat(1, cordoned=[1, 0]), BEAT)
        await both.ask(heartbeat(1, cordoned=[0, 1]), BEAT, "in another order")
        await both.ask(heartbeat(1), BEAT, "not said")
        await both.ask(heartbeat(2, cordoned=[7]), BEAT, "a directory that it has not")
        await both.ask(heartbeat(3, cordoned=[0], offline=[1]), BEAT, "and one failed")
        await both.ask(heartbeat(4, cordoned=[0], fence=True), BEAT, "of one that fences itself")
        await both.ask(heartbeat(4, cordoned=[1], fence=True), BEAT, "of a fenced one")
        await both.ask(heartbeat(4, cordoned=[0, 1]), BEAT, "of one that is unfenced by it")
        await both.ask(creation("c", [[1, 4]]), CREATE, "by hand")
        await both.ask(growth("c", 2, [[1, 4]]), GROW, "by hand")
        await both.ask(reassignment("c", 0, [4, 1]), MOVE)
        await both.ask(creation("e", partitions=1, factor=4), CREATE, "more than take some")
        await both.ask(lambda side: registration(
            4, both.image.brokers[4].incarnation_id[1], rack="rack-0", directories=2)(side),
            REGISTER, "amended")
        await both.ask(heartbeat(5, cordoned=[0, 1], stop=True), BEAT, "of one that stops")
        await both.ask(deletion("c"), DROP)

    oracle.compared(controllers, scenario)


def test_access_rules_match_kafka(controllers):
    # For unsupported versions Kafka closes the connection, and for requests that its brokers reject
    # its controller returns -1: tests/wire compares brokers.
    async def scenario(both):
        await joined(both, 1)
        await both.ask(rules({}), ACLS)
        await both.ask(rules({}), ACLS, "again")
        await both.ask(rules({}, {}), ACLS, "twice in one")
        for change in (
                {"operation": 4}, {"permission_type": 2}, {"host": "127.0.0.1"},
                {"principal": "User:*"}, {"resource_name": "*"}, {"resource_pattern_type": 4},
                {"resource_type": 3, "resource_name": "g"},
                {"resource_type": 4, "resource_name": "kafka-cluster"},
                {"resource_type": 5, "resource_name": "x"},
                {"resource_type": 7, "resource_name": "User:b"},
                {"resource_type": 4, "resource_name": "another"}, {"resource_name": ""},
                {"operation": 2}, {"operation": 8}, {"principal": "a"}, {"principal": ""},
                {"host": ""}, {"resource_name": "a b"}):
            await both.ask(rules(change), ACLS, f"{change}")
        await both.ask(rules({"host": "h1"}, {"principal": "a"}, {"host": "h2"}), ACLS, "mixed")
        for change in ({}, {"resource_name_filter": "t"}, {"pattern_type_filter": 2},
                       {"resource_name_filter": "t", "pattern_type_filter": 2},
                       {"principal_filter": "User:a", "host_filter": "h1"}, {"operation": 8}):
            await both.ask(rules_described(**change), ACLS, f"{change}")
        for change in ({"host_filter": "h1"}, {"host_filter": "h1"}, {"operation": 8},
                       {"resource_type_filter": 4}, {"resource_name_filter": "t-1",
                                                     "pattern_type_filter": 2},
                       {"principal_filter": "a"}):
            await both.ask(rule_deletions(change), ACLS, f"{change}")
        await both.ask(rule_deletions({"operation": 3}, {"operation": 3}), ACLS, "the same twice")
        await both.ask(rule_deletions({}), ACLS, "all")
        await both.ask(rules_described(), ACLS, "none is left")

    oracle.compared(controllers, scenario)


class Placed:
    """Properties of automatic placement that both sides must share.

    The chosen brokers may differ, but not how replicas are distributed.
    """

    def __init__(self, topic: str):
        self._topic = topic

    def __call__(self, side, answer):
        errors = [row["error_code"] for row in answer.get("topics") or answer["results"]]
        found = side.image.topics.get(self._topic)
        return {"errors": errors, "partitions": sorted(
            (self._partition(side, state) for state in found.partitions), key=repr)
            if found is not None else None, "even": found is not None and self._even(side, found)}

    @staticmethod
    def _partition(side, state) -> dict:
        brokers = side.image.brokers
        racks = [brokers[id_].rack for id_ in state.replicas]
        fenced = [id_ for id_ in state.replicas if brokers[id_].fenced]
        return {"replicas": len(set(state.replicas)), "racks": len(set(racks)),
                "leads first": state.leader == state.replicas[0], "in sync": len(state.isr),
                "fenced first": state.replicas[0] in fenced}

    @staticmethod
    def _even(side, topic) -> bool:
        """Return True if racks, and brokers in a rack, lead in turn.

        The order is drawn again after as many partitions as there are brokers.
        """
        leads: dict = {}
        for state in topic.partitions:
            broker = side.image.brokers[state.replicas[0]]
            leads.setdefault(broker.rack, {}).setdefault(broker.id, []).append(1)
        drawn = 1 + len(topic.partitions) // len(BROKERS)
        of_racks = [sum(map(len, rack.values())) for rack in leads.values()]
        return max(of_racks) - min(of_racks) <= drawn and all(
            max(map(len, rack.values())) - min(map(len, rack.values())) <= 1 + drawn
            for rack in leads.values())


def test_automatic_replica_placement_matches_kafka(controllers):
    async def scenario(both):
        async def placed(name, partitions, factor, more=0):
            await both.ask(creation(name, partitions=partitions, factor=factor), CREATE,
                           seen=Placed(name))
            if more:
                await both.ask(growth(name, more), GROW, seen=Placed(name))
            # Different placements would cause differences in the following steps.
            if name in both.image.topics:
                await both.ask(deletion(name), DROP)

        await joined(both)
        for number, (partitions, factor) in enumerate((
                (1, 1), (7, 1), (12, 2), (20, 4), (6, 5), (3, 6))):
            await placed(f"placed-{number}", partitions, factor)
        await placed("grown", 12, 3, 20)
        await both.ask(heartbeat(5, fence=True), BEAT)
        await placed("fenced", 8, 5)
        await both.ask(heartbeat(4, cordoned=[0, 1]), BEAT)
        await placed("cordoned", 8, 4)
        await placed("too-many", 1, 5)
        for id_ in (1, 2, 3):
            await both.ask(heartbeat(id_, cordoned=[0, 1]), BEAT)
        await placed("on-fenced-alone", 1, 1)

    oracle.compared(controllers, scenario)


# ---- random walks -------------------------------------------------------------------------------

class Walk:
    """Random steps, most of them valid."""

    def __init__(self, both, seed):
        self._both = both
        self._prefix = f"walk-{seed}-"
        self._source = random.Random(seed)
        self._incarnations = {id_: 100 for id_ in BROKERS}
        self._made = 0

    def _topics(self) -> list:
        return sorted(topic for name, topic in self._both.image.topics.items()
                      if name.startswith(self._prefix))

    def _partition(self):
        """Return a random (topic, partition), or None without topics."""
        topics = self._topics()
        if not topics:
            return None
        topic = self._source.choice(topics)
        return topic.name, self._source.randrange(len(topic.partitions))

    def _some(self, low=1, high=4):
        return self._source.sample(BROKERS, self._source.randint(low, high))

    async def step(self) -> None:
        kinds = (self._create, self._delete, self._grow, self._isr, self._isr, self._isr,
                 self._fence, self._unfence, self._unfence, self._restart, self._stop,
                 self._elect, self._move, self._move, self._cancel, self._assign, self._configure,
                 self._disk, self._cordon, self._rule)
        await self._source.choice(kinds)()

    async def _create(self) -> None:
        if len(self._topics()) < 6:
            self._made += 1
            size = self._source.randint(1, 3)
            await self._both.ask(creation(
                f"{self._prefix}{self._made}", [self._some(size, size)
                                   for _ in range(self._source.randint(1, 3))],
                [("min.insync.replicas", str(self._source.randint(1, 3)))]
                if self._source.random() < 0.5 else ()), CREATE)

    async def _delete(self) -> None:
        # Topics with eligible replicas are excluded, see above.
        may_go = [topic for topic in self._topics() if not any(
            state.eligible_leader_replicas for state in topic.partitions)]
        if may_go and len(self._topics()) > 4:
            await self._both.ask(deletion(self._source.choice(may_go).name), DROP)

    async def _grow(self) -> None:
        if found := self._partition():
            topic = self._both.image.topics[found[0]]
            sizes = {len(state.replicas) for state in topic.partitions}
            size = min(sizes)
            # Kafka uses the replica count of any partition, and a reassignment may have raised it.
            if len(topic.partitions) < 5 and len(sizes) == 1:
                await self._both.ask(growth(topic.name, len(topic.partitions) + 1,
                                            [self._some(size, size)]), GROW)

    async def _isr(self) -> None:
        if found := self._partition():
            state = self._both.image.partition(*found)
            if state.leader >= 0:
                isr = [id_ for id_ in state.replicas
                       if id_ == state.leader or self._source.random() < 0.7]
                self._source.shuffle(isr)
                await self._both.ask(isr_change(
                    *found, isr, epochs=self._source.random() < 0.9,
                    recovery=self._source.choice([None, None, 0, 1])), ALTER_ISR)

    async def _beat(self, **wanted) -> None:
        id_ = self._source.choice(BROKERS)
        broker = self._both.image.brokers[id_]
        # Kafka fences a fenced broker again when it requests its shutdown. Whether it lets a
        # stopping broker go also depends on deleted topics.
        if not (broker.in_controlled_shutdown or wanted.get("stop") and broker.fenced):
            await self._both.ask(heartbeat(id_, **wanted), BEAT)

    async def _fence(self) -> None:
        await self._beat(fence=True)

    async def _unfence(self) -> None:
        await self._beat()

    async def _stop(self) -> None:
        await self._beat(stop=True)

    async def _restart(self) -> None:
        id_ = self._source.choice(BROKERS)
        is_clean = self._source.random() < 0.5
        await self._both.ask(unregistration(id_), 0)
        for _ in range(2):
            # The second registration replaces a silent process. A clean shutdown passes the
            # previous epoch.
            self._incarnations[id_] = self._incarnations[id_] % 250 + 1
            await self._both.ask(lambda side: registration(
                id_, self._incarnations[id_], rack=f"rack-{id_ % 2}", directories=2,
                previous=side.broker_epoch(id_) if is_clean else -1)(side), REGISTER)
        await self._both.ask(heartbeat(id_), BEAT)

    async def _elect(self) -> None:
        if found := self._partition():
            await self._both.ask(election(self._source.choice([PREFERRED, UNCLEAN]), [found]),
                                 ELECT)

    async def _move(self) -> None:
        found = self._partition()
        # For a reassignment during another one, Kafka forgets that the replicas added first are not
        # in sync yet.
        if found and not self._both.image.partition(*found).adding_replicas:
            await self._both.ask(reassignment(*found, self._some()), MOVE)
            await self._both.ask(reassignments(), 0)

    async def _cancel(self) -> None:
        if found := self._partition():
            state = self._both.image.partition(*found)
            # Where only new replicas or none are in sync, our controller deliberately has different
            # rules.
            if not state.adding_replicas or set(state.isr) - set(state.adding_replicas):
                await self._both.ask(reassignment(*found, None), MOVE)

    async def _assign(self) -> None:
        if found := self._partition():
            id_ = self._source.choice(BROKERS)
            await self._both.ask(directories(
                id_, [(directory(id_, self._source.randrange(2)), *found)]), 0)

    async def _disk(self) -> None:
        await self._beat(offline=[self._source.randrange(2)])

    async def _cordon(self) -> None:
        await self._beat(cordoned=[number for number in range(2) if self._source.random() < 0.5])

    async def _rule(self) -> None:
        change = {"resource_name": self._source.choice("tuv"), "operation":
                  self._source.randint(2, 5), "principal": f"User:{self._source.choice('ab')}"}
        if self._source.random() < 0.6:
            await self._both.ask(rules(change), ACLS)
        else:
            await self._both.ask(rule_deletions({"operation": change["operation"]}), ACLS)

    async def _configure(self) -> None:
        if found := self._partition():
            await self._both.ask(configs(TOPIC, found[0], [self._source.choice((
                ("min.insync.replicas", SET, str(self._source.randint(1, 3))),
                ("min.insync.replicas", DELETE, None),
                ("unclean.leader.election.enable", SET, "true"),
                ("unclean.leader.election.enable", SET, "false")))]), CONFIGS)


async def walk(both, seed, steps):
    await joined(both)
    walking = Walk(both, seed)
    for _ in range(steps):
        await walking.step()


def test_random_controller_requests_match_kafka(controllers):
    # Other walks reach intended differences: a broker removed by a reassignment is no longer
    # eligible.
    oracle.compared(controllers, walk, 1, 60)

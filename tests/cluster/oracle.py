"""The same requests to Kafka's controller and to ours, with comparable responses and records.

Owns: two controllers without brokers, Kafka's first; tests simulate the brokers.
Invariants: same requests: both controllers receive the same requests in the same order, each with
  its own ids and epochs; intended differences: only this module removes differences between correct
  controllers, namely ids and epochs that a controller generates and records about the controllers.
"""

import asyncio
import contextlib
import socket

from pylog._native.records import batch
from pylog.metadata.image import snapshot
from pylog.metadata.image.image import Image, apply
from pylog.peer.connection import Peer
from pylog.protocol import messages
from pylog.testing.ports import free_port
from tests.fixtures.brokers import Brokerd, Kafka
from tests.wire.sides import differences

# Longer than any test, so that no timer expires.
SETTINGS = {
    "process.roles": "controller", "node.id": 100, "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "broker.session.timeout.ms": 3_600_000, "leader.imbalance.check.interval.seconds": 3600,
    "unclean.leader.election.interval.ms": 3_600_000,
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS"}
# Records that controllers write about themselves.
THEIR_OWN = {"NoOpRecord", "RegisterControllerRecord", "BeginTransactionRecord",
             "EndTransactionRecord", "AbortTransactionRecord"}
DROPPED = {"throttle_time_ms", "unknown_tags"}
LOG_ID = bytes(15) + b"\1"
FEATURES = {"metadata.version": (7, 30), "group.version": (0, 1), "transaction.version": (0, 2),
            "eligible.leader.replicas.version": (0, 1), "share.version": (0, 2),
            "streams.version": (0, 1), "kraft.version": (0, 1)}
UNKNOWN_LEADER, FENCED_LEADER = 75, 74
# The address of every broker: ours treats brokers without a connection that it cannot dial as
# failed.
LISTENER = socket.create_server(("127.0.0.1", 0))
FOUND_MAX = 10


def controllers(root, settings=None):
    """Return (Kafka's controller, ours), not started."""
    found = []
    for kind, name in ((Kafka, "theirs"), (Brokerd, "ours")):
        port = free_port()
        listener = f"CONTROLLER://127.0.0.1:{port}"
        node = kind(root / name, {
            **SETTINGS, "controller.quorum.voters": f"100@127.0.0.1:{port}",
            "listeners": listener, **(settings or {}),
            **({"advertised.listeners": listener} if kind is Kafka else {})})
        if kind is Kafka:
            node.broker.wanted_port = port
        else:
            node.port = port
        found.append(node)
    return found


class Side:
    """One controller and its records so far. `image`: of its records."""

    def __init__(self, node):
        self.node = node
        self.image = Image()
        self.epoch = 1
        self._next = 0
        self._last_epoch = 0
        self.cluster_id = ""
        self._names: dict[bytes, str] = {}
        self._epochs: dict[int, str] = {}

    async def connect(self) -> "Side":
        self._peer = await Peer.connect("127.0.0.1", self.node.port, "oracle")
        self.cluster_id = (await self.call(
            messages.DescribeClusterRequest(endpoint_type=2), 1)).cluster_id
        return self

    def close(self) -> None:
        self._peer.close()

    async def call(self, request, version: int):
        return await self._peer.call(request, version)

    # ---- the log --------------------------------------------------------------------------------

    async def records(self) -> list:
        """Return the new records in comparable form."""
        found = []
        while stretch := await self._committed_bytes():
            for position, header in batch.walk(stretch):
                decoded = snapshot.decoded(stretch[position:], header)
                self._next = header.base_offset + header.last_offset_delta + 1
                self._last_epoch = header.leader_epoch
                found += decoded
                self._learn(decoded, header.base_offset)
        return [(type(record).__name__, self.shown(record)) for record in found
                if type(record).__name__ not in THEIR_OWN]

    async def _committed_bytes(self) -> bytes:
        """Return the committed bytes after the previous ones."""
        new = messages.FetchRequest
        while True:
            answer = await self.call(new(
                max_wait_ms=0, min_bytes=0, session_epoch=-1,
                replica_state=new.ReplicaState(replica_id=-1),
                topics=[new.FetchTopic(topic_id=LOG_ID, partitions=[new.FetchPartition(
                    partition=0, current_leader_epoch=self.epoch, fetch_offset=self._next,
                    last_fetched_epoch=self._last_epoch, partition_max_bytes=1 << 20)])]), 17)
            row = answer.responses[0].partitions[0]
            if row.error_code in (FENCED_LEADER, UNKNOWN_LEADER):
                self.epoch = row.current_leader.leader_epoch
                continue
            if row.snapshot_id.end_offset >= 0:
                # The records that a snapshot covers were compared already or are not part of the
                # test.
                self._next, self._last_epoch = row.snapshot_id.end_offset, row.snapshot_id.epoch
                continue
            assert not row.error_code, row
            return bytes(row.records or b"") if self._next < row.high_watermark else b""

    def _learn(self, records: list, base: int) -> None:
        for offset, record in enumerate(records, base):
            kind = type(record).__name__
            if kind == "TopicRecord":
                self._names[record.topic_id] = f"id of {record.name}"
            elif kind == "AccessControlEntryRecord":
                rule = {**self.shown(record), "id": ""}
                self._names[record.id] = f"id of {rule}"
            elif kind == "RegisterBrokerRecord" and record.broker_epoch not in self._epochs:
                of = sum(name.startswith(f"{record.broker_id}.") for name in self._epochs.values())
                self._epochs[record.broker_epoch] = f"{record.broker_id}.{of}"
            if kind not in THEIR_OWN:
                self.image = apply(self.image, [record], offset, self.epoch)

    # ---- comparable form ----------------------------------------------------------------------

    def shown(self, value, name: str = ""):
        """Return a message as a dict, without values that this controller generated."""
        if isinstance(value, (bytes, memoryview)):
            value = bytes(value)
            # The topic id of a validate-only request is in no record.
            return self._names.get(value, "no id" if name == "topic_id" else value)
        if isinstance(value, (list, tuple)):
            rows = [self.shown(row, name) for row in value]
            return sorted(rows, key=repr) if rows and isinstance(rows[0], dict) else rows
        if name == "broker_epoch" and value in self._epochs:
            return self._epochs[value]
        if hasattr(type(value), "__slots__") and not isinstance(value, (str, int)):
            return {field: self.shown(getattr(value, field), field)
                    for field in type(value).__slots__ if field not in DROPPED}
        return value

    # ---- request fields that depend on the side ---------------------------------------------

    def topic_id(self, name: str) -> bytes:
        return self.image.topics[name].id if name in self.image.topics else b"\x77" * 16

    def state(self, name: str, index: int):
        return self.image.partition(name, index)

    def broker_epoch(self, broker_id: int) -> int:
        broker = self.image.brokers.get(broker_id)
        return broker.epoch if broker else -1


class Oracle:
    """Both sides. `found`: their differences; `steps`: number of comparisons."""

    def __init__(self, theirs: Side, ours: Side):
        self.sides = theirs, ours
        self.steps = 0
        self.found: list[str] = []
        self.texts: list = []

    @property
    def image(self) -> Image:
        """Return the image that both have."""
        return self.sides[1].image

    async def ask(self, make, version: int, label: str = "", seen=None) -> dict:
        """Send both the request from make(side) and compare responses and records.

        Keeps to the same requests. seen: (a side, its shown response) -> the values to compare
        instead of response and records.
        """
        answers, records = [], []
        for side in self.sides:
            request = make(side)
            answer = await side.call(request, version)
            records.append(await side.records())
            answers.append(side.shown(answer))
            if seen is not None:
                answers[-1], records[-1] = seen(side, answers[-1]), []
        self.steps += 1
        label = (f"step {self.steps} {label or type(request).__name__}: "
                 f"{self.sides[1].shown(request)}")
        print(label, answers, *records, sep="\n   ")
        self.texts += zip(_texts(answers[0]), _texts(answers[1]))
        found = differences(_without_texts(answers[0]), _without_texts(answers[1]), "answer")
        found += differences(*(sorted(rows, key=repr) for rows in records), "records")
        if found:
            label += f" {_texts(answers[0])}"
            self.found.append("\n".join([label, *found, "kafka:", *map(str, records[0]), "ours:",
                                         *map(str, records[1])]))
        # Later differences follow from the first ones.
        assert len(self.found) < FOUND_MAX, self.report
        return answers[1]

    @property
    def report(self) -> str:
        return "\n\n".join(self.found)


def _texts(value) -> list:
    if isinstance(value, dict):
        return [text for key, part in value.items()
                for text in ([part] if key == "error_message" else _texts(part))]
    return [text for part in value for text in _texts(part)] if isinstance(value, list) else []


def _without_texts(value):
    """Replace error texts by whether there is one, because their wording differs."""
    if isinstance(value, dict):
        return {key: bool(part) if key == "error_message" else _without_texts(part)
                for key, part in value.items()}
    return [_without_texts(part) for part in value] if isinstance(value, list) else value


def compared(nodes, scenario, *arguments) -> None:
    """Run the coroutine scenario(oracle, ...) on a pair of running controllers."""
    async def run():
        async with contextlib.AsyncExitStack() as stack:
            sides = []
            for node in nodes:
                side = await Side(node).connect()
                stack.callback(side.close)
                sides.append(side)
            both = Oracle(*sides)
            await scenario(both, *arguments)
            for pair in both.texts:
                if pair[0] != pair[1]:
                    print("TEXT", pair)
            assert not both.found, both.report

    asyncio.run(run())


# ---- requests -----------------------------------------------------------------------------------

def registration(broker_id: int, incarnation: int = 1, *, directories: int = 1, rack=None,
                 previous: int = -1, features=None):
    new = messages.BrokerRegistrationRequest
    return lambda side: new(
        broker_id=broker_id, cluster_id=side.cluster_id,
        incarnation_id=bytes([broker_id, incarnation]) * 8,
        listeners=[new.Listener(name="PLAINTEXT", host="127.0.0.1", port=LISTENER.getsockname()[1],
                                security_protocol=0)],
        features=[new.Feature(name=name, min_supported_version=low, max_supported_version=high)
                  for name, (low, high) in (features or FEATURES).items()],
        rack=rack, log_dirs=[directory(broker_id, number) for number in range(directories)],
        previous_broker_epoch=previous)


def directory(broker_id: int, number: int = 0) -> bytes:
    return bytes([0x40 + broker_id, number + 1]) * 8


def heartbeat(broker_id: int, *, fence=False, stop=False, offline=(), cordoned=None,
              seen=1 << 40, epoch: int | None = None):
    """Return a heartbeat. offline, cordoned: numbers of directories."""
    return lambda side: messages.BrokerHeartbeatRequest(
        broker_id=broker_id, current_metadata_offset=seen, want_fence=fence, want_shut_down=stop,
        broker_epoch=side.broker_epoch(broker_id) if epoch is None else epoch,
        offline_log_dirs=[directory(broker_id, number) for number in offline],
        cordoned_log_dirs=None if cordoned is None else [
            directory(broker_id, number) for number in cordoned])


def creation(name: str, replicas: list | None = None, configs=(), *, partitions=-1, factor=-1,
             validate=False):
    new = messages.CreateTopicsRequest
    return lambda _: new(timeout_ms=10_000, validate_only=validate, topics=[new.CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=factor,
        assignments=[new.CreatableReplicaAssignment(partition_index=index, broker_ids=ids)
                     for index, ids in enumerate(replicas or ())],
        configs=[new.CreatableTopicConfig(name=key, value=value) for key, value in configs])])


def deletion(name: str):
    new = messages.DeleteTopicsRequest
    return lambda side: new(timeout_ms=10_000, topics=[new.DeleteTopicState(
        name=None, topic_id=side.topic_id(name))])


def growth(name: str, count: int, replicas: list | None = None):
    new = messages.CreatePartitionsRequest
    return lambda _: new(timeout_ms=10_000, validate_only=False, topics=[new.CreatePartitionsTopic(
        name=name, count=count, assignments=None if replicas is None else [
            new.CreatePartitionsAssignment(broker_ids=ids) for ids in replicas])])


def isr_change(name: str, index: int, isr: list, *, of: int | None = None, leader_epoch: int = 0,
               partition_epoch: int = 0, recovery: int | None = None, stale: int | None = None,
               epochs: bool = True):
    """Return an AlterPartition request.

    of: the sender, by default the leader. leader_epoch, partition_epoch: added to the correct ones.
    stale: a replica to name with an older epoch.
    """
    new = messages.AlterPartitionRequest

    def make(side):
        state = side.state(name, index)
        sender = state.leader if of is None else of
        return new(broker_id=sender, broker_epoch=side.broker_epoch(sender), topics=[new.TopicData(
            topic_id=side.topic_id(name), partitions=[new.PartitionData(
                partition_index=index, leader_epoch=state.leader_epoch + leader_epoch,
                partition_epoch=state.partition_epoch + partition_epoch,
                leader_recovery_state=state.leader_recovery_state if recovery is None
                else recovery,
                new_isr_with_epochs=[new.BrokerState(
                    broker_id=id_, broker_epoch=side.broker_epoch(id_) - (id_ == stale)
                    if epochs else -1) for id_ in isr])])])
    return make


def election(kind: int, rows: list | None):
    """Return an ElectLeaders request. rows: (topic, partition)."""
    new = messages.ElectLeadersRequest
    return lambda _: new(election_type=kind, timeout_ms=10_000, topic_partitions=rows and [
        new.TopicPartitions(topic=name, partitions=[index]) for name, index in rows])


def reassignment(name: str, index: int, replicas: list | None, change_factor: bool = True):
    new = messages.AlterPartitionReassignmentsRequest
    return lambda _: new(
        timeout_ms=10_000, allow_replication_factor_change=change_factor,
        topics=[new.ReassignableTopic(name=name, partitions=[
            new.ReassignablePartition(
                partition_index=index, replicas=replicas)])])


def reassignments():
    return lambda _: messages.ListPartitionReassignmentsRequest(timeout_ms=10_000, topics=None)


def configs(kind: int, resource: str, changes: list, validate=False):
    """changes: (name, operation, value). Operations: 0 set, 1 delete, 2 append, 3 subtract."""
    new = messages.IncrementalAlterConfigsRequest
    return lambda _: new(validate_only=validate, resources=[new.AlterConfigsResource(
        resource_type=kind, resource_name=resource, configs=[new.AlterableConfig(
            name=name, config_operation=operation, value=value)
            for name, operation, value in changes])])


def all_configs(kind: int, resource: str, values: list):
    new = messages.AlterConfigsRequest
    return lambda _: new(resources=[new.AlterConfigsResource(
        resource_type=kind, resource_name=resource, configs=[
            new.AlterableConfig(name=name, value=value) for name, value in values])])


def quotas(entity: list, changes: list, validate=False):
    """entity: (type, name). changes: (key, value, remove)."""
    new = messages.AlterClientQuotasRequest
    return lambda _: new(validate_only=validate, entries=[new.EntryData(
        entity=[new.EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
        ops=[new.OpData(key=key, value=value, remove=remove)
             for key, value, remove in changes])])


def credentials(user: str, mechanism: int, iterations: int | None = 4096):
    """Return a change of SCRAM credentials. iterations: None deletes them."""
    new = messages.AlterUserScramCredentialsRequest
    return lambda _: new(
        deletions=[new.ScramCredentialDeletion(name=user, mechanism=mechanism)]
        if iterations is None else [],
        upsertions=[] if iterations is None else [new.ScramCredentialUpsertion(
            name=user, mechanism=mechanism, iterations=iterations, salt=b"salt" * 4,
            salted_password=b"p" * (32 if mechanism == 1 else 64))])


def features(updates: list, validate=False):
    """updates: (name, level, kind). Kinds: 1 upgrade, 2 safe downgrade, 3 unsafe downgrade."""
    new = messages.UpdateFeaturesRequest
    return lambda _: new(timeout_ms=10_000, validate_only=validate, feature_updates=[
        new.FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind)
        for name, level, kind in updates])


def directories(broker_id: int, rows: list):
    """rows: (directory id, topic, partition)."""
    new = messages.AssignReplicasToDirsRequest
    return lambda side: new(
        broker_id=broker_id, broker_epoch=side.broker_epoch(broker_id), directories=[
            new.DirectoryData(id=id_, topics=[new.TopicData(
                topic_id=side.topic_id(name), partitions=[
                    new.PartitionData(partition_index=index)])])
            for id_, name, index in rows])


def unregistration(broker_id: int):
    return lambda _: messages.UnregisterBrokerRequest(broker_id=broker_id)


def producer_ids(broker_id: int, epoch: int | None = None):
    return lambda side: messages.AllocateProducerIdsRequest(
        broker_id=broker_id,
        broker_epoch=side.broker_epoch(broker_id) if epoch is None else epoch)


RULE = {"resource_type": 2, "resource_name": "t", "resource_pattern_type": 3,
        "principal": "User:a", "host": "*", "operation": 3, "permission_type": 3}
# Matches every rule.
FILTER = {"resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1,
          "principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1}


def rules(*changes: dict):
    """Return a request to create variations of RULE."""
    new = messages.CreateAclsRequest
    return lambda _: new(creations=[new.AclCreation(**{**RULE, **change}) for change in changes])


def rule_deletions(*changes: dict):
    """Return a request to delete by variations of FILTER."""
    new = messages.DeleteAclsRequest
    return lambda _: new(filters=[new.DeleteAclsFilter(**{**FILTER, **change})
                                  for change in changes])


def rules_described(**change):
    return lambda _: messages.DescribeAclsRequest(**{**FILTER, **change})

"""Registration, heartbeats, fencing and controlled shutdown, as decisions on an image."""

import pytest

from pylog.config import Settings
from pylog.metadata.controller import broker_registration
from pylog.metadata.controller.broker_heartbeats import Heartbeats
from pylog.metadata.image.image import Image, apply
from pylog.metadata.controller.partitions.eligible_leader_replicas import ELR_FEATURE
from pylog.metadata.controller.partitions.partition_change import Rules
from pylog.protocol.api_error import Refusal
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode as E
from tests.metadata.controller.partitions.test_topics import create, decided, topic

REGISTRATION = messages.BrokerRegistrationRequest
CLUSTER = "a-cluster"
SESSION_NS = 1000
FEATURES = {"metadata.version": (7, 33), ELR_FEATURE: (0, 1)}


class Cluster:
    """An image with the controller's heartbeat state; the time is `now`."""

    def __init__(self, keeps_eligible=True, **settings):
        self.image = Image()
        self.settings = Settings(settings)
        self.heartbeats = Heartbeats(SESSION_NS)
        self.now = 0
        self.take([messages.FeatureLevelRecord(name="metadata.version", feature_level=33),
                   messages.FeatureLevelRecord(
                       name=ELR_FEATURE, feature_level=int(keeps_eligible))])

    def take(self, records):
        if records:
            self.image = apply(self.image, records, self.image.offset + len(records), 1)
            self.heartbeats.follow(self.image)
        return records

    @property
    def rules(self):
        return Rules(self.image, self.settings)

    def register(self, id_, incarnation=1, directories=None, features=None, previous=-1,
                 cluster_id=CLUSTER, rack=None):
        request = REGISTRATION(
            broker_id=id_, cluster_id=cluster_id, incarnation_id=bytes([id_, incarnation]) * 8,
            listeners=[REGISTRATION.Listener(name="PLAINTEXT", host="h", port=9092 + id_)],
            features=[REGISTRATION.Feature(
                name=name, min_supported_version=low, max_supported_version=high)
                for name, (low, high) in (features or FEATURES).items()],
            rack=rack, previous_broker_epoch=previous,
            log_dirs=[bytes([id_]) * 16] if directories is None else directories)
        records, epoch = decided(broker_registration.register(
            self.rules, self.heartbeats, request, CLUSTER, self.now))
        self.take(records)
        self.heartbeats.registered(id_, self.image.offset)
        return epoch

    def refusal(self, *arguments, **fields):
        with pytest.raises(Refusal) as refused:
            self.register(*arguments, **fields)
        return refused.value.error

    def process_heartbeat(self, id_, offset=None, epoch=None, **fields):
        """Send a heartbeat; return None if it needed no decision."""
        request = messages.BrokerHeartbeatRequest(
            broker_id=id_, broker_epoch=self.image.brokers[id_].epoch if epoch is None else epoch,
            current_metadata_offset=self.image.offset if offset is None else offset, **fields)
        state = None
        if broker_registration.needs_decision(self.image, self.heartbeats, request):
            records, state = decided(broker_registration.process_heartbeat(
                self.rules, self.heartbeats, request))
            self.take(records)
            if state.is_stopping and records:
                self.heartbeats.stopping(id_, self.image.offset)
        self.heartbeats.touch(id_, request.current_metadata_offset, 7, self.now)
        return state

    def join(self, *ids):
        for id_ in ids:
            self.register(id_)
            self.process_heartbeat(id_)
        return self

    def create(self, *replicas, name="t", **configs):
        self.image, results = create(self.image, topic(
            name, -1, -1, [(index, list(ids)) for index, ids in enumerate(replicas)], configs))
        assert results[0].error == E.NONE, results
        return self

    def state(self, index=0, name="t"):
        return self.image.partition(name, index)


def test_broker_is_fenced_until_it_has_read_its_registration():
    cluster = Cluster()
    epoch = cluster.register(1)
    assert epoch == cluster.image.offset and cluster.image.brokers[1].fenced
    assert cluster.process_heartbeat(1,
                                     offset=epoch - 1) is None and cluster.image.brokers[1].fenced
    assert cluster.process_heartbeat(1, want_fence=True) is None and cluster.image.brokers[1].fenced
    assert cluster.process_heartbeat(1) == broker_registration.State(False, False, False)
    assert not cluster.image.brokers[1].fenced


def test_broker_id_is_reserved_during_its_session():
    cluster = Cluster().join(1)
    assert cluster.refusal(1, incarnation=2) == E.DUPLICATE_BROKER_REGISTRATION
    epoch = cluster.image.brokers[1].epoch
    assert cluster.register(1) == epoch and not cluster.image.brokers[1].fenced
    cluster.now += SESSION_NS
    assert cluster.register(1, incarnation=2) > epoch and cluster.image.brokers[1].fenced


def test_a_registration_that_never_beat_holds_no_id():
    cluster = Cluster()
    cluster.register(1)
    assert cluster.register(1, incarnation=2) == cluster.image.offset


@pytest.mark.parametrize(("fields", "error"), [
    ({"cluster_id": "other"}, E.INCONSISTENT_CLUSTER_ID),
    ({"directories": []}, E.INVALID_REGISTRATION),
    ({"directories": [bytes([1]) * 16]}, E.INVALID_REGISTRATION),
    ({"directories": [bytes([5]) * 16] * 2}, E.INVALID_REGISTRATION),
    ({"directories": [bytes(15) + b"\1"]}, E.INVALID_REGISTRATION),
    ({"features": {ELR_FEATURE: (0, 1)}}, E.INVALID_REGISTRATION),
    ({"features": {"metadata.version": (7, 33)}}, E.UNSUPPORTED_VERSION),
    ({"features": {"metadata.version": (7, 29), ELR_FEATURE: (0, 1)}}, E.UNSUPPORTED_VERSION)])
def test_invalid_registrations_are_rejected(fields, error):
    assert Cluster().join(1).refusal(2, **fields) == error


def test_a_broker_of_zookeeper_is_rejected():
    cluster = Cluster()
    with pytest.raises(Refusal) as refused:
        decided(broker_registration.register(cluster.rules, cluster.heartbeats, REGISTRATION(
            broker_id=1, cluster_id=CLUSTER, is_migrating_zk_broker=True), CLUSTER, 0))
    assert refused.value.error == E.BROKER_ID_NOT_REGISTERED


def test_broker_without_a_cluster_feature_is_rejected_with_level_0():
    with pytest.raises(Refusal, match=f"version 1 of {ELR_FEATURE}.* between 0 and 0"):
        Cluster().register(1, features={"metadata.version": (7, 33)})


def test_a_heartbeat_is_decided_under_the_epoch_of_its_turn():
    cluster = Cluster().join(1)
    with pytest.raises(Refusal) as refused:
        decided(broker_registration.process_heartbeat(
            cluster.rules, cluster.heartbeats, messages.BrokerHeartbeatRequest(
            broker_id=1, broker_epoch=cluster.image.brokers[1].epoch + 1)))
    assert refused.value.error == E.STALE_BROKER_EPOCH


def test_requests_with_another_broker_epoch_are_rejected():
    cluster = Cluster().join(1)
    for id_, epoch in ((1, 99), (1, -1), (2, 5)):
        with pytest.raises(Refusal) as refused:
            cluster.process_heartbeat(id_, epoch=epoch)
        assert refused.value.error == E.STALE_BROKER_EPOCH


def test_a_fenced_broker_leaves_every_isr_and_leads_nothing():
    cluster = Cluster().join(1, 2, 3).create((1, 2), (2, 1), (1, 3)).create((1,), name="u")
    cluster.now += SESSION_NS
    cluster.process_heartbeat(2)
    cluster.process_heartbeat(3)
    assert cluster.heartbeats.silent(cluster.image, cluster.now) == [1]
    cluster.take(decided(broker_registration.fenced(cluster.rules, 1)))
    assert [(state.leader, state.isr) for state in cluster.image.topics["t"].partitions] == [
        (2, (2,)), (2, (2,)), (3, (3,))]
    alone = cluster.state(name="u")
    assert (alone.leader, alone.isr, alone.eligible_leader_replicas) == (-1, (), (1,))
    cluster.process_heartbeat(1)
    assert (cluster.state(name="u").leader, cluster.state(name="u").isr) == (1, (1,))


def test_last_in_sync_replica_stays_without_eligible_leader_replicas():
    cluster = Cluster(keeps_eligible=False).join(1).create((1,))
    cluster.take(decided(broker_registration.fenced(cluster.rules, 1)))
    assert (cluster.state().leader, cluster.state().isr) == (-1, (1,))


def test_stopping_broker_waits_until_others_have_the_new_leaders():
    cluster = Cluster().join(1, 2, 3).create((1, 2, 3))
    assert cluster.process_heartbeat(1, want_shut_down=True) == \
        broker_registration.State(False, True, False)
    assert (cluster.state().leader, cluster.state().isr) == (2, (2, 3))
    moved = cluster.image.offset
    cluster.process_heartbeat(2)
    cluster.process_heartbeat(3, offset=moved - 1)
    assert not cluster.process_heartbeat(1, want_shut_down=True).may_stop
    cluster.process_heartbeat(3)
    assert cluster.process_heartbeat(1, want_shut_down=True) == \
        broker_registration.State(True, False, True)
    assert cluster.image.brokers[1].fenced
    assert cluster.process_heartbeat(1, want_shut_down=True) == \
        broker_registration.State(True, False, True)


def test_a_broker_that_leads_nothing_may_stop_at_once():
    cluster = Cluster().join(1, 2).create((1, 2), **{"min.insync.replicas": "2"})
    assert cluster.process_heartbeat(2, want_shut_down=True) == \
        broker_registration.State(True, False, True)
    assert (cluster.state().isr, cluster.state().eligible_leader_replicas) == ((1,), (2,))


def test_crashed_broker_loses_eligibility_and_a_stopped_one_does_not():
    for clean in (True, False):
        cluster = Cluster().join(1, 2).create((1, 2), **{"min.insync.replicas": "2"})
        cluster.process_heartbeat(2, want_shut_down=True)
        cluster.heartbeats.end(2)
        epoch = cluster.image.brokers[2].epoch
        cluster.register(2, incarnation=2, previous=epoch if clean else -1)
        assert cluster.state().eligible_leader_replicas == ((2,) if clean else ())


def test_replicas_in_a_failed_directory_leave_the_isr():
    cluster = Cluster()
    cluster.register(1, directories=[bytes([5]) * 16, bytes([6]) * 16])
    cluster.process_heartbeat(1)
    cluster.join(2).create((1, 2), (1, 2))
    cluster.take([messages.PartitionChangeRecord(
        partition_id=index, topic_id=cluster.image.topics["t"].id,
        directories=[bytes([directory]) * 16, bytes([2]) * 16])
        for index, directory in ((0, 5), (1, 6))])
    cluster.process_heartbeat(1, offline_log_dirs=[bytes([5]) * 16])
    assert [state.leader for state in cluster.image.topics["t"].partitions] == [2, 1]
    assert cluster.image.brokers[1].directories == (bytes([6]) * 16,)
    assert cluster.process_heartbeat(1, offline_log_dirs=[bytes([5]) * 16]) is None


def test_broker_can_be_unregistered_once():
    cluster = Cluster().join(1, 2).create((1, 2))
    cluster.take(decided(broker_registration.unregistered(cluster.rules, 1)))
    assert 1 not in cluster.image.brokers and cluster.state().leader == 2
    with pytest.raises(Refusal) as refused:
        decided(broker_registration.unregistered(cluster.rules, 1))
    assert refused.value.error == E.BROKER_ID_NOT_REGISTERED


def test_reregistered_broker_loses_eligibility_for_possibly_lost_records():
    """Also a broker unregistered in the meantime: its id is known only from the partitions."""
    made = Cluster()
    for id_ in (1, 2):
        made.register(id_)
        made.take(decided(broker_registration.unfenced(made.rules, id_)))
    made.image, _ = create(made.image, topic("t", -1, -1, assignments=[(0, [1, 2])]))
    made.take([messages.PartitionChangeRecord(
        partition_id=0, topic_id=made.image.topics["t"].id, isr=[1], leader=1,
        eligible_leader_replicas=[2])])
    made.take([messages.UnregisterBrokerRecord(
        broker_id=2, broker_epoch=made.image.brokers[2].epoch)])
    made.register(2, incarnation=2)
    assert made.image.partition("t", 0).eligible_leader_replicas == ()


def test_broker_silent_before_a_new_term_gets_no_new_session():
    cluster = Cluster()
    cluster.join(1, 2, 3)
    cluster.now = 5000
    heartbeats = Heartbeats(SESSION_NS)
    heartbeats.follow(cluster.image)
    heartbeats.begin(cluster.image, cluster.now)
    heartbeats.record_response(2, cluster.now - SESSION_NS + 10)
    heartbeats.record_response(3, cluster.now + 10)
    heartbeats.record_response(9, cluster.now)
    assert heartbeats.silent(cluster.image, cluster.now + 9) == []
    assert heartbeats.next_end_ns(cluster.image, cluster.now) == cluster.now + 10
    assert heartbeats.silent(cluster.image, cluster.now + 10) == [2]
    heartbeats.touch(2, 0, 7, cluster.now + 11)
    assert heartbeats.silent(cluster.image, cluster.now + SESSION_NS - 1) == []


def test_reported_cordoned_directories_are_written_once():
    cluster = Cluster().join(1, 2)
    one = cluster.image.brokers[1].directories
    assert cluster.process_heartbeat(1, cordoned_log_dirs=None) is None
    assert cluster.process_heartbeat(1, cordoned_log_dirs=list(one)) == \
        broker_registration.State(False, False, False)
    assert cluster.image.brokers[1].cordoned == one and not cluster.image.takes_replicas(1)
    assert cluster.process_heartbeat(1, cordoned_log_dirs=list(one)) is None
    cluster.process_heartbeat(1, cordoned_log_dirs=[])
    assert cluster.image.brokers[1].cordoned == () and cluster.image.takes_replicas(1)


def test_broker_with_one_uncordoned_directory_accepts_replicas():
    cluster = Cluster()
    cluster.register(1, directories=[b"a" * 16, b"b" * 16])
    cluster.process_heartbeat(1, cordoned_log_dirs=[b"b" * 16])
    assert cluster.image.takes_replicas(1)


def test_an_older_metadata_version_has_no_cordons():
    cluster = Cluster().join(1)
    cluster.take([messages.FeatureLevelRecord(name="metadata.version", feature_level=29)])
    directories = list(cluster.image.brokers[1].directories)
    assert cluster.process_heartbeat(1, cordoned_log_dirs=directories) is None
    assert cluster.image.brokers[1].cordoned is None


def test_new_partitions_avoid_fully_cordoned_brokers():
    cluster = Cluster().join(1, 2, 3)
    cluster.process_heartbeat(2, cordoned_log_dirs=list(cluster.image.brokers[2].directories))
    image, results = create(cluster.image, topic("t", 30, 2))
    assert results[0].error == E.NONE
    assert {id_ for state in image.topics["t"].partitions for id_ in state.replicas} == {1, 3}
    _, results = create(cluster.image, topic("u", 1, 3))
    assert results[0].error == E.INVALID_REPLICATION_FACTOR
    # Manual assignments may, as with Kafka 4.3.1.
    cluster.create((2, 1), name="v")

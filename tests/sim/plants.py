"""Bugs planted in pylog that the simulation must find: proof that it can fail.

Owns: nothing; monkeypatch removes a planted bug.
Invariants: a planted bug changes one decision of pylog, or of the model of a native one.
Source: Kafka's past bugs (KAFKA-3410, KIP-101, KIP-497, KIP-903, KIP-966) and similar ones.
"""

from pylog.coordinator.runtime.journal import Journal
from pylog.coordinator.transactions import service as transaction_service
from pylog.metadata.controller import broker_control, decision_queue
from pylog.metadata.controller.broker_heartbeats import Heartbeats
from pylog.metadata.controller.partitions import alter_partition
from pylog.metadata.controller.partitions.partition_change import PartitionChange
from pylog.metadata.image import image, snapshot
from pylog.metadata.quorum.etcd_bootstrap import Joining
from pylog.metadata.quorum.key_value import Unknown, Unreachable
from pylog.metadata.quorum.quorum_log import QuorumLog
from pylog.metadata.quorum.quorum_state import Quorum, QuorumLost
from pylog.protocol import messages
from pylog.replication import leadership, membership, truncation
from pylog.replication import isr as leader_isr
from tests.sim import fetchers
from tests.sim.logs import Directory, Files, ModelLog
from tests.sim.loop import OWNER
from tests.sim.nodes import Node
from tests.sim.world import World


def high_watermark_uses_the_committed_isr(patch):
    patch.setattr(leader_isr.Isr, "maximal", property(lambda self: frozenset(self.committed)))
    patch.setattr(ModelLog, "_counts", lambda self, other, now_ns: other.maximal)


def high_watermark_below_the_minimum(patch):
    move = ModelLog._move

    def eager(self):
        self.in_sync_count_min = 1
        move(self)
    patch.setattr(ModelLog, "_move", eager)


def fenced_brokers_join(patch):
    patch.setattr(alter_partition, "_may_join", lambda image, broker_id, epoch: True)
    patch.setattr(image.Image, "broker_is_active", lambda self, broker_id: (
        broker_id in self.brokers))


def acknowledged_before_followers_append(patch):
    patch.setattr(World, "acks_when", lambda self, log, offset: True)


def no_truncation(patch):
    patch.setattr(truncation, "on_divergence", lambda *ends: ends[-1])


def truncated_to_its_own_end(patch):
    patch.setattr(truncation, "on_divergence", lambda leader_end, leader_epoch, own_epoch, own_end,
                  log_end: min(own_end, log_end) if own_epoch >= 0 else min(leader_end, log_end))


def divergence_is_not_checked(patch):
    check = fetchers.check_epochs
    patch.setattr(fetchers, "check_epochs", lambda log, ask: (
        (check(log, ask)[0], None) if ask.offset <= log.end_offset else check(log, ask)))


def joins_below_the_high_watermark(patch):
    patch.setattr(leadership, "_leader_log",
                  lambda led: leader_isr.LeaderLog(led.log.end_offset, 0, 0))


def any_replica_is_elected(patch):
    patch.setattr(PartitionChange, "_is_complete", lambda self, broker_id: True)


def silent_brokers_are_not_fenced(patch):
    patch.setattr(Heartbeats, "silent", lambda self, image, now_ns: [])


def moves_end_early(patch):
    end = PartitionChange._end_reassignment

    def hasty(self):
        if self.adding or self.removing:
            self.isr = list(dict.fromkeys([*self.isr, *self.adding]))
        end(self)
    patch.setattr(PartitionChange, "_end_reassignment", hasty)


def elections_without_a_new_epoch(patch):
    changed = image.changed
    patch.setattr(image, "changed", lambda old, record: changed(old, record)._replace(
        leader_epoch=old.leader_epoch))


def stale_proposals_are_accepted(patch):
    fault = alter_partition._fault

    def lenient(image, topic, wanted, members, broker_id):
        found = fault(image, topic, wanted, members, broker_id)
        return 0 if found == 95 else found
    patch.setattr(alter_partition, "_fault", lenient)


def append_with_unknown_outcome_counts_as_failed(patch):
    def hasty(self, attempt):
        try:
            return attempt()
        except (Unknown, Unreachable) as error:
            raise QuorumLost(str(error)) from None
    append = QuorumLog.append

    def again(self, new, epoch, expected_end):
        term = self._term
        try:
            return append(self, new, epoch, expected_end)
        except Exception:
            self._term = term
            raise
    patch.setattr(Quorum, "_tried", hasty)
    patch.setattr(QuorumLog, "append", again)


def an_old_controller_appends(patch):
    append_in_term = Quorum.append

    def append(self, term, base, count, data):
        try:
            term = term._replace(text=self.keys.get(self._key("at/epoch")).value)
        except (Unknown, Unreachable):
            pass
        append_in_term(self, term, base, count, data)
    patch.setattr(Quorum, "append", append)


def local_copy_is_written_before_the_quorum(patch):
    def append(self, new, epoch, expected_end):
        from pylog._native.records import batch
        data = batch.build([(None, value, 0, ()) for value in self.values_of(new)],
                           base_offset=expected_end, leader_epoch=epoch)
        self._copy(expected_end, data)
        self._quorum.append(self._term, expected_end, len(new), data)
        return expected_end + len(new) - 1
    patch.setattr(QuorumLog, "append", append)


def decisions_overlap(patch):
    async def enter(self):
        return None
    patch.setattr(decision_queue._Turn, "__aenter__", enter)
    patch.setattr(decision_queue._Turn, "__aexit__", lambda self, *_: enter(self))
    patch.setattr(decision_queue._Turn, "locked", lambda self: True)


def torn_batches_are_kept(patch):
    patch.setattr(Files, "lose", lambda self, end: self.cut(max(end, self.flushed)))


def failed_disks_are_not_reported(patch):
    told = membership.heartbeat
    patch.setattr(membership, "heartbeat", lambda wanted, *, node_id, offline_directories: told(
        wanted, node_id=node_id, offline_directories=()))


def replica_without_space_is_given_up(patch):
    refuse = fetchers.Fetchers._refuse

    def give_up(self, followed, code):
        refuse(self, followed, code)
        if code == fetchers.SHORT:
            followed.state = "left"
    patch.setattr(fetchers.Fetchers, "_refuse", give_up)


def snapshots_forget_producer_ids(patch):
    records_of = snapshot.records_of
    patch.setattr(snapshot, "records_of", lambda image: [
        record for record in records_of(image)
        if type(record) is not messages.ProducerIdsRecord])


def sessions_use_the_wall_clock(patch):
    patch.setattr(broker_control, "_now_ns", lambda: OWNER.get().now_ms() * 1_000_000)


def coordinators_answer_before_their_records_are_durable(patch):
    patch.setattr(Journal, "after", lambda self, token, message: (
        self.append_now(), token.respond(message)))


def markers_are_sent_once(patch):
    patch.setattr(transaction_service, "SETTLED", frozenset(range(-1, 200)))


def unchanged_isr_is_proposed_again(patch):
    patch.setattr(leadership, "_is_at_rest", lambda led: False)
    patch.setattr(leader_isr.Isr, "recovered", lambda self, now_ns: (
        self._propose(set(self.committed), None) if self._may_propose(now_ns) else None))


def followers_fetch_before_their_flush(patch):
    begin = fetchers.Fetchers.__init__
    patch.setattr(fetchers.Fetchers, "__init__", lambda self, **settings: begin(
        self, **{**settings, "flush_first": False}))


def leaders_count_before_their_flush(patch):
    move = ModelLog._move

    def eager(self):
        flush_first, self._settings.flush_first = self._settings.flush_first, False
        move(self)
        self._settings.flush_first = flush_first
    patch.setattr(ModelLog, "_move", eager)


def deleted_directories_are_not_noticed(patch):
    patch.setattr(Node, "notice_deleted", lambda self: None)


def empty_nodes_skip_the_proof_of_absence(patch):
    patch.setattr(Joining, "_check_absent", lambda self, *_: None)


def a_moment_proves_absence(patch):
    check = Joining._check_absent

    def hasty(self, *arguments):
        self._absent_since = float("-inf")
        check(self, *arguments)
    patch.setattr(Joining, "_check_absent", hasty)


def full_disks_count_as_failed(patch):
    def fail(self):
        self.offline = self.offline or self._disk.is_full
    patch.setattr(Directory, "check_room", fail)

"""The cluster's metrics: brokers, leaders, in-sync replicas, lag of followers.

Owns: the counts of the last image.
Invariants: the partitions of the whole cluster are counted once per image; the event loop's objects
  are copied before they are read, so that the loop never waits for a scrape; the members of the
  quorum are queried on the caller's thread.
Source: Kafka's ReplicaManager, KafkaController and BrokerTopic metrics of the same meaning.
"""

from __future__ import annotations

from pylog.metadata.controller.partitions.partition_change import Rules
from pylog.metadata.image.image import NO_LEADER
from pylog.monitor import overview

TYPE_CHECKING = False  # typing.TYPE_CHECKING would cost the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from pylog.metadata.image.image import Image
    from pylog.metadata.service import MetadataService

OF_QUORUM = ("pylog_quorum_reachable", "pylog_quorum_full", "pylog_quorum_failures",
             "pylog_quorum_appends", "pylog_quorum_append_seconds")
Samples = list  # of (family, [(label values, number)])


class ClusterView:
    """led: returns the replicated partitions that this broker leads, as replication.leadership.Led;
    empty in a cluster of one broker. now_ns: CLOCK_MONOTONIC.
    """

    def __init__(self, metadata: MetadataService, settings: Any, led: Callable[[], list],
                 now_ns: Callable[[], int]):
        self._metadata = metadata
        self._settings = settings
        self._led = led
        self._now_ns = now_ns
        self._counted: tuple | None = None       # (image, its samples)
        self._viewed: tuple | None = None  # (image, overview of it)

    def samples(self) -> Samples:
        """Return [(family, [(label values, number)])], a source for Collector.sources."""
        image = self._metadata.image
        # A broker with remote controllers has none.
        controller = getattr(self._metadata, "controller", None)
        elections = {} if controller is None else controller.elections
        return [
            *self._of(image), *self._led_here(image),
            ("pylog_controller_active", [((), int(
                controller is not None and controller.is_active))]),
            ("pylog_controller_elections", [
                ((kind,), elections.get(kind, 0)) for kind in ("clean", "unclean")]),
            *self._of_quorum()]

    def _of_quorum(self) -> Samples:
        """Return the quorum's samples, none on a broker without the controller role."""
        quorum = getattr(self._metadata, "quorum", None)
        metrics = None if quorum is None else (
            int(quorum.is_responding), int(quorum.is_full), quorum.failures, quorum.appends,
            quorum.append_seconds)
        members = [] if quorum is None else quorum.members()
        return [
            *((family, [] if metrics is None else [((), metrics[at])])
              for at, family in enumerate(OF_QUORUM)),
            ("pylog_quorum_member_up", [
                ((member.address,), int(member.answers)) for member in members]),
            ("pylog_quorum_member_leader", [
                ((member.address,), int(member.leads)) for member in members]),
            ("pylog_quorum_member_response_seconds", [
                ((member.address,), member.seconds) for member in members]),
            ("pylog_quorum_member_stored_bytes", [
                ((member.address,), member.stored_bytes) for member in members
                if member.stored_bytes >= 0])]

    def _of(self, image: Image) -> Samples:
        """Return the image's samples, counted once per image."""
        if self._counted is None or self._counted[0] is not image:
            self._counted = image, _counted(image)
        return self._counted[1]

    def _led_here(self, image: Image) -> Samples:
        led, rules = self._led(), Rules(image, self._settings)
        in_sync_min: dict[str, int] = {}
        under = at_min = 0
        lags: dict[int, tuple[int, int]] = {}
        now_ns = self._now_ns()
        for partition in led:
            if partition.name not in in_sync_min:
                in_sync_min[partition.name] = rules.min_in_sync(partition.name)
            wanted = min(in_sync_min[partition.name], len(partition.isr.replicas))
            under += len(partition.isr.committed) < wanted
            at_min += len(partition.isr.committed) == wanted
            _take_lags(lags, partition.log, now_ns)
        return [
            ("pylog_replica_partitions_led", [((), len(led))]),
            ("pylog_replica_partitions_under_min_isr", [((), under)]),
            ("pylog_replica_partitions_at_min_isr", [((), at_min)]),
            ("pylog_replica_follower_lag_records", [
                ((follower,), records) for follower, (records, _) in sorted(lags.items())]),
            ("pylog_replica_follower_lag_seconds", [
                ((follower,), lag_ns / 1e9) for follower, (_, lag_ns) in sorted(lags.items())])]

    def view(self) -> dict[str, Any]:
        """Return the content of /cluster; see monitor.overview."""
        image, quorum = self._metadata.image, getattr(self._metadata, "quorum", None)
        if self._viewed is None or self._viewed[0] is not image:
            self._viewed = image, overview.of_image(image, Rules(image, self._settings))
        led = {family: rows for family, rows in self._led_here(image)}
        followers = [{"broker": follower, "lag_records": records, "lag_seconds": seconds}
                     for ((follower,), records), (_, seconds) in zip(
                         led["pylog_replica_follower_lag_records"],
                         led["pylog_replica_follower_lag_seconds"], strict=True)]
        return overview.whole(
            self._viewed[1], controller=self._active_controller(),
            reported_by=self._settings["node.id"], cluster_id=self._metadata.cluster_id,
            followers=followers, quorum=None if quorum is None else quorum.members())

    def _active_controller(self) -> int | None:
        """Return the id of the active controller, None while unknown."""
        own = getattr(self._metadata, "controller", None)
        if own is not None and own.is_active:
            number: int = self._settings["node.id"]
            return number
        controllers = getattr(self._metadata, "controllers", None)
        return None if controllers is None or controllers.active_id < 0 \
            else controllers.active_id


def _take_lags(lags: dict[int, tuple[int, int]], partition_log: Any, now_ns: int) -> None:
    """Raise the followers' lags to those of one partition where these are larger."""
    end = partition_log.end_offset
    for follower, _, offset, _, _, caught_up_ns in partition_log.followers():
        # A follower that has not fetched yet has no offset; one that never caught up has no time.
        missing = max(0, end - max(offset, 0))
        late_ns = now_ns - caught_up_ns if missing and caught_up_ns else 0
        records, lag_ns = lags.get(follower, (0, 0))
        lags[follower] = max(records, missing), max(lag_ns, late_ns)


def _counted(image: Image) -> Samples:
    offline = moving = elsewhere = count = 0
    for topic in image.topics.values():
        count += len(topic.partitions)
        for state in topic.partitions:
            offline += state.leader == NO_LEADER
            moving += bool(state.adding_replicas or state.removing_replicas)
            elsewhere += state.leader not in (NO_LEADER, state.replicas[0])
    brokers = dict.fromkeys(("active", "fenced", "stopping"), 0)
    for broker in image.brokers.values():
        brokers["fenced" if broker.fenced else
                "stopping" if broker.in_controlled_shutdown else "active"] += 1
    return [
        ("pylog_cluster_brokers", [((state,), number) for state, number in brokers.items()]),
        ("pylog_cluster_partitions", [((), count)]),
        ("pylog_cluster_partitions_offline", [((), offline)]),
        ("pylog_cluster_partitions_moving", [((), moving)]),
        ("pylog_cluster_non_preferred_leaders", [((), elsewhere)]),
        ("pylog_metadata_offset", [((), image.offset)]),
        ("pylog_controller_epoch", [((), image.epoch)])]

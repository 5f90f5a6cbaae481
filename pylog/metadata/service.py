"""What this broker knows of its cluster, from a start to a stop: identity, log, tail, controller.

Owns: the metadata log, state.lmdb, the tail, the active controller.
Invariants: (1) partitions are opened from the newest image, so that a start needs no effects of
  records it has read; (2) the image in state.lmdb is one whose effects have happened; (3) a start
  that fails before it opens partitions leaves the marks of the stop before it: nothing but the
  metadata log was touched.
Source: KIP-631 (registration).
"""

import logging
import random

from pylog._native.log import LogError
from pylog.config import clusters
from pylog.log import checkpoint_files as files
from pylog.log.errors import StartError
from pylog.log.partition_log import Role
from pylog.metadata import meta_properties as identity
from pylog.metadata.controller import broker_registration as brokers
from pylog.metadata.controller.active_controller import ActiveController
from pylog.metadata.image.image import ACCESS_RULE, RESOURCE_BROKER, Image, MetadataError
from pylog.metadata.image.loader import Tail
from pylog.metadata.image.state_store import Store, StoreError
from pylog.metadata.log.local_log import LocalLog, limits_of

TYPE_CHECKING = False  # The real one costs the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from typing import Any

    from pylog.metadata.quorum.etcd_removal import Seats
    from pylog.metadata.quorum.voter_status import Voters

# How much log a start after a crash reads at most.
RECORDS_BETWEEN_IMAGES = 10_000
SECURITY_PROTOCOLS = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}

log = logging.getLogger("pylog.metadata")


class MetadataService:
    """logs: this node's LogManager. `store`: the first directory's state.lmdb, while open.
    `controller`: from open() on. `previous_epoch`: this broker's epoch of the last run when that
    ended cleanly, else -1."""

    controller: ActiveController
    replicates = False           # Whether other brokers can have replicas, and fetch.
    departures = None            # Of other brokers, where there are some (pylog.replication).
    voters: "Voters | None" = None   # Where each controller has an etcd of its own.
    seats: "Seats | None" = None     # In the same case: to remove a lost controller's etcd.
    previous_epoch = -1
    _log: LocalLog
    _identity: identity.Identity
    _last_epoch: int | None = None      # Of this broker, as the last run of a member registered it.
    # Until partitions are opened, what a clean stop left: numbers of directories, checkpoints (3).
    _last_stop: tuple[frozenset, dict] = frozenset(), {}
    _opened = False                     # The partitions are.

    def __init__(self, settings, logs, node_id: int, now_ms):
        self.tail = Tail(Image())
        self.store: Store | None = None
        self._settings = settings
        self._logs = logs
        self._node_id = node_id
        self._now_ms = now_ms
        self._random = random.SystemRandom()
        self._stored_offset = -1     # Of the image in state.lmdb.
        self._left_out: dict[tuple[str, str], str] = {}    # (broker, dynamic setting) -> why.

    @property
    def image(self) -> Image:
        """The cluster's state that is in force on this broker."""
        return self.tail.published

    @property
    def cluster_id(self) -> str:
        """The cluster's id, 22 characters."""
        return self._identity.cluster_id

    # ---- start and stop -------------------------------------------------------------------------

    def open(self, first=()) -> None:
        """Formats or reads the log directories and opens the partitions. first: records that a new
        cluster begins with whose brokers are elsewhere. Raises StartError."""
        logs = self._logs
        identity.check_alone([path for _, path in logs.disks.usable()])
        store, clean, checkpoints = self._open_directories(None)
        try:
            self._log = LocalLog(
                logs.directories[0], checkpoints.pop(LocalLog.KEY, None) if 0 in clean else None,
                self._now_ms, **limits_of(self._settings))
            self._follow_log(store)
            # What lies in a directory that is offline now loses its leader, and so its epoch.
            self.controller.take_office(
                all(number in clean for number, _ in logs.disks.usable()), first)
            self.take_broker_configs(self.tail.newest)
        except (MetadataError, LogError, OSError, ValueError) as error:
            raise self._unreadable(error) from error
        try:
            self._open_partitions(store, clean, checkpoints)
            self.controller.leave_offline_now(logs.take_failed())
        except LogError as error:
            raise StartError(f"the metadata log cannot be written: {error}") from error
        self.tail.begin()

    def _open_directories(self, new_cluster_id: str | None) -> tuple:
        """Takes identity and state. Returns (the store, numbers of the directories whose last stop
        was clean, the logs' checkpoints). Raises StartError."""
        logs = self._logs
        self._identity = identity.load_or_format(
            [path for _, path in logs.disks.usable()], self._node_id, self._random, new_cluster_id)
        try:
            self.store = store = Store(logs.paths[0])
        except StoreError as error:
            raise StartError(f"{logs.paths[0]}/state.lmdb cannot be used: {error}") from error
        self.previous_epoch = files.clean_epoch(logs.paths[0])
        clean = logs.disks.take_clean_marks(store.take_clean_mark())
        checkpoints = store.load_checkpoints()
        self._last_stop = clean, dict(checkpoints)
        return store, clean, checkpoints

    def _open_partitions(self, store: Store, clean: frozenset, checkpoints: dict) -> None:
        """Opens what the newest image gives this broker. Raises StartError, LogError's kinds."""
        logs, image = self._logs, self.tail.newest
        # From here on the last stop's marks say nothing of the logs.
        self._last_stop = frozenset(), {}
        if image.offset == -1 and logs.holds_partitions():
            raise StartError(
                f"{logs.paths[0]} holds partitions but its metadata log is empty or gone")
        try:
            logs.open_partitions(
                [(topic.name, topic.id, self.local_roles(topic),
                  image.topic_config(topic.name)) for topic in image.topics.values()],
                checkpoints, clean, store)
        except StoreError as error:
            raise StartError(f"{logs.paths[0]}/state.lmdb cannot be used: {error}") from error
        self._opened = True

    def _unreadable(self, error: Exception) -> StartError:
        # The next start is to look at the files.
        self._last_stop = frozenset(), {}
        # ValueError is one: records that do not decode, batches that are none.
        return StartError(f"the metadata log in {self._logs.paths[0]} cannot be read: {error}")

    def _follow_log(self, store: Store) -> None:
        """Brings the tail to the log's end. Raises MetadataError, LogError's kinds, ValueError."""
        self.tail = Tail(self._stored_image(store))
        self.tail.replay(self._log.read(self.tail.newest.offset + 1))
        self._take_newest()
        self.controller = ActiveController(
            self._log, self.tail, self._logs, self._settings, self._random, self._node_id,
            self.cluster_id)

    def _take_newest(self) -> None:
        """What a start needs of the newest image before it serves."""
        if not self._settings["authorizer.class.name"] and any(
                kind == ACCESS_RULE for kind, _ in self.tail.newest.security):
            log.warning("there are access rules, and no authorizer.class.name that goes by them: "
                        "everything is open to everybody")
        self.take_broker_configs(self.tail.newest)

    def _stored_image(self, store: Store) -> Image:
        """The image in state.lmdb, unless it does not belong to this log."""
        image = store.load_image()
        self._stored_offset = image.offset
        if self._log.holds(image.offset, image.epoch):
            return image
        log.warning("the stored image is not of this metadata log: the log is read in full")
        return Image()

    def refresh_certificates(self) -> None:
        """Takes changed ones for what keeps the quorum. Blocks."""

    def register(self, addresses, first=()) -> None:
        """Registers this broker. addresses: [(listener, host, port)] bound; first: records that a
        new cluster begins with. Raises StartError."""
        try:
            self.controller.register(
                self.endpoints(addresses), self.directories, self.cordoned, first)
        except LogError as error:
            raise StartError(f"the metadata log cannot be written: {error}") from error
        self.tail.begin()

    async def register_again(self, addresses) -> None:
        """Registers listeners that came or went. addresses: as in register."""
        await self.controller.register_again(
            self.endpoints(addresses), self.directories, self.cordoned)

    async def cordon(self) -> None:
        """Has the controller know which directories get no new replicas."""
        await self.controller.cordon(self.cordoned)

    @property
    def cordoned(self) -> list:
        """Ids of the log directories that get no new replicas."""
        return [id_ for path, id_ in self.directory_ids.items()
                if path in self._settings.cordoned_log_dirs]

    def cordons_are_told(self) -> bool:
        """Whether the image says of this broker's cordoned directories what is so, or cannot."""
        own = self.image.brokers.get(self._node_id)
        return own is None or not brokers.has_cordons(self.image) \
            or {*(own.cordoned or ())} == {*self.cordoned}

    @property
    def directories(self) -> list:
        """The log directories' ids."""
        return list(self._identity.directories.values())

    @property
    def directory_ids(self) -> dict:
        """Path -> id of the log directories."""
        return self._identity.directories

    def endpoints(self, addresses) -> list:
        """[(listener, host, port, security protocol's number)] as registered; addresses: bound."""
        protocols = {listener.name: SECURITY_PROTOCOLS[listener.protocol]
                     for listener in self._settings.listeners}
        advertised = [(listener.name, listener.host, listener.port)
                      for listener in self._settings.advertised_listeners] or addresses
        return [(name, host, port, protocols[name]) for name, host, port in advertised]

    def close(self) -> None:
        """The clean stop: everything to disk, then the marks that say so; also of a start that
        failed (3)."""
        if self.store is None:
            return
        stopped, entries = self._last_stop[0], list(self._last_stop[1].items())
        if self._opened:
            entries = self._logs.close_partitions()
            stopped = self._logs.stopped
        clean = False
        try:
            if self._opened or stopped:
                entries.append((LocalLog.KEY, self._log.close()))
            # What failed is not known to be on disk: without its mark the next start looks. The
            # first directory has the store.
            if 0 in stopped:
                marks = self._logs.disks.write_clean_marks(stopped, self._epoch_at_rest())
                if marks[0]:
                    # Keeps (2): what the publisher has not reached is read from the log again,
                    # and so are the records of a transaction that has begun.
                    is_in_force = self._opened and not self.tail.published_in_transaction
                    self.store.save(self.image if is_in_force else None, entries, mark=marks)
                    clean = True
        except (LogError, StoreError, OSError) as error:
            log.error("the stop is not clean", extra={"reason": str(error)})
        try:
            self.store.close(clean)
        except OSError as error:
            log.warning("state.lmdb has no checksum", extra={"reason": str(error)})
        self.store = None

    def _epoch_at_rest(self) -> int:
        """The broker epoch for the marks. Before this run's registration is in force the image has
        the last run's, which may have lost what it had: then it is for good."""
        broker = self.tail.newest.brokers.get(self._node_id)
        if not self._opened or broker is None or broker.epoch == self._last_epoch:
            return self.previous_epoch
        return broker.epoch

    def local_roles(self, topic) -> list:
        """The Role of this node per partition; None where it has no replica."""
        return local_roles(topic, self._node_id, self.replicates)

    # ---- the publisher's effects ----------------------------------------------------------------

    @property
    def is_image_due(self) -> bool:
        """Whether a start after a crash would read more records than it should."""
        # An image amid a transaction lacks records that a start behind it would not read.
        return not self.tail.published_in_transaction and (
            self.image.offset - self._stored_offset >= RECORDS_BETWEEN_IMAGES)

    def save_image(self) -> None:
        """Stores the published image. Blocks."""
        assert self.store is not None
        image = self.image
        self._stored_offset = image.offset
        try:
            self.store.save(image, [])
        except StoreError as error:
            log.error("the image could not be stored", extra={"reason": str(error)})

    def take_broker_configs(self, image: Image) -> None:
        """Applies an image's dynamic settings of this broker, except those of another version and
        what another secret sealed. What is left out is logged once for as long as it is."""
        usable = []
        left_out: dict[tuple[str, str], str] = {}
        for name in ("", str(self._node_id)):
            stored = image.configs.get((RESOURCE_BROKER, name), {})
            usable.append(self._settings.usable_dynamic(stored, name != ""))
            if len(usable[-1]) < len(stored):
                left_out.update(((name, key), reason) for key, reason in
                                self._settings.unusable_dynamic(stored, name != "").items())
        for (name, key), reason in left_out.items():
            if self._left_out.get((name, key)) != reason:
                log.error("a dynamic setting cannot be used",
                          extra={"setting": key, "broker": name, "reason": reason})
        self._left_out = left_out
        refused = self._settings.set_dynamic(*usable)
        if refused is not None:
            log.error("dynamic settings cannot be used", extra={"reason": refused})


def metadata_of(settings, logs, node_id: int, now_ms, seconds, first) -> "Any":
    """What a broker knows of its cluster, by where its controller is. seconds: a clock that never
    goes back. first: records that a new cluster begins with."""
    if not settings.is_member:
        return MetadataService(settings, logs, node_id, now_ms)
    # Imported here: a broker that is its own controller does without.
    if clusters.has_quorum(settings):
        from pylog.metadata.controller_service import ControllerMember

        return ControllerMember(settings, logs, node_id, now_ms, seconds=seconds, first=first)
    from pylog.metadata.broker_service import MemberMetadata

    return MemberMetadata(settings, logs, node_id, now_ms)


def local_roles(topic, node_id: int, replicates: bool = False, may_lead: bool = True) -> list:
    """The Role of a node per partition; None where it has no replica. may_lead: else it follows
    whoever leads, itself included."""
    roles = {}
    found = []
    for state in topic.partitions:
        # Partition states are shared, so that a topic has few different ones.
        if state not in roles:
            roles[state] = None if node_id not in state.replicas else Role(
                may_lead and state.leader == node_id, state.leader_epoch, len(state.isr),
                replicates and len(state.replicas) > 1)
        found.append(roles[state])
    return found

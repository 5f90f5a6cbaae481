"""This broker's metadata, from start to stop: identity, log, tail, controller.

Owns: the metadata log, state.lmdb, the tail, the active controller.
Invariants: partitions are opened from the newest image, so that a start need not apply the effects
  of records that it read; all effects of the image in state.lmdb have happened; a start that fails
  before it opens partitions preserves the clean marks of the previous stop, because it changed
  nothing but the metadata log.
Source: KIP-631 (registration).
"""

import logging
import random

from pylog._native.log.log import LogError
from pylog.log import checkpoint_files
from pylog.log.errors import StartError
from pylog.log.partition_logs import Role
from pylog.metadata import meta_properties
from pylog.metadata.controller import broker_registration
from pylog.metadata.controller.active_controller import ActiveController
from pylog.metadata.image.image import ACCESS_RULE, RESOURCE_BROKER, Image, MetadataError
from pylog.metadata.image.loader import Tail
from pylog.metadata.image.state_store import Store, StoreError
from pylog.metadata.log.local_log import LocalLog, limits_of

TYPE_CHECKING = False  # typing.TYPE_CHECKING would cost the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from pylog.metadata.quorum.etcd_removal import Seats
    from pylog.metadata.quorum.voter_status import Voters

# The maximum log that a start after a crash reads.
RECORDS_BETWEEN_IMAGES = 10_000
SECURITY_PROTOCOLS = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}

log = logging.getLogger("pylog.metadata")


class MetadataService:
    """logs: this node's LogManager. `store`: the first directory's state.lmdb, while open.
    `controller`: set from open() on. `previous_epoch`: this broker's epoch in the previous run if
    that stopped cleanly, else -1.
    """

    controller: ActiveController
    replicates = False  # True if other brokers can have replicas and fetch
    departures = None  # of other brokers, if there are any (pylog.replication)
    voters: "Voters | None" = None  # if each controller has its own etcd
    seats: "Seats | None" = None  # in the same case: removes a lost controller's etcd
    previous_epoch = -1
    _log: LocalLog
    _identity: meta_properties.Identity
    _last_epoch: int | None = None  # of this broker, as the previous run registered it
    # The state of a clean stop, until partitions are opened: directory numbers, checkpoints.
    _last_stop: tuple[frozenset, dict] = frozenset(), {}
    _opened = False  # True once the partitions are open

    def __init__(self, settings, logs, node_id: int, now_ms):
        self.tail = Tail(Image())
        self.store: Store | None = None
        self._settings = settings
        self._logs = logs
        self._node_id = node_id
        self._now_ms = now_ms
        self._random = random.SystemRandom()
        self._stored_offset = -1  # of the image in state.lmdb
        self._left_out: dict[tuple[str, str], str] = {}  # (broker, dynamic setting) -> reason

    @property
    def image(self) -> Image:
        """Return the cluster's state in force on this broker."""
        return self.tail.published

    @property
    def cluster_id(self) -> str:
        """Return the cluster's id, 22 characters."""
        return self._identity.cluster_id

    async def standby_features(self) -> list[tuple[int, dict[str, tuple[int, int]]]]:
        """Return what each other controller that is no broker supports: [(node id, {feature:
        (lowest, highest level)})]. Leaves out those that do not respond.
        """
        return []

    # ---- start and stop -------------------------------------------------------------------------

    def open(self, first=()) -> None:
        """Format or read the log directories and open the partitions. first: initial records of a
        new cluster whose brokers are other nodes. Raises StartError.
        """
        logs = self._logs
        paths = [path for _, path in logs.disks.usable()]
        meta_properties.check_alone(paths)
        meta_properties.check_first(paths)
        store, clean, checkpoints = self._open_directories(None)
        try:
            self._log = LocalLog(
                logs.directories[0], checkpoints.pop(LocalLog.KEY, None) if 0 in clean else None,
                self._now_ms, **limits_of(self._settings))
            self._follow_log(store)
            # A partition in an offline directory loses its leader, and so gets a new epoch later.
            self.controller.become_active(
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
        """Read identity and state. Returns (the store, numbers of the directories whose last stop
        was clean, the logs' checkpoints). Raises StartError.
        """
        logs = self._logs
        self._identity = meta_properties.load_or_format(
            [path for _, path in logs.disks.usable()], self._node_id, self._random, new_cluster_id)
        try:
            self.store = store = Store(logs.paths[0])
        except StoreError as error:
            raise StartError(f"{logs.paths[0]}/state.lmdb cannot be used: {error}") from error
        self.previous_epoch = checkpoint_files.clean_epoch(logs.paths[0])
        clean = logs.disks.take_clean_marks(store.take_clean_mark())
        checkpoints = store.load_checkpoints()
        self._last_stop = clean, dict(checkpoints)
        return store, clean, checkpoints

    def _open_partitions(self, store: Store, clean: frozenset, checkpoints: dict) -> None:
        """Open the partitions that the newest image assigns to this broker. Raises StartError,
        LogError's kinds.
        """
        logs, image = self._logs, self.tail.newest
        # From here on the last stop's marks are no longer valid for the logs.
        self._last_stop = frozenset(), {}
        if image.offset == -1 and logs.holds_partitions():
            raise StartError(
                f"{logs.paths[0]} holds partitions but its metadata log is empty or missing")
        try:
            logs.open_partitions(
                [(topic.name, topic.id, self.local_roles(topic),
                  image.topic_config(topic.name)) for topic in image.topics.values()],
                checkpoints, clean, store)
        except StoreError as error:
            raise StartError(f"{logs.paths[0]}/state.lmdb cannot be used: {error}") from error
        self._opened = True

    def _unreadable(self, error: Exception) -> StartError:
        # The next start must scan the files.
        self._last_stop = frozenset(), {}
        # Includes ValueError: undecodable records or invalid batches.
        return StartError(f"the metadata log in {self._logs.paths[0]} cannot be read: {error}")

    def _follow_log(self, store: Store) -> None:
        """Bring the tail to the log's end. Raises MetadataError, LogError's kinds, ValueError."""
        self.tail = Tail(self._stored_image(store))
        self.tail.replay(self._log.read(self.tail.newest.offset + 1))
        self._take_newest()
        self.controller = ActiveController(
            self._log, self.tail, self._logs, self._settings, self._random, self._node_id,
            self.cluster_id)

    def _take_newest(self) -> None:
        """Apply the settings of the newest image that a start needs before it serves requests."""
        if not self._settings["authorizer.class.name"] and any(
                kind == ACCESS_RULE for kind, _ in self.tail.newest.security):
            log.warning("access rules exist but authorizer.class.name is not set: every client "
                        "may do everything")
        self.take_broker_configs(self.tail.newest)

    def _stored_image(self, store: Store) -> Image:
        """Return the image in state.lmdb, an empty one if it does not belong to this log."""
        image = store.load_image()
        self._stored_offset = image.offset
        if self._log.holds(image.offset, image.epoch):
            return image
        log.warning("the stored image belongs to another metadata log; reading the log in full")
        return Image()

    def refresh_certificates(self) -> None:
        """Reload changed certificates for connections to the quorum. Blocks."""

    def fatal(self) -> str | None:
        """Return why the node cannot continue, in one line, or None if it can."""
        if self._log.is_offline:
            return f"the metadata log in {self._logs.paths[0]} is offline: its files were deleted"
        return None

    def register(self, addresses, first=()) -> None:
        """Register this broker. addresses: [(listener, host, port)] bound; first: initial records
        of a new cluster. Raises StartError.
        """
        try:
            self.controller.register(
                self.endpoints(addresses), self.directories, self.cordoned, first)
        except LogError as error:
            raise StartError(f"the metadata log cannot be written: {error}") from error
        self.tail.begin()

    async def register_again(self, addresses) -> None:
        """Register added or removed listeners. addresses: as for register()."""
        await self.controller.register_again(
            self.endpoints(addresses), self.directories, self.cordoned)

    async def cordon(self) -> None:
        """Report the cordoned directories to the controller."""
        await self.controller.cordon(self.cordoned)

    @property
    def cordoned(self) -> list:
        """Return the ids of the log directories that get no new replicas."""
        return [id_ for path, id_ in self.directory_ids.items()
                if path in self._settings.cordoned_log_dirs]

    def reports_cordons(self) -> bool:
        """Return True if the image has this broker's current cordoned directories, or cannot have
        them.
        """
        own = self.image.brokers.get(self._node_id)
        return own is None or not broker_registration.has_cordons(self.image) \
            or {*(own.cordoned or ())} == {*self.cordoned}

    @property
    def directories(self) -> list:
        """Return the ids of the log directories."""
        return list(self._identity.directories.values())

    @property
    def directory_ids(self) -> dict:
        """Return {path: id} of the log directories."""
        return self._identity.directories

    def endpoints(self, addresses) -> list:
        """Return [(listener, host, port, security protocol's number)] to register; addresses:
        bound.
        """
        protocols = {listener.name: SECURITY_PROTOCOLS[listener.protocol]
                     for listener in self._settings.listeners}
        advertised = [(listener.name, listener.host, listener.port)
                      for listener in self._settings.advertised_listeners] or addresses
        return [(name, host, port, protocols[name]) for name, host, port in advertised]

    def close(self) -> None:
        """Stop cleanly: flush everything, then write the clean marks. After a failed start, keeps
        the marks of the previous stop.
        """
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
            # A log whose flush failed gets no mark, so that the next start scans it. The first
            # directory has the store.
            if 0 in stopped:
                marks = self._logs.disks.write_clean_marks(stopped, self._epoch_at_rest())
                if marks[0]:
                    # Store only an image whose effects have happened: the next start reads the rest
                    # from the log again, including the records of an open transaction.
                    is_in_force = self._opened and not self.tail.published_in_transaction
                    self.store.save(self.image if is_in_force else None, entries, mark=marks)
                    clean = True
        except (LogError, StoreError, OSError) as error:
            log.error("the shutdown is not clean; the next start runs recovery",
                      extra={"reason": str(error)})
        try:
            self.store.close(clean)
        except OSError as error:
            log.warning("state.lmdb has no checksum", extra={"reason": str(error)})
        self.store = None

    def _epoch_at_rest(self) -> int:
        """Return the broker epoch for the marks. Until this run's registration is in force, the
        image has the previous run's epoch. If that run stopped uncleanly, its data may be lost, so
        its epoch must not be marked.
        """
        broker = self.tail.newest.brokers.get(self._node_id)
        if not self._opened or broker is None or broker.epoch == self._last_epoch:
            return self.previous_epoch
        return broker.epoch

    def local_roles(self, topic) -> list:
        """Return this node's Role per partition, None where it has no replica."""
        return local_roles(topic, self._node_id, self.replicates)

    # ---- effects for the publisher --------------------------------------------------------------

    @property
    def is_image_due(self) -> bool:
        """Return True if a start after a crash would read too many records."""
        # An image inside a transaction lacks records that a start from it would not read.
        return not self.tail.published_in_transaction and (
            self.image.offset - self._stored_offset >= RECORDS_BETWEEN_IMAGES)

    def save_image(self) -> None:
        """Store the published image. Blocks."""
        assert self.store is not None
        image = self.image
        self._stored_offset = image.offset
        try:
            self.store.save(image, [])
        except StoreError as error:
            log.error("the image could not be stored", extra={"reason": str(error)})

    def take_broker_configs(self, image: Image) -> None:
        """Apply this broker's dynamic settings from an image, except those of another version and
        those encrypted with another secret. Each ignored setting is logged once.
        """
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


def local_roles(topic, node_id: int, replicates: bool = False, may_lead: bool = True) -> list:
    """Return a node's Role per partition, None where it has no replica. may_lead: False makes it a
    follower of every leader, including itself.
    """
    roles = {}
    found = []
    for state in topic.partitions:
        # Partition states are shared, so a topic has few different ones.
        if state not in roles:
            roles[state] = None if node_id not in state.replicas else Role(
                may_lead and state.leader == node_id, state.leader_epoch, len(state.isr),
                replicates and len(state.replicas) > 1,
                node_id in (*state.isr, *state.eligible_leader_replicas, *state.last_known_elr))
        found.append(roles[state])
    return found

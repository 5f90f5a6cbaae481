"""The metadata of a broker that is also one of several controllers.

Owns: this host's etcd if brokerd runs it, the connection to the quorum, the election task.
Invariants: records reach the tail from the quorum while this node is on standby, and from its own
  controller while it is active, never from both; `controller` is set only while it may decide; a
  node whose directories belong to another cluster does not join this one; if a node was its own
  controller before, its records are in the quorum before it writes anything else there; a node that
  has been in a quorum never starts an empty quorum with its own records, unless an operator permits
  it, because another node may have newer ones; a node participates only if its metadata log is
  proven to be a prefix of the quorum's; a node becomes ready only after its own etcd, if it has
  one, answered as a current member.
Source: KIP-631 (combined nodes); KIP-595.
"""

import asyncio
import logging
import os

from pylog._native.log.log import LogError
from pylog.config import ConfigError, clusters
from pylog.eventloop.threads import in_thread
from pylog.log.errors import StartError
from pylog.metadata import meta_properties
from pylog.metadata.broker_service import MemberMetadata
from pylog.metadata.controller.active_controller import ActiveController
from pylog.metadata.image.uuids import id_text, random_id
from pylog.metadata.image import snapshot
from pylog.metadata.image.image import Image, MetadataError
from pylog.metadata.image.loader import Tail
from pylog.metadata.log.fetcher import together
from pylog.metadata.log.local_log import limits_of
from pylog.metadata.quorum import etcd_tls
from pylog.metadata.quorum.controller_election import LastResponse, ControllerElection
from pylog.metadata.quorum.controller_lock import Presence
from pylog.metadata.quorum.etcd import Etcd
from pylog.metadata.quorum.etcd_bootstrap import CALL_S, PORT_WAIT_S, Policy
from pylog.metadata.quorum.etcd_process import DIRECTORY, Host, Member
from pylog.metadata.quorum.etcd_removal import Seats
from pylog.metadata.quorum.key_value import Keys, KeysError, Unknown, Unreachable
from pylog.metadata.quorum.quorum_log import DIVERGED, PREFIX, QuorumLog
from pylog.metadata.quorum.quorum_state import END, Holder, Quorum, QuorumLost
from pylog.metadata.quorum.voter_status import Voters
from pylog.peer.connection import Peer
from pylog.peer.controllers import Controller
from pylog.peer.errors import PeerError

ASK_AGAIN_S = 0.2
# How long a node waits for the first controller to start an empty quorum.
FIRST_S = 10.0
# If fewer records are missing, copy them instead of loading a snapshot.
FEW_RECORDS = 1000
TOKEN = "pylog"

log = logging.getLogger("pylog.metadata")


class ControllerMember(MemberMetadata):
    """Like MemberMetadata. `controller`: the active controller if it runs here, else None. first:
    initial records of a new cluster.
    """

    _log: QuorumLog
    _presence: Presence | None = None
    _give_up_s = float("inf")  # when a start without a quorum fails, by the loop's clock

    def __init__(self, settings, logs, node_id: int, now_ms, *, seconds, first=()):
        super().__init__(settings, logs, node_id, now_ms)
        self.controller = None  # type: ignore[assignment]  # None unless active.
        self._first = first
        self._voters = clusters.voters(settings)
        self._etcd_context = etcd_tls.context(settings)
        self._member = self._new_member()
        keys, prefix = self._keys()
        self._renewal = etcd_tls.Renewal(settings, keys, self._member is not None)
        self._quorum = Quorum(
            keys, prefix, settings["controller.quorum.request.timeout.ms"] / 1000, seconds)
        if self._member is not None:
            assert isinstance(keys, Etcd), keys.name
            self.voters = Voters(
                {host.node_id: _client_address(host) for host in self._hosts()},
                lambda address: Etcd([address], ssl_context=keys.ssl_context), prefix + END, now_ms)
            self.seats = Seats(
                lambda addresses: Etcd(addresses, timeout_s=CALL_S, ssl_context=keys.ssl_context),
                {host.node_id: _client_address(host) for host in self._hosts()}, prefix)
        self.election: ControllerElection | None = None
        self._standing: asyncio.Task | None = None

    def _keys(self) -> tuple[Keys, str]:
        """Return the quorum's store and the prefix of its keys. Raises StartError."""
        settings = self._settings
        if settings["quorum.zookeeper.connect"]:
            return _zookeeper(settings), settings["quorum.zookeeper.prefix"]
        addresses = settings["quorum.etcd.endpoints"] or self._etcd_addresses
        return self._etcd(addresses), settings["quorum.etcd.prefix"]

    def _etcd(self, addresses: list[str]) -> Etcd:
        return Etcd(addresses, ssl_context=self._etcd_context, login=_login(self._settings))

    def _new_member(self) -> Member | None:
        settings = self._settings
        if clusters.has_outer_quorum(settings):
            return None
        return Member(settings["quorum.etcd.command"],
                      os.path.join(settings.log_dirs[0], DIRECTORY), self._node_id, self._hosts(),
                      TOKEN, etcd_tls.write_files(settings), self._etcd_context,
                      self._joining_policy())

    def _joining_policy(self) -> Policy:
        settings = self._settings
        return Policy(
            lambda: meta_properties.stored_cluster(settings.log_dirs)
            or settings["quorum.cluster.id"] or None,
            settings["quorum.etcd.prefix"],
            settings["quorum.etcd.replace.after.ms"] / 1000, self._start_wait_s)

    @property
    def _start_wait_s(self) -> float:
        return self._settings["initial.broker.registration.timeout.ms"] / 1000

    def refresh_certificates(self) -> None:
        self._renewal.check()

    def _hosts(self) -> list:
        return [Host(voter.node_id, voter.host, *clusters.etcd_ports(self._settings, voter))
                for voter in self._voters]

    @property
    def _etcd_addresses(self) -> list[str]:
        """Return the addresses of the controllers' etcds, this node's first."""
        hosts = sorted(self._hosts(), key=lambda host: host.node_id != self._node_id)
        return [_client_address(host) for host in hosts]

    @property
    def quorum(self) -> Quorum:
        """Return the quorum, which stores the controllers' log."""
        return self._quorum

    async def standby_features(self) -> list[tuple[int, dict[str, tuple[int, int]]]]:
        # The registration of a controller that is also a broker has its features.
        others = [voter for id_, voter in sorted(self.controllers.voters.items())
                  if id_ != self._node_id and id_ not in self.image.brokers]
        found = await asyncio.gather(*map(self._features_of, others))
        return [(voter.id, features) for voter, features in zip(others, found)
                if features is not None]

    async def _features_of(self, voter: Controller) -> dict[str, tuple[int, int]] | None:
        try:
            peer = await Peer.connect(voter.host, voter.port, f"controller-{self._node_id}",
                                      credentials=self.credentials)
            try:
                return await peer.features()
            finally:
                peer.close()
        except PeerError as error:
            # Its next start checks the levels itself.
            log.warning("cannot check which features a controller supports", extra={
                "controller": voter.id, "reason": str(error)})
            return None

    # ---- start and stop -------------------------------------------------------------------------

    async def join(self) -> None:
        """Do MemberMetadata.join(), but from the quorum. Raises StartError."""
        paths = [path for _, path in self._logs.disks.usable()]
        meta_properties.check_first(paths)
        # The member's own timeout is shorter, and its error is more specific.
        self._give_up_s = asyncio.get_running_loop().time() + self._start_wait_s + PORT_WAIT_S
        if self._member is not None:
            self._member.start()
            await self._member.settled.wait()
        known_id = meta_properties.cluster_of(paths)
        named = await self._patiently(self._quorum.known_cluster_id)
        if self._member is not None:
            await self._await_seat(self._etcd(self._etcd_addresses[:1]))
        cluster_id = named or await self._unnamed_cluster(known_id)
        self._check_cluster(paths[0], known_id, cluster_id)
        await self._claim_node()
        store, clean, known = self._open_directories(cluster_id)
        try:
            self._open_log(store, known.pop(QuorumLog.KEY, None) if 0 in clean else None)
            await self._reach_the_end()
            if named is None:
                self._check_cluster(paths[0], known_id, await self._patiently(
                    self._quorum.cluster_id, cluster_id))
            # Last: a node that stored this and stopped before the quorum had the cluster's id could
            # not start again.
            await self._note_membership(self._log.last_epoch)
            self.tail.begin()
            self._take_newest()
            await in_thread(self._open_partitions, store, clean, known)
        except (MetadataError, LogError, OSError, ValueError) as error:
            raise self._unreadable(error) from error

    async def _await_seat(self, own_etcd: Etcd) -> None:
        """Return once this node's etcd has answered with a majority: only a current member can.
        The other members answer even if they have removed it. Raises StartError.
        """
        try:
            while True:
                self._check_member()
                try:
                    await in_thread(own_etcd.get, self._settings["quorum.etcd.prefix"] + END)
                    return
                except (KeysError, Unknown, Unreachable) as error:
                    await self._pause(QuorumLost(f"the etcd of this node: {error}"))
        finally:
            own_etcd.close()

    async def _claim_node(self) -> None:
        """Claim this node's id. Raises StartError if another process uses it."""
        own = next(voter for voter in self._voters if voter.node_id == self._node_id)
        self._presence = Presence(self._quorum, self._node_id, own.host, own.port)
        try:
            await self._presence.claim(self._give_up_s)
        except QuorumLost as error:
            await self._pause(error)

    async def _unnamed_cluster(self, known_id: str | None) -> str:
        """Return the id of a cluster whose quorum has none yet. known_id: from the directories,
        None if they are empty. Raises StartError.
        """
        await self._check_founding(self._quorum.known_cluster_id)
        found = known_id or await self._after_the_first(self._quorum.known_cluster_id)
        return found or await self._patiently(
            self._quorum.cluster_id, id_text(random_id(self._random)))

    async def _after_the_first(self, call):
        """Return the result of `call` once it is true, or its last result after a while. The first
        controller may be about to store the cluster's id and its records.
        """
        wait_s = 0.0 if self._voters[0].node_id == self._node_id else FIRST_S
        while not (found := await self._patiently(call)) and wait_s > 0:
            wait_s -= ASK_AGAIN_S
            await asyncio.sleep(ASK_AGAIN_S)
        return found

    @staticmethod
    def _check_cluster(path: str, known_id: str | None, cluster_id: str) -> None:
        """Raise StartError if the directories belong to another cluster."""
        if known_id not in (None, cluster_id):
            raise StartError(f"{path} belongs to cluster {known_id}, the quorum to "
                             f"{cluster_id}: start the node that has the data first, and the "
                             "others with empty directories")

    def _open_log(self, store, checkpoint) -> None:
        self._log = QuorumLog(
            self._logs.directories[0], checkpoint, self._now_ms, self._quorum,
            **limits_of(self._settings))
        self.tail = Tail(self._stored_image(store))
        self.tail.replay(self._log.read_committed(self.tail.newest.offset + 1))
        own = next(voter for voter in self._voters if voter.node_id == self._node_id)
        self.election = ControllerElection(
            self._log, self, self._node_id, own.host, own.port,
            max(1, round(self._settings["controller.quorum.fetch.timeout.ms"] / 1000)),
            self.credentials)

    async def _patiently(self, call, *arguments):
        """Return the result of a call of the quorum, retrying until the quorum answers. Raises
        StartError.
        """
        is_logged = False
        while True:
            self._check_member()
            try:
                return await in_thread(call, *arguments)
            except QuorumLost as error:
                if not is_logged:
                    keys = self._quorum.keys
                    log.warning("waiting for the majority of %s", keys.name if clusters.
                                has_outer_quorum(self._settings) else "the controllers' etcds",
                                extra={"members": ",".join(keys.addresses), "reason": str(error)})
                is_logged = True
                await self._pause(error)

    def _check_member(self) -> None:
        """Raise StartError if this node's etcd cannot start."""
        if self._member is not None and self._member.failure is not None:
            raise self._member.failure

    async def _pause(self, error: QuorumLost) -> None:
        """Wait before the next attempt. Raises StartError if the start has taken too long."""
        if asyncio.get_running_loop().time() >= self._give_up_s:
            raise StartError(
                f"no quorum of {self._quorum.keys.name} was formed within "
                f"{self._start_wait_s:.0f} s at {', '.join(self._quorum.keys.addresses)}: {error}. "
                "Start a majority of the controllers, and let them reach each other on these "
                "ports and on the peers' ports") from None
        await asyncio.sleep(ASK_AGAIN_S)

    async def _reach_the_end(self) -> None:
        """Bring the tail to everything committed by now."""
        assert self.election is not None
        view = await self._patiently(self._quorum.read_view)
        if self._log.end_offset > 0 and view.epoch == 0:
            await self._check_founding(self._has_begun)
            if not await self._after_the_first(self._has_begun):
                await in_thread(self._found)  # This node's records come first in the quorum.
            view = await self._patiently(self._quorum.read_view)
        if view.holder is not None and view.holder.node_id != self._node_id:
            self.learned(view.holder)  # Where to register, once that is possible.
        await self._prove_prefix(view.end)
        # Read a short gap batch by batch. If it was trimmed, catch_up() loads the snapshot.
        if view.end - self._log.end_offset > FEW_RECORDS \
                and await self._patiently(self._log.load_snapshot):
            self.tail = Tail(Image())
            self.tail.replay(self._log.read_committed(0))
        while True:
            try:
                return await self.election.catch_up(view.end)
            except QuorumLost as error:
                self._check_member()
                await self._pause(error)

    async def _prove_prefix(self, end: int) -> None:
        """Raise StartError unless the log here is a prefix of the quorum's. end: of the quorum's
        log.
        """
        found = await self._patiently(self._log.compared_to, end)
        if found != DIVERGED and end < self._log.end_offset:
            raise StartError(
                f"the metadata log in {self._logs.paths[0]} has {self._log.end_offset} records, "
                f"the quorum's only {end}: {self._quorum.keys.name} has lost its newest data. "
                "Restore it from a newer backup, or begin with the longest log of the controllers: "
                "remove the keys of the cluster and run brokerd restore-quorum there")
        if found == PREFIX:
            return
        if not await self._patiently(self._log.is_rebuildable):
            raise StartError(
                f"{self._quorum.keys.name} has neither the whole metadata log nor a snapshot of "
                f"it, and the copy in {self._logs.paths[0]} is not proven to be the same log: "
                "restore the keys from a backup")
        if found == DIVERGED:
            log.error("the local metadata log does not belong to the cluster; reading it again "
                      "from the controller", extra={
                "directory": self._logs.paths[0], "end": self._log.end_offset, "quorum_end": end})
        await in_thread(self._log.start_over, found == DIVERGED)
        self.tail = Tail(Image())
        if self.store is not None:
            # The stored image of the old records could pass for an image of the new log.
            await in_thread(self.store.save, Image(), [])

    async def _check_founding(self, call) -> None:
        """Raise StartError if this node must not start an empty quorum. call: returns a true value
        once another node has started it.
        """
        paths = [path for _, path in self._logs.disks.usable()]
        found = meta_properties.membership_in(paths)
        if found is None or found.change == meta_properties.FOUNDING:
            return
        for _ in range(round(FIRST_S / ASK_AGAIN_S)):
            if await self._patiently(call):
                return
            await asyncio.sleep(ASK_AGAIN_S)
        keys = self._quorum.keys
        raise StartError(
            f"the node in {', '.join(paths)} belongs to cluster {found.cluster_id} "
            f"(epoch {found.epoch}), and "
            f"{keys.name} at {', '.join(keys.addresses)} has none of its keys. Restore them from a "
            "backup, or check the addresses and the prefix. If they are lost, run brokerd "
            "restore-quorum on the controller with the longest metadata log, and start that one "
            "first")

    def _has_begun(self) -> bool:
        """Return True if the quorum's log has begun. Blocks."""
        return self._quorum.read_view().epoch > 0

    def _found(self) -> None:
        """Make this node's log the start of the quorum's log. Blocks."""
        image = self.tail.newest
        self._log.save_own_snapshot(snapshot.records_of(image), image.offset, image.epoch)
        if self._log.found_quorum(self.cluster_id):
            log.info("the cluster continues from this node's metadata", extra={
                "offset": image.offset})

    def start_election(self) -> asyncio.Task:
        assert self.election is not None
        self._standing = asyncio.get_running_loop().create_task(self._run_election())
        return self._standing

    async def _run_election(self) -> None:
        """Run the election task until it ends or this node's etcd cannot start. Raises StartError.
        """
        assert self.election is not None
        loop = asyncio.get_running_loop()
        tasks: list[asyncio.Task] = [loop.create_task(self.election.run())]
        if self._member is not None:
            tasks.append(loop.create_task(self._member.failed.wait()))
        if self._presence is not None:
            tasks.append(loop.create_task(self._presence.keep()))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            self._check_member()
            for task in tasks:
                if task.done():
                    await task
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def wake(self) -> None:
        if self.election is not None:
            self.election.wake()

    async def leave(self) -> None:
        """Leave the quorum; another controller continues the work of this node."""
        if self._standing is not None:
            self._standing.cancel()
            await asyncio.gather(self._standing, return_exceptions=True)
        if self._presence is not None:
            await self._presence.release()
        await in_thread(self._quorum.close)
        if self._member is not None:
            await self._member.stop()

    # ---- callbacks of the election task ---------------------------------------------------------

    async def follow(self, batches: list) -> None:
        """Fold the other controllers' records into the tail, while this node is on standby."""
        for batch in together(batches):
            self.tail.push(await in_thread(self.tail.fold, batch))
        image = self.tail.newest
        if not self.tail.in_transaction and self._log.snapshot_is_due(image.offset):
            await in_thread(self._log.shorten, image)

    async def reload_snapshot(self) -> None:
        """Replace the tail's image with the snapshot that the copy begins with."""
        self.tail.replace(await in_thread(lambda: next(self._log.read_committed(0))))
        log.info("a metadata snapshot was loaded", extra={
            "end": self._log.snapshot_end})

    def learned(self, holder: Holder) -> None:
        """Note the active controller."""
        self.controllers.learned(holder.node_id, holder.epoch,
                                 [(holder.node_id, holder.host, holder.port)])

    async def become_active(self, epoch: int, previous: LastResponse | None) -> asyncio.Event:
        """Become the active controller. previous: the last response of the previous one. Returns an
        event that is set if an append fails. Raises LogError's kinds.
        """
        controller = ActiveController(
            self._log, self.tail, self._logs, self._settings, self._random, self._node_id,
            self.cluster_id)
        self.controller = controller
        await controller.begin(epoch, self._first, previous)
        return controller.append_failed

    async def step_down(self) -> None:
        """Resign; return once no decision is running, so that the tail has one source at a time."""
        controller, self.controller = self.controller, None  # type: ignore[assignment]
        if controller is not None:
            controller.resign()
            await controller.resigned()


def _client_address(host: Host) -> str:
    return f"{host.host}:{host.client_port}"


def _login(settings) -> tuple | None:
    """Return the login of an external etcd, None without one. Raises ConfigError."""
    name, password = settings["quorum.etcd.username"], settings["quorum.etcd.password"]
    if name is None:
        return None
    if not password:
        raise ConfigError("quorum.etcd.username is set, and quorum.etcd.password is not")
    return name, password


def _zookeeper(settings) -> Keys:
    """Return the connection to ZooKeeper. Raises StartError."""
    try:
        # Imported here: only few clusters use it.
        from pylog.metadata.quorum.zookeeper import ZooKeeper, tls_of
    except ImportError as error:
        raise StartError("quorum.zookeeper.connect needs kazoo: pip install "
                         f"'pylog-broker[zookeeper]' ({error})") from None
    return ZooKeeper(
        settings["quorum.zookeeper.connect"],
        settings["controller.quorum.fetch.timeout.ms"] / 1000,
        login=settings["quorum.zookeeper.digest"], tls=tls_of(settings))

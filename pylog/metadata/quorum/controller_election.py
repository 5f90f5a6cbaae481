"""Controller election, on each node with the controller role: standby, takeover, resignation.

Owns: the task that follows the quorum, and this node's terms in it.
Invariants: a standby's tail has everything committed, except records in transit; a controller is
  appointed only after the tail has every record before its epoch; a controller that cannot renew
  its term, or whose append failed, steps down before the node becomes a standby again; a node
  replaces another controller only if that one's lease expired, it resigned, or its controller
  listener refuses connections; nothing is written to a quorum whose keys are older than this node's
  copy of them.
Source: Kafka's QuorumController (claim, renounce); Patroni (leases as signs of life).
"""

from __future__ import annotations

import asyncio
import logging
from collections import namedtuple
from functools import partial

from pylog import supervisor
from pylog._native.log.log import LogError
from pylog.eventloop.threads import in_thread
from pylog.metadata.log.metadata_log import Conflict
from pylog.metadata.quorum.quorum_log import QuorumLog
from pylog.metadata.quorum.quorum_state import Holder, KeysLost, QuorumLost, Term, Trimmed, View
from pylog.peer.connection import Peer
from pylog.peer.errors import PeerError

TYPE_CHECKING = False  # typing.TYPE_CHECKING would cost the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from pylog.peer.credentials import Credentials

RENEWALS_PER_TTL = 3
# Between reads of the quorum if its watch reports nothing.
POLL_S = 1.0
# Between connection attempts to a controller that does not answer.
DIAL_AGAIN_S = 1.0
DIAL_S = 0.5
RETRY_S = 0.1
# After a disk error.
SHORTAGE_S = 1.0

log = logging.getLogger("pylog.metadata")

LastResponse = namedtuple("LastResponse", ("node_id", "epoch", "at_s"))
LastResponse.__doc__ = """The time of the last response from a controller's host, by the loop's
clock.

epoch: of its term.
"""


class ControllerElection:
    """service: implements the coroutines follow(batches), which puts them into the tail;
    reload_snapshot(), which loads the copy's snapshot there; become_active(epoch, previous), which
    returns an event that is set if an append fails; step_down(), after which nothing is decided any
    more; and the function learned(holder). host, port: this node's controller listener, for the
    other nodes. ttl_s: lease time of a controller. credentials: for connections to controllers.
    """

    def __init__(self, quorum_log: QuorumLog, service, node_id: int, host: str, port: int,
                 ttl_s: int, credentials: Credentials | None = None):
        self._log = quorum_log
        self._quorum = quorum_log.quorum
        self._service = service
        self._node_id = node_id
        self._host = host
        self._port = port
        self._ttl_s = ttl_s
        self._credentials = credentials
        self._stirred = asyncio.Event()  # the quorum may have changed
        self.holder: Holder | None = None
        self._last_response: LastResponse | None = None  # of the previous controller

    async def run(self) -> None:
        """Alternate between standby and active controller until cancelled. Raises unrecoverable
        errors: Trimmed, ValueError (the quorum's records are damaged), MetadataError.
        """
        while True:
            try:
                view = await self._stand_by()
                await self._serve(await in_thread(
                    self._quorum.campaign, self._node_id, self._host, self._port, self._ttl_s,
                    view))
            except Conflict as error:
                log.info("another node is the controller", extra={"reason": str(error)})
            except KeysLost as error:
                await self._wait_for_keys(str(error))
            except QuorumLost as error:
                log.warning("the quorum does not respond", extra={"reason": str(error)})
                await asyncio.sleep(RETRY_S)
            except (LogError, OSError) as error:
                # If the directory failed permanently, its failure handling ends the broker.
                log.error("the metadata log cannot be written; retrying", extra={
                    "reason": str(error)})
                await asyncio.sleep(SHORTAGE_S)

    async def _wait_for_keys(self, reason: str) -> None:
        """Pause while an operator restores the keys. Logs each loss once."""
        if not self._quorum.lost_keys:
            log.critical("the quorum has lost the cluster's keys; metadata cannot change until "
                         "they are restored from a backup", extra={"reason": reason})
        self._quorum.lost_keys = reason
        await asyncio.sleep(POLL_S)

    def _check_keys(self, view: View) -> None:
        """Raise KeysLost if the quorum's keys are older than this node's copy."""
        end, epoch = self._log.end_offset, self._log.last_epoch
        if view.end < end or view.epoch < epoch:
            raise KeysLost(
                f"{self._quorum.keys.name} has a metadata log of {view.end} records in epoch "
                f"{view.epoch}, and this node has read {end} records up to epoch {epoch} from it")
        if self._quorum.lost_keys:
            log.info("the quorum has the cluster's keys again")
            self._quorum.lost_keys = ""

    def wake(self) -> None:
        """Read the quorum now, because it changed. The watch may be slower, or silent while this
        host's etcd starts.
        """
        self._stirred.set()

    # ---- standby --------------------------------------------------------------------------------

    async def _stand_by(self) -> View:
        """Follow the quorum until this node may take over; return the View at that time."""
        loop = asyncio.get_running_loop()
        watching = loop.create_task(supervisor.restarting(
            "watch of the quorum", partial(self._quorum.watch, self._stirred.set)))
        guarding: asyncio.Task | None = None
        guarded: Holder | None = None
        try:
            while True:
                self._stirred.clear()
                view = await in_thread(self._quorum.read_view)
                self._check_keys(view)
                await self.catch_up(view.end)
                self._learn(view.holder)
                if view.holder is None or view.holder.node_id == self._node_id:
                    return view
                if guarded != view.holder:
                    if guarding is not None:
                        guarding.cancel()
                    guarding = loop.create_task(supervisor.restarting(
                        "watch of the controller", partial(self._until_gone, view.holder)))
                    guarded = view.holder
                elif guarding is not None and guarding.done():
                    log.info("the controller has stopped", extra={
                        "controller": view.holder.node_id})
                    return view
                await _until(self._stirred, loop.time() + POLL_S)
        finally:
            for task in filter(None, (watching, guarding)):
                task.cancel()

    def _learn(self, holder: Holder | None) -> None:
        if holder is not None and holder != self.holder:
            self._service.learned(holder)
        self.holder = holder

    async def catch_up(self, end: int) -> None:
        """Bring copy and tail at least to `end`. Raises like run(), and LogError's kinds."""
        while self._log.end_offset < end:
            try:
                batches = await in_thread(self._log.catch_up)
            except Trimmed:
                # The node was away for longer than two snapshots cover.
                if not await in_thread(self._log.load_snapshot):
                    raise
                await self._service.reload_snapshot()
                continue
            await self._service.follow(batches)

    async def _until_gone(self, holder: Holder) -> None:
        """Return once the controller's listener refuses connections."""
        while True:
            try:
                peer = await Peer.connect(holder.host, holder.port, f"standby-{self._node_id}",
                                          DIAL_S, self._credentials)
            except PeerError as error:
                if isinstance(error.__cause__, ConnectionRefusedError):
                    self._stirred.set()
                    return
                # A timeout proves nothing; the lease will expire if the controller has failed.
                await asyncio.sleep(DIAL_AGAIN_S)
                continue
            try:
                peer.watch_host()
                await peer.ended()
            finally:
                self._last_response = LastResponse(holder.node_id, holder.epoch,
                                    asyncio.get_running_loop().time() - peer.silent_s())
                peer.close()
            await asyncio.sleep(0)

    # ---- active ---------------------------------------------------------------------------------

    async def _serve(self, term: Term) -> None:
        """Act as the controller from the start of a term to its end."""
        try:
            await self.catch_up(term.end)
            self._log.begin_term(term)
            self._learn(term.holder)
            log.info("this node is the controller", extra={
                "epoch": term.epoch, "offset": term.end})
            previous = self._last_response
            if previous is not None and previous.epoch != term.epoch - 1:
                # Another controller was active since, possibly with connections to other nodes
                # only.
                previous = None
            failed = await self._service.become_active(term.epoch, previous)
            await self._keep(term, failed)
        finally:
            self._log.end_term()
            self.holder = None
            await self._service.step_down()
            await in_thread(self._quorum.resign, term)

    async def _keep(self, term: Term, failed: asyncio.Event) -> None:
        """Renew the term; return when an append failed. Raises Conflict, QuorumLost."""
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while True:
            failed.clear()
            if self._log.term is None:
                return
            if loop.time() >= due_s:
                renewed = await in_thread(self._quorum.renew, term, self._ttl_s)
                term = term._replace(lease=renewed.lease)
                due_s = loop.time() + self._ttl_s / RENEWALS_PER_TTL
            await _until(failed, due_s)


async def _until(event: asyncio.Event, due_s: float) -> None:
    """Return once the event is set or the loop's clock reaches due_s."""
    try:
        async with asyncio.timeout_at(due_s):
            await event.wait()
    except TimeoutError:
        pass

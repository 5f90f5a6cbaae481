"""The controller's decisions on brokers, and its background tasks.

Owns: the state of heartbeats; the task that probes and fences brokers and balances leaders.
Invariants: a heartbeat that changes nothing waits for no decision; a broker is fenced when its
  session times out, and sooner only if its inter-broker listener refuses connections and either its
  heartbeat connection closed or it shared a process with a lost controller; a request is answered
  once its records are in the log, and its sender follows the log itself.
Source: KIP-631, KIP-841, KIP-497, KIP-858, KIP-966; Kafka's QuorumController.
"""

import asyncio
import logging

from pylog import supervisor
from pylog._native.log.log import LogError
from pylog.metadata.controller import broker_registration
from pylog.metadata.controller import liveness_probe
from pylog.metadata.controller.broker_heartbeats import Heartbeats
from pylog.metadata.controller.decision_queue import Decider
from pylog.metadata.controller.partitions import elections, replica_directories, topics
from pylog.metadata.controller.partitions.alter_partition import WITH_EPOCHS, change_isr
from pylog.metadata.controller.partitions.partition_change import Rules
from pylog.metadata.image.feature_levels import METADATA_VERSION
from pylog.metadata.log.metadata_log import NotController
from pylog.protocol import messages
from pylog.protocol.api_error import Refusal
from pylog.protocol.errors import ErrorCode

RETRY_S = 0.1
UNREGISTER_CONTROLLER_LEVEL = 33  # KIP-1312

log = logging.getLogger("pylog.metadata")


class Members(Decider):
    """cluster_id: must match in registrations; None rejects every registration."""

    def __init__(self, metadata_log, tail, settings, random, node_id: int, cluster_id=None):
        super().__init__(metadata_log, tail, settings, random, node_id)
        self._cluster_id = cluster_id
        self._heartbeats = Heartbeats(settings["broker.session.timeout.ms"] * 1_000_000)
        self._followed: object = None  # The registrations that `_heartbeats` reflects.
        self._tending: asyncio.Task | None = None
        self._verdicts: set[asyncio.Task] = set()

    def _rules(self) -> Rules:
        return Rules(self._image, self._settings)

    def _known(self) -> Heartbeats:
        """Return the heartbeats, updated to the currently registered brokers."""
        if self._followed is not self._image.brokers:
            self._followed = self._image.brokers
            self._heartbeats.follow(self._image)
        return self._heartbeats

    def resign(self) -> None:
        if self._tending is not None:
            self._tending.cancel()
            self._tending = None
        super().resign()

    # ---- requests of brokers --------------------------------------------------------------------

    async def register_broker(self, request):
        """Decide a BrokerRegistrationRequest. Returns its response."""
        def decision():
            local_id = self._known().local_id
            if local_id not in (None, request.broker_id):
                # This broker's own replicas would neither follow other replicas nor wait for them.
                raise Refusal(
                    ErrorCode.INVALID_REGISTRATION,
                    f"Broker {local_id} is its own controller, and the only broker: one of "
                    "several has its controllers in other processes, or three of them")
            return broker_registration.register(
                self._rules(), self._known(), request, self._cluster_id, _now_ns())

        response = messages.BrokerRegistrationResponse
        try:
            async with self._deciding:
                epoch, offset = await self._decided_in_turn(decision)
                # An amended registration counts as new: the broker must read this record first.
                self._known().registered(request.broker_id, offset)
        except (Refusal, LogError) as error:
            _log_refused(request, "registration", error)
            return response(error_code=_code(error))
        log.info("broker registered", extra={"broker": request.broker_id, "epoch": epoch})
        return response(error_code=ErrorCode.NONE, broker_epoch=epoch)

    async def heartbeat(self, request, connection: int = 0):
        """Decide a BrokerHeartbeatRequest. Returns its response. connection: id of the connection
        that received it.
        """
        response = messages.BrokerHeartbeatResponse
        try:
            if not self.is_active:
                raise NotController()
            known = self._known()
            needs_decision = broker_registration.needs_decision(self._image, known, request)
            known.came(request.broker_id, connection)
            if not needs_decision:
                # A heartbeat that changes nothing waits for no decision.
                broker = self._image.brokers[request.broker_id]
                state = broker_registration.State(
                    broker.fenced, broker.in_controlled_shutdown, False)
            else:
                state = await self._heartbeat(request, connection)
            known = self._known()
            self._check_connection(request.broker_id, connection)
        except (Refusal, LogError) as error:
            _log_refused(request, "heartbeat", error)
            return response(error_code=_code(error))
        known.touch(request.broker_id, request.current_metadata_offset, connection, _now_ns())
        if state.may_stop:
            # The next process of this broker need not wait for this session to time out.
            known.end(request.broker_id)
        return response(
            error_code=ErrorCode.NONE, is_fenced=state.is_fenced, should_shut_down=state.may_stop,
            is_caught_up=known.is_caught_up(request.broker_id, request.current_metadata_offset))

    def _check_connection(self, broker_id: int, connection: int) -> None:
        """Raise Refusal if the connection has closed. The response has no recipient then."""
        broker = self._image.brokers.get(broker_id)
        if broker is None or not self._known().counts(broker_id, connection):
            if broker is not None and not broker.fenced and self.is_active:
                # A decision for the broker's own heartbeat may have unfenced it since.
                self._begin_to_judge(broker_id)
            raise Refusal(ErrorCode.NETWORK_EXCEPTION, "its connection has ended")

    async def _heartbeat(self, request, connection: int):
        async with self._deciding:
            self._check_connection(request.broker_id, connection)
            before, was_fenced = self._image.offset, self._image.brokers[request.broker_id].fenced
            state, offset = await self._decided_in_turn(
                lambda: broker_registration.process_heartbeat(
                    self._rules(), self._known(), request))
            if was_fenced and not state.is_fenced:
                self._known().unfenced(request.broker_id, _now_ns())
            if state.is_stopping and (
                    offset > before or not self._known().is_stopping(request.broker_id)):
                self._known().stopping(request.broker_id, offset)
        return state

    async def alter_partition(self, request, version: int = WITH_EPOCHS):
        """Decide an AlterPartitionRequest. Returns its response."""
        def decision():
            broker_registration.check_epoch(self._image, request.broker_id, request.broker_epoch)
            yield
            return change_isr(self._rules(), request, version)

        try:
            return (await self._decided(decision))[0]
        except (Refusal, LogError) as error:
            _log_refused(request, "AlterPartition", error)
            return messages.AlterPartitionResponse(error_code=_code(error), topics=[])

    async def assign_directories(self, request):
        """Decide an AssignReplicasToDirsRequest. Returns its response."""
        def decision():
            broker_registration.check_epoch(self._image, request.broker_id, request.broker_epoch)
            return (yield from replica_directories.assign(self._rules(), request))

        try:
            return (await self._decided(decision))[0]
        except (Refusal, LogError) as error:
            _log_refused(request, "AssignReplicasToDirs", error)
            return messages.AssignReplicasToDirsResponse(error_code=_code(error), directories=[])

    async def allocate_producer_ids(self, request):
        """Decide an AllocateProducerIdsRequest. Returns its response."""
        def decision():
            broker_registration.check_epoch(self._image, request.broker_id, request.broker_epoch)
            yield
            return topics.allocate_producer_ids(self._image, request.broker_id)

        response = messages.AllocateProducerIdsResponse
        try:
            block, _ = await self._decided(decision)
        except OverflowError:
            return response(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
        except (Refusal, LogError) as error:
            _log_refused(request, "AllocateProducerIds", error)
            return response(error_code=_code(error))
        return response(error_code=ErrorCode.NONE, producer_id_start=block.first,
                        producer_id_len=block.count)

    async def unregister(self, request):
        """Decide an UnregisterBrokerRequest. Returns its response."""
        def decision():
            if request.broker_id == self._known().local_id:
                raise Refusal(ErrorCode.INVALID_REQUEST,
                              f"Broker {request.broker_id} is its own controller, and the only "
                              "broker")
            records = yield from broker_registration.unregistered(self._rules(), request.broker_id)
            return records, None

        response = messages.UnregisterBrokerResponse
        try:
            await self._decided(decision)
        except (Refusal, LogError) as error:
            return response(error_code=_code(error), error_message=str(error))
        return response(error_code=ErrorCode.NONE, error_message="")

    async def unregister_controller(self, request):
        """Decide an UnregisterControllerRequest (KIP-1312). Returns its response.

        etcd or ZooKeeper keeps the quorum's members, so no controller is registered in the
        metadata.
        """
        level = self._image.features.get(METADATA_VERSION, 0)
        response = messages.UnregisterControllerResponse
        if level < UNREGISTER_CONTROLLER_LEVEL:
            return response(
                error_code=ErrorCode.UNSUPPORTED_VERSION,
                error_message=f"{METADATA_VERSION} {level} does not support unregistering "
                              f"controllers; {UNREGISTER_CONTROLLER_LEVEL} or higher does")
        if request.controller_id == self._node_id:
            return response(error_code=ErrorCode.INVALID_REQUEST,
                            error_message="The active controller cannot unregister itself.")
        return response(error_code=ErrorCode.CONTROLLER_ID_NOT_REGISTERED,
                        error_message=f"Controller {request.controller_id} is not registered.")

    # ---- background tasks -----------------------------------------------------------------------

    def tend(self, previous=None) -> None:
        """Start watching brokers and leaders on the running loop, until resign(). previous: a
        controller_election.LastResponse of the previous controller. Its broker
        runs on the same host, so its session counts from then.
        """
        assert self._tending is None and self.is_active, self._node_id
        self._known()
        self._heartbeats.begin(self._image, _now_ns())
        if previous is not None:
            self._heartbeats.record_response(previous.node_id, int(previous.at_s * 1e9))
            # No connection to this controller would show that the previous controller's broker has
            # ended. Other brokers get a new session because nothing indicates a failure. Fence it
            # early only if its listener refuses connections.
            broker = self._image.brokers.get(previous.node_id)
            if broker is not None and not broker.fenced:
                self._begin_to_judge(previous.node_id)
        self._tending = asyncio.get_running_loop().create_task(
            supervisor.restarting("watch of brokers", self._tend))

    async def _tend(self) -> None:
        settings, now = self._settings, asyncio.get_running_loop().time
        balance_s = settings["leader.imbalance.check.interval.seconds"]
        unclean_s = settings["unclean.leader.election.interval.ms"] / 1000
        balance_at, unclean_at = now() + balance_s, now() + unclean_s
        while True:
            wake_at = self._known().next_end_ns(self._image, _now_ns()) / 1e9
            await asyncio.sleep(max(0.01, min(wake_at, balance_at, unclean_at) - now()))
            if not await self._watched("a broker without heartbeats could not be fenced",
                                       self._fence_silent):
                # It is due immediately; the pause only limits retries.
                await asyncio.sleep(RETRY_S)
            if now() >= balance_at:
                balance_at = now() + balance_s
                if settings["auto.leader.rebalance.enable"]:
                    await self._watched("the preferred leaders could not be elected", self._balance)
            if now() >= unclean_at:
                unclean_at = now() + unclean_s
                await self._watched("unclean elections failed", self._elect_unclean)

    async def _watched(self, failure: str, step) -> bool:
        """Run one step; return False if it failed. A failed step is due again, and the others go
        on.
        """
        try:
            await step()
        except LogError as error:
            level = logging.INFO if error.code == ErrorCode.NOT_CONTROLLER else logging.ERROR
            log.log(level, failure, extra={"reason": str(error)})
        except Exception:
            supervisor.report("watch of brokers", failure)
        else:
            return True
        return False

    async def _fence_silent(self) -> None:
        for broker_id in self._known().silent(self._image, _now_ns()):
            await self._fence(broker_id, "no heartbeat within broker.session.timeout.ms")

    async def _fence(self, broker_id: int, reason: str) -> None:
        """Fence a broker unless it has a session again."""
        def decision():
            broker = self._image.brokers.get(broker_id)
            if broker is None or broker.fenced or self._known().is_alive(broker_id, _now_ns()):
                return [], False
            return (yield from broker_registration.fenced(self._rules(), broker_id)), True

        fenced, _ = await self._decided(decision)
        if fenced:
            log.warning("broker fenced", extra={"broker": broker_id, "reason": reason})

    async def _balance(self) -> None:
        def decision():
            return (yield from elections.balanced(self._rules())), None

        await self._decided(decision)

    async def _elect_unclean(self) -> None:
        def decision():
            return (yield from elections.unclean(self._rules())), None

        await self._decided(decision)

    def connection_closed(self, connection: int) -> None:
        """Probe the broker whose heartbeat connection closed; fence it if its listener refuses."""
        broker_id = self._known().ended(connection)
        if broker_id is None or not self.is_active or self._image.brokers[broker_id].fenced:
            return
        self._begin_to_judge(broker_id)

    def _begin_to_judge(self, broker_id: int) -> None:
        task = asyncio.get_running_loop().create_task(
            supervisor.reporting("watch of brokers", self._judge(broker_id), broker=broker_id))
        self._verdicts.add(task)
        task.add_done_callback(self._verdicts.discard)

    async def _judge(self, broker_id: int) -> None:
        broker = self._image.brokers[broker_id]
        if await liveness_probe.is_gone(broker.endpoints, self._settings.between_brokers):
            # A broker with an open heartbeat connection is alive: do not fence it.
            if self._image.brokers.get(broker_id) is broker and \
                    not self._known().is_connected(broker_id):
                self._known().end(broker_id)
                await self._watched("a stopped broker could not be fenced", lambda: self._fence(
                    broker_id, "it has no connection and its listener refuses connections"))


def _now_ns() -> int:
    return int(asyncio.get_running_loop().time() * 1e9)


def _code(error) -> int:
    return error.error if isinstance(error, Refusal) else error.code


def _log_refused(request, what: str, error) -> None:
    log.info("refused", extra={"request": what, "broker": request.broker_id, "reason": str(error)})

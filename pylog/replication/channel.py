"""This broker's channel to the active controller: requests, and heartbeats on their own connection.

Owns: two connections to the active controller, the task for registration and heartbeats.
Invariants: heartbeats have their own connection, so they wait for no other request; after a
  NOT_CONTROLLER response, the request is repeated at another controller; only the caller repeats a
  request with unknown outcome; a pause separates two attempts, a short one once another controller
  is known to be active; from then on, no response of the old controller is awaited.
Source: KIP-631, KIP-500; Kafka's NodeToControllerChannelManager and BrokerLifecycleManager.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from pylog import supervisor
from pylog.peer.connection import Peer, key_of
from pylog.peer.errors import PeerError
from pylog.protocol import messages, tables
from pylog.protocol.errors import ErrorCode
from pylog.replication.lifecycle import Heartbeat, Lifecycle, Register, Stage

TYPE_CHECKING = False  # typing.TYPE_CHECKING would cost the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from pylog.metadata.image.loader import Tail
    from pylog.peer.controllers import Controller, Controllers
    from pylog.peer.credentials import Credentials

RETRY_S, RETRY_MAX_S = 0.05, 1.0
STOPPING_BEAT_S = 0.1
CHECK_INTERVAL_S = 0.1  # Between checks for another active controller during a request.
GONE_S = 1.0  # A controller that restarts accepts connections again after a moment.
REGISTER_S = 0.25  # The controller rejects it until the previous session ended.

log = logging.getLogger("pylog.channel")


def _is_standby(response: Any) -> bool:
    """Return True if the response comes from a controller that is not active."""
    if type(response) is messages.CreateTopicsResponse:
        return any(topic.error_code == ErrorCode.NOT_CONTROLLER for topic in response.topics)
    return getattr(response, "error_code", 0) == ErrorCode.NOT_CONTROLLER


class Line:
    """A connection to the current controller, opened on first use."""

    def __init__(self, controllers: Controllers, client_id: str, timeout_s: float,
                 credentials: Credentials | None = None):
        self._controllers = controllers
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._credentials = credentials
        self._peer: Peer | None = None
        self._queried_id = -1
        self._connecting = asyncio.Lock()

    async def send(self, message: Any) -> Any:
        """Make one attempt; return the response. Raises PeerError; the next attempt uses the next
        controller.
        """
        requested = self._controllers.next()
        responding = asyncio.ensure_future(self._call(requested, message))
        try:
            while not (await asyncio.wait([responding], timeout=CHECK_INTERVAL_S))[0]:
                self._check(requested)
            response = responding.result()
        except PeerError:
            self._controllers.failed(requested.id)
            raise
        finally:
            responding.cancel()
        if _is_standby(response):
            # It is not active: use another controller next.
            self._controllers.refused(requested.id)
        return response

    def _check(self, requested: Controller) -> None:
        """Raise PeerError if another controller is active."""
        if self._controllers.next().id != requested.id:
            raise PeerError(f"{requested.id} is no longer the active controller")

    async def _call(self, requested: Controller, message: Any) -> Any:
        peer = await self._connected(requested)
        version = await peer.newest(
            key_of(message), tables.message(type(message).__qualname__).versions[1])
        return await peer.call(message, version, self._timeout_s)

    async def _connected(self, requested: Controller) -> Peer:
        async with self._connecting:
            self._check(requested)
            if self._peer is not None and self._peer.failure is None \
                    and self._queried_id == requested.id:
                return self._peer
            self.close()
            self._queried_id = requested.id
            self._peer = await Peer.connect(
                requested.host, requested.port, self._client_id, self._timeout_s, self._credentials)
            return self._peer

    def close(self) -> None:
        if self._peer is not None:
            self._peer.close()
            self._peer = None


class ControllerChannel:
    """registration, heartbeat: functions from a lifecycle.Register or lifecycle.Heartbeat to the
    request. is_ready: function that returns True once this broker's logs are open. registered:
    called with each new broker epoch.
    """

    def __init__(self, controllers: Controllers, lifecycle: Lifecycle, tail: Tail, *,
                 node_id: int, settings: Any, credentials: Credentials | None = None,
                 registration: Callable[[Register], Any],
                 heartbeat: Callable[[Heartbeat], Any], is_ready: Callable[[], bool],
                 registered: Callable[[int], object]):
        self.lifecycle = lifecycle
        self.running = asyncio.Event()  # Set once the controller has unfenced this broker.
        self._controllers = controllers
        self._tail = tail
        self._heartbeat_interval_s = settings["broker.heartbeat.interval.ms"] / 1000
        self._session_s = settings["broker.session.timeout.ms"] / 1000
        self._timeout_s = settings["controller.socket.timeout.ms"] / 1000
        self._registration = registration
        self._heartbeat = heartbeat
        self._is_ready = is_ready
        self._registered = registered
        self._client_id, self._credentials = f"broker-{node_id}-controller", credentials
        self._line = Line(controllers, self._client_id, self._timeout_s, credentials)
        self._beats = Line(controllers, f"broker-{node_id}-heartbeat",
                           min(self._timeout_s, self._session_s / 2), credentials)
        self._wake = asyncio.Event()
        self._response_s = 0.0
        self._reported: str | None = None
        self._confirmations: list[asyncio.Future] = []  # done by the next answered one

    @property
    def broker_epoch(self) -> int:
        """Return the epoch of this broker's registration, -1 without one."""
        return self.lifecycle.broker_epoch

    async def call(self, message: Any, timeout_s: float | None = None) -> Any:
        """Return the active controller's response. Raises PeerError after the timeout, or if the
        outcome is unknown: only the caller can decide to repeat the request.
        """
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        pause_s = RETRY_S
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    response = await self._line.send(message)
                    if not _is_standby(response):
                        return response
                    await asyncio.sleep(RETRY_S)
                    await asyncio.wait([self._controllers.change()], timeout=pause_s - RETRY_S)
                    pause_s = min(2 * pause_s, RETRY_MAX_S)
        except TimeoutError:
            raise PeerError(f"no controller answered within {timeout_s} s") from None

    # ---- heartbeats -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Register and send heartbeats until the broker may stop."""
        pause_s = RETRY_S
        while (wanted := self.lifecycle.next(
                self._tail.published.offset, self._is_ready())) is not None:
            before = self.lifecycle.stage
            try:
                await self._say(wanted)
                pause_s = RETRY_S
            except Exception as error:
                if isinstance(error, PeerError):
                    self._report("cannot reach the active controller; retrying", str(error))
                else:
                    # Never stop sending: the broker would stay fenced until an operator intervenes.
                    supervisor.report("broker heartbeats", "a heartbeat failed")
                await asyncio.sleep(RETRY_S)
                await self._sleep(pause_s - RETRY_S)
                pause_s = min(2 * pause_s, RETRY_MAX_S)
                continue
            if self.lifecycle.stage is Stage.RUNNING:
                self.running.set()
            if self.lifecycle.stage is before:
                # Pause after an unchanged stage; after a change, the next message is due.
                await self._rest()

    async def _say(self, wanted: Register | Heartbeat) -> None:
        if isinstance(wanted, Register):
            response = await self._beats.send(self._registration(wanted))
            if response.error_code == ErrorCode.NOT_CONTROLLER:
                raise PeerError("NOT_CONTROLLER")
            self.lifecycle.registered(response.error_code, response.broker_epoch)
            if response.error_code:
                self._report("the controller did not register this broker",
                             ErrorCode.of(response.error_code).name)
            else:
                log.info("registered", extra={"epoch": response.broker_epoch})
                self._registered(response.broker_epoch)
        else:
            confirmed = len(self._confirmations)  # Later ones need a later heartbeat.
            response = await self._beats.send(self._heartbeat(wanted))
            if response.error_code == ErrorCode.NOT_CONTROLLER:
                raise PeerError("NOT_CONTROLLER")
            was = self.lifecycle.stage
            self.lifecycle.on_heartbeat_response(
                wanted, response.error_code, response.is_fenced, response.should_shut_down)
            if self.lifecycle.stage is not was:
                log.info("broker is %s", self.lifecycle.stage.name.lower(),
                         extra={"epoch": self.broker_epoch})
            if not response.error_code:
                self._confirm(confirmed)
        self._response_s = asyncio.get_running_loop().time()

    def _report(self, text: str, reason: str) -> None:
        if reason != self._reported:
            log.warning(text, extra={"reason": reason})
            self._reported = reason

    async def _rest(self) -> None:
        """Wait until the next heartbeat is due or the state has changed."""
        stage = self.lifecycle.stage
        if stage is Stage.REGISTER:
            await self._sleep(REGISTER_S)
        elif stage is Stage.STOPPING:
            await self._sleep(STOPPING_BEAT_S)
        elif stage is Stage.CATCH_UP and self._tail.published.offset < self.broker_epoch:
            caught_up = asyncio.ensure_future(self._tail.wait(self.broker_epoch))
            await asyncio.wait([caught_up], timeout=self._heartbeat_interval_s)
            caught_up.cancel()
        elif stage is Stage.CATCH_UP:
            await self._sleep(min(self._heartbeat_interval_s, STOPPING_BEAT_S))
        else:
            await self._sleep(self._heartbeat_interval_s)

    async def _sleep(self, seconds: float) -> None:
        """Wait until the state changes, another controller becomes active, which needs a heartbeat
        within a session timeout, or the time is over.
        """
        waking = asyncio.ensure_future(self._wake.wait())
        try:
            await asyncio.wait([waking, self._controllers.change()], timeout=seconds,
                               return_when=asyncio.FIRST_COMPLETED)
        finally:
            waking.cancel()
        self._wake.clear()

    def send_heartbeats(self) -> None:
        """Send the next heartbeat now, because of a change or an outdated epoch."""
        self._wake.set()

    async def confirm(self) -> None:
        """Send a heartbeat now; return once the active controller has accepted it. Never returns
        while no controller answers, or while it rejects this broker.
        """
        waiting = asyncio.get_running_loop().create_future()
        self._confirmations.append(waiting)
        self.send_heartbeats()
        try:
            await waiting
        finally:
            if waiting in self._confirmations:
                self._confirmations.remove(waiting)

    def _confirm(self, count: int) -> None:
        confirmed, self._confirmations = self._confirmations[:count], self._confirmations[count:]
        for waiting in confirmed:
            if not waiting.done():
                waiting.set_result(None)

    async def leave(self, task: asyncio.Task, seconds: float, needed: int) -> None:
        """Run the controlled shutdown. Returns once this broker leads nothing, fewer than `needed`
        controllers run, the controller has not answered for a session timeout, or after `seconds`.
        task: the task of run(). needed: how many controllers must run for one to be active.
        """
        loop = asyncio.get_running_loop()
        self.lifecycle.stop()
        self.send_heartbeats()
        gone = loop.create_task(supervisor.restarting(
            "watch of the controllers", partial(self._until_gone, needed)))
        end_s, self._response_s = loop.time() + seconds, max(self._response_s, loop.time())
        while not (task.done() or gone.done()) \
                and loop.time() < min(end_s, self._response_s + self._session_s):
            await asyncio.wait([task, gone], timeout=STOPPING_BEAT_S,
                               return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        if not task.done():
            log.warning("the controller did not confirm the controlled shutdown; stopping anyway")
            task.cancel()

    async def _until_gone(self, needed: int) -> None:
        """Return once fewer than `needed` controllers have accepted connections for GONE_S."""
        loop = asyncio.get_running_loop()
        since_s: float | None = None
        while since_s is None or loop.time() - since_s < GONE_S:
            ended = await asyncio.gather(
                *[self._has_ended(controller) for controller in self._controllers.voters.values()])
            if ended.count(False) >= needed:
                since_s = None
            elif since_s is None:
                since_s = loop.time()
            await asyncio.sleep(STOPPING_BEAT_S)

    async def _has_ended(self, controller: Controller) -> bool:
        """Return True if the controller's listener refuses connections. A timeout proves nothing.
        """
        try:
            peer = await Peer.connect(controller.host, controller.port, self._client_id,
                                      self._timeout_s, self._credentials)
        except PeerError as error:
            return isinstance(error.__cause__, ConnectionRefusedError)
        peer.close()
        return False

    def close(self) -> None:
        for line in (self._line, self._beats):
            line.close()

"""Maintenance of a running broker, every second and after recovery.

Owns: partitions of failed disks that still have a leader.
Invariants: a step that fails is reported and retried after a second, and does not prevent the other
  steps.
"""

from __future__ import annotations

import asyncio
import logging

from pylog import supervisor
from pylog.eventloop.threads import in_thread

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from pylog._native.server.grants import Grants
    from pylog.config import Settings
    from pylog.log.manager import LogManager
    from pylog.metadata.service import MetadataService
    from pylog.replication.membership import Membership
    from pylog.server.network import Network

log = logging.getLogger("pylog.broker")

UPKEEP_SECONDS = 1.0
RECOVERY_SECONDS = 0.05


class Upkeep:
    """The periodic steps of one broker."""

    def __init__(self, *, settings: Settings, logs: LogManager, grants: Grants, network: Network,
                 metadata: MetadataService, membership: Membership | None,
                 controller: Callable[[], Any], now_ms: Callable[[], int],
                 serve_topic: Callable[[str], None], topic_moved: Callable[[str], None],
                 refresh_rights: Callable[[], None], broken: asyncio.Event):
        """controller: returns the active controller, or the client of a remote one. serve_topic:
        leads or follows a topic's opened logs. topic_moved: called for topics whose logs were
        replaced. refresh_rights: called every second, for authorizers whose rights change without a
        notice. broken: set if no disk is left.
        """
        self._settings = settings
        self._logs = logs
        self._grants = grants
        self._network = network
        self._metadata = metadata
        self._membership = membership
        self._controller = controller
        self._now_ms = now_ms
        self._serve_topic = serve_topic
        self._topic_moved = topic_moved
        self._refresh_rights = refresh_rights
        self._broken = broken
        self._led_offline: list = []  # Partitions of failed disks that still have a leader.
        self._tokens_due_ms = 0  # Time of the next check for expired tokens.

    async def run(self) -> None:
        """Run due maintenance every second: rolls, retention, checkpoints and others. Uses worker
        threads.
        """
        while True:
            await asyncio.sleep(UPKEEP_SECONDS)
            for step in (self._tend_logs, self.leave_failed_disks, self._report_shortages,
                         self._finish_moves, self._refresh_certificates, self._check_rights,
                         self._remove_expired_tokens):
                try:
                    await step()
                except Exception:
                    # The other steps must still run: a broker without upkeep would fill its disk.
                    supervisor.report("upkeep", "upkeep failed")

    async def serve_recovered(self) -> None:
        """Make recovered partitions available to the data plane. Returns after the last one."""
        while True:
            left = self._logs.recovering
            for name in self._logs.take_recovered():
                try:
                    self._serve_topic(name)
                except Exception:
                    supervisor.report(
                        "recovered partitions", "a recovered topic cannot be served", topic=name)
                self._grants.remove(name)  # The next request installs the grant again.
            if not left:
                return
            await asyncio.sleep(RECOVERY_SECONDS)

    async def leave_failed_disks(self) -> None:
        """Ask the controller to replace this broker as leader of partitions in failed directories.
        Sets `broken` if the broker cannot continue.
        """
        self._led_offline += self._logs.take_failed()
        fatal = self._logs.disks.fatal() or self._metadata.fatal()
        if fatal is not None and not self._broken.is_set():
            log.critical("brokerd stops: %s", fatal)
            self._broken.set()
        elif self._led_offline and await self._controller().leave_offline(self._led_offline):
            # Otherwise try again with the same list: take_failed() returns each partition only
            # once.
            self._led_offline = []

    async def _tend_logs(self) -> None:
        await in_thread(self._logs.upkeep, self._now_ms())

    async def _report_shortages(self) -> None:
        self._network.report_shortages(self._now_ms())

    async def _finish_moves(self) -> None:
        moved: set[str] = set() if self._membership is None else self._membership.pause_moves()
        try:
            moved.update(await in_thread(self._logs.finish_moves))
        finally:
            # Resume what pause_moves() paused, even if a move failed.
            for name in moved:
                self._topic_moved(name)
        self._logs.leave_moved()

    async def _refresh_certificates(self) -> None:
        if self._network.has_tls:
            await in_thread(self._network.refresh_certificates)
            await in_thread(self._metadata.refresh_certificates)

    async def _check_rights(self) -> None:
        self._refresh_rights()

    async def _remove_expired_tokens(self) -> None:
        now_ms, controller = self._now_ms(), self._metadata.controller
        if self._settings["delegation.token.secret.key"] is not None and controller is not None \
                and now_ms >= self._tokens_due_ms:
            # Imported here because few brokers have tokens.
            from pylog.metadata.controller import delegation_tokens

            self._tokens_due_ms = \
                now_ms + self._settings["delegation.token.expiry.check.interval.ms"]
            await controller.change_tokens(delegation_tokens.expired, now_ms)

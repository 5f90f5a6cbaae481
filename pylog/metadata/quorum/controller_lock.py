"""Keeps two processes with one node.id from acting as controllers of one cluster.

Owns: the key of this node in the quorum, and its lease.
Invariants:
    one process per id: a process acts for a node id only while the node's key has its text.
    proven end: a key is taken over only if its lease ended, or if its process ran on this machine,
      in this process namespace, and is gone.
Source: Kafka's broker incarnation ids (KIP-631); etcd's leases.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets

from pylog.eventloop.threads import in_thread
from pylog.log.errors import StartError
from pylog.metadata.quorum.quorum_state import Quorum, QuorumLost

TTL_S = 5
RENEWALS_PER_TTL = 3
PATIENCE_TTLS = 3  # A key that still exists after this many leases is being renewed.
POLL_S = 0.2


class Presence:
    """host, port: this node's controller listener, for error messages."""

    def __init__(self, quorum: Quorum, node_id: int, host: str, port: int):
        self._quorum = quorum
        self._node_id = node_id
        self._text = json.dumps({
            "nonce": secrets.token_hex(8), "host": host, "port": port, **process_identity()})
        self._lease = 0

    async def claim(self, until_s: float) -> None:
        """Return once this process may act for the node. until_s: deadline by the loop's clock if
        the quorum does not respond. Raises StartError, QuorumLost.
        """
        loop = asyncio.get_running_loop()
        refused_at_s: float | None = None
        over: str | None = None
        while True:
            try:
                self._lease, other = await in_thread(
                    self._quorum.claim_node, self._node_id, self._text, TTL_S, over)
            except QuorumLost:
                if loop.time() >= until_s:
                    raise
                await asyncio.sleep(POLL_S)
                continue
            if other is None:
                return
            over = other if is_gone(other) else None
            if over is not None:
                continue
            refused_at_s = refused_at_s or loop.time()
            if loop.time() - refused_at_s > PATIENCE_TTLS * TTL_S:
                raise self._already_running(other)
            await asyncio.sleep(POLL_S)

    async def keep(self) -> None:
        """Renew the lease until cancelled. Raises StartError if another process has the node."""
        while True:
            await asyncio.sleep(TTL_S / RENEWALS_PER_TTL)
            try:
                self._lease, other = await in_thread(
                    self._quorum.renew_node, self._node_id, self._text, self._lease, TTL_S)
            except QuorumLost:
                continue
            if other is not None:
                raise self._already_running(other)

    async def release(self) -> None:
        """Release the key, so that the node's next process can start immediately."""
        await in_thread(self._quorum.release_node, self._node_id, self._text)

    def _already_running(self, other: str) -> StartError:
        try:
            known = json.loads(other)
            address = f"{known['host']}:{known['port']}"
        except (ValueError, KeyError, TypeError):
            address = "an unknown address"
        return StartError(
            f"another process uses node.id={self._node_id} in this cluster, with its controller "
            f"listener at {address}: stop it, or give this node another id")


def process_identity() -> dict:
    """Return the identity of this process, unique on this machine and across machines."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    return {"boot": boot, "namespace": os.readlink("/proc/self/ns/pid"), "pid": os.getpid(),
            "started": _started(os.getpid())}


def is_gone(text: str) -> bool:
    """Return True if the process with that identity is proven to have ended: "proven end"."""
    try:
        known = json.loads(text)
        own = process_identity()
        if (known["boot"], known["namespace"]) != (own["boot"], own["namespace"]):
            return False
        return _started(int(known["pid"])) != known["started"]
    except (ValueError, KeyError, TypeError, OSError):
        return False


def _started(pid: int) -> int:
    """Return the start time of a process in ticks since boot, -1 without that process. Raises
    OSError: a shortage of descriptors does not prove that the process has ended.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The second field may contain spaces and parentheses; field 22 is the start time.
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return -1
    return -1 if fields[0] in (b"Z", b"X") else int(fields[19])

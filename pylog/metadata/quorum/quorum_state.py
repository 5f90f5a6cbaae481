"""The controllers' state in etcd or ZooKeeper: the newest batches of the metadata log, and the
current epoch and controller.

Owns: the keys below its prefix.
Invariants: slots have no gaps: one transaction puts a batch and moves the end, on condition that
  the writer's end and epoch are still current; nothing is appended in an epoch after a newer one
  began, because leases only show liveness and the epoch's key decides who may write; an append with
  unknown outcome fails only after its slot was read; an epoch belongs to one start of one node; a
  slot is deleted only after a snapshot that covers it is complete, and a delayed attempt never
  replaces that snapshot with an older one.
Source: transactions of quorum.key_value instead of KIP-595's votes; KIP-630 (snapshots).
"""

import json
import logging
import secrets
import threading
import zlib
from collections import namedtuple

from pylog import supervisor
from pylog._native.log.log import LogError
from pylog.metadata.log.metadata_log import Conflict
from pylog.metadata.quorum.key_value import (
    SORTED_DIGITS,
    Absent,
    Delete,
    Full,
    Get,
    Is,
    Keys,
    KeysError,
    List,
    MemberState,
    Put,
    Unknown,
    Unreachable,
)
from pylog.protocol.errors import ErrorCode

CHUNK_BYTES = 512 << 10
# Longer batches are compressed; metadata records repeat much.
PLAIN_BYTES_MAX = 4096
SLOTS_PER_READ = 64
RETRY_S = 0.02
# How long the state of the members is cached.
MEMBERS_S = 0.5  # Shorter than `pylog cluster status` takes, so that it never shows an older state.
PLAIN, DEFLATED = b"\0", b"\1"
# The key, below the prefix, of the log's end offset.
END = "at/end"

log = logging.getLogger("pylog.metadata")

Holder = namedtuple("Holder", ("node_id", "epoch", "host", "port"))
Holder.__doc__ = "The active controller, and the address of its controller listener."

Term = namedtuple("Term", ("epoch", "text", "end", "lease", "holder"))
Term.__doc__ = "A controller's term. text: the epoch's key during it; end: of the log at its start."

View = namedtuple("View", ("epoch", "end", "holder"))
View.__doc__ = "epoch: the newest, 0 before the first; end: of the log; holder: a Holder or None."

Batch = namedtuple("Batch", ("base", "data"))


class QuorumLost(LogError):
    """The quorum does not answer; the records may or may not be in the log."""

    def __init__(self, text: str):
        super().__init__(0, ErrorCode.NOT_CONTROLLER, text)


class KeysLost(QuorumLost):
    """The quorum answers, but its keys are older than this node's copy of them."""


class TooLong(LogError):
    """The batch is longer than a slot; nothing was appended."""

    def __init__(self, text: str):
        super().__init__(0, ErrorCode.POLICY_VIOLATION, text)


class Trimmed(Exception):
    """The requested records are only in a snapshot."""


class Quorum:
    """keys: the store. prefix: of all keys, ends with /. timeout_s: retry time of a call. seconds:
    a clock.
    """

    def __init__(self, keys: Keys, prefix: str, timeout_s: float, seconds):
        self.keys = keys
        self._prefix = prefix
        self._timeout_s = timeout_s
        self._seconds = seconds
        self._pause = threading.Event()  # never set
        # For metrics, read by any thread.
        self.is_responding, self.is_full = True, False
        self.failures = self.appends = 0
        self.append_seconds = 0.0
        self.lost_keys = ""  # why the keys are outdated, or ""
        self._state_lock = threading.Lock()  # guards the next two
        self._members: list[MemberState] = []
        self._members_due_s = float("-inf")

    def close(self) -> None:
        self.keys.close()

    def members(self) -> list[MemberState]:
        """Return the state of each machine of the quorum, at most MEMBERS_S old."""
        with self._state_lock:
            if self._seconds() >= self._members_due_s:
                # In parallel, because a hanging member takes its full timeout.
                with supervisor.executor("quorum-members", len(self.keys.addresses)) as pool:
                    self._members = list(pool.map(self._state_of, self.keys.addresses))
                self._members_due_s = self._seconds() + MEMBERS_S
            return self._members

    def _state_of(self, address: str) -> MemberState:
        began = self._seconds()
        found = self.keys.state_of(address)._replace(seconds=self._seconds() - began)
        if self.lost_keys and found.answers:
            return found._replace(answers=False, reason=self.lost_keys)
        return found

    def _key(self, name: str) -> str:
        return self._prefix + name

    def _slot(self, base: int) -> str:
        return self._key("log/") + _number(base)

    # ---- the cluster ----------------------------------------------------------------------------

    def known_cluster_id(self) -> str | None:
        """Return the cluster's id, None if it has none yet. Raises QuorumLost."""
        row = self._tried(lambda: self.keys.get(self._key("cluster.id")))
        return None if row is None else row.value.decode()

    def cluster_id(self, candidate: str) -> str:
        """Return the cluster's id; the first caller's candidate becomes the id. Raises QuorumLost.
        """
        key = self._key("cluster.id")

        def attempt() -> str:
            done = self.keys.transact(
                [Absent(key)], [Put(key, candidate.encode())], [Get(key)])
            return candidate if done.succeeded else done.rows[0][0].value.decode()

        return self._tried(attempt)

    def found(self, cluster_id: str, end: int, epoch: int, snapshot: bytes) -> bool:
        """Start this quorum's log at `end`, after a snapshot of all earlier records, as that
        cluster's. Returns False if it has begun or belongs to another cluster.

        For a node that was its own controller until now. Raises QuorumLost, Conflict.
        """
        name = self._key("cluster.id")
        key, text = self._key("at/epoch"), f"{epoch} founded".encode()
        chunks = _chunks(snapshot)
        for number, chunk in enumerate(chunks):
            self._change([Absent(key)], [Put(self._chunk(end, number), chunk)])

        def attempt() -> bool:
            named = self.keys.get(name)
            if named is not None and named.value != cluster_id.encode():
                return False
            # One transaction: a node without data does not start a log in a cluster that has an id.
            is_ours = Absent(name) if named is None else Is(*named)
            done = self.keys.transact([Absent(key), is_ours], [
                Put(name, cluster_id.encode()), Put(key, text),
                Put(self._key(END), str(end).encode()),
                self._put_snapshot(end, epoch, len(chunks))], [Get(key)])
            return done.succeeded or bool(done.rows[0]) and done.rows[0][0].value == text

        return self._tried(attempt)

    # ---- the nodes ----------------------------------------------------------------------------

    def claim_node(self, node_id: int, text: str, ttl_s: int, over: str | None) -> tuple:
        """Put a node's key with a new lease if it is absent, this process's, or has the text
        `over`. Returns (lease, None), or (0, the text of another process). Raises QuorumLost.
        """
        key, value = self._key(f"nodes/{node_id}"), text.encode()
        lease = self._tried(lambda: self.keys.grant(ttl_s))

        def attempt() -> tuple:
            row = self.keys.get(key)
            if row is not None and row.value not in (value, over and over.encode()):
                return 0, row.value.decode()
            done = self.keys.transact([Absent(key) if row is None else Is(*row)],
                                      [Put(key, value, lease)], [Get(key)])
            if done.succeeded:
                return lease, None
            raise Unknown("the node's key changed in between")

        return self._tried(attempt)

    def renew_node(self, node_id: int, text: str, lease: int, ttl_s: int) -> tuple:
        """Renew the lease of a node's key, or put the key again if its lease ended. Returns as for
        claim_node(). Raises QuorumLost.
        """
        if self._tried(lambda: self.keys.keep_alive(lease)) > 0:
            return lease, None
        return self.claim_node(node_id, text, ttl_s, None)

    def release_node(self, node_id: int, text: str) -> None:
        """Remove a node's key if it has that text. Makes one attempt and never raises."""
        key = self._key(f"nodes/{node_id}")
        try:
            self.keys.transact([Is(key, text.encode())], [Delete(key)])
        except (KeysError, Unknown, Unreachable) as error:
            log.info("the node's key could not be deleted; it expires with its lease",
                     extra={"reason": str(error)})

    # ---- the controller -------------------------------------------------------------------------

    def read_view(self) -> View:
        """Return the current View. Raises QuorumLost."""
        # Read the epoch first: if there is no controller after that, there was none in this epoch
        # or a later one, and campaign() detects a later one.
        names = ("epoch", "end", "controller")

        def attempt() -> View:
            epoch, end, holder = (rows[0].value if rows else b"" for rows in self.keys.read_keys(
                [Get(self._key(f"at/{name}")) for name in names]))
            return View(int(epoch.split()[0]) if epoch else 0, int(end or 0),
                        Holder(*json.loads(holder)) if holder else None)

        return self._tried(attempt)

    async def watch(self, wake) -> None:
        """Call wake() whenever the result of read_view() may have changed, until cancelled."""
        await self.keys.watch(self._key("at/"), wake)

    def campaign(self, node_id: int, host: str, port: int, ttl_s: int, view: View) -> Term:
        """Start a new epoch for this node, if the epoch in `view` is still the newest.

        Works even while another controller's lease is valid: the caller decides when to replace it.
        Raises Conflict if another node was first; QuorumLost.
        """
        epoch = view.epoch + 1
        # The random part makes the text unique: a node that reads its own text back has won, even
        # if responses were lost.
        text = f"{epoch} {node_id} {secrets.token_hex(8)}".encode()
        holder = Holder(node_id, epoch, host, port)
        lease = self._tried(lambda: self.keys.grant(ttl_s))
        self._tried(lambda: self._take(view.epoch, text, holder, lease))
        # No other node can move the end any more: older epochs cannot append.
        end = self._tried(lambda: self.keys.get(self._key(END)))
        return Term(epoch, text, int(end.value) if end else 0, lease, holder)

    def _take(self, old: int, text: bytes, holder: Holder, lease: int) -> None:
        key = self._key("at/epoch")
        row = self.keys.get(key)
        if row is not None and row.value == text:
            return
        newest = int(row.value.split()[0]) if row else 0
        if newest != old:
            raise Conflict(f"epoch {newest} has begun")
        if not self.keys.transact([Is(key, row.value) if row else Absent(key)],
                                  [Put(key, text), self._put_holder(holder, lease)]).succeeded:
            raise Conflict("another node took the next epoch")

    def _put_holder(self, holder: Holder, lease: int) -> Put:
        return Put(self._key("at/controller"), json.dumps(list(holder)).encode(), lease)

    def _in_term(self, term: Term) -> Is:
        return Is(self._key("at/epoch"), term.text)

    def renew(self, term: Term, ttl_s: int) -> Term:
        """Return the term with its lease renewed. Raises Conflict if a newer epoch began;
        QuorumLost.
        """
        def attempt() -> Term:
            row = self.keys.get(self._key("at/epoch"))
            if row is None or row.value != term.text:
                raise Conflict("a newer epoch has begun")
            if self.keys.keep_alive(term.lease) > 0:
                return term
            # The quorum was unreachable for longer than the lease, and no node started a new epoch
            # since.
            lease = self.keys.grant(ttl_s)
            if not self.keys.transact([self._in_term(term)],
                                      [self._put_holder(term.holder, lease)]).succeeded:
                raise Conflict("a newer epoch has begun")
            return term._replace(lease=lease)

        return self._tried(attempt)

    def resign(self, term: Term) -> None:
        """Remove the controller's key, so that others can take over immediately. Never raises."""
        try:
            self.keys.transact([self._in_term(term)], [Delete(self._key("at/controller"))])
        except (KeysError, Unknown, Unreachable) as error:
            log.info("the resignation could not be written to the quorum",
                     extra={"reason": str(error)})

    # ---- the log --------------------------------------------------------------------------------

    def append(self, term: Term, base: int, count: int, data: bytes) -> None:
        """Append one batch at `base`. Raises Conflict, QuorumLost, TooLong."""
        value = _stored(data)
        if len(value) > self.keys.value_bytes_max:
            raise TooLong(f"{count} records of metadata at once are too many for the quorum")
        epoch, end, slot = self._key("at/epoch"), self._key(END), self._slot(base)
        at_end = Absent(end) if base == 0 else Is(end, str(base).encode())

        def attempt() -> None:
            done = self.keys.transact(
                [self._in_term(term), at_end],
                [Put(slot, value), Put(end, str(base + count).encode())],
                [Get(slot), Get(epoch), Get(end)])
            if done.succeeded:
                return
            there, newest, at = done.rows
            # An earlier attempt without a response may have succeeded: read the slot before
            # failing.
            if there and there[0].value == value:
                return
            if not newest or newest[0].value != term.text:
                raise Conflict(f"epoch {term.epoch} is over")
            raise Conflict(f"the log ends at {int(at[0].value) if at else 0}, not at {base}")

        began = self._seconds()
        self._tried(attempt)
        self.appends += 1
        self.append_seconds += self._seconds() - began
        self.is_full = False

    def read(self, base: int) -> list:
        """Return some Batches from `base` on, none at the end. Raises QuorumLost, Trimmed."""
        # Read the end first: every slot before it exists or was trimmed.
        reads = [Get(self._key(END)), List(self._key("log/"), _number(base), SLOTS_PER_READ)]

        def attempt() -> tuple:
            end, rows = self.keys.read_keys(reads)
            return [Batch(int(row.key.rpartition("/")[2]), _given(row.value))
                    for row in rows], int(end[0].value) if end else 0

        batches, end = self._tried(attempt)
        if base < end and (not batches or batches[0].base != base):
            raise Trimmed(f"the quorum no longer has the records from {base} on")
        return batches

    def batch_at(self, base: int) -> bytes | None:
        """Return the batch in the slot at `base`, None without one. Raises QuorumLost."""
        row = self._tried(lambda: self.keys.get(self._slot(base)))
        return None if row is None else _given(row.value)

    # ---- snapshots ------------------------------------------------------------------------------

    def save_snapshot(self, term: Term, end: int, epoch: int, data: bytes) -> None:
        """Save the state of all records below `end`. Raises Conflict, QuorumLost."""
        chunks = _chunks(data)
        for number, chunk in enumerate(chunks):
            self._change([self._in_term(term)], [Put(self._chunk(end, number), chunk)])
        newest, name = self._put_snapshot(end, epoch, len(chunks)), self._key("at/snapshot")

        def attempt() -> None:
            there = self.keys.get(name)
            if there is not None and there.value == newest.value:
                return
            # This attempt may arrive after the next snapshot, and must not replace it.
            is_before = Absent(name) if there is None else Is(*there)
            done = self.keys.transact(
                [self._in_term(term), is_before], [newest], [Get(self._key("at/epoch"))])
            if done.succeeded:
                return
            if done.rows[0] and done.rows[0][0].value == term.text:
                raise Unknown("an earlier attempt was applied first")
            raise Conflict("a newer epoch has begun")

        self._tried(attempt)

    def _put_snapshot(self, end: int, epoch: int, chunk_count: int) -> Put:
        return Put(self._key("at/snapshot"), json.dumps([end, epoch, chunk_count]).encode())

    def trim(self, term: Term, offset: int) -> None:
        """Delete slots below `offset` and the snapshots before the newest. Raises Conflict,
        QuorumLost.
        """
        newest = self._tried(lambda: self.keys.get(self._key("at/snapshot")))
        if newest is None:
            return
        end = json.loads(newest.value)[0]
        assert offset <= end, (offset, end)  # a snapshot covers the slots
        for folder, below in (("log/", offset), ("snapshots/", end)):
            if not self._tried(lambda folder=folder, below=below: self.keys.drop(
                    [self._in_term(term)], self._key(folder), _number(below))):
                raise Conflict("a newer epoch has begun")

    def load_snapshot(self, beyond: int) -> tuple | None:
        """Return (end, epoch, bytes) of the newest snapshot, None unless it ends after `beyond`.
        Raises QuorumLost.
        """
        def attempt() -> tuple | None:
            newest = self.keys.get(self._key("at/snapshot"))
            if newest is None:
                return None
            end, epoch, count = json.loads(newest.value)
            if end <= beyond:
                return None
            data = b""
            for number in range(count):
                row = self.keys.get(self._chunk(end, number))
                if row is None:
                    raise Unknown("the snapshot was replaced in the meantime")
                data += row.value
            return end, epoch, data

        return self._tried(attempt)

    def _chunk(self, end: int, number: int) -> str:
        return self._key(f"snapshots/{_number(end)}/{number:06d}")

    def _change(self, conditions, changes) -> None:
        """Make a repeatable transaction. Raises Conflict, QuorumLost."""
        if not self._tried(lambda: self.keys.transact(conditions, changes)).succeeded:
            raise Conflict("a newer epoch has begun")

    # ---- retries --------------------------------------------------------------------------------

    def _tried(self, attempt):
        """Return the result of attempt(), retrying until the timeout. attempt() must be repeatable.
        Raises QuorumLost.
        """
        until = self._seconds() + self._timeout_s
        while True:
            try:
                found = attempt()
            except (Unknown, Unreachable) as error:
                if self._seconds() >= until:
                    raise self._lost(error) from None
            except KeysError as error:
                self.is_full |= isinstance(error, Full)
                raise self._lost(error) from None
            else:
                self.is_responding = True
                return found
            self._pause.wait(RETRY_S)

    def _lost(self, error: Exception) -> QuorumLost:
        # A full member answers, but cannot accept decisions.
        self.is_responding = self.is_full
        self.failures += 1
        return QuorumLost(f"{self.keys.name}: {error}")


def _number(offset: int) -> str:
    return f"{offset:0{SORTED_DIGITS}d}"


def _chunks(data: bytes) -> list:
    return [data[first:first + CHUNK_BYTES] for first in range(0, len(data), CHUNK_BYTES)]


def _stored(data: bytes) -> bytes:
    """Return a batch encoded for a slot."""
    return PLAIN + data if len(data) <= PLAIN_BYTES_MAX else DEFLATED + zlib.compress(data, 1)


def _given(value: bytes) -> bytes:
    """Return the batch in a slot."""
    return value[1:] if value[:1] == PLAIN else zlib.decompress(value[1:])

"""What a quorum of controllers keeps in etcd or ZooKeeper: the newest batches of the metadata log,
and whose turn it is to append.

Owns: the keys below its prefix.
Invariants: (1) slots are gapless: a batch is put and the end is moved in one transaction, whose
  condition is the end and the epoch that its writer knows; (2) nothing is appended under an epoch
  after a newer one began: leases tell who is alive, only the epoch's key tells who may write;
  (3) an append whose outcome is unknown is not given up before its slot was read; (4) an epoch is
  had by one start of one node; (5) a slot is dropped after a snapshot that covers it is whole, and
  no older one takes that one's place, however late an attempt arrives.
Source: transactions of metadata.keys in place of KIP-595's votes; KIP-630 (snapshots).
"""

import json
import logging
import secrets
import threading
import zlib
from collections import namedtuple

from pylog import supervisor
from pylog._native.log import LogError
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
# Longer batches of records, which repeat much, are kept deflated.
PLAIN_BYTES_MAX = 4096
SLOTS_PER_READ = 64
RETRY_S = 0.02
# What was learned of the members is good for so long.
MEMBERS_S = 0.5     # Less than `pylog cluster status` takes: it must not see older states.
PLAIN, DEFLATED = b"\0", b"\1"
# The key, below the prefix, of where the log ends.
END = "at/end"

log = logging.getLogger("pylog.metadata")

Holder = namedtuple("Holder", ("node_id", "epoch", "host", "port"))
Holder.__doc__ = "The active controller, and the address of its controller listener."

Term = namedtuple("Term", ("epoch", "text", "end", "lease", "holder"))
Term.__doc__ = "A time in office. text: the epoch's key as it is then; end: of the log at first."

View = namedtuple("View", ("epoch", "end", "holder"))
View.__doc__ = "epoch: the newest, 0 before the first; end: of the log; holder: a Holder or None."

Batch = namedtuple("Batch", ("base", "data"))


class QuorumLost(LogError):
    """The quorum does not answer: whether the records are in the log is not known."""

    def __init__(self, text: str):
        super().__init__(0, ErrorCode.NOT_CONTROLLER, text)


class KeysLost(QuorumLost):
    """The quorum answers, but its keys are older than what this node has read from it."""


class TooLong(LogError):
    """More at once than a slot holds; nothing was appended."""

    def __init__(self, text: str):
        super().__init__(0, ErrorCode.POLICY_VIOLATION, text)


class Trimmed(Exception):
    """Records that were asked for are in a snapshot only."""


class Quorum:
    """keys: where it is kept. prefix: of all keys, ends with /. timeout_s: how long a call is
    tried. seconds: a clock."""

    def __init__(self, keys: Keys, prefix: str, timeout_s: float, seconds):
        self.keys = keys
        self._prefix = prefix
        self._timeout_s = timeout_s
        self._seconds = seconds
        self._pause = threading.Event()      # Never set.
        # For metrics, read on any thread.
        self.is_answering, self.is_full = True, False
        self.failures = self.appends = 0
        self.append_seconds = 0.0
        self.lost_keys = ""                  # Why the keys are not this cluster's newest, or "".
        self._asking = threading.Lock()      # Of the next two.
        self._members: list[MemberState] = []
        self._members_due_s = float("-inf")

    def close(self) -> None:
        self.keys.close()

    def members(self) -> list[MemberState]:
        """How each machine that keeps the quorum is, as seen from here at most MEMBERS_S ago."""
        with self._asking:
            if self._seconds() >= self._members_due_s:
                # One that hangs takes its whole time: all at once.
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
        """The cluster's id, None before somebody gave it one. Raises QuorumLost."""
        row = self._tried(lambda: self.keys.get(self._key("cluster.id")))
        return None if row is None else row.value.decode()

    def cluster_id(self, candidate: str) -> str:
        """The cluster's id: the candidate of whoever asked first. Raises QuorumLost."""
        key = self._key("cluster.id")

        def attempt() -> str:
            done = self.keys.transact(
                [Absent(key)], [Put(key, candidate.encode())], [Get(key)])
            return candidate if done.succeeded else done.rows[0][0].value.decode()

        return self._tried(attempt)

    def found(self, cluster_id: str, end: int, epoch: int, snapshot: bytes) -> bool:
        """Begins this quorum's log at `end`, after a snapshot of all before, as that cluster's;
        False: it has begun, or is another cluster's.

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
            # Together: whoever comes with nothing begins nothing in a cluster that has a name.
            is_ours = Absent(name) if named is None else Is(*named)
            done = self.keys.transact([Absent(key), is_ours], [
                Put(name, cluster_id.encode()), Put(key, text),
                Put(self._key(END), str(end).encode()),
                self._put_snapshot(end, epoch, len(chunks))], [Get(key)])
            return done.succeeded or bool(done.rows[0]) and done.rows[0][0].value == text

        return self._tried(attempt)

    # ---- the nodes ----------------------------------------------------------------------------

    def claim_node(self, node_id: int, text: str, ttl_s: int, over: str | None) -> tuple:
        """Puts a node's key with a new lease if it is absent, this process's, or has the text
        `over`. Returns (lease, None), or (0, the text of another process). Raises QuorumLost."""
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
        """Prolongs the lease of a node's key, or puts the key again if its lease ended. Returns as
        claim_node(). Raises QuorumLost."""
        if self._tried(lambda: self.keys.keep_alive(lease)) > 0:
            return lease, None
        return self.claim_node(node_id, text, ttl_s, None)

    def release_node(self, node_id: int, text: str) -> None:
        """Removes a node's key if it has that text. One attempt, which never raises."""
        key = self._key(f"nodes/{node_id}")
        try:
            self.keys.transact([Is(key, text.encode())], [Delete(key)])
        except (KeysError, Unknown, Unreachable) as error:
            log.info("the node's key stays until its lease ends", extra={"reason": str(error)})

    # ---- the office -----------------------------------------------------------------------------

    def look(self) -> View:
        """How things stand. Raises QuorumLost."""
        # The epoch first: an office that is empty afterwards was empty in this epoch or a later
        # one, and of a later one the campaign hears.
        names = ("epoch", "end", "controller")

        def attempt() -> View:
            epoch, end, holder = (rows[0].value if rows else b"" for rows in self.keys.look(
                [Get(self._key(f"at/{name}")) for name in names]))
            return View(int(epoch.split()[0]) if epoch else 0, int(end or 0),
                        Holder(*json.loads(holder)) if holder else None)

        return self._tried(attempt)

    async def watch(self, stir) -> None:
        """Calls stir() whenever what look() tells may have changed, until cancelled."""
        await self.keys.watch(self._key("at/"), stir)

    def campaign(self, node_id: int, host: str, port: int, ttl_s: int, view: View) -> Term:
        """A new epoch for this node, if the newest one is still the one that was looked at.

        Also while another's lease lives: whether to do that is the caller's judgement (2). Raises
        Conflict: another was first; QuorumLost.
        """
        epoch = view.epoch + 1
        # Keeps (4): whoever reads his own text back has the epoch, whatever answers were lost.
        text = f"{epoch} {node_id} {secrets.token_hex(8)}".encode()
        holder = Holder(node_id, epoch, host, port)
        lease = self._tried(lambda: self.keys.grant(ttl_s))
        self._tried(lambda: self._take(view.epoch, text, holder, lease))
        # Keeps (2): nobody else moves the end any more.
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
        """The term with its lease prolonged. Raises Conflict: a newer epoch began; QuorumLost."""
        def attempt() -> Term:
            row = self.keys.get(self._key("at/epoch"))
            if row is None or row.value != term.text:
                raise Conflict("a newer epoch has begun")
            if self.keys.keep_alive(term.lease) > 0:
                return term
            # The quorum was away for longer than the lease; nobody took the epoch since.
            lease = self.keys.grant(ttl_s)
            if not self.keys.transact([self._in_term(term)],
                                      [self._put_holder(term.holder, lease)]).succeeded:
                raise Conflict("a newer epoch has begun")
            return term._replace(lease=lease)

        return self._tried(attempt)

    def resign(self, term: Term) -> None:
        """Lets the others know at once that the office is free. Never raises."""
        try:
            self.keys.transact([self._in_term(term)], [Delete(self._key("at/controller"))])
        except (KeysError, Unknown, Unreachable) as error:
            log.info("the quorum was not told of the resignation", extra={"reason": str(error)})

    # ---- the log --------------------------------------------------------------------------------

    def append(self, term: Term, base: int, count: int, data: bytes) -> None:
        """Appends one batch at `base`. Raises Conflict, QuorumLost, TooLong."""
        value = _kept(data)
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
            # Keeps (3): an attempt that was not answered may have been the one that counted.
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
        """Some Batches from `base` on; none at the end. Raises QuorumLost, Trimmed."""
        # The end first: what lies before it is there, or was trimmed.
        looks = [Get(self._key(END)), List(self._key("log/"), _number(base), SLOTS_PER_READ)]

        def attempt() -> tuple:
            end, rows = self.keys.look(looks)
            return [Batch(int(row.key.rpartition("/")[2]), _given(row.value))
                    for row in rows], int(end[0].value) if end else 0

        batches, end = self._tried(attempt)
        if base < end and (not batches or batches[0].base != base):
            raise Trimmed(f"the quorum no longer has the records from {base} on")
        return batches

    def batch_at(self, base: int) -> bytes | None:
        """The batch in the slot at `base`, None where there is none. Raises QuorumLost."""
        row = self._tried(lambda: self.keys.get(self._slot(base)))
        return None if row is None else _given(row.value)

    # ---- snapshots ------------------------------------------------------------------------------

    def save_snapshot(self, term: Term, end: int, epoch: int, data: bytes) -> None:
        """Keeps the state of all records below `end`. Raises Conflict, QuorumLost."""
        chunks = _chunks(data)
        for number, chunk in enumerate(chunks):
            self._change([self._in_term(term)], [Put(self._chunk(end, number), chunk)])
        newest, name = self._put_snapshot(end, epoch, len(chunks)), self._key("at/snapshot")

        def attempt() -> None:
            there = self.keys.get(name)
            if there is not None and there.value == newest.value:
                return
            # Keeps (5): this attempt may arrive after the next snapshot.
            is_before = Absent(name) if there is None else Is(*there)
            done = self.keys.transact(
                [self._in_term(term), is_before], [newest], [Get(self._key("at/epoch"))])
            if done.succeeded:
                return
            if done.rows[0] and done.rows[0][0].value == term.text:
                raise Unknown("an attempt of before came first")
            raise Conflict("a newer epoch has begun")

        self._tried(attempt)

    def _put_snapshot(self, end: int, epoch: int, chunk_count: int) -> Put:
        return Put(self._key("at/snapshot"), json.dumps([end, epoch, chunk_count]).encode())

    def trim(self, term: Term, offset: int) -> None:
        """Drops slots below `offset` and the snapshots before the newest. Raises likewise."""
        newest = self._tried(lambda: self.keys.get(self._key("at/snapshot")))
        if newest is None:
            return
        end = json.loads(newest.value)[0]
        assert offset <= end, (offset, end)      # Keeps (5).
        for folder, below in (("log/", offset), ("snapshots/", end)):
            if not self._tried(lambda folder=folder, below=below: self.keys.drop(
                    [self._in_term(term)], self._key(folder), _number(below))):
                raise Conflict("a newer epoch has begun")

    def load_snapshot(self, beyond: int) -> tuple | None:
        """(end, epoch, bytes) of the newest snapshot, None without one that ends behind `beyond`.
        Raises QuorumLost."""
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
                    raise Unknown("the snapshot was replaced meanwhile")
                data += row.value
            return end, epoch, data

        return self._tried(attempt)

    def _chunk(self, end: int, number: int) -> str:
        return self._key(f"snapshots/{_number(end)}/{number:06d}")

    def _change(self, conditions, changes) -> None:
        """A transaction that may be repeated."""
        if not self._tried(lambda: self.keys.transact(conditions, changes)).succeeded:
            raise Conflict("a newer epoch has begun")

    # ---- patience -------------------------------------------------------------------------------

    def _tried(self, attempt):
        """What attempt() returns, which is made so that a repetition does no harm (3)."""
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
                self.is_answering = True
                return found
            self._pause.wait(RETRY_S)

    def _lost(self, error: Exception) -> QuorumLost:
        # A member that is full answers, but nothing can be decided.
        self.is_answering = self.is_full
        self.failures += 1
        return QuorumLost(f"{self.keys.name}: {error}")


def _number(offset: int) -> str:
    return f"{offset:0{SORTED_DIGITS}d}"


def _chunks(data: bytes) -> list:
    return [data[first:first + CHUNK_BYTES] for first in range(0, len(data), CHUNK_BYTES)]


def _kept(data: bytes) -> bytes:
    """A slot's value."""
    return PLAIN + data if len(data) <= PLAIN_BYTES_MAX else DEFLATED + zlib.compress(data, 1)


def _given(value: bytes) -> bytes:
    """The batch that a slot holds."""
    return value[1:] if value[:1] == PLAIN else zlib.decompress(value[1:])

"""Keys in ZooKeeper, through kazoo.

Owns: one session, and kazoo's threads.
Invariants: a call ends within its timeout; a transaction's conditions check the versions of the
  keys at which their values matched; a failed transaction never relies on assumptions about keys
  that this session has not read; a lease is the session, and a key with a lease is an ephemeral
  node; a folder of numbers has an intermediate level, so that no list of names approaches
  ZooKeeper's packet limit.
Source: ZooKeeper's multi, sync and sessions; jute.maxbuffer.
"""

import asyncio
import logging
import socket
import ssl
import threading
from collections import namedtuple

from kazoo import exceptions, security
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError, RolledBackError, RuntimeInconsistency, ZookeeperError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KeeperState
from kazoo.retry import KazooRetry

from pylog.eventloop.threads import in_thread
from pylog.metadata.quorum.key_value import (
    SORTED_DIGITS,
    Absent,
    TransactionResult,
    Get,
    Is,
    Keys,
    KeysError,
    MemberState,
    Put,
    Row,
    Unknown,
    Unreachable,
)

CALL_S = 2.0
# Between attempts to set a watch.
RETRY_S = 0.1
RECONNECT_S, RECONNECT_MAX_S = 0.05, 0.5
# Digits of a number that vary within one intermediate node: at most 1,000 names in one list.
FLOOR_DIGITS = 3
# Deletions in one transaction: far below ZooKeeper's packet limit of 1 MiB.
DROPS_MAX = 1000
ATTEMPTS_MAX = 8
RESPONSE_PART_BYTES = 1 << 12

# Connection errors: the request may have been executed.
LOST = (exceptions.ConnectionLoss, exceptions.SessionExpiredError, KazooTimeoutError,
        exceptions.ConnectionClosedError, exceptions.OperationTimeoutError)

Fact = namedtuple("Fact", ("value", "version"))
Fact.__doc__ = "The value of a key, and its version."


class ZooKeeper(Keys):
    """addresses: "host:port" of the servers. session_s: session timeout. login: "user:password",
    the only user with access to the keys; None: open to all users. tls: kazoo's TLS arguments.
    """

    name = "ZooKeeper"
    # of jute.maxbuffer's 1 MiB
    value_bytes_max = 1_000_000

    def __init__(self, addresses, session_s: float, *, timeout_s: float = CALL_S,
                 login: str | None = None, tls: dict | None = None):
        assert addresses, "a ZooKeeper without servers"
        self.addresses = list(addresses)
        self._timeout_s = timeout_s
        self._context = _context_of(tls) if tls else None
        self._client = KazooClient(
            ",".join(addresses), session_s,
            connection_retry=KazooRetry(max_tries=-1, delay=RECONNECT_S, backoff=2,
                                        max_delay=RECONNECT_MAX_S),
            auth_data=[("digest", login)] if login else [],
            default_acl=[security.make_digest_acl(*login.split(":", 1), all=True)]
            if login else None,
            logger=logging.getLogger("pylog.zookeeper"), **(tls or {}))
        self._connected = self._client.start_async()
        self._lock = threading.Lock()  # guards the next two
        self._known: dict[str, Fact] = {}  # condition keys, as last read
        self._folders: set[str] = set()  # existing folders

    def close(self) -> None:
        self._client.stop()
        self._client.close()

    def state_of(self, address: str) -> MemberState:
        text, reason = "", ""
        try:
            text = self._four_letter_response(address)
            if "Mode: " not in text:
                reason = text.strip() or "it does not serve requests: it has no majority"
        except OSError as error:
            reason = str(error) or type(error).__name__
        facts = dict(line.partition(": ")[::2] for line in text.splitlines())
        return MemberState(address, not reason, facts.get("Mode") == "leader",
                           facts.get("Zookeeper version", "").partition("-")[0], -1, reason)

    def _four_letter_response(self, address: str) -> str:
        """Return one server's response to `srvr`, the only such command enabled by default."""
        host, _, port = address.rpartition(":")
        with socket.create_connection((host.strip("[]"), int(port)), self._timeout_s) as plain, \
                plain if self._context is None else self._context.wrap_socket(
                    plain, server_hostname=host.strip("[]")) as connection:
            connection.sendall(b"srvr")
            response = b"".join(iter(lambda: connection.recv(RESPONSE_PART_BYTES), b""))
            return response.decode("utf-8", "replace")

    # ---- reads ----------------------------------------------------------------------------------

    def read_keys(self, reads) -> list:
        self._await_connection()
        # A session's requests are executed in order: later reads are at least as new as this sync.
        syncing = self._client.sync_async("/")
        requested = [self._client.get_async(_path(read.key)) if isinstance(read, Get) else None
                 for read in reads]
        self._read(syncing)
        found = []
        for read, pending in zip(reads, requested):
            if pending is None:
                found.append(self._list(read))
            else:
                value = self._read(pending)
                found.append([] if value is None else [Row(read.key, value[0])])
        return found

    def _list(self, read) -> list:
        """Return the Rows of numbers. Concurrent drops delete the lowest first, so missing rows are
        only at the start.
        """
        floor, name = _floor(read.first)
        root = _path(read.folder[:-1])
        names = [(above, below) for above in self._children(root) if above >= floor
                 for below in self._children(f"{root}/{above}") if (above, below) >= (floor, name)]
        chosen = names[:read.count_max]
        requested = [self._client.get_async(f"{root}/{above}/{below}") for above, below in chosen]
        rows = []
        for (above, below), pending in zip(chosen, requested):
            value = self._read(pending)
            if value is None:
                break
            rows.append(Row(f"{read.folder}{above}{below}", value[0]))
        return rows

    def _children(self, path: str) -> list:
        return sorted(self._read(self._client.get_children_async(path)) or ())

    def _read(self, pending):
        """Return the result of a read, None if the node does not exist."""
        try:
            return pending.get(timeout=self._timeout_s)
        except NoNodeError:
            return None
        except LOST as error:
            raise Unreachable(_text(error)) from None
        except ZookeeperError as error:
            raise KeysError(_text(error)) from None

    def _await_connection(self) -> None:
        if not self._connected.wait(self._timeout_s):
            if self._client.client_state == KeeperState.AUTH_FAILED:
                raise KeysError("the login failed")
            raise Unreachable(f"no ZooKeeper session with {','.join(self.addresses)} after "
                              f"{self._timeout_s:g} s: the servers are down, or refuse sessions")

    # ---- transactions ---------------------------------------------------------------------------

    def transact(self, conditions, changes, reads=()) -> TransactionResult:
        with self._lock:
            made = self._made(conditions, changes)
        return TransactionResult(made, [] if made else self.read_keys(reads))

    def _made(self, conditions, changes) -> bool:
        """Return True if the conditions held and the changes were made. Fails only on keys that
        were read, never on assumptions.
        """
        keys = {part.key for part in (*conditions, *changes)}
        facts: dict = {key: self._known.pop(key) for key in keys if key in self._known}
        is_seen = False
        for _ in range(ATTEMPTS_MAX):
            if not is_seen and not all(_is_assumed(part, facts) for part in (
                    *conditions, *changes)):
                facts, is_seen = self._seen(keys), True
            if not all(_holds(condition, facts) for condition in conditions):
                return False
            if self._multi(_operations(conditions, changes, facts), changes):
                self._remember(conditions, changes, facts)
                return True
            facts, is_seen = self._seen(keys), True
        raise Unknown("other clients keep changing the same keys")

    def _seen(self, keys) -> dict:
        self._await_connection()
        syncing = self._client.sync_async("/")
        requested = {key: self._client.get_async(_path(key)) for key in keys}
        self._read(syncing)
        found = {key: self._read(pending) for key, pending in requested.items()}
        return {key: Fact(value[0], value[1].version) for key, value in found.items() if value}

    def _remember(self, conditions, changes, facts: dict) -> None:
        puts = {change.key: change for change in changes if isinstance(change, Put)}
        for condition in conditions:
            known, put = facts.get(condition.key), puts.get(condition.key)
            if put is not None:
                known = Fact(put.value, known.version + 1 if known else 0)
            if known is not None:
                self._known[condition.key] = known

    def _multi(self, operations: list, changes) -> bool:
        """Return True if all operations were executed, False if none was. Raises Unknown."""
        self._await_connection()
        for kind, path, *_ in operations:
            # Also for an absence check, which creates and deletes the node.
            if kind == "create":
                self._make_folder(path.rpartition("/")[0])
        lease = next((change.lease for change in changes if isinstance(change, Put)
                      and change.lease), 0)
        if lease and lease != self._session():
            raise Unknown("the session has ended")
        request = self._client.transaction()
        for kind, *arguments in operations:
            getattr(request, kind)(*arguments)
        results = self._changed(request.commit_async())
        reasons = [result for result in results if isinstance(result, Exception)
                   and not isinstance(result, (RolledBackError, RuntimeInconsistency))]
        if any(isinstance(reason, NoNodeError) for reason in reasons):
            self._folders.clear()
        for reason in reasons:
            if not isinstance(reason, _CONDITIONS):
                raise KeysError(_text(reason))
        return not any(isinstance(result, Exception) for result in results)

    def _changed(self, pending):
        try:
            return pending.get(timeout=self._timeout_s)
        except LOST as error:
            raise Unknown(_text(error)) from None
        except ZookeeperError as error:
            raise KeysError(_text(error)) from None

    def _make_folder(self, path: str) -> None:
        if path not in self._folders:
            self._changed(self._client.ensure_path_async(path))
            self._folders.add(path)

    def drop(self, conditions, folder: str, below: str) -> bool:
        with self._lock:
            return all(self._dropped(conditions, paths) for paths in _path_ranges(
                self._paths_below(_path(folder[:-1]), _floor(below))))

    def _dropped(self, conditions, paths: list) -> bool:
        facts = self._seen({condition.key for condition in conditions})
        if not all(_holds(condition, facts) for condition in conditions):
            return False
        if not self._multi([*_operations(conditions, (), facts),
                            *(("delete", path) for path in paths)], ()):
            raise Unknown("other clients change the same keys")
        return True

    def _paths_below(self, root: str, limit: tuple) -> list:
        """Return the nodes of numbers below (floor, name), in order, parents after their children.
        """
        floor, name = limit
        found: list = []
        for above in self._children(root):
            if above > floor:
                break
            for under in self._children(f"{root}/{above}"):
                if (above, under) < limit:
                    path = f"{root}/{above}/{under}"
                    found += [f"{path}/{leaf}" for leaf in self._children(path)]
                    found.append(path)
            if above < floor:
                found.append(f"{root}/{above}")
        return found

    # ---- leases ---------------------------------------------------------------------------------

    def grant(self, ttl_s: int) -> int:
        return self._session()

    def keep_alive(self, lease: int) -> int:
        """Return 1 or 0: the session renews itself."""
        return int(self._session() == lease)

    def _session(self) -> int:
        self._await_connection()
        session = self._client.client_id
        if session is None:
            raise Unreachable("the connection was lost")
        return session[0]

    # ---- changes --------------------------------------------------------------------------------

    async def watch(self, folder: str, wake) -> None:
        loop = asyncio.get_running_loop()
        changed = asyncio.Event()

        def fired(_) -> None:
            # Runs on kazoo's thread, also when the connection is lost or the loop has ended.
            if not loop.is_closed():
                loop.call_soon_threadsafe(changed.set)

        while True:
            changed.clear()
            try:
                await in_thread(self._set_watches, _path(folder[:-1]), fired)
            except (KeysError, Unreachable):
                await asyncio.sleep(RETRY_S)
                changed.set()
            wake()
            await changed.wait()

    def _set_watches(self, path: str, fired) -> None:
        """Set all watches again, because a watch fires only once."""
        self._await_connection()
        self._read(self._client.exists_async(path, watch=fired))
        children = self._read(self._client.get_children_async(path, watch=fired))
        for pending in [self._client.exists_async(f"{path}/{child}", watch=fired)
                        for child in children or ()]:
            self._read(pending)


def tls_of(settings) -> dict:
    """Return kazoo's arguments for quorum.zookeeper.ssl.*."""
    if not settings["quorum.zookeeper.ssl.enable"]:
        return {}
    own = settings["quorum.zookeeper.ssl.keystore.location"] or None
    return {"use_ssl": True, "check_hostname": True, "certfile": own, "keyfile": own,
            "ca": settings["quorum.zookeeper.ssl.truststore.location"] or None}


def _context_of(tls: dict) -> ssl.SSLContext:
    """Return an SSLContext with the same trust, for connections outside kazoo. Raises OSError."""
    context = ssl.create_default_context(cafile=tls["ca"])
    if tls["certfile"]:
        context.load_cert_chain(tls["certfile"])
    return context


# A transaction with these errors was based on outdated facts.
_CONDITIONS = (exceptions.BadVersionError, NoNodeError, exceptions.NodeExistsError,
               exceptions.NotEmptyError)


def _holds(condition, facts: dict) -> bool:
    fact = facts.get(condition.key)
    if isinstance(condition, Absent):
        return fact is None
    return fact is not None and fact.value == condition.value


def _is_assumed(part, facts: dict) -> bool:
    """Return True if the transaction can be tried before its keys are read, assuming that new keys
    are absent.
    """
    if isinstance(part, (Is, Absent)):
        return _holds(part, facts)
    return isinstance(part, Put) or part.key in facts


def _operations(conditions, changes, facts: dict) -> list:
    """Return the operations of a multi, as (kind, kazoo's arguments)."""
    held = {condition.key for condition in conditions}
    changed = {change.key for change in changes}
    found: list = []
    for condition in conditions:
        path = _path(condition.key)
        if isinstance(condition, Is) and condition.key not in changed:
            found.append(("check", path, facts[condition.key].version))
        elif isinstance(condition, Absent) and condition.key not in changed:
            # ZooKeeper has no check for absence.
            found += [("create", path), ("delete", path)]
    for change in changes:
        path, fact = _path(change.key), facts.get(change.key)
        version = fact.version if fact and change.key in held else -1
        if isinstance(change, Put) and (fact is None or change.lease):
            # The owner of an ephemeral node cannot be changed.
            found += [] if fact is None else [("delete", path, version)]
            found.append(("create", path, change.value, None, bool(change.lease)))
        elif isinstance(change, Put):
            found.append(("set_data", path, change.value, version))
        elif fact is not None:
            found.append(("delete", path, version))
    return found


def _path_ranges(paths: list) -> list:
    return [paths[first:first + DROPS_MAX] for first in range(0, len(paths) or 1, DROPS_MAX)]


def _path(key: str) -> str:
    """Return a key's node; numbers are split over an intermediate level."""
    return "/".join("/".join(_floor(part)) if len(part) == SORTED_DIGITS and part.isdigit()
                    else part for part in key.split("/"))


def _floor(number: str) -> tuple:
    return number[:-FLOOR_DIGITS], number[-FLOOR_DIGITS:]


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__

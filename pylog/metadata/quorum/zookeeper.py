"""Keys in ZooKeeper, through kazoo.

Owns: one session, and kazoo's threads.
Invariants: (1) a call ends within its timeout; (2) a transaction's conditions are on versions: of
  the keys as they were when their values were seen to hold; (3) what is thought of keys that this
  session has not read counts for nothing when a transaction fails; (4) a lease is the session, and
  what was put with it an ephemeral node; (5) a folder of numbers has a floor between, so that no
  list of names comes near ZooKeeper's limit of a packet.
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
    Answered,
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
# Between a watch that could not be set and the next try.
RETRY_S = 0.1
RECONNECT_S, RECONNECT_MAX_S = 0.05, 0.5
# Of a number, which the nodes of one floor differ in: at most a thousand are in one list (5).
FLOOR_DIGITS = 3
# Deleted together: far below ZooKeeper's 1 MiB for a packet.
DROPS_MAX = 1000
ATTEMPTS_MAX = 8
SAID_BYTES = 1 << 12

# The connection's faults: what was asked may have been done.
LOST = (exceptions.ConnectionLoss, exceptions.SessionExpiredError, KazooTimeoutError,
        exceptions.ConnectionClosedError, exceptions.OperationTimeoutError)

Fact = namedtuple("Fact", ("value", "version"))
Fact.__doc__ = "What a key has."


class ZooKeeper(Keys):
    """addresses: "host:port" of the servers. session_s: after how long a silent client's session
    ends. login: "user:password", whose owner alone may touch what is kept; None: anybody. tls:
    kazoo's arguments for it."""

    name = "ZooKeeper"
    # Of the 1 MiB of jute.maxbuffer.
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
        self._lock = threading.Lock()        # Of the two below.
        self._known: dict[str, Fact] = {}    # The keys of conditions, as last seen.
        self._folders: set[str] = set()      # Those that are there.

    def close(self) -> None:
        self._client.stop()
        self._client.close()

    def state_of(self, address: str) -> MemberState:
        text, reason = "", ""
        try:
            text = self._said(address)
            if "Mode: " not in text:
                reason = text.strip() or "it serves nobody: too few of the others are there"
        except OSError as error:
            reason = str(error) or type(error).__name__
        facts = dict(line.partition(": ")[::2] for line in text.splitlines())
        return MemberState(address, not reason, facts.get("Mode") == "leader",
                           facts.get("Zookeeper version", "").partition("-")[0], -1, reason)

    def _said(self, address: str) -> str:
        """What one server answers to `srvr`, the one such word that is allowed by default."""
        host, _, port = address.rpartition(":")
        with socket.create_connection((host.strip("[]"), int(port)), self._timeout_s) as plain, \
                plain if self._context is None else self._context.wrap_socket(
                    plain, server_hostname=host.strip("[]")) as asking:
            asking.sendall(b"srvr")
            return b"".join(iter(lambda: asking.recv(SAID_BYTES), b"")).decode("utf-8", "replace")

    # ---- looks ----------------------------------------------------------------------------------

    def look(self, looks) -> list:
        self._await_connection()
        # Requests of a session are carried out in order: what follows is as new as this.
        syncing = self._client.sync_async("/")
        asked = [self._client.get_async(_path(look.key)) if isinstance(look, Get) else None
                 for look in looks]
        self._read(syncing)
        found = []
        for look, pending in zip(looks, asked):
            if pending is None:
                found.append(self._list(look))
            else:
                value = self._read(pending)
                found.append([] if value is None else [Row(look.key, value[0])])
        return found

    def _list(self, look) -> list:
        """Rows of numbers. What is dropped meanwhile goes from the lowest on, so that there is no
        gap before the first one that is missing."""
        floor, name = _floor(look.first)
        root = _path(look.folder[:-1])
        names = [(above, below) for above in self._children(root) if above >= floor
                 for below in self._children(f"{root}/{above}") if (above, below) >= (floor, name)]
        chosen = names[:look.count_max]
        asked = [self._client.get_async(f"{root}/{above}/{below}") for above, below in chosen]
        rows = []
        for (above, below), pending in zip(chosen, asked):
            value = self._read(pending)
            if value is None:
                break
            rows.append(Row(f"{look.folder}{above}{below}", value[0]))
        return rows

    def _children(self, path: str) -> list:
        return sorted(self._read(self._client.get_children_async(path)) or ())

    def _read(self, pending):
        """The result of a call that changes nothing, None where there is no such node."""
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

    def transact(self, conditions, changes, looks=()) -> Answered:
        with self._lock:
            made = self._made(conditions, changes)
        return Answered(made, [] if made else self.look(looks))

    def _made(self, conditions, changes) -> bool:
        """Whether the conditions held, and the changes were made. Keeps (2), (3)."""
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
        raise Unknown("others change the same keys all the time")

    def _seen(self, keys) -> dict:
        self._await_connection()
        syncing = self._client.sync_async("/")
        asked = {key: self._client.get_async(_path(key)) for key in keys}
        self._read(syncing)
        found = {key: self._read(pending) for key, pending in asked.items()}
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
        """Whether all the operations were carried out; else none was. Raises Unknown."""
        self._await_connection()
        for kind, path, *_ in operations:
            # Of what is to be absent too: it is made and taken away again.
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
            return all(self._dropped(conditions, paths) for paths in _stretches(
                self._paths_below(_path(folder[:-1]), _floor(below))))

    def _dropped(self, conditions, paths: list) -> bool:
        facts = self._seen({condition.key for condition in conditions})
        if not all(_holds(condition, facts) for condition in conditions):
            return False
        if not self._multi([*_operations(conditions, (), facts),
                            *(("delete", path) for path in paths)], ()):
            raise Unknown("others change the same keys")
        return True

    def _paths_below(self, root: str, limit: tuple) -> list:
        """Nodes of numbers below (floor, name), in order, each after what it holds."""
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
        """1 or 0: the session renews itself."""
        return int(self._session() == lease)

    def _session(self) -> int:
        self._await_connection()
        session = self._client.client_id
        if session is None:
            raise Unreachable("the connection was lost")
        return session[0]

    # ---- changes --------------------------------------------------------------------------------

    async def watch(self, folder: str, stir) -> None:
        loop = asyncio.get_running_loop()
        changed = asyncio.Event()

        def fired(_) -> None:
            # On kazoo's thread, and also when the connection is lost, the loop's end included.
            if not loop.is_closed():
                loop.call_soon_threadsafe(changed.set)

        while True:
            changed.clear()
            try:
                await in_thread(self._set_watches, _path(folder[:-1]), fired)
            except (KeysError, Unreachable):
                await asyncio.sleep(RETRY_S)
                changed.set()
            stir()
            await changed.wait()

    def _set_watches(self, path: str, fired) -> None:
        """A watch fires once, so that all are set anew."""
        self._await_connection()
        self._read(self._client.exists_async(path, watch=fired))
        children = self._read(self._client.get_children_async(path, watch=fired))
        for pending in [self._client.exists_async(f"{path}/{child}", watch=fired)
                        for child in children or ()]:
            self._read(pending)


def tls_of(settings) -> dict:
    """kazoo's arguments for quorum.zookeeper.ssl.*."""
    if not settings["quorum.zookeeper.ssl.enable"]:
        return {}
    own = settings["quorum.zookeeper.ssl.keystore.location"] or None
    return {"use_ssl": True, "check_hostname": True, "certfile": own, "keyfile": own,
            "ca": settings["quorum.zookeeper.ssl.truststore.location"] or None}


def _context_of(tls: dict) -> ssl.SSLContext:
    """The same trust for what is asked beside kazoo. Raises OSError."""
    context = ssl.create_default_context(cafile=tls["ca"])
    if tls["certfile"]:
        context.load_cert_chain(tls["certfile"])
    return context


# A transaction that fails by these was made on facts that are no longer so.
_CONDITIONS = (exceptions.BadVersionError, NoNodeError, exceptions.NodeExistsError,
               exceptions.NotEmptyError)


def _holds(condition, facts: dict) -> bool:
    fact = facts.get(condition.key)
    if isinstance(condition, Absent):
        return fact is None
    return fact is not None and fact.value == condition.value


def _is_assumed(part, facts: dict) -> bool:
    """Whether a transaction may be tried on these facts, before the keys are read: new keys are
    taken for absent."""
    if isinstance(part, (Is, Absent)):
        return _holds(part, facts)
    return isinstance(part, Put) or part.key in facts


def _operations(conditions, changes, facts: dict) -> list:
    """A multi's, as (kind, arguments of kazoo's)."""
    held = {condition.key for condition in conditions}
    changed = {change.key for change in changes}
    found: list = []
    for condition in conditions:
        path = _path(condition.key)
        if isinstance(condition, Is) and condition.key not in changed:
            found.append(("check", path, facts[condition.key].version))
        elif isinstance(condition, Absent) and condition.key not in changed:
            # There is no check for absence.
            found += [("create", path), ("delete", path)]
    for change in changes:
        path, fact = _path(change.key), facts.get(change.key)
        version = fact.version if fact and change.key in held else -1
        if isinstance(change, Put) and (fact is None or change.lease):
            # Whose an ephemeral node is cannot be changed.
            found += [] if fact is None else [("delete", path, version)]
            found.append(("create", path, change.value, None, bool(change.lease)))
        elif isinstance(change, Put):
            found.append(("set_data", path, change.value, version))
        elif fact is not None:
            found.append(("delete", path, version))
    return found


def _stretches(paths: list) -> list:
    return [paths[first:first + DROPS_MAX] for first in range(0, len(paths) or 1, DROPS_MAX)]


def _path(key: str) -> str:
    """A key's node. Keeps (5)."""
    return "/".join("/".join(_floor(part)) if len(part) == SORTED_DIGITS and part.isdigit()
                    else part for part in key.split("/"))


def _floor(number: str) -> tuple:
    return number[:-FLOOR_DIGITS], number[-FLOOR_DIGITS:]


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__

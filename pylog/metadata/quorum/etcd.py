"""Keys in etcd, through its JSON gateway.

Owns: one connection to one member at a time, and the watch's.
Invariants: a call ends within its timeout: after a timeout, the next member is tried; a change
  without a response raises Unknown and never looks like a rejection; one thread at a time uses a
  connection; an expired login is renewed once for a call, which was rejected and changed nothing.
Source: etcd's API v3 (rpc.proto); the stalls of a put sent to a follower of a dead leader.
"""

import asyncio
import base64
import http.client
import json
import logging
import ssl
import threading

from pylog.metadata.quorum import etcd_health
from pylog.metadata.quorum.key_value import (
    Absent,
    TransactionResult,
    Full,
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

# A member whose leader just failed holds a request for seven seconds.
CALL_S = 0.5
# Between watches.
RETRY_S = 0.1
WATCHED_S = 2.0  # A watch that lasted this long was healthy.
AWAY_S = 5.0  # Before returning to the nearest member.
NO_SPACE = "database space exceeded"

log = logging.getLogger("pylog.metadata")


class Etcd(Keys):
    """addresses: "host:port" of the members' client ports; ssl_context: for https; login: (name,
    password), or None.
    """

    name = "etcd"
    # Below etcd's request limit of 1.5 MiB. Base64 in JSON enlarges values only in transit.
    value_bytes_max = 1_200_000

    def __init__(self, addresses, *, timeout_s: float = CALL_S,
                 ssl_context: ssl.SSLContext | None = None, login: tuple[str, str] | None = None):
        assert addresses, "an etcd without members"
        self.addresses = list(addresses)
        self._timeout_s = timeout_s
        self.ssl_context = ssl_context
        self._token = ""
        self._login = login
        self._lock = threading.Lock()  # one thread at a time uses the connection
        self._at = 0
        self._connection: http.client.HTTPConnection | None = None

    def close(self) -> None:
        with self._lock:
            self._hang_up()

    def connection(self) -> http.client.HTTPConnection:
        """Return a new connection to the first address, not connected yet."""
        return self._connection_to(self.addresses[0])

    def state_of(self, address: str) -> MemberState:
        return etcd_health.state_of(
            address, lambda: self._connection_to(address), self._token)

    # ---- keys -----------------------------------------------------------------------------------

    def read_keys(self, reads) -> list:
        response = self.read("kv/txn", {"success": [_request_of(read) for read in reads]})
        return _rows(response)

    def get_here(self, key: str) -> Row | None:
        """Return one key's row as this member has it: it may be older than the others'."""
        response = self.read("kv/range", {"key": _b64(key.encode()), "serializable": True})
        return next(iter(_of_range(response)), None)

    def transact(self, conditions, changes, reads=()) -> TransactionResult:
        response = self.change("kv/txn", {
            "compare": [_compare(condition) for condition in conditions],
            "success": [_change(change) for change in changes],
            "failure": [_request_of(read) for read in reads]})
        succeeded = response.get("succeeded", False)
        return TransactionResult(succeeded, [] if succeeded else _rows(response))

    def drop(self, conditions, folder: str, below: str) -> bool:
        return self.change("kv/txn", {
            "compare": [_compare(condition) for condition in conditions],
            "success": [{"request_delete_range": _range(folder, folder + below)}],
        }).get("succeeded", False)

    # ---- leases ---------------------------------------------------------------------------------

    def grant(self, ttl_s: int) -> int:
        return int(self.change("lease/grant", {"TTL": ttl_s})["ID"])

    def keep_alive(self, lease: int) -> int:
        response = self.change("lease/keepalive", {"ID": lease})
        return int(response.get("result", {}).get("TTL", 0))

    # ---- calls ----------------------------------------------------------------------------------

    def read(self, method: str, body: dict) -> dict:
        """Run a read-only call; try each member until one answers."""
        reason: Exception | None = None
        for _ in self.addresses:
            try:
                return self._call(method, body)
            except (Unreachable, Unknown) as error:
                reason = error
        raise Unreachable(str(reason))

    def change(self, method: str, body: dict) -> dict:
        """Run a change. Retries only if the member cannot have received it."""
        reason: Exception | None = None
        for _ in self.addresses:
            try:
                return self._call(method, body)
            except Unreachable as error:
                reason = error
        raise Unreachable(str(reason))

    def _call(self, method: str, body: dict) -> dict:
        """Call one member. Renews an expired login once."""
        if self._login is not None and not self._token:
            self._log_in()
        status, response = self._exchange(method, body)
        if self._login is not None and response.get("code") == _UNAUTHENTICATED:
            self._log_in()
            status, response = self._exchange(method, body)
        if status != http.client.OK:
            text = _text(response)
            if NO_SPACE in text:
                log.critical("etcd is full and rejects writes: compact and defragment it, "
                             "then disarm its alarm (etcdctl alarm disarm)")
                raise Full(text)
            raise KeysError(text)
        return response

    def _log_in(self) -> None:
        assert self._login is not None
        name, password = self._login
        self._token = ""
        status, response = self._exchange("auth/authenticate", {"name": name, "password": password})
        if status != http.client.OK or not response.get("token"):
            raise KeysError(f"the login of {name}: {_text(response)}")
        self._token = response["token"]

    def _exchange(self, method: str, body: dict) -> tuple[int, dict]:
        """Return (status, answer). Raises Unreachable, or Unknown if no response arrives in time.
        """
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = self._token
        data = json.dumps(body, separators=(",", ":"))
        with self._lock:
            sent = False
            try:
                connection = self._connected()
                sent = True
                connection.request("POST", f"/v3/{method}", data, headers)
                response = connection.getresponse()
                document = json.loads(response.read())
            except (OSError, http.client.HTTPException, ValueError) as error:
                where = self.addresses[self._at]
                self._hang_up()
                self._at = (self._at + 1) % len(self.addresses)
                text = f"{where}: {str(error) or type(error).__name__}"
                raise Unknown(text) if sent else Unreachable(text) from None
            status = response.status
            if status != http.client.OK and _is_of_the_member(document):
                # The member has no leader or is stopping: try the next one.
                self._hang_up()
                self._at = (self._at + 1) % len(self.addresses)
                raise Unknown(_text(document))
        if not isinstance(document, dict):
            raise KeysError(_text(document))
        return status, document

    def _connected(self) -> http.client.HTTPConnection:
        if self._connection is None:
            made = self._connection_to(self.addresses[self._at])
            made.connect()
            self._connection = made
        return self._connection

    def _connection_to(self, address: str) -> http.client.HTTPConnection:
        """Return a new connection, not connected yet."""
        host, port = split(address)
        if self.ssl_context is not None:
            return http.client.HTTPSConnection(
                host, port, timeout=self._timeout_s, context=self.ssl_context)
        return http.client.HTTPConnection(host, port, timeout=self._timeout_s)

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # ---- changes --------------------------------------------------------------------------------

    async def watch(self, folder: str, wake) -> None:
        loop, turn = asyncio.get_running_loop(), 0
        while True:
            # The first member is the nearest, usually on this host. A remote host can fail
            # silently, and its watch would report nothing.
            turn %= len(self.addresses)
            began_s = loop.time()
            try:
                async with asyncio.timeout(AWAY_S if turn > 0 else None):
                    await self._watch_address(self.addresses[turn], folder, wake)
            except (OSError, EOFError, ValueError):
                wake()
            turn = 0 if loop.time() - began_s > WATCHED_S else turn + 1
            await asyncio.sleep(RETRY_S)

    async def _watch_address(self, address: str, folder: str, wake) -> None:
        """Run one watch until its connection ends."""
        host, port = split(address)
        body = json.dumps({"create_request": _range(folder, _after(folder))}).encode()
        async with asyncio.timeout(self._timeout_s):
            reader, writer = await asyncio.open_connection(host, port, ssl=self.ssl_context)
        try:
            login = f"Authorization: {self._token}\r\n" if self._token else ""
            # With this header, a member without a leader ends the watch instead of leaving it
            # silent.
            writer.write(b"POST /v3/watch HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n"
                         b"Content-Type: application/json\r\n"
                         b"Grpc-Metadata-Hasleader: true\r\n%s\r\n%s" % (
                             address.encode(), len(body), login.encode(), body))
            # The event's content is ignored: the caller reads the keys.
            while await reader.read(1 << 16):
                wake()
        finally:
            writer.close()


# ---- parts of a transaction ---------------------------------------------------------------------

def _compare(condition) -> dict:
    found = {"key": _b64(condition.key.encode()), "result": "EQUAL"}
    if isinstance(condition, Absent):
        return found | {"target": "CREATE", "create_revision": "0"}
    assert isinstance(condition, Is), condition
    return found | {"target": "VALUE", "value": _b64(condition.value)}


def _change(change) -> dict:
    key = {"key": _b64(change.key.encode())}
    if not isinstance(change, Put):
        return {"request_delete_range": key}
    lease = {"lease": str(change.lease)} if change.lease else {}
    return {"request_put": key | {"value": _b64(change.value)} | lease}


def _request_of(read) -> dict:
    if isinstance(read, Get):
        return {"request_range": {"key": _b64(read.key.encode())}}
    return {"request_range": _range(read.folder + read.first, _after(read.folder)) | {
        "limit": str(read.count_max)}}


def _range(first: str, end: str) -> dict:
    return {"key": _b64(first.encode()), "range_end": _b64(end.encode())}


def _after(folder: str) -> str:
    """Return the first key after all names in a folder."""
    assert folder.endswith("/"), folder
    return folder[:-1] + "0"


def _rows(response) -> list:
    return [_of_range(part["response_range"]) for part in response.get("responses", ())]


def _of_range(found) -> list:
    return [Row(base64.b64decode(entry["key"]).decode(), base64.b64decode(entry.get("value", "")))
            for entry in found.get("kvs", ())]


def split(address: str) -> tuple[str, int]:
    """Return host and port of "host:port"."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _text(response) -> str:
    return str(response.get("error") or response.get("message") or response) \
        if isinstance(response, dict) else str(response)


# gRPC's codes: deadline exceeded, unavailable; unauthenticated.
_OF_THE_MEMBER = (4, 14)
_UNAUTHENTICATED = 16


def _is_of_the_member(response) -> bool:
    return isinstance(response, dict) and response.get("code") in _OF_THE_MEMBER

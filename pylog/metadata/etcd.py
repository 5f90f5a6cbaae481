"""A client of etcd's key-value service, by its JSON gateway: transactions, leases, upkeep.

Owns: one connection to one member at a time.
Called by: metadata.quorum, metadata.office (its watch), metadata.controller_member. Calls block.
Invariants: (1) a call ends within its timeout: a member that does not answer is given up and the
  next one asked; (2) what may have changed something and was not answered raises Unknown, never
  looks like a refusal; (3) a connection is used by one thread at a time; (4) a login that has ended
  is renewed once for a call, which was refused and has changed nothing.
Source: etcd's API v3 (rpc.proto); the stalls of a put sent to a follower of a dead leader.
"""

import base64
import http.client
import json
import ssl
import threading
from collections import namedtuple

# A member whose leader just died keeps a request for seven seconds.
CALL_S = 0.5
NO_SPACE = "database space exceeded"

Row = namedtuple("Row", ("key", "value", "create_revision", "mod_revision", "lease"))
Answered = namedtuple("Answered", ("succeeded", "revision", "rows"))
Answered.__doc__ = "Of a transaction. rows: a list of Row for each range, in order, else None."


class EtcdError(Exception):
    """A member answered that it cannot do this."""


class Unreachable(Exception):
    """No member answered; nothing was changed."""


class Unknown(Exception):
    """The answer did not come: the change was made, or will be, or not."""


class Etcd:
    """addresses: "host:port" of the members' clients' ports; ssl_context: for https; login: (name,
    password), or None."""

    def __init__(self, addresses, *, timeout_s: float = CALL_S,
                 ssl_context: ssl.SSLContext | None = None, login: tuple[str, str] | None = None):
        assert addresses, "an etcd without members"
        self.addresses = list(addresses)
        self._timeout_s = timeout_s
        self.ssl_context = ssl_context
        self.token = ""                      # Of the login, for other connections too.
        self._login = login
        self._lock = threading.Lock()        # Keeps (3).
        self._at = 0
        self._connection: http.client.HTTPConnection | None = None

    def close(self) -> None:
        with self._lock:
            self._hang_up()

    # ---- keys -----------------------------------------------------------------------------------

    def get(self, key: str) -> Row | None:
        """The key's newest value. Raises Unreachable, EtcdError."""
        rows = self.range(key)
        return rows[0] if rows else None

    def range(self, key: str, end: str = "", *, limit: int = 0, serializable: bool = False) -> list:
        """Rows of the keys [key, end), or of the key alone, sorted. serializable: the member's own
        state will do. Raises Unreachable, EtcdError."""
        answer = self.read("kv/range", _range(key, end, limit) | (
            {"serializable": True} if serializable else {}))
        return [_row(entry) for entry in answer.get("kvs", ())]

    def transact(self, compares, success, failure=()) -> Answered:
        """One transaction. Raises Unknown, Unreachable, EtcdError.

        compares: from value_is() and absent(). success, failure: from put(), delete(), look().
        """
        answer = self.change("kv/txn", {
            "compare": list(compares), "success": list(success), "failure": list(failure)})
        rows = [None if "response_range" not in part else
                [_row(entry) for entry in part["response_range"].get("kvs", ())]
                for part in answer.get("responses", ())]
        return Answered(answer.get("succeeded", False), int(answer["header"]["revision"]), rows)

    # ---- leases ---------------------------------------------------------------------------------

    def grant(self, ttl_s: int) -> int:
        """A new lease. Raises Unknown, Unreachable, EtcdError."""
        return int(self.change("lease/grant", {"TTL": ttl_s})["ID"])

    def keep_alive(self, lease: int) -> int:
        """The seconds that the lease has from now on; 0: it is gone. Raises as grant()."""
        answer = self.change("lease/keepalive", {"ID": lease})
        return int(answer.get("result", {}).get("TTL", 0))

    def revoke(self, lease: int) -> None:
        """Raises as grant()."""
        self.change("lease/revoke", {"ID": lease})

    # ---- calls ----------------------------------------------------------------------------------

    def read(self, method: str, body: dict) -> dict:
        """What changes nothing, asked of each member until one answers."""
        reason: Exception | None = None
        for _ in self.addresses:
            try:
                return self._call(method, body)
            except (Unreachable, Unknown) as error:
                reason = error
        raise Unreachable(str(reason))

    def change(self, method: str, body: dict) -> dict:
        """What changes something: sent again only where it was certainly not received (2)."""
        reason: Exception | None = None
        for _ in self.addresses:
            try:
                return self._call(method, body)
            except Unreachable as error:
                reason = error
        raise Unreachable(str(reason))

    def _call(self, method: str, body: dict) -> dict:
        """Keeps (4)."""
        if self._login is not None and not self.token:
            self._log_in()
        status, answer = self._exchange(method, body)
        if self._login is not None and answer.get("code") == _UNAUTHENTICATED:
            self._log_in()
            status, answer = self._exchange(method, body)
        if status != http.client.OK:
            raise EtcdError(_text(answer))
        return answer

    def _log_in(self) -> None:
        assert self._login is not None
        name, password = self._login
        self.token = ""
        status, answer = self._exchange("auth/authenticate", {"name": name, "password": password})
        if status != http.client.OK or not answer.get("token"):
            raise EtcdError(f"the login of {name}: {_text(answer)}")
        self.token = answer["token"]

    def _exchange(self, method: str, body: dict) -> tuple[int, dict]:
        """(status, answer). Keeps (1), (2)."""
        headers = {"Content-Type": "application/json"}
        if self.token:
            headers["Authorization"] = self.token
        data = json.dumps(body, separators=(",", ":"))
        with self._lock:
            sent = False
            try:
                connection = self._connected()
                sent = True
                connection.request("POST", f"/v3/{method}", data, headers)
                response = connection.getresponse()
                answer = json.loads(response.read())
            except (OSError, http.client.HTTPException, ValueError) as error:
                where = self.addresses[self._at]
                self._hang_up()
                self._at = (self._at + 1) % len(self.addresses)
                text = f"{where}: {str(error) or type(error).__name__}"
                raise Unknown(text) if sent else Unreachable(text) from None
            status = response.status
            if status != http.client.OK and _is_of_the_member(answer):
                # It has no leader, or is stopping: others may do better.
                self._hang_up()
                self._at = (self._at + 1) % len(self.addresses)
                raise Unknown(_text(answer))
        if not isinstance(answer, dict):
            raise EtcdError(_text(answer))
        return status, answer

    def _connected(self) -> http.client.HTTPConnection:
        if self._connection is None:
            host, port = split(self.addresses[self._at])
            made: http.client.HTTPConnection
            if self.ssl_context is not None:
                made = http.client.HTTPSConnection(
                    host, port, timeout=self._timeout_s, context=self.ssl_context)
            else:
                made = http.client.HTTPConnection(host, port, timeout=self._timeout_s)
            made.connect()
            self._connection = made
        return self._connection

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


# ---- parts of a transaction ---------------------------------------------------------------------

def value_is(key: str, value: bytes) -> dict:
    """The condition that a key has this value."""
    return {"key": _b64(key.encode()), "target": "VALUE", "result": "EQUAL", "value": _b64(value)}


def absent(key: str) -> dict:
    """The condition that there is no such key."""
    return {"key": _b64(key.encode()), "target": "CREATE", "result": "EQUAL",
            "create_revision": "0"}


def put(key: str, value: bytes, lease: int = 0) -> dict:
    """Sets a key; it goes with its lease."""
    return {"request_put": {"key": _b64(key.encode()), "value": _b64(value)} | (
        {"lease": str(lease)} if lease else {})}


def delete(key: str, end: str = "") -> dict:
    """Removes a key, or all in [key, end)."""
    return {"request_delete_range": {"key": _b64(key.encode())} | (
        {"range_end": _b64(end.encode())} if end else {})}


def look(key: str, end: str = "", limit: int = 0) -> dict:
    """Reads within the transaction."""
    return {"request_range": _range(key, end, limit)}


def watch_body(key: str, end: str) -> bytes:
    """The request that follows changes of the keys [key, end) from now on."""
    return json.dumps({"create_request": {
        "key": _b64(key.encode()), "range_end": _b64(end.encode())}}).encode()


def split(address: str) -> tuple[str, int]:
    """Host and port of "host:port"."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _range(key: str, end: str, limit: int) -> dict:
    found: dict = {"key": _b64(key.encode())}
    if end:
        found["range_end"] = _b64(end.encode())
    if limit:
        found["limit"] = str(limit)
    return found


def _row(entry: dict) -> Row:
    return Row(base64.b64decode(entry["key"]).decode(), base64.b64decode(entry.get("value", "")),
               int(entry["create_revision"]), int(entry["mod_revision"]),
               int(entry.get("lease", 0)))


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _text(answer) -> str:
    return str(answer.get("error") or answer.get("message") or answer) \
        if isinstance(answer, dict) else str(answer)


# gRPC's codes: deadline exceeded, unavailable; unauthenticated.
_OF_THE_MEMBER = (4, 14)
_UNAUTHENTICATED = 16


def _is_of_the_member(answer) -> bool:
    return isinstance(answer, dict) and answer.get("code") in _OF_THE_MEMBER

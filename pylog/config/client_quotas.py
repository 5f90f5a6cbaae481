"""Client quotas: finds the quota of a client, and tracks the usage that the control plane counts.

Owns: the current quotas, and the token buckets of clients that change topics; through Quotas, the
  reactors' quotas of clients.
Invariants: for each kind of quota, only the most specific entity with a quota of that kind applies;
  under a default quota each client has its own usage, under a named entity all clients share it;
  after take() no decision uses earlier quotas.
Source: KIP-13, KIP-55 (users), KIP-124 (request time), KIP-546 (filters), KIP-599 (mutations),
  KIP-612 (addresses).
"""

import socket

from pylog._native.server import quotas

USER, CLIENT_ID, IP = "user", "client-id", "ip"
PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"

# In the order of the native kinds.
COUNTED = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE)
assert (quotas.PRODUCE, quotas.FETCH, quotas.REQUEST) == (0, 1, 2)

# User name of unauthenticated clients.
ANONYMOUS = "ANONYMOUS"
TOKENS_IDLE_MAX = 10_000
NS_PER_MS = 1_000_000
PERCENT_PER_NS = 100 / 1_000_000_000


def entity(parts) -> tuple:
    """Return an entity in the form of images and responses: ((type, name or None for the default),
    ...).

    parts: pairs in any order.
    """
    return tuple(sorted(dict(parts).items()))


def packed(address: str) -> bytes:
    """Return an address in the form that connections use: 16 bytes, v4-mapped for IPv4."""
    if ":" in address:
        return socket.inet_pton(socket.AF_INET6, address.partition("%")[0])
    return bytes(10) + b"\xff\xff" + socket.inet_pton(socket.AF_INET, address)


def limit(quotas: dict, kind: str, user: str, client_id: str):
    """Return (quota, user, client id), None without a quota. Clients with the same result share
    usage.

    quotas: entity -> {kind: value}. A user or client id of "" in the result is not part of the
    entity.
    """
    for parts, counted_user, counted_client in (
            (((CLIENT_ID, client_id), (USER, user)), user, client_id),
            (((CLIENT_ID, None), (USER, user)), user, client_id),
            (((USER, user),), user, ""),
            (((CLIENT_ID, client_id), (USER, None)), user, client_id),
            (((CLIENT_ID, None), (USER, None)), user, client_id),
            (((USER, None),), user, ""),
            (((CLIENT_ID, client_id),), "", client_id),
            (((CLIENT_ID, None),), "", client_id)):
        value = quotas.get(parts, {}).get(kind)
        if value is not None:
            return value, counted_user, counted_client
    return None


class Tokens:
    """Token bucket of one entity for partition changes, refilled at its quota (KIP-599)."""

    __slots__ = ("left", "at_ms")

    def __init__(self):
        self.left: float | None = None  # None: not used yet.
        self.at_ms = 0

    def fill(self, rate: float, window_s: float, now_ms: int) -> float:
        """Refill the bucket and return its tokens. rate: per second. window_s: maximum burst, in
        seconds of the rate.
        """
        burst = rate * window_s
        if self.left is None:
            self.left = burst
        else:
            self.left = min(burst, self.left + rate * (now_ms - self.at_ms) / 1000)
        self.at_ms = now_ms
        return self.left

    def take(self, count: int) -> None:
        assert self.left is not None
        self.left -= count


class Mutations:
    """The quota check of one request: each change takes tokens from its client's bucket.

    strict: reject changes if the bucket is below zero; otherwise only throttle the client.
    """

    def __init__(self, tokens: Tokens, rate: float, window_s: float, strict: bool, clock_ms):
        self._tokens = tokens
        self._rate = rate
        self._window_s = window_s
        self._strict = strict
        self._clock_ms = clock_ms
        self._wait_ms = 0
        self._wait_from_ms = 0

    def charge(self, partitions: int) -> bool:
        """Take one token per partition. Return False if rejected; then no token was taken."""
        now_ms = self._clock_ms()
        left = self._tokens.fill(self._rate, self._window_s, now_ms)
        if self._strict and left < 0:
            self._wait(left, now_ms)
            return False
        self._tokens.take(partitions)
        if not self._strict and left - partitions < 0:
            self._wait(left - partitions, now_ms)
        return True

    def _wait(self, left: float, now_ms: int) -> None:
        self._wait_ms = int(-left / self._rate * 1000 + 0.5)
        self._wait_from_ms = now_ms

    def throttle_ms(self) -> int:
        """Return the remaining throttle time."""
        if not self._wait_ms:
            return 0
        return max(0, self._wait_ms - (self._clock_ms() - self._wait_from_ms))


class ClientQuotas:
    """The quotas of one broker. clock_ns: a monotonic clock. principal_name: returns the user of a
    principal number.
    """

    def __init__(self, settings, clock_ns, principal_name=lambda number: ANONYMOUS):
        self.native = quotas.Quotas(
            settings["quota.window.num"], settings["quota.window.size.seconds"] * 1000)
        self._mutation_window_s = (settings["controller.quota.window.num"]
                                   * settings["controller.quota.window.size.seconds"])
        self.clock_ns = clock_ns
        self.principal_name = principal_name
        self._hosts: dict[str, str | None] = {}
        self._quotas: dict = {}
        self._tokens: dict[tuple, Tokens] = {}
        self.timed = False  # a request time quota exists
        self._mutations_limited = False
        self._fetches_limited = False

    def now_ms(self) -> int:
        return self.clock_ns() // NS_PER_MS

    def take(self, quotas: dict) -> None:
        """Apply an image's quotas. Never waits for a resolver: quotas of host names without a known
        address are applied by take_hosts().
        """
        self._quotas = quotas
        kinds = {kind for parts, values in quotas.items() if parts[0][0] != IP for kind in values}
        self.timed = REQUEST_PERCENTAGE in kinds
        self._mutations_limited = CONTROLLER_MUTATION_RATE in kinds
        self._fetches_limited = CONSUMER_BYTE_RATE in kinds
        self.native.void(not kinds.isdisjoint(COUNTED))
        self.native.set_addresses(*self._addresses())

    def unresolved(self) -> list[str]:
        """Return the host names of quotas that have no known address."""
        return [parts[0][1] for parts in self._quotas if parts[0][0] == IP
                and parts[0][1] is not None and self._address(parts[0][1]) is None]

    def take_hosts(self, hosts: dict[str, str | None]) -> None:
        """Apply the quotas of resolved hosts. hosts: {name: address as text, None if it has none}.
        """
        self._hosts.update(hosts)
        self.native.set_addresses(*self._addresses())

    def _address(self, host: str) -> str | None:
        import ipaddress  # Takes 2 ms, which a start does not need.

        try:
            return str(ipaddress.ip_address(host))
        except ValueError:
            return self._hosts.get(host)

    def _addresses(self) -> tuple[dict, float]:
        """Return (connections per second by address, rate of all other addresses)."""
        limits: dict[bytes, float] = {}
        hosts: dict[str, str | None] = {}
        others = 0.0
        for parts, values in self._quotas.items():
            rate = values.get(CONNECTION_CREATION_RATE)
            if parts[0][0] != IP or rate is None:
                continue
            if parts[0][1] is None:
                others = rate
                continue
            host = parts[0][1]
            address = hosts[host] = self._address(host)
            if address is not None:
                limits[packed(address)] = rate
        self._hosts = hosts
        return limits, others

    def install(self, principal: int, client_id: bytes) -> None:
        """Install a client's quotas in the reactors, unless they have them."""
        if self.native.fetch_max(principal, client_id, 0) is not None:
            return
        user, name = self.principal_name(principal), client_id.decode("utf-8", "replace")
        produce, fetch, request = [
            self._counted(number, limit(self._quotas, kind, user, name))
            for number, kind in enumerate(COUNTED)]
        self.native.install(
            principal, client_id, (produce, fetch, request), self.now_ms())

    @staticmethod
    def _counted(number: int, found) -> tuple[bytes, float] | None:
        """Return (usage key, quota) in the reactors' form, None without a quota."""
        if found is None:
            return None
        quota, user, client_id = found
        return b"%d\0%s\0%s" % (number, user.encode(), client_id.encode()), quota


    def throttled_ms(self, client_id: str, within_ms: int) -> int:
        """Return the total throttle time in ms of clients with this id, if one was throttled within
        within_ms.
        """
        return self.native.throttled(client_id.encode(), self.now_ms() - within_ms)

    def charge_time(self, principal: int, client_id: bytes, busy_ns: int) -> int:
        """Count time that the control plane spent. Return the throttle time in ms."""
        for _ in range(2):
            wait_ms = self.native.charge(principal, client_id, quotas.REQUEST,
                                         busy_ns * PERCENT_PER_NS, self.now_ms())
            if wait_ms is not None:
                return wait_ms
            self.install(principal, client_id)
        return 0

    def fetch_bytes_max(self, principal: int, client_id: bytes, most: int) -> int:
        """Return the maximum number of bytes of a Fetch response of the control plane, at most
        `most`.
        """
        if not self._fetches_limited:
            return most
        self.install(principal, client_id)
        return int(self.native.fetch_max(principal, client_id, most) or most)

    def charge_fetch(self, principal: int, client_id: bytes, bytes_: int) -> int:
        """Count bytes that the control plane sent to a client. Return the throttle time in ms."""
        if not self._fetches_limited:
            return 0
        self.install(principal, client_id)
        return int(self.native.charge(
            principal, client_id, quotas.FETCH, bytes_, self.now_ms(), True) or 0)

    def mutations(self, principal: int, client_id: str | None, strict: bool) -> Mutations | None:
        """Return the quota check for a request that creates or deletes partitions, None without a
        quota.
        """
        if not self._mutations_limited:
            return None
        found = limit(self._quotas, CONTROLLER_MUTATION_RATE, self.principal_name(principal),
                      client_id or "")
        if found is None:
            return None
        tokens = self._tokens_of(found[1:])
        return Mutations(tokens, found[0], self._mutation_window_s, strict, self.now_ms)

    def _tokens_of(self, counted: tuple) -> Tokens:
        tokens = self._tokens.get(counted)
        if tokens is None:
            if len(self._tokens) >= TOKENS_IDLE_MAX:
                self._drop_idle()
            tokens = self._tokens[counted] = Tokens()
        return tokens

    def _drop_idle(self) -> None:
        """Drop buckets that are full again because they were not used for one window."""
        since_ms = self.now_ms() - self._mutation_window_s * 1000
        self._tokens = {counted: tokens for counted, tokens in self._tokens.items()
                        if tokens.at_ms > since_ms and tokens.left is not None}

"""Client quotas: which limit holds for a client, and who has used up what the control plane counts.

Owns: the quotas in force, the tokens of clients that change topics; through Quotas, what the
  reactors know of clients.
Invariants: (1) for each kind the most specific entity that has a quota of this kind decides alone;
  (2) clients that a default limits are counted apart from each other, clients of a named entity
  together; (3) after take() nothing is decided by the quotas before it.
Source: KIP-13, KIP-55 (users), KIP-124 (request time), KIP-546 (filters), KIP-599 (mutations),
  KIP-612 (addresses).
"""

import ipaddress

from pylog._native import quotas as native

USER, CLIENT_ID, IP = "user", "client-id", "ip"
PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"

# The order of the native kinds.
COUNTED = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE)
assert (native.PRODUCE, native.FETCH, native.REQUEST) == (0, 1, 2)

# Who did not authenticate.
ANONYMOUS = "ANONYMOUS"
TOKENS_IDLE_MAX = 10_000
NS_PER_MS = 1_000_000
PERCENT_PER_NS = 100 / 1_000_000_000


def entity(parts) -> tuple:
    """An entity as images and answers name it: ((type, name or None for the default), ...).

    parts: pairs in any order.
    """
    return tuple(sorted(dict(parts).items()))


def packed(address: str) -> bytes:
    """An address as connections carry theirs: 16 bytes, v4-mapped for IPv4."""
    found = ipaddress.ip_address(address)
    return bytes(10) + b"\xff\xff" + found.packed if found.version == 4 else found.packed


def limit(quotas: dict, kind: str, user: str, client_id: str):
    """(the quota, the user and client id that are counted together), None without a quota (1, 2).

    quotas: entity -> {kind: value}. What is "" in the answer does not matter to the entity.
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
    """What one entity may still change: a bucket that fills at its quota (KIP-599)."""

    __slots__ = ("left", "at_ms")

    def __init__(self):
        self.left: float | None = None    # None: never asked.
        self.at_ms = 0

    def fill(self, rate: float, window_s: float, now_ms: int) -> float:
        """The tokens left. rate: per second. window_s: how much of it a burst may take."""
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
    """One request's account: what it changes is taken from its client's tokens.

    strict: with less than none left nothing more is allowed; otherwise the client only has to wait.
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
        """Takes a token for each partition; False: refused, nothing was taken."""
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
        """How long the client is to wait from now on."""
        if not self._wait_ms:
            return 0
        return max(0, self._wait_ms - (self._clock_ms() - self._wait_from_ms))


class ClientQuotas:
    """The quotas of one broker. clock_ns: a monotonic clock. principal_name: the user that requests
    under a number are counted for."""

    def __init__(self, settings, clock_ns, principal_name=lambda number: ANONYMOUS):
        self.native = native.Quotas(
            settings["quota.window.num"], settings["quota.window.size.seconds"] * 1000)
        self._mutation_window_s = (settings["controller.quota.window.num"]
                                   * settings["controller.quota.window.size.seconds"])
        self.clock_ns = clock_ns
        self.principal_name = principal_name
        self._hosts: dict[str, str | None] = {}
        self._quotas: dict = {}
        self._tokens: dict[tuple, Tokens] = {}
        self.timed = False       # some client's time on the threads is limited
        self._mutations_limited = False
        self._fetches_limited = False

    def now_ms(self) -> int:
        return self.clock_ns() // NS_PER_MS

    def take(self, quotas: dict) -> None:
        """Put an image's quotas in force (3). Never waits for a resolver: those of host names
        without a known address follow with take_hosts()."""
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
        """Put the quotas of hosts in force whose addresses are known now. hosts: {name: the text of
        its address, None without one}."""
        self._hosts.update(hosts)
        self.native.set_addresses(*self._addresses())

    def _address(self, host: str) -> str | None:
        try:
            return str(ipaddress.ip_address(host))
        except ValueError:
            return self._hosts.get(host)

    def _addresses(self) -> tuple[dict, float]:
        """(connections per second by address, those of every other address)."""
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
        """Tells the reactors what limits a client, unless they know it already."""
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
        """What is counted together, and its quota, as the reactors know it."""
        if found is None:
            return None
        quota, user, client_id = found
        return b"%d\0%s\0%s" % (number, user.encode(), client_id.encode()), quota


    def throttled_ms(self, client_id: str, within_ms: int) -> int:
        """For how many ms clients of this id were held back in all, when any was within_ms ago."""
        return self.native.throttled(client_id.encode(), self.now_ms() - within_ms)

    def charge_time(self, principal: int, client_id: bytes, busy_ns: int) -> int:
        """Counts time that the control plane took; for how many ms the client is to be muted."""
        for _ in range(2):
            wait_ms = self.native.charge(principal, client_id, native.REQUEST,
                                         busy_ns * PERCENT_PER_NS, self.now_ms())
            if wait_ms is not None:
                return wait_ms
            self.install(principal, client_id)
        return 0

    def fetch_bytes_max(self, principal: int, client_id: bytes, most: int) -> int:
        """How much the control plane may answer a client that fetches, at most `most`."""
        if not self._fetches_limited:
            return most
        self.install(principal, client_id)
        return int(self.native.fetch_max(principal, client_id, most) or most)

    def charge_fetch(self, principal: int, client_id: bytes, bytes_: int) -> int:
        """Counts what a client got from the control plane; for how many ms it is to be muted."""
        if not self._fetches_limited:
            return 0
        self.install(principal, client_id)
        return int(self.native.charge(
            principal, client_id, native.FETCH, bytes_, self.now_ms(), True) or 0)

    def mutations(self, principal: int, client_id: str | None, strict: bool) -> Mutations | None:
        """The account of a request that makes or removes partitions; None: it has no limit."""
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
        """A bucket that nobody touched for as long as it takes to fill one is as good as new."""
        since_ms = self.now_ms() - self._mutation_window_s * 1000
        self._tokens = {counted: tokens for counted, tokens in self._tokens.items()
                        if tokens.at_ms > since_ms and tokens.left is not None}

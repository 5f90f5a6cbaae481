"""The network layer of a broker: creates the reactors, and applies listener settings and limits.

Owns: the reactors.
Invariants: a listener number is never reused, so that a connection that outlives its listener keeps
  its listener name; changing some listeners does not affect unchanged ones; only limits of changed
  host names are resolved.
Source: KIP-226 (num.network.threads, listeners), KIP-402 (max.connections).
"""

from __future__ import annotations

import errno
import logging
import socket
import threading

from pylog._native.server.reactor import ASKS, CONTROL, GUARDED, THREADS_MAX, Reactors
from pylog.config import ConfigError, limits
from pylog.config.client_quotas import packed
from pylog.config.listeners import SASL_PROTOCOLS, TLS_PROTOCOLS
from pylog.log.errors import StartError
from pylog.protocol import api, tables

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from pylog.config.listeners import Listener
    from pylog.security.tls.listener_tls import ListenerTls

log = logging.getLogger("pylog.network")

NEVER_FLEXIBLE = 1 << 14
RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
REBIND_ATTEMPTS, REBIND_PAUSE_S = 100, 0.02
REPORT_MS = 10_000  # between two log lines about the same shortage


class Network:
    """The reactors of one broker. `addresses` and `controller_addresses`: [(listener name, host,
    port)] of the bound listeners.
    """

    def __init__(self, settings, grants, io_pool, quotas, needs_approval: bool = False,
                 throttle=None, repeats=None):
        """asks: identify connections on listeners without authentication, too. throttle: of
        follower fetches, a native Throttle or None. repeats: heartbeat responses that reactors
        repeat, a native Repeats or None.
        """
        self._settings = settings
        self._needs_approval = needs_approval
        self.reactors = _reactors(settings, grants, io_pool, quotas, throttle, repeats)
        self._names: list[str] = []
        self._controller_names = {listener.name for listener in settings.controller_listeners}
        self._open: dict[int, tuple] = {}
        self._tls: dict[int, ListenerTls] = {}
        self._running = False
        self._limits_by_host: dict[str, int] = {}
        self._limits_by_address: dict[bytes, int] = {}
        self._crowded, self._reported_ms = (0, 0), -REPORT_MS

    @property
    def addresses(self) -> list[tuple[str, str, int]]:
        return self._bound(self._settings.listeners)

    @property
    def controller_addresses(self) -> list[tuple[str, str, int]]:
        return self._bound(self._settings.controller_listeners)

    def _bound(self, listeners) -> list[tuple[str, str, int]]:
        return [(listener.name,
                 socket.gethostname() if listener.is_wildcard else listener.host, port)
                for listener, port in self._open.values() if listener in listeners]

    def bound_ports(self) -> list[tuple[Listener, int]]:
        """Return each configured listener with its port, -1 if it is not bound."""
        open_ports = {listener.name: port for listener, port in list(self._open.values())}
        return [(listener, open_ports.get(listener.name, -1)) for listener in self._listeners]

    def is_controllers(self, number: int) -> bool:
        """Return True if the number is that of a controller listener."""
        return self._names[number] in self._controller_names

    def listener_name(self, number: int) -> str:
        """Return the name of a listener, open or closed, by the number that its connections carry.
        """
        return self._names[number]

    def nodes(self, image) -> list[tuple[int, list[tuple[int, str, int, str | None]]]]:
        """Return for each open listener its number and the active brokers' endpoints with its name:
        (id, host, port, rack).
        """
        return [(number, [(id_, endpoint.host, endpoint.port, broker.rack)
                          for id_, broker in image.brokers.items() if not broker.fenced
                          for endpoint in broker.endpoints if endpoint.name == listener.name])
                for number, (listener, _) in self._open.items()]

    def open(self) -> None:
        """Bind the listeners. Raises StartError."""
        self._set_limits()
        for listener in self._listeners:
            try:
                self._listen(listener)
            except OSError as error:
                remedy = f". {_port_remedy(listener)}" if error.errno == errno.EADDRINUSE else ""
                raise StartError(
                    f"cannot listen on {listener!r}: {error.strerror}{remedy}") from error
            except ConfigError as error:
                raise StartError(str(error)) from error

    @property
    def _listeners(self) -> list:
        return list(self._settings.all_listeners)

    def start(self) -> None:
        self.reactors.start()
        self._running = True
        self._resize()

    def apply(self) -> bool:
        """Apply the current settings. Blocks. Return True if `addresses` changed.

        Logs failures of the system, as Kafka does: the settings remain changed, and the next start
        or change tries again.
        """
        self._set_limits()
        self._resize()
        self.refresh_certificates()
        added = self._listeners
        ended = []
        for number, (listener, port) in self._open.items():
            same = [new for new in added if new.port in (listener.port, port)
                    and (new.name, new.host, new.protocol)
                    == (listener.name, listener.host, listener.protocol)]
            added = [new for new in added if new not in same]
            if not same:
                ended.append(number)
        for number in ended:
            self.reactors.unlisten(number)
            del self._open[number]
            self._tls.pop(number, None)
        for listener in added:
            self._listen_soon(listener, REBIND_ATTEMPTS if ended else 1)
        return bool(ended or added)

    def _listen_soon(self, listener, attempts: int) -> None:
        """Open a listener. Retry while its port is in use: the port of a closed listener becomes
        free when every reactor has closed its socket.
        """
        for attempt in range(attempts):
            try:
                self._listen(listener)
                return
            except OSError as error:
                in_use = error.errno == errno.EADDRINUSE
                if not in_use or attempt + 1 == attempts:
                    remedy = f". {_port_remedy(listener)}" if in_use else ""
                    log.error("cannot listen", extra={"listener": repr(listener),
                                                      "reason": f"{error.strerror}{remedy}"})
                    return
            except ConfigError as error:
                log.error("cannot listen", extra={"listener": repr(listener),
                                                  "reason": str(error)})
                return
            threading.Event().wait(REBIND_PAUSE_S)

    def _listen(self, listener) -> None:
        number = len(self._names)
        if listener.protocol != "PLAINTEXT":
            # Imported here: it adds some ms to startup, and not every broker holds secrets.
            from pylog.security import core_dumps

            core_dumps.keep_out()
        tls = self._tls_of(listener)
        self._limit_listener(number, listener.name)
        port = self.reactors.listen(
            number, listener.host, listener.port, self._backlog, self._flags(listener),
            None if tls is None else tls.maker)
        assert number == len(self._names) and number not in self._open, number  # never reused
        self._names.append(listener.name)
        self._open[number] = listener, port
        if tls is not None:
            self._tls[number] = tls

    def _tls_of(self, listener) -> ListenerTls | None:
        """Return the TLS of a listener, None without TLS. Raises ConfigError."""
        if listener.protocol not in TLS_PROTOCOLS:
            return None
        # Imported here because it loads OpenSSL, which not every broker needs.
        from pylog.security.tls.listener_tls import ListenerTls

        tls = ListenerTls(self._settings, listener)
        tls.load()
        return tls

    @property
    def has_tls(self) -> bool:
        return bool(self._tls)

    def refresh_certificates(self) -> None:
        """Apply changed certificates, from settings and files. Blocks."""
        for tls in list(self._tls.values()):
            tls.refresh()

    def _flags(self, listener) -> int:
        control = CONTROL if listener.name in self._controller_names else 0
        if listener.protocol in SASL_PROTOCOLS:
            return control | GUARDED
        return control | ASKS if self._needs_approval else control

    @property
    def _backlog(self) -> int:
        return self._settings["socket.listen.backlog.size"]

    def _resize(self) -> None:
        wanted, before = min(self._settings["num.network.threads"], THREADS_MAX), \
            self.reactors.threads
        if wanted == before or not self._running:
            return
        try:
            self.reactors.resize(wanted)
        except OSError as error:
            log.error("cannot start more network threads", extra={"reason": error.strerror})
        if self.reactors.threads > before:
            for number, (listener, port) in self._open.items():
                try:
                    tls = self._tls.get(number)
                    self.reactors.join(number, listener.host, port, self._backlog, before,
                                       self._flags(listener), None if tls is None else tls.maker)
                except OSError as error:
                    # The other reactors still listen, and hand connections over to this one.
                    log.error("a network thread does not listen",
                              extra={"listener": repr(listener), "reason": error.strerror})

    def _set_limits(self) -> None:
        if self._settings.connection_limits != self._limits_by_host:
            # Only if they changed: a slow resolver must not delay other settings.
            self._limits_by_host = dict(self._settings.connection_limits)
            self._limits_by_address = {
                address: count for host, count in self._limits_by_host.items()
                for address in _addresses(host)}
        for number, (listener, _) in self._open.items():
            self._limit_listener(number, listener.name)
        self.reactors.set_limits(
            self._settings["max.connections"], self._settings["max.connections.per.ip"],
            self._limits_by_address,
            *limits.connections(len(self._settings.log_dirs)))

    def _limit_listener(self, number: int, name: str) -> None:
        """Apply listener.name.<listener>.max.connections, or else max.connections."""
        self.reactors.set_listener_limit(
            number, self._settings.of_listener(name, "max.connections"))

    def report_shortages(self, now_ms: int) -> None:
        """Log a shortage of descriptors, at most every REPORT_MS. Call about once per second."""
        stats = self.reactors.stats()
        crowded = stats["connections_crowded"], stats["connections_evicted"]
        if crowded != self._crowded and not 0 <= now_ms - self._reported_ms < REPORT_MS:
            log.warning("too few file descriptors: new connections are refused or idle ones "
                        "closed; raise the limit with ulimit -n", extra={
                            "refused": crowded[0] - self._crowded[0],
                            "closed": crowded[1] - self._crowded[1],
                            "limit": limits.descriptors()})
            self._crowded, self._reported_ms = crowded, now_ms


def _addresses(host: str) -> list[bytes]:
    """Resolve a host to addresses, IPv4 as v4-mapped. On failure, log it and return none."""
    try:
        found = {str(entry[4][0]).partition("%")[0]
                 for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError as error:
        log.error("max.connections.per.ip.overrides: the host has no address",
                  extra={"host": host, "reason": error.strerror})
        return []
    return [packed(address) for address in found]


def _reactors(settings, grants, io_pool, quotas, throttle, repeats) -> Reactors:
    flexible = tables.flexible_from()
    served = {**api.OF_CONTROLLER, **api.SERVED} if settings.controller_listeners else api.SERVED
    versions = [(key, low, high, min(flexible[key], NEVER_FLEXIBLE))
                for key, (low, high) in served.items()]
    longest, queued = settings["socket.request.max.bytes"], settings["queued.max.request.bytes"]
    if queued <= 0:
        queued = limits.input_bytes()
        if queued < longest:
            log.warning("little memory: large requests are rejected", extra={
                "bytes": queued // 2, "memory": limits.memory_bytes()})
            longest = min(longest, queued // 2)
    return Reactors(
        grants=grants, io_pool=io_pool, quotas=quotas, throttle=throttle, repeats=repeats,
        api_versions=versions,
        rack_aware=settings["replica.selector.class"] == RACK_AWARE,
        network_threads=min(settings["num.network.threads"], THREADS_MAX),
        request_bytes_max=longest,
        control_bytes_max=settings["control.request.bytes.max"],
        idle_ms_max=settings["connections.max.idle.ms"],
        queued_requests_max=settings["queued.max.requests"],
        input_bytes_max=queued // settings["num.network.threads"],
        send_buffer_bytes=settings["socket.send.buffer.bytes"],
        receive_buffer_bytes=settings["socket.receive.buffer.bytes"],
        fetch_bytes_max=settings["fetch.max.bytes"],
        gather_ms_max=settings["fetch.batching.max.ms"],
        unauthenticated_bytes_max=settings["sasl.server.max.receive.size"],
        sessions_max=settings["max.incremental.fetch.session.cache.slots"])


def _port_remedy(listener) -> str:
    """Return what to do when the port of a listener is in use."""
    from pylog import port_owner

    return port_owner.remedy(
        listener.port, f"listeners={listener.name}://{listener.host}:{listener.port + 1}")

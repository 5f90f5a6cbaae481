"""A broker under test: start, stop, inspect and disturb it.

Owns: the broker's directory, unless the test provides one.
Invariants: the broker listens on 127.0.0.1 and a separate port that it keeps across restarts,
  unless it belongs to a cluster; brokers of one process share nothing.
"""

from __future__ import annotations

import datetime
import itertools
import os
from typing import Any

from pylog.testing import data_directories
from pylog.testing.ports import free_port
from pylog.testing.errors import BrokerFailed
from pylog.testing.faults import Faults
from pylog.testing.groups import Group
from pylog.testing.thread import ThreadHost
from pylog.testing.topics import Topic

PORT_ATTEMPTS = 5


class Clock:
    """The broker's clock."""

    def __init__(self, broker: Broker):
        self._broker = broker

    def advance(self, *, timers: bool = True, **duration: float) -> None:
        """Move the clock forward: `advance(hours=1)`, with the arguments of datetime.timedelta.

        On return everything that became due is done: retention, segment rolls, compaction, offset
        expiry, session and rebalance timeouts. timers=False moves only the wall clock, so that
        group members do not time out. Waits of the data plane, such as a Fetch waiting for records,
        use real time.
        """
        delta = datetime.timedelta(**duration)
        self._broker.advance(delta // datetime.timedelta(milliseconds=1), timers)

    def now_ms(self) -> int:
        """Return the broker's wall clock in ms."""
        return self._broker.call("now_ms")

    def now(self) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(self.now_ms() / 1000, datetime.UTC)


class Broker:
    """A real broker for tests: `with Broker() as broker`, or start() and stop().

    settings: by Kafka's names, with dots or underscores. directory: for data, by default a
    temporary one in memory. process: run in a child process instead of threads of this process;
    needed for kill(). host: the host name in its settings. log_dirs: number of log directories.
    tls: listen with TLS, with a certificate from a test CA (`authority`); "mutual": require client
    certificates. TLS needs the library `cryptography`.
    """

    def __init__(self, directory: Any = None, *, settings: dict[str, Any] | None = None,
                 process: bool = False, tls: bool | str = False, host: str = "127.0.0.1",
                 log_dirs: int = 1):
        self.process = process
        self._address = host
        # Names with dots keep their underscores, which can be part of a listener name.
        self.settings = {name if "." in name else name.replace("_", "."): _text(value)
                         for name, value in (settings or {}).items()}
        self.authority: Any = None
        if tls:
            # Imported here: few tests need it and its library.
            from pylog.testing.certificates import Authority

            self.authority = Authority()
            self.settings = {**_tls_settings(self.authority, tls == "mutual"), **self.settings}
        self._is_temporary = directory is None
        self.directory = data_directories.make() if directory is None else os.fspath(directory)
        self._names_of_dirs = [f"data-{number}" if number else "data" for number in range(log_dirs)]
        self._host: Any = None
        self._port = 0
        self._ahead_ms = 0
        self._names = itertools.count(1)

    # ---- life -----------------------------------------------------------------------------------

    def start(self) -> Broker:
        """Start the broker and wait until it answers requests. Raises BrokerFailed."""
        if self._host is not None:
            raise BrokerFailed("the broker is running")
        os.makedirs(self.directory, exist_ok=True)
        for left in reversed(range(PORT_ATTEMPTS)):
            host = self._new_host()
            try:
                host.start()
                break
            except BrokerFailed:
                # Another process may have taken the port since it was found free.
                if self._port or "listeners" in self.settings or not left:
                    raise
        self._host, self._port = host, host.port
        if self._ahead_ms:
            host.call("advance", self._ahead_ms, False)
        return self

    def _new_host(self) -> Any:
        texts = {"log.dirs": ",".join(self.log_dirs), **self.settings}
        if "listeners" not in texts:
            protocol = "PLAINTEXT" if self.authority is None else "SSL"
            address = f"{protocol}://127.0.0.1:{self._port or free_port()}"
            if self.authority is not None:
                texts = {"inter.broker.listener.name": protocol, **texts}
            # Network faults move the listener, but clients must keep the same address.
            texts = {"advertised.listeners": address, **texts, "listeners": address}
        if self.process:
            # Imported here: it costs 17 ms, and few tests need it.
            from pylog.testing.child import ChildHost

            return ChildHost(texts, self.directory)
        return ThreadHost(texts)

    def stop(self) -> None:
        """Stop the broker cleanly. Keeps the directory for the next start, even a temporary one."""
        if self._host is not None:
            self._host.stop()
            self._host = None

    def kill(self) -> None:
        """Kill a child-process broker with SIGKILL. start() continues from the data on disk.

        Raises BrokerFailed for a broker on threads.
        """
        if not self.process:
            raise BrokerFailed("only a broker in a process of its own can be killed")
        if self._host is not None:
            self._host.kill()
            self._host = None

    def die(self) -> None:
        """Stop without notifying the cluster or clients; the data on disk looks as after a kill.

        Kills a child process. On threads, connections close and nothing is handed over.
        """
        if self.process:
            self.kill()
        elif self._host is not None:
            self._host.call("die")
            self.stop()

    def pause(self) -> None:
        """Pause the broker until resume(). On threads, pauses only its event loop."""
        self._running_host().pause()

    def resume(self) -> None:
        self._running_host().resume()

    def _running_host(self) -> Any:
        if self._host is None:
            raise BrokerFailed("the broker is not running")
        return self._host

    @property
    def log_dirs(self) -> list[str]:
        """Return the log directories, unless the settings contain others."""
        return [os.path.join(self.directory, name) for name in self._names_of_dirs]

    @property
    def pid(self) -> int:
        """Return the id of the process that runs the broker."""
        return self._host.pid if self.process and self._host is not None else os.getpid()

    def restart(self) -> None:
        """Restart cleanly, with the same data, port and clock."""
        self.stop()
        self.start()

    def reset(self) -> bool:
        """Remove all topics and groups. Returns False if anything else changed; use a new broker
        then.
        """
        return self._host is not None and self.call("reset") is None

    @property
    def running(self) -> bool:
        return self._host is not None

    def close(self) -> None:
        """Stop the broker and remove a temporary directory."""
        self.stop()
        if self._is_temporary:
            data_directories.remove(self.directory)

    def __enter__(self) -> Broker:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.close()

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a method of the broker's Node, for this package's classes. Raises BrokerFailed."""
        return self._running_host().call(name, *arguments)

    def advance(self, ms: int, timers: bool) -> None:
        """Move the clocks; see Clock.advance()."""
        self.call("advance", ms, timers)
        self._ahead_ms += ms

    # ---- topics and groups ----------------------------------------------------------------------

    @property
    def port(self) -> int:
        return self._port

    @property
    def bootstrap(self) -> str:
        """Return the value for a client's bootstrap.servers."""
        return f"{self._address}:{self._port}"

    def client_settings(self, name: str = "") -> dict[str, str]:
        """Return the TLS settings of a client, by Kafka's names.

        name: the subject of its client certificate; "" for no certificate. Raises BrokerFailed
        without TLS.
        """
        if self.authority is None:
            raise BrokerFailed("the broker has no TLS")
        settings = {"bootstrap.servers": self.bootstrap, "security.protocol": "SSL",
                    "ssl.truststore.type": "PEM",
                    "ssl.truststore.certificates": self.authority.pem.decode()}
        return settings if not name else {
            **settings, **_own_settings(self.authority.issue(name, ()))}

    @property
    def clock(self) -> Clock:
        return Clock(self)

    @property
    def faults(self) -> Faults:
        return Faults(self)

    def topic(self, name: str) -> Topic:
        """Return a topic by name. It does not have to exist."""
        return Topic(self, name)

    def create_topic(self, name: str | None = None, partitions: int = 1,
                     config: dict[str, Any] | None = None, replicas: int = 1,
                     **settings: Any) -> Topic:
        """Create a topic, with a generated name by default. Raises Refused.

        settings: topic settings by Kafka's names with underscores: `retention_ms=1000`. config: the
        same with dots.
        """
        name = f"topic-{next(self._names)}" if name is None else name
        texts = {key.replace("_", "."): _text(value)
                 for key, value in {**(config or {}), **settings}.items()}
        self.call("create_topic", name, partitions, texts, replicas)
        return Topic(self, name)

    def topics(self) -> list[str]:
        """Return the topic names, without internal topics."""
        return sorted(self.call("topics"))

    def group(self, group_id: str) -> Group:
        return Group(self, group_id)

    def groups(self) -> list[str]:
        return sorted(self.call("groups"))


def _tls_settings(authority: Any, mutual: bool) -> dict[str, str]:
    settings = _own_settings(authority.issue())
    if mutual:
        settings |= {"ssl.client.auth": "required", "ssl.truststore.type": "PEM",
                     "ssl.truststore.certificates": authority.pem.decode()}
    return settings


def _own_settings(certificate: Any) -> dict[str, str]:
    return {"ssl.keystore.type": "PEM", "ssl.keystore.key": certificate.key.decode(),
            "ssl.keystore.certificate.chain": certificate.chain.decode()}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)

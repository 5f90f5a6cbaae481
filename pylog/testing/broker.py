"""A broker as a test holds it: started, asked, disturbed, stopped.

Owns: the broker's directory, when none was given.
Invariants: (1) the broker listens on 127.0.0.1 and a port of its own, which a restart keeps, unless
  it is one of a cluster; (2) it shares nothing with another one of the same process.
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
    """The broker's time."""

    def __init__(self, broker: Broker):
        self._broker = broker

    def advance(self, *, timers: bool = True, **duration: float) -> None:
        """Moves it forward: `advance(hours=1)`, words as datetime.timedelta's.

        When it returns, what is due by then has happened: retention, rolls, compaction, expiry of
        committed offsets, session and rebalance timeouts. timers=False moves the date only, so that
        members of groups do not time out. The data plane's own waits, a Fetch that waits for
        records for example, go by real time.
        """
        delta = datetime.timedelta(**duration)
        self._broker.advance(delta // datetime.timedelta(milliseconds=1), timers)

    def now_ms(self) -> int:
        """Milliseconds since 1970 by the broker's clock."""
        return self._broker.call("now_ms")

    def now(self) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(self.now_ms() / 1000, datetime.UTC)


class Broker:
    """A real broker for tests; `with Broker() as broker`, or start and stop.

    settings: by Kafka's names, with dots or underscores. directory: its data, by default a new one
    in memory that goes with it. process: a child process instead of threads of this one; only that
    can be killed. host: that its settings name. log_dirs: how many log directories it has. tls: it
    speaks TLS, with certificates of an authority of its own (`authority`); "mutual": its clients
    show a certificate, too. For that the library `cryptography` is needed.
    """

    def __init__(self, directory: Any = None, *, settings: dict[str, Any] | None = None,
                 process: bool = False, tls: bool | str = False, host: str = "127.0.0.1",
                 log_dirs: int = 1):
        self.process = process
        self._address = host
        # A name with dots may hold an underscore of its own: that of a listener.
        self.settings = {name if "." in name else name.replace("_", "."): _text(value)
                         for name, value in (settings or {}).items()}
        self.authority: Any = None
        if tls:
            # Imported here: few tests need it, and its library.
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
        """Returns when it answers. Raises BrokerFailed."""
        if self._host is not None:
            raise BrokerFailed("the broker is running")
        os.makedirs(self.directory, exist_ok=True)
        for left in reversed(range(PORT_ATTEMPTS)):
            host = self._new_host()
            try:
                host.start()
                break
            except BrokerFailed:
                # Its port may have gone to another process since it was found free.
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
            # Told to clients whatever happens to the listener: faults of the network need that.
            texts = {"advertised.listeners": address, **texts, "listeners": address}
        if self.process:
            # Imported here: it costs 17 ms, and few tests need it.
            from pylog.testing.child import ChildHost

            return ChildHost(texts, self.directory)
        return ThreadHost(texts)

    def stop(self) -> None:
        """A clean stop; the directory stays for the next start, unless it was a temporary one."""
        if self._host is not None:
            self._host.stop()
            self._host = None

    def kill(self) -> None:
        """SIGKILL for a broker in a child process; start() goes on from what is on disk. Raises
        BrokerFailed for one on threads, which cannot be killed alone."""
        if not self.process:
            raise BrokerFailed("only a broker in a process of its own can be killed")
        if self._host is not None:
            self._host.kill()
            self._host = None

    def die(self) -> None:
        """Ends without a word to anybody: the cluster is not told, and the next start finds what
        a kill leaves. A process is killed; on threads, connections end and nothing is handed over.
        """
        if self.process:
            self.kill()
        elif self._host is not None:
            self._host.call("die")
            self.stop()

    def pause(self) -> None:
        """Stands still until resume(); on threads, those of its decisions."""
        self._running_host().pause()

    def resume(self) -> None:
        self._running_host().resume()

    def _running_host(self) -> Any:
        if self._host is None:
            raise BrokerFailed("the broker is not running")
        return self._host

    @property
    def log_dirs(self) -> list[str]:
        """Its log directories, unless its settings name others."""
        return [os.path.join(self.directory, name) for name in self._names_of_dirs]

    @property
    def pid(self) -> int:
        """The process that the broker runs in."""
        return self._host.pid if self.process and self._host is not None else os.getpid()

    def restart(self) -> None:
        """Stops cleanly and starts again: the same data, port and date."""
        self.stop()
        self.start()

    def reset(self) -> bool:
        """Removes topics and groups. False: something else was touched, a new broker is needed."""
        return self._host is not None and self.call("reset") is None

    @property
    def running(self) -> bool:
        return self._host is not None

    def close(self) -> None:
        """Stops it and removes a temporary directory."""
        self.stop()
        if self._is_temporary:
            data_directories.remove(self.directory)

    def __enter__(self) -> Broker:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.close()

    def call(self, name: str, *arguments: Any) -> Any:
        """Asks the broker's Node; for the objects made here. Raises BrokerFailed."""
        return self._running_host().call(name, *arguments)

    def advance(self, ms: int, timers: bool) -> None:
        """See Clock.advance."""
        self.call("advance", ms, timers)
        self._ahead_ms += ms

    # ---- what there is --------------------------------------------------------------------------

    @property
    def port(self) -> int:
        return self._port

    @property
    def bootstrap(self) -> str:
        """For a client's bootstrap.servers."""
        return f"{self._address}:{self._port}"

    def client_settings(self, name: str = "") -> dict[str, str]:
        """What a client of a broker with TLS sets, by Kafka's names. name: in a certificate of its
        own, "" for none."""
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
        """A topic by its name, whether it exists or not."""
        return Topic(self, name)

    def create_topic(self, name: str | None = None, partitions: int = 1,
                     config: dict[str, Any] | None = None, replicas: int = 1,
                     **settings: Any) -> Topic:
        """A new topic; without a name it gets one of its own. Raises Refused.

        settings: the topic's, by Kafka's names with underscores: `retention_ms=1000`. config: the
        same with dots.
        """
        name = f"topic-{next(self._names)}" if name is None else name
        texts = {key.replace("_", "."): _text(value)
                 for key, value in {**(config or {}), **settings}.items()}
        self.call("create_topic", name, partitions, texts, replicas)
        return Topic(self, name)

    def topics(self) -> list[str]:
        """Names, without the broker's own topics."""
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

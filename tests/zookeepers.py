"""A ZooKeeper of several servers for tests, which can be killed and restarted.

Owns: the processes.
Invariants: a server never outlives the test process; servers keep their ports and data.
Source: the jars are those of PySpark.
"""

import shutil
import socket
import subprocess
import time
from importlib import util
from pathlib import Path

from kazoo.client import KazooClient

from pylog.metadata.quorum.zookeeper import ZooKeeper
from pylog.testing.ports import free_port
from tests.brokers import _die_with_parent

START_S = 60.0
# Session timeouts are half a second or less, so elections in tests are short.
TICK_MS = 250
JARS = ("zookeeper", "zookeeper-jute", "slf4j-api", "log4j-slf4j2-impl", "log4j-api", "log4j-core",
        "metrics-core", "snappy-java", "commons-io", "netty-*", "audience-annotations")
JVM = ("-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto",
       "-Dzookeeper.admin.enableServer=false", "-Dzookeeper.4lw.commands.whitelist=srvr",
       "-Djava.net.preferIPv4Stack=true")


class ZooKeepers:
    """root: for data. count: number of servers, all on 127.0.0.1. settings, jvm: added to each
    server's.
    """

    def __init__(self, root, count: int = 3, settings: dict | None = None, jvm: tuple = ()):
        self.root = root
        self.ports = {number: [free_port() for _ in range(3)] for number in range(1, count + 1)}
        self.processes: dict = {}
        self._settings = settings or {}
        self._jvm = jvm

    @property
    def addresses(self) -> list:
        return [f"127.0.0.1:{ports[0]}" for ports in self.ports.values()]

    def keys(self, ttl_s: float) -> ZooKeeper:
        """Return a new client."""
        return ZooKeeper(self.addresses, ttl_s)

    def end_lease(self, keys: ZooKeeper, lease: int) -> None:
        """Expire a session, as if it had sent nothing for its timeout."""
        assert keys._client.client_id[0] == lease
        twin = KazooClient(",".join(self.addresses), client_id=keys._client.client_id)
        twin.start()
        twin.stop()
        twin.close()

    def start(self) -> "ZooKeepers":
        for number in self.ports:
            self.start_member(number)
        self.await_leader()
        return self

    def start_member(self, number: int) -> None:
        data = self.root / f"zookeeper-{number}"
        data.mkdir(exist_ok=True)
        (data / "myid").write_text(str(number))
        found = {"tickTime": TICK_MS, "initLimit": 40, "syncLimit": 20, "dataDir": data,
                 "clientPort": self.ports[number][0], "clientPortAddress": "127.0.0.1",
                 "minSessionTimeout": 500, "maxSessionTimeout": 60_000, **self._settings}
        if len(self.ports) > 1:
            found |= {f"server.{other}": f"127.0.0.1:{ports[1]}:{ports[2]}"
                      for other, ports in self.ports.items()}
        config = self.root / f"zookeeper-{number}.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in found.items()))
        output = open(self.root / f"zookeeper-{number}.out", "ab")
        self.processes[number] = subprocess.Popen(
            [shutil.which("java") or "java", *JVM, *self._jvm, "-cp", _class_path(),
             "org.apache.zookeeper.server.quorum.QuorumPeerMain", config],
            stdout=output, stderr=output, preexec_fn=_die_with_parent)

    def kill(self, number: int) -> None:
        process = self.processes.pop(number)
        process.kill()
        process.wait()

    def leader(self) -> int | None:
        """Return the number of the leading or standalone server; None while there is none."""
        for number, ports in self.ports.items():
            if _mode(ports[0]) in ("leader", "standalone"):
                return number
        return None

    def await_leader(self) -> int:
        """Wait until every running server is available."""
        until = time.monotonic() + START_S
        while not all(_mode(self.ports[number][0]) for number in self.processes):
            assert time.monotonic() < until, (self.root / "zookeeper-1.out").read_text()[-2000:]
            time.sleep(0.05)
        found = self.leader()
        assert found is not None
        return found

    def close(self) -> None:
        for number in list(self.processes):
            self.kill(number)


def _class_path() -> str:
    spec = util.find_spec("pyspark")
    assert spec is not None and spec.origin, \
        "ZooKeeper for tests comes with PySpark: pip install --group dev"
    folder = Path(spec.origin).parent / "jars"
    return ":".join(str(path) for name in JARS for path in folder.glob(f"{name}-[0-9]*.jar"))


def _mode(port: int) -> str:
    """Return leader, follower or standalone; "" while the server is not available."""
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as stream:
            stream.settimeout(1)
            stream.sendall(b"srvr")
            answer = b""
            while data := stream.recv(4096):
                answer += data
    except OSError:
        return ""
    return answer.partition(b"Mode: ")[2].partition(b"\n")[0].decode()

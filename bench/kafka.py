"""Apache Kafka as the reference: its jars through Maven, one KRaft broker, its Java tools.

Owns: the folder `kafka/` of the cache ($PYLOG_CACHE, by default .cache/ of the checkout).
Invariants: no file of Kafka enters the checkout's tracked files; the broker listens on loopback
  only; concurrent callers resolve the jars once; checkouts with other versions of Kafka keep their
  jars.
Source: kafka-pom.xml names the versions; the JVM options are those of Kafka's own start script.
"""

import argparse
import base64
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
import uuid
from pathlib import Path

from pylog.testing.ports import free_port
from bench.process import BrokerProcess, die_with_parent

POM = Path(__file__).with_name("kafka-pom.xml")
BROKER_HEAP = "1g"
TOOL_HEAP = "512m"
START_WAIT_S = 300.0
JVM_OPTIONS = [
    "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true",
]
# For tests, which start many JVMs and need none of them to be fast.
QUICK_START = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
_quick_start: list[str] = []
LOG4J = """\
status = error
rootLogger.level = {level}
rootLogger.appenderRefs = out
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.target = SYSTEM_ERR
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = [%d] %p %m (%c)%n
"""


class KafkaMissing(Exception):
    """Java, Maven or the jars are not available; the message is one line for the user."""


def start_quickly() -> None:
    """Start every later JVM of this process in half the CPU time; its throughput is lower."""
    _quick_start[:] = QUICK_START


def cache_dir() -> Path:
    root = os.environ.get("PYLOG_CACHE") or Path(__file__).resolve().parent.parent / ".cache"
    return Path(root) / "kafka"


def _program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise KafkaMissing(f"Apache Kafka needs `{name}` on PATH (Debian: openjdk-17-jdk, maven)")
    return path


def _resolve() -> Path:
    """Return the folder of jars, filled by Maven if the pom has changed. A file lock makes
    concurrent callers resolve once.
    """
    root = cache_dir()
    version = kafka_version()
    lib = root / f"lib-{version}"
    stamp = root / f"resolved-{version}"
    digest = hashlib.sha256(POM.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == digest:
        return lib
    maven = _program("mvn")
    root.mkdir(parents=True, exist_ok=True)
    with open(root / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if stamp.exists() and stamp.read_text() == digest:
            return lib
        shutil.rmtree(lib, ignore_errors=True)
        done = subprocess.run(
            [maven, "-q", "-B", "-f", str(POM), "dependency:copy-dependencies",
             f"-DoutputDirectory={lib}", "-DincludeScope=runtime"],
            capture_output=True, text=True,
        )
        if done.returncode:
            first = (done.stdout + done.stderr).strip().splitlines() or ["no output"]
            raise KafkaMissing(f"Maven could not fetch Apache Kafka: {first[0]}")
        for level in ("info", "warn"):
            (root / f"log4j-{level}.properties").write_text(LOG4J.format(level=level))
        stamp.write_text(digest)
    return lib


def classpath() -> str:
    """Return the class path for `java -cp`. Raises KafkaMissing with one line if it is not
    available.
    """
    return str(_resolve() / "*")


def kafka_version() -> str:
    """Return the version in kafka-pom.xml, such as 4.4.0."""
    return POM.read_text().partition("<kafka.version>")[2].partition("<")[0]


def java_command(class_name: str, *args, heap: str = TOOL_HEAP, level: str = "warn",
                 jvm_options: tuple = ()) -> list[str]:
    """Return the command line that runs one of Kafka's main classes."""
    path = classpath()
    config = cache_dir() / f"log4j-{level}.properties"
    return [
        _program("java"), f"-Xmx{heap}", f"-Dlog4j2.configurationFile={config}",
        *_quick_start, *jvm_options, "-cp", path, class_name, *map(str, args),
    ]


def run_tool(class_name: str, *args, input: str | None = None, wait_s: float = 600.0,
             heap: str = TOOL_HEAP, jvm_options: tuple = ()) -> subprocess.CompletedProcess:
    """Run one of Kafka's tools until it exits; output as text, no exception for its exit status."""
    return subprocess.run(
        java_command(class_name, *args, heap=heap, jvm_options=jvm_options),
        input=input, text=True,
        capture_output=True, timeout=wait_s,
    )


def start_tool(class_name: str, *args, heap: str = TOOL_HEAP, **options) -> subprocess.Popen:
    """Start one of Kafka's tools in the background; it ends with the calling thread."""
    return subprocess.Popen(
        java_command(class_name, *args, heap=heap), preexec_fn=die_with_parent, **options,
    )


def new_cluster_id() -> str:
    text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    return text.replace("-", "A")  # A leading dash would be parsed as an option.


class KafkaBroker(BrokerProcess):
    """A single Apache Kafka node (broker and controller) on loopback.

    data_dir: its log directory, formatted if empty. port: 0 chooses a free port. overrides:
    settings by Kafka's names. Other settings keep Kafka's defaults, except the replication factors
    of internal topics, which must be 1 on a single node.
    """

    name = "kafka"

    def __init__(self, data_dir, port: int = 0, overrides: dict | None = None,
                 heap: str = BROKER_HEAP):
        super().__init__(data_dir, port, overrides)
        self.heap = heap
        self.cluster_id = new_cluster_id()
        self.properties = self.data_dir.parent / f"{self.data_dir.name}.kafka.properties"

    def _settings(self) -> dict:
        controller = free_port()
        addresses = self.listener_addresses()
        protocols = "".join(f",{name}:{name}" for name in self.listeners)
        return {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"{addresses},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": addresses,
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map":
                f"PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT{protocols}",
            "log.dirs": self.data_dir,
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            **self.overrides,
        }

    def _start(self) -> None:
        self.port = self.wanted_port or free_port()
        self.spawn_kafka()
        self.wait_answer(START_WAIT_S)

    def spawn_kafka(self) -> None:
        """Format an empty directory; do not wait until the broker responds."""
        lines = [f"{key}={value}\n" for key, value in self._settings().items()]
        self.properties.write_text("".join(lines))
        if not (self.data_dir / "meta.properties").exists():
            self._format()
        self.spawn(java_command(
            "kafka.Kafka", self.properties, heap=self.heap, level="info",
            jvm_options=() if _quick_start else (f"-Xms{self.heap}", *JVM_OPTIONS),
        ))

    def _format(self) -> None:
        done = run_tool("kafka.tools.StorageTool", "format", "-t", self.cluster_id,
                        "-c", self.properties)
        if done.returncode:
            text = done.stdout + done.stderr
            raise KafkaMissing(f"Kafka could not format {self.data_dir}: {text}")


def main(argv: list[str]) -> int:
    """`fetch` resolves the jars, `run` runs a broker in the foreground, `tool` runs a class."""
    parser = argparse.ArgumentParser(prog="python -m bench.kafka")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("fetch")
    run = verbs.add_parser("run")
    run.add_argument("--port", type=int, default=0)
    run.add_argument("--data", default=None)
    run.add_argument("--override", action="append", default=[], metavar="KEY=VALUE")
    tool = verbs.add_parser("tool")
    tool.add_argument("class_name")
    tool.add_argument("args", nargs=argparse.REMAINDER)
    options = parser.parse_args(argv)
    try:
        if options.verb == "fetch":
            print(classpath())
        elif options.verb == "tool":
            return subprocess.run(java_command(options.class_name, *options.args)).returncode
        else:
            _run_foreground(options)
    except KafkaMissing as missing:
        print(missing, file=sys.stderr)
        return 1
    return 0


def _run_foreground(options: argparse.Namespace) -> None:
    data = Path(options.data or cache_dir() / "data")
    overrides = dict(pair.split("=", 1) for pair in options.override)
    with KafkaBroker(data, options.port, overrides) as broker:
        print(f"kafka {kafka_version()} ready address={broker.bootstrap} pid={broker.pid} "
              f"data={data} ms={broker.start_s * 1000:.0f}", flush=True)
        assert broker.process is not None
        try:
            while broker.process.poll() is None:
                time.sleep(0.5)
        except KeyboardInterrupt:
            print("stopping", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

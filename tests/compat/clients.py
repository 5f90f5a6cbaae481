"""The clients of the table: how each is downloaded with pinned versions, and started.

Owns: the folder `compat/` of the cache ($PYLOG_CACHE, by default .cache/ of the checkout).
Invariants: up to date: a client is prepared again only when its sources or pins have changed; no
  file of a client enters the tracked files of the checkout; every client is unmodified, from its
  own registry, in the version of its row.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench import kafka
from tests.compat.client_tools import FLOWS as TOOLS
from tests.compat.security import WAYS

HERE = Path(__file__).resolve().parent
WITHOUT_STATIC = ("codecs", "create", "group", "dying", "restart", "resume", "seek", "reset",
                  "topics", "configs", "groups")
ALL_BUT_STATIC = (*WITHOUT_STATIC, "transactions", *WAYS)
SCENARIOS = (*ALL_BUT_STATIC, "static")
WITHOUT_TOKENS = tuple(name for name in SCENARIOS if name != "oauthbearer")
CODECS_OF_PYTHON = ("lz4==4.4.5", "python-snappy==0.7.3", "zstandard==0.25.0", "cramjam==2.14.0")
SLF4J_QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"


class ClientMissing(Exception):
    """A client cannot be downloaded or built. The message is a line for the table."""


@dataclass(frozen=True)
class Client:
    """A client. prepare: returns the command; bootstrap, scenario and topic are appended."""

    name: str
    version: str
    prepare: Callable[[], list[str]] = field(repr=False)
    scenarios: tuple[str, ...] = SCENARIOS
    wait_s: float = 150.0
    pinned: bool = True

    @property
    def key(self) -> str:
        """Return the client's name in lists of results, without a version that the machine
        determines.
        """
        return f"{self.name} {self.version}" if self.pinned else self.name


def cache_dir() -> Path:
    root = os.environ.get("PYLOG_CACHE") or HERE.parent.parent / ".cache"
    return Path(root) / "compat"


def _run(*command, cwd=None, **environment) -> None:
    done = subprocess.run(list(map(str, command)), cwd=cwd, env={**os.environ, **environment},
                          stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        last = (done.stdout + done.stderr).strip().splitlines()[-3:]
        raise ClientMissing(f"{command[0]}: {' / '.join(last)}")


def _program(name: str, package: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise ClientMissing(f"`{name}` is not on PATH (Debian: {package})")
    return path


def _prepared(name: str, sources: list[Path], pins: tuple[str, ...], make) -> Path:
    """Return the cache folder `name`, built by `make(folder)` unless it is current.

    Keeps it up to date.
    """
    folder = cache_dir() / name
    digest = hashlib.sha256(repr(pins).encode())
    for source in sources:
        digest.update(source.read_bytes())
    stamp = folder / "prepared"
    if not stamp.exists() or stamp.read_text() != digest.hexdigest():
        folder.mkdir(parents=True, exist_ok=True)
        make(folder)
        stamp.write_text(digest.hexdigest())
    return folder


def _python(folder: str, module: str, *pins: str):
    def make(where: Path) -> None:
        _run(sys.executable, "-m", "venv", where)
        _run(where / "bin" / "pip", "install", "-q", *pins, *CODECS_OF_PYTHON)

    def prepare() -> list[str]:
        where = _prepared(folder, [], (sys.version, *pins, *CODECS_OF_PYTHON), make)
        return [str(where / "bin" / "python"), "-m", f"tests.compat.{module}"]

    return prepare


def _tools() -> list[str]:
    try:
        kafka.classpath()
    except kafka.KafkaMissing as missing:
        raise ClientMissing(str(missing)) from missing
    return [sys.executable, "-m", "tests.compat.client_tools"]


def _kcat() -> list[str]:
    _program("kcat", "kcat")
    return [sys.executable, "-m", "tests.compat.client_kcat"]


def kcat_version() -> str:
    """Return the version of Debian's package, the only version that the machine determines."""
    if shutil.which("kcat") is None:
        return "-"
    told = subprocess.run(["kcat", "-V"], capture_output=True, text=True).stdout
    words = told.replace(",", " ").split()
    own, library = (words[words.index(name) + 1] for name in ("Version", "librdkafka"))
    return f"{own} (librdkafka {library})"


def _java(version: str, main: str, *properties: str):
    java = HERE / "java"
    source = java / f"{main}.java"

    def jars(where: Path) -> None:
        _run(_program("mvn", "maven"), "-q", "-B", "-f", java / "pom.xml",
             f"-Dkafka.version={version}", "dependency:copy-dependencies",
             f"-DoutputDirectory={where / 'lib'}", "-DincludeScope=runtime")

    def prepare() -> list[str]:
        lib = _prepared(f"java-{version}", [java / "pom.xml"], (version,), jars) / "lib"

        def compiled(where: Path) -> None:
            _run(_program("javac", "default-jdk-headless"), "-nowarn", "-cp", f"{lib}/*",
                 "-d", where, source)

        classes = _prepared(f"java-{version}-{main}", [source], (version,), compiled)
        return [_program("java", "default-jre-headless"), "-Xmx256m", "-XX:TieredStopAtLevel=1",
                SLF4J_QUIET, *properties, "-cp", f"{classes}:{lib}/*", main]

    return prepare


def _copier() -> list[str]:
    _tools()
    return []


def _connect() -> list[str]:
    """Return the folder of Kafka Connect's file connectors, which are not among Kafka's jars."""
    _tools()
    artifact = "org.apache.kafka:connect-file:4.3.1"  # Maven Central has no 4.4.0.

    def make(where: Path) -> None:
        _run(_program("mvn", "maven"), "-q", "-B", "dependency:copy", f"-Dartifact={artifact}",
             f"-DoutputDirectory={where}", cwd=where)

    return [str(_prepared("connect", [], (artifact,), make))]


def _node() -> list[str]:
    folder = HERE / "node"
    pinned = [folder / "package.json", folder / "package-lock.json"]

    def make(where: Path) -> None:
        for one in pinned:
            shutil.copy(one, where)
        _run(_program("npm", "npm"), "ci", "--no-audit", "--no-fund", "--ignore-scripts",
             cwd=where)

    where = _prepared("node", pinned, (), make)
    return ["env", f"NODE_PATH={where / 'node_modules'}", "KAFKAJS_NO_PARTITIONER_WARNING=1",
            _program("node", "nodejs"), str(folder / "compat.js")]


def go_program(program: str) -> Callable[[], list[str]]:
    """Return a function that builds one of our Go programs and returns its command."""
    folder = HERE / "go"

    def prepare() -> list[str]:
        sources = [folder / "go.mod", folder / "go.sum", folder / "flows" / "flows.go",
                   folder / program / "main.go"]

        def make(where: Path) -> None:
            _run(_program("go", "golang"), "build", "-o", where / program, f"./{program}",
                 cwd=folder, GOFLAGS="-mod=readonly", CGO_ENABLED="0")

        return [str(_prepared(f"go-{program}", sources, (), make) / program)]

    return prepare


def go_version(module: str) -> str:
    """Return the version of a module in go.mod."""
    for line in (HERE / "go" / "go.mod").read_text().splitlines():
        words = line.split()
        if words[:1] == [module]:
            return words[1].removeprefix("v")
    raise AssertionError(f"go.mod does not name {module}")


CLIENTS = (
    # The Java client can fetch tokens since 3.1.
    Client("Java", "2.8.2", _java("2.8.2", "Compat"), WITHOUT_TOKENS),
    *(Client("Java", version, _java(version, "Compat")) for version in ("3.9.1", "4.4.0")),
    Client("Java, administration", "4.4.0", _java("4.4.0", "Administration"), ("calls",)),
    Client("Java, message copier", kafka.kafka_version(), _copier, ("exactly-once",)),
    Client("Kafka Streams", "4.4.0", _java("4.4.0", "WordCount"), ("streams", "exactly-once"),
           240.0),
    Client("Kafka Streams, streams groups", "4.4.0",
           _java("4.4.0", "WordCount", "-Dgroup.protocol=streams"), ("streams", "exactly-once"),
           240.0),
    Client("Kafka Connect", kafka.kafka_version(), _connect, ("exactly-once",)),
    Client("confluent-kafka", "2.16.1",
           _python("confluent-kafka", "client_confluent", "confluent-kafka==2.16.1")),
    Client("kcat", kcat_version(), _kcat,
           ("codecs", "create", "group", "dying", "static", "restart", "resume", "seek", "reset",
            "tls", "mutual", "plain", "scram-256", "scram-512"),
           pinned=False),
    Client("kafka-python", "2.0.6",
           _python("kafka-python-2", "client_kafka_python", "kafka-python==2.0.6"),
           (*WITHOUT_STATIC, *WAYS)),
    Client("kafka-python", "3.0.12",
           _python("kafka-python-3", "client_kafka_python", "kafka-python==3.0.12")),
    Client("aiokafka", "0.14.0", _python("aiokafka", "client_aiokafka", "aiokafka==0.14.0")),
    Client("KafkaJS", "2.2.4", _node, ALL_BUT_STATIC),
    Client("franz-go", go_version("github.com/twmb/franz-go"), go_program("franz")),
    Client("Sarama", go_version("github.com/IBM/sarama"), go_program("sarama")),
    Client("segmentio kafka-go", go_version("github.com/segmentio/kafka-go"),
           go_program("segmentio"), WITHOUT_STATIC),
    Client("Kafka's tools", kafka.kafka_version(), _tools, tuple(TOOLS), 600.0),
)

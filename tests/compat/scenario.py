"""One scenario of one client: the prepared broker, the client's process, and the final checks.

Owns: the processes of the client's program.
Invariants: a topic and a group belong to one scenario only; the driver uses the Kafka protocol for
  its own operations, so that they work with Apache Kafka as well.
"""

import contextlib
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.compat import exactly_once, flows
from tests.compat.clients import Client, ClientMissing
from tests.compat.dying import dying, restart, static
from tests.compat.secured_tools import CLASSES as SECURED_TOOLS
from tests.compat.security import WAYS, Secured
from tests.fixtures.brokers import BrokerDied
from tests.wire import raw
from tests.wire.messages import ask
from tests.wire.raw import Connection
from tests.wire.talk import append, create_topic

REPOSITORY = Path(__file__).resolve().parent.parent.parent
# The records have timestamps of 2025: any time-based retention would delete them.
SETTINGS = {"group.initial.rebalance.delay.ms": "200", "offsets.topic.num.partitions": "4",
            "log.retention.ms": "-1"}
DEADLY = {"dying": dying, "static": static, "restart": restart}
PARTITIONS = {"group": flows.PARTITIONS, **dict.fromkeys(DEADLY, flows.PARTITIONS), "streams": 2,
              "exactly-once": 2,
              "kafka-consumer-groups": 3, "kafka-verifiable-consumer": 4}
DELETE_RECORDS, OFFSET_FETCH = 21, 9
_SERIAL = itertools.count()


@dataclass(frozen=True)
class Result:
    client: Client
    scenario: str
    ok: bool
    note: str

    @property
    def key(self) -> str:
        return f"{self.client.key}/{self.scenario}"


def _ready(scenario: str, broker) -> str:
    """Prepare the topic of the scenario and return its name."""
    topic = re.sub(r"\W+", "-", f"{scenario}-{os.getpid()}-{next(_SERIAL)}")
    create_topic(broker.port, topic, PARTITIONS.get(scenario, 1))
    if scenario == "streams":
        create_topic(broker.port, f"{topic}-counts", 1)
    if scenario == "reset":
        for number in range(flows.RESET_END):
            append(broker.port, topic, raw.batch([raw.record(b"reset", str(number).encode())]))
        with Connection(broker.port) as connection:
            answer = ask(connection, DELETE_RECORDS, 2, timeout=10000, topics=[{
                "name": topic, "partitions": [
                    {"partition_index": 0, "offset": flows.RESET_START}]}])
        assert answer["topics"][0]["partitions"][0]["error_code"] == 0, answer
    return topic


def _committed(broker, topic: str) -> int:
    with Connection(broker.port) as connection:
        answer = ask(connection, OFFSET_FETCH, 7, group_id=f"{topic}-group", topics=[
            {"name": topic, "partition_indexes": [0]}])
    rows = answer["topics"]  # empty if the offsets topic does not exist
    return rows[0]["partitions"][0]["committed_offset"] if rows else -1


def _result(command: list[str], client: Client, log: Path,
            environment: dict[str, str] | None = None) -> tuple[bool, str]:
    """Return the result from the last line that the program prints."""
    try:
        done = subprocess.run(command, cwd=REPOSITORY, stdin=subprocess.DEVNULL,
                              env={**os.environ, **(environment or {})},
                              capture_output=True, text=True, timeout=client.wait_s)
    except subprocess.TimeoutExpired as late:
        log.write_bytes((late.stdout or b"") + (late.stderr or b""))
        return False, f"no end within {client.wait_s:.0f} s"
    log.write_text(done.stdout + done.stderr)
    answers = [line for line in done.stdout.splitlines() if line.startswith('{"')]
    if not answers:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return False, f"exit status {done.returncode}: {last}"
    answer = json.loads(answers[-1])
    return answer["ok"] and done.returncode == 0, answer["note"]


@contextlib.contextmanager
def _own(broker, **settings):
    """Start a broker of the same kind that can be killed and restarted on its port."""
    with tempfile.TemporaryDirectory(prefix="compat-") as root, \
            type(broker)(Path(root), {**SETTINGS, **settings}) as own:
        if own.name == "kafka":
            own.broker.wanted_port = own.port
        yield own
        alarms = own.alarms()
        assert not alarms, alarms[0]


def _deadly(command: list[str], scenario: str, broker, log: Path) -> tuple[bool, str]:
    try:
        with _own(broker) if scenario == "restart" else contextlib.nullcontext(broker) as one:
            return True, DEADLY[scenario](command, one, _ready(scenario, one), log)
    except (AssertionError, BrokerDied) as failure:
        return False, str(failure)


def _exactly_once(command: list[str], client: Client, broker, log: Path) -> tuple[bool, str]:
    with _own(broker, **exactly_once.SETTINGS) as own, \
            tempfile.TemporaryDirectory(prefix="compat-") as folder:
        worker = exactly_once.WORKERS[client.name](
            command, own, _ready("exactly-once", own), Path(folder))
        try:
            return True, exactly_once.exactly_once(worker, random.Random(client.name))
        except (AssertionError, BrokerDied) as failure:
            return False, str(failure)
        finally:
            shutil.copy(Path(folder) / "worker.log", log)


def _secured(command: list[str], client: Client, scenario: str, secured: Secured, log: Path):
    """Run an authentication scenario: a first record creates its topic and is read back."""
    topic = _ready(scenario, secured.broker)
    way, flow = (scenario, "create") if scenario in WAYS else ("scram-512", scenario)
    return _result([*command, secured.bootstrap(way), flow, topic], client, log,
                   secured.environment(way))


def run_scenario(command: list[str], client: Client, scenario: str, broker, logs: Path,
                 secured: Secured | None = None) -> Result:
    """Run the program for one scenario on its own topic."""
    log = logs / re.sub(r"[^\w.-]+", "-", f"{client.name}-{client.version}-{scenario}.log")
    if secured is not None and (scenario in WAYS or scenario in SECURED_TOOLS):
        return Result(client, scenario, *_secured(command, client, scenario, secured, log))
    if scenario == "exactly-once":
        return Result(client, scenario, *_exactly_once(command, client, broker, log))
    if scenario in DEADLY:
        return Result(client, scenario, *_deadly(command, scenario, broker, log))
    topic = _ready(scenario, broker)
    ok, note = _result([*command, broker.bootstrap, scenario, topic], client, log)
    if ok and scenario == "resume" and (offset := _committed(broker, topic)) != 30:
        return Result(client, scenario, False, f"the group's offset is {offset}, not 30")
    return Result(client, scenario, ok, note)


def run_client(client: Client, scenarios: list[str], broker, logs: Path,
               secured: Secured | None = None) -> list[Result]:
    """Run all scenarios of a client. secured: broker for the authentication scenarios; None skips
    them.
    """
    chosen = [one for one in client.scenarios if (not scenarios or one in scenarios) and
              (secured or (one not in WAYS and one not in SECURED_TOOLS))]
    try:
        command = client.prepare() if chosen else []
    except ClientMissing as missing:
        return [Result(client, one, False, f"not available: {missing}") for one in chosen]
    results = []
    for scenario in chosen:
        results.append(run_scenario(command, client, scenario, broker, logs, secured))
        last = results[-1]
        print(f"{'pass' if last.ok else 'FAIL'} {last.key} {last.note}", flush=True)
    return results

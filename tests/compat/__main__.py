"""Unmodified clients against a broker: `python -m tests.compat`, `make compat`.

Owns: docs/compat.md, one brokerd per run.
Called by: make.
Invariants: (1) a row that fails and is not in known_failures.toml, and one that is there and
  passes, both fail the run; (2) docs/compat.md is written only by a run of all clients.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.brokers import Brokerd, Kafka
from tests.compat.clients import CLIENTS, Client, ClientMissing
from tests.compat.table import COLUMNS, document
from tests.wire.talk import create_topic

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
SETTINGS = {"group.initial.rebalance.delay.ms": "200", "offsets.topic.num.partitions": "4"}
PARTITIONS = {"group": 4, "streams": 2}
_SERIAL = itertools.count()


@dataclass(frozen=True)
class Result:
    client: Client
    scenario: str
    ok: bool
    note: str

    @property
    def key(self) -> str:
        return f"{self.client.name} {self.client.version}/{self.scenario}"


def run_scenario(command: list[str], client: Client, scenario: str, broker, logs: Path) -> Result:
    """Start the program for one scenario on topics of its own; its last line is the answer."""
    topic = f"{scenario}-{os.getpid()}-{next(_SERIAL)}"
    if scenario != "admin":
        create_topic(broker.port, topic, PARTITIONS.get(scenario, 1))
    if scenario == "streams":
        create_topic(broker.port, f"{topic}-counts", 1)
    log = logs / f"{client.name}-{client.version}-{scenario}.log".replace(" ", "-")
    try:
        done = subprocess.run([*command, broker.bootstrap, scenario, topic], cwd=REPOSITORY,
                              capture_output=True, text=True, timeout=client.wait_s)
    except subprocess.TimeoutExpired as late:
        log.write_bytes((late.stdout or b"") + (late.stderr or b""))
        return Result(client, scenario, False, f"no end within {client.wait_s:.0f} s")
    log.write_text(done.stdout + done.stderr)
    answers = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not answers:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return Result(client, scenario, False, f"exit status {done.returncode}: {last}")
    answer = json.loads(answers[-1])
    return Result(client, scenario, answer["ok"] and done.returncode == 0, answer["note"])


def run_client(client: Client, scenarios: list[str], broker, logs: Path) -> list[Result]:
    chosen = [one for one in client.scenarios if not scenarios or one in scenarios]
    try:
        command = client.prepare()
    except ClientMissing as missing:
        return [Result(client, one, False, f"not available: {missing}") for one in chosen]
    results = []
    for scenario in chosen:
        results.append(run_scenario(command, client, scenario, broker, logs))
        last = results[-1]
        print(f"{'pass' if last.ok else 'FAIL'} {last.key} {last.note}", flush=True)
    return results


def surprises(results: list[Result], known: dict[str, str]) -> list[str]:
    """What breaks (1)."""
    for result in results:
        if not result.ok and result.key not in known:
            yield f"{result.key} failed: {result.note}"
        elif result.ok and result.key in known:
            yield f"{result.key} passes: take it out of known_failures.toml"


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.compat", description=__doc__.partition("\n")[0])
    parser.add_argument("clients", nargs="*", help="beginnings of client names; all by default")
    parser.add_argument("--scenario", action="append", default=[], choices=list(COLUMNS))
    parser.add_argument("--kafka", action="store_true", help="run against Apache Kafka instead")
    parser.add_argument("--jobs", type=int, default=2, help="clients at a time")
    parser.add_argument("--logs", type=Path, help="keep the programs' output in this folder")
    options = parser.parse_args()
    known = tomllib.loads((HERE / "known_failures.toml").read_text())
    chosen = [client for client in CLIENTS if not options.clients or any(
        f"{client.name} {client.version}".startswith(one) for one in options.clients)]
    with tempfile.TemporaryDirectory(prefix="compat-") as root:
        logs = options.logs or Path(root) / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        with (Kafka if options.kafka else Brokerd)(Path(root) / "broker", SETTINGS) as broker:
            with ThreadPoolExecutor(options.jobs) as pool:
                lists = pool.map(
                    lambda one: run_client(one, options.scenario, broker, logs), chosen)
                results = [result for one in lists for result in one]
            wrong = list(surprises(results, known)) + broker.alarms()
            if options.logs and not options.kafka:
                (logs / "broker.log").write_text(broker.tail(1 << 20))
    if len(chosen) == len(CLIENTS) and not options.scenario and not options.kafka:
        (REPOSITORY / "docs" / "compat.md").write_text(document(results, known))
    print(f"{sum(one.ok for one in results)} of {len(results)} pass")
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

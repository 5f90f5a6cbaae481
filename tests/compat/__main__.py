"""Run unmodified clients against a broker: `python -m tests.compat`, `make compat`.

Owns: docs/reference/compatibility.md, one brokerd per run.
Invariants: expected results: a run fails if a row fails that is not in known_failures.toml, or
  passes although it is there; regressions: docs/reference/compatibility.md lists the passing rows
  and only grows, so a run fails if one of them fails or disappears, and then leaves the file
  unchanged; only a run of all clients writes the file.
"""

import argparse
import contextlib
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.compat.clients import CLIENTS, SCENARIOS
from tests.compat.scenario import REPOSITORY, SETTINGS, Result, run_client
from tests.compat.security import secured
from tests.compat.table import document, passes
from tests.fixtures.brokers import Brokerd, Kafka

KNOWN = Path(__file__).with_name("known_failures.toml")
DOCUMENT = REPOSITORY / "docs/reference/compatibility.md"


def surprises(results: list[Result], known: dict[str, str], before: set[str], whole: bool):
    """Return violations of expected results and regressions.

    before: rows that passed in an earlier run. whole: this run covers all clients.
    """
    for result in results:
        if result.key in before and not result.ok:
            yield f"{result.key} passed before: {result.note}"
        elif not result.ok and result.key not in known:
            yield f"{result.key} failed: {result.note}"
        elif result.ok and result.key in known:
            yield f"{result.key} passes: take it out of known_failures.toml"
    if whole:
        for key in sorted(before - {result.key for result in results}):
            yield f"{key} passed before and was not run"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.compat", description=__doc__.partition("\n")[0])
    parser.add_argument("clients", nargs="*", help="beginnings of client names; all by default")
    parser.add_argument("--scenario", action="append", default=[],
                        choices=sorted({one for client in CLIENTS for one in client.scenarios}),
                        metavar="NAME", help=f"{', '.join(SCENARIOS)}, streams, or a tool's name")
    parser.add_argument("--kafka", action="store_true",
                        help="run against Apache Kafka instead, without what needs security")
    parser.add_argument("--jobs", type=int, default=2, help="clients at a time")
    parser.add_argument("--logs", type=Path, help="keep the programs' output in this folder")
    return parser.parse_args()


def main() -> int:
    options = _options()
    known = tomllib.loads(KNOWN.read_text())
    before = passes(DOCUMENT.read_text(), CLIENTS) if DOCUMENT.exists() else set()
    chosen = [client for client in CLIENTS if not options.clients or any(
        f"{client.name} {client.version}".startswith(one) for one in options.clients)]
    whole = len(chosen) == len(CLIENTS) and not options.scenario
    with tempfile.TemporaryDirectory(prefix="compat-") as root:
        logs = options.logs or Path(root) / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        asking = contextlib.nullcontext() if options.kafka else secured(
            Path(root) / "secured", SETTINGS)
        with (Kafka if options.kafka else Brokerd)(Path(root) / "broker", SETTINGS) as broker, \
                asking as second:
            with ThreadPoolExecutor(options.jobs) as pool:
                lists = pool.map(
                    lambda one: run_client(one, options.scenario, broker, logs, second), chosen)
                results = [result for one in lists for result in one]
            alarms = broker.alarms() + (second.broker.alarms() if second else [])
            if options.logs and not options.kafka:
                (logs / "broker.log").write_text(broker.tail(1 << 20))
    wrong = list(surprises(results, known, before, whole))
    if whole and not options.kafka and not any("passed before" in line for line in wrong):
        DOCUMENT.write_text(document(results, known))
    print(f"{sum(one.ok for one in results)} of {len(results)} pass")
    for line in (*wrong, *alarms):
        print(line, file=sys.stderr)
    return 1 if wrong or alarms else 0


if __name__ == "__main__":
    sys.exit(main())

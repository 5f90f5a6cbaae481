"""`python -m tests.chaos --seconds 1800`: inject faults into a cluster of three, then check it.

Owns: the process's namespaces, the run's folder.
Invariants: reproducible: the seed is printed, and --seed accepts it; a run with findings keeps its
  folder, any other run removes it; verdict: the first SIGINT or SIGTERM ends the faults only, and
  the run still reports its verdict.
"""

import argparse
import random
import shutil
import signal
import sys
import tempfile
import traceback
from contextlib import contextmanager
from pathlib import Path

from bench.network import Network, enter
from tests.chaos import mixed
from tests.chaos.faults import FAULTS
from tests.chaos.history import tally
from tests.chaos.machines import of_pylog
from tests.chaos.soak import Soak
from tests.chaos.traces import captured

ENDING = (signal.SIGINT, signal.SIGTERM)
MACHINES, CONTROLLER = (1, 2, 3), 9
# Only brokers that flush before they acknowledge keep all acknowledged records through these
# faults.
DURABLE = {"all_powerless", "all_powerless_in_turn"}
# The faults that the Kafka brokers here support.
WITH_KAFKA = {"killed", "killed_and_back", "hung", "isolated", "deaf", "mute", "one_way", "apart",
              "no_clients", "restarted", "two_killed_in_turn", "all_killed_in_turn",
              "cut_off_and_killed"}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--faults", default="", help="names between commas; by default all: "
                        + ", ".join(FAULTS))
    parser.add_argument("--page-cache", action="store_true", help="set replica.flush.before.fetch."
                        "enable=false, and leave out the loss of power of all machines")
    parser.add_argument("--kafka", action="store_true", help="two brokers of Apache Kafka's and "
                        "one brokerd, under a controller of Kafka's")
    parser.add_argument("--rolling", action="store_true", help="nothing but clean restarts, one "
                        "machine after the other: whatever a client is refused is a problem")
    options = parser.parse_args(argv)
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    faults = [name for name in options.faults.split(",") if name] or [
        name for name in (sorted(WITH_KAFKA) if options.kafka else FAULTS)
        if not options.page_cache or name not in DURABLE]
    print(f"--seed {seed}" + " --page-cache" * options.page_cache
          + " --kafka" * options.kafka + " --rolling" * options.rolling, flush=True)
    enter()
    root = Path(tempfile.mkdtemp(prefix="pylog-chaos-"))
    found = run(root, seed, options, faults)
    for problem in found:
        print(f"PROBLEM {problem}", flush=True)
    if found:
        print(f"{len(found)} problems; the machines' logs and what librdkafka told are in {root}")
        return 1
    shutil.rmtree(root, ignore_errors=True)
    print("all is well")
    return 0


def run(root: Path, seed: int, options, faults: list[str]) -> list[str]:
    network = Network((*MACHINES, CONTROLLER))
    settings = {"replica.flush.before.fetch.enable": "false"} if options.page_cache else {}
    machines = mixed.of_both(root, network) if options.kafka else \
        of_pylog(root, network, MACHINES, settings)
    found = []
    try:
        with captured(root / "librdkafka.log") as traces, machines:
            soak = Soak(machines, seed, lambda line: print(line, flush=True), options.rolling,
                        options.kafka, traces)
            with _ended_by_signals(soak):
                found += soak.roll(options.seconds) if options.rolling else \
                    soak.run(options.seconds, faults)
            print(soak.summary(), flush=True)
            print(f"VERDICT {_counted(found)}; {len(found)} problems in all", flush=True)
            if options.kafka:
                print(f"KAFKA'S OWN {_counted(soak.theirs)}", flush=True)
    except Exception as failure:
        traceback.print_exc()
        found.append(f"{type(failure).__name__}: {failure}")
    found += [f"{machine.number}: {line}" for machine in machines.of.values()
              for line in machine.alarms()]
    for machine in machines.of.values():
        machine.scrap(keep=bool(found))
    network.close()
    return found


def _counted(found: list[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in tally(found).items())


@contextmanager
def _ended_by_signals(soak: Soak):
    """Turn the first SIGINT or SIGTERM into the end of the faults only.

    A second signal has its default effect and ends the process.
    """
    before = {number: signal.getsignal(number) for number in ENDING}

    def interrupt(number: int, frame) -> None:
        soak.is_interrupted = True
        for each, handler in before.items():
            signal.signal(each, handler)

    for number in ENDING:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

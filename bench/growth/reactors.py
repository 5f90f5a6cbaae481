"""Two reactors, one log, `python -m bench.growth.reactors`: locks, wake-ups, a model of 64 cores.

Owns: one broker at a time, whose lock operations are counted.
Invariants: cases alternate, each with one reactor and with two; broker and client share this
  machine's processors, so lock waits include waits for a processor, and the model uses only the
  time that locks are held.
"""

import argparse
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench import loads, report
from bench.brokers import RELAXED, PylogBroker, started
from bench.growth import page
from bench.growth.model import Work, ceiling, rate
from bench.growth.waits import Counters, Place, per_request
from bench.machine import commit_line, machine_line
from bench.process import BrokerProcess
from bench.programs import load_client

SECTION = "Two reactors, one log"
CONNECTIONS, RECORD_BYTES = 64, 100
APPENDS = ("log_append_batches",)
REACTORS = (1, 2, 4, 8, 16, 32, 64)
LOGS = (1, 8, 64)
HANDOVER_US = 5.0
PLACES_MAX = 8


@dataclass(frozen=True)
class Case:
    text: str
    partitions: int
    settings: tuple[tuple[str, str], ...]


CASES = {
    "one": Case("one partition, from the page cache", 1, tuple(RELAXED.items())),
    "many": Case("64 partitions, from the page cache", 64, tuple(RELAXED.items())),
    "disk": Case("six partitions, from disk", 6, ()),
}


@dataclass(frozen=True)
class Found:
    """The results of a round. switches: voluntary context switches of the broker's threads."""

    requests: int
    cpu_us: float
    requests_s: float
    switches: float
    places: dict[str, Place]


def switches(pid: int) -> int:
    """Return voluntary context switches of the running threads of `pid`."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        text = (task / "status").read_text()
        total += int(text.split("voluntary_ctxt_switches:", 1)[1].split()[0])
    return total


def measure(broker: BrokerProcess, counters: Counters, case: Case, requests: int,
            serial: int) -> Found:
    """Run 64 connections with one-record requests, after an untimed quarter of them."""
    topic = f"reactors-{serial}"
    loads.create_topic(broker, topic, case.partitions)
    loads.raw_produce(broker, topic, case.partitions, CONNECTIONS, 1, 1, RECORD_BYTES,
                      requests=requests // 4)
    before = switches(broker.pid)
    counters.reset()
    done = loads.raw_produce(broker, topic, case.partitions, CONNECTIONS, 1, 1, RECORD_BYTES,
                             requests=requests)
    places = counters.places(broker)
    return Found(requests, done["connected_cpu_us"], done["requests_s"],
                 (switches(broker.pid) - before) / requests, places)


def work_of(found: Found) -> Work:
    """Return the mean acquisition of a log's lock, over the functions that append."""
    turns = sum(found.places[name].locked for name in APPENDS if name in found.places)
    held_us = sum(per_request(found.places, name, found.requests)[0] for name in APPENDS)
    if not turns:
        raise loads.LoadFailed(f"no append among {sorted(found.places)}")
    each = found.requests / turns
    return Work(each, (found.cpu_us - held_us) * each, held_us * each)


def locks(found: Found) -> str:
    """Return a table of the locks that are held or waited for longest."""
    by_time = sorted(found.places.items(), key=lambda item: -item[1].held_s - item[1].waited_s)
    lines = ["| locked by | times a request | another had it | held, µs a request | "
             "waited, µs a request | at most, requests/s |", "|---|--:|--:|--:|--:|--:|"]
    for name, place in by_time[:PLACES_MAX]:
        held_us, waited_us = per_request(found.places, name, found.requests)
        lines.append(f"| `{name}` | {place.locked / found.requests:.3f} | "
                     f"{place.contended / place.locked:.2%} | {held_us:.3f} | {waited_us:.3f} | "
                     f"{ceiling(held_us):,.0f} |")
    return "\n".join(lines)


def modelled(work: Work) -> str:
    lines = ["| reactors | " + " | ".join(
        f"{logs} hot log{'s' * (logs > 1)}: requests/s, with hand-over" for logs in LOGS) + " |",
        "|--:|" + "--:|" * len(LOGS)]
    for count in REACTORS:
        cells = [f"{rate(work, count, logs):,.0f} / {rate(work, count, logs, HANDOVER_US):,.0f}"
                 for logs in LOGS]
        lines.append(f"| {count} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _summary(found: dict[str, dict[int, list[Found]]]) -> str:
    lines = ["| | reactors | CPU µs a request | requests/s | switches a request | requests a turn "
             "at the log | held, µs a request |", "|---|--:|--:|--:|--:|--:|--:|"]
    for name, by_count in found.items():
        for count, rounds in by_count.items():
            works = [work_of(one) for one in rounds]
            lines.append(
                f"| {CASES[name].text} | {count} | {median(one.cpu_us for one in rounds):.2f} | "
                f"{median(one.requests_s for one in rounds):,.0f} | "
                f"{median(one.switches for one in rounds):.3f} | "
                f"{median(work.requests for work in works):.2f} | "
                f"{median(work.held_us / work.requests for work in works):.3f} |")
    return "\n".join(lines)


def text_of(found: dict[str, dict[int, list[Found]]], head: list[str]) -> str:
    """Return the section of the page."""
    middle = sorted(found["one"][2], key=lambda one: one.cpu_us)[len(found["one"][2]) // 2]
    parts = [
        "How long a broker's threads hold its locks and wait for them while 64 connections send "
        "one-record requests. A library that is loaded before libc counts this "
        "(bench/csrc/preload/waits.c; it costs two clock readings per lock). Broker and client "
        "share the processors.",
        "\n".join(head), _summary(found)]
    for name, by_count in found.items():
        parts.append(f"The locks of {CASES[name].text}, two reactors, the last round:\n\n"
                     f"{locks(by_count[2][-1])}")
    parts.append(
        "A model of more processors. Each reactor has one processor, works first without the log's "
        "lock and then with it, and waits for the lock in a queue (mean value analysis with "
        "exponential times, which overstate the wait). The inputs come from two reactors on one "
        f"partition: {_work_text(work_of(middle))}. The second value in each cell assumes that "
        f"taking a lock from another thread costs {HANDOVER_US:g} µs more, for a wake-up by the "
        "kernel. The model assumes that connections send requests evenly, that as many requests "
        "share a turn at the lock as with two reactors (in reality, more collect while a reactor "
        "waits), and that neither memory nor the network is a limit. It contains only the log's "
        "lock, which is held longest in the tables above.")
    parts.append(modelled(work_of(middle)))
    return "\n\n".join(parts) + "\n"


def _work_text(work: Work) -> str:
    return (f"{work.requests:.2f} requests a turn, {work.outside_us:.1f} µs of CPU outside the "
            f"lock and {work.held_us:.1f} µs with it")


def main(argv: list[str]) -> int:
    """Print the section."""
    parser = argparse.ArgumentParser(prog="python -m bench.growth.reactors")
    parser.add_argument("--requests", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--publish", action="store_true", help="replace the section of the page")
    options = parser.parse_args(argv)
    load_client("produce")
    head = [f"`{' '.join(['python -m bench.growth.reactors', *argv])}`, commit {commit_line()}.",
            f"{machine_line()}."]
    found: dict[str, dict[int, list[Found]]] = {name: {1: [], 2: []} for name in CASES}
    serial = 0
    for _ in range(options.rounds):
        for name, case in CASES.items():  # Alternate the cases.
            for count in (1, 2):
                serial += 1
                found[name][count].append(_round(case, count, options.requests, serial))
                one = found[name][count][-1]
                print(f"  {name:6} {count} {one.cpu_us:8.2f} µs {one.requests_s:10,.0f}/s "
                      f"{one.switches:.3f} switches", flush=True)
    text = text_of(found, [*head, f"Load {os.getloadavg()[0]:.1f} at the end."])
    report.save(text, {"head": head}, "-reactors")
    if options.publish:
        report.publish(SECTION, text, page.PAGE)
    print(f"\n{text}")
    return 0


def _round(case: Case, count: int, requests: int, serial: int) -> Found:
    kept: list[Counters] = []

    def made(_: str, folder: Path) -> BrokerProcess:
        kept.append(Counters(folder / "waits"))
        return _Counted(folder / "pylog", kept[0], {
            **dict(case.settings), "num.network.threads": str(count)})

    with started("reactors", ["pylog"], made) as brokers:
        return measure(brokers["pylog"], kept[0], case, requests, serial)


class _Counted(PylogBroker):
    """A broker whose lock operations are counted."""

    def __init__(self, data_dir: Path, counters: Counters, overrides: dict):
        super().__init__(data_dir, overrides=overrides)
        self.counters = counters

    def spawn_brokerd(self) -> None:
        with self.counters.begun():
            super().spawn_brokerd()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Compute a verdict from summaries: missing, duplicate, reordered, corrupted, unexpected records.

Owns: nothing; a pure function of its input.
Invariants: the verdict is good only if every expected record was seen exactly once, intact and in
  its generator's order, no other record was there, and every gap in the offsets is explained;
  summaries of offset ranges that were read twice (a retried task) count once.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

from . import records, summary
from .summary import BLOCK, Expected

RUNS_MAX = 20
_SUMS = ("records", "bytes", "corrupted", "foreign", "wrong_key", "wrong_header", "disordered")
FAULTS = ("missing", "doubled", "disordered", "corrupted", "foreign", "wrong_key", "wrong_header",
          "unread", "unexplained_gaps")
PART_FAULTS = tuple(name for name in FAULTS if name != "missing")
MEANING = {
    "missing": "acknowledged but not in the topic", "doubled": "in the topic more than once",
    "disordered": "after a later record of the same generator",
    "corrupted": "the checksum fails", "foreign": "intact, but not from this load",
    "wrong_key": "the key of another record", "wrong_header": "the header of another record",
    "unread": "offsets that were not read", "unexplained_gaps": "offsets without a record that "
    "neither transactions nor compaction explain",
}


@dataclass
class PartitionRow:
    """The result for one partition."""

    partition: int
    records: int = 0
    bytes: int = 0
    first_offset: int = -1
    end_offset: int = -1
    corrupted: int = 0
    foreign: int = 0
    wrong_key: int = 0
    wrong_header: int = 0
    disordered: int = 0
    doubled: int = 0
    missing: int = 0
    unread: int = 0
    gaps: list[tuple[int, int]] = field(default_factory=list)
    explained_gaps: int = 0
    unexplained_gaps: int = 0


class Moment(NamedTuple):
    """One second of a load. ack_p99_ms: None without acknowledgements in this second."""

    second: int
    records: int
    ack_p99_ms: float | None
    missing: int
    doubled: int


@dataclass
class Verdict:
    """The result (good) and all details that the report shows."""

    good: bool
    expected: int
    records: int
    bytes: int
    faults: dict[str, int]
    examples: list[str]
    partitions: list[PartitionRow]
    missing_runs: list[tuple[int, int, int]]
    latency_ms: dict[str, float]
    latencies: list[int]
    seconds: list[tuple[int, int, int]]
    read_seconds: list[tuple[int, int, int]]
    skew: float
    superseded: int = 0
    acks: list[int] = field(default_factory=list)
    ack_ms: dict[str, float] = field(default_factory=dict)
    timeline: list[Moment] = field(default_factory=list)
    # {generator: sequences} that are missing, or in two offset ranges; not part of the JSON.
    lost: dict[int, np.ndarray] = field(default_factory=dict, repr=False)
    repeated: dict[int, np.ndarray] = field(default_factory=dict, repr=False)

    def lines(self) -> list[str]:
        """Return the verdict as text."""
        head = (f"{'GOOD' if self.good else 'BAD'}: {self.records} records of {self.expected} "
                f"expected, {self.bytes / 1e6:.1f} MB of values")
        faults = [f"  {name}: {count} ({MEANING[name]})"
                  for name, count in self.faults.items() if count]
        runs = [f"  missing: generator {generator}, sequences {first} to {last}"
                for generator, first, last in self.missing_runs]
        if self.superseded:
            head += (f"\n  superseded: {self.superseded} (removed by compaction, later ones are "
                     "there)")
        return [head, *faults, *runs, *(f"  {text}" for text in self.examples)]

    def json(self, **more: Any) -> str:
        plain = {name: value for name, value in asdict(self).items()
                 if name not in ("lost", "repeated")}
        return json.dumps({**more, **plain}, indent=1)


def distinct(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Deduplicate the rows of offset ranges that were read twice: keep the first summary."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        key = (row["kind"], row["partition"], row["first_offset"], row["end_offset"],
               row["generator"], row["block"], row["second"])
        found.setdefault(key, row)
    return list(found.values())


def verdict(expected: Expected, rows: list[dict[str, Any]], planned: dict[int, tuple[int, int]],
            explained: Any = None, compacted: Any = None) -> Verdict:
    """Compute the verdict. rows: of summaries. planned: per partition the offsets to read.
    explained(gaps): returns the [(partition, first, end)] without records for a valid reason.
    compacted(): returns True if compaction may remove older records of a key.
    """
    rows = distinct(rows)
    partitions = {number: PartitionRow(number) for number in planned}
    examples: list[str] = []
    latencies = np.zeros(summary.LATENCY_BUCKETS, np.int64)
    ranges = sorted((row for row in rows if row["kind"] == "range"),
                    key=lambda row: (row["partition"], row["first_offset"]))
    for row in ranges:
        part = partitions.setdefault(row["partition"], PartitionRow(row["partition"]))
        for name in _SUMS:
            setattr(part, name, getattr(part, name) + row[name])
        gaps = _gaps(row["gaps"])
        part.gaps += gaps
        # Gaps that were counted but not listed: their offsets cannot be checked.
        part.unexplained_gaps += (row["end_offset"] - row["first_offset"] - row["records"]
                                  - sum(end - first for first, end in gaps))
        latencies += np.frombuffer(row["latencies"], np.int64)
        examples += [text for text in row["examples"].split("\n")
                     if text and not text.startswith("doubled")]
    _stretches(partitions, ranges, planned)
    seen = [row for row in rows if row["kind"] == "seen"]
    bits, doubled, repeated, notes = _sequences(expected, seen, ranges, partitions)
    _between(seen, partitions, examples)
    gone = _unexplained(partitions, explained)
    replaced: dict[int, np.ndarray] = {}
    if gone and compacted is not None and expected.content.keys and compacted():
        replaced = _superseded(expected, bits)
    superseded = sum(map(len, replaced.values()))
    lost, runs = _missing(expected, bits, replaced)
    missing = sum(map(len, lost.values()))
    if replaced:
        _explain_gaps(partitions, superseded, notes)
        if superseded > gone:  # More records are missing than there are unexplained offsets.
            missing += superseded - gone
            notes.append(f"missing: {superseded - gone} of the records that compaction may remove "
                         "have left no gap")
    faults = {name: sum(getattr(part, name) for part in partitions.values()) for name in FAULTS}
    faults["missing"], faults["doubled"] = missing, doubled
    counts = [part.records for part in partitions.values()]
    total = sum(counts)
    return Verdict(
        good=not any(faults.values()), expected=sum(expected.counts.values()), records=total,
        bytes=sum(part.bytes for part in partitions.values()), faults=faults,
        examples=_shortened(notes + examples),
        partitions=[partitions[number] for number in sorted(partitions)], missing_runs=runs,
        latency_ms=percentiles(latencies), latencies=latencies.tolist(),
        seconds=_seconds(rows, "second"), read_seconds=_seconds(rows, "read"),
        skew=max(counts) * len(counts) / total if total else 0.0, superseded=superseded, lost=lost,
        repeated=repeated,
        timeline=[Moment(second, count, None, 0, twice)
                  for second, count, twice in _doubled_seconds(rows)])


def _unexplained(partitions: dict[int, PartitionRow], explained: Any) -> int:
    """Record and count the offsets in gaps that are not explained."""
    gaps = [(part.partition, first, end) for part in partitions.values()
            for first, end in part.gaps]
    known = set(explained(gaps)) if gaps and explained is not None else set()
    for place, first, end in gaps:
        part = partitions[place]
        if (place, first, end) in known:
            part.explained_gaps += end - first
        else:
            part.unexplained_gaps += end - first
    return sum(part.unexplained_gaps for part in partitions.values())


def _superseded(expected: Expected, bits: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
    """Return, per generator, the missing sequences with a later record of the same key: of the same
    generator, or of another one, whose relative order is unknown.
    """
    content = expected.content
    last = {generator: np.full(content.keys, -1, np.int64) for generator in bits}
    for generator, count in expected.counts.items():
        there = np.flatnonzero(bits[generator][:count])
        np.maximum.at(last[generator], records.keys(content, generator, there), there)
    found = {}
    for generator, count in expected.counts.items():
        lost = np.flatnonzero(~bits[generator][:count])
        keys = records.keys(content, generator, lost)
        replaced = last[generator][keys] > lost
        for other, highest in last.items():
            if other != generator:
                replaced |= highest[keys] >= 0
        found[generator] = lost[replaced]
    return found


def _explain_gaps(partitions: dict[int, PartitionRow], superseded: int, notes: list[str]) -> None:
    """Explain as many offsets as records were superseded: each superseded record leaves one gap."""
    left = superseded
    for part in partitions.values():
        explained = min(left, part.unexplained_gaps)
        part.unexplained_gaps -= explained
        part.explained_gaps += explained
        left -= explained
    over = sum(part.unexplained_gaps for part in partitions.values())
    if over:
        notes.append(f"unexplained: {over} offsets more are empty than compaction can account for")


def _gaps(data: bytes) -> list[tuple[int, int]]:
    pairs = np.frombuffer(data, np.int64).reshape(-1, 2)
    return [(int(first), int(end)) for first, end in pairs]


def _shortened(examples: list[str]) -> list[str]:
    """Keep a few examples of each kind."""
    by_kind: dict[str, list[str]] = defaultdict(list)
    for text in examples:
        by_kind[text.split(" ")[0]].append(text)
    return [text for texts in by_kind.values() for text in texts[:summary.EXAMPLES_MAX]]


def _stretches(partitions: dict[int, PartitionRow], ranges: list[dict[str, Any]],
               planned: dict[int, tuple[int, int]]) -> None:
    """Join the offset ranges of each partition: offsets between two ranges were not read, or are a
    gap.
    """
    at = {number: start for number, (start, _) in planned.items()}
    for row in ranges:
        part = partitions[row["partition"]]
        if part.first_offset < 0:
            part.first_offset = row["first_offset"]
        part.end_offset = max(part.end_offset, row["end_offset"])
        place = at.setdefault(part.partition, row["first_offset"])
        if row["first_offset"] > place:
            part.gaps.append((place, row["first_offset"]))
        at[part.partition] = max(place, row["end_offset"])
    for number, (_, end) in planned.items():
        part = partitions[number]
        if at[number] < end and part.records:
            part.gaps.append((at[number], end))
        elif at[number] < end:
            part.unread += end - at[number]


def _sequences(expected: Expected, seen: list[dict[str, Any]], ranges: list[dict[str, Any]],
               partitions: dict[int, PartitionRow]
               ) -> tuple[dict[int, np.ndarray], int, dict[int, np.ndarray], list[str]]:
    """Return (sequences seen per generator, number of duplicates, sequences per generator that two
    offset ranges have, examples of duplicates).
    """
    bits: dict[int, np.ndarray] = {generator: np.zeros(-(-count // BLOCK) * BLOCK, bool)
                                   for generator, count in expected.counts.items()}
    doubled, notes = 0, []
    repeated: dict[int, list[np.ndarray]] = defaultdict(list)
    for row in ranges:
        doubled += row["doubled"]
        partitions[row["partition"]].doubled += row["doubled"]
        notes += [text for text in row["examples"].split("\n") if text.startswith("doubled")]
    for row in seen:
        block = np.unpackbits(np.frombuffer(row["bitmap"], np.uint8)).astype(bool)
        start = row["block"] * BLOCK
        window = bits[row["generator"]][start:start + BLOCK]
        twice = np.flatnonzero(window & block)
        if len(twice):
            doubled += len(twice)
            repeated[row["generator"]].append(start + twice)
            partitions[row["partition"]].doubled += len(twice)
            notes.append(f"doubled in {row['partition']} (generator {row['generator']}, sequence "
                        f"{start + int(twice[0])})")
        window |= block
    return bits, doubled, {key: np.concatenate(found) for key, found in repeated.items()}, notes


def _missing(expected: Expected, bits: dict[int, np.ndarray], replaced: dict[int, np.ndarray]
             ) -> tuple[dict[int, np.ndarray], list[tuple[int, int, int]]]:
    """Return ({generator: sequences}, the first ranges) that are neither present nor superseded."""
    missing, runs = dict[int, np.ndarray](), list[tuple[int, int, int]]()
    for generator, count in expected.counts.items():
        gone = ~bits[generator][:count]
        gone[replaced.get(generator, [])] = False
        lost = np.flatnonzero(gone)
        missing[generator] = lost
        for run in np.split(lost, np.flatnonzero(np.diff(lost) != 1) + 1) if len(lost) else []:
            if len(runs) < RUNS_MAX:
                runs.append((generator, int(run[0]), int(run[-1])))
    return missing, runs


def _between(seen: list[dict[str, Any]], partitions: dict[int, PartitionRow],
             examples: list[str]) -> None:
    """Check the order between consecutive offset ranges of a partition."""
    orders = sorted({(row["partition"], row["generator"], row["first_offset"], row["lowest"],
                      row["highest"]) for row in seen})
    highest: dict[tuple[int, int], int] = {}
    for partition, generator, first, low, high in orders:
        before = highest.get((partition, generator), -1)
        if low < before:
            # At least one is out of order; if it was seen before, it is reported as a duplicate.
            partitions[partition].disordered += 1
            examples.append(f"disordered at {partition}/{first} or later (generator {generator}, "
                            f"sequence {low} behind {before})")
        highest[partition, generator] = max(before, high)


def percentiles(latencies: np.ndarray) -> dict[str, float]:
    """Return upper bounds in ms from counts by summary.bucket."""
    total = int(latencies.sum())
    if not total:
        return {}
    sums = np.cumsum(latencies)
    return {name: summary.latency_ms(int(np.searchsorted(sums, share * total)))
            for name, share in (("p50", .5), ("p90", .9), ("p99", .99), ("p99.9", .999),
                                ("max", 1.0))}


def _seconds(rows: list[dict[str, Any]], kind: str) -> list[tuple[int, int, int]]:
    """Return (second, records, bytes) by record timestamp, or by time of reading."""
    sums: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for row in rows:
        if row["kind"] == kind:
            sums[row["second"]][0] += row["records"]
            sums[row["second"]][1] += row["bytes"]
    return [(second, records, size) for second, (records, size) in sorted(sums.items())]


def _doubled_seconds(rows: list[dict[str, Any]]) -> list[tuple[int, int, int]]:
    """Return (second, records, duplicates within one offset range) by record timestamp."""
    sums: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for row in rows:
        if row["kind"] == "second":
            sums[row["second"]][0] += row["records"]
            sums[row["second"]][1] += row.get("doubled") or 0
    return [(second, count, twice) for second, (count, twice) in sorted(sums.items())]


def timeline(found: Verdict, generators: np.ndarray, firsts: np.ndarray, counts: np.ndarray,
             sent_ms: np.ndarray, acked_ms: np.ndarray) -> list[Moment]:
    """Return the verdict's timeline with what the load's manifest adds: acknowledgement latency,
    and the time at which missing records and those of two offset ranges were sent. One row of the
    arrays is an acknowledged batch.
    """
    moments = {one.second: one for one in found.timeline}

    def at(second: int) -> Moment:
        return moments.get(second) or Moment(second, 0, None, 0, 0)

    acked_s = acked_ms // 1000
    for second in np.unique(acked_s).tolist():
        rows = acked_s == second
        took = np.bincount(summary.bucket(acked_ms[rows] - sent_ms[rows]), weights=counts[rows],
                           minlength=summary.LATENCY_BUCKETS).astype(np.int64)
        moments[second] = at(second)._replace(ack_p99_ms=percentiles(took)["p99"])
    for name, faulty in (("missing", found.lost), ("doubled", found.repeated)):
        for generator, sequences in faulty.items():
            own = np.flatnonzero(generators == generator)
            if not len(sequences) or not len(own):
                continue
            own = own[np.argsort(firsts[own], kind="stable")]
            batch = np.searchsorted(firsts[own], sequences, "right") - 1
            sent_s = sent_ms[own][np.clip(batch, 0, len(own) - 1)] // 1000
            for second, count in zip(*map(np.ndarray.tolist, np.unique(
                    sent_s, return_counts=True))):
                moment = at(second)
                moments[second] = moment._replace(**{name: getattr(moment, name) + count})
    return [moments[second] for second in sorted(moments)]

"""The plan of a load (content and rate), and its manifest.

Owns: the description of a load, and the manifest's directory: load.json and Parquet files.
Invariants: the number of records per generator is in the plan, or in the manifest afterwards; a
  plan is sent to executors unchanged: it contains only plain values.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from . import records
from .records import Content

BLOCK_RECORDS = 16_384
BLOCK_BYTES = 8 << 20
TICK_S = 0.05
LOAD_FILE = "load.json"


class PlanError(ValueError):
    """The plan cannot be executed. The message is one line."""


@dataclass(frozen=True)
class Rate:
    """Records per second of the whole load: steady, ramp (low to high within `length_s`, then high)
    or burst (high for `length_s` of each `period_s`, else low). 0: unlimited.
    """

    kind: str = "steady"
    low: float = 0.0
    high: float = 0.0
    period_s: float = 0.0
    length_s: float = 0.0

    def due(self, time_s: float) -> float:
        """Return how many records may have been sent by then."""
        if not self.high:
            return float("inf")
        if self.kind == "steady":
            return self.high * time_s
        if self.kind == "ramp":
            rising = min(time_s, self.length_s)
            reached = self.low + (self.high - self.low) * rising / self.length_s
            return (self.low + reached) / 2 * rising + self.high * (time_s - rising)
        rounds, rest = divmod(time_s, self.period_s)
        high_s = rounds * self.length_s + min(rest, self.length_s)
        return self.high * high_s + self.low * (time_s - high_s)


def rate_of(text: str, record_bytes: float) -> Rate:
    """"5000", "20MB", "ramp:100:5000:60" (seconds) or "burst:100:5000:10:2" (period, length); a
    number with MB is megabytes of values per second. Raises PlanError.
    """
    kind, *parts = text.split(":") if ":" in text else ["steady", text]
    try:
        numbers = [float(part[:-2]) * 1e6 / record_bytes if part.endswith("MB") else float(part)
                   for part in parts]
        if kind == "steady" and len(numbers) == 1:
            made = Rate(high=numbers[0])
        elif kind == "ramp" and len(numbers) == 3:
            made = Rate(kind, numbers[0], numbers[1], length_s=numbers[2])
        elif kind == "burst" and len(numbers) == 4 and numbers[3] < numbers[2]:
            made = Rate(kind, numbers[0], numbers[1], numbers[2], numbers[3])
        else:
            raise ValueError(text)
    except ValueError:
        raise PlanError(f"rate={text!r}: N, ramp:LOW:HIGH:SECONDS or burst:LOW:HIGH:PERIOD:LENGTH; "
                        "N in records/s, or in megabytes/s as NMB") from None
    if min(numbers) < 0 or kind != "steady" and not (made.high and made.length_s):
        raise PlanError(f"rate={text!r}: the numbers must be positive")
    return made


@dataclass(frozen=True)
class Plan:
    """One load. records: total of all generators; 0 with a duration: unlimited until then."""

    topic: str
    settings: dict[str, str]
    content: Content = field(default_factory=Content)
    records: int = 0
    duration_s: float = 0.0
    generators: int = 2
    rate: Rate = field(default_factory=Rate)
    engine: str = "pylog"
    transactional: bool = False

    def __post_init__(self) -> None:
        if bool(self.records) == bool(self.duration_s):
            raise PlanError("one of records and duration is needed")
        if self.generators < 1:
            raise PlanError(f"generators={self.generators}: at least 1")
        if self.engine not in ("pylog", "kafka"):
            raise PlanError(f"engine={self.engine!r}: pylog or kafka")
        if self.engine == "kafka" and self.duration_s and not self.rate.high:
            raise PlanError("the stock connector reports no counts: give records, or a rate with "
                            "the duration")
        if self.engine == "kafka" and self.transactional:
            raise PlanError("the stock connector writes no transactions")

    def limit(self, generator: int) -> int | None:
        """Return the number of records of a generator; None: until the duration is over."""
        total = self.records
        if not total:
            if not self.rate.high:
                return None
            total = int(self.rate.due(self.duration_s))
        return total // self.generators + (generator < total % self.generators)

    def block_records(self) -> int:
        size = record_bytes(self.content)
        most = max(1, min(BLOCK_RECORDS, int(BLOCK_BYTES / size)))
        if self.rate.high:
            most = max(1, min(most, int(self.rate.high * TICK_S / self.generators)))
        return most


def record_bytes(content: Content) -> float:
    """Return the mean size of a value."""
    return float(records.sizes(content, 0, np.arange(10_000)).mean())


def blocks(plan: Plan, generator: int, clock: Any, sleep: Any) -> Iterator[records.Made]:
    """Yield a generator's records at the planned rate. clock: seconds; sleep: waits seconds."""
    limit, most, sent = plan.limit(generator), plan.block_records(), 0
    begun_s = clock()
    while limit is None or sent < limit:
        passed_s = clock() - begun_s
        if limit is None and passed_s >= plan.duration_s:
            return
        room = plan.rate.due(passed_s) / plan.generators - sent
        wanted = most if limit is None else min(most, limit - sent)
        if room < wanted:
            sleep(TICK_S)
            continue
        yield records.made(plan.content, generator, sent, wanted)
        sent += wanted


@dataclass(frozen=True)
class Outcome:
    """Write load.json: the plan and its result. counts: records per generator."""

    plan: Plan
    counts: dict[int, int]
    started_ms: int
    ended_ms: int
    bytes: int
    starts: dict[int, int]
    ends: dict[int, int]

    def write(self, directory: str) -> None:
        path = Path(directory)
        path.mkdir(parents=True, exist_ok=True)
        (path / LOAD_FILE).write_text(json.dumps(asdict(self), indent=1))


def made_directory(path: str) -> None:
    """Check the manifest directory before the load, so that writing it cannot fail afterwards.
    Raises PlanError.
    """
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as failure:
        raise PlanError(f"cannot write to {path}: {failure.strerror}") from None


def read_outcome(directory: str) -> Outcome:
    """Read the manifest. Raises PlanError if there is none."""
    path = Path(directory) / LOAD_FILE
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as failure:
        raise PlanError(f"no manifest in {directory}: {failure}") from None
    plan = found["plan"]
    plan["content"], plan["rate"] = Content(**plan["content"]), Rate(**plan["rate"])
    numbers = {name: {int(key): value for key, value in found[name].items()}
               for name in ("counts", "starts", "ends")}
    return Outcome(**{**found, **numbers, "plan": Plan(**plan)})

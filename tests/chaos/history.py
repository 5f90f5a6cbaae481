"""Compares the results that clients received with the cluster's final state.

Owns: the events, in the order in which clients learned of them.
Invariants: this module depends on Kafka's guarantees only, not on the broker; an operation with
  unknown outcome is never a finding, whether it took effect or not; all times come from one clock.
"""

import threading
import time
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

SHOWN_MAX = 5
COPY_OF = "copy-of-"


class Value(NamedTuple):
    """A record's value: its writer and its number."""

    writer: str
    number: int


class Partition(NamedTuple):
    """A partition."""

    topic: str
    partition: int


class Writer(NamedTuple):
    """The guarantees of a writer.

    once: no record is duplicated. ordered: its numbers increase within each partition.
    """

    once: bool = True
    ordered: bool = True


class Sent(NamedTuple):
    """A sent record. transaction: its name, or None."""

    value: Value
    place: Partition
    transaction: str | None = None


class Acknowledged(NamedTuple):
    """An acknowledged record. offset -1: unknown."""

    value: Value
    offset: int


class Ended(NamedTuple):
    """A transaction whose end was acknowledged."""

    transaction: str
    is_committed: bool


class Read(NamedTuple):
    """A record that a reader received. session: positions only advance within one session."""

    reader: str
    session: int
    place: Partition
    offset: int
    value: Value
    committed_only: bool = False


class Committed(NamedTuple):
    """A group's committed offset, acknowledged at `answered`."""

    group: str
    place: Partition
    offset: int
    answered: float


class ObservedPosition(NamedTuple):
    """A group's offset in a response to a request sent at `asked`."""

    group: str
    place: Partition
    offset: int
    asked: float


class Copied(NamedTuple):
    """All records of a partition up to an offset, copied once to another partition in transactions.
    """

    source: Partition
    goal: Partition
    offset: int


class Topic(NamedTuple):
    """A topic's life: whether its creation and deletion were requested and acknowledged."""

    name: str
    created: bool
    deletion_asked: bool
    deleted: bool


class Case(NamedTuple):
    """One violation.

    place, value, offset: the record concerned, if it concerns one. earlier: offset of the record
    that it should not follow. name: of a transaction, group or topic.
    """

    text: str
    place: Partition | None = None
    value: Value | None = None
    offset: int = -1
    earlier: int = -1
    name: str = ""


class Finding(NamedTuple):
    """All cases of one kind."""

    what: str
    cases: list[Case]

    def __str__(self) -> str:
        shown = ", ".join(case.text for case in self.cases[:SHOWN_MAX])
        return f"{self.what}: {len(self.cases)}: {shown}"


TIMED = (Sent, Acknowledged, Ended)


@dataclass
class Final:
    """A partition after the run.

    records: offset -> value. visible: the offsets that read_committed consumers receive. digests:
    node -> digest of its replica.
    """

    records: dict[int, Value]
    visible: set[int]
    digests: dict[int, str] = field(default_factory=dict)


class History:
    """Events of a run. Any thread may add. told_s: when each event of TIMED was first added."""

    def __init__(self, clock=time.time):
        self.writers: dict[str, Writer] = {}
        self.events: list = []
        self.told_s: dict = {}
        self._clock = clock
        self._lock = threading.Lock()

    def add(self, event) -> None:
        with self._lock:
            self.events.append(event)
            if isinstance(event, TIMED):
                self.told_s.setdefault(event, self._clock())

    def of(self, kind) -> list:
        with self._lock:
            return [event for event in self.events if isinstance(event, kind)]


# The counts of a verdict: each word with the sentences of problems() that it covers.
KINDS = {
    "lost": ("acknowledged and lost", "acknowledged at another offset", "read and no longer there",
             "committed transactions that are not there as a whole", "not copied"),
    "doubled": ("doubled", "copied without its position"),
    "reordered": ("out of order", "read again or backwards", "read past others"),
    "stale": ("positions of groups that went back", "committed by a group that never read it"),
    "divergent": ("replicas differ",)}


def tally(found: list[str]) -> dict[str, int]:
    """Return how many of each of KINDS problems() found."""
    counts = dict.fromkeys(KINDS, 0)
    for sentence in found:
        what, _, rest = sentence.partition(": ")
        for kind, sentences in KINDS.items():
            if what in sentences:
                counts[kind] += int(rest.partition(":")[0])
    return counts


def problems(history: History, finals: dict[Partition, Final], topics=frozenset()) -> list[str]:
    """Return findings() as sentences."""
    return [str(finding) for finding in findings(history, finals, topics)]


def findings(history: History, finals: dict[Partition, Final], topics=frozenset()) -> list[Finding]:
    """Return all violations.

    finals: partitions that could not be read are missing and not judged. topics: names of the
    topics that exist at the end, None if unknown.
    """
    history = _of_known(history, finals)
    # A record that was sent again in another transaction belongs to the last one.
    sent = {event.value: event for event in history.of(Sent)}
    return [*_lost(history, finals, sent), *_unexpected(history, finals, sent),
            *_broken_transactions(history, finals, sent), *_misread(history, finals),
            *_stale(history), *_undelivered(history, finals), *_not_copied(history, finals),
            *_divergent(finals), *_topics(history, topics)]


def _of_known(history: History, finals) -> History:
    """Return the history without partitions that are missing in `finals`.

    A transaction is judged by its remaining partitions.
    """
    unknown = {event.value for event in history.of(Sent) if event.place not in finals}
    known = History()
    known.writers = history.writers
    known.events = [
        event for event in history.of(object)
        if not (isinstance(event, (Sent, Acknowledged)) and event.value in unknown
                or isinstance(event, Copied) and not {event.source, event.goal} <= finals.keys())]
    return known


def _some(what: str, found: list[Case]):
    """Return at most one finding with all cases of a kind."""
    if found:
        yield Finding(what, found)


def _case(value: Value, place: Partition, offset, of: str = "", more: str = "",
          earlier: int = -1) -> Case:
    """Return a case about a record. of, more: text before and after its description."""
    return Case(f"{of}{value.writer}/{value.number} in {place.topic}-{place.partition} at {offset}"
                f"{more}", place, value, offset, earlier)


def _named(name: str) -> Case:
    return Case(name, name=name)


def _lost(history, finals, sent):
    places = defaultdict(set)
    for final in finals.values():
        for value in final.records.values():
            places[value.writer].add(value.number)
    lost, elsewhere = [], []
    for value, offset in history.of(Acknowledged):
        place = sent[value].place
        if value.number not in places[value.writer]:
            lost.append(_case(value, place, offset))
        elif offset >= 0 and finals[place].records.get(offset) != value:
            elsewhere.append(_case(value, place, offset))
    yield from _some("acknowledged and lost", lost)
    yield from _some("acknowledged at another offset", elsewhere)


def _unexpected(history, finals, sent):
    """Find records that exist but should not, and records that are missing."""
    foreign, doubled, disordered = [], [], []
    visible = Counter(final.records[offset] for final in finals.values()
                      for offset in final.visible)
    for place, final in finals.items():
        seen: dict[Value, int] = {}
        times: Counter = Counter()
        last: dict[str, tuple] = {}
        for offset in sorted(final.records):
            value = final.records[offset]
            if value not in sent or sent[value].place != place:
                foreign.append(_case(value, place, offset))
                continue
            if sent[value].transaction is not None and offset not in final.visible:
                continue
            promise = history.writers[value.writer]
            times[value] += 1
            if value in seen:
                # A record that is duplicated in the source is copied twice.
                source = _copied(value)
                if promise.once and (source == value or times[value] > visible[source]):
                    doubled.append(_case(value, place, offset, earlier=seen[value]))
                continue
            seen[value] = offset
            number, at = last.get(value.writer, (-1, -1))
            if promise.ordered and value.number < number:
                disordered.append(_case(value, place, offset, earlier=at))
            last[value.writer] = value.number, offset
    yield from _some("nobody wrote", foreign)
    yield from _some("doubled", doubled)
    yield from _some("out of order", disordered)


def _broken_transactions(history, finals, sent):
    values = defaultdict(set)
    for event in sent.values():
        if event.transaction is not None:
            values[event.transaction].add(event.value)
    visible = {final.records[offset] for final in finals.values() for offset in final.visible}
    ends = {event.transaction: event.is_committed for event in history.of(Ended)}
    torn, shown, missing = [], [], []
    for name, written in values.items():
        there = written & visible
        if name not in ends:
            if there and there != written:
                torn.append(_named(name))
        elif ends[name] and there != written:
            missing.append(_named(name))
        elif not ends[name] and there:
            shown.append(_named(name))
    yield from _some("transactions of unknown end that are there in part", torn)
    yield from _some("committed transactions that are not there as a whole", missing)
    yield from _some("aborted transactions that are visible", shown)


def _misread(history, finals):
    """Check that readers received every existing record and no other."""
    vanished, dirty, back, skipped = [], [], [], []
    whole = {place: sorted(final.records) for place, final in finals.items()}
    clean = {place: sorted(final.visible) for place, final in finals.items()}
    last: dict[tuple, int] = {}
    for read in history.of(Read):
        if read.place not in finals:
            continue
        final = finals[read.place]
        about = (read.value, read.place, read.offset, f"{read.reader}: ")
        if final.records.get(read.offset) != read.value:
            vanished.append(_case(*about))
        if read.committed_only and read.offset not in final.visible:
            dirty.append(_case(*about))
        key = (read.reader, read.session, read.place)
        before = last.get(key)
        last[key] = read.offset
        if before is None:
            continue
        if read.offset <= before:
            back.append(_case(*about, f" after {before}", before))
            continue
        offsets = (clean if read.committed_only else whole)[read.place]
        if bisect_right(offsets, before) != bisect_left(offsets, read.offset):
            skipped.append(_case(*about, f" after {before}", before))
    yield from _some("read and no longer there", vanished)
    yield from _some("read though it was not committed", dirty)
    yield from _some("read again or backwards", back)
    yield from _some("read past others", skipped)


def _stale(history):
    """Check that committed offsets of groups never decrease."""
    commits = defaultdict(list)
    for commit in history.of(Committed):
        commits[commit.group, commit.place].append(commit)
    found = []
    for told in history.of(ObservedPosition):
        floor = max((commit.offset for commit in commits[told.group, told.place]
                     if commit.answered < told.asked), default=-1)
        if told.offset < floor:
            found.append(Case(f"{told.group} {told.place.topic}-{told.place.partition}: "
                              f"{told.offset} after {floor}", name=told.group))
    yield from _some("positions of groups that went back", found)


def _undelivered(history, finals):
    """Check that members of a group had read everything that the group committed."""
    read = defaultdict(set)
    for event in history.of(Read):
        read[event.reader.partition("/")[0], event.place].add(event.offset)
    ends: dict[tuple, int] = {}
    for commit in history.of(Committed):
        key = (commit.group, commit.place)
        ends[key] = max(ends.get(key, 0), commit.offset)
    found = []
    for (group, place), end in ends.items():
        for offset in sorted(finals[place].visible if place in finals else ()):
            if offset < end and offset not in read[group, place]:
                found.append(Case(f"{group} {place.topic}-{place.partition} at {offset}",
                                  place, offset=offset, name=group))
    yield from _some("committed by a group that never read it", found)


def copy_of(writer: str) -> str:
    """Return the name of the writer of copies of a writer's records."""
    return COPY_OF + writer


def _copied(value: Value) -> Value:
    """Return the original of a copied record, or the record itself if it is no copy."""
    return value._replace(writer=value.writer.removeprefix(COPY_OF))


def _not_copied(history, finals):
    """Check that copies and the source position in the same transaction are both present or absent.
    """
    found, ahead = [], []
    for source, goal, end in history.of(Copied):
        copies = {finals[goal].records[offset] for offset in finals[goal].visible}
        for offset in sorted(finals[source].visible):
            value = finals[source].records[offset]
            copied = Value(copy_of(value.writer), value.number) in copies
            if copied != (offset < end):
                (ahead if copied else found).append(_case(value, source, offset))
    yield from _some("not copied", found)
    yield from _some("copied without its position", ahead)


def _divergent(finals):
    found = [Case(f"{place.topic}-{place.partition} {final.digests}", place)
             for place, final in finals.items() if len(set(final.digests.values())) > 1]
    yield from _some("replicas differ", found)


def _topics(history, existing):
    if existing is None:
        return
    ends = {topic.name: topic for topic in history.of(Topic)}
    yield from _some("topics that were made and are gone", [
        _named(name) for name, topic in ends.items()
        if topic.created and not topic.deletion_asked and name not in existing])
    yield from _some("topics that were deleted and are there", [
        _named(name) for name, topic in ends.items() if topic.deleted and name in existing])

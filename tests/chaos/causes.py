"""Attributes problems of a mixed cluster to pylog's broker, to Kafka's brokers, or to neither.

Owns: nothing.
Invariants: suspects: every broker that led at the time or just before is a suspect, and a problem
  is Kafka's only if all suspects are Kafka's; contradicting batch: if a batch contradicts the log
  below it, the leader of its epoch is the only suspect; reset producer: a producer starts a new
  epoch in all partitions because one broker rejected it, namely the broker in the client's trace,
  or else any leader of those partitions.
Most of Kafka's problems have two causes. A killed broker restores only the last batch of each
producer, and without any batch it accepts any first sequence number. A client that retries an
unacknowledged batch then gets an out-of-order or a duplicate error. librdkafka's producer reacts
with a new epoch and duplicates the records that it sends again.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from pylog.coordinator.runtime.internal_topic import partition_of
from tests.chaos.history import (
    Acknowledged,
    Case,
    Ended,
    Final,
    Finding,
    History,
    Partition,
    Sent,
    Value,
)
from tests.chaos.reigns import SEQUENCES, Append, Leadership
from tests.chaos.traces import Refusal

OURS, THEIRS, UNKNOWN = "ours", "Kafka's", "unknown"
OFFSETS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"


class Cause(NamedTuple):
    side: str
    reason: str


class Causes:
    """Judge findings from the history and from the brokers' disks.

    theirs: Kafka's brokers. reigns: of all partitions. appends: reads the batches of a partition.
    refusals: the known errors of a producer.
    """

    def __init__(self, history: History, finals: dict[Partition, Final], theirs: Collection[int],
                 reigns: dict[Partition, list[Leadership]],
                 appends: Callable[[Partition], list[Append]],
                 refusals: Callable[[str], list[Refusal]]):
        self._finals, self._theirs, self._reigns = finals, frozenset(theirs), reigns
        self._read, self._refusals = appends, refusals
        self._appends: dict[Partition, list[Append]] = {}
        self._sent: dict[str, list[Sent]] = {}
        self._sent_s: dict[Value, float] = {}
        self._told_s: dict[Value, float] = {}
        self._ended_s: dict[str, float] = {}
        for event, at_s in history.told_s.items():
            if isinstance(event, Sent):
                self._sent_s.setdefault(event.value, at_s)
                self._sent.setdefault(event.transaction or "", []).append(event)
            elif isinstance(event, Acknowledged):
                self._told_s.setdefault(event.value, at_s)
            elif isinstance(event, Ended):
                self._ended_s[event.transaction] = at_s

    def split(self, findings: Iterable[Finding]) -> tuple[list[Finding], list[Finding]]:
        """Return (pylog's or undetermined, Kafka's), with a reason appended to each case."""
        ours, theirs = [], []
        for what, cases in findings:
            judged = [(case, self.of(what, case)) for case in cases]
            for found, is_theirs in ((ours, False), (theirs, True)):
                chosen = [case._replace(text=f"{case.text} ({cause.side}: {cause.reason})")
                          for case, cause in judged if (cause.side == THEIRS) == is_theirs]
                if chosen:
                    found.append(Finding(what, chosen))
        return ours, theirs

    def of(self, what: str, case: Case) -> Cause:
        """Return the cause of a case. what: the kind of its finding."""
        rule = _RULES.get(what)
        return rule(self, case) if rule else Cause(UNKNOWN, "whoever was asked may have erred")

    # ---- rules ----------------------------------------------------------------------------------

    def _misplaced(self, case: Case) -> Cause:
        """Judge a record that should not follow an earlier one. Keeps the contradicting batch."""
        found = [append for offset in (case.earlier, case.offset)
                 if (append := self._append_at(case.place, offset)) is not None]
        wrong = [(append, why) for append in found
                 if (why := self._contradiction(case.place, append))]
        if wrong:
            return self._cause({self._led(case.place, append.epoch) for append, _ in wrong},
                               "; ".join(why for _, why in wrong))
        return self._begun_anew(case)

    def _begun_anew(self, case: Case) -> Cause:
        """Judge a record of a producer that started a new epoch. Keeps the reset producer."""
        sent_s, told_s = self._sent_s.get(case.value, 0.0), self._told_s.get(case.value)
        for refusal in self._refusals(case.value.writer):
            if refusal.at_s >= sent_s and (told_s is None or refusal.at_s <= told_s):
                return self._cause({refusal.broker}, "its producer began anew, refused with "
                                   f"\"{refusal.error}\"")
        places = [place for place in self._reigns if place.topic == case.place.topic]
        return self._cause({reign.leader for place in places
                            for reign in self._reigning(place, sent_s, told_s)},
                           "its producer began anew, refused by whoever led")

    def _lost(self, case: Case) -> Cause:
        """Judge a lost record. It existed, or a broker claimed it, between sending and
        acknowledgement.
        """
        sent_s = self._sent_s.get(case.value, 0.0)
        reigns = self._reigning(case.place, sent_s, self._told_s.get(case.value, sent_s))
        if not reigns:
            return Cause(UNKNOWN, "nobody is known to have led")
        if case.offset < 0:
            return self._cause({reign.leader for reign in reigns},
                               "whoever led said that it was there already")
        instead = self._append_at(case.place, case.offset)
        last = instead.epoch if instead else self._reigns[case.place][-1].epoch
        return self._cause(self._leaders(case.place, reigns[0].epoch, max(last, reigns[-1].epoch)),
                           f"told in epoch {reigns[-1].epoch}, and epoch {last} has another there")

    def _read_wrongly(self, case: Case) -> Cause:
        sent_s = self._sent_s.get(case.value, 0.0)
        return self._cause({reign.leader for reign in self._reigning(case.place, sent_s, None)},
                           "whoever led since it was sent")

    def _written_by_nobody(self, case: Case) -> Cause:
        append = self._append_at(case.place, case.offset)
        return self._cause({self._led(case.place, append.epoch)} if append else set(),
                           "it is in a batch of that leader's")

    def _divergent(self, case: Case) -> Cause:
        """Judge different replicas: the only replica that differs from all others is wrong."""
        digests = self._finals[case.place].digests
        counts = Counter(digests.values())
        alone = {number for number, digest in digests.items() if counts[digest] == 1}
        if len(digests) > 2 and len(alone) == 1:
            return self._cause(alone, "the others have the same")
        return self._cause(set(digests), "no two have the same")

    def _torn(self, case: Case) -> Cause:
        """Judge a transaction. Suspects are its coordinator and the leaders of its partitions."""
        sent = self._sent.get(case.name, [])
        if not sent:
            return Cause(UNKNOWN, "it is not known when it was")
        began_s = min(self._sent_s[event.value] for event in sent)
        end_s = self._ended_s.get(case.name)
        identity = case.name.rpartition("-")[0].partition(".")[0]
        places = {event.place for event in sent} | self._coordinator(TRANSACTIONS, identity)
        return self._cause({reign.leader for place in places
                            for reign in self._reigning(place, began_s, end_s)},
                           "of its coordinator and of what it wrote to")

    def _of_group(self, case: Case) -> Cause:
        places = self._coordinator(OFFSETS, case.name) | ({case.place} if case.place else set())
        return self._cause({reign.leader for place in places
                            for reign in self._reigning(place, 0.0, None)},
                           "of its coordinator and of what it read")

    # ---- facts ----------------------------------------------------------------------------------

    def _cause(self, suspects: set, reason: str) -> Cause:
        """Return the side that all known suspects belong to. Keeps the suspects."""
        known = sorted(suspects - {-1})
        side = UNKNOWN
        if known and self._theirs.issuperset(known):
            side = THEIRS
        elif known and self._theirs.isdisjoint(known):
            side = OURS
        return Cause(side, f"{reason}; by {', '.join(map(str, known)) or 'nobody known'}")

    def _coordinator(self, topic: str, key: str) -> set[Partition]:
        count = sum(place.topic == topic for place in self._reigns)
        return {Partition(topic, partition_of(key, count))} if count else set()

    def _reigning(self, place, from_s: float, to_s: float | None) -> list[Leadership]:
        """Return the leaders of an interval and the leader before it, which may not know its
        successor.

        to_s: None means until the end of the run.
        """
        reigns = [reign for reign in self._reigns.get(place, []) if reign.leader >= 0]
        begun = sum(reign.began_s <= from_s for reign in reigns)
        return [reign for reign in reigns[max(begun - 2, 0):]
                if to_s is None or reign.began_s <= to_s]

    def _leaders(self, place, first: int, last: int) -> set[int]:
        return {reign.leader for reign in self._reigns.get(place, [])
                if first <= reign.epoch <= last}

    def _led(self, place, epoch: int) -> int:
        return next(iter(self._leaders(place, epoch, epoch)), -1)

    def _appends_of(self, place: Partition) -> list[Append]:
        if place not in self._appends:
            self._appends[place] = self._read(place)
        return self._appends[place]

    def _append_at(self, place, offset: int) -> Append | None:
        appends = self._appends_of(place)
        at = bisect_right(appends, offset, key=lambda append: append.first) - 1
        found = appends[at] if at >= 0 else None
        return found if found is not None and found.last >= offset else None

    def _contradiction(self, place: Partition, append: Append) -> str:
        """Return why the append may not follow its producer's previous batch, or "" if it may."""
        if append.producer < 0:
            return ""
        last = None
        for before in self._appends_of(place):
            if before.first >= append.first:
                break
            if before.producer == append.producer and not before.is_control:
                last = before
        if last is None:
            return ""
        is_new = append.producer_epoch > last.producer_epoch
        wanted = 0 if is_new else (last.last_sequence + 1) % SEQUENCES
        if append.producer_epoch >= last.producer_epoch and append.sequence == wanted:
            return ""
        return (f"sequence {append.sequence} of {append.producer}/{append.producer_epoch} at "
                f"{append.first} follows {last.last_sequence} of epoch {last.producer_epoch}")


_RULES: dict[str, Callable[[Causes, Case], Cause]] = {
    "acknowledged and lost": Causes._lost, "acknowledged at another offset": Causes._lost,
    "read and no longer there": Causes._lost, "nobody wrote": Causes._written_by_nobody,
    "doubled": Causes._misplaced, "out of order": Causes._misplaced,
    "transactions of unknown end that are there in part": Causes._torn,
    "committed transactions that are not there as a whole": Causes._torn,
    "aborted transactions that are visible": Causes._torn,
    "read though it was not committed": Causes._read_wrongly,
    "read again or backwards": Causes._read_wrongly, "read past others": Causes._read_wrongly,
    "positions of groups that went back": Causes._of_group,
    "committed by a group that never read it": Causes._of_group,
    "replicas differ": Causes._divergent}

"""Whose a problem of a cluster of Kafka's brokers and ours is: ours, Kafka's, or nobody can say.

Owns: nothing.
Invariants: (1) nothing is Kafka's that one of our brokers may have done: whoever led meanwhile, or
  just before, is a suspect, and all suspects are Kafka's; (2) a batch that contradicts the log
  below it was taken by who led its epoch: nobody else is a suspect then; (3) a producer begins anew
  in all partitions because one broker refused it: the one that its trace names, else whoever led
  any of them.
Kafka's own are above all two. A broker that was killed has of each producer the last batch alone,
and one that has none takes any first number: a client that repeats what was not answered is refused
as out of order then, or told that it is there. A producer of librdkafka's that is refused so begins
anew with another epoch, and what it repeats under that is doubled.
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
    Place,
    Sent,
    Value,
)
from tests.chaos.reigns import SEQUENCES, Append, Reign
from tests.chaos.traces import Refusal

OURS, THEIRS, UNKNOWN = "ours", "Kafka's", "unknown"
OFFSETS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"


class Cause(NamedTuple):
    side: str
    reason: str


class Causes:
    """theirs: Kafka's brokers. reigns: of all partitions. appends: reads what a partition has.
    refusals: what brokers refused a producer, as far as it told."""

    def __init__(self, history: History, finals: dict[Place, Final], theirs: Collection[int],
                 reigns: dict[Place, list[Reign]], appends: Callable[[Place], list[Append]],
                 refusals: Callable[[str], list[Refusal]]):
        self._finals, self._theirs, self._reigns = finals, frozenset(theirs), reigns
        self._read, self._refusals = appends, refusals
        self._appends: dict[Place, list[Append]] = {}
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
        """(what is ours or may be, what is Kafka's), each case with its reason."""
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
        """what: a Finding's."""
        rule = _RULES.get(what)
        return rule(self, case) if rule else Cause(UNKNOWN, "whoever was asked may have erred")

    # ---- rules ----------------------------------------------------------------------------------

    def _misplaced(self, case: Case) -> Cause:
        """A record behind one that it should not follow. Keeps (2)."""
        found = [append for offset in (case.earlier, case.offset)
                 if (append := self._append_at(case.place, offset)) is not None]
        wrong = [(append, why) for append in found
                 if (why := self._contradiction(case.place, append))]
        if wrong:
            return self._cause({self._led(case.place, append.epoch) for append, _ in wrong},
                               "; ".join(why for _, why in wrong))
        return self._begun_anew(case)

    def _begun_anew(self, case: Case) -> Cause:
        """Keeps (3)."""
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
        """It was there, or somebody said so, from when it was sent until it was told."""
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
        """Who is alone with what it has, has it wrong."""
        digests = self._finals[case.place].digests
        counts = Counter(digests.values())
        alone = {number for number, digest in digests.items() if counts[digest] == 1}
        if len(digests) > 2 and len(alone) == 1:
            return self._cause(alone, "the others have the same")
        return self._cause(set(digests), "no two have the same")

    def _torn(self, case: Case) -> Cause:
        """A transaction: of its coordinator, and of who leads what it wrote to."""
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
        """Keeps (1)."""
        known = sorted(suspects - {-1})
        side = UNKNOWN
        if known and self._theirs.issuperset(known):
            side = THEIRS
        elif known and self._theirs.isdisjoint(known):
            side = OURS
        return Cause(side, f"{reason}; by {', '.join(map(str, known)) or 'nobody known'}")

    def _coordinator(self, topic: str, key: str) -> set[Place]:
        count = sum(place.topic == topic for place in self._reigns)
        return {Place(topic, partition_of(key, count))} if count else set()

    def _reigning(self, place, from_s: float, to_s: float | None) -> list[Reign]:
        """The leaders of that time, and the one before, which may not have heard of its end. to_s:
        None: until the end."""
        reigns = [reign for reign in self._reigns.get(place, []) if reign.leader >= 0]
        begun = sum(reign.began_s <= from_s for reign in reigns)
        return [reign for reign in reigns[max(begun - 2, 0):]
                if to_s is None or reign.began_s <= to_s]

    def _leaders(self, place, first: int, last: int) -> set[int]:
        return {reign.leader for reign in self._reigns.get(place, [])
                if first <= reign.epoch <= last}

    def _led(self, place, epoch: int) -> int:
        return next(iter(self._leaders(place, epoch, epoch)), -1)

    def _appends_of(self, place: Place) -> list[Append]:
        if place not in self._appends:
            self._appends[place] = self._read(place)
        return self._appends[place]

    def _append_at(self, place, offset: int) -> Append | None:
        appends = self._appends_of(place)
        at = bisect_right(appends, offset, key=lambda append: append.first) - 1
        found = appends[at] if at >= 0 else None
        return found if found is not None and found.last >= offset else None

    def _contradiction(self, place: Place, append: Append) -> str:
        """Why it may not follow what its producer has below it; empty: it may."""
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

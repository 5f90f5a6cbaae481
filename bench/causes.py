"""Explain a record's latency thread by thread, from the kernel's scheduling trace.

Invariants: the spans of a record follow each other without a gap, from receipt back to send; a span
  that cannot be explained has kind LOST, never a guess; if a context switch is missing from the
  trace (sandboxes around the machine hide some threads), it is assumed at the processor's next
  event that has a different thread.
Source: Documentation/trace/ftrace.rst and events.rst of Linux for the lines of a trace.
"""

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

IDLE = 0  # pid of an idle processor, also during its interrupts
UNKNOWN = "?"  # the state of a thread whose context switch is not in the trace
STEPS_MAX = 200  # per record
RUNS, WAITS, BLOCKED, INTERRUPT, LOST = "runs", "waits", "blocked", "interrupt", "lost"
LINE = re.compile(
    r"^\s*(?P<name>.{1,16})-(?P<pid>\d+)\s+\[(?P<cpu>\d+)\]\s+\S+\s+(?P<at>\d+\.\d+): "
    r"(?P<event>\w+): ?(?P<rest>.*)$")
SWITCH = re.compile(r"prev_state=(?P<state>\S+) ==> next_comm=(?P<name>.*) next_pid=(?P<pid>\d+)")
WAKING = re.compile(r"pid=(?P<pid>\d+) prio=")
KERNEL = re.compile(r"kworker|ksoftirqd|rcu|jbd2|migration|kswapd|kcompactd")
CALL = re.compile(r"NR (?P<number>-?\d+)")


@dataclass(frozen=True, slots=True)
class Event:
    """pid: the thread on the processor. other: the next thread, the woken thread, or the number of
    the system call. state: state of the thread that a switch takes off the processor; R: still
    runnable.
    """

    at_us: int
    processor: int
    kind: str
    pid: int
    name: str
    other: int
    state: str = ""


@dataclass(frozen=True, slots=True)
class Span:
    """call: the system call that a thread runs or blocks in, None for its own code. instead: the
    thread that had the processor while this one waited for it.
    """

    kind: str
    pid: int
    begin_us: int
    end_us: int
    call: str | None = None
    instead: int | None = None

    @property
    def us(self) -> int:
        return self.end_us - self.begin_us


def microseconds(seconds: str) -> int:
    """Parse a timestamp of the trace with integers only."""
    whole, _, part = seconds.partition(".")
    return int(whole) * 1_000_000 + int(part[:6].ljust(6, "0"))


def event(line: str) -> Event | None:
    """Return the event in this line, None for kinds that are not used."""
    found = LINE.match(line)
    if found is None:
        return None
    at_us, pid, name = microseconds(found["at"]), int(found["pid"]), found["name"].strip()
    processor, kind, rest = int(found["cpu"]), found["event"], found["rest"]
    if kind == "sched_switch" and (to := SWITCH.search(rest)):
        return Event(at_us, processor, "switch", pid, name, int(to["pid"]), to["state"])
    if kind == "sched_waking" and (woken := WAKING.search(rest)):
        return Event(at_us, processor, "waking", pid, name, int(woken["pid"]))
    if kind in ("sys_enter", "sys_exit") and (call := CALL.search(rest)):
        return Event(at_us, processor, kind, pid, name, int(call["number"]))
    return None


@dataclass(slots=True)
class _Run:
    begin_us: int
    before: int  # the previous thread of the processor
    end_us: int | None = None  # None: still running
    state: str = ""


@dataclass
class Timeline:
    """The activity of each thread, in order of time."""

    names: dict[int, str] = field(default_factory=dict)
    runs: dict[int, list[_Run]] = field(default_factory=lambda: defaultdict(list))
    wakings: dict[int, list[Event]] = field(default_factory=lambda: defaultdict(list))
    calls: dict[int, list[list]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def of(cls, events: Iterable[Event]) -> "Timeline":
        made, running = cls(), {}
        for one in sorted(events, key=lambda each: each.at_us):
            made.names.setdefault(one.pid, one.name)
            before = running.get(one.processor, one.pid)
            if before != one.pid:
                # A missing switch is assumed here.
                made._switch(one.at_us, before, one.pid, UNKNOWN)
            running[one.processor] = one.other if one.kind == "switch" else one.pid
            if one.kind == "switch":
                made._switch(one.at_us, one.pid, one.other, one.state)
            elif one.kind == "waking":
                made.wakings[one.other].append(one)
            elif one.kind == "sys_enter":
                made.calls[one.pid].append([one.at_us, None, one.other])
            elif made.calls[one.pid] and made.calls[one.pid][-1][1] is None:
                made.calls[one.pid][-1][1] = one.at_us
        return made

    def _switch(self, at_us: int, before: int, after: int, state: str) -> None:
        runs = self.runs[before]
        if not runs or runs[-1].end_us is not None:
            runs.append(_Run(at_us, before))  # The run began before the trace did.
        runs[-1].end_us, runs[-1].state = at_us, state
        self.runs[after].append(_Run(at_us, before))

    def run_at(self, pid: int, at_us: int) -> int | None:
        """Return the index of the run that the thread is in or has just ended, None if it does not
        run.
        """
        runs = self.runs.get(pid, [])
        index = bisect_right(runs, at_us, key=lambda run: run.begin_us) - 1
        if index < 0 or (runs[index].end_us is not None and runs[index].end_us < at_us):
            return None
        return index

    def waking_of(self, pid: int, after_us: int, until_us: int) -> Event | None:
        """Return the first wakeup in the interval: later ones find the thread awake."""
        wakings = self.wakings.get(pid, [])
        index = bisect_left(wakings, after_us, key=lambda one: one.at_us)
        found = wakings[index] if index < len(wakings) else None
        return found if found is not None and found.at_us <= until_us else None

    def call_in(self, pid: int, begin_us: int, end_us: int, calls: Mapping[int, str]) -> str | None:
        """Return the system call that took most of the interval, None if none took half of it."""
        most, name = (end_us - begin_us) / 2, None
        made = self.calls.get(pid, [])
        first = max(0, bisect_right(made, begin_us, key=lambda call: call[0]) - 1)
        last = bisect_left(made, end_us, key=lambda call: call[0])
        for begin, end, number in made[first:last]:
            inside = min(end_us, end if end is not None else end_us) - max(begin_us, begin)
            if inside > 0 and inside >= most:
                most, name = inside, calls.get(number, f"system call {number}")
        return name


def way(timeline: Timeline, receiver: int, sent_us: int, received_us: int,
        calls: Mapping[int, str]) -> list[Span]:
    """Return the spans from receipt back to send: running, runnable but waiting, or blocked until a
    wakeup. Keeps spans without gaps.
    """
    spans: list[Span] = []
    pid, at_us = receiver, received_us

    def add(kind: str, since_us: int, call: str | None = None, instead: int | None = None) -> None:
        nonlocal at_us
        begin_us = max(sent_us, min(since_us, at_us))
        if begin_us < at_us or not spans:
            spans.append(Span(kind, pid, begin_us, at_us, call, instead))
        at_us = begin_us

    while at_us > sent_us:
        index = timeline.run_at(pid, at_us) if len(spans) < STEPS_MAX else None
        if index is None:
            add(LOST, sent_us)  # Too many steps: do not guess.
            break
        run, earlier = timeline.runs[pid][index], timeline.runs[pid][index - 1] if index else None
        add(RUNS, run.begin_us,
            timeline.call_in(pid, max(sent_us, run.begin_us), at_us, calls))
        if at_us == sent_us:
            break
        if earlier is None or earlier.end_us is None:
            add(LOST, sent_us)
        elif earlier.state.startswith("R"):
            add(WAITS, earlier.end_us, instead=run.before)
        else:
            pid = _woken(timeline, add, pid, earlier, run, calls)
    return spans


def _woken(timeline: Timeline, add, pid: int, earlier: _Run, run: _Run,
           calls: Mapping[int, str]) -> int:
    """Add the spans of a sleep that ended with `run`, and return the thread to follow from there.
    """
    woken = timeline.waking_of(pid, earlier.end_us, run.begin_us)
    if woken is None:
        add(LOST, 0)
        return pid
    add(WAITS, woken.at_us, instead=run.before)
    if earlier.state.startswith("D"):
        add(BLOCKED, earlier.end_us,
            timeline.call_in(pid, earlier.end_us, woken.at_us, calls))
        return pid
    if woken.pid == IDLE:
        add(INTERRUPT, 0)
    return woken.pid


def others_us(spans: list[Span], ours: Mapping[int, str]) -> int:
    """Return the time spent waiting for processors that neither broker nor client used."""
    return sum(span.us for span in spans
               if span.kind == WAITS and span.instead != IDLE and span.instead not in ours)


def cause(spans: list[Span], names: Mapping[int, str], ours: Mapping[int, str]) -> str:
    """Describe the longest span. names: all threads by pid, as the kernel names them; ours: threads
    of broker and client.
    """
    longest = max(spans, key=lambda span: span.us)
    who = ours.get(longest.pid) or _stranger(longest.pid, names)
    if longest.kind == RUNS:
        return f"{who} runs in {longest.call or 'its own code'}"
    if longest.kind == BLOCKED:
        return f"{who} is blocked in {longest.call or 'the kernel'}"
    if longest.kind == INTERRUPT:
        return f"{who} sleeps until an interrupt"
    if longest.kind == LOST:
        return f"{who} cannot be followed"
    if longest.instead == IDLE:
        return f"{who} waits for an idle processor"
    return f"{who} waits, {ours.get(longest.instead) or _stranger(longest.instead, names)} runs"


def _stranger(pid: int | None, names: Mapping[int, str]) -> str:
    kernel = KERNEL.match(names.get(pid or IDLE, ""))
    return f"the kernel's {kernel[0]}" if kernel else "another process"

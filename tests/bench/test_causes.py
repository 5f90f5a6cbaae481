"""Causes of a slow record's latency, from simulated lines of the kernel's tracer."""

import pytest

from bench import causes, outliers
from bench.causes import Span

RECEIVER, SENDER, REACTOR, OTHER = 10, 11, 20, 99
NAMES = {RECEIVER: "latency", SENDER: "latency", REACTOR: "reactor-0", OTHER: "cc1",
         55: "kworker/1:2"}
OURS = {RECEIVER: "the receiver", SENDER: "the sender", REACTOR: "the reactor"}
CALLS = {18: "pwrite64"}


def _head(at_us: int, pid: int, cpu: int) -> str:
    return f" {NAMES.get(pid, '<idle>'):>15}-{pid:<7} [{cpu:03}] d..2.  7.{at_us:06}:"


def _switch(at_us: int, pid: int, to: int, state: str = "S", cpu: int = 0) -> str:
    return (f"{_head(at_us, pid, cpu)} sched_switch:"
            f" prev_comm={NAMES.get(pid, 'swapper/0')} prev_pid={pid} prev_prio=120"
            f" prev_state={state} ==> next_comm={NAMES.get(to, 'swapper/0')} next_pid={to}"
            " next_prio=120")


def _waking(at_us: int, pid: int, woken: int, cpu: int = 0) -> str:
    return (f"{_head(at_us, pid, cpu)} sched_waking:"
            f" comm={NAMES[woken]} pid={woken} prio=120 target_cpu=000")


def _call(at_us: int, pid: int, number: int, begins: bool) -> str:
    what = f"enter: NR {number} (8, 7f, 64, 0, 0, 0)" if begins else f"exit: NR {number} = 64"
    return f"{_head(at_us, pid, 0)} sys_{what}"


def _way(lines: list[str], sent: int, received: int) -> list[Span]:
    timeline = causes.Timeline.of(filter(None, map(causes.event, lines)))
    return causes.way(timeline, RECEIVER, 7_000_000 + sent, 7_000_000 + received, CALLS)


def _shape(spans: list[Span]) -> list[tuple]:
    return [(span.kind, span.pid, span.us) for span in spans]


# Receiver and reactor sleep; on the other processor the sender sends at 100 and wakes the reactor.
SENT = [_switch(10, REACTOR, RECEIVER), _switch(20, RECEIVER, 0), _switch(90, 0, SENDER, cpu=1),
        _waking(110, SENDER, REACTOR, cpu=1)]
# The reactor wakes the receiver.
FOUND = [_waking(5040, REACTOR, RECEIVER), _switch(5050, REACTOR, RECEIVER)]
SENT_US, FOUND_US = 100, 5060


def test_a_record_is_followed_from_its_receipt_back_to_its_send():
    spans = _way([*SENT, _switch(115, 0, REACTOR), _waking(150, REACTOR, RECEIVER),
                  _switch(160, REACTOR, RECEIVER)], 100, 170)
    assert _shape(spans) == [
        ("runs", RECEIVER, 10), ("waits", RECEIVER, 10), ("runs", REACTOR, 35),
        ("waits", REACTOR, 5), ("runs", SENDER, 10)]
    assert sum(span.us for span in spans) == 70
    assert all(later.begin_us == earlier.end_us
               for later, earlier in zip(spans, spans[1:], strict=False))


@pytest.mark.parametrize("pid, words", [
    (OTHER, "the reactor waits, another process runs"),
    (SENDER, "the reactor waits, the sender runs"),
    (55, "the reactor waits, the kernel's kworker runs"),
    (0, "the reactor waits for an idle processor")])
def test_running_thread_is_the_cause_while_another_waits_for_the_processor(pid, words):
    spans = _way([*SENT, _switch(30, 0, pid), _switch(5000, pid, REACTOR), *FOUND],
                 SENT_US, FOUND_US)
    assert causes.cause(spans, NAMES, OURS) == words


def test_a_thread_that_is_put_aside_waits_too():
    spans = _way([*SENT, _switch(120, 0, REACTOR), _switch(130, REACTOR, OTHER, "R"),
                  _switch(2130, OTHER, REACTOR), *FOUND], SENT_US, FOUND_US)
    assert ("waits", REACTOR, 2000) in _shape(spans)
    assert sum(span.us for span in spans) == FOUND_US - SENT_US


def test_long_system_call_is_the_cause():
    spans = _way([*SENT, _switch(120, 0, REACTOR), _call(125, REACTOR, 18, True),
                  _call(5030, REACTOR, 18, False), *FOUND], SENT_US, FOUND_US)
    assert causes.cause(spans, NAMES, OURS) == "the reactor runs in pwrite64"


def test_waiting_for_a_disk_is_the_cause():
    spans = _way([*SENT, _switch(120, 0, REACTOR), _call(125, REACTOR, 18, True),
                  _switch(130, REACTOR, 55, "D"), _waking(5000, 55, REACTOR),
                  _switch(5010, 55, REACTOR), _call(5015, REACTOR, 18, False), *FOUND],
                 SENT_US, FOUND_US)
    assert ("blocked", REACTOR, 4870) in _shape(spans)
    assert causes.cause(spans, NAMES, OURS) == "the reactor is blocked in pwrite64"


def test_own_work_of_a_thread_is_the_cause():
    spans = _way([*SENT, _switch(120, 0, REACTOR), *FOUND], SENT_US, FOUND_US)
    assert ("runs", REACTOR, 4920) in _shape(spans)
    assert causes.cause(spans, NAMES, OURS) == "the reactor runs in its own code"


def test_timer_or_device_wakeup_is_distinguished_from_a_threads():
    spans = _way([*SENT, _waking(900, 0, RECEIVER), _switch(905, 0, RECEIVER)], 100, 910)
    assert causes.cause(spans, NAMES, OURS) == "the receiver sleeps until an interrupt"


def test_missing_context_switch_is_inferred_from_the_next_event():
    spans = _way([*SENT, _switch(30, 0, OTHER), _call(4990, REACTOR, 18, True), *FOUND],
                 SENT_US, FOUND_US)
    assert ("waits", REACTOR, 4880) in _shape(spans)
    assert causes.cause(spans, NAMES, OURS) == "the reactor waits, another process runs"


def test_missing_trace_events_are_not_guessed():
    assert _shape(_way([_switch(500, 0, RECEIVER)], 100, 510)) == [
        ("runs", RECEIVER, 10), ("lost", RECEIVER, 400)]
    assert _shape(_way(SENT, 100, 510)) == [("lost", RECEIVER, 410)]
    assert causes.cause(_way(SENT, 100, 510), NAMES, OURS) == "the receiver cannot be followed"


def test_unrelated_lines_are_skipped():
    assert causes.event("# tracer: nop") is None
    assert causes.event("  cc1-99 [000] d..2.  7.01: sched_migrate_task: comm=cc1 pid=99") is None
    assert causes.event("CPU:1 [LOST 5 EVENTS]") is None


def test_a_time_is_read_to_the_microsecond():
    assert causes.microseconds("40821.634793") == 40_821_634_793
    assert causes.microseconds("7.5") == 7_500_000


def test_time_of_other_processes_is_distinguished_from_ours():
    for pid, others_us in ((OTHER, 4890), (SENDER, 0), (0, 0)):
        spans = _way([*SENT, _switch(30, 0, pid), _switch(5000, pid, REACTOR), *FOUND],
                     SENT_US, FOUND_US)
        assert causes.others_us(spans, OURS) == others_us


def test_the_most_frequent_cause_is_the_first_of_the_table():
    lines = outliers.table({"a": [9.0], "b": [1.0, 3.0]}).splitlines()
    assert lines[2:] == ["| b | 2 | 2.00 | 3.00 |", "| a | 1 | 9.00 | 9.00 |"]

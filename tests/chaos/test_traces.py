"""Client logs show which requests were answered and which broker rejected one."""

import os
import sys

import pytest

from pylog.client.network.log_once import Notices
from pylog.client.producer.sender import REFUSAL
from tests.chaos.traces import Refusal, captured, refusals_of, trace_of

SENT = ("%7|{at}.5|SEND|{name}#consumer-4| [thrd:{broker}]: {broker}: "
        "Sent {what}Request (v9, 186 bytes @ 0, CorrId {id})\n")
RECEIVED = ("%7|{at}.5|RECV|{name}#consumer-4| [thrd:{broker}]: {broker}: "
            "Received {what}Response (v9, 40 bytes, CorrId {id}, rtt 32.97ms)\n")
FAILED = ("%7|{at}.5|FAIL|{name}#consumer-4| [thrd:{broker}]: {broker}: "
          "Disconnected (after 33ms in state UP) (_TRANSPORT)\n")
COMMIT = ("%7|{at}.5|COMMIT|{name}#consumer-4| [thrd:main]: {broker}: OffsetCommit for 2 "
          "partition(s) in join-state steady: manual: returned: Broker: Not coordinator\n")
REFUSED = ("%7|{at}.5|REQERR|{name}#producer-2| [thrd:{broker}]: {broker}: ProduceRequest failed: "
           "Broker: {what}: explicit actions Permanent,MsgPossiblyPersisted\n")
NOW_S = 1000.5


def line(form: str, at: int, id_: int = 0, what: str = "OffsetCommit", name: str = "group/0",
         broker: str = "broker:9092/1") -> str:
    return form.format(at=at, id=id_, what=what, name=name, broker=broker)


def unanswered(*lines: str) -> list[str]:
    return trace_of(lines, "group/0", NOW_S).unanswered()


def test_unanswered_request_is_reported():
    assert unanswered(line(SENT, 900, 7)) == ["OffsetCommit for 100 s by broker:9092/1"]


def test_answered_request_is_not_reported():
    assert unanswered(line(SENT, 900, 7), line(RECEIVED, 901, 7)) == []


def test_response_to_another_request_does_not_count():
    assert unanswered(line(SENT, 900, 7), line(RECEIVED, 901, 8),
                      line(RECEIVED, 901, 7, broker="broker:9092/2"))


def test_recent_request_is_not_overdue():
    assert unanswered(line(SENT, 980, 7)) == []


def test_closed_connection_has_no_unanswered_requests():
    assert unanswered(line(SENT, 900, 7), line(FAILED, 901)) == []
    assert unanswered(line(SENT, 900, 7), line(FAILED, 901, broker="broker:9092/2"))
    # A new connection replaces one that closed without an error.
    assert unanswered(line(SENT, 900, 7), line(SENT, 999, 8, "ApiVersion")) == []


def test_lines_of_other_clients_and_formats_are_ignored():
    assert unanswered(line(SENT, 900, 7), line(RECEIVED, 901, 7, name="group/1"), "%5|what?\n",
                      "group/0# says nothing\n")


def test_client_without_log_has_no_trace():
    assert trace_of([line(SENT, 900, 7, name="group/1")], "group/0", NOW_S) is None


def test_fatal_producer_error_names_the_broker():
    out_of_order = "Broker received an out of order sequence number"
    of_another = line(REFUSED, 903, what=out_of_order, name="group/1")
    passing = line(REFUSED, 902, what=out_of_order).replace("Permanent", "Retry")
    assert refusals_of([
        line(SENT, 900, 7), line(REFUSED, 901, what=out_of_order), passing, of_another,
        line(REFUSED, 904, what="Message size too large"),
        line(REFUSED, 905, what="Unknown Producer Id", broker="broker:9092/23"), "%5|what?\n"],
        "group/0") == [Refusal(901.5, 1, f"Broker: {out_of_order}"),
                       Refusal(905.5, 23, "Broker: Unknown Producer Id")]


def test_pylog_producer_warning_names_the_broker(tmp_path, caplog):
    with captured(tmp_path / "told") as traces:
        for who in ("own", "own-moved"):
            Notices(f"producer {who}").warn("refused", REFUSAL, 2, "moved", 1, "out of order")
        Notices("producer own").warn("retried", "retrying records for moved-1: not now")
        while len(traces.refusals("own-moved")) < 1:
            os.sched_yield()
        assert [refusal[1:] for refusal in traces.refusals("own")] == [(2, "out of order")]
    at_s = traces.refusals("own-moved")[0].at_s
    assert [record.created for record in caplog.records][1] == pytest.approx(at_s, abs=1e-5)


def test_last_request_and_response_are_reported():
    told = trace_of([
        line(SENT, 900, 7), line(RECEIVED, 910, 7), line(COMMIT, 911), line(SENT, 990, 8, "Fetch")],
        "group/0", NOW_S).summary()
    assert told == (
        "2 requests sent, all answered or cut off; last sent OffsetCommit to broker:9092/1 100 s "
        "ago, last received OffsetCommit 90 s ago; its last commit: broker:9092/1: OffsetCommit "
        "for 2 partition(s) in join-state steady: manual: returned: Broker: Not coordinator 89 s "
        "ago")


def test_library_output_is_captured(tmp_path, capfd):
    with captured(tmp_path / "told") as traces:
        noise = line(SENT, 899, 6).replace("SEND", "TERMINATE")
        os.write(2, f"{noise}{line(SENT, 900, 7)}".encode())
        print("of Python's own", file=sys.stderr)
        while (trace := traces.of("group/0", NOW_S)) is None:
            os.sched_yield()
        assert len(trace.unanswered()) == 1
        assert traces.of("group/1", NOW_S) is None
        os.write(2, line(REFUSED, 901, what="Unknown Producer Id").encode())
        while not traces.refusals("group/0"):
            os.sched_yield()
        assert traces.refusals("group/1") == []
        assert "TERMINATE" not in (tmp_path / "told").read_text()
    os.write(2, b"afterwards")
    assert capfd.readouterr().err == "of Python's own\nafterwards"

"""The audit log's file."""

import json
import os
import threading

from pylog.security import audit
from pylog.security.authorizer import ALTER, CLUSTER, CLUSTER_ACTION, Decision
from pylog.security.identities import user


def decided(log, name, operation=ALTER):
    log.decided(user("u\n"), "h", operation, CLUSTER, name, Decision(True, None, "why"))


def test_a_decision_is_one_line_whatever_names_are_in_it(tmp_path):
    log = audit.AuditLog(str(tmp_path / "a"), False, lambda: 5)
    decided(log, "x\ny\u2028é")
    decided(log, "daily", CLUSTER_ACTION)
    log.close()
    lines = (tmp_path / "a").read_bytes().split(b"\n")
    assert len(lines) == 2 and json.loads(lines[0])["name"] == "x\ny\u2028é"


def test_what_the_queue_has_no_room_for_is_counted_and_told_by_the_next_line(tmp_path):
    os.mkfifo(tmp_path / "a")
    reader = os.open(tmp_path / "a", os.O_RDONLY | os.O_NONBLOCK)   # It takes nothing yet.
    log, long = audit.AuditLog(str(tmp_path / "a"), False, lambda: 5), "x" * 1000
    while log.dropped < 3:
        decided(log, long)
    os.set_blocking(reader, True)
    with open(reader, "rb") as lines:
        while "dropped_before" not in (line := json.loads(lines.readline())):
            decided(log, "next")
        assert 3 <= line["dropped_before"] <= log.dropped
        closing = threading.Thread(target=log.close)
        closing.start()
        assert json.loads(lines.readlines()[-1])["name"] == "next"
        closing.join()


def test_a_full_disk_stops_neither_decisions_nor_the_end(caplog):
    log = audit.AuditLog("/dev/full", False, lambda: 5)
    for number in range(audit.LINES_MAX + 5):
        decided(log, str(number))
    log.close()
    assert "the audit log is not written" in caplog.text

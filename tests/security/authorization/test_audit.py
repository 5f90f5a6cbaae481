"""The audit log, and its file."""

import errno
import json
import os
import threading

import pytest

from pylog.protocol import api
from pylog.security.authorization import audit
from pylog.security.authorizer import (
    ALTER, CLUSTER, CLUSTER_ACTION, READ, TOPIC, WRITE, Decision,
)
from pylog.security.principals import user


def to_file(path):
    """Return (log, its file)."""
    file = audit.AuditFile(str(path))
    return audit.AuditLog([file], False, lambda: 5), file


def decided(log, name, operation=ALTER, request=api.CREATE_ACLS):
    log.decided(user("u\n"), "h", request, operation, CLUSTER, name, Decision(True, None, "why"))


def test_decision_is_one_line_for_any_names(tmp_path):
    log, file = to_file(tmp_path / "a")
    decided(log, "x\ny\u2028é")
    decided(log, "daily", CLUSTER_ACTION)
    file.close()
    lines = (tmp_path / "a").read_bytes().split(b"\n")
    assert len(lines) == 2 and json.loads(lines[0])["name"] == "x\ny\u2028é"


def test_a_line_names_the_request_that_was_tried(tmp_path):
    log, file = to_file(tmp_path / "a")
    decided(log, "kafka-cluster")
    decided(log, "kafka-cluster", request=999)
    file.close()
    lines = [json.loads(line) for line in (tmp_path / "a").read_text().splitlines()]
    assert [(line["request"], line["operation"]) for line in lines] == [
        ("CreateAcls", "Alter"), ("999", "Alter")]


def test_lines_dropped_by_a_full_queue_are_counted_in_the_next_line(tmp_path):
    os.mkfifo(tmp_path / "a")
    # The pipe's reader does not read yet.
    reader = os.open(tmp_path / "a", os.O_RDONLY | os.O_NONBLOCK)
    (log, file), long = to_file(tmp_path / "a"), "x" * 1000
    while log.dropped < 3:
        decided(log, long)
    os.set_blocking(reader, True)
    with open(reader, "rb") as lines:
        while "dropped_before" not in (line := json.loads(lines.readline())):
            decided(log, "next")
        assert 3 <= line["dropped_before"] <= log.dropped
        closing = threading.Thread(target=file.close)
        closing.start()
        assert json.loads(lines.readlines()[-1])["name"] == "next"
        closing.join()


def test_long_lines_fill_the_queue_by_their_bytes(tmp_path):
    os.mkfifo(tmp_path / "a")
    # The pipe's reader does not read yet.
    reader = os.open(tmp_path / "a", os.O_RDONLY | os.O_NONBLOCK)
    (log, file), long = to_file(tmp_path / "a"), "x" * 200_000
    for _ in range(200):
        decided(log, long)
    assert log.dropped == 200 - audit.BYTES_MAX // 200_164
    os.set_blocking(reader, True)
    with open(reader, "rb") as lines:
        closing = threading.Thread(target=file.close)
        closing.start()
        assert len(lines.readlines()) == 200 - log.dropped
        closing.join()
    assert file._has_room(audit.BYTES_MAX)


def test_full_disk_stops_neither_decisions_nor_the_shutdown(caplog):
    log, file = to_file("/dev/full")
    for number in range(audit.LINES_MAX + 5):
        decided(log, str(number))
    file.close()
    assert "the audit log cannot be written" in caplog.text


class Filling:
    """A file on a disk with space for `room` more bytes, at most `most` per write."""

    name = "filling"

    def __init__(self, room, most):
        self.room, self.most, self.data = room, most, b""

    def write(self, data):
        taken = data[:min(self.room, self.most)]
        if not taken:
            self.room = 10**9  # Free disk space.
            raise OSError(errno.ENOSPC, "full")
        self.room -= len(taken)
        self.data += taken
        return len(taken)

    def close(self):
        pass


@pytest.mark.parametrize("room", [175, 10**9])
def test_partially_written_line_is_completed_and_a_truncated_one_ended(tmp_path, caplog, room):
    log, file = to_file(tmp_path / "a")
    file._file.close()
    file._file = filling = Filling(room, 60)
    for name in "abc":
        decided(log, name)
    file.close()
    lines = filling.data.split(b"\n")
    whole = [json.loads(line)["name"] for line in lines if line.endswith(b"}")]
    assert whole == (["a", "c"] if room == 175 else ["a", "b", "c"]) and lines[-1] == b""
    assert len(lines) == 4 and ("cannot be written" in caplog.text) == (room == 175)


class Room(audit.AuditSink):
    """lines: the lines accepted while `has_room`."""

    def __init__(self):
        super().__init__()
        self.lines, self.has_room = [], True

    def offer(self, line):
        if self.has_room:
            self.lines.append(json.loads(line))
        return self.has_room


def test_each_outlet_gets_every_line_and_counts_dropped_ones():
    full, other = Room(), Room()
    log = audit.AuditLog([full, other], False, lambda: 5)
    for number in range(4):
        full.has_room = number in (0, 3)
        decided(log, str(number))
    assert [line["name"] for line in other.lines] == list("0123")
    assert [(line["name"], line.get("dropped_before")) for line in full.lines] == [
        ("0", None), ("3", 2)]
    assert (log.dropped, full.dropped, other.dropped) == (2, 2, 0)


def test_reading_the_audit_topic_creates_no_audit_lines():
    room = Room()
    log = audit.AuditLog([room], True, lambda: 5, "audit")
    for name, operation, allowed in (("audit", READ, True), ("audit", WRITE, True),
                                     ("audit", READ, False), ("audit", ALTER, True),
                                     ("other", READ, True)):
        log.decided(
            user("u"), "h", api.FETCH, operation, TOPIC, name, Decision(allowed, None, "why"))
    assert [(line["name"], line["operation"], line["allowed"]) for line in room.lines] == [
        ("audit", "Read", False), ("audit", "Alter", True), ("other", "Read", True)]

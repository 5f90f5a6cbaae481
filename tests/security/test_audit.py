"""The audit log's file."""

import json

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


def test_a_full_disk_stops_neither_decisions_nor_the_end(caplog):
    log = audit.AuditLog("/dev/full", False, lambda: 5)
    for number in range(audit.LINES_MAX + 5):
        decided(log, str(number))
    log.close()
    assert "the audit log is not written" in caplog.text

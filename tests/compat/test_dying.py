"""The driver's handling of member processes."""

import os

import pytest

from tests.compat.dying import Member
from tests.compat.flows import wait_for


def _member(tmp_path, script: str) -> Member:
    return Member(["sh", "-c", script], "127.0.0.1:1", "topic", tmp_path / "log")


def test_member_reports_its_partitions_and_keys(tmp_path):
    with _member(tmp_path, "echo share 0 1; echo noise; echo key k1; echo share 2; "
                           "echo key k2; exec sleep 60") as one:
        wait_for("both keys", lambda: one.keys == {"k1", "k2"}, 10)
        assert one.share == {2} and one.holds(1)


def test_a_killed_member_leaves_no_process_behind(tmp_path):
    with _member(tmp_path, "sleep 60 & echo key $!; wait") as one:
        wait_for("the child's id", lambda: one.keys, 10)
        child = int(next(iter(one.keys)))
        one.kill()
    assert one.process.returncode == -9
    wait_for("the child to be gone", lambda: _has_exited(child), 10)


def _has_exited(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return not os.path.exists(f"/proc/{pid}")


def test_member_that_exits_by_itself_is_a_failure(tmp_path):
    with _member(tmp_path, "exit 3") as one:
        one.process.wait()
        with pytest.raises(AssertionError, match="a member ended with 3"):
            one.holds(1)

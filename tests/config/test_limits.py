"""Limits derived from the machine's resources."""

import resource

import pytest

from pylog.config import limits


def _group(folder, name: str, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


@pytest.mark.parametrize("line, place, name", [
    ("0::/a/b", "a/b", "memory.max"), ("0::/a/b", "a", "memory.max"),
    ("4:memory:/a/b", "memory/a/b", "memory.limit_in_bytes"),
    ("4:cpu,memory:/a/b", "memory", "memory.limit_in_bytes")])
def test_available_memory_is_the_lowest_cgroup_limit(tmp_path, line, place, name):
    membership = tmp_path / "cgroup"
    membership.write_text(f"9:name=systemd:/\n{line}\n")
    _group(tmp_path / place, name, "104857600\n")
    assert limits.memory_bytes(str(tmp_path), str(membership)) == 100 << 20


def test_without_a_limit_it_is_the_machines(tmp_path):
    membership = tmp_path / "cgroup"
    membership.write_text("0::/\n")
    _group(tmp_path, "memory.max", "max\n")
    assert limits.memory_bytes(str(tmp_path), str(membership)) > 100 << 20
    assert limits.memory_bytes(str(tmp_path), str(tmp_path / "none")) > 100 << 20


@pytest.mark.parametrize("limit", [20, 64, 256, 300, 1024, 20_000, 1 << 20])
@pytest.mark.parametrize("directories", [1, 3])
def test_connections_and_segments_leave_descriptors_for_the_rest(monkeypatch, limit, directories):
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limit, limit))
    count, end = limits.connections(directories)
    files = limits.segment_files(directories) * directories
    assert count > 0 and files > 0
    assert count + files + min(limits.OTHER_FILES, limit // 4) <= limit and end < limit


def test_descriptor_limit_determines_the_number_of_written_partitions(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (20_000, 20_000))
    assert limits.segment_files(1) == 8_000
    assert limits.connections(1)[0] > 10_000


def test_undefined_limit_stays_undefined(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (resource.RLIM_INFINITY,) * 2)
    assert limits.connections(2) == (limits.NO_LIMIT, limits.NO_LIMIT)
    assert limits.segment_files(2) == limits.SEGMENT_FILES_MAX

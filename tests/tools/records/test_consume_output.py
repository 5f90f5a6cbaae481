"""`pylog consume --group` commits only records that it has written; also --against kafka."""

import os
import resource
import subprocess
import sys
from types import SimpleNamespace

import pytest

from pylog.client.types import TopicPartition
from pylog.tools.cli.session import ToolError
from pylog.tools.records.consume import Reader
from tests.tools.support import run, topic_of
from tests.wire import raw
from tests.wire.talk import append, unique

BATCHES, BATCH_RECORDS = 4, 5000
PIPE_BYTES = 1 << 16
FILE_BYTES = 300_000


@pytest.fixture(scope="module")
def topic(target):
    name = topic_of(target, partitions=1)
    batch = raw.batch([raw.record(b"k", b"v" * 99, offset_delta=number)
                       for number in range(BATCH_RECORDS)])
    for _ in range(BATCHES):
        append(target.port, name, batch)
    return name


def consume(target, topic: str, group: str, *words, **how):
    """A process that runs `pylog consume --group` with Python's output buffers turned off."""
    return subprocess.Popen(
        [sys.executable, "-c",
         "import sys; from pylog import cli; sys.exit(cli.pylog(sys.argv[1:]))",
         "consume", topic, "-g", group, "-b", target.bootstrap, *words],
        env={**os.environ, "PYTHONUNBUFFERED": "1"}, stderr=subprocess.PIPE, **how)


def committed(target, group: str) -> int:
    rows = run("groups", "describe", group, "--json", broker=target).json[0]["partitions"]
    return rows[0]["committed_offset"] if rows else 0


@pytest.mark.parametrize("words", [(), ("-F", "table"), ("--json", "-H")])
def test_a_closed_pipe_commits_no_record_that_did_not_enter_it(target, topic, words):
    group = unique("group")
    process = consume(target, topic, group, *words, stdout=subprocess.PIPE)
    read = process.stdout.read(1000)
    process.stdout.close()
    assert process.wait(60) == 1, process.stderr.read()
    assert committed(target, group) * 100 <= len(read) + PIPE_BYTES


@pytest.mark.parametrize("words", [(), ("-F", "table"), ("--json", "-H")])
def test_a_full_disk_commits_no_record_that_is_not_in_the_file(target, topic, words, tmp_path):
    group, path = unique("group"), tmp_path / "records"

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))

    with open(path, "wb") as out:
        process = consume(target, topic, group, *words, stdout=out, preexec_fn=limit)
        _, told = process.communicate(timeout=60)
    assert process.returncode == 1 and b"File too large" in told, told
    assert b"Exception ignored" not in told and b"Traceback" not in told, told
    assert committed(target, group) <= path.read_bytes().count(b"\n")


def test_a_partition_that_falls_silent_before_its_end_is_named():
    silent, other = TopicPartition("t", 0), TopicPartition("t", 1)
    reader = Reader.__new__(Reader)
    reader.session, reader.left = SimpleNamespace(timeout_s=0.05), None
    reader.asked = {"follow": False, "group": None}
    reader.stops, reader.until_ms = {silent: 10, other: 5}, None
    reader.consumer = SimpleNamespace(
        poll=lambda *_: [], position=lambda part: 5, assignment=lambda: {silent, other})
    with pytest.raises(ToolError, match="no records for 0.05 s of t-0, which did not reach"):
        list(reader.batches())

"""The driver's handling of client programs: one-line programs instead of clients.

Also the effect of its brokers' settings on old records.
"""

import pytest

from tests.compat import flows
from tests.compat.clients import Client, ClientMissing
from tests.compat.scenario import SETTINGS, run_client, run_scenario
from tests.fixtures.brokers import Brokerd
from tests.wire import raw
from tests.wire.messages import ask
from tests.wire.raw import Connection
from tests.wire.talk import append, create_topic, fetch

OFFSET_OUT_OF_RANGE = 1
OK = """echo '{"ok": true, "note": "well"}'"""


def _run(brokerd, tmp_path, script: str, scenario: str = "seek", wait_s: float = 20.0):
    client = Client("a client", "1", list, (scenario,), wait_s)
    # The driver's arguments follow as $0 to $2.
    return run_scenario(["sh", "-c", script], client, scenario, brokerd, tmp_path)


def test_last_line_of_a_program_is_its_result(brokerd, tmp_path):
    result = _run(brokerd, tmp_path, f"echo noise; {OK}")
    assert (result.ok, result.note, result.key) == (True, "well", "a client 1/seek")


def test_program_receives_broker_scenario_and_topic(brokerd, tmp_path):
    result = _run(brokerd, tmp_path, """echo "{\\"ok\\": true, \\"note\\": \\"$0 $1 $2\\"}" """)
    address, scenario, topic = result.note.split()
    assert (address, scenario) == (brokerd.bootstrap, "seek") and topic.startswith("seek-")


def test_program_with_nonzero_exit_status_has_failed(brokerd, tmp_path):
    assert not _run(brokerd, tmp_path, f"{OK}; exit 1").ok


def test_program_without_a_result_fails_with_its_last_output(brokerd, tmp_path):
    result = _run(brokerd, tmp_path, "echo first >&2; echo last >&2; exit 3")
    assert (result.ok, result.note) == (False, "exit status 3: last")


def test_program_that_does_not_exit_has_failed(brokerd, tmp_path):
    result = _run(brokerd, tmp_path, "exec sleep 60", wait_s=0.2)
    assert (result.ok, result.note) == (False, "no end within 0 s")


def test_program_output_is_stored(brokerd, tmp_path):
    _run(brokerd, tmp_path, f"echo noise; {OK}; echo more >&2")
    assert (tmp_path / "a-client-1-seek.log").read_text().startswith("noise\n{")


def test_a_resume_that_committed_nothing_has_failed(brokerd, tmp_path):
    result = _run(brokerd, tmp_path, OK, "resume")
    assert (result.ok, result.note) == (False, "the group's offset is -1, not 30")


@pytest.mark.parametrize("timestamp, offset", [(-2, flows.RESET_START), (-1, flows.RESET_END)])
def test_the_topic_of_a_reset_has_lost_its_first_records(brokerd, tmp_path, timestamp, offset):
    result = _run(brokerd, tmp_path, """echo "{\\"ok\\": true, \\"note\\": \\"$2\\"}" """, "reset")
    with Connection(brokerd.port) as connection:
        row = ask(connection, raw.LIST_OFFSETS, 6, replica_id=-1, topics=[{
            "name": result.note,
            "partitions": [{"partition_index": 0, "timestamp": timestamp}]}])["topics"][0]
    assert row["partitions"][0]["offset"] == offset


def test_unavailable_client_fails_every_scenario(brokerd, tmp_path):
    def prepare():
        raise ClientMissing("`node` is not on PATH")

    client = Client("a client", "1", prepare, ("codecs", "seek"))
    results = run_client(client, [], brokerd, tmp_path)
    assert [(one.scenario, one.ok, one.note) for one in results] == [
        (scenario, False, "not available: `node` is not on PATH")
        for scenario in ("codecs", "seek")]


def test_records_with_old_timestamps_survive_retention_checks(tmp_path):
    looks = {"log.initial.task.delay.ms": "100", "log.retention.check.interval.ms": "100"}
    batch = raw.batch([raw.record()], base_timestamp=flows.BASE_MS)
    with Brokerd(tmp_path, {**SETTINGS, **looks}) as broker:
        create_topic(broker.port, "kept")
        append(broker.port, "kept", batch)
        # In sequence: retention finds the second topic only after it has checked all topics once.
        for name in ("first", "second"):
            create_topic(broker.port, name, retention_ms=1000)
            append(broker.port, name, batch)
            flows.wait_for("a look", lambda name=name: _read(broker, name) == OFFSET_OUT_OF_RANGE)
        assert _read(broker, "kept") == 0


def _read(broker, name: str) -> int:
    """Return the error code of a fetch from offset 0."""
    with Connection(broker.port) as connection:
        return fetch(connection, name)["error_code"]

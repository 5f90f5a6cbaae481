"""The periodic steps of a broker, without a broker and in a process."""

import asyncio
import shutil
from types import SimpleNamespace

from pylog.broker.upkeep import Upkeep
from tests.fixtures.brokers import Brokerd
from tests.wire import raw
from tests.wire.messages import ask
from tests.wire.raw import Closed, Connection


def upkeep(**parts):
    """Return an upkeep with the given parts; the other parts are not used."""
    names = ("settings", "logs", "grants", "network", "metadata", "membership", "controller",
             "now_ms", "serve_topic", "topic_moved", "refresh_rights", "broken")
    return Upkeep(**{**dict.fromkeys(names), **parts})


def test_leadership_of_failed_disks_is_resigned_until_confirmed():
    failed, requests = [[("a", 0)], [], [("b", 1)], []], []
    logs = SimpleNamespace(
        take_failed=lambda: failed.pop(0), disks=SimpleNamespace(fatal=lambda: None))

    async def leave_offline(offline):
        requests.append(list(offline))
        if len(requests) == 2:
            raise OSError("something else")
        return len(requests) == 3

    async def run_steps():
        steps = upkeep(logs=logs, metadata=SimpleNamespace(fatal=lambda: None),
                       controller=lambda: SimpleNamespace(leave_offline=leave_offline))
        for _ in range(4):
            try:
                await steps.leave_failed_disks()
            except OSError:
                pass

    asyncio.run(run_steps())
    assert requests == [[("a", 0)], [("a", 0)], [("a", 0), ("b", 1)]]


def test_broker_stops_after_its_metadata_log_was_deleted(tmp_path):
    with Brokerd(tmp_path) as broker:
        shutil.rmtree(broker.data_dir / "__cluster_metadata-0")
        try:
            with Connection(broker.port, wait_s=10) as connection:
                code = ask(connection, raw.CREATE_TOPICS, 7, timeout=5000, topics=[
                    {"name": "t", "num_partitions": 1, "replication_factor": 1}])["topics"][0][
                        "error_code"]
        except (Closed, OSError):
            code = "closed"
        assert code != 0
        broker.process.wait(30)
        assert "brokerd stops: the metadata log in" in broker.tail()


def test_recovered_topic_that_cannot_be_served_does_not_affect_others():
    served, removed_grants = [], []

    def serve(name):
        if name == "bad":
            raise RuntimeError("planted")
        served.append(name)

    asyncio.run(upkeep(
        logs=SimpleNamespace(recovering=0, take_recovered=lambda: ["bad", "good"]),
        serve_topic=serve, grants=SimpleNamespace(remove=removed_grants.append)).serve_recovered())
    assert served == ["good"] and removed_grants == ["bad", "good"]

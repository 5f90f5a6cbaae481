"""Two controllers with the same node.id on an external etcd."""

import pytest

from pylog.testing.ports import free_port
from tests.fixtures.brokers import BrokerDied, Brokerd
from tests.fixtures.etcds import Etcds
from tests.tools.support import run


def epoch_of(broker) -> int:
    # start() stores the port of the last listener.
    broker.port = int(broker.overrides["listeners"].partition(",")[0].rpartition(":")[2])
    return run("cluster", "--json", broker=broker).json["quorum"]["epoch"]


def controller(root, endpoints, controller_port) -> Brokerd:
    return Brokerd(root, {
        "node.id": 1, "process.roles": "broker,controller",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "listeners": f"PLAINTEXT://127.0.0.1:{free_port()},"
                     f"CONTROLLER://127.0.0.1:{controller_port}",
        "quorum.etcd.endpoints": endpoints})


@pytest.mark.timeout(180)
def test_the_second_controller_with_a_node_id_refuses_to_start(tmp_path):
    etcds = Etcds(tmp_path, 1)
    try:
        etcds.start()
        first = controller(tmp_path / "first", etcds.addresses[0], free_port())
        second = controller(tmp_path / "second", etcds.addresses[0], free_port())
        with first:
            with pytest.raises(BrokerDied, match="another process uses node.id=1 in this"):
                second.start(60)
            before = epoch_of(first)
            first.kill()
            # Its process is proven dead, so the new one does not wait for its lease.
            first.start()
            assert epoch_of(first) == before + 1
            assert first.stop() == 0
    finally:
        etcds.close()

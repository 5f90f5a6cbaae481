"""A failed start is not an unclean stop: the next start opens the logs as the last stop left them.
"""

import logging
import os
import socket

import pytest

from pylog.testing.ports import free_port
from pylog.testing import Broker, BrokerFailed
from tests.wire import raw, talk


@pytest.fixture
def stopped(tmp_path):
    """A directory with records, after a clean stop; its broker."""
    broker = Broker(tmp_path).start()
    broker.create_topic("t")
    talk.append(broker.port, "t", raw.batch())
    broker.stop()
    return broker


def opened_clean(broker, caplog):
    """Return (partitions that a start opened, number of trusted ones)."""
    caplog.clear()
    with caplog.at_level(logging.INFO, "pylog.log"):
        broker.start()
    try:
        assert talk.append(broker.port, "t", raw.batch()) is not None
    finally:
        broker.stop()
    told, = [record for record in caplog.records if record.msg == "partitions opened"]
    return told.count + told.left, told.clean


def test_used_port_keeps_the_clean_stop_mark(stopped, caplog):
    with socket.create_server(("127.0.0.1", stopped.port)):
        with pytest.raises(BrokerFailed, match=(
                rf"cannot listen.*Stop the process \S+ \(pid {os.getpid()}\), or choose another "
                rf"port with --override listeners=PLAINTEXT://\S*:{stopped.port + 1}")):
            stopped.start()
    assert opened_clean(stopped, caplog) == (1, 1)


def test_a_controller_that_is_not_reached_costs_no_mark(stopped, caplog):
    stopped.settings = {
        "process.roles": "broker", "controller.quorum.voters": f"9@127.0.0.1:{free_port()}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "initial.broker.registration.timeout.ms": "500"}
    for _ in range(2):
        with pytest.raises(BrokerFailed, match="no controller was reached"):
            stopped.start()
    stopped.settings = {}
    assert opened_clean(stopped, caplog) == (1, 1)

"""brokerd's web console: a child process that ends with it."""

import os
import re
import signal
import urllib.request

import psutil
import pytest

from pylog.broker import console_process
from pylog.config import Settings
from pylog.log.errors import StartError
from tests.fixtures.brokers import BrokerDied, Brokerd
from tests.fixtures.waits import until

WAIT_S = 60
ADDRESSES = [("PLAINTEXT", "127.0.0.1", 9092), ("USERS", "10.0.0.1", 9093)]


def urls(broker):
    return re.findall(r"url=(http://\S+)", broker.log.read_text())


def console_of(broker):
    return next((child for child in psutil.Process(broker.pid).children()
                 if "--supervised" in child.cmdline()), None)


@pytest.fixture
def broker(tmp_path):
    with Brokerd(tmp_path, {"console.listener": "127.0.0.1:0"}) as one:
        yield one


def test_the_console_is_restarted_and_ends_with_its_broker(broker):
    url, = until(lambda: urls(broker))
    with urllib.request.urlopen(url, timeout=WAIT_S) as response:
        assert broker.bootstrap in response.read().decode()
    first = console_of(broker)
    os.kill(first.pid, signal.SIGKILL)
    until(lambda: len(urls(broker)) == 2)
    second = console_of(broker)
    assert second.pid != first.pid
    assert broker.stop() == 0
    until(lambda: not second.is_running())


def test_the_console_ends_with_a_broker_that_is_killed(broker):
    until(lambda: urls(broker))
    console = console_of(broker)
    broker.kill()
    until(lambda: not console.is_running())


@pytest.mark.parametrize("settings, message", [
    ({"console.listener": "0.0.0.0:8080"}, "Set console.auth=sasl"),
    ({"console.listener": "nonsense"}, "expected host:port"),
    ({"console.listener": "127.0.0.1:0", "console.bootstrap.listener": "absent"},
     "there is no such listener")])
def test_settings_that_cannot_work_stop_the_start(settings, message):
    with pytest.raises(StartError, match=message):
        console_process.ConsoleProcess(Settings(settings), ADDRESSES)


def test_a_missing_package_stops_the_start_and_names_the_extra(monkeypatch):
    monkeypatch.setattr(console_process, "PACKAGES", ("no_such_package",))
    with pytest.raises(StartError, match=r"pip install 'pylog-broker\[console\]'"):
        console_process.ConsoleProcess(Settings({"console.listener": "127.0.0.1:0"}), ADDRESSES)


def test_a_broker_with_an_open_console_does_not_start(tmp_path):
    with pytest.raises(BrokerDied, match="everyone who reaches this address"):
        Brokerd(tmp_path, {"console.listener": "0.0.0.0:0"}).start()


def test_the_console_gets_its_own_settings_and_the_chosen_listener():
    settings = Settings({
        "console.listener": "0.0.0.0:8080", "console.bootstrap.listener": "users",
        "listeners": "PLAINTEXT://127.0.0.1:9092,USERS://10.0.0.1:9093",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,USERS:SASL_SSL",
        "audit.log.file": "/var/log/audit.log", "metrics.token": "secret"})
    found = console_process.document(settings, ADDRESSES)
    assert found["settings"]["console.audit.file"] == "/var/log/audit.log"
    assert all(name.startswith("console.") for name in found["settings"])
    cluster, = found["clusters"]
    assert cluster["name"] == cluster["settings"]["bootstrap.servers"] == "10.0.0.1:9093"
    assert cluster["settings"]["security.protocol"] == "SASL_SSL"
    assert "secret" not in str(found)


def test_the_cluster_has_the_set_name():
    settings = Settings({"console.listener": "127.0.0.1:0", "console.cluster.name": "orders"})
    cluster, = console_process.document(settings, ADDRESSES)["clusters"]
    assert cluster["name"] == "orders"

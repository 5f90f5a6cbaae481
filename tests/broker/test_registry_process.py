"""brokerd's schema registry: a child process that ends with it."""

import json
import os
import re
import signal
import time
import urllib.request

import psutil
import pytest

from pylog.broker import registry_process
from pylog.config import Settings
from pylog.log.errors import StartError
from tests.fixtures.brokers import Brokerd

WAIT_S = 60
ADDRESSES = [("PLAINTEXT", "127.0.0.1", 9092), ("USERS", "10.0.0.1", 9093)]
LISTENERS = {"listeners": "PLAINTEXT://127.0.0.1:9092,USERS://10.0.0.1:9093",
             "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,USERS:SASL_SSL"}


def until(condition):
    end_s = time.monotonic() + WAIT_S
    while not (found := condition()):
        assert time.monotonic() < end_s
        time.sleep(0.05)
    return found


def urls(broker):
    return re.findall(r"schema registry is ready.*url=(http://\S+)", broker.log.read_text())


def registry_of(broker):
    return next(child for child in psutil.Process(broker.pid).children()
                if "--supervised" in child.cmdline())


def test_the_registry_is_restarted_with_its_schemas_and_ends_with_its_broker(tmp_path):
    with Brokerd(tmp_path, {"schema.registry.listener": "127.0.0.1:0"}) as broker:
        url, = until(lambda: urls(broker))
        with urllib.request.urlopen(urllib.request.Request(
                f"{url}/subjects/a/versions", json.dumps({"schema": '"int"'}).encode(),
                {"Content-Type": "application/json"}), timeout=WAIT_S) as response:
            assert json.load(response) == {"id": 1}
        os.kill(registry_of(broker).pid, signal.SIGKILL)
        until(lambda: len(urls(broker)) == 2)
        with urllib.request.urlopen(f"{urls(broker)[1]}/schemas/ids/1", timeout=WAIT_S) as response:
            assert json.load(response) == {"schema": '"int"'}
        second = registry_of(broker)
        assert broker.stop() == 0
        until(lambda: not second.is_running())


@pytest.mark.parametrize("settings, message", [
    ({}, "expected host:port"),
    ({"schema.registry.bootstrap.listener": "absent"}, "there is no such listener"),
    ({"schema.registry.authentication": "basic"}, "does not use SASL"),
    ({"schema.registry.authorization": "acl"}, "needs users"),
    ({"schema.registry.bootstrap.listener": "users"}, "requires a login"),
    ({"controller.quorum.voters": "1@a:1,2@b:1,3@c:1", "node.id": "1", "listeners":
      "PLAINTEXT://127.0.0.1:9092,C://a:1", "controller.listener.names": "C",
      "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,C:PLAINTEXT"},
     "pylog registry serve")])
def test_settings_that_cannot_work_stop_the_start(settings, message):
    listener = "127.0.0.1:0" if settings else "nonsense"
    with pytest.raises(StartError, match=message):
        registry_process.RegistryProcess(
            Settings({**LISTENERS, "schema.registry.listener": listener, **settings}), ADDRESSES)


def test_a_missing_package_stops_the_start_and_names_the_extra(monkeypatch):
    monkeypatch.setattr(registry_process, "PACKAGES", ("no_such_package",))
    with pytest.raises(StartError, match=r"pip install 'pylog-broker\[registry\]'"):
        registry_process.RegistryProcess(
            Settings({"schema.registry.listener": "127.0.0.1:0"}), ADDRESSES)


def test_the_registry_gets_its_own_settings_and_its_login():
    settings = Settings({
        **LISTENERS, "schema.registry.listener": "127.0.0.1:0", "super.users": "User:root",
        "schema.registry.bootstrap.listener": "users", "audit.log.file": "/var/log/audit.log",
        "schema.registry.sasl.username": "registry", "schema.registry.sasl.password": "word",
        "schema.registry.sasl.mechanism": "SCRAM-SHA-256", "metrics.token": "secret"})
    found = registry_process.document(settings, ADDRESSES)
    assert found["settings"]["schema.registry.audit.file"] == "/var/log/audit.log"
    assert found["settings"]["super.users"] == "User:root"
    client = found["client"]
    assert (client["bootstrap.servers"], client["security.protocol"]) == (
        "10.0.0.1:9093", "SASL_SSL")
    assert (client["sasl.username"], client["sasl.password"], client["sasl.mechanism"]) == (
        "registry", "word", "SCRAM-SHA-256")
    assert "secret" not in str(found)

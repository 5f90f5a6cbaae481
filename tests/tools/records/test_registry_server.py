"""`pylog registry serve`, as a process."""

import json
import re
import signal
import subprocess
import sys
import urllib.request

import pytest

from pylog.testing import Broker

WAIT_S = 60
COMMAND = (sys.executable, "-c", "import sys; from pylog.cli import pylog; sys.exit(pylog())",
           "registry", "serve")


@pytest.fixture(scope="module")
def broker():
    with Broker() as one:
        yield one


def test_the_command_serves_until_it_is_stopped(broker):
    process = subprocess.Popen([*COMMAND, "-b", broker.bootstrap, "-l", "127.0.0.1:0"],
                               stdout=subprocess.PIPE, text=True)
    try:
        url = re.search(r"http://\S+", process.stdout.readline())[0]
        request = urllib.request.Request(
            f"{url}/subjects/a/versions", json.dumps({"schema": '"int"'}).encode(),
            {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=WAIT_S) as response:
            assert json.load(response) == {"id": 1}
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("arguments, message", [
    (["-s", "schema.registry.nonsense=1"], "schema.registry.nonsense"),
    (["-s", "schema.registry.topic=_schemas", "-l", "nonsense"], "expected host:port")])
def test_wrong_settings_end_the_command(broker, arguments, message):
    done = subprocess.run([*COMMAND, "-b", broker.bootstrap, *arguments], capture_output=True,
                          text=True, timeout=WAIT_S)
    assert done.returncode != 0 and message in done.stderr


def test_an_address_in_use_is_reported_with_a_remedy(broker):
    port = broker.bootstrap.rpartition(":")[2]
    done = subprocess.run([*COMMAND, "-b", broker.bootstrap, "-l", f"127.0.0.1:{port}"],
                          capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode != 0
    assert f"Cannot listen on 127.0.0.1:{port}" in done.stderr

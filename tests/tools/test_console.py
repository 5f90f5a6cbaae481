"""`pylog console`: starts a console for one or more clusters."""

import re
import subprocess
import sys
import urllib.request

import pytest

from pylog.testing import Broker
from tests.tools.support import run

COMMAND = [sys.executable, "-c",
           "import sys; from pylog.cli import pylog; sys.exit(pylog(sys.argv[1:]))", "console"]
WAIT_S = 60


@pytest.fixture(scope="module")
def broker():
    with Broker() as one:
        yield one


def started(arguments, environment=None):
    """Start the command; return (process, URL)."""
    import os

    process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, text=True,
                               env={**os.environ, **(environment or {})})
    return process, re.search(r"http://\S+", process.stdout.readline()).group()


def page(url):
    with urllib.request.urlopen(url, timeout=WAIT_S) as response:
        return response.read().decode()


def test_it_serves_the_cluster_of_the_bootstrap_server(broker):
    process, url = started(["-b", broker.bootstrap, "--listener", "127.0.0.1:0"])
    try:
        assert f"Cluster {broker.bootstrap}" in page(url)
    finally:
        process.terminate()
        assert process.wait(WAIT_S) in (0, -15)
        process.stdout.close()


def test_it_serves_the_clusters_of_profiles(broker, tmp_path):
    folder = tmp_path / "pylog"
    folder.mkdir()
    for name in ("east", "west"):
        (folder / f"{name}.properties").write_text(f"bootstrap.servers={broker.bootstrap}\n")
    process, url = started(["--listener", "127.0.0.1:0", "--cluster", "east", "--cluster", "west"],
                           {"XDG_CONFIG_HOME": str(tmp_path)})
    try:
        assert "Cluster west" in page(f"{url}c/west") and "east" in page(f"{url}clusters")
    finally:
        process.terminate()
        process.wait(WAIT_S)
        process.stdout.close()


def test_an_open_console_and_a_wrong_setting_are_refused(broker):
    for more in (["--listener", "0.0.0.0:0"], ["--set", "console.nonsense=1"]):
        assert "console." in run("console", *more, broker=broker, fails=True).err

"""/readyz and /livez of real brokers in each phase, and `pylog health`."""

import asyncio
import json
import logging
import socket
import time
from types import SimpleNamespace

import pytest

from pylog.broker import Broker, listener_probe
from pylog.broker.readiness import RUNNING, STARTING, STOPPING, Readiness
from pylog.client import Admin, ConfigResource, ResourceType
from pylog.config import Settings
from pylog.config.listeners import Listener
from pylog.metadata.quorum.quorum_state import Holder, QuorumLost, View
from pylog.testing.certificates import Authority
from pylog.testing.ports import free_port
from tests.fixtures.brokers import Brokerd
from tests.monitor import scrape
from tests.tools.support import run

BROKER_SETTINGS = {"metrics.listener": "127.0.0.1:0"}


def page(address: str, path: str = "/readyz") -> tuple[int, dict]:
    """Return the status and the content of a page of the endpoint."""
    status, headers, body = scrape.get(address, path)
    assert headers["Content-Type"] == "application/json", body
    return status, json.loads(body)


def states(found: dict) -> dict:
    return {name: one["state"] for name, one in found["components"].items()}


def until_page(address: str, wanted) -> dict:
    """Return the first /readyz that fulfils wanted(status, states). Results are reused briefly."""
    for _ in range(200):
        status, found = page(address)
        if wanted(status, states(found)):
            return found
        time.sleep(0.05)
    raise AssertionError(found)


def test_running_broker_is_alive_and_ready(brokerd):
    address = scrape.address_of(brokerd)
    assert page(address, "/livez") == (200, {"status": "alive", "components": {
        "event_loop": page(address, "/livez")[1]["components"]["event_loop"] | {
            "checked_at_ms": pytest.approx(0, abs=1e15), "took_ms": pytest.approx(0, abs=1e5)}}})
    status, found = page(address)
    assert status == 200 and found["status"] == "ready" and found["age_ms"] < 10_000
    assert states(found) == dict.fromkeys(
        ["event_loop", "lifecycle", "listeners", "recovery", "log_directories", "controller"], "ok")


def test_listener_that_cannot_be_opened_is_named(brokerd):
    address = scrape.address_of(brokerd)
    names = "listener.security.protocol.map"
    with socket.create_server(("127.0.0.1", 0)) as taken, \
            Admin({"bootstrap.servers": brokerd.bootstrap}) as admin:
        node = ConfigResource(ResourceType.BROKER, str(admin.describe_cluster().controller))
        admin.incremental_alter_configs({node: {
            names: "PLAINTEXT:PLAINTEXT,SECOND:PLAINTEXT",
            "listeners": f"PLAINTEXT://127.0.0.1:{brokerd.port},"
                         f"SECOND://127.0.0.1:{taken.getsockname()[1]}"}})
        found = until_page(address, lambda status, seen: status == 503)
        assert states(found)["listeners"] == "failed"
        assert found["components"]["listeners"]["detail"] == "not open: SECOND"
        admin.incremental_alter_configs({node: {"listeners": None, names: None}})
        until_page(address, lambda status, seen: status == 200)
    # The listener's error was expected.
    lines = brokerd.log.read_text().splitlines(keepends=True)
    brokerd.log.write_text("".join(line for line in lines if "cannot listen" not in line))


def test_broker_that_waits_for_its_controllers_is_alive_and_not_ready(tmp_path):
    port = free_port()
    broker = Brokerd(tmp_path, {
        "metrics.listener": f"127.0.0.1:{port}", "node.id": 2, "process.roles": "broker",
        "controller.quorum.voters": f"1@127.0.0.1:{free_port()}",
        "controller.listener.names": "CONTROLLER"})
    broker.spawn()
    try:
        address = scrape.address_of(broker)
        assert page(address, "/livez")[0] == 200
        status, found = page(address)
        assert status == 503 and found["components"]["lifecycle"]["detail"] == "starting"
        assert {name for name, state in states(found).items() if state == "unknown"} == {
            "recovery", "log_directories", "controller", "registration"}
        assert states(found)["listeners"] == "failed"
        status, _, body = scrape.get(address, "/metrics")
        assert status == 503 and b"starting" in body
        ended = run("health", "--url", f"http://127.0.0.1:{port}", fails=True)
        assert "not ready: lifecycle, listeners" in ended.err
        assert run("health", "--live", "--url", f"127.0.0.1:{port}").code == 0
    finally:
        broker.kill()


def test_broker_that_shuts_down_is_alive_and_not_ready(tmp_path):
    async def scenario():
        broker = Broker(Settings.load(None, [
            f"log.dirs={tmp_path}", "listeners=PLAINTEXT://127.0.0.1:0",
            "metrics.listener=127.0.0.1:0"]))
        await broker.begin()
        address = "{}:{}".format(*broker.monitor.address)
        assert (await asyncio.to_thread(page, address))[0] == 200
        reached, release, stop = asyncio.Event(), asyncio.Event(), broker.groups.stop

        async def slow_stop():
            reached.set()
            await release.wait()
            await stop()

        broker.groups.stop = slow_stop
        ending = asyncio.ensure_future(broker.end())
        await reached.wait()
        await asyncio.sleep(1.0)  # An older result is reused for a second.
        seen = await asyncio.to_thread(page, address)
        alive = await asyncio.to_thread(page, address, "/livez")
        metrics = await asyncio.to_thread(scrape.get, address, "/metrics")
        release.set()
        await ending
        return seen, alive, metrics

    (status, found), (alive, _), metrics = asyncio.run(scenario())
    assert status == 503 and found["components"]["lifecycle"]["detail"] == "stopping"
    assert states(found)["controller"] == "unknown" and states(found)["listeners"] == "failed"
    assert alive == 200 and metrics[0] == 503


def readiness(folder, phase: str = RUNNING, recovering: int = 0, is_online=lambda number: True,
              problem: str | None = None) -> dict:
    """Return the results of the checks of a broker. folder: with the log directories."""
    paths = [folder / "one", folder / "two"]
    class Roles(dict):
        is_member = False

    made = Readiness(
        Roles({"process.roles": ("broker", "controller")}),
        SimpleNamespace(fatal=lambda: problem),
        SimpleNamespace(recovering=recovering, disks=SimpleNamespace(
            paths=list(map(str, paths)), online=is_online)),
        SimpleNamespace(bound_ports=list), lambda: None)
    made.phase = phase

    async def results():
        return {name: await check.run() for name, check in made.checks().items()}

    return asyncio.run(results())


@pytest.fixture
def folder(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / ".lock").touch()
    return tmp_path


def test_recovery_failed_directory_and_offline_metadata_log_are_not_ready(folder):
    assert all(result.state == "ok" for result in readiness(folder).values())
    found = readiness(folder, recovering=3, is_online=lambda number: number == 0,
                      problem="the metadata log is offline")
    assert found["recovery"] == ("failed", "3 partitions left")
    assert found["log_directories"] == ("failed", f"offline: {folder}/two")
    assert found["controller"] == ("failed", "the metadata log is offline")


def test_deleted_log_directory_is_not_ready_before_a_write_fails(folder):
    (folder / "two" / ".lock").unlink()
    assert readiness(folder)["log_directories"] \
        == ("failed", f"{folder}/two/.lock: No such file or directory")


@pytest.mark.parametrize("phase", [STARTING, STOPPING])
def test_component_that_cannot_be_checked_in_this_phase_is_unknown(folder, phase):
    found = readiness(folder, phase)
    assert found["lifecycle"] == ("failed", phase) and found["controller"].state == "unknown"
    assert (found["recovery"].state == "unknown") is (phase == STARTING)


def test_controller_on_standby_is_ready_if_the_active_one_accepts_connections():
    class Roles(dict):
        is_member = True

    def results(view, controller=None) -> dict:
        def look():
            if isinstance(view, Exception):
                raise view
            return view

        metadata = SimpleNamespace(controller=controller, credentials=None,
                                   quorum=SimpleNamespace(read_view=look))
        made = Readiness(Roles({"process.roles": ("controller",)}), metadata, None, None, None)
        made.phase = RUNNING

        async def run() -> dict:
            checks = made.checks()
            return {name: await checks[name].run() for name in ("controller", "quorum")}

        return asyncio.run(run())

    with socket.create_server(("127.0.0.1", 0)) as listening:
        active = View(7, 9, Holder(2, 7, *listening.getsockname()))
        assert [row.state for row in results(active).values()] == ["ok", "ok"]
    found = results(active)
    assert found["controller"].state == "failed" and "refused" in found["controller"].detail
    found = results(View(8, 9, None))
    assert [row.state for row in found.values()] == ["failed", "failed"]
    found = results(QuorumLost("no etcd answers"))
    assert [row.state for row in found.values()] == ["unknown", "failed"]
    assert results(QuorumLost("x"), object())["quorum"].state == "failed"


def test_health_command_reports_components_and_fails_without_a_broker(brokerd):
    address = scrape.address_of(brokerd)
    until_page(address, lambda status, seen: status == 200)
    ended = run("health", "--url", f"http://{address}")
    assert "ok       controller" in ended.out
    assert run("health", "--json", "--url", address).json["status"] == "ready"
    ended = run("health", "--url", f"http://127.0.0.1:{free_port()}", fails=True)
    assert "does not respond" in ended.err and ended.code == 1
    for url in ("ftp://x:1", "http://", "http://x:port"):
        assert run("health", "--url", url, fails=True).code == 2
    assert run("health", "--insecure", "--url", "https://10.0.0.1:1", fails=True).code == 2


def tls_broker(folder) -> Broker:
    """Return a broker with a plain listener, one with TLS and one that requires certificates."""
    authority = Authority()
    own = authority.issue()
    settings = {
        "log.dirs": str(folder), "metrics.listener": "127.0.0.1:0",
        "listeners": "PLAINTEXT://127.0.0.1:0,SECURE://:0,MUTUAL://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,SECURE:SSL,MUTUAL:SSL",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256", "inter.broker.listener.name": "SECURE",
        "listener.name.mutual.ssl.client.auth": "required",
        "ssl.keystore.type": "PEM", "ssl.keystore.key": own.key.decode(),
        "ssl.keystore.certificate.chain": own.chain.decode(),
        "ssl.truststore.type": "PEM", "ssl.truststore.certificates": authority.pem.decode()}
    return Broker(Settings.load(None, [f"{name}={value}" for name, value in settings.items()]))


def test_listeners_with_logins_and_tls_respond_without_failures(tmp_path, caplog):
    async def scenario():
        broker = tls_broker(tmp_path)
        await broker.begin()
        try:
            address = "{}:{}".format(*broker.monitor.address)
            found = await asyncio.to_thread(page, address)
            return found, broker.network.reactors.stats()["handshakes_failed"]
        finally:
            await broker.end()

    (status, found), failures = asyncio.run(scenario())
    assert (status, failures) == (200, 0), found
    assert found["components"]["listeners"]["detail"] == "respond: PLAINTEXT, SECURE, MUTUAL"
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR]


@pytest.mark.parametrize("reply, fault", [
    (None, "no response within 0.2 s"), (b"", "it closed the connection"),
    (b"\0\0\0\4\0\0\0\7", "it sent another response"), (b"\0\0\0\4\0\0\0\1", None)])
def test_listener_that_accepts_and_does_not_serve_is_not_ready(monkeypatch, reply, fault):
    monkeypatch.setattr(listener_probe, "PROBE_S", 0.2 if reply is None else 30.0)
    ending = asyncio.Event()

    async def serve(reader, writer):
        await reader.readexactly(8)
        if reply is None:
            await ending.wait()
        writer.write(reply or b"")
        writer.close()

    async def scenario():
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        try:
            return await listener_probe.fault(
                {}, Listener("PLAINTEXT", "0.0.0.0", port, "PLAINTEXT"), port)
        finally:
            ending.set()
            server.close()

    assert asyncio.run(scenario()) == fault


def test_listener_without_a_process_is_not_ready():
    async def scenario():
        port = free_port()
        return await listener_probe.fault(
            {}, Listener("PLAINTEXT", "127.0.0.1", port, "PLAINTEXT"), port)

    assert asyncio.run(scenario()) == "Connection refused"

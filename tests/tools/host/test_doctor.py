"""The doctor reports problems with a solution."""

import asyncio
import datetime
import os
from types import SimpleNamespace

import pytest

from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode
from pylog.testing import Broker
from pylog.testing.certificates import write
from pylog.tools.host import host_checks
from pylog.tools.cluster import cluster_checks
from pylog.testing.ports import free_port
from tests.fixtures.brokers import Brokerd
from tests.tools.support import run


def test_a_sound_cluster_has_no_failures(brokerd):
    told = run("doctor", "--json", broker=brokerd).json
    by_check = {}
    for row in told["findings"]:
        by_check.setdefault(row["check"], []).append(row)
        assert row["status"] in ("ok", "warn", "fail", "skip")
        assert row["advice"] or row["status"] in ("ok", "skip"), row
    assert told["fail"] == 0
    assert {"open files", "clock", "listener", "controller", "flush", "free space",
            "TLS"} <= set(by_check)
    assert by_check["listener"][0]["status"] == "ok"
    # It checked the broker's own directory, because it is on this machine.
    assert str(brokerd.data_dir) in [row["subject"] for row in by_check["free space"]]


def test_unreachable_advertised_address_is_reported(tmp_path):
    port = free_port()
    with Brokerd(tmp_path, {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}"}) as broker:
        ended = run("doctor", "--json", broker=broker, fails=True)
    row = next(row for row in ended.json["findings"] if row["check"] == "listener")
    assert row["status"] == "fail" and f":{port}" in row["subject"]
    assert "advertised.listeners" in row["advice"]


def test_a_name_that_does_not_resolve_is_found(tmp_path):
    settings = {"advertised.listeners": "PLAINTEXT://nowhere.invalid:9092"}
    with Brokerd(tmp_path, settings) as broker:
        ended = run("doctor", broker=broker, fails=True)
    assert "the name does not resolve" in ended.out


def test_a_broker_that_is_down_is_a_failure_with_advice():
    ended = run("doctor", "-b", "127.0.0.1:1", fails=True)
    assert "FAIL  bootstrap" in ended.out and "-> start the broker" in ended.out
    assert run("doctor", "--local", "--json").json["fail"] == 0


@pytest.mark.parametrize(("name", "hinted"), [
    ("OpenSSL 3.0.19 27 Jan 2026", True), ("OpenSSL 3.5.8 25 Aug 2026", False),
    ("OpenSSL 4.0.0", False)])
def test_tls_library_is_shown_with_a_faster_alternative(monkeypatch, name, hinted):
    monkeypatch.setattr(host_checks, "library", lambda: name)
    [found] = host_checks.encryption()
    assert found.status == "ok" and found.detail.startswith(name)
    assert ("3.5 and later" in found.detail) == hinted


@pytest.mark.parametrize(("ends", "status", "words"), [
    ("2026-03-31", "ok", "30 days"), ("2026-03-30", "warn", "29 days"),
    ("2026-02-27", "warn", "-2 days"), ("", "skip", "does not show")])
def test_soon_expiring_certificate_is_reported(ends, status, words):
    found = cluster_checks.certificate("broker 1", ends, datetime.date(2026, 3, 1))
    assert found.status == status and words in found.detail
    assert bool(found.advice) == (status == "warn")


def test_certificate_of_each_broker_is_checked(tmp_path):
    with Broker(tls=True) as broker:
        trusted = write(tmp_path, "ca.pem", broker.authority.pem)
        told = run("-X", "security.protocol=SSL", "-X", "ssl.truststore.type=PEM",
                   "-X", f"ssl.truststore.location={trusted}", "-b", broker.bootstrap, "doctor",
                   "--json").json["findings"]
    [row] = [row for row in told if row["check"] == "certificate"]
    assert "good until 20" in row["detail"]


@pytest.mark.parametrize(("free", "status"), [(0.5, "ok"), (0.1, "warn"), (0.01, "fail")])
def test_free_space_is_judged(monkeypatch, free, status):
    blocks = 1 << 20
    space = SimpleNamespace(f_bavail=int(free * blocks), f_blocks=blocks, f_frsize=1 << 16,
                            f_files=100, f_favail=90)
    monkeypatch.setattr(os, "statvfs", lambda path: space)
    rows = {row.check: row for row in host_checks.disk("/")}
    assert rows["free space"].status == status and rows["inodes"].status == "ok"


@pytest.mark.parametrize(("line", "status", "words"), [
    ("server:/x /data nfs4 rw 0 0", "warn", "over the network"),
    ("tmpfs /data tmpfs rw 0 0", "warn", "in memory"),
    ("/dev/a /data ext4 ro,relatime 0 0", "fail", "read-only"),
    ("/dev/a /data xfs rw,noatime 0 0", "ok", "xfs"),
])
def test_file_systems_are_judged(monkeypatch, line, status, words):
    mounts = f"/dev/root / ext4 rw,relatime 0 0\n{line}"
    monkeypatch.setattr(host_checks, "_text", lambda path: mounts)
    found = host_checks._file_system("/data/kafka", *host_checks.mount_of("/data/kafka"))
    assert found.status == status and words in found.detail


@pytest.mark.parametrize(("files", "check", "status"), [
    ({"/proc/sys/vm/swappiness": "60", "/proc/meminfo": "SwapTotal: 1024 kB"}, "swappiness",
     "warn"),
    ({"/proc/sys/vm/swappiness": "1", "/proc/meminfo": "SwapTotal: 1024 kB"}, "swappiness", "ok"),
    ({"/sys/kernel/mm/transparent_hugepage/enabled": "[always] madvise never"}, "huge pages",
     "warn"),
    ({}, "huge pages", "skip"),
])
def test_memory_settings_are_judged(monkeypatch, files, check, status):
    monkeypatch.setattr(host_checks, "_text", files.get)
    assert {row.check: row for row in host_checks.memory()}[check].status == status


@pytest.mark.parametrize(("listeners", "status"), [
    ("PLAINTEXT://127.0.0.1:0", "ok"), ("OUT://:0,PLAINTEXT://127.0.0.1:0", "ok"),
    ("PLAINTEXT://:0", "warn")])
def test_listener_without_authentication_is_reported(tmp_path, listeners, status):
    settings = {"listeners": listeners, "sasl.enabled.mechanisms": "SCRAM-SHA-256",
                "inter.broker.listener.name": "PLAINTEXT", "listener.security.protocol.map": (
                    "PLAINTEXT:PLAINTEXT,OUT:SASL_PLAINTEXT")}
    with Brokerd(tmp_path, settings) as broker:
        told = run("doctor", "--json", broker=broker).json["findings"]
    assert [row["status"] for row in told if row["check"] == "open listeners"] == [status]


@pytest.mark.parametrize(("settings", "status", "words"), [
    ({}, "ok", "flushed on every in-sync replica"),
    ({"replica.flush.before.fetch.enable": "false"}, "warn", "in the page cache of every in-sync"),
    ({"log.flush.acks.all.enable": "false"}, "warn", "in the page cache of the broker")])
def test_the_meaning_of_an_acknowledgement_is_reported(tmp_path, settings, status, words):
    with Brokerd(tmp_path, settings) as broker:
        reported = run("doctor", "--json", broker=broker).json["findings"]
    row, = (row for row in reported if row["check"] == "acknowledgements")
    assert row["status"] == status and words in row["detail"]


@pytest.mark.parametrize(("code", "statuses", "words"), [
    (ErrorCode.INVALID_REQUEST, ["fail"], "another broker responds there"),
    (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ["ok", "skip"], "CLUSTER_AUTHORIZATION_FAILED")])
def test_broker_that_hides_its_settings_is_not_treated_as_another_broker(code, statuses, words):
    new = messages.DescribeConfigsResponse

    async def send(request):
        return new(results=[new.DescribeConfigsResult(error_code=code, error_message=None)])

    found = asyncio.run(cluster_checks._settings(
        SimpleNamespace(send=send), SimpleNamespace(id=1), "broker 1", 0.01))
    assert [row.status for row in found] == statuses and words in found[-1].detail

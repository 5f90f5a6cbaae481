"""`pylog support-bundle`: what it contains, what it never contains, and how it is written."""

import base64
import json
import os
import stat
import tarfile

import pytest

from pylog.client import Admin, ConfigResource, ResourceType
from tests.fixtures.brokers import Brokerd
from tests.monitor import scrape
from tests.tools.support import run

# Every planted secret has a word that nothing else contains.
SECRETS = {
    "override": "planted-0verride-a", "file": "planted-pr0perties b", "jaas": "planted-jaas-c",
    "unknown": "planted-unknown-d", "url": "planted-url-e", "token": "planted-t0ken-f",
    "scram": "planted-scram-g", "client": "planted-client-h", "log": "planted-l0g-i",
    "dynamic": "planted-dynamic-j", "bearer": "plantedbearerk0123456789",
    "environment": "planted-env-l", "key": "plantedkeym0123456789abcdefgh"}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """Return (the broker, the path of a bundle, the command's output) after planting secrets."""
    root = tmp_path_factory.mktemp("support")
    properties = root / "server.properties"
    key = f"-----BEGIN PRIVATE KEY-----\\n{SECRETS['key']}\\n-----END PRIVATE KEY-----"
    properties.write_text(
        f"ssl.key.password={SECRETS['file']}\n"
        "listener.name.sasl_plaintext.plain.sasl.jaas.config=org.apache.kafka.common.security."
        f"plain.PlainLoginModule required username=\"u\" user_u=\"{SECRETS['jaas']}\";\n"
        f"ssl.keystore.key={key}\n"
        f"metrics.token={SECRETS['token']}\nmetrics.listener=127.0.0.1:0\n"
        f"broker.rack=http://user:{SECRETS['url']}@rack\n")
    # Not of the broker, which refuses unknown settings.
    other = root / "other.properties"
    other.write_text(f"my.plugin.setting={SECRETS['unknown']}\n")
    client = root / "client.properties"
    client.write_text(f"sasl.username=u\nsasl.password={SECRETS['client']}\n")
    broker = Brokerd(root / "broker", {"password.encoder.secret": SECRETS["override"]})
    broker.arguments = [str(properties), "--add-scram",
                        f"SCRAM-SHA-256=[name=alice,password={SECRETS['scram']}]"]
    broker.start()
    try:
        with Admin({"bootstrap.servers": broker.bootstrap}) as admin:
            node = ConfigResource(ResourceType.BROKER, str(admin.describe_cluster().controller))
            admin.incremental_alter_configs({node: {
                "listener.name.internal.ssl.key.password": SECRETS["dynamic"]}})
        with open(broker.log, "a") as log:
            log.write(f"level=info msg=\"login failed\" password={SECRETS['log']} and more\n"
                      f"level=info msg=\"Authorization: Bearer {SECRETS['bearer']}\"\n"
                      f"level=warning msg=\"cannot reach http://u:{SECRETS['url']}@h:1/x\"\n"
                      f"level=info msg=\"plain {SECRETS['override']} in a sentence\"\n"
                      f"level=info msg=\"env {SECRETS['environment']} in a sentence\"\n"
                      f"level=info b64={base64.b64encode(SECRETS['file'].encode()).decode()}\n")
        path = root / "bundle.tar.gz"
        os.environ["MY_SERVICE_PASSWORD"] = SECRETS["environment"]
        try:
            ended = run("support-bundle", "--output", path, "--log", broker.log, "--properties",
                        properties, "--properties", other, "--token", SECRETS["token"], "-c",
                        client, "--metrics", scrape.address_of(broker),
                        "-X", "security.protocol=PLAINTEXT", broker=broker)
        finally:
            del os.environ["MY_SERVICE_PASSWORD"]
        yield broker, path, ended
    finally:
        broker.kill()


def members(path) -> dict:
    with tarfile.open(path) as archive:
        return {one.name.removeprefix("pylog-support/"): archive.extractfile(one).read()
                for one in archive}


def test_no_planted_secret_is_in_the_archive_or_the_output(bundle):
    _, path, ended = bundle
    found = members(path)
    everything = b"\n".join([*found.values(), "\n".join(found).encode(),
                             ended.out.encode(), ended.err.encode()])
    for name, secret in SECRETS.items():
        for form in (secret, secret.split(" ")[0], base64.b64encode(secret.encode()).decode()):
            assert form.encode() not in everything, name
    assert b"planted" not in everything


def test_archive_has_every_part_and_lists_it(bundle):
    broker, path, ended = bundle
    found = members(path)
    pages = {f"brokers/1/{name}" for name in (
        "settings.json", "metrics.txt", "readyz.json", "livez.json", "cluster.json",
        "threads.json", "groups.json")}
    process = f"processes/{broker.pid}"
    assert found.keys() >= pages | {
        "versions.txt", "machine.txt", "manifest.json", "commands/doctor.json",
        "commands/cluster.json", "commands/partitions.json", "commands/groups.json",
        "settings/1-server.properties", "logs/1-brokerd.log", f"{process}/process.txt",
        f"{process}/threads.txt", f"{process}/directory-1.txt"}
    settings = {row["name"]: row["setting"] for row in json.loads(found["brokers/1/settings.json"])}
    assert settings["log.dirs"] == str(broker.data_dir)
    assert b"pylog_build_info" in found["brokers/1/metrics.txt"]
    assert json.loads(found["brokers/1/readyz.json"])["status"] == "ready"
    threads = json.loads(found["brokers/1/threads.json"])
    assert threads["gc"]["generations"] and threads["tasks_count"] > 0
    assert any("_run_once" in line for one in threads["threads"] for line in one["stack"])
    assert b"reactor-0" in found[f"{process}/threads.txt"]
    assert b"my.plugin.setting=[hidden]" in found["settings/2-other.properties"]
    assert b"login failed" in found["logs/1-brokerd.log"]
    manifest = json.loads(found["manifest.json"])
    assert {row["name"] for row in manifest["files"]} == found.keys() - {"manifest.json"}
    for name in found:
        assert name in ended.out
    assert "secrets hidden" in ended.out


def test_archive_is_private_and_never_replaces_a_file(bundle):
    broker, path, _ = bundle
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_bytes()
    ended = run("support-bundle", "--output", path, broker=broker, fails=True)
    assert "exists" in ended.err and path.read_bytes() == before
    link = path.with_name("link.tar.gz")
    link.symlink_to(path.with_name("nowhere"))
    run("support-bundle", "--output", link, broker=broker, fails=True)
    assert not path.with_name("nowhere").exists()


def test_bundle_without_a_broker_names_what_it_lacks(tmp_path):
    path = tmp_path / "alone.tar.gz"
    ended = run("support-bundle", "--output", path, "-b", "127.0.0.1:1", "--timeout", "1", "--json")
    assert "brokers" in {row["name"] for row in ended.json["missing"]}
    assert "versions.txt" in members(path)


def test_long_logs_keep_their_end_and_the_archive_its_limit(tmp_path, monkeypatch):
    from pylog.tools import support_bundle

    monkeypatch.setattr(support_bundle, "MEMBER_BYTES_MAX", 10_000)
    monkeypatch.setattr(support_bundle, "TOTAL_BYTES_MAX", 60_000)
    log = tmp_path / "brokerd.log"
    log.write_text("".join(f"level=info msg=line number={number}\n" for number in range(5000)))
    path = tmp_path / "long.tar.gz"
    ended = run("support-bundle", "--output", path, "--log", log, "-b", "127.0.0.1:1",
                "--timeout", "1", "--json")
    found = members(path)
    assert sum(map(len, found.values())) < 120_000
    if "logs/1-brokerd.log" in found:
        assert found["logs/1-brokerd.log"].endswith(b"number=4999\n")
        assert len(found["logs/1-brokerd.log"]) <= 10_000
    else:
        assert "logs/1-brokerd.log" in {row["name"] for row in ended.json["missing"]}

"""`pylog users`: SCRAM passwords are set, used and removed."""

import io

import pytest

from pylog.client import Admin, errors
from pylog.client.admin.types import ScramDeletion, ScramUpsertion
from pylog.testing.ports import free_port
from tests.tools.support import run
from tests.wire.talk import unique


@pytest.fixture(scope="module")
def ports():
    return free_port(), free_port()


@pytest.fixture(scope="module")
def broker(ports):
    from pylog.testing import Broker

    with Broker(settings={
            "listeners": f"PLAINTEXT://127.0.0.1:{ports[0]},SASL_PLAINTEXT://127.0.0.1:{ports[1]}",
            "connection.failed.authentication.delay.ms": "10",
            "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512"}) as running:
        yield running


@pytest.fixture
def typed(monkeypatch):
    """Return a function that sets standard input."""
    return lambda text: monkeypatch.setattr("sys.stdin", io.StringIO(text))


def listed(broker, *names):
    return [(row["user"], row["mechanism"]) for row in run(
        "users", "list", *names, "--json", broker=broker).json]


def test_password_authenticates_until_it_is_removed(broker, ports, typed):
    name = unique("user")
    typed("s3cret\n")
    said = run("users", "set", name, broker=broker)
    assert "s3cret" not in said.out + said.err
    assert listed(broker, name) == [(name, "SCRAM-SHA-256"), (name, "SCRAM-SHA-512")]
    login = {"bootstrap.servers": f"127.0.0.1:{ports[1]}", "security.protocol": "SASL_PLAINTEXT",
             "sasl.username": name, "sasl.password": "s3cret"}
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        with Admin({**login, "sasl.mechanism": mechanism}) as admin:
            assert admin.describe_cluster().cluster_id
    run("users", "remove", name, "--yes", broker=broker)
    assert listed(broker) == []
    with pytest.raises(errors.AuthenticationError):
        with Admin({**login, "sasl.mechanism": "SCRAM-SHA-512"}) as admin:
            admin.describe_cluster()


def test_password_is_read_from_a_file(broker, tmp_path):
    name, file = unique("user"), tmp_path / "password"
    file.write_text("from a file\nand more\n")
    run("users", "set", name, "--mechanism", "scram-sha-256", "--iterations", 8192,
        "--password-file", file, broker=broker)
    assert listed(broker, name) == [(name, "SCRAM-SHA-256")]
    run("users", "remove", name, "--yes", broker=broker)


def test_a_password_file_that_is_no_text_is_named(broker, tmp_path):
    file = tmp_path / "password"
    file.write_bytes(b"caf\xe9\n")
    ended = run("users", "set", unique("user"), "--password-file", file, broker=broker, fails=True)
    assert ended.err == f"pylog: {file}: not UTF-8 text\n" and ended.code == 1


def test_impossible_change_is_reported_in_one_line(broker, typed):
    typed("\n")
    assert "empty" in run("users", "set", "somebody", broker=broker, fails=True).err
    assert "nobody" in run("users", "list", "nobody", broker=broker, fails=True).err
    run("users", "remove", "nobody", "--yes", broker=broker, fails=True)
    run("users", "set", "somebody", "--iterations", 5, broker=broker, fails=True)


def test_the_admin_client_has_kafkas_calls(broker):
    name = unique("user")
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.alter_user_scram_credentials([ScramUpsertion(name, "secret", "SCRAM-SHA-256", 5000)])
        (info,) = admin.describe_user_scram_credentials([name])[name]
        assert info == ("SCRAM-SHA-256", 5000)
        with pytest.raises(errors.KafkaError):
            admin.alter_user_scram_credentials([ScramDeletion(name, "SCRAM-SHA-512")])
        admin.alter_user_scram_credentials([ScramDeletion(name, "SCRAM-SHA-256")])
        assert name not in admin.describe_user_scram_credentials()
    assert "secret" not in repr(ScramUpsertion(name, "secret"))

"""Connections to the controllers' etcd: TLS by the controllers' settings, and logins."""

import os
import stat

import pytest

from pylog.config import ConfigError, Settings
from pylog.metadata.quorum import etcd_tls
from pylog.metadata.quorum.etcd import Etcd
from pylog.metadata.quorum.etcd_process import Host, arguments
from pylog.metadata.quorum.key_value import Get, KeysError, Put
from pylog.testing.certificates import Authority, write
from tests.fixtures.etcds import Etcds

CA = Authority()
OWN = CA.issue("h1", ["h1"])
PASSWORD = "s3cret"


def settings(root, protocol: str = "SSL", own: bytes = OWN.chain + OWN.key, **more) -> Settings:
    """Return settings of one of three controllers."""
    return Settings({
        "node.id": "1", "process.roles": "controller", "log.dirs": str(root / "data"),
        "controller.quorum.voters": "1@h1:9093,2@h2:9093,3@h3:9093",
        "controller.listener.names": "CONTROLLER", "listeners": "CONTROLLER://:0",
        "listener.security.protocol.map": f"CONTROLLER:{protocol}",
        "listener.name.controller.ssl.keystore.type": "PEM",
        "listener.name.controller.ssl.keystore.location": write(root, "own.pem", own),
        "listener.name.controller.ssl.truststore.type": "PEM",
        "listener.name.controller.ssl.truststore.location": write(root, "ca.pem", CA.pem),
        **{name.replace("_", "."): text for name, text in more.items()}})


@pytest.mark.parametrize("protocol,more,secured", [
    ("SSL", {}, True), ("SASL_SSL", {}, True), ("SASL_PLAINTEXT", {}, False),
    ("PLAINTEXT", {}, False), ("SSL", {"quorum_etcd_security_protocol": "PLAINTEXT"}, False),
    ("PLAINTEXT", {"quorum_etcd_security_protocol": "SSL"}, True),
    ("SSL", {"quorum_etcd_endpoints": "e:2379"}, False),
    ("SSL", {"quorum_etcd_endpoints": "e:2379", "quorum_etcd_security_protocol": "SSL"}, True)])
def test_etcd_uses_the_controllers_security_by_default(
        tmp_path, protocol, more, secured):
    made = settings(tmp_path, protocol, **more)
    assert etcd_tls.is_secured(made) == secured
    assert (etcd_tls.context(made) is not None) == secured


def test_etcd_files_are_private_and_client_certificates_required(tmp_path):
    files = etcd_tls.write_files(settings(tmp_path))
    for path, content in zip(files, (OWN.chain, OWN.key, CA.pem), strict=True):
        with open(path, "rb") as file:
            assert b"".join(content.split()) in b"".join(file.read().split())
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    words = arguments("data", 1, [Host(1, "h1", 1, 2)], "token", files=files)
    for prefix in ("", "peer-"):
        assert {f"--{prefix}cert-file={files.own}", f"--{prefix}key-file={files.key}",
                f"--{prefix}trusted-ca-file={files.trusted}",
                f"--{prefix}client-cert-auth"} <= set(words)
    assert "--initial-cluster=node-1=https://h1:2" in words
    assert "--listen-client-urls=https://0.0.0.0:1" in words


@pytest.mark.parametrize("more,words", [
    ({"own": OWN.chain + OWN.locked_key("x"),
      "listener_name_controller_ssl_key_password": "x"}, "an encrypted private key"),
    ({"listener_name_controller_ssl_truststore_location": ""}, "needs listener.name.controller.ssl")
])
def test_unusable_etcd_certificates_are_rejected_at_the_start(tmp_path, more, words):
    with pytest.raises(ConfigError, match=words):
        etcd_tls.write_files(settings(tmp_path, **more))


def test_certificates_that_are_renewed_reach_etcd_and_connections_to_it(tmp_path):
    made = settings(tmp_path)
    etcd_tls.write_files(made)
    client = Etcd(["h1:1"], ssl_context=etcd_tls.context(made))
    renewal, before = etcd_tls.Renewal(made, client, True), client.ssl_context
    renewal.check()
    assert client.ssl_context is before
    other = CA.issue("h1", ["h1"])
    write(tmp_path, "own.pem", b"none")
    renewal.check()
    assert client.ssl_context is before
    write(tmp_path, "own.pem", other.chain + other.key)
    renewal.check()
    assert client.ssl_context is not before
    written = (tmp_path / "data" / etcd_tls.DIRECTORY / etcd_tls.KEY).read_bytes()
    assert b"".join(other.key.split()) in b"".join(written.split())


@pytest.fixture
def guarded(tmp_path):
    """The address of an etcd that requires a login."""
    made = Etcds(tmp_path, 1).start()
    try:
        root = Etcd(made.addresses, timeout_s=10)
        for method, body in (
                ("auth/user/add", {"name": "root", "password": PASSWORD}),
                ("auth/role/add", {"name": "root"}),
                ("auth/user/grant", {"user": "root", "role": "root"}), ("auth/enable", {})):
            root.change(method, body)
        root.close()
        yield made.addresses
    finally:
        made.close()


def test_etcd_login_is_sent_and_renewed_when_expired(guarded):
    client = Etcd(guarded, timeout_s=10, login=("root", PASSWORD))
    assert client.transact([], [Put("/k", b"v", 0)]).succeeded
    # As after a restart of the member.
    client._token = "gone.1"
    assert [row.value for row in client.read_keys([Get("/k")])[0]] == [b"v"]
    client.close()
    with pytest.raises(KeysError, match="the login of root") as caught:
        Etcd(guarded, timeout_s=10, login=("root", "other")).read_keys([Get("/k")])
    assert "other" not in str(caught.value)
    with pytest.raises(KeysError):
        Etcd(guarded, timeout_s=10).read_keys([Get("/k")])

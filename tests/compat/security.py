"""A broker with authentication, and the methods by which the table's clients authenticate.

Owns: the broker, the files of its certificate authority and of its clients.
Invariants: every method uses TLS 1.2 or 1.3, as the client chooses.

A program receives COMPAT_SECURITY, JSON: `trusted` (a PEM file), `certificate` and `key` (PEM
files) for mutual TLS, the SASL `mechanism`, `user` and `password` or `token`; and
COMPAT_PROPERTIES, a file with the same settings for the Java client.
"""

import json
from contextlib import contextmanager
from pathlib import Path

from pylog.client import Admin
from pylog.client.admin.types import ScramUpsertion
from pylog.testing.certificates import Authority, write
from pylog.testing.ports import free_port
from tests.fixtures.brokers import Brokerd
from tests.security.issuer import Issuer

USER, PASSWORD = "alice", "p=ss,w rd"
STORE_PASSWORD = "of the store"
MECHANISMS = {"plain": "PLAIN", "scram-256": "SCRAM-SHA-256", "scram-512": "SCRAM-SHA-512",
              "oauthbearer": "OAUTHBEARER"}
WAYS = ("tls", "mutual", *MECHANISMS)
LISTENERS = {"tls": "TLS", "mutual": "MUTUAL", **dict.fromkeys(MECHANISMS, "LOGIN")}
MODULES = "org.apache.kafka.common.security"


class Secured:
    """A running broker, and the settings for each method."""

    def __init__(self, root: Path, settings: dict):
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        authority = Authority("compat")
        own = authority.issue(USER, ())
        server = authority.issue()
        self._issuer = Issuer()
        self._paths = {
            "trusted": write(root, "trusted.pem", authority.pem),
            "certificate": write(root, "own.pem", own.chain),
            "key": write(root, "own.key", own.key),
            "store": write(root, "own.p12", own.pkcs12(STORE_PASSWORD)),
            "server": write(root, "server.pem", server.key + server.chain),
            "token": write(root, "token", self._issuer.token(USER).encode()),
            "keys": write(root, "keys.json", self._issuer.published.encode())}
        self.ports = {name: free_port() for name in ("PLAINTEXT", "TLS", "MUTUAL", "LOGIN")}
        self.broker = Brokerd(root / "broker", {**settings, **self._settings()})

    def _settings(self) -> dict:
        addresses = [f"{name}://127.0.0.1:{port}" for name, port in self.ports.items()]
        login = "listener.name.login"
        return {
            "listeners": ",".join(addresses),
            "listener.security.protocol.map":
                "PLAINTEXT:PLAINTEXT,TLS:SSL,MUTUAL:SSL,LOGIN:SASL_SSL",
            "inter.broker.listener.name": "PLAINTEXT",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:ANONYMOUS;User:{USER};User:CN={USER}",
            "ssl.keystore.type": "PEM", "ssl.keystore.location": self._paths["server"],
            "ssl.truststore.type": "PEM", "ssl.truststore.location": self._paths["trusted"],
            "listener.name.mutual.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": ",".join(MECHANISMS.values()),
            f"{login}.plain.sasl.jaas.config":
                f'{MODULES}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";',
            "sasl.oauthbearer.jwks.endpoint.url": f"file://{self._paths['keys']}",
            "sasl.oauthbearer.allow.unverified.audience": "true",
            "sasl.oauthbearer.allow.unverified.issuer": "true",
            "delegation.token.secret.key": "compat",
        }

    def start(self) -> "Secured":
        self.broker.port = self.ports["PLAINTEXT"]
        self.broker.start()
        self.broker.port = self.ports["PLAINTEXT"]
        with Admin(bootstrap_servers=f"127.0.0.1:{self.ports['PLAINTEXT']}") as admin:
            admin.alter_user_scram_credentials([
                ScramUpsertion(USER, PASSWORD, MECHANISMS[name])
                for name in MECHANISMS if name.startswith("scram")])
        return self

    def bootstrap(self, way: str) -> str:
        return f"127.0.0.1:{self.ports[LISTENERS[way]]}"

    def environment(self, way: str) -> dict[str, str]:
        """Return the environment of a program that authenticates by this method."""
        properties = self.root / f"{way}.properties"
        properties.write_text("".join(f"{name}={value}\n"
                                      for name, value in self._properties(way).items()))
        return {"COMPAT_SECURITY": json.dumps(self._given(way)),
                "COMPAT_PROPERTIES": str(properties), **self._of_java(way)}

    def _of_java(self, way: str) -> dict[str, str]:
        """Return the Java client's settings. Since 3.9.1 a system property must allow the token
        URL.
        """
        if way != "oauthbearer":
            return {}
        allowed = "-Dorg.apache.kafka.sasl.oauthbearer.allowed"
        return {"JAVA_TOOL_OPTIONS": f"{allowed}.urls=file://{self._paths['token']} "
                                     f"{allowed}.files={self._paths['token']}"}

    def _given(self, way: str) -> dict[str, str]:
        given = {"trusted": self._paths["trusted"]}
        if way == "mutual":
            given |= {name: self._paths[name] for name in ("certificate", "key")}
        if way in MECHANISMS:
            given["mechanism"] = MECHANISMS[way]
            given |= {"token": Path(self._paths["token"]).read_text()} \
                if way == "oauthbearer" else {"user": USER, "password": PASSWORD}
        return given

    def _properties(self, way: str) -> dict[str, str]:
        found = {"security.protocol": "SASL_SSL" if way in MECHANISMS else "SSL",
                 "ssl.truststore.type": "PEM", "ssl.truststore.location": self._paths["trusted"]}
        if way == "mutual":
            found |= {"ssl.keystore.type": "PKCS12", "ssl.keystore.location": self._paths["store"],
                      "ssl.keystore.password": STORE_PASSWORD,
                      "ssl.key.password": STORE_PASSWORD}
        if way in MECHANISMS:
            found["sasl.mechanism"] = MECHANISMS[way]
        if way == "oauthbearer":
            module = f"{MODULES}.oauthbearer"
            found |= {"sasl.jaas.config": f"{module}.OAuthBearerLoginModule required;",
                      "sasl.login.callback.handler.class":
                          f"{module}.OAuthBearerLoginCallbackHandler",
                      "sasl.oauthbearer.token.endpoint.url": f"file://{self._paths['token']}"}
        elif way in MECHANISMS:
            module = "plain.PlainLoginModule" if way == "plain" else "scram.ScramLoginModule"
            found["sasl.jaas.config"] = (f'{MODULES}.{module} required username="{USER}" '
                                         f'password="{PASSWORD}";')
        return found


@contextmanager
def secured(root: Path, settings: dict):
    made = Secured(root, settings)
    try:
        yield made.start()
    finally:
        made.broker.kill()

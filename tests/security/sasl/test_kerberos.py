"""Kerberos without a realm: name mapping rules, and the layers of RFC 4752 around a context."""

import sys

import pytest

from pylog.config import ConfigError, Settings
from pylog.security.sasl import kerberos
from pylog.security.errors import AuthenticationFailed
from pylog.security.sasl.sasl import Mechanisms


def short(principal, *rules, realm="R"):
    return kerberos.ShortNames(rules or ("DEFAULT",), lambda: realm)(principal)


@pytest.mark.parametrize(("principal", "rules", "name"), [
    # From Kafka's KerberosNameTest and KerberosRule.
    ("alice@R", (), "alice"), ("kafka/host@R", (), "kafka"), ("alice@OTHER", (), ""),
    ("alice", (), "alice"), ("alice@OTHER", ("RULE:[1:$1@$0](.*@OTHER)s/@.*//",), "alice"),
    ("App.service-name/example.com@REALM",
     ("RULE:[2:$1](App\\..*)s/App\\.(.*)/$1/g", "DEFAULT"), "service-name"),
    ("App.service-name/example.com@REALM",
     ("RULE:[2:$1](App\\..*)s/App\\.(.*)/$1/g/L", "DEFAULT"), "service-name"),
    ("User@REALM", ("RULE:[1:$1]/L",), "user"), ("User@REALM", ("RULE:[1:$1]/U",), "USER"),
    ("TestABC@REALM", ("RULE:[1:$1](Test.*)s/ABC///L",), "test"),
    ("TestABC@REALM", ("RULE:[1:$1](Test.*)s/ABC/XYZ/g/L",), "testxyz"),
    ("TestABC@REALM", ("RULE:[1:$1](Test.*)/U",), "TESTABC"),
    ("a.a@REALM", ("RULE:[1:$1]s/a/b/",), "b.a"), ("a.a@REALM", ("RULE:[1:$1]s/a/b/g",), "b.b"),
    ("a/b@REALM", ("RULE:[1:$1]",), ""), ("a@REALM", ("RULE:[1:$1@$0]",), ""),
    ("a/b/c@R", (), ""), ("a@R@R", (), "")])
def test_principal_is_shortened_by_the_first_matching_rule(principal, rules, name):
    assert short(principal, *rules) == name


@pytest.mark.parametrize("text", ["", "default", "RULE:[1:$1", "RULE:[1:$1](", "RULE:[x:$1]",
                                  "RULE:[1:$1](*)", "RULE:[1:$1]/X", "RULE:[1:$1]s/(a)/$2/",
                                  r"RULE:[1:$1]s/a/\d/"])
def test_invalid_rule_is_rejected(text):
    with pytest.raises(ConfigError, match="is not a rule"):
        short("a@R", text)


class Context:
    """Wraps by adding a letter, and is complete after one token."""

    def __init__(self, answer=b"", name="alice@R"):
        self.complete, self.answer, self.initiator_name = False, answer, name

    def step(self, token):
        self.complete = True
        return self.answer

    def wrap(self, message, encrypted):
        return type("Wrapped", (), {"message": b"w" + message})

    def unwrap(self, message):
        return type("Unwrapped", (), {"message": message[1:]})


@pytest.fixture
def exchange(monkeypatch):
    errors = type("Errors", (), {"GSSError": KeyError})
    monkeypatch.setattr(kerberos, "library", lambda: type("Library", (), {"exceptions": errors}))

    def made(answer=b"", **more):
        return kerberos.Exchange(Context(answer, **more), kerberos.ShortNames(
            ("DEFAULT",), lambda: "R"))
    return made


@pytest.mark.parametrize("answer", [b"", b"mutual"])
def test_a_login_ends_with_no_layer_and_the_name_of_the_ticket(exchange, answer):
    login = exchange(answer)
    layers = login.step(b"ticket")
    if answer:
        assert layers == answer
        layers = login.step(b"")
    assert layers == b"w\x01\x00\x00\x00" and not login.is_complete
    assert login.step(b"w\x01\x00\x00\x00root") == b""
    assert login.is_complete and login.name == "alice"


@pytest.mark.parametrize("chosen", [b"", b"w", b"w\x01", b"w\x02\x00\xff\xff", b"w\x04\x00\xff\xff",
                                    b"w\x00\x00\x00\x00", b"w\x03\x00\x00\x00"])
def test_unoffered_security_layer_ends_the_login(exchange, chosen):
    login = exchange()
    login.step(b"ticket")
    with pytest.raises(AuthenticationFailed):
        login.step(chosen)
    assert not login.is_complete


def test_principal_without_a_rule_is_rejected(exchange):
    login = exchange(name="alice@ELSEWHERE")
    login.step(b"ticket")
    with pytest.raises(AuthenticationFailed):
        login.step(b"w\x01\x00\x00\x00")
    assert not login.is_complete and not login.name


def test_steps_and_bytes_are_bounded(exchange):
    with pytest.raises(AuthenticationFailed):
        exchange().step(bytes(kerberos.TOKEN_BYTES_MAX + 1))
    login = exchange(b"more")
    with pytest.raises(AuthenticationFailed):
        for _ in range(kerberos.STEPS_MAX + 1):
            login.step(b"ticket")
            login._context.complete = False


@pytest.mark.parametrize(("jaas", "said"), [
    (None, "gssapi.sasl.jaas.config: it is not set"), ("x required a=b;", "gssapi|keyTab")])
def test_listener_without_usable_logins_is_rejected(jaas, said):
    texts = {"listeners": "SASL_PLAINTEXT://:0", "sasl.enabled.mechanisms": "GSSAPI"}
    if jaas is not None:
        texts["listener.name.sasl_plaintext.gssapi.sasl.jaas.config"] = jaas
    with pytest.raises(ConfigError, match=said):
        Mechanisms(Settings(texts), dict, lambda: 0, lambda: 0).check()


def test_missing_library_error_names_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "gssapi", None)
    with pytest.raises(ConfigError, match=r"pip install 'pylog-broker\[kerberos\]'"):
        kerberos.library()


def test_rules_for_names_are_checked_at_startup():
    texts = {"listeners": "SASL_PLAINTEXT://:0", "sasl.enabled.mechanisms": "GSSAPI",
             "listener.name.sasl_plaintext.gssapi.sasl.jaas.config":
             'x required keyTab="/nowhere" principal="kafka/h@R";',
             "sasl.kerberos.principal.to.local.rules": "RULE:[1:$1]s/a"}
    with pytest.raises(ConfigError, match=r"local\.rules: RULE:\[1:\$1\]s/a is not a rule"):
        Mechanisms(Settings(texts), dict, lambda: 0, lambda: 0).check()

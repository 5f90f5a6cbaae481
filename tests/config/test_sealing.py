"""Sensitive settings at rest: encrypted, decrypted, re-encrypted, and never displayed."""

import re

import pytest

from pylog.config import ConfigError, Settings, sealing
from pylog.config.sealing import PasswordEncoder

NAME = "listener.name.ssl.ssl.keystore.password"


def test_a_sealed_text_opens_by_its_secret_and_hides_the_text():
    sealer = PasswordEncoder("a secret", None)
    kept = sealer.sealed(NAME, "the password")
    assert sealing.is_sealed(kept) and "password" not in kept
    assert sealer.opened(NAME, kept) == "the password"
    assert PasswordEncoder("a secret", None).opened(NAME, kept) == "the password"
    assert sealer.sealed(NAME, "the password") != kept


def test_a_sealed_text_opens_as_the_setting_it_was_sealed_as_only():
    sealer = PasswordEncoder("a secret", None)
    with pytest.raises(ConfigError, match="does not decrypt it"):
        sealer.opened("listener.name.ssl.ssl.key.password", sealer.sealed(NAME, "x"))


@pytest.mark.parametrize("secret", [None, "another secret"])
def test_sealed_value_stays_closed_and_hidden_without_its_secret(secret):
    kept = PasswordEncoder("a secret", None).sealed(NAME, "the password")
    with pytest.raises(ConfigError) as told:
        PasswordEncoder(secret, None).opened(NAME, kept)
    for word in ("a secret", "another secret", "the password", kept):
        assert word not in str(told.value)


@pytest.mark.parametrize("spoil", [
    lambda kept: kept[:-1], lambda kept: kept[:40], lambda kept: sealing.PREFIX,
    lambda kept: kept + "*", lambda kept: kept[:-6] + ("A" if kept[-6] != "A" else "B")
    + kept[-5:]])
def test_damaged_sealed_value_is_rejected(spoil):
    sealer = PasswordEncoder("a secret", None)
    with pytest.raises(ConfigError):
        sealer.opened(NAME, spoil(sealer.sealed(NAME, "the password")))


def test_public_and_unsealable_values_stay_unchanged():
    assert PasswordEncoder("s", None).sealed("log.retention.ms", "1000") == "1000"
    assert PasswordEncoder(None, None).sealed(NAME, "x") == "x"
    assert sealing.is_sealed(PasswordEncoder("s", None).sealed("a.plug.ins.own", "x"))
    assert sealing.is_sealed(PasswordEncoder("s", None).sealed(
        "listener.name.x.scram-sha-512.sasl.jaas.config", "x"))


def test_old_secret_opens_a_value_that_must_be_resealed():
    kept = PasswordEncoder("old", None).sealed(NAME, "x")
    sealer = PasswordEncoder("new", "old")
    assert sealer.opened(NAME, kept) == "x" and not sealer.is_current(NAME, kept)
    anew = sealer.sealed(NAME, sealer.opened(NAME, kept))
    assert sealer.is_current(NAME, anew) and PasswordEncoder("new", None).opened(NAME, anew) == "x"
    assert not sealer.is_current(NAME, "in the clear")
    assert PasswordEncoder(None, None).is_current(NAME, "in the clear")


def test_process_derives_one_sealing_key(monkeypatch):
    import hashlib

    made, scrypt = [], hashlib.scrypt
    monkeypatch.setattr(hashlib, "scrypt", lambda *args, **more: made.append(1)
                        or scrypt(*args, **more))
    sealer = PasswordEncoder("s", None)
    kept = [sealer.sealed(NAME, str(number)) for number in range(20)]
    assert [sealer.opened(NAME, text) for text in kept] == [str(number) for number in range(20)]
    assert len(made) == 1


def test_secret_may_be_in_a_file(tmp_path):
    path = tmp_path / "secret"
    path.write_text("from the file\n")
    found = Settings.load(None, [f"password.encoder.secret.file={path}"])
    assert found.sealer.opened(NAME,
                               PasswordEncoder("from the file", None).sealed(NAME, "x")) == "x"
    shown = found.explain(sealing.SECRET) + "\n".join(found.listing())
    assert "from the file" not in shown and "[hidden]" in shown


@pytest.mark.parametrize(("overrides", "said"), [
    (["password.encoder.secret=x"], "exclude each other"), ([], "the file is empty")])
def test_unsafe_secret_file_is_rejected(tmp_path, overrides, said):
    path = tmp_path / "secret"
    path.write_text("\n")
    with pytest.raises(ConfigError, match=said):
        Settings.load(None, [f"password.encoder.secret.file={path}", *overrides])
    path.unlink()
    with pytest.raises(ConfigError, match=re.escape("No such file") if not overrides else said):
        Settings.load(None, [f"password.encoder.secret.file={path}", *overrides])


def test_stored_settings_that_do_not_open_are_not_in_force():
    settings = Settings({"password.encoder.secret": "mine"})
    mine = settings.sealer.sealed(NAME, "x")
    theirs = PasswordEncoder("theirs", None).sealed("listener.name.ssl.ssl.key.password", "y")
    assert settings.usable_dynamic(
        {NAME: mine, "listener.name.ssl.ssl.key.password": theirs, "log.retention.ms": "5"},
        True) == {NAME: "x", "log.retention.ms": "5"}

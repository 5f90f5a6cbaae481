"""Decisions on SCRAM credentials."""

from types import SimpleNamespace

import pytest

from pylog.metadata.controller import scram_credentials
from pylog.metadata.image.image import SCRAM_CREDENTIAL, Image, apply
from pylog.protocol.errors import ErrorCode
from pylog.security.sasl import scram


def upsertion(name="a", mechanism=1, iterations=4096):
    return SimpleNamespace(name=name, mechanism=mechanism, iterations=iterations, salt=b"salt",
                           salted_password=b"salted")


def deletion(name="a", mechanism=1):
    return SimpleNamespace(name=name, mechanism=mechanism)


def after(image, *args):
    records, results = scram_credentials.alter(image, *args)
    return apply(image, records, image.offset + len(records), 1), [
        (result.user, result.error) for result in results]


def test_credentials_are_created_changed_and_removed():
    image, results = after(Image(), [], [upsertion(), upsertion(mechanism=2)])
    assert results == [("a", 0)]
    assert set(image.security) == {(SCRAM_CREDENTIAL, ("a", 1)), (SCRAM_CREDENTIAL, ("a", 2))}
    image, results = after(image, [deletion()], [upsertion("b")])
    assert results == [("a", 0), ("b", 0)]
    assert set(image.security) == {(SCRAM_CREDENTIAL, ("a", 2)), (SCRAM_CREDENTIAL, ("b", 1))}


@pytest.mark.parametrize(("deletions", "upsertions", "error"), [
    ([], [upsertion(iterations=4095)], ErrorCode.UNACCEPTABLE_CREDENTIAL),
    ([], [upsertion(iterations=16385)], ErrorCode.UNACCEPTABLE_CREDENTIAL),
    ([], [upsertion("")], ErrorCode.UNACCEPTABLE_CREDENTIAL),
    ([], [upsertion(mechanism=3)], ErrorCode.UNSUPPORTED_SASL_MECHANISM),
    ([deletion()], [], ErrorCode.RESOURCE_NOT_FOUND),
    ([deletion("")], [], ErrorCode.UNACCEPTABLE_CREDENTIAL),
    ([deletion()], [upsertion()], ErrorCode.DUPLICATE_RESOURCE),
    ([], [upsertion(), upsertion()], ErrorCode.DUPLICATE_RESOURCE)])
def test_a_user_is_altered_as_a_whole_or_not_at_all(deletions, upsertions, error):
    image, results = after(Image(), deletions, [*upsertions, upsertion("good")])
    assert dict(results)[(deletions or upsertions)[0].name] == error
    assert set(image.security) == {(SCRAM_CREDENTIAL, ("good", 1))}


def test_initial_credentials_have_the_format_of_kafka_storage():
    records = scram_credentials.first(["SCRAM-SHA-512=[name=alice,password=secret,iterations=8192]",
                                       "SCRAM-SHA-256=[name=bob,password=p]"])
    assert [(row.name, row.mechanism, row.iterations) for row in records] == [
        ("alice", scram.SHA_512, 8192), ("bob", scram.SHA_256, 4096)]


@pytest.mark.parametrize("text", [
    "", "PLAIN=[name=a,password=secret]", "SCRAM-SHA-256=name=a,password=secret",
    "SCRAM-SHA-256=[name=a]", "SCRAM-SHA-256=[password=secret]",
    "SCRAM-SHA-256=[name=a,password=secret,iterations=1]",
    "SCRAM-SHA-256=[name=a,password=secret,iterations=x]",
    "SCRAM-SHA-256=[name=a,password=secret,other=x]",
    "SCRAM-SHA-256=[name=a,password=secret,salt=!]"])
def test_invalid_credential_is_rejected_without_the_password(text):
    with pytest.raises(ValueError) as refused:
        scram_credentials.first([text])
    assert "secret" not in str(refused.value)

"""Decisions on SCRAM credentials: AlterUserScramCredentials to UserScramCredentialRecords.

Owns: nothing; no clock, no disk.
Invariants: a user is altered completely or not at all, and the others of the request are still
  processed; passwords are never stored, only keys derived from them.
Source: KIP-554; error codes, their order and their texts as Kafka 4.4's.
"""

from collections import Counter, namedtuple

from pylog.metadata.image.image import SCRAM_CREDENTIAL, Image
from pylog.protocol import messages
from pylog.protocol.api_error import Refusal
from pylog.protocol.errors import ErrorCode
from pylog.security.sasl import scram

Altered = namedtuple("Altered", ("user", "error", "message"), defaults=(ErrorCode.NONE, None))
Altered.__doc__ = "The result for one user of a request."


def alter(image: Image, deletions, upsertions):
    """Decide AlterUserScramCredentialsRequest. Returns (records, [Altered, one for each user])."""
    named = Counter((entry.name, entry.mechanism) for entry in (*deletions, *upsertions))
    twice = {name for (name, _), count in named.items() if count > 1}
    found: dict[str, list] = {}
    refused: dict[str, Refusal] = {}
    for decide, entries in ((_deleted, deletions), (_upserted, upsertions)):
        for entry in entries:
            records = found.setdefault(entry.name, [])
            try:
                if entry.name in twice:
                    raise Refusal(ErrorCode.DUPLICATE_RESOURCE, (
                        "A user credential cannot be altered twice in the same request"))
                records.append(decide(image, entry))
            except Refusal as refusal:
                refused.setdefault(entry.name, refusal)
    records = [record for name, own in found.items() if name not in refused for record in own]
    return records, [
        Altered(name, refused[name].error, refused[name].message) if name in refused
        else Altered(name) for name in found]


def first(texts) -> list:
    """Return the records of `MECHANISM=[name=…,password=…]` texts, in kafka-storage's format.
    Raises ValueError without quoting the text, which contains a password.
    """
    return [_first(text) for text in texts]


def _first(text: str):
    mechanism, equals, rest = text.partition("=")
    number = scram.MECHANISMS.get(mechanism.strip())
    if number is None or not equals or not (rest.startswith("[") and rest.endswith("]")):
        raise ValueError("expected SCRAM-SHA-256=[name=…,password=…] or SCRAM-SHA-512")
    options = dict([part.partition("=")[::2] for part in rest[1:-1].split(",")])
    unknown = options.keys() - {"name", "password", "salt", "iterations"}
    if unknown or not options.get("name") or not options.get("password"):
        raise ValueError("expected name and password, and iterations or salt where wanted")
    iterations = int(options.get("iterations") or scram.ITERATIONS_MIN)
    if not scram.ITERATIONS_MIN <= iterations <= scram.ITERATIONS_MAX:
        raise ValueError(f"iterations: {scram.ITERATIONS_MIN} to {scram.ITERATIONS_MAX}")
    salt = scram.given_salt(options["salt"]) if "salt" in options else scram.random_salt()
    return _record(options["name"], number, scram.credential(
        number, salt, scram.salted(number, options["password"], salt, iterations), iterations))


def _deleted(image: Image, entry):
    _check(entry)
    if (SCRAM_CREDENTIAL, (entry.name, entry.mechanism)) not in image.security:
        raise Refusal(ErrorCode.RESOURCE_NOT_FOUND,
                      "Attempt to delete a user credential that does not exist")
    return messages.RemoveUserScramCredentialRecord(name=entry.name, mechanism=entry.mechanism)


def _upserted(image: Image, entry):
    _check(entry)
    if entry.iterations < scram.ITERATIONS_MIN:
        raise Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if entry.iterations > scram.ITERATIONS_MAX:
        raise Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    return _record(entry.name, entry.mechanism, scram.credential(
        entry.mechanism, bytes(entry.salt), bytes(entry.salted_password), entry.iterations))


def _check(entry) -> None:
    if not entry.name:
        raise Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if entry.mechanism not in scram.HASHES:
        raise Refusal(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")


def _record(name: str, mechanism: int, credential):
    return messages.UserScramCredentialRecord(
        name=name, mechanism=mechanism, salt=credential.salt, stored_key=credential.stored_key,
        server_key=credential.server_key, iterations=credential.iterations)

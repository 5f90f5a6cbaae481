"""The errors of the REST interface: code, HTTP status and message.

Owns: nothing.
Invariants: the first three digits of a code are the HTTP status; clients compare some of the
  messages, so they are part of the interface.
Source: Confluent's REST interface; Karapace's tests for the messages.
"""

from __future__ import annotations

from typing import Any

from pylog.registry.formats.schema_error import REASON_CHARACTERS_MAX

INCOMPATIBLE, INCOMPATIBLE_LONG = 409, 40901
SUBJECT_NOT_FOUND, VERSION_NOT_FOUND, SCHEMA_NOT_FOUND = 40401, 40402, 40403
SUBJECT_SOFT_DELETED, SUBJECT_NOT_SOFT_DELETED = 40404, 40405
VERSION_SOFT_DELETED, VERSION_NOT_SOFT_DELETED = 40406, 40407
NO_CONFIG, NO_MODE = 40408, 40409
INVALID_SCHEMA, INVALID_VERSION, INVALID_LEVEL, INVALID_MODE = 42201, 42202, 42203, 42204
NOT_PERMITTED, REFERENCE_EXISTS = 42205, 42206
INVALID_SUBJECT, SCHEMA_TOO_LARGE, INVALID_RULES = 42208, 42209, 42210
CONTEXT_NOT_EMPTY = 42211
UNAUTHENTICATED, FORBIDDEN = 40101, 40301
STORE_FAILED, TIMED_OUT = 50001, 50002
STATUS_DIGITS = 3


class RegistryError(Exception):
    """An answer other than success. headers: of the answer."""

    def __init__(self, code: int, message: str, headers: tuple[tuple[str, str], ...] = ()):
        super().__init__(message)
        self.code = code
        self.message = message
        self.headers = headers

    @property
    def status(self) -> int:
        return int(str(self.code)[:STATUS_DIGITS])


def subject_not_found(subject: str) -> RegistryError:
    return RegistryError(SUBJECT_NOT_FOUND, f"Subject '{subject}' not found.")


def version_not_found(version: int) -> RegistryError:
    return RegistryError(VERSION_NOT_FOUND, f"Version {version} not found.")


def schema_not_found() -> RegistryError:
    return RegistryError(SCHEMA_NOT_FOUND, "Schema not found")


def subject_soft_deleted(subject: str) -> RegistryError:
    return RegistryError(SUBJECT_SOFT_DELETED, f"Subject '{subject}' was soft deleted."
                         "Set permanent=true to delete permanently")


def subject_not_soft_deleted(subject: str) -> RegistryError:
    return RegistryError(SUBJECT_NOT_SOFT_DELETED, f"Subject '{subject}' was not deleted first "
                         "before being permanently deleted")


def version_soft_deleted(subject: str, version: int) -> RegistryError:
    return RegistryError(VERSION_SOFT_DELETED, f"Subject '{subject}' Version {version} was soft "
                         "deleted. Set permanent=true to delete permanently")


def version_not_soft_deleted(subject: str, version: int) -> RegistryError:
    return RegistryError(VERSION_NOT_SOFT_DELETED, f"Subject '{subject}' Version {version} was "
                         "not deleted first before being permanently deleted")


def no_config(subject: str) -> RegistryError:
    return RegistryError(
        NO_CONFIG, f"Subject '{subject}' does not have subject-level compatibility configured")


def no_mode(subject: str) -> RegistryError:
    return RegistryError(
        NO_MODE, f"Subject '{subject}' does not have subject-level mode configured")


def invalid_schema(kind: str, reason: str) -> RegistryError:
    return RegistryError(INVALID_SCHEMA,
                         f"Invalid {kind} schema. Error: {reason[:REASON_CHARACTERS_MAX]}")


def look_up_failed(subject: str) -> RegistryError:
    return RegistryError(INVALID_SCHEMA, f"Error while looking up schema under subject {subject}")


def empty_schema() -> RegistryError:
    return RegistryError(INVALID_SCHEMA, "Empty schema")


def invalid_version(text: str) -> RegistryError:
    return RegistryError(
        INVALID_VERSION, f"The specified version '{text}' is not a valid version id. Allowed "
        'values are between [1, 2^31-1] and the string "latest"')


def invalid_level() -> RegistryError:
    return RegistryError(
        INVALID_LEVEL, "Invalid compatibility level. Valid values are none, backward, forward, "
        "full, backward_transitive, forward_transitive, and full_transitive")


def invalid_mode(name: Any) -> RegistryError:
    return RegistryError(INVALID_MODE, f"Invalid mode {name}. Valid values are READWRITE, "
                         "READONLY, READONLY_OVERRIDE, IMPORT and FORWARD")


def not_permitted(reason: str) -> RegistryError:
    return RegistryError(NOT_PERMITTED, reason)


def reference_exists(subject: str, version: int) -> RegistryError:
    return RegistryError(REFERENCE_EXISTS, f"One or more references exist to the schema "
                         f"{{subject={subject},version={version}}}.")


def invalid_subject(subject: str) -> RegistryError:
    return RegistryError(INVALID_SUBJECT,
                         f"The specified subject '{subject}' is not a valid subject.")


def incompatible(level: str, reasons: list[str]) -> RegistryError:
    return RegistryError(INCOMPATIBLE, f"Incompatible schema, compatibility_mode={level}. "
                         f"Incompatibilities: {', '.join(reasons)}")


def not_found() -> RegistryError:
    return RegistryError(404, "HTTP 404 Not Found")


def invalid_body(message: Any) -> RegistryError:
    return RegistryError(422, message)

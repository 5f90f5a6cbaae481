"""Settings of topics and brokers: read them with their defaults, compare, and change them.

Owns: nothing.
Invariants: the value of a secret is never shown; a change is applied only to the values that its
  preview showed.
Source: KIP-226 (sources and synonyms), KIP-339 (incremental changes).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from pylog.client.admin.admin import Admin
from pylog.client.admin.types import ConfigResource, ConfigSource, ResourceType
from pylog.client.errors import raise_for
from pylog.console.pages import PageError
from pylog.protocol import messages

SOURCES = {
    ConfigSource.DYNAMIC_TOPIC_CONFIG: "topic", ConfigSource.DYNAMIC_BROKER_CONFIG: "this broker",
    ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG: "all brokers",
    ConfigSource.STATIC_BROKER_CONFIG: "file of the broker", ConfigSource.DEFAULT_CONFIG: "default",
    ConfigSource.DYNAMIC_GROUP_CONFIG: "group"}
# Where a setting of the resource itself comes from; only these can be reset.
OWN_SOURCES = {ResourceType.TOPIC: "topic", ResourceType.BROKER: "this broker",
               ResourceType.GROUP: "group"}
SECRET = "(secret)"
CHANGES_MAX = 200
VALUE_CHARACTERS_MAX = 10_000

Changes = dict[str, str | None]


class Entry(NamedTuple):
    """One setting. default: the value after a reset, None if unknown. is_own: set for this topic or
    broker itself, so that it can be reset.
    """

    name: str
    value: str | None
    default: str | None
    source: str
    documentation: str
    is_read_only: bool
    is_secret: bool
    is_own: bool


class Difference(NamedTuple):
    """A change of one setting: None means the default."""

    name: str
    old: str | None
    new: str | None
    is_reset: bool


async def read(admin: Admin, resource: ConfigResource) -> dict[str, Entry]:
    """Return the settings of a topic or broker by name. Raises KafkaError."""
    request = messages.DescribeConfigsRequest
    message = request(include_documentation=True, include_synonyms=True, resources=[
        request.DescribeConfigsResource(resource_type=int(resource.type),
                                        resource_name=resource.name, configuration_keys=None)])
    if resource.type == ResourceType.BROKER and resource.name:
        answer = await admin.cluster.send(int(resource.name), message)
    else:
        answer = await admin.cluster.send_any(message)
    row, = answer.results
    raise_for(row.error_code, row.error_message, resource.name)
    own = OWN_SOURCES[resource.type]
    found = {}
    for config in sorted(row.configs, key=lambda one: one.name):
        source = SOURCES.get(config.config_source, "unknown")
        is_own = source == own
        below = [one.value for one in config.synonyms or ()
                 if SOURCES.get(one.source, "") != own]
        default = below[0] if below else (None if is_own else config.value)
        found[config.name] = Entry(
            config.name, SECRET if config.is_sensitive else config.value,
            None if config.is_sensitive else default, source, config.documentation or "",
            config.read_only, config.is_sensitive, is_own)
    return found


def parse_lines(text: str) -> Changes:
    """Return the settings of a form's lines, KEY=VALUE. Raises PageError."""
    found: Changes = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        key, sign, value = line.partition("=")
        if not sign or not key.strip():
            raise PageError(400, "A setting is not valid", line[:200],
                            "Write one setting a line, as KEY=VALUE.")
        found[key.strip()] = value.strip()[:VALUE_CHARACTERS_MAX]
    if len(found) > CHANGES_MAX:
        raise PageError(400, "The form has too many settings", str(len(found)),
                        f"Change at most {CHANGES_MAX} settings at once.")
    return found


def own_lines(entries: Mapping[str, Entry]) -> str:
    """Return the resource's own settings as lines of a form, without secrets."""
    return "\n".join(f"{entry.name}={entry.value or ''}" for entry in entries.values()
                     if entry.is_own and not entry.is_secret)


def changes_of(form: Mapping[str, str], entries: Mapping[str, Entry]) -> Changes:
    """Return the changes that a settings form asks for. Raises PageError.

    The form has either `lines`, all own settings, or one setting: `name`, and `value` or `reset`.
    """
    if "changes" in form:
        try:
            given = json.loads(form["changes"])
        except ValueError:
            given = None
        if not isinstance(given, dict) or not all(
                value is None or isinstance(value, str) for value in given.values()):
            raise PageError(400, "The form is damaged", "changes", "Go back and try again.")
        return given
    if "lines" in form:
        lines = parse_lines(form["lines"])
        resets: Changes = {
            entry.name: None for entry in entries.values()
            if entry.is_own and not entry.is_secret and entry.name not in lines}
        return {**resets, **{name: value for name, value in lines.items()
                             if name not in entries or not entries[name].is_own
                             or entries[name].value != value}}
    name = form.get("name", "")
    if not name:
        raise PageError(400, "The form is incomplete", "the name of the setting is empty")
    return {name: None if "reset" in form else form.get("value", "")[:VALUE_CHARACTERS_MAX]}


def differences(changes: Changes, entries: Mapping[str, Entry]) -> list[Difference]:
    """Return the changes with the current and the new values. Raises PageError for a setting that
    cannot be changed.
    """
    found = []
    for name, value in changes.items():
        entry = entries.get(name)
        if entry is not None and entry.is_read_only:
            raise PageError(400, "The setting can only be changed in the broker's file", name,
                            "Change server.properties and restart the broker.")
        old = entry.value if entry is not None else None
        new = value if value is not None else entry.default if entry is not None else None
        is_secret = entry is not None and entry.is_secret
        found.append(Difference(name, old, SECRET if is_secret and value is not None else new,
                                value is None))
    return found


def expected(found: list[Difference]) -> str:
    """Return the current values of a preview, which the applying form sends back."""
    return json.dumps({row.name: row.old for row in found})


async def apply(admin: Admin, resource: ConfigResource, changes: Changes,
                validate_only: bool = False) -> None:
    """Change settings, or only let the broker check them. Raises KafkaError."""
    await admin.incremental_alter_configs({resource: changes}, validate_only=validate_only)

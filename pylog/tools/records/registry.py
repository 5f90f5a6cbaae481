"""`pylog registry`: schemas of a Confluent-compatible registry; `serve` runs one.

Owns: nothing.
Invariants: every deletion requires confirmation; a schema is printed as stored, so that it can be
  registered again.
Source: the registry's REST interface.
"""

from __future__ import annotations

import fnmatch
import json
from typing import Any

import click

from pylog.client.serialization.registry import LEVELS, Schema, SchemaRegistry
from pylog.tools.cli.cluster_queries import unknown
from pylog.tools.cli.command import Local, Tools, confirmed, registry_option, text_of
from pylog.tools.cli.session import Session, ToolError
from pylog.tools.records.registry_server import serve

COLUMNS = {"subject": "SUBJECT", "version": "VERSION", "id": "ID", "type": "TYPE",
           "level": "COMPATIBILITY"}
TYPES = {"avsc": "AVRO", "json": "JSON", "proto": "PROTOBUF"}


class Registrar(Local):
    """A command that connects to a registry and not to a broker."""

    def __init__(self, *args: Any, **attributes: Any):
        super().__init__(*args, **attributes)
        registry_option(self)


class Registry(Tools):
    command_class = Registrar


@click.group("registry", cls=Registry)
def registry() -> None:
    """Schemas of a registry; set its address with --registry or PYLOG_REGISTRY."""


def _opened(url: str | None) -> SchemaRegistry:
    """Return the registry's client. Raises click.UsageError."""
    if not url:
        raise click.UsageError("which registry? --registry URL, or PYLOG_REGISTRY")
    return SchemaRegistry(url)


def _subject(asked: SchemaRegistry, name: str) -> str:
    """Return the name if the subject exists. Raises ToolError with the closest one."""
    known = asked.subjects()
    if name not in known:
        raise unknown("subject", name, known)
    return name


@registry.command("list")
@click.argument("patterns", nargs=-1, metavar="[PATTERN]...")
@click.pass_obj
def list_subjects(session: Session, patterns: tuple[str, ...], registry: str | None) -> None:
    """List subjects with their latest schema, all or those that match a pattern like 'orders-*'."""
    asked = _opened(registry)
    names = [name for name in sorted(asked.subjects())
             if not patterns or any(fnmatch.fnmatchcase(name, one) for one in patterns)]
    rows = []
    for name in names:
        number, schema = asked.version(name)
        rows.append({"subject": name, "version": asked.versions(name)[-1], "id": number,
                     "type": schema.kind, "level": asked.level(name)})
    session.out.rows(rows, COLUMNS, empty="no subjects")


@registry.command()
@click.argument("subject", required=False)
@click.option("--version", metavar="N", type=click.IntRange(min=1), help="[default: the latest]")
@click.option("--id", "number", metavar="ID", type=click.IntRange(min=0),
              help="Schema id, as stored in records.")
@click.pass_obj
def show(session: Session, subject: str | None, version: int | None, number: int | None,
         registry: str | None) -> None:
    """Print a schema of a subject, or by its id."""
    if (subject is None) == (number is None):
        raise click.UsageError("a SUBJECT or --id")
    asked = _opened(registry)
    if subject is not None:
        number, schema = asked.version(_subject(asked, subject), version or "latest")
    else:
        assert number is not None
        schema = asked.schema(number)
    if session.out.as_json:
        session.out.document({
            "id": number, "type": schema.kind, "schema": schema.text, "references": [
                {"name": name, "subject": of, "version": at}
                for name, of, at in schema.references]})
    else:
        session.out.lines(_readable(schema))


def _readable(schema: Schema) -> str:
    """Return the schema as stored, except for whitespace in JSON."""
    return schema.text if schema.kind == "PROTOBUF" else json.dumps(json.loads(schema.text),
                                                                    indent=2, ensure_ascii=False)


@registry.command()
@click.argument("subject")
@click.pass_obj
def versions(session: Session, subject: str, registry: str | None) -> None:
    """List the versions of a subject."""
    asked = _opened(registry)
    rows = []
    for version in asked.versions(_subject(asked, subject)):
        number, schema = asked.version(subject, version)
        rows.append({"version": version, "id": number, "type": schema.kind})
    session.out.rows(rows, {key: COLUMNS[key] for key in ("version", "id", "type")})


def _given(command: Any) -> Any:
    """Add the options for a schema file."""
    for option in (
            click.option("--reference", "references", multiple=True,
                         metavar="NAME=SUBJECT:VERSION",
                         help="A schema that this one references; may be repeated."),
            click.option("--type", "kind", type=click.Choice(["avro", "json", "protobuf"]),
                         help="[default: by file extension .avsc, .json, .proto; else avro]"),
            click.argument("file", type=click.File(encoding="utf-8"))):
        command = option(command)
    return command


def _schema(file: Any, kind: str | None, references: tuple[str, ...]) -> Schema:
    """Return the schema of a file. Raises click.UsageError, ToolError."""
    of = kind.upper() if kind else TYPES.get(file.name.rpartition(".")[2], "AVRO")
    text = text_of(file)
    if of != "PROTOBUF":
        try:
            json.loads(text)
        except ValueError as error:
            raise ToolError(
                f"{file.name}: not JSON, but a schema of type {of} must be: {error}") from None
    found = []
    for one in references:
        name, _, where = one.rpartition("=")
        subject, _, version = where.rpartition(":")
        if not (name and subject and version.isdecimal()):
            raise click.UsageError(f"--reference {one!r}: expected NAME=SUBJECT:VERSION")
        found.append((name, subject, int(version)))
    return Schema(text, of, tuple(found))


@registry.command()
@click.argument("subject")
@_given
@click.pass_obj
def register(session: Session, subject: str, file: Any, kind: str | None,
             references: tuple[str, ...], registry: str | None) -> None:
    """Register the schema in FILE (- is standard input); SUBJECT is usually TOPIC-value."""
    asked = _opened(registry)
    number = asked.register(subject, _schema(file, kind, references))
    session.out.result({"subject": subject, "id": number}, f"{subject}: id {number}")


@registry.command()
@click.argument("subject")
@_given
@click.pass_obj
def check(session: Session, subject: str, file: Any, kind: str | None,
          references: tuple[str, ...], registry: str | None) -> None:
    """Check if the schema in FILE is compatible with SUBJECT. The exit code is 1 if not."""
    asked = _opened(registry)
    schema = _schema(file, kind, references)
    fits, reasons = asked.compatibility(_subject(asked, subject), schema)
    level = asked.level(subject)
    session.out.result(
        {"subject": subject, "compatible": fits, "level": level, "reasons": reasons},
        f"{subject} ({level}): " + ("compatible" if fits else "not compatible"))
    if not fits:
        raise ToolError(f"{subject} would reject it: " + ("; ".join(reasons) or level))


@registry.command()
@click.argument("level", required=False, type=click.Choice(LEVELS, case_sensitive=False))
@click.option("--subject", metavar="NAME", help="Level of one subject; else the default for all.")
@click.pass_obj
def compatibility(session: Session, level: str | None, subject: str | None,
                  registry: str | None) -> None:
    """Print the compatibility level for new schemas, or set it."""
    asked = _opened(registry)
    if level is not None:
        asked.set_level(level, subject)
    found = asked.level(subject)
    session.out.result({"subject": subject, "level": found}, f"{subject or 'default'}: {found}")


@registry.command()
@click.argument("subject")
@click.option("--version", metavar="N", type=click.IntRange(min=1), help="[default: all of them]")
@click.option("--permanent", is_flag=True,
              help="Purge a deleted schema: records with its ids become unreadable.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.pass_obj
def delete(session: Session, subject: str, version: int | None, permanent: bool, yes: bool,
           registry: str | None) -> None:
    """Delete a subject, or one version; records that were written with it stay readable."""
    asked = _opened(registry)
    if not permanent:
        _subject(asked, subject)
    what = f"{subject}, " + (f"version {version}" if version else "every version")
    confirmed(f"Delete {what}{' permanently' if permanent else ''}?", yes)  # Require confirmation.
    gone = asked.delete(subject, version, permanent=permanent)
    session.out.result({"subject": subject, "versions": gone, "permanent": permanent},
                       f"{subject}: deleted {', '.join(map(str, gone))}")


registry.add_command(serve)
COMMANDS = {"registry": registry}

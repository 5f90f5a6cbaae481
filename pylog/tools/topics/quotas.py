"""`pylog quotas`: limits for users, client ids and IP addresses.

Owns: nothing.
Invariants: the quotas of one entity change in one atomic request; an entity is a user, a client id,
  both, or an IP address.
Source: kafka-configs --entity-type users|clients|ips, for the vocabulary (KIP-546, KIP-612).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pylog.client.admin.types import QuotaAlteration
from pylog.tools.cli import cluster_queries
from pylog.tools.cli.command import Tools, Watchable, pairs
from pylog.tools.cli.output import cell
from pylog.tools.cli.session import Session, ToolError

if TYPE_CHECKING:
    from pylog.client.admin.admin import Admin

COLUMNS = {"entity": ("OF", lambda entity: of(entity)), "quota": "QUOTA", "value": "VALUE"}
KINDS = {"user": "user", "client": "client-id", "ip": "ip"}
DEFAULT = "<default>"
KEYS = {"user": ("producer_byte_rate", "consumer_byte_rate", "request_percentage",
                 "controller_mutation_rate"), "ip": ("connection_creation_rate",)}

Entity = dict[str, str | None]


@click.group("quotas", cls=Tools)
def quotas() -> None:
    """Limits for users, client ids and IP addresses.

    Quotas are producer_byte_rate, consumer_byte_rate (bytes/s), request_percentage,
    controller_mutation_rate, and, for an IP address, connection_creation_rate.
    """


def _entity(command: Any) -> Any:
    """Add the options for the entity: a user, a client id, both, or an address."""
    for name, what, metavar in (("ip", "an address", "ADDRESS"), ("client", "a client id", "ID"),
                                ("user", "a user", "NAME")):
        command = click.option(f"--{name}-defaults", f"{name}_defaults", is_flag=True,
                               help=f"Default quota of {what}.")(command)
        command = click.option(f"--{name}", name, metavar=metavar,
                               help=f"Quota of {what}.")(command)
    return command


def _named(asked: dict[str, Any]) -> Entity:
    """Return the entity. Raises click.UsageError."""
    found: Entity = {}
    for option, kind in KINDS.items():
        name, is_default = asked[option], asked[f"{option}_defaults"]
        if name is not None and is_default:
            raise click.UsageError(f"--{option} and --{option}-defaults exclude each other")
        if name is not None or is_default:
            found[kind] = name
    if "ip" in found and len(found) > 1:
        raise click.UsageError("--ip cannot be combined with other entities")
    return found


def of(entity: Entity) -> str:
    """Return an entity as text."""
    return ", ".join(f"{kind} {DEFAULT if name is None else name}"
                     for kind, name in entity.items())


@quotas.command("list", cls=Watchable)
@_entity
@click.pass_obj
def list_quotas(session: Session, **asked: Any) -> None:
    """List quotas: all, or those that involve a user, client id or address."""
    wanted = _named(asked)

    async def work(admin: Admin) -> list[dict[str, Any]]:
        found = await admin.describe_client_quotas(wanted)
        return [{"entity": entity, "quota": key, "value": value}
                for entity, values in sorted(found, key=lambda row: of(row[0]))
                for key, value in sorted(values.items())]

    session.out.rows(session.administer(work), COLUMNS, empty="no quotas")


@quotas.command("set")
@_entity
@click.argument("settings", nargs=-1, required=True, metavar="QUOTA=NUMBER...")
@click.option("--dry-run", is_flag=True, help="Validate only; change nothing.")
@click.pass_obj
def set_quotas(session: Session, settings: tuple[str, ...], dry_run: bool, **asked: Any) -> None:
    """Set quotas of a user, a client id, both together, or an address; they take effect at once."""
    changes: dict[str, float | None] = {}
    for key, text in pairs(settings, "quota").items():
        try:
            changes[key] = float(text)
        except ValueError:
            raise click.UsageError(f"{key}={text}: expected a number") from None
    _alter(session, _named(asked), changes, dry_run)


@quotas.command("delete")
@_entity
@click.argument("keys", nargs=-1, metavar="[QUOTA]...")
@click.option("--dry-run", is_flag=True, help="Validate only; change nothing.")
@click.pass_obj
def delete(session: Session, keys: tuple[str, ...], dry_run: bool, **asked: Any) -> None:
    """Delete quotas of a user, client id or address; all of them without QUOTA."""
    entity = _named(asked)
    _alter(session, entity, dict.fromkeys(keys) or _there(session, entity), dry_run)


def _there(session: Session, entity: Entity) -> dict[str, float | None]:
    """Return all quotas of the entity. Raises ToolError."""
    _need(entity)
    found = session.administer(lambda admin: admin.describe_client_quotas(entity, True))
    keys = [key for owner, values in found if owner == entity for key in values]
    if not keys:
        raise ToolError(f"{of(entity)} has no quotas")
    return dict.fromkeys(keys)


def _need(entity: Entity) -> None:
    if not entity:
        raise click.UsageError("whose? --user, --client or --ip, or their --…-defaults")


def _alter(session: Session, entity: Entity, changes: dict[str, float | None],
           dry_run: bool) -> None:
    """Change the quotas of one entity in one request."""
    _need(entity)
    known = KEYS["ip" if "ip" in entity else "user"]
    for key in changes:
        if key not in known:
            raise cluster_queries.unknown(f"quota of {of(entity)}", key, known)
    session.administer(lambda admin: admin.alter_client_quotas(
        [QuotaAlteration(entity, changes)], dry_run))
    would = "would be " if dry_run else ""
    session.out.result(
        {"entity": entity, "quotas": changes, "dry_run": dry_run},
        f"{of(entity)}: " + ", ".join(
            f"{key} {would}deleted" if value is None else f"{key}={cell(value)} {would}set"
            for key, value in changes.items()))


COMMANDS = {"quotas": quotas}

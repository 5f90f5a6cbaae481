"""`pylog configs`: settings of topics, brokers, groups and loggers of a running cluster.

Owns: nothing.
Invariants: the broker name `default` means all brokers; the broker does not send the value of a
  secret, and it is masked on output, also right after it was set.
Source: KIP-226 (dynamic broker settings), KIP-412 (loggers), KIP-848 (groups).
"""

from __future__ import annotations

from typing import Any

import click

from pylog.client.admin.admin import Admin
from pylog.client.network.cluster import Cluster
from pylog.config.sealing import is_sensitive
from pylog.tools.cli import cluster_queries
from pylog.tools.cli import config_resources
from pylog.tools.cli.command import Tools, pairs
from pylog.tools.cli.session import Session

COLUMNS = {"name": "SETTING", "value": "VALUE", "source": "SOURCE"}
KIND = click.Choice([*config_resources.KINDS, *[f"{kind}s" for kind in config_resources.KINDS
                                                if not kind.endswith("s")]])


@click.group(cls=Tools)
def configs() -> None:
    """Settings of topics, brokers, groups and loggers.

    KIND is topic, broker, group, logger or client-metrics. NAME is a topic, a broker id (or
    `default` for all brokers), a group, or the id of the broker that has the loggers.
    """


def _resource(kind: str, name: str) -> tuple[int, str]:
    kinds = config_resources.KINDS
    number = kinds[kind if kind in kinds else kind.removesuffix("s")]
    return number, "" if number == config_resources.BROKER and name == "default" else name


@configs.command()
@click.argument("kind", type=KIND)
@click.argument("name")
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@click.option("-a", "--all", "is_all", is_flag=True, help="Include defaults.")
@click.option("-d", "--documentation", is_flag=True, help="Show the documentation of each setting.")
@click.pass_obj
def describe(session: Session, kind: str, name: str, keys: tuple[str, ...], is_all: bool,
             documentation: bool) -> None:
    """Show settings that are not defaults, or those named."""
    async def work(cluster: Cluster) -> list[dict[str, Any]]:
        number, own = _resource(kind, name)
        if number == config_resources.TOPIC:
            await cluster_queries.topics(cluster, [own])
        rows = await config_resources.described(cluster, number, own, documented=documentation)
        known = [row["name"] for row in rows]
        for key in keys:
            if key not in known:
                raise cluster_queries.unknown("setting", key, known)
        if keys:
            return [row for row in rows if row["name"] in keys]
        return [row for row in rows if is_all or row["source"] not in ("default", "file")]

    rows = [{**row, "value": "(secret)" if row["sensitive"] else row["value"]}
            for row in session.run(work)]
    columns = {**COLUMNS, **({"documentation": "MEANING"} if documentation else {})}
    session.out.rows(rows, columns, empty=f"{kind} {name} has defaults only; --all shows them")


@configs.command("set")
@click.argument("kind", type=KIND)
@click.argument("name")
@click.argument("settings", nargs=-1, required=True, metavar="KEY=VALUE...")
@click.option("--dry-run", is_flag=True, help="Validate only; change nothing.")
@click.pass_obj
def set_configs(session: Session, kind: str, name: str, settings: tuple[str, ...],
                dry_run: bool) -> None:
    """Set settings; they take effect at once."""
    changes: dict[str, str | None] = dict(pairs(settings, "setting"))
    _alter(session, kind, name, changes, dry_run)


@configs.command("delete")
@click.argument("kind", type=KIND)
@click.argument("name")
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@click.option("--dry-run", is_flag=True, help="Validate only; change nothing.")
@click.pass_obj
def delete(session: Session, kind: str, name: str, keys: tuple[str, ...], dry_run: bool) -> None:
    """Reset settings to their defaults."""
    _alter(session, kind, name, dict.fromkeys(keys), dry_run)


def _alter(session: Session, kind: str, name: str, changes: dict[str, str | None],
           dry_run: bool) -> None:
    async def work(admin: Admin) -> None:
        number, own = _resource(kind, name)
        if number == config_resources.TOPIC:
            await cluster_queries.topics(admin.cluster, [own])
        await config_resources.alter(admin, number, own, changes, dry_run)

    session.administer(work)
    would = "would be " if dry_run else ""
    may_be_secret = kind.startswith("broker")
    shown = {key: "(secret)" if value is not None and may_be_secret and is_sensitive(key) else value
             for key, value in changes.items()}
    session.out.result(
        {"kind": kind, "name": name, "configs": shown, "dry_run": dry_run},
        f"{kind} {name}: " + ", ".join(
            f"{key} {would}reset to its default" if value is None
            else f"{key}={value} {would}set" for key, value in shown.items()))


COMMANDS = {"configs": configs}

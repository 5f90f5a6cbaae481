"""`pylog acl`: access rules, and which of them decides.

Owns: nothing.
Invariants: every removal requires confirmation, and a dry run changes nothing; `explain` uses the
  same authorizer as brokerd.
Source: kafka-acls, for the options; security.authorizer for the decision.
"""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

import click

from pylog.client.admin.types import AclBinding, AclFilter
from pylog.tools.cli.command import Tools, confirmed, text_of
from pylog.tools.cli.session import Session, ToolError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pylog.client.admin.admin import Admin

COLUMNS = {"permission": "PERMISSION", "principal": "PRINCIPAL", "operation": "OPERATION",
           "resource_type": "ON", "pattern_type": "PATTERN", "resource_name": "NAME",
           "host": "FROM"}
CLUSTER_NAME = "kafka-cluster"
FILE_BYTES_MAX = 64 << 20
FILTERS_ONLY = ("UNKNOWN", "ANY", "MATCH")
UNDECIDED = ("no rule allows it. Super users may do it anyway, and so may every client if no rule "
             "names the resource and allow.everyone.if.no.acl.found is set. Brokers do not report "
             "these settings; read them with --properties")


def _resources(command: Any) -> Any:
    """Add the options that name resources of one or several types."""
    for option in reversed((
            click.option("--topic", "topics", multiple=True, metavar="NAME",
                         help="A topic, * for all; may be repeated."),
            click.option("--group", "groups", multiple=True, metavar="NAME", help="A group."),
            click.option("--transactional-id", "ids", multiple=True, metavar="ID",
                         help="A transactional id."),
            click.option("--cluster", "cluster", is_flag=True, help="The cluster."),
            click.option("--user", "users", multiple=True, metavar="PRINCIPAL",
                         help="A principal, for delegation tokens."))):
        command = option(command)
    return command


def _named(given: dict[str, Any]) -> list[tuple[str, str]]:
    """Remove those options from `given` and return them as [(resource type, name)]."""
    found = [("TOPIC", name) for name in given.pop("topics")]
    found += [("GROUP", name) for name in given.pop("groups")]
    found += [("TRANSACTIONAL_ID", name) for name in given.pop("ids")]
    found += [("USER", name) for name in given.pop("users")]
    return found + [("CLUSTER", CLUSTER_NAME)] * given.pop("cluster")


def _rules(every: str) -> Callable[[Any], Any]:
    """Add the options for principals and operations. every: the default operation."""
    def given(command: Any) -> Any:
        for option in reversed((
                click.option("--allow", "allowed", multiple=True, metavar="User:NAME",
                             help="Principal to allow; may be repeated."),
                click.option("--deny", "denied", multiple=True, metavar="User:NAME",
                             help="Principal to deny, which overrides allow rules."),
                click.option("--operation", "operations", multiple=True, metavar="NAME",
                             help=f"READ, WRITE, DESCRIBE and so on.  [default: {every}]"),
                click.option("--producer", is_flag=True,
                             help="Operations that a producer of these topics needs."),
                click.option("--consumer", is_flag=True,
                             help="Operations that a consumer needs on topics and groups."),
                click.option("--prefixed", is_flag=True, help="The names are prefixes."),
                click.option("--host", "hosts", multiple=True, metavar="ADDRESS",
                             help="Only from this address; may be repeated."))):
            command = option(command)
        return command
    return given


@click.group("acl", cls=Tools)
def acl() -> None:
    """Access rules: list, add, remove, and explain decisions."""


@acl.command("list")
@_resources
@click.option("--principal", metavar="User:NAME", help="Only rules of this principal.")
@click.pass_obj
def list_rules(session: Session, principal: str | None, **given: Any) -> None:
    """List access rules; with a resource, all that apply to it."""
    named: list[tuple[str, str | None]] = [*_named(given)] or [("ANY", None)]

    async def work(admin: Admin) -> list[AclBinding]:
        found = [await admin.describe_acls(AclFilter(
            kind, name, "ANY" if name is None else "MATCH", principal)) for kind, name in named]
        return sorted(set(itertools.chain(*found)))

    session.out.rows([rule._asdict() for rule in session.administer(work)], COLUMNS,
                     empty="no rules")


@acl.command()
@_resources
@_rules("ALL")
@click.option("--dry-run", is_flag=True, help="Only print the ACLs that would be added.")
@click.pass_obj
def add(session: Session, allowed: tuple[str, ...], denied: tuple[str, ...],
        operations: tuple[str, ...], producer: bool, consumer: bool, prefixed: bool,
        hosts: tuple[str, ...], dry_run: bool, **given: Any) -> None:
    """Add access rules."""
    who = [("ALLOW", name) for name in allowed] + [("DENY", name) for name in denied]
    wanted = _wanted(_named(given), operations, producer, consumer, "ALL")
    if not who or not wanted:
        raise click.UsageError("nothing to add: name a principal (--allow or --deny) and a "
                               "resource (--topic, --group, --transactional-id, --user or "
                               "--cluster)")
    for kind, _, operation in wanted:
        _check_possible(kind, operation)
    rules = [AclBinding(kind, name, "PREFIXED" if prefixed and kind != "CLUSTER" else "LITERAL",
                        principal, host, operation, permission)
             for permission, principal in who for kind, name, operation in wanted
             for host in hosts or ("*",)]
    _add(session, rules, dry_run)


def _wanted(named: list[tuple[str, str]], operations: tuple[str, ...], producer: bool,
            consumer: bool, every: str) -> list[tuple[str, str, str]]:
    """Return [(resource type, name, operation)]."""
    sets: dict[str, set[str]] = {}
    if producer:
        sets["TOPIC"] = {"WRITE", "DESCRIBE", "CREATE"}
        sets["TRANSACTIONAL_ID"] = {"WRITE", "DESCRIBE"}
    if consumer:
        sets["TOPIC"] = sets.get("TOPIC", set()) | {"READ", "DESCRIBE"}
        sets["GROUP"] = {"READ"}
    if sets and operations:
        raise click.UsageError("--producer and --consumer already set the operations")
    plain = {name.upper() for name in operations} or {every}
    return [(kind, name, operation) for kind, name in named
            for operation in sorted(sets.get(kind, set()) if sets else plain)]


def _check_possible(kind: str, operation: str) -> None:
    """Reject a rule for an operation that is never checked on the resource, as kafka-acls does."""
    from pylog.client.admin.security import OPERATIONS, RESOURCE_TYPES, number_of, word_of
    from pylog.security import authorizer

    possible = authorizer.OPERATIONS[number_of(RESOURCE_TYPES, kind)]
    if number_of(OPERATIONS, operation) not in (authorizer.ALL, *possible):
        words = ", ".join(word_of(OPERATIONS, number) for number in (authorizer.ALL, *possible))
        raise click.UsageError(f"{operation} does not apply to a {kind}; expected one of {words}")


def _add(session: Session, rules: list[AclBinding], dry_run: bool) -> None:
    async def work(admin: Admin) -> list[AclBinding]:
        there = set(await admin.describe_acls())
        new = [rule for rule in dict.fromkeys(rules) if rule not in there]
        if not dry_run:
            await admin.create_acls(new)
        return new

    _print_changes(session, session.administer(work), "added", dry_run)


@acl.command()
@_resources
@_rules("ANY")
@click.option("--principal", metavar="User:NAME", help="Principal of the rules, allow or deny.")
@click.option("--pattern", default="LITERAL", type=click.Choice(
    ["LITERAL", "PREFIXED", "ANY", "MATCH"], case_sensitive=False),
    help="Pattern type; MATCH: all rules that apply to the resource.  [default: LITERAL]")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--dry-run", is_flag=True, help="Only show what would be removed.")
@click.pass_obj
def remove(session: Session, allowed: tuple[str, ...], denied: tuple[str, ...],
           operations: tuple[str, ...], producer: bool, consumer: bool, prefixed: bool,
           hosts: tuple[str, ...], principal: str | None, pattern: str, yes: bool,
           dry_run: bool, **given: Any) -> None:
    """Remove access rules: those that `add` with the same arguments adds, all on resources, or all
    of a principal.
    """
    named = _named(given)
    who = [("ALLOW", name) for name in allowed] + [("DENY", name) for name in denied] \
        + ([("ANY", principal)] if principal is not None else [])
    if not named and not who:
        raise click.UsageError("which rules? name a resource, or a principal with --allow, --deny "
                               "or --principal")
    wanted: list[tuple[str, str | None, str]] = [
        *_wanted(named, operations, producer, consumer, "ANY")]
    if not named and not producer and not consumer:
        wanted = [("ANY", None, operation) for operation in operations or ("ANY",)]
    if not wanted:
        raise click.UsageError("--producer and --consumer concern --topic, --transactional-id and "
                               "--group: name one")
    patterns = "PREFIXED" if prefixed else pattern
    whose: list[tuple[str, str | None]] = [*who] or [("ANY", None)]
    filters = [AclFilter(kind, name, _pattern(kind, name, patterns), whom, host, operation,
                         permission)
               for permission, whom in whose for kind, name, operation in wanted
               for host in hosts or (None,)]
    _remove(session, filters, yes, dry_run)


def _pattern(kind: str, name: str | None, wanted: str) -> str:
    """Return the pattern type for a filter; the cluster has one name and no prefix."""
    return "ANY" if name is None or kind == "CLUSTER" else wanted


def _remove(session: Session, filters: list[AclFilter], yes: bool, dry_run: bool) -> None:
    """Remove the rules after confirmation."""
    async def query(admin: Admin) -> list[AclBinding]:
        found = [await admin.describe_acls(wanted) for wanted in filters]
        return sorted(set(itertools.chain(*found)))

    doomed = session.administer(query)
    if doomed and not dry_run:
        confirmed(f"remove {len(doomed)} rules?", yes)
        session.administer(lambda admin: admin.delete_acls([_exactly(rule) for rule in doomed]))
    _print_changes(session, doomed, "removed", dry_run)


def _exactly(rule: AclBinding) -> AclFilter:
    return AclFilter(*rule)


def _print_changes(session: Session, rules: list[AclBinding], done: str, dry_run: bool) -> None:
    would = f"would be {done}" if dry_run else done
    session.out.rows([rule._asdict() for rule in rules], COLUMNS, empty=f"no rule {would}")
    if not session.given.get("as_json") and rules:
        click.echo(f"{len(rules)} {would}", err=True)


# ---- files ------------------------------------------------------------------------------------


@acl.command("export")
@click.argument("file", type=click.File("w"), default="-")
@click.pass_obj
def export_rules(session: Session, file: Any) -> None:
    """Write all access rules as JSON, in a stable order."""
    rules = sorted(session.administer(lambda admin: admin.describe_acls()))
    file.write("[" + ",".join(f"\n  {json.dumps(rule._asdict())}" for rule in rules) + "\n]\n")


@acl.command("import")
@click.argument("file", type=click.File("r"))
@click.option("--only", is_flag=True, help="Remove the rules that the file has not.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--dry-run", is_flag=True, help="Only print the changes.")
@click.pass_obj
def import_rules(session: Session, file: Any, only: bool, yes: bool, dry_run: bool) -> None:
    """Add the access rules of a file that `export` wrote."""
    rules = _read(file)
    there = set(session.administer(lambda admin: admin.describe_acls()))
    _add(session, rules, dry_run)
    doomed = sorted(there - set(rules)) if only else []
    if doomed:
        _remove(session, [_exactly(rule) for rule in doomed], yes, dry_run)


def _read(file: Any) -> list[AclBinding]:
    """Parse a file of `export`. Raises ToolError."""
    try:
        rows = json.loads(text_of(file, FILE_BYTES_MAX))
        if not isinstance(rows, list):
            raise ValueError("no list")
        return [_rule(number, row) for number, row in enumerate(rows, 1)]
    except ValueError as error:
        raise ToolError(f"{file.name}: expected a list of rules as `pylog acl export` writes it: "
                        f"{error}") from None


def _rule(number: int, row: Any) -> AclBinding:
    """Return the rule of a row, counted from 1. Raises ValueError."""
    from pylog.client.admin.security import WORDS

    if not isinstance(row, dict):
        raise ValueError(f"rule {number} is no object")
    for wrong, names in (("lacks", [name for name in AclBinding._fields if name not in row]),
                         ("has no field", [name for name in row if name not in COLUMNS])):
        if names:
            raise ValueError(f"rule {number} {wrong} {', '.join(names)}")
    for name, value in row.items():
        if not isinstance(value, str):
            raise ValueError(f"rule {number}: {name} is no text: {json.dumps(value)}")
        words = [word for word in WORDS.get(name, ()) if word not in FILTERS_ONLY]
        if words and value.upper() not in words:
            raise ValueError(f"rule {number}: {name} {value!r} is not one of {', '.join(words)}")
    return AclBinding(**row)


# ---- which rule decides -----------------------------------------------------------------------


@acl.command()
@_resources
@click.option("--principal", required=True, metavar="User:NAME", help="Principal to check.")
@click.option("--operation", required=True, metavar="NAME", help="Operation to check.")
@click.option("--host", default="127.0.0.1", metavar="ADDRESS", help="Client address.")
@click.option("--properties", type=click.Path(exists=True, dir_okay=False), metavar="FILE",
              help="The brokers' server.properties, for super.users and "
              "allow.everyone.if.no.acl.found.")
@click.pass_obj
def explain(session: Session, principal: str, operation: str, host: str, properties: str | None,
            **given: Any) -> None:
    """Show if a principal may perform an operation, and which rule decides."""
    from pylog.client.admin import acl_decisions

    settings = acl_decisions.Unreported() if properties is None else _settings(properties)
    named = _named(given)
    if len(named) != 1:
        raise click.UsageError("name one resource: --topic, --group, --transactional-id, --user or "
                               "--cluster")
    kind, name = named[0]

    rules = session.administer(lambda admin: admin.describe_acls())
    try:
        decision = acl_decisions.decide(settings, rules, principal, host, operation, kind, name)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    is_told = properties is not None
    allowed: bool | None = decision.allowed
    by = decision.reason
    if decision.rule is not None:
        by = _shown(decision.rule)
        if not (allowed or is_told):
            by += "; super users may do it anyway"
    elif not is_told:
        allowed, by = None, UNDECIDED
    session.out.result(
        {"allowed": allowed, "rule": None if decision.rule is None else decision.rule._asdict(),
         "by": by},
        f"{ {True: 'allowed', False: 'denied', None: 'by the rules denied'}[allowed]}: {by}")


def _settings(properties: str) -> Any:
    """Return the settings of a server.properties file. Raises ToolError."""
    from pylog.config import ConfigError, Settings
    from pylog.security.authorization.access import STANDARD

    try:
        settings = Settings.load(properties)
    except ConfigError as error:
        raise ToolError(str(error)) from None
    name = settings["authorizer.class.name"]
    if not name:
        raise ToolError(f"{properties}: without authorizer.class.name every connected client may "
                        f"do everything")
    if name != STANDARD:
        raise ToolError(f"{properties}: authorizer.class.name={name}: brokers with it do not use "
                        f"these rules; only those with {STANDARD} do")
    return settings


def _shown(rule: AclBinding) -> str:
    words = rule._asdict()
    return " ".join(words[field] for field in (
        "permission", "principal", "operation", "resource_type", "pattern_type",
        "resource_name")) + f" from {rule.host}"


COMMANDS = {"acl": acl}

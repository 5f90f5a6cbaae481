"""`pylog users`: users that log in with SCRAM.

Owns: nothing.
Invariants: a password comes from a prompt, standard input or a file, never from the command line,
  which other users can see; every removal requires confirmation.
Source: kafka-configs --entity-type users (KIP-554).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from pylog.client.admin.types import ScramDeletion, ScramUpsertion
from pylog.tools.cli.command import Tools, confirmed
from pylog.tools.cli.session import Session, ToolError

if TYPE_CHECKING:
    from pylog.client.admin.admin import Admin

COLUMNS = {"user": "USER", "mechanism": "MECHANISM", "iterations": "ITERATIONS"}
MECHANISM = click.Choice(["SCRAM-SHA-256", "SCRAM-SHA-512"], case_sensitive=False)


@click.group("users", cls=Tools)
def users() -> None:
    """Users that log in with SCRAM, and their passwords."""


@users.command("list")
@click.argument("names", nargs=-1, metavar="[USER]...")
@click.pass_obj
def list_users(session: Session, names: tuple[str, ...]) -> None:
    """List users and their mechanisms."""
    async def work(admin: Admin) -> list[dict[str, Any]]:
        found = await admin.describe_user_scram_credentials(names)
        return [{"user": user, **info._asdict()}
                for user, infos in sorted(found.items()) for info in infos]

    session.out.rows(session.administer(work), COLUMNS, empty="no users")


@users.command("set")
@click.argument("name", metavar="USER")
@click.option("--mechanism", "mechanisms", multiple=True, type=MECHANISM,
              help="SCRAM mechanism; may be repeated.  [default: both]")
@click.option("--iterations", type=click.IntRange(4096, 16384), default=4096, show_default=True)
@click.option("--password-file", type=click.File("r"),
              help="File whose first line is the password.")
@click.pass_obj
def set_password(session: Session, name: str, mechanisms: tuple[str, ...], iterations: int,
                 password_file: Any) -> None:
    """Set a user's password from a prompt or from standard input."""
    password = _password(password_file)

    async def work(admin: Admin) -> None:
        await admin.alter_user_scram_credentials([
            ScramUpsertion(name, password, mechanism, iterations)
            for mechanism in mechanisms or MECHANISM.choices])

    session.administer(work)
    session.out.result({"user": name}, f"{name}: the password is set")


def _password(file: Any) -> str:
    """Return the password from a prompt, standard input or a file."""
    if file is None and sys.stdin.isatty():
        found: str = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        source = file or sys.stdin
        try:
            found = source.readline().rstrip("\n")
        except UnicodeDecodeError:
            raise ToolError(f"{source.name}: not UTF-8 text") from None
    if not found:
        raise ToolError("the password is empty")
    return found


@users.command()
@click.argument("name", metavar="USER")
@click.option("--mechanism", "mechanisms", multiple=True, type=MECHANISM,
              help="Only this one.  [default: all that there are]")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.pass_obj
def remove(session: Session, name: str, mechanisms: tuple[str, ...], yes: bool) -> None:
    """Remove a user's passwords."""
    confirmed(f"remove {name}?", yes)  # Require confirmation.

    async def work(admin: Admin) -> None:
        there = (await admin.describe_user_scram_credentials([name]))[name]
        await admin.alter_user_scram_credentials([
            ScramDeletion(name, mechanism)
            for mechanism in mechanisms or [info.mechanism for info in there]])

    session.administer(work)
    session.out.result({"user": name}, f"{name} is removed")


COMMANDS = {"users": users}

"""`pylog tokens`: delegation tokens, which let a program log in for a user.

Owns: nothing.
Invariants: the HMAC of a token is printed once, on creation, and later read only from standard
  input.
Source: kafka-delegation-tokens.
"""

from __future__ import annotations

import base64
import sys
from typing import TYPE_CHECKING, Any

import click

from pylog.tools.cli.command import Tools
from pylog.tools.cli.output import span
from pylog.tools.cli.session import Session, ToolError

if TYPE_CHECKING:
    from pylog.client.admin.types import DelegationToken

COLUMNS = {"token_id": "TOKEN", "owner": "OWNER", "renewers": "RENEWERS",
           "expires_seconds": ("EXPIRES IN", span), "ends_seconds": ("ENDS IN", span)}


@click.group("tokens", cls=Tools)
def tokens() -> None:
    """Delegation tokens: let a program log in for the user that created the token."""


def _row(session: Session, token: DelegationToken) -> dict[str, Any]:
    now_ms = session.now_ms()
    return {"token_id": token.token_id, "owner": token.owner, "renewers": token.renewers,
            "expires_seconds": (token.expires_ms - now_ms) / 1000,
            "ends_seconds": (token.ends_ms - now_ms) / 1000}


@tokens.command("list")
@click.option("--owner", "owners", multiple=True, metavar="User:NAME",
              help="Owner or renewer of the tokens; may be repeated.")
@click.pass_obj
def list_tokens(session: Session, owners: tuple[str, ...]) -> None:
    """List the tokens that you may see."""
    found = session.administer(lambda admin: admin.describe_delegation_token(owners or None))
    session.out.rows([_row(session, token) for token in found], COLUMNS, empty="no tokens")


@tokens.command()
@click.option("--owner", metavar="User:NAME", help="Owner of the token.  [default: you]")
@click.option("--renewer", "renewers", multiple=True, metavar="User:NAME",
              help="User that may renew the token; may be repeated.")
@click.option("--hours", type=click.FloatRange(min=0, min_open=True),
              help="Maximum lifetime.  [default: the brokers' delegation.token.max.lifetime.ms]")
@click.pass_obj
def create(session: Session, owner: str | None, renewers: tuple[str, ...],
           hours: float | None) -> None:
    """Create a token. Its password is shown once."""
    life_ms = -1 if hours is None else int(hours * 3_600_000)
    made = session.administer(
        lambda admin: admin.create_delegation_token(renewers, owner, life_ms))
    session.out.result({**_row(session, made), "password": made.password},
                       f"{made.token_id} of {made.owner}")
    session.out.line(made.password)
    session.out.line("Log in with SCRAM: the token as the user, the second line as the password, "
                     "and tokenauth=true (pylog.sasl.tokenauth=true for pylog)")


@tokens.command()
@click.option("--hours", type=click.FloatRange(min=0, min_open=True), help="New lifetime from now.")
@click.pass_obj
def renew(session: Session, hours: float | None) -> None:
    """Renew a token; reads its password from standard input."""
    proof, period_ms = _proof(), -1 if hours is None else int(hours * 3_600_000)
    end_ms = session.administer(lambda admin: admin.renew_delegation_token(proof, period_ms))
    session.out.result({"expires_ms": end_ms},
                       f"it is valid for {span((end_ms - session.now_ms()) / 1000)} from now on")


@tokens.command()
@click.pass_obj
def expire(session: Session) -> None:
    """Expire a token at once; reads its password from standard input."""
    proof = _proof()
    session.administer(lambda admin: admin.expire_delegation_token(proof))
    session.out.result({"ended": True}, "it has expired")


def _proof() -> bytes:
    """Return the HMAC from a prompt or from standard input. Raises ToolError."""
    text = click.prompt("Password of the token", hide_input=True, err=True) \
        if sys.stdin.isatty() else sys.stdin.readline().strip()
    try:
        found = base64.b64decode(text, validate=True)
    except ValueError:
        found = b""
    if not found:
        raise ToolError("this is not the password of a token")
    return found


COMMANDS = {"tokens": tokens}

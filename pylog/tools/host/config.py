"""`pylog config` and `pylog version`: information about brokerd, without a running broker.

Owns: nothing.
Invariants: `pylog config` is `brokerd config`.
Source: none.
"""

from __future__ import annotations

import click

from pylog.tools.cli.command import Local


@click.command("config", context_settings={"ignore_unknown_options": True,
                                           "help_option_names": []},
               add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def config(ctx: click.Context, arguments: tuple[str, ...]) -> None:
    """Explain and list the settings of brokerd."""
    raise AssertionError("cli.pylog answers it")


@click.command("version", cls=Local)
@click.pass_obj
def version(session) -> None:
    """Print the version, the commit and the build date."""
    import pylog
    from pylog.version import build_date, commit, version

    session.out.result({"version": pylog.__version__, "commit": commit(), "built": build_date()},
                       f"pylog {version()}")


COMMANDS = {"config": config, "version": version}

"""What all commands have in common: shared options, nearest names, arguments that complete, and
looking again and again.

Owns: nothing.
Invariants: (1) a shared option may stand before or behind the command's name; the last one counts;
  (2) a name that does not exist is answered with the nearest one that does; (3) who watches goes on
  watching when a look fails.
Source: click; watch(1).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import click

from pylog.config.errors import nearest
from pylog.tools.cli.escapes import escaped, one_line
from pylog.tools.cli.session import Session, ToolError

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


def shared(local: bool = False) -> list[click.Option]:
    """The options of every command. local: of those that ask no broker."""

    def keep(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
        session = ctx.ensure_object(Session)
        if value not in (None, False, ()):
            session.given[str(parameter.name)] = value

    def option(*names: str, **attributes: Any) -> click.Option:
        return click.Option(list(names), expose_value=False, callback=keep, **attributes)

    made = [] if local else [
        option("-b", "--bootstrap-server", "bootstrap", metavar="HOST:PORT",
               help="Brokers to ask first, by commas.  [default: localhost:9092]"),
        option("-c", "--client-config", "client_config", metavar="FILE",
               type=click.Path(dir_okay=False), help="Client settings, as Java's .properties."),
        option("-P", "--profile", "profile", metavar="NAME", help="Client settings of "
               "~/.config/pylog/NAME.properties.  [env var: PYLOG_PROFILE]"),
        option("-X", "--client-setting", "client_settings", metavar="KEY=VALUE", multiple=True,
               help="One client setting; may be repeated."),
        option("--timeout", "timeout_s", metavar="SECONDS", type=click.FloatRange(min=0.001),
               help="Longest wait for the cluster.  [default: 15]"),
    ]
    return [*made, option("--json", "as_json", is_flag=True,
                          help="Print JSON, with keys that stay.")]


class Tool(click.Command):
    """A command that asks a cluster."""

    local = False

    def __init__(self, *args: Any, **attributes: Any):
        attributes.setdefault("context_settings", CONTEXT)
        super().__init__(*args, **attributes)
        self.params += shared(self.local)


class Look(Tool):
    """A command that changes nothing, and can do so again and again."""

    def __init__(self, *args: Any, **attributes: Any):
        super().__init__(*args, **attributes)
        self.params.append(watch_option())

    def invoke(self, ctx: click.Context) -> Any:
        seconds = ctx.params.pop("watch")
        return watched(ctx.obj, seconds, lambda: super(Look, self).invoke(ctx))


def watch_option() -> click.Option:
    return click.Option(["-w", "--watch"], metavar="SECONDS", type=click.FloatRange(min=0.1),
                        help="Look again every so many seconds, until Ctrl-C.")


def watched(session: Session, seconds: float | None, look: Callable[[], Any]) -> Any:
    """One look, or as many as there is time for."""
    if seconds is None:
        return look()
    from pylog.client.errors import KafkaError

    while True:
        if session.out.is_rich:
            click.clear()
        try:
            look()
        except (KafkaError, ToolError, OSError) as error:
            session.out.note(f"pylog: {one_line(error)}")   # Keeps (3).
        session.out.line()
        session.out.out.flush()
        time.sleep(seconds)


class Local(Tool):
    """A command that asks no broker."""

    local = True


class Tools(click.Group):
    """A command with commands below it. Keeps (2)."""

    command_class = Tool

    def __init__(self, *args: Any, **attributes: Any):
        attributes.setdefault("context_settings", CONTEXT)
        super().__init__(*args, **attributes)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        known = self.list_commands(ctx)
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            near = nearest(args[0], known)
            hint = f"; nearest valid name: {near}" if near else ""
            raise click.UsageError(f"no command {args[0]!r}{hint}", ctx)
        return super().resolve_command(ctx, args)


class _Named(click.ParamType):
    """A name that the shell completes by asking the cluster."""

    wait_s = 2.0

    def __init__(self, name: str):
        self.name = name

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list:
        from click.shell_completion import CompletionItem

        from pylog.client.errors import KafkaError
        from pylog.tools.cli import cluster_queries

        session = ctx.ensure_object(Session)
        session.given.setdefault("timeout_s", self.wait_s)
        look = cluster_queries.topic_names if self.name == "topic" else cluster_queries.group_names
        try:
            names = session.run(look)
        except (KafkaError, ToolError, OSError):
            return []  # In a half-typed line there is nowhere to complain.
        # The shell would take a control character of a name as typed.
        return [CompletionItem(name) for name in names
                if name.startswith(incomplete) and name.isprintable()]


TOPIC = _Named("topic")
GROUP = _Named("group")


def registry_option(command: Any) -> Any:
    """Where schemas are kept."""
    return click.option("--registry", metavar="URL", envvar="PYLOG_REGISTRY", show_envvar=True,
                        help="The schema registry, http://[user:password@]host:port.")(command)


def pairs(given: tuple[str, ...], what: str) -> dict[str, str]:
    """{key: value} of key=value texts. Raises click.UsageError."""
    found = {}
    for text in given:
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise click.UsageError(f"{what} {text!r}: expected KEY=VALUE")
        found[key.strip()] = value
    return found


def text_of(file: Any, chars_max: int = -1) -> str:
    """What a text file holds. Raises ToolError."""
    try:
        return str(file.read(chars_max))
    except UnicodeDecodeError:
        raise ToolError(f"{file.name}: no UTF-8 text") from None


def confirmed(question: str, yes: bool) -> None:
    """Asks on a terminal; elsewhere --yes has to say so. Raises click.Abort, UsageError."""
    import sys

    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question.rstrip('?')}: --yes is needed where nobody can be asked")
    click.confirm(escaped(question), abort=True, err=True)

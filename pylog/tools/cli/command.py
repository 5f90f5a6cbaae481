"""Base classes of the commands: shared options, closest names, completion, and --watch.

Owns: nothing.
Invariants: a shared option can precede or follow the command's name, and the last one wins; an
  error for an unknown name includes the closest existing one; --watch continues after an error.
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
    """Return the options that every command has. local: for commands without a cluster."""

    def keep(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
        session = ctx.ensure_object(Session)
        if value not in (None, False, ()):
            session.given[str(parameter.name)] = value

    def option(*names: str, **attributes: Any) -> click.Option:
        return click.Option(list(names), expose_value=False, callback=keep, **attributes)

    made = [] if local else [
        option("-b", "--bootstrap-server", "bootstrap", metavar="HOST:PORT",
               help="Bootstrap brokers, separated by commas.  [default: localhost:9092]"),
        option("-c", "--client-config", "client_config", metavar="FILE",
               type=click.Path(dir_okay=False), help="Client settings, a Java .properties file."),
        option("-P", "--profile", "profile", metavar="NAME", help="Client settings from "
               "~/.config/pylog/NAME.properties.  [env var: PYLOG_PROFILE]"),
        option("-X", "--client-setting", "client_settings", metavar="KEY=VALUE", multiple=True,
               help="One client setting; may be repeated."),
        option("--timeout", "timeout_s", metavar="SECONDS", type=click.FloatRange(min=0.001),
               help="Timeout for the cluster.  [default: 15]"),
    ]
    return [*made, option("--json", "as_json", is_flag=True,
                          help="Print JSON with stable keys.")]


class Tool(click.Command):
    """A command that connects to a cluster."""

    local = False

    def __init__(self, *args: Any, **attributes: Any):
        attributes.setdefault("context_settings", CONTEXT)
        super().__init__(*args, **attributes)
        self.params += shared(self.local)


class Watchable(Tool):
    """A read-only command that can repeat with --watch."""

    def __init__(self, *args: Any, **attributes: Any):
        super().__init__(*args, **attributes)
        self.params.append(watch_option())

    def invoke(self, ctx: click.Context) -> Any:
        seconds = ctx.params.pop("watch")
        return watched(ctx.obj, seconds, lambda: super(Watchable, self).invoke(ctx))


def watch_option() -> click.Option:
    return click.Option(["-w", "--watch"], metavar="SECONDS", type=click.FloatRange(min=0.1),
                        help="Repeat at this interval until Ctrl-C.")


def watched(session: Session, seconds: float | None, query: Callable[[], Any]) -> Any:
    """Run the command once, or repeatedly with --watch."""
    if seconds is None:
        return query()
    from pylog.client.errors import KafkaError

    while True:
        if session.out.is_rich:
            click.clear()
        try:
            query()
        except (KafkaError, ToolError, OSError) as error:
            session.out.note(f"pylog: {one_line(error)}")  # Continue: --watch survives errors.
        session.out.line()
        session.out.out.flush()
        time.sleep(seconds)


class Local(Tool):
    """A command that does not connect to a broker."""

    local = True


class Tools(click.Group):
    """A group of subcommands. The error for an unknown name includes the closest one."""

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
    """A name that the shell completes from the cluster."""

    wait_s = 2.0

    def __init__(self, name: str):
        self.name = name

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list:
        from click.shell_completion import CompletionItem

        from pylog.client.errors import KafkaError
        from pylog.tools.cli import cluster_queries

        session = ctx.ensure_object(Session)
        session.given.setdefault("timeout_s", self.wait_s)
        query = cluster_queries.topic_names if self.name == "topic" else cluster_queries.group_names
        try:
            names = session.run(query)
        except (KafkaError, ToolError, OSError):
            return []  # Completion must not print errors into a half-typed line.
        # The shell would insert a control character of a name as typed.
        return [CompletionItem(name) for name in names
                if name.startswith(incomplete) and name.isprintable()]


TOPIC = _Named("topic")
GROUP = _Named("group")


def registry_option(command: Any) -> Any:
    """Add the option for the schema registry's URL."""
    return click.option("--registry", metavar="URL", envvar="PYLOG_REGISTRY", show_envvar=True,
                        help="Schema registry, http://[user:password@]host:port.")(command)


def pairs(given: tuple[str, ...], what: str) -> dict[str, str]:
    """Return {key: value} of key=value texts. Raises click.UsageError."""
    found = {}
    for text in given:
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise click.UsageError(f"{what} {text!r}: expected KEY=VALUE")
        found[key.strip()] = value
    return found


def text_of(file: Any, chars_max: int = -1) -> str:
    """Return the content of a text file. Raises ToolError."""
    try:
        return str(file.read(chars_max))
    except UnicodeDecodeError:
        raise ToolError(f"{file.name}: not UTF-8 text") from None


def confirmed(question: str, yes: bool) -> None:
    """Ask for confirmation on a terminal; elsewhere require --yes. Raises click.Abort, UsageError.
    """
    import sys

    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question.rstrip('?')}: --yes is required when input is not a "
                               f"terminal")
    click.confirm(escaped(question), abort=True, err=True)

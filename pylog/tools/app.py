"""The root of the `pylog` command: loads the module of a command and reports failures.

Owns: the table of commands, the exit codes.
Invariants: an error is one line on stderr and a non-zero exit code, never a traceback; the module
  of a command is imported on first use, so that help and completion stay fast.
Source: click; the exit codes are the usual ones: 1 failed, 2 wrong usage, 130 Ctrl-C.
"""

from __future__ import annotations

import importlib
import os
import sys

import click

from pylog.tools.cli.command import Tools, shared
from pylog.tools.cli.escapes import one_line
from pylog.tools.cli.session import Session, ToolError

EXIT_FAILED, EXIT_USAGE, EXIT_BUG, EXIT_INTERRUPTED = 1, 2, 70, 130

# command: (module, one line of help), in the order of the help page.
COMMANDS = {
    "Records": {
        "produce": ("records.produce", "Send records from a file or from standard input."),
        "consume": ("records.consume", "Print records of topics."),
        "offsets": ("records.offsets", "First and last offsets, or offsets for a time."),
    },
    "Topics and settings": {
        "topics": ("topics.topics", "List, describe, create, change and delete topics."),
        "configs": ("topics.configs", "Settings of topics, brokers, groups and loggers."),
        "quotas": ("topics.quotas", "Limits for users, client ids and IP addresses."),
        "registry": ("records.registry", "Schemas of a registry: list, register, check, delete."),
        "config": ("host.config", "Explain and list the settings of brokerd."),
    },
    "Groups": {
        "groups": ("groups.groups",
                   "Consumer groups: lag, members, offsets, and why a group lags."),
        "share": ("groups.share", "Share groups: their progress and their dead letters."),
        "streams": ("groups.streams", "Streams groups: tasks, members and lag."),
        "txn": ("groups.transactions",
                "Transactions: list open ones, find what blocks a partition, abort."),
    },
    "Security": {
        "acl": ("security.acls", "Access rules: list, add, remove, and explain decisions."),
        "users": ("security.users", "Users that log in with SCRAM, and their passwords."),
        "tokens": ("security.tokens",
                   "Delegation tokens: let a program log in for a user."),
    },
    "Cluster and machine": {
        "cluster": ("cluster.cluster", "Brokers, controller, log directories, moves of replicas."),
        "console": ("console", "Serve the web console of one or more clusters."),
        "doctor": ("host.doctor", "Find problems of this machine and the cluster."),
        "health": ("host.health", "Check whether a brokerd is ready; for containers."),
        "systemd": ("host.systemd", "Print a sandboxed systemd unit that runs brokerd."),
        "perf": ("records.perf", "Measure producing, consuming, and end-to-end latency."),
        "support-bundle": ("support_bundle",
                           "Collect what support needs in one file, without secrets."),
        "log": ("segments.segments", "Verify, print and repair segment files, without a broker."),
    },
    "This command": {
        "completion": ("completion", "Completion for bash, zsh and fish."),
        "version": ("host.config", "Print the version."),
    },
}


# Aliases that help does not list.
ALIASES = {"topic": "topics"}


class Root(Tools):
    """Finds commands by name without importing their modules."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for rows in COMMANDS.values() for name in rows]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        name = ALIASES.get(name, name)
        for rows in COMMANDS.values():
            if name in rows:
                module = importlib.import_module(f"pylog.tools.{rows[name][0]}")
                found: click.Command = module.COMMANDS[name]
                return found
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, rows in COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl([(name, text) for name, (_, text) in rows.items()],
                                   col_max=14)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list:
        from click.shell_completion import CompletionItem

        return [CompletionItem(name, help=text) for rows in COMMANDS.values()
                for name, (_, text) in rows.items() if name.startswith(incomplete)]


def root() -> Root:
    """Return a command with all of its subcommands."""
    made = Root(
        "pylog", params=[*shared(), click.Option(["--version"], is_flag=True, is_eager=True,
                                                 expose_value=False, callback=_version,
                                                 help="Print the version and exit.")],
        help="Tools for brokerd and every cluster that speaks Kafka's protocol.",
        epilog="Options may stand before or behind a command. Every command takes --json and "
               "--help. PYLOG_BOOTSTRAP is used in place of -b.")
    made.callback = lambda: None
    return made


def _version(ctx: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if wanted:
        from pylog.version import version

        click.echo(f"pylog {version()}")
        ctx.exit(0)


def main(argv: list[str]) -> int:
    """Run one command and return its exit code. Prints errors as one line, without a traceback."""
    from pylog.tools.cli.output import with_buffer

    session = Session()
    # A closed stream is None. Opening it also keeps its descriptor from becoming a socket's.
    sys.stdin = sys.stdin or open(os.devnull)
    if sys.stdout is None:
        return _fail("standard output is closed: use > /dev/null to discard the output",
                     EXIT_FAILED)
    sys.stderr = sys.stderr or open(os.devnull, "w")
    sys.stdout = with_buffer(sys.stdout)
    try:
        ended = root().main(args=argv, prog_name="pylog", standalone_mode=False, obj=session)
        sys.stdout.flush()
        return ended if isinstance(ended, int) else 0
    except click.exceptions.NoArgsIsHelpError as ended:
        print(ended.ctx.get_help() if ended.ctx else "", file=sys.stderr)
        return EXIT_USAGE
    except click.UsageError as error:
        hint = f" (see {error.ctx.command_path} --help)" if error.ctx else ""
        return _fail(f"{error.format_message().rstrip('.')}{hint}", EXIT_USAGE)
    except click.ClickException as error:
        return _fail(error.format_message(), EXIT_FAILED)
    except (KeyboardInterrupt, click.Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return EXIT_FAILED  # The reader closed the pipe, as `head` does.
    except ToolError as error:
        return _fail(error, error.exit_code)
    except Exception as error:
        return _failed(error, session)
    finally:
        session.hush()
        _discard_unwritten()


def _discard_unwritten() -> None:
    """Drop output that cannot be written. Python would print a traceback for it at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _failed(error: Exception, session: Session) -> int:
    from pylog.client.errors import ConfigError, KafkaError
    from pylog.protocol.errors import EncodeError

    if isinstance(error, ConfigError):
        return _fail(session.placed(error), EXIT_USAGE)
    if isinstance(error, EncodeError):  # An option's value is too large for the request's field.
        return _fail(error, EXIT_USAGE)
    if isinstance(error, KafkaError):
        return _fail(error, EXIT_FAILED)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"{where}{error.strerror or error}", EXIT_FAILED)
    if isinstance(error, ImportError) and not str(error.name or "pylog").startswith("pylog"):
        package = str(error.name).partition(".")[0]
        return _fail(f"this command needs {package}: pip install {package}", EXIT_FAILED)
    if os.environ.get("PYLOG_TRACEBACK"):
        raise error
    return _fail(f"internal error: {type(error).__name__}: {error} (PYLOG_TRACEBACK=1 shows where)",
                 EXIT_BUG)


def _fail(error: object, code: int) -> int:
    print(f"pylog: {one_line(error)}", file=sys.stderr)
    return code

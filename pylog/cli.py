"""The commands: brokerd, the server, and pylog, the command-line tool.

Owns: the arguments, the exit codes and the ready line.
Invariants: an error is one line on stderr and a non-zero exit code, never a traceback; modules that
  startup does not need are imported where they are used.
"""

import contextlib
import sys

from . import installation

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_BUG = 70


def brokerd(argv: list[str] | None = None) -> int:
    """Run a broker until SIGTERM or SIGINT, explain settings, or check Kafka's directories.

    Return the exit code.
    """
    argv = sys.argv[1:] if argv is None else argv
    if conflict := installation.problem():
        return _report_error("brokerd", conflict, EXIT_FAILED)
    if argv and argv[0] in COMMANDS:
        return _guarded("brokerd", COMMANDS[argv[0]][0], argv[1:])
    return _guarded("brokerd", _serve, argv)


def pylog(argv: list[str] | None = None) -> int:
    """Run the tool. Return the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    if conflict := installation.problem():
        return _report_error("pylog", conflict, EXIT_FAILED)
    if argv[:1] == ["config"]:
        return _guarded("pylog", _config, argv[1:])
    from .tools.app import main

    return main(argv)


def _guarded(command: str, work, argv: list[str]) -> int:
    """Run work(argv). Report expected errors in one line. Return the exit code."""
    from .config import ConfigError
    from .log.errors import StartError

    try:
        return work(command, argv)
    except ConfigError as error:
        return _report_error(command, error, EXIT_USAGE)
    except StartError as error:
        return _report_error(command, error, EXIT_FAILED)
    except BrokenPipeError:
        # The reader of stdout has exited. Prevents Python's own error message at exit.
        sys.stdout = None
        return EXIT_FAILED
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _report_error(command, f"{where}{error.strerror or error}", EXIT_FAILED)
    except KeyboardInterrupt:
        return 130


def _report_error(command: str, error, code: int) -> int:
    print(f"{command}: {' '.join(str(error).split())}", file=sys.stderr)
    return code


def _serve(command: str, argv: list[str]) -> int:
    """Load the settings and run the broker."""
    parser = _serve_arguments()
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        parser.error(f"unknown option {unknown[0]}. Settings are given as --override key=value, "
                     "for example --override listeners=PLAINTEXT://:9093")
    if args.version:
        return _version(command)
    from .config import ConfigError, Settings

    settings = Settings.load(args.properties, args.override, _derivation(args.cluster))
    from .monitor import logfmt

    logfmt.set_up()
    import logging

    log = logging.getLogger("pylog.cli")
    for warning in settings.warnings:
        log.warning(warning)
    open_to_all = settings.open_listeners()
    if open_to_all:
        log.warning("listeners are reachable from other machines without authentication: %s",
                    ", ".join(open_to_all))
    if _replicates(settings) and not settings["replica.flush.before.fetch.enable"]:
        log.warning("replica.flush.before.fetch.enable=false: acks=all means in the page cache of "
                    "every in-sync replica, so a power loss of all brokers loses acknowledged "
                    "records. Set it to true on all brokers unless you accept that loss")
    broker = _imported_broker()
    _raise_open_files()
    try:
        return broker.run(settings, ready=lambda addresses: _print_ready(settings, addresses),
                          first=_first_credentials(args.add_scram))
    except broker.StartError as error:
        return _report_error(command, error, EXIT_FAILED)
    except Exception as error:
        if isinstance(error, (OSError, ConfigError)):
            raise
        # The traceback becomes a field of one log line.
        log.critical("brokerd failed", exc_info=True)
        return EXIT_BUG


def _imported_broker():
    """Import the broker without garbage collection.

    Its 300 modules leave nothing to collect, and examining their objects takes 5 % of a start.
    """
    import gc

    gc.disable()
    try:
        from . import broker
    finally:
        # Otherwise the next collection examines them all.
        gc.freeze()
        gc.enable()
    return broker


def _first_credentials(texts: list[str]) -> list:
    if not texts:
        return []
    from pylog.metadata.controller import scram_credentials

    from .config import ConfigError

    try:
        return scram_credentials.first(texts)
    except ValueError as error:
        raise ConfigError(f"--add-scram: {error}") from None


def _derivation(hosts: str | None):
    """Return a function that derives settings from the hosts of --cluster, None without hosts."""
    if hosts is None:
        return None
    from .config import clusters

    return lambda given: clusters.derived(hosts, given, _is_here)


def _is_here(host: str) -> bool:
    """Return True if the name or address belongs to this machine."""
    import socket

    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.bind(address)
                return True
            except OSError:
                continue
    return False


def _raise_open_files() -> None:
    """Raise the limit of open descriptors to the maximum: segments and connections need many."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _serve_arguments():
    parser = _parser("brokerd", "A message broker that speaks the Apache Kafka protocol.",
                     "Commands: " + "; ".join(f"brokerd {name}: {text}"
                                              for name, (_, text) in COMMANDS.items()) + ".")
    parser.add_argument("properties", nargs="?", metavar="server.properties",
                        help="a file with settings, which have Kafka's names; optional")
    _add_override(parser)
    parser.add_argument("--cluster", metavar="HOST,HOST,HOST",
                        help="form a cluster of these machines, including this one; use the same "
                             "text on all of them")
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    parser.add_argument(
        "--add-scram", action="append", default=[], metavar="MECHANISM=[name=…,password=…]",
        help="create a user of a new cluster, in the format of kafka-storage; may be repeated")
    return parser


def _parser(command: str, description: str, epilog: str = ""):
    import argparse

    def narrow(prog: str):
        # By default argparse queries the terminal width, which imports modules for 5 ms.
        return argparse.HelpFormatter(prog, width=100)

    return argparse.ArgumentParser(prog=command, description=description, epilog=epilog,
                                   formatter_class=narrow)


def _add_override(parser) -> None:
    parser.add_argument("--override", action="append", default=[], metavar="key=value",
                        help="set one setting; takes precedence over the file; may be repeated")


def _replicates(settings) -> bool:
    """Return True if this broker belongs to a cluster, where partitions can have several replicas.
    """
    return bool(settings["controller.quorum.voters"]) and "controller" != ",".join(
        settings["process.roles"])


def _print_ready(settings, addresses) -> None:
    """Print the ready line. addresses: (listener name, host, port) of the bound listeners."""
    shown = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
                     for _, host, port in addresses)
    # Without security settings the broker is reachable from this machine only.
    reach = "" if settings.reaches_others else "reach=loopback "
    acks = ""
    if _replicates(settings):
        # Shows what acks=all guarantees.
        acks = "acks.all=" + ("flushed-by-isr " if settings["replica.flush.before.fetch.enable"]
                              else "page-cache-of-isr ")
    line = (f"brokerd ready address={shown} node.id={settings['node.id']} "
            f"log.dirs={','.join(settings.log_dirs)} {reach}{acks}ms={_ms_since_spawn()}")
    try:
        print(line, flush=True)
    except OSError:
        # The reader of stdout has exited. The broker continues.
        sys.stdout = None
    _notify(b"READY=1")


def _notify(state: bytes) -> None:
    """Notify systemd if it started this process with notifications (sd_notify)."""
    import os

    path = os.environ.get("NOTIFY_SOCKET", "")
    if path[:1] not in ("/", "@"):
        return
    import socket

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notify_socket:
        try:
            notify_socket.sendto(state, path.replace("@", "\0", 1) if path[0] == "@" else path)
        except OSError:
            pass  # After its start timeout, systemd restarts the broker.


def _ms_since_spawn() -> int:
    """Return the time since this process started in ms; the kernel records it in steps of 10 ms."""
    import os
    import time

    with open("/proc/self/stat", "rb") as file:
        # The second field may contain spaces and parentheses. Field 22 is the start time in ticks
        # since boot.
        ticks = int(file.read().rpartition(b")")[2].split()[19])
    since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    return round((since_boot - ticks / os.sysconf("SC_CLK_TCK")) * 1000)


def _config(command: str, argv: list[str]) -> int:
    """config explain KEY, config list: print settings and their current values."""
    parser = _parser(f"{command} config", "About settings.")
    commands = parser.add_subparsers(dest="about", required=True, metavar="explain | list")
    explain = commands.add_parser("explain", help="all there is to know of one setting")
    explain.add_argument("key")
    listed = commands.add_parser("list", help="every setting with its value")
    for sub in (explain, listed):
        sub.add_argument("properties", nargs="?", metavar="server.properties")
        _add_override(sub)
    args = parser.parse_args(argv)
    from .config import Settings

    settings = Settings.load(args.properties, args.override)
    lines = [settings.explain(args.key)] if args.about == "explain" else settings.listing()
    print("\n".join(lines), flush=True)
    return 0


def _adopt(command: str, argv: list[str]) -> int:
    """adopt server.properties: check if brokerd can open a stopped Kafka's directories."""
    parser = _parser(f"{command} adopt", "Check the directories of a stopped Kafka and list what "
                     "prevents brokerd from opening them. Only --execute writes.",
                     "docs/migrate/kafka-node.md describes the migration and the way back.")
    parser.add_argument("properties", nargs="?", metavar="server.properties",
                        help="Kafka's own; brokerd reads log.dirs and node.id")
    parser.add_argument("--execute", action="store_true",
                        help="move the metadata log to where brokerd has it, if need be")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    _add_override(parser)
    args = parser.parse_args(argv)
    from pylog.tools.host import adopt

    settings, found = adopt.settings_of(args.properties, args.override)
    found += adopt.adopt(settings, args.execute and not found)
    print(adopt.rendered(found, args.json), flush=True)
    return 0 if adopt.is_adoptable(found) else EXIT_FAILED


def _detach(command: str, argv: list[str]) -> int:
    """detach server.properties: separate a stopped node from its cluster, to run as a single
    broker.
    """
    settings = _directories_of(
        f"{command} detach", "Make a stopped node's directories those of a broker that runs "
        "alone. They get a new cluster id and can never rejoin their cluster.", argv)
    import random

    from pylog.metadata import meta_properties

    with _locked(settings.log_dirs):
        new = meta_properties.detach(settings.log_dirs, random.SystemRandom())
    print(f"the directories belong to the new cluster {new}", flush=True)
    return 0


def _restore_quorum(command: str, argv: list[str]) -> int:
    """restore-quorum server.properties: allow the next start to initialise an empty quorum."""
    settings = _directories_of(
        f"{command} restore-quorum", "Let a stopped controller begin an empty etcd or ZooKeeper "
        "with its own metadata, after the cluster's keys were lost. Run it on the controller with "
        "the longest metadata log only.", argv)
    from pylog.metadata import meta_properties

    with _locked(settings.log_dirs):
        cluster_id = meta_properties.permit_founding(settings.log_dirs)
    print(f"the next start restores the quorum of cluster {cluster_id}", flush=True)
    return 0


def _completion(command: str, argv: list[str]) -> int:
    """completion SHELL: print the script that completes brokerd's arguments in a shell."""
    parser = _parser(f"{command} completion", "Print the completion script for a shell. Evaluate "
                     "it in the shell's startup file, for example: eval \"$(brokerd completion "
                     "bash)\"")
    from .tools import brokerd_completion

    parser.add_argument("shell", choices=sorted(brokerd_completion.TEMPLATES))
    shell = parser.parse_args(argv).shell
    from .config import catalogue

    options = {name: action.help or "" for action in _serve_arguments()._actions
               for name in action.option_strings if name.startswith("--")}
    print(brokerd_completion.script(
        shell, {name: text for name, (_, text) in COMMANDS.items()}, options,
        [name for name in catalogue.broker_names() if name not in catalogue.INTERNAL]), end="")
    return 0


def _directories_of(command: str, about: str, argv: list[str]):
    """Return the settings for a command that works on a stopped node's directories."""
    parser = _parser(command, about)
    parser.add_argument("properties", nargs="?", metavar="server.properties")
    _add_override(parser)
    args = parser.parse_args(argv)
    from .config import Settings

    return Settings.load(args.properties, args.override)


@contextlib.contextmanager
def _locked(paths):
    """Hold the locks of log directories. Raises StartError, OSError."""
    import os

    from pylog.log.log_directories import LOCK, locked

    held = [locked(os.path.join(path, LOCK)) for path in paths]
    try:
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)


def _version(command: str) -> int:
    from pylog._native.server.tls import library

    from .version import version

    print(f"{command} {version()} ({library()})", flush=True)
    return 0


# Name: the function that runs it, and its purpose.
COMMANDS = {
    "config": (_config, "explain and list settings"),
    "adopt": (_adopt, "check the directories of a stopped Kafka"),
    "detach": (_detach, "separate a stopped node from its cluster"),
    "restore-quorum": (_restore_quorum, "begin an empty quorum with a controller's own metadata"),
    "completion": (_completion, "print the completion script for bash, zsh or fish"),
}

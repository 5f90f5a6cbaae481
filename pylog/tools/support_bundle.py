"""`pylog support-bundle`: collect settings, versions, logs, metrics and states in one file.

Owns: the file that it writes.
Invariants: every text passes redaction before it is written; an existing file is never replaced,
  and only its owner can read the new one; sizes are bounded; a part that cannot be collected is
  listed with the reason, and does not prevent the others.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import platform
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from pylog.client.admin.admin import Admin
from pylog.client.errors import KafkaError
from pylog.tools import app
from pylog.client.admin import metrics_endpoint
from pylog.tools.cli import cluster_queries, config_resources
from pylog.tools.cli.command import Tool
from pylog.tools.cli.metrics_endpoint import endpoint_options
from pylog.tools.cli.output import size
from pylog.tools.cli.session import Session, ToolError
from pylog.tools.host.host_checks import broker_processes, mount_of
from pylog.tools.host.redaction import NAME, Redaction, properties_of

MEMBER_BYTES_MAX = 8 << 20
TOTAL_BYTES_MAX = 64 << 20  # Before compression.
FILES_MAX = 10_000  # Listed for each log directory.
LOG_LINES = 20_000
SECONDS_MAX = 30.0  # For a program that this command runs.
PAGES = {"/metrics": "metrics.txt", "/readyz": "readyz.json", "/livez": "livez.json",
         "/cluster": "cluster.json", "/threads": "threads.json",
         "/explain/groups": "groups.json"}
# Commands of pylog whose JSON is collected.
COMMANDS_RUN = {
    "cluster.json": ["cluster"], "cluster-status.json": ["cluster", "status"],
    "doctor.json": ["doctor"], "partitions.json": ["topics", "partitions"],
    "groups.json": ["groups", "list"], "share-groups.json": ["share", "list"],
    "transactions.json": ["txn", "list"]}
# Files of /proc of each brokerd. Not `environ`: it contains secrets.
PROCESS_FILES = ("status", "limits", "io", "smaps_rollup", "stat", "cgroup", "mountinfo")
MACHINE_FILES = ("/proc/meminfo", "/proc/loadavg", "/proc/pressure/cpu", "/proc/pressure/io",
                 "/proc/pressure/memory", "/proc/diskstats", "/proc/vmstat", "/etc/os-release",
                 "/proc/version")


@click.command("support-bundle", cls=Tool)
@click.option("-o", "--output", metavar="FILE", type=click.Path(dir_okay=False),
              help="File to write.  [default: pylog-support-<time>.tar.gz]")
@click.option("-p", "--properties", "properties", multiple=True, metavar="FILE",
              type=click.Path(exists=True, dir_okay=False),
              help="A broker's server.properties; may be repeated.  [default: those of the running "
              "brokerds]")
@click.option("-l", "--log", "logs", multiple=True, metavar="FILE",
              type=click.Path(exists=True, dir_okay=False),
              help="A log file of brokerd; may be repeated.  [default: the files to which the "
              "running brokerds write, and their unit's journal]")
@click.option("--unit", default="brokerd", show_default=True, help="brokerd's systemd unit.")
@endpoint_options
@click.pass_obj
def support_bundle(session: Session, output: str | None, properties: tuple[str, ...],
                   logs: tuple[str, ...], unit: str, metrics: str | None, token: str | None
                   ) -> None:
    """Collect settings, versions, logs, doctor, metrics, cluster and process states in one file.

    Secrets are removed. Names of topics, groups, users, clients, hosts and files remain. Run it on
    a broker's machine, to include logs and process states. At most 64 MiB before compression.
    """
    path = output or time.strftime("pylog-support-%Y%m%d-%H%M%SZ.tar.gz", time.gmtime(
        session.now_ms() / 1000))
    redaction = Redaction()
    try:
        # O_EXCL: never replace a file, and never follow a link.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        raise ToolError(f"{path} exists: choose another name with --output") from None
    try:
        with open(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o600)  # Independent of the umask.
            bundle = Bundle(file, redaction, session.now_ms() // 1000)
            _learn(session, redaction, properties, token)
            _collect(session, bundle, properties, logs, unit, metrics, token)
            bundle.close()
    except BaseException:
        os.unlink(path)
        raise
    _print(session, path, bundle, redaction)


def _print(session: Session, path: str, bundle: Bundle, redaction: Redaction) -> None:
    out = session.out
    total = os.path.getsize(path)
    if out.as_json:
        out.document({"path": path, "bytes": total, "hidden": redaction.hidden,
                      "files": bundle.files, "missing": bundle.missing})
        return
    out.table(bundle.files, {"name": "FILE", "bytes": ("SIZE", size), "note": "NOTE"})
    for row in bundle.missing:
        out.line(f"not collected: {row['name']}: {row['reason']}")
    out.line(f"{path}: {size(total)}, {redaction.hidden} secrets hidden. It names topics, groups, "
             "clients, hosts and files: read it before you pass it on")


class Bundle:
    """Writes the members of the archive. `files`: [{name, bytes, note}]; `missing`: [{name,
    reason}]. seconds: the time of all members.
    """

    def __init__(self, file: Any, redaction: Redaction, seconds: int):
        self.redaction = redaction
        self.files: list[dict[str, Any]] = []
        self.missing: list[dict[str, str]] = []
        self._seconds = seconds
        self._left = TOTAL_BYTES_MAX
        self._zip = gzip.GzipFile("", "wb", 6, file, seconds)
        self._tar = tarfile.open(fileobj=self._zip, mode="w", format=tarfile.PAX_FORMAT)

    def text(self, name: str, text: str, *, keep_end: bool = False, note: str = "") -> None:
        """Add a text. keep_end: if it is too long, keep its end instead of its start."""
        self._add(name, self.redaction.text(text), keep_end, note)

    def json(self, name: str, value: Any, note: str = "") -> None:
        """Add a JSON document."""
        self._add(name, json.dumps(self.redaction.value(value), indent=1, ensure_ascii=False,
                                   default=str) + "\n", False, note)

    def document(self, name: str, text: bytes | str, note: str = "") -> None:
        """Add the text of a JSON document."""
        self._add(name, self.redaction.json_text(text), False, note)

    def lacks(self, name: str, reason: object) -> None:
        """Note that a part was not collected."""
        self.missing.append({"name": name, "reason": self.redaction.text(str(reason))})

    def _add(self, name: str, redacted: str, keep_end: bool, note: str) -> None:
        data = redacted.encode("utf-8", "replace")
        room = min(MEMBER_BYTES_MAX, self._left)
        if room <= 0:
            self.lacks(name, "the bundle has reached its size limit")
            return
        if len(data) > room:
            part = f"{'end' if keep_end else 'start'} of {size(len(data))}"
            note = f"{note}; {part}" if note else part
            data = data[-room:] if keep_end else data[:room]
        self._left -= len(data)
        member = tarfile.TarInfo(f"pylog-support/{name}")
        member.size, member.mode, member.mtime = len(data), 0o600, self._seconds
        self._tar.addfile(member, io.BytesIO(data))
        self.files.append({"name": name, "bytes": len(data), "note": note})

    def close(self) -> None:
        """Add the list of files, and complete the archive."""
        self.json("manifest.json", {"files": list(self.files), "missing": self.missing,
                                    "hidden": self.redaction.hidden})
        self._tar.close()
        self._zip.close()


def _learn(session: Session, redaction: Redaction, properties: Iterable[str],
           token: str | None) -> None:
    """Note all secrets that this command can know, before anything is written."""
    if token:
        redaction.learn("metrics.token", token)
    for name, value in os.environ.items():
        if NAME.search(name):
            redaction.learn(name, value)
    with contextlib.suppress(ToolError, OSError):
        for name, value in session.client_values().items():
            if NAME.search(name):
                redaction.learn(name, value)
    for _, words in broker_processes():
        redaction.command_line(words)
    for path in _properties_files(properties):
        with contextlib.suppress(OSError):
            redaction.settings(properties_of(_read(path), path))
    redaction.hidden = 0


def _collect(session: Session, bundle: Bundle, properties: tuple[str, ...], logs: tuple[str, ...],
             unit: str, metrics: str | None, token: str | None) -> None:
    # Small and certain parts first: the size limit must not omit them.
    _versions(bundle)
    _settings(bundle, properties)
    _of_cluster(session, bundle, metrics, token)
    for name, words in COMMANDS_RUN.items():
        _of_command(session, bundle, f"commands/{name}", words)
    _machine(bundle)
    for path, words in broker_processes():
        _process(bundle, path, words)
    _logs(bundle, logs, unit)


def _versions(bundle: Bundle) -> None:
    from importlib.metadata import distributions

    from pylog._native.server.tls import library
    from pylog.version import version

    packages = sorted({f"{one.metadata['Name']} {one.version}" for one in distributions()})
    bundle.text("versions.txt", "\n".join([
        f"pylog {version()}", f"Python {sys.version}", f"executable {sys.executable}",
        f"system {platform.platform()}", f"libc {' '.join(platform.libc_ver())}", library(), "",
        *packages, ""]))


def _read(path: str) -> str:
    with open(path, encoding="latin-1") as file:
        return file.read(MEMBER_BYTES_MAX)


def _properties_files(given: Iterable[str]) -> list[str]:
    """Return the properties files given, or else those of the running brokerds."""
    found = [os.path.abspath(path) for path in given]
    if not found:
        for directory, words in broker_processes():
            with contextlib.suppress(OSError):
                here = os.readlink(directory / "cwd")
                found += [os.path.join(here, word) for word in words[1:]
                          if word.endswith(".properties")]
    return list(dict.fromkeys(path for path in found if os.path.isfile(path)))


def _settings(bundle: Bundle, given: tuple[str, ...]) -> None:
    for number, path in enumerate(_properties_files(given), 1):
        try:
            found = properties_of(_read(path), path)
        except OSError as error:
            bundle.lacks(path, error.strerror)
            continue
        bundle.text(f"settings/{number}-{os.path.basename(path)}", "".join(
            f"{name}={value}\n" for name, value in bundle.redaction.settings(found).items()),
            note=path)


def _of_cluster(session: Session, bundle: Bundle, metrics: str | None, token: str | None) -> None:
    """Collect the settings and the pages of each broker."""
    async def work(admin: Admin) -> None:
        cluster = admin.cluster
        metadata = await cluster_queries.all_topics(cluster)
        for node in sorted(metadata.nodes.values()):
            await _broker_settings(bundle, cluster, node.id)
        # --metrics names the endpoint of one broker.
        for node in sorted(metadata.nodes.values())[:1 if metrics else None]:
            pages = await metrics_endpoint.raw_pages(cluster, node.id, PAGES, metrics, token)
            for path, (status, body) in pages.items():
                name = f"brokers/{node.id}/{PAGES[path]}"
                if status not in (200, 503):
                    bundle.lacks(name, f"status {status}" if status else body.decode())
                elif path == "/metrics":
                    bundle.text(name, body.decode("utf-8", "replace"))
                else:
                    bundle.document(name, body)

    try:
        session.administer(work)
    except (ToolError, KafkaError, OSError) as error:
        bundle.lacks("brokers", error)


async def _broker_settings(bundle: Bundle, cluster: Any, node: int) -> None:
    name = f"brokers/{node}/settings.json"
    try:
        rows = await config_resources.described(cluster, config_resources.BROKER, str(node))
    except (ToolError, KafkaError) as error:
        bundle.lacks(name, error)
        return
    shown = bundle.redaction.settings({row["name"]: row["value"] for row in rows})
    bundle.json(name, [{"name": row["name"], "setting": shown[row["name"]],
                        "source": row["source"]} for row in rows])


def _of_command(session: Session, bundle: Bundle, name: str, words: list[str]) -> None:
    """Collect the output of a command of pylog."""
    own = Session()
    own.given = {**session.given, "as_json": True}
    out, err = io.StringIO(), io.StringIO()
    reason = ""
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            app.root().main(args=words, prog_name="pylog", standalone_mode=False, obj=own)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        finally:
            own.hush()
    if out.getvalue():
        bundle.document(name, out.getvalue(), note=bundle.redaction.text(reason))
    else:
        bundle.lacks(name, reason or err.getvalue() or "no output")


def _machine(bundle: Bundle) -> None:
    parts = []
    for path in MACHINE_FILES:
        with contextlib.suppress(OSError):
            parts.append(f"==> {path}\n{Path(path).read_text(errors='replace')}")
    bundle.text("machine.txt", "\n".join(parts))


def _process(bundle: Bundle, path: Path, words: list[str]) -> None:
    """Collect the state of one brokerd: threads, memory, limits, and its log directories."""
    folder = f"processes/{path.name}"
    parts = ["==> command line", *bundle.redaction.command_line(words)]
    for name in PROCESS_FILES:
        try:
            parts.append(f"\n==> {name}\n{(path / name).read_text(errors='replace')}")
        except OSError as error:
            parts.append(f"\n==> {name}\n{error.strerror}")
    with contextlib.suppress(OSError):
        kinds = [os.readlink(entry) for entry in (path / "fd").iterdir()]
        parts.append(f"\n==> fd\n{len(kinds)} open, "
                     f"{sum(kind.startswith('socket:') for kind in kinds)} sockets")
    bundle.text(f"{folder}/process.txt", "\n".join(parts))
    bundle.text(f"{folder}/threads.txt", _threads(path))
    for number, directory in enumerate(_log_dirs(path), 1):
        bundle.text(f"{folder}/directory-{number}.txt", _directory(directory), note=directory)


def _threads(path: Path) -> str:
    """Return one line for each thread: id, name, state, CPU times, and what it waits for."""
    lines = ["id name state user_ticks system_ticks waits_for"]
    with contextlib.suppress(OSError):
        for task in sorted((path / "task").iterdir(), key=lambda one: int(one.name)):
            with contextlib.suppress(OSError):
                name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(")")
                fields = rest.split()
                waits = (task / "wchan").read_text().strip()
                lines.append(f"{task.name} {name} {fields[0]} {fields[11]} {fields[12]} {waits}")
    return "\n".join(lines) + "\n"


def _log_dirs(path: Path) -> list[str]:
    """Return the log directories of a running brokerd, from its open lock files."""
    found = set()
    with contextlib.suppress(OSError):
        for entry in (path / "fd").iterdir():
            with contextlib.suppress(OSError):
                target = os.readlink(entry)
                if target.endswith("/.lock"):
                    found.add(os.path.dirname(target))
    return sorted(found)


def _directory(directory: str) -> str:
    """Return space and files of a log directory."""
    lines = [directory]
    with contextlib.suppress(OSError):
        space = os.statvfs(directory)
        kind, options = mount_of(directory)
        lines.append(f"{kind} {','.join(options)}: {space.f_bavail * space.f_frsize} of "
                     f"{space.f_blocks * space.f_frsize} bytes free, {space.f_favail} of "
                     f"{space.f_files} inodes free")
    count = 0
    for folder, folders, names in os.walk(directory):
        folders.sort()
        for name in sorted(names):
            count += 1
            if count <= FILES_MAX:
                with contextlib.suppress(OSError):
                    entry = os.lstat(os.path.join(folder, name))
                    lines.append(f"{entry.st_size:>12} {entry.st_blocks * 512:>12} "
                                 f"{os.path.relpath(os.path.join(folder, name), directory)}")
    lines.append(f"{count} files" + (f", the first {FILES_MAX} shown" if count > FILES_MAX else ""))
    return "\n".join(lines) + "\n"


def _logs(bundle: Bundle, given: tuple[str, ...], unit: str) -> None:
    paths = list(given) or _written_logs()
    for number, path in enumerate(paths, 1):
        name = f"logs/{number}-{os.path.basename(path)}"
        try:
            with open(path, "rb") as file:
                start = max(0, os.fstat(file.fileno()).st_size - MEMBER_BYTES_MAX)
                file.seek(start)
                if start:
                    file.readline()  # A part of a line could hide a secret from its pattern.
                text = file.read(MEMBER_BYTES_MAX).decode("utf-8", "replace")
        except OSError as error:
            bundle.lacks(name, f"{path}: {error.strerror}")
            continue
        bundle.text(name, text, keep_end=True, note=path)
    if given:
        return
    try:
        done = subprocess.run(
            ["journalctl", "--unit", unit, "--lines", str(LOG_LINES), "--no-pager", "--quiet",
             "--output", "short-iso"], capture_output=True, text=True, errors="replace",
            timeout=SECONDS_MAX)
    except (OSError, subprocess.TimeoutExpired) as error:
        bundle.lacks("logs/journal.txt", getattr(error, "strerror", None) or error)
        return
    if done.stdout.strip():
        bundle.text("logs/journal.txt", done.stdout, keep_end=True, note=f"unit {unit}")
    else:
        bundle.lacks("logs/journal.txt", done.stderr.strip() or f"no entries of unit {unit}")


def _written_logs() -> list[str]:
    """Return the regular files that running brokerds have as standard output and error."""
    found = []
    for directory, _ in broker_processes():
        for number in (1, 2):
            with contextlib.suppress(OSError):
                path = os.readlink(directory / "fd" / str(number))
                if os.path.isfile(path) and path not in found:
                    found.append(path)
    return found


COMMANDS = {"support-bundle": support_bundle}

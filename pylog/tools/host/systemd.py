"""`pylog systemd`: print a systemd unit that runs brokerd with minimal permissions.

Owns: nothing.
Invariants: exactly the paths that brokerd writes with these properties are writable in the unit; a
  file is written only by --install; a path that the unit could not read or write is rejected or
  reported before systemd fails to start the unit.
Source: systemd.exec(5), systemd.service(5), sd_notify(3).
"""

from __future__ import annotations

import os
import shutil
import sys

import click

from pylog.tools.cli.command import Local
from pylog.tools.cli.session import Session, ToolError

FOLDER = "/etc/systemd/system"
STATE = "/var/lib"
HOMES = ("/home/", "/root/", "/run/user/")
TEMPORARY = ("/tmp/", "/var/tmp/")
PATH_ENDINGS = (".location", ".file")  # Suffixes of settings, including those of a listener.
PRIVILEGED_PORTS = range(1, 1024)
BIND = "CAP_NET_BIND_SERVICE"

# Writable and executable pages would help an attack; no library of brokerd needs them.
# @system-service contains what a server needs and no administrative calls. /proc stays visible for
# the metrics of the machine.
SANDBOX = """\
NoNewPrivileges=yes
ProtectSystem=strict
PrivateTmp=yes
PrivateDevices=yes
DevicePolicy=closed
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RemoveIPC=yes
LockPersonality=yes
MemoryDenyWriteExecute=yes
KeyringMode=private
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged
SystemCallErrorNumber=EPERM
UMask=0077
"""


@click.command(cls=Local, short_help="Print a systemd unit that runs brokerd.")
@click.argument("properties", required=False, metavar="[server.properties]",
                type=click.Path(exists=True, dir_okay=False, resolve_path=True))
@click.option("--name", default="brokerd", show_default=True, help="Name of the unit, and of "
              f"its directory below {STATE} if log.dirs is not set.")
@click.option("--user", help="An existing user.  [default: systemd creates one for the unit "
              "(DynamicUser)]")
@click.option("--command", metavar="PATH", help="Path of brokerd.  [default: this one]")
@click.option("--install", "is_installed", is_flag=True, help=f"Write the unit to {FOLDER}.")
@click.pass_obj
def systemd(session: Session, properties: str | None, name: str, user: str | None,
            command: str | None, is_installed: bool) -> None:
    """Print a sandboxed systemd unit that runs brokerd. Only the paths that brokerd writes with
    these properties (log.dirs, audit.log.file) are writable.
    """
    text, notes = unit(properties, name, user, command)
    for note in notes:
        session.out.note(f"pylog: {note}")
    path = f"{FOLDER}/{name}.service"
    if not is_installed:
        if session.out.as_json:
            session.out.document({"path": path, "unit": text})
        for line in text.splitlines():
            session.out.line(line)
        return
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    session.out.result({"path": path, "unit": text},
                       f"{path} is written: systemctl daemon-reload, then "
                       f"systemctl enable --now {name}")


def unit(properties: str | None, name: str = "brokerd", user: str | None = None,
         command: str | None = None) -> tuple[str, list[str]]:
    """Return (the text of the unit, notes for the installation). Raises ToolError."""
    from pylog.config import ConfigError, Settings

    try:
        settings = Settings.load(properties)
    except ConfigError as error:
        raise ToolError(str(error)) from None
    program = command or _program()
    has_dirs = any(settings.origin(key) != "default" for key in ("log.dirs", "log.dir"))
    state = f"{STATE}/{name}"
    words = [program, *([properties] if properties else []),
             *([] if has_dirs else ["--override", f"log.dirs={state}"])]
    named = [("the command", program), *([("the properties", properties)] if properties else []),
             *_named(settings, has_dirs)]
    _check_visible(named)  # Reject a path that the unit could not access.
    at_home = [f"{what} {path}" for what, path in named if path.startswith(HOMES)]
    written = [path for path in _written(settings, has_dirs) if not _is_below(path, state)]
    ports = [listener.port for listener in settings.all_listeners]
    capability = BIND if any(port in PRIVILEGED_PORTS for port in ports) else ""
    # A user in a private user namespace has no such capability outside of it.
    lines = [f"CapabilityBoundingSet={capability}", f"AmbientCapabilities={capability}",
             f"PrivateUsers={'no' if capability else 'yes'}",
             f"ProtectHome={'read-only' if at_home else 'yes'}"]
    # Only these paths are writable.
    lines += [f"ReadWritePaths={_quoted(path)}" for path in written]
    # systemd creates this directory for the unit's user: needed only if it holds data.
    has_state = not has_dirs or any(_is_below(path, state) for path in settings.log_dirs)
    owned = f"StateDirectory={name}\nStateDirectoryMode=0700\n" if has_state else ""
    text = f"""\
[Unit]
Description=brokerd, a commit-log broker that speaks Apache Kafka's protocol
Wants=network-online.target
After=network-online.target

[Service]
Type=notify
ExecStart={' '.join(map(_quoted, words))}
{f'User={user}' if user else 'DynamicUser=yes'}
{owned}LogsDirectory={name}
LogsDirectoryMode=0700
LimitNOFILE=1048576
LimitCORE=0
# An unclean start may have much to check, and a clean stop much to write.
TimeoutStartSec=infinity
TimeoutStopSec=180
# brokerd ends its etcd itself.
KillMode=mixed
Restart=on-failure
RestartSec=2
# Wrong settings, which do not mend themselves.
RestartPreventExitStatus=2

{SANDBOX}{chr(10).join(lines)}

[Install]
WantedBy=multi-user.target
"""
    return text, _notes(at_home, written, user)


def _program() -> str:
    """Return the brokerd next to this Python, or the one on the PATH. Raises ToolError."""
    beside = os.path.join(os.path.dirname(sys.executable), "brokerd")
    found = beside if os.access(beside, os.X_OK) else shutil.which("brokerd")
    if found is None:
        raise ToolError("there is no brokerd beside this command: name it with --command")
    return os.path.abspath(found)


def _named(settings, has_dirs: bool) -> list[tuple[str, str]]:
    """Return [(setting, path)] for the path settings in the properties."""
    found = [("log.dirs", path) for path in settings.log_dirs if has_dirs]
    return found + [(key, text) for key, text in settings.texts.items()
                    if key.endswith(PATH_ENDINGS) and text.startswith("/")]


def _check_visible(named: list[tuple[str, str]]) -> None:
    """Raise ToolError if a path is in a temporary directory, which the unit cannot see."""
    hidden = [f"{what} {path}" for what, path in named if path.startswith(TEMPORARY)]
    if hidden:
        raise ToolError(f"{', '.join(hidden)}: the unit has separate, empty temporary "
                        f"directories (PrivateTmp): move it, for example below /etc or {STATE}")


def _notes(at_home: list[str], written: list[str], user: str | None) -> list[str]:
    found = []
    if at_home:
        found.append(f"{', '.join(at_home)}: the unit can therefore read home directories "
                     "(ProtectHome=read-only), and its user needs permission to read them. Files "
                     f"below /etc or {STATE} need neither.")
    if written and user is None:
        found.append(f"{', '.join(written)}: the user that systemd creates (DynamicUser) "
                     "cannot write there. Choose a user with --user, and make it the owner.")
    return found


def _is_below(path: str, folder: str) -> bool:
    return os.path.commonpath([os.path.abspath(path), folder]) == folder


def _written(settings, has_dirs: bool) -> list[str]:
    """Return the directories in the properties that brokerd writes."""
    found = list(settings.log_dirs) if has_dirs else []
    if settings["audit.log.file"]:
        found.append(os.path.dirname(os.path.abspath(settings["audit.log.file"])))
    return list(dict.fromkeys(found))


def _quoted(text: str) -> str:
    """Quote a word of a unit: escape percent and dollar signs."""
    text = text.replace("%", "%%").replace("$", "$$")
    if not any(sign in text for sign in ' "\'\\;'):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


COMMANDS = {"systemd": systemd}

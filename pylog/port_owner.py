"""Finds the TCP ports of this machine that are in use, and the process that uses one.

Owns: nothing.
Invariants: read only: it reads /proc and never connects to the port.
Source: proc(5).
"""

from __future__ import annotations

import contextlib
import glob
import os

LISTENS = "0A"  # TCP_LISTEN in /proc/net/tcp.
TABLES = ("/proc/net/tcp", "/proc/net/tcp6")


def remedy(port: int, setting: str) -> str:
    """Return what to do when the port is in use. setting: `name=value` that avoids the conflict."""
    process = process_on(port)
    return (f"Stop {process or 'the process that uses it'}, or choose another port with "
            f"--override {setting}")


def process_on(port: int) -> str:
    """Return the name and id of a process that listens on the port; "" if none is visible."""
    sockets = set()
    for table in TABLES:
        with contextlib.suppress(OSError), open(table) as rows:
            for row in rows:
                fields = row.split()
                if fields[1].endswith(f":{port:04X}") and fields[3] == LISTENS:
                    sockets.add(f"socket:[{fields[9]}]")
    for path in glob.iglob("/proc/[0-9]*/fd/*") if sockets else ():
        # Processes of other users hide their descriptors, and any process may exit now.
        with contextlib.suppress(OSError):
            if os.readlink(path) in sockets:
                number = path.split("/")[2]
                with open(f"/proc/{number}/comm") as file:
                    return f"the process {file.read().strip()} (pid {number})"
    return ""


def listening_ports() -> set[int]:
    """Return the ports on which a process of this network namespace listens. Raises OSError if the
    system does not show them. Blocks.
    """
    found = set()
    for table in TABLES:
        # A system without IPv6 has no second table.
        with contextlib.suppress(FileNotFoundError), open(table) as rows:
            for row in rows:
                fields = row.split(None, 4)
                if fields[3] == LISTENS:
                    found.add(int(fields[1].rpartition(":")[2], 16))
    return found

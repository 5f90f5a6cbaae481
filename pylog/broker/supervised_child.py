"""A program that brokerd runs as a child process, and that connects to it like any client.

Owns: the process.
Invariants: the process does not outlive brokerd; a process that ended is restarted, with a growing
  backoff while it fails quickly; settings reach it through its standard input, never through its
  command line or environment.
Source: console.listener, schema.registry.listener. Child processes, because their work must not
  delay the event loop.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import sys

from pylog import child_process, supervisor
from pylog.config.errors import ConfigError
from pylog.log.errors import StartError

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from pylog.config import Settings

COMMAND = ("-c", "import sys; from pylog.cli import pylog; sys.exit(pylog(sys.argv[1:]))")
TRUST = ("ssl.truststore.location", "ssl.truststore.password", "ssl.truststore.type",
         "ssl.truststore.certificates", "ssl.endpoint.identification.algorithm")
STOP_S = 5.0
PAUSE_S, PAUSE_MAX_S = 0.1, 30.0
LONG_S = 10.0  # A run that lasted this long was healthy; its end resets the backoff.


class SupervisedChild:
    """name: in log lines and metrics. arguments: of the command `pylog`. document: what the process
    reads from its standard input.
    """

    def __init__(self, name: str, log: logging.Logger, arguments: Sequence[str],
                 document: dict[str, Any]):
        self._name = name
        self._log = log
        self._arguments = arguments
        self._document = json.dumps(document)
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task | None = None

    @property
    def pid(self) -> int | None:
        """Return the process id while it runs, else None."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start the process on the running loop, and keep it running until stop()."""
        self._task = asyncio.get_running_loop().create_task(
            supervisor.restarting(self._name, self._keep))

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        process, self._process = self._process, None
        await child_process.stop(process, STOP_S)

    async def _keep(self) -> None:
        """Run the process, and restart it with a backoff."""
        loop = asyncio.get_running_loop()
        pause_s = PAUSE_S
        while True:
            began_s = loop.time()
            process = self._process = await asyncio.create_subprocess_exec(
                sys.executable, *COMMAND, *self._arguments, stdin=asyncio.subprocess.PIPE,
                preexec_fn=child_process.end_with_parent)
            self._log.info("the %s started", self._name, extra={"pid": process.pid})
            await process.communicate(self._document.encode())
            self._log.error("the %s ended; restarting it", self._name,
                            extra={"exit": process.returncode})
            pause_s = PAUSE_S if loop.time() - began_s > LONG_S else min(2 * pause_s, PAUSE_MAX_S)
            await asyncio.sleep(pause_s)


def check_packages(setting: str, value: str, packages: Sequence[str], extra: str) -> None:
    """Raise StartError unless the packages of an extra are installed."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise StartError(f"{setting}={value}: {', '.join(missing)} is not installed. Install the "
                         f"{extra}: pip install 'pylog-broker[{extra}]'")


def client_settings(settings: Settings, addresses: list, setting: str) -> tuple[str, dict]:
    """Return the listener's name and the client settings for the listener that a setting names, by
    default the first one.

    addresses: (listener name, host, port) of the broker. Raises ConfigError.
    """
    name = settings[setting]
    found = [row for row in addresses if name is None or row[0] == name.upper()]
    if not found:
        raise ConfigError(f"{setting}={name}: there is no such listener; there "
                          f"are: {', '.join(row[0] for row in addresses) or 'none'}")
    listener, host, port = found[0]
    protocol = settings.protocol_of(listener)
    client = {"bootstrap.servers": f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
              "security.protocol": protocol}
    if protocol.endswith("SSL"):
        client.update({key: value for key in TRUST
                       if (value := settings.of_listener(listener, key)) is not None})
    return listener, client

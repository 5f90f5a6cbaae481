"""This broker's web console: a child process that connects to the broker like any client.

Owns: the process.
Invariants: the process does not outlive brokerd; a process that ended is restarted, with a growing
  backoff while it fails quickly; secrets reach it through its standard input, never through its
  command line or environment.
Source: console.listener. A child process, because rendering a page must not delay the event loop.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import sys

from pylog import child_process, supervisor
from pylog.config import console_access
from pylog.config.errors import ConfigError
from pylog.config.listeners import SASL_PROTOCOLS
from pylog.log.errors import StartError

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from pylog.config import Settings

log = logging.getLogger("pylog.console")

PREFIX = "console."
PACKAGES = ("starlette", "uvicorn", "jinja2", "httptools", "python_multipart")
COMMAND = ("-c", "import sys; from pylog.cli import pylog; sys.exit(pylog(sys.argv[1:]))",
           "console", "--supervised")
TRUST = ("ssl.truststore.location", "ssl.truststore.password", "ssl.truststore.type",
         "ssl.truststore.certificates", "ssl.endpoint.identification.algorithm")
STOP_S = 5.0
PAUSE_S, PAUSE_MAX_S = 0.1, 30.0
LONG_S = 10.0  # A run that lasted this long was healthy; its end resets the backoff.


class ConsoleProcess:
    """addresses: (listener name, host, port) of the broker. Raises StartError if the console cannot
    run with these settings.
    """

    def __init__(self, settings: Settings, addresses: list):
        missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
        if missing:
            raise StartError(
                f"console.listener={settings['console.listener']}: {', '.join(missing)} is not "
                "installed. Install the console: pip install 'pylog-broker[console]'")
        try:
            self._document = json.dumps(document(settings, addresses))
        except ConfigError as error:
            raise StartError(str(error)) from None
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task | None = None

    @property
    def pid(self) -> int | None:
        """Return the process id while it runs, else None."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start the console on the running loop, and keep it running until stop()."""
        self._task = asyncio.get_running_loop().create_task(
            supervisor.restarting("console", self._keep))

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        process, self._process = self._process, None
        await child_process.stop(process, STOP_S)

    async def _keep(self) -> None:
        """Run the console, and restart it with a backoff."""
        loop = asyncio.get_running_loop()
        pause_s = PAUSE_S
        while True:
            began_s = loop.time()
            process = self._process = await asyncio.create_subprocess_exec(
                sys.executable, *COMMAND, stdin=asyncio.subprocess.PIPE,
                preexec_fn=child_process.end_with_parent)
            log.info("the console started", extra={"pid": process.pid})
            await process.communicate(self._document.encode())
            log.error("the console ended; restarting it", extra={"exit": process.returncode})
            pause_s = PAUSE_S if loop.time() - began_s > LONG_S else min(2 * pause_s, PAUSE_MAX_S)
            await asyncio.sleep(pause_s)


def document(settings: Settings, addresses: list) -> dict:
    """Return what the console reads at its start: its settings, and its cluster. Raises
    ConfigError.
    """
    name = settings["console.bootstrap.listener"]
    found = [row for row in addresses if name is None or row[0] == name.upper()]
    if not found:
        raise ConfigError(f"console.bootstrap.listener={name}: there is no such listener; there "
                          f"are: {', '.join(row[0] for row in addresses) or 'none'}")
    listener, host, port = found[0]
    protocol = settings.protocol_of(listener)
    console_access.auth(settings, protocol in SASL_PROTOCOLS)
    client = {"bootstrap.servers": f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
              "security.protocol": protocol}
    if protocol.endswith("SSL"):
        client.update({key: value for key in TRUST
                       if (value := settings.of_listener(listener, key)) is not None})
    texts = {key: value for key, value in settings.texts.items() if key.startswith(PREFIX)}
    texts.setdefault("console.audit.file", settings["audit.log.file"])
    return {"settings": texts, "clusters": [
        {"name": settings["console.cluster.name"] or client["bootstrap.servers"],
         "settings": client}]}

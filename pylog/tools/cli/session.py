"""One run of the command: the cluster, the client settings and the output format.

Owns: the options given, the printer.
Invariants: an unreachable cluster is reported at once, without retries; a key of a client settings
  file that belongs to another role is ignored, an unknown key is an error.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pylog.client.admin.admin import Admin
    from pylog.client.network.cluster import Cluster
    from pylog.tools.cli.output import Printer

BOOTSTRAP = "localhost:9092"
TIMEOUT_S = 15.0
REQUEST_MS_MAX = 30_000
PROFILE = ".properties"


class ToolError(Exception):
    """An error of a command, in one line."""

    exit_code = 1


def profile_path(name: str) -> str:
    """Return the file of a profile. Raises ToolError."""
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    folder = os.path.join(home, "pylog")
    path = os.path.join(folder, f"{name}{PROFILE}")
    if os.path.basename(name) == name and os.path.exists(path):
        return path
    known = sorted(one.removesuffix(PROFILE) for one in os.listdir(folder)
                   if one.endswith(PROFILE)) if os.path.isdir(folder) else []
    raise ToolError(f"there is no profile {name!r} in {folder}; there are: "
                    f"{', '.join(known) or 'none'}")


class Session:
    """The values of the shared options. `now_ms` is the clock of all commands."""

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}
        self._printer: Printer | None = None
        self._speaker: Any = None
        self._sources: dict[str, str] = {}  # Setting from a file -> its file and line.

    @property
    def out(self) -> Printer:
        if self._printer is None:
            from pylog.tools.cli.output import Printer

            self._printer = Printer(as_json=bool(self.given.get("as_json")))
        return self._printer

    @property
    def timeout_s(self) -> float:
        return float(self.given.get("timeout_s", TIMEOUT_S))

    @property
    def bootstrap(self) -> str:
        return str(self.client_values().get("bootstrap.servers", ""))

    def log_warnings(self) -> None:
        """Print the client's warnings as lines of this command from now on."""
        import logging

        out = self.out

        class Speaker(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                out.note(f"pylog: {record.getMessage()}")

        self._speaker = Speaker(logging.WARNING)
        logging.getLogger("pylog.client").addHandler(self._speaker)

    def hush(self) -> None:
        """End the command: from now on an error is one line."""
        if self._speaker is not None:
            import logging

            logging.getLogger("pylog.client").removeHandler(self._speaker)
            self._speaker = None

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def client_values(self) -> dict[str, Any]:
        """Return the client settings: profile, then file, then -X, then -b. Raises ToolError."""
        values: dict[str, Any] = {}
        profile = self.given.get("profile") or os.environ.get("PYLOG_PROFILE")
        if profile:
            values.update(self._read(profile_path(profile)))
        if "client_config" in self.given:
            values.update(self._read(self.given["client_config"]))
        for text in self.given.get("client_settings", ()):
            key, sign, value = text.partition("=")
            if not sign:
                raise ToolError(f"-X {text}: expected KEY=VALUE")
            values[key] = value
            self._sources.pop(key, None)
        if "bootstrap" in self.given:
            values["bootstrap.servers"] = self.given["bootstrap"]
            self._sources.pop("bootstrap.servers", None)
        values.setdefault("bootstrap.servers", os.environ.get("PYLOG_BOOTSTRAP", BOOTSTRAP))
        return values

    def _read(self, path: str) -> dict[str, str]:
        """Return the client settings of a file, including referenced files. Raises ToolError."""
        from pylog.client.config import value_providers
        from pylog.client.config.aliases import ALIASES, UNITS
        from pylog.client import errors as client_errors
        from pylog.config import errors as config_errors
        from pylog.config.properties import parse

        with open(path, encoding="latin-1") as file:
            try:
                found = parse(file.read(), path)
                for key, (_, line) in found.items():
                    ours, *_ = UNITS.get(key, (ALIASES.get(key, key),))
                    self._sources[key] = self._sources[ours] = f"{path}:{line}"
                given = {key: value for key, (value, _) in found.items()}
                return value_providers.resolved(given, value_providers.USUAL)
            except config_errors.ConfigError as error:
                raise ToolError(str(error)) from None
            except client_errors.ConfigError as error:
                raise ToolError(self.placed(error)) from None

    def placed(self, error: Exception) -> str:
        """Return the invalid settings with their files and lines."""
        text = str(error)
        named = (word.strip(".-") for word in re.findall(r"[\w.-]+", text))
        sources = dict.fromkeys(self._sources[name] for name in named if name in self._sources)
        return f"{text} ({', '.join(sources)})" if sources else text

    def settings_of(self, role: str, **more: Any) -> dict[str, Any]:
        """Return the settings of a client for a role. `more`, with underscores, are the command's
        defaults. Ignores settings of other roles; unknown settings raise ToolError.
        """
        import logging

        from pylog.client.config.aliases import translated
        from pylog.client.config.settings import ALL, ROWS
        from pylog.client.errors import ConfigError

        # The command itself reports errors in one line, unless it continues (`log_warnings`).
        logger = logging.getLogger("pylog.client")
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())
        wait_ms = int(self.timeout_s * 1000)
        values = {"client.id": "pylog-tool", "default.api.timeout.ms": wait_ms,
                  "socket.connection.setup.timeout.ms": min(10_000, wait_ms),
                  **{name.replace("_", "."): value for name, value in more.items()}}
        try:
            given, _ = translated(self.client_values())
        except ConfigError as error:
            raise ToolError(self.placed(error)) from None
        for key, value in given.items():
            row = ROWS.get(key)
            if row is None or role in row.roles or ALL in row.roles:
                values[key] = value
        return values

    def run(self, work: Callable[[Cluster], Awaitable[Any]]) -> Any:
        """Run work(cluster) on a new event loop and return its result. Raises KafkaError."""
        return self.administer(lambda admin: work(admin.cluster))

    def administer(self, work: Callable[[Admin], Awaitable[Any]]) -> Any:
        """Run work(admin) on a new event loop and return its result. Raises KafkaError."""
        import asyncio  # Imported here: help and completion do not need it.

        return asyncio.run(self._with_admin(work))

    async def _with_admin(self, work: Callable[[Admin], Awaitable[Any]]) -> Any:
        from pylog.client.admin.admin import Admin

        # No retries, so the request timeout equals the total timeout.
        wait_ms = max(1, min(REQUEST_MS_MAX, int(self.timeout_s * 1000)))
        settings = self.settings_of("admin", request_timeout_ms=wait_ms)
        async with Admin.from_settings(settings) as admin:
            await self.reach(admin.cluster)
            return await work(admin)

    async def reach(self, cluster: Cluster) -> None:
        """Raise an error at once if the cluster is unreachable."""
        import asyncio

        from pylog.client.errors import KafkaTimeoutError, NoBrokersError

        try:
            async with asyncio.timeout(self.timeout_s):
                await cluster.refresh()
        except NoBrokersError as error:
            raise ToolError(
                f"{error}; -b HOST:PORT or PYLOG_BOOTSTRAP sets the broker's address") from None
        except TimeoutError as error:
            if isinstance(error, KafkaTimeoutError):
                raise
            raise ToolError(
                f"{self.bootstrap} did not answer within {self.timeout_s:g} s") from None

"""This broker's web console: a child process that connects to the broker like any client.

Owns: nothing.
Invariants: a console that cannot run with its settings stops the start of the broker.
Source: console.listener.
"""

from __future__ import annotations

import logging

from pylog.broker.supervised_child import SupervisedChild, check_packages, client_settings
from pylog.config import console_access
from pylog.config.errors import ConfigError
from pylog.config.listeners import SASL_PROTOCOLS
from pylog.log.errors import StartError

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from pylog.config import Settings

PREFIX = "console."
PACKAGES = ("starlette", "uvicorn", "jinja2", "httptools", "python_multipart")


class ConsoleProcess(SupervisedChild):
    """addresses: (listener name, host, port) of the broker. Raises StartError if the console cannot
    run with these settings.
    """

    def __init__(self, settings: Settings, addresses: list):
        check_packages("console.listener", settings["console.listener"], PACKAGES, "console")
        try:
            given = document(settings, addresses)
        except ConfigError as error:
            raise StartError(str(error)) from None
        super().__init__("console", logging.getLogger("pylog.console"),
                         ("console", "--supervised"), given)


def document(settings: Settings, addresses: list) -> dict:
    """Return what the console reads at its start: its settings, and its cluster. Raises
    ConfigError.
    """
    listener, client = client_settings(settings, addresses, "console.bootstrap.listener")
    console_access.auth(settings, settings.protocol_of(listener) in SASL_PROTOCOLS)
    texts = {key: value for key, value in settings.texts.items() if key.startswith(PREFIX)}
    texts.setdefault("console.audit.file", settings["audit.log.file"])
    return {"settings": texts, "clusters": [
        {"name": settings["console.cluster.name"] or client["bootstrap.servers"],
         "settings": client}]}

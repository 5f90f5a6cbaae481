"""This broker's schema registry: a child process that connects to the broker like any client.

Owns: nothing.
Invariants: a registry that cannot run with its settings stops the start of the broker; only one
  registry writes to a topic, so a broker of a cluster does not start one.
Source: schema.registry.listener.
"""

from __future__ import annotations

import logging

from pylog.broker.supervised_child import SupervisedChild, check_packages, client_settings
from pylog.config.errors import ConfigError
from pylog.config.listeners import SASL_PROTOCOLS
from pylog.log.errors import StartError
from pylog.security import registry_access

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from pylog.config import Settings

PREFIX = "schema.registry."
PACKAGES = ("httptools",)
# Settings of the broker by which the registry decides about rights.
RIGHTS = ("super.users", "allow.everyone.if.no.acl.found")


class RegistryProcess(SupervisedChild):
    """addresses: (listener name, host, port) of the broker. Raises StartError if the registry
    cannot run with these settings.
    """

    def __init__(self, settings: Settings, addresses: list):
        check_packages(registry_access.LISTENER, settings[registry_access.LISTENER], PACKAGES,
                       "registry")
        try:
            given = document(settings, addresses)
        except ConfigError as error:
            raise StartError(str(error)) from None
        super().__init__("schema registry", logging.getLogger("pylog.registry"),
                         ("registry", "serve", "--supervised"), given)


def document(settings: Settings, addresses: list) -> dict:
    """Return what the registry reads at its start: its settings, and those of its client. Raises
    ConfigError.
    """
    if not settings.is_single_broker:
        raise ConfigError(
            f"{registry_access.LISTENER}={settings[registry_access.LISTENER]}: a broker that other "
            "brokers can join cannot serve a schema registry. Remove the setting, and run `pylog "
            "registry serve` on one machine")
    listener, client = client_settings(settings, addresses, "schema.registry.bootstrap.listener")
    has_users = settings.protocol_of(listener) in SASL_PROTOCOLS
    registry_access.check(settings, has_users)
    if has_users:
        user = settings["schema.registry.sasl.username"]
        if not user:
            raise ConfigError(
                f"{registry_access.LISTENER}: the listener {listener} requires a login. Set "
                "schema.registry.sasl.username and schema.registry.sasl.password, or choose "
                "another listener with schema.registry.bootstrap.listener")
        client.update({"sasl.mechanism": settings["schema.registry.sasl.mechanism"],
                       "sasl.username": user,
                       "sasl.password": settings["schema.registry.sasl.password"]})
    texts = {key: value for key, value in settings.texts.items()
             if key.startswith(PREFIX) or key in RIGHTS}
    texts.setdefault("schema.registry.audit.file", settings["audit.log.file"])
    return {"settings": texts, "client": client}

"""Which of this node's connections to others are secured, and by what.

Owns: nothing.
Called by: broker, metadata.member.
Invariants: (1) a listener in plain text has no credentials, and nothing that is needed to secure
  one is imported for it.
Source: KIP-103 (inter.broker.listener.name), KIP-631 (controller.listener.names).
"""

from __future__ import annotations

TYPE_CHECKING = False  # The real one costs the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from pylog.config import Settings
    from pylog.peer.credentials import Credentials


def between_brokers(settings: Settings) -> Credentials | None:
    """For the listener that brokers reach each other by. Raises ConfigError."""
    return _of(settings, settings.between_brokers, "sasl.mechanism.inter.broker.protocol")


def towards_controllers(settings: Settings) -> Credentials | None:
    """For the controllers' listeners. Raises ConfigError."""
    names = settings["controller.listener.names"]
    return _of(settings, names[0].upper(), "sasl.mechanism.controller.protocol")


def _of(settings: Settings, listener: str, mechanism_setting: str) -> Credentials | None:
    protocol = settings.protocol_of(listener)
    if protocol == "PLAINTEXT":
        return None
    # Imported here, as (1) says.
    from pylog.peer.credentials import Credentials

    return Credentials(settings, listener, protocol, mechanism_setting)

"""Which of this node's connections to others are secured, and by what.

Owns: nothing.
Invariants: (1) a listener in plain text has no credentials, and nothing that is needed to secure
  one is imported for it.
Source: KIP-103 (inter.broker.listener.name), KIP-631 (controller.listener.names).
"""

from __future__ import annotations

TYPE_CHECKING = False  # The real one costs the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from collections.abc import Callable

    from pylog.config import Settings
    from pylog.peer.credentials import Credentials


def between_brokers(settings: Settings, now_ms: Callable[[], int]) -> Credentials | None:
    """For the listener that brokers reach each other by. now_ms: the wall clock. Raises
    ConfigError."""
    return _of(settings, settings.between_brokers, "sasl.mechanism.inter.broker.protocol", now_ms)


def towards_controllers(settings: Settings, now_ms: Callable[[], int]) -> Credentials | None:
    """For the controllers' listeners. now_ms: the wall clock. Raises ConfigError."""
    names = settings["controller.listener.names"]
    return _of(settings, names[0].upper(), "sasl.mechanism.controller.protocol", now_ms)


def _of(settings: Settings, listener: str, mechanism_setting: str,
        now_ms: Callable[[], int]) -> Credentials | None:
    protocol = settings.protocol_of(listener)
    if protocol == "PLAINTEXT":
        return None
    # Imported here, as (1) says.
    from pylog.peer.credentials import Credentials

    return Credentials(settings, listener, protocol, mechanism_setting, now_ms)

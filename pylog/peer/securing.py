"""Selects the credentials of this node's connections to other nodes.

Owns: nothing.
Invariants: a plain-text listener has no credentials, and imports no security modules.
Source: KIP-103 (inter.broker.listener.name), KIP-631 (controller.listener.names).
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing.TYPE_CHECKING would cost the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from collections.abc import Callable

    from pylog.config import Settings
    from pylog.peer.credentials import Credentials


def between_brokers(settings: Settings, now_ms: Callable[[], int]) -> Credentials | None:
    """Return the credentials for the inter-broker listener, None for plain text. now_ms: the wall
    clock. Raises ConfigError.
    """
    return _of(settings, settings.between_brokers, "sasl.mechanism.inter.broker.protocol", now_ms)


def towards_controllers(settings: Settings, now_ms: Callable[[], int]) -> Credentials | None:
    """Return the credentials for controller listeners, None for plain text. now_ms: the wall clock.
    Raises ConfigError.
    """
    names = settings["controller.listener.names"]
    return _of(settings, names[0].upper(), "sasl.mechanism.controller.protocol", now_ms)


def _of(settings: Settings, listener: str, mechanism_setting: str,
        now_ms: Callable[[], int]) -> Credentials | None:
    protocol = settings.protocol_of(listener)
    if protocol == "PLAINTEXT":
        return None
    # Imported here: plain-text listeners do not need it.
    from pylog.peer.credentials import Credentials

    return Credentials(settings, listener, protocol, mechanism_setting, now_ms)

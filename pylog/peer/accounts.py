"""The accounts with which this node logs in to others: a password, a Kerberos ticket or a token.

Owns: the newest token of an account.
Invariants: options with which no login could succeed are rejected when the account is created;
  exception texts never contain a password, token or ticket.
Source: Kafka's LoginManager and login modules (options of sasl.jaas.config); KIP-12, KIP-768,
  KIP-1139.
"""

from __future__ import annotations

import os
from functools import partial

from pylog.config.errors import ConfigError
from pylog.security.sasl import client_exchange, jaas

TYPE_CHECKING = False  # typing.TYPE_CHECKING would cost the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any

BEARER, TICKET = "OAUTHBEARER", "GSSAPI"
MECHANISMS = (*client_exchange.MECHANISMS, BEARER, TICKET)
JAAS = "sasl.jaas.config"


class Password:
    """name: the user's name."""

    blocks = False

    def __init__(self, mechanism: str, options: dict[str, str]):
        self._mechanism = mechanism
        self.name, self._password = options.get("username", ""), options.get("password", "")
        if not self.name or not self._password:
            raise ConfigError("a node needs a username and a password in it to log in to other "
                              "nodes")

    def tokens(self, _host: str) -> Generator[bytes, bytes, None]:
        """Yield like client_exchange.tokens; the host does not matter."""
        return client_exchange.tokens(self._mechanism, self.name, self._password)


class Ticket:
    """A Kerberos ticket for the service on the target host."""

    blocks = True  # requests it from the KDC

    def __init__(self, options: dict[str, str], get: Callable[[str], Any]):
        # Imported here with its libraries: only Kerberos logins need it.
        from pylog.security.sasl import kerberos

        kerberos.library()
        self._kerberos = kerberos
        self._service = options.get("serviceName") or get("sasl.kerberos.service.name")
        self._principal = options.get("principal")
        self._keytab = options.get("keyTab")
        if not self._service:
            raise ConfigError("serviceName is missing in it, and sasl.kerberos.service.name is not "
                              "set")
        if self._keytab and not self._principal:
            raise ConfigError("principal is missing in it: set the principal of the keyTab")
        if self._keytab and not os.access(self._keytab, os.R_OK):
            raise ConfigError(f"keyTab {self._keytab} cannot be read")
        self.name = self._principal or "the ticket cache"

    def tokens(self, host: str) -> Generator[bytes, bytes, None]:
        """Yield like Password.tokens. Blocks."""
        return self._kerberos.tokens(self._service, host, self._principal, self._keytab)


class Bearer:
    """A bearer token, which is used for most of its lifetime. now_ms: the wall clock."""

    blocks = True  # requests it from an issuer

    def __init__(self, options: dict[str, str], get: Callable[[str], Any],
                 now_ms: Callable[[], int]):
        # Imported here with their libraries: only token logins need them.
        from pylog.security.oauth import token_retriever, token_source
        from pylog.security.tls import outgoing_tls

        def clock() -> float:
            return now_ms() / 1000

        if get(token_retriever.ENDPOINT) is None \
                and any(name.startswith(token_source.UNSECURED) for name in options):
            self.name = options.get(f"{token_source.UNSECURED}StringClaim_sub", "an unsigned token")
            new = partial(token_source.unsigned, options, clock)
        else:
            self.name, new = token_retriever.of(
                get, options, clock, outgoing_tls.towards_issuer(options))
        self._source = token_source.Source(
            new, clock, get("sasl.login.retry.backoff.ms") / 1000,
            get("sasl.login.retry.backoff.max.ms") / 1000)

    def tokens(self, _host: str) -> Generator[bytes, bytes, None]:
        """Yield like Password.tokens. Blocks."""
        yield from client_exchange.bearer(self._source.current or self._source.token())


def of(mechanism: str, get: Callable[[str], Any],
       now_ms: Callable[[], int]) -> Password | Ticket | Bearer:
    """Return the account of a mechanism. get: returns a setting of the listener and mechanism.
    Raises ConfigError if no login could succeed.
    """
    text = get(JAAS)
    options = {} if text is None else jaas.options(text)
    if mechanism == TICKET:
        return Ticket(options, get)
    if mechanism == BEARER:
        return Bearer(options, get, now_ms)
    return Password(mechanism, options)

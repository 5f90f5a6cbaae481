"""What this node logs in to others with: a password, a token or a ticket.

Owns: the newest token of an account.
Invariants: (1) what no login could be made with is refused when it is made; (2) no password, token
  or ticket stands in the text of an exception.
Source: Kafka's LoginManager and login modules (options of sasl.jaas.config); KIP-12, KIP-768,
  KIP-1139.
"""

from __future__ import annotations

import os
from functools import partial

from pylog.config.errors import ConfigError
from pylog.security import jaas, proofs

TYPE_CHECKING = False  # The real one costs the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any

BEARER, TICKET = "OAUTHBEARER", "GSSAPI"
MECHANISMS = (*proofs.MECHANISMS, BEARER, TICKET)
JAAS = "sasl.jaas.config"


class Password:
    """name: whose."""

    blocks = False

    def __init__(self, mechanism: str, options: dict[str, str]):
        self._mechanism = mechanism
        self.name, self._password = options.get("username", ""), options.get("password", "")
        if not self.name or not self._password:
            raise ConfigError("a node that logs in to others needs a username and a password in it")

    def tokens(self, _host: str) -> Generator[bytes, bytes, None]:
        """As proofs.tokens, towards a host."""
        return proofs.tokens(self._mechanism, self.name, self._password)


class Ticket:
    """A ticket of Kerberos, for the service on the host that is dialled."""

    blocks = True        # It is asked of the KDC.

    def __init__(self, options: dict[str, str], get: Callable[[str], Any]):
        # Imported here, as what it loads: only who has tickets needs it.
        from pylog.security import kerberos

        kerberos.library()
        self._kerberos = kerberos
        self._service = options.get("serviceName") or get("sasl.kerberos.service.name")
        self._principal = options.get("principal")
        self._keytab = options.get("keyTab")
        if not self._service:
            raise ConfigError("serviceName is missing in it, and sasl.kerberos.service.name is not "
                              "set")
        if self._keytab and not self._principal:
            raise ConfigError("principal is missing in it: whose tickets the keyTab is for")
        if self._keytab and not os.access(self._keytab, os.R_OK):
            raise ConfigError(f"keyTab {self._keytab} cannot be read")
        self.name = self._principal or "the ticket cache"

    def tokens(self, host: str) -> Generator[bytes, bytes, None]:
        """As Password's. Blocks."""
        return self._kerberos.tokens(self._service, host, self._principal, self._keytab)


class Bearer:
    """A token, which is used until most of its life is over. now_ms: the wall clock."""

    blocks = True        # It is asked of an issuer.

    def __init__(self, options: dict[str, str], get: Callable[[str], Any],
                 now_ms: Callable[[], int]):
        # Imported here, as what they load: only who has tokens needs it.
        from pylog.security import issued, outgoing, retrieval

        def clock() -> float:
            return now_ms() / 1000

        if get(retrieval.ENDPOINT) is None \
                and any(name.startswith(issued.UNSECURED) for name in options):
            self.name = options.get(f"{issued.UNSECURED}StringClaim_sub", "an unsigned token")
            new = partial(issued.unsigned, options, clock)
        else:
            self.name, new = retrieval.of(get, options, clock, outgoing.towards_issuer(options))
        self._source = issued.Source(
            new, clock, get("sasl.login.retry.backoff.ms") / 1000,
            get("sasl.login.retry.backoff.max.ms") / 1000)

    def tokens(self, _host: str) -> Generator[bytes, bytes, None]:
        """As Password's. Blocks."""
        yield from proofs.bearer(self._source.current or self._source.token())


def of(mechanism: str, get: Callable[[str], Any],
       now_ms: Callable[[], int]) -> Password | Ticket | Bearer:
    """get: a setting as the listener and its mechanism have it. Raises ConfigError (1)."""
    text = get(JAAS)
    options = {} if text is None else jaas.options(text)
    if mechanism == TICKET:
        return Ticket(options, get)
    if mechanism == BEARER:
        return Bearer(options, get, now_ms)
    return Password(mechanism, options)

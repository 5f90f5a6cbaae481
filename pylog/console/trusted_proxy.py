"""Login by a proxy in front of the console, which names the user in a header.

Owns: nothing.
Invariants: the header counts only in requests from the proxy's addresses, and only if it occurs
  once; all other requests are rejected.
Source: none.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any

from pylog.config.console_access import proxy_networks
from pylog.console.pages import PageError

if TYPE_CHECKING:
    from starlette.requests import Request

USER_CHARACTERS_MAX = 1000
FORWARDED = "x-forwarded-for"


class TrustedProxy:
    """The proxy of the settings."""

    def __init__(self, settings: Any):
        self._header = settings["console.proxy.principal.header"].lower()
        self._networks = proxy_networks(settings)

    def principal_of(self, request: Request) -> str:
        """Return the user that the proxy names. Raises PageError."""
        if not self._is_trusted(request):
            raise PageError(403, "This console is reached through its proxy only",
                            _address(request), "Open the proxy's address.")
        given = request.headers.getlist(self._header)
        user = given[0].strip() if len(given) == 1 else ""
        if not user or len(user) > USER_CHARACTERS_MAX or not user.isprintable():
            raise PageError(401, "The proxy does not name the user", self._header,
                            "The proxy must set this header once, and remove it from the requests "
                            "of browsers.")
        return user

    def address_of(self, request: Request) -> str:
        """Return the browser's address, as the proxy reports it."""
        found = request.headers.get(FORWARDED, "").rpartition(",")[2].strip()
        try:
            return str(ipaddress.ip_address(found)) if self._is_trusted(request) \
                else _address(request)
        except ValueError:
            return _address(request)

    def _is_trusted(self, request: Request) -> bool:
        try:
            address = ipaddress.ip_address(_address(request))
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None)
        return any((mapped or address) in network for network in self._networks)


def _address(request: Request) -> str:
    return request.client.host if request.client is not None else ""

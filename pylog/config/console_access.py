"""How the web console logs users in, and whether its address may be open without a login.

Owns: nothing.
Invariants: without a login, only programs of this machine reach the console, unless
  console.insecure allows others; a proxy's header is trusted from listed addresses only.
"""

import ipaddress

from urllib.parse import urlsplit

from . import listeners
from .errors import ConfigError

NONE, SASL, OIDC, PROXY = "none", "sasl", "oidc", "proxy"
LISTENER = "console.listener"
HEADER, ADDRESSES = "console.proxy.principal.header", "console.proxy.addresses"
CALLBACK = "/oidc/callback"


def address(listener: str) -> tuple[str, int]:
    """Return (host, port) of console.listener. Raises ConfigError."""
    try:
        parts = urlsplit(f"//{listener}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or port is None:
        raise ConfigError(f"{LISTENER}={listener}: expected host:port, such as 127.0.0.1:8080")
    return host, port


def is_loopback(listener: str) -> bool:
    """Return True if only this machine reaches console.listener. Raises ConfigError."""
    return listeners.is_loopback(address(listener)[0])


def auth(settings, needs_login: bool) -> str:
    """Return SASL, OIDC, PROXY or NONE. needs_login: the cluster requires SASL, and the client
    settings have no user. Raises ConfigError if the console would be open to everyone, or if
    settings of the login are missing.
    """
    chosen = settings["console.auth"] or (SASL if needs_login else NONE)
    chosen = chosen.lower()
    if chosen == NONE and not is_loopback(settings[LISTENER]) and not settings["console.insecure"]:
        raise ConfigError(
            f"{LISTENER}={settings[LISTENER]} without a login: everyone who reaches this address "
            "could use the cluster. Set console.auth=sasl, listen on 127.0.0.1, or set "
            "console.insecure=true")
    if chosen == PROXY:
        _check_proxy(settings, needs_login)
    if chosen == OIDC:
        _check_oidc(settings)
    return chosen


def proxy_networks(settings):
    """Return the networks of console.proxy.addresses. Raises ConfigError."""
    networks = []
    for text in settings[ADDRESSES]:
        try:
            networks.append(ipaddress.ip_network(text.strip()))
        except ValueError:
            raise ConfigError(f"{ADDRESSES}={text}: expected an address or a network such as "
                              "10.0.0.0/24") from None
        if networks[-1].prefixlen == 0:
            raise ConfigError(f"{ADDRESSES}={text} trusts every address: name the proxy's")
    return networks


def _check_proxy(settings, needs_login: bool) -> None:
    if not settings[HEADER] or not proxy_networks(settings):
        raise ConfigError(f"console.auth=proxy needs {HEADER} and {ADDRESSES}: the header that "
                          "names the user, and the addresses of the proxy that sets it")
    host = address(settings[LISTENER])[0]
    if host in ("0.0.0.0", "::") and not settings["console.insecure"]:
        raise ConfigError(
            f"{LISTENER}={settings[LISTENER]} with console.auth=proxy: everyone reaches this "
            "address. Choose the address that the proxy uses, or set console.insecure=true")
    if needs_login:
        raise ConfigError("console.auth=proxy: the cluster requires SASL. Set the console's own "
                          "user in its client settings")


def _check_oidc(settings) -> None:
    for name in ("console.oidc.issuer", "console.oidc.client.id", "console.url"):
        if not settings[name]:
            raise ConfigError(f"console.auth=oidc needs {name}")
    for name in ("console.oidc.issuer", "console.url"):
        parts = urlsplit(settings[name])
        if parts.scheme not in ("https", "http") or not parts.hostname:
            raise ConfigError(f"{name}={settings[name]}: expected a URL")
        if parts.scheme == "http" and not listeners.is_loopback(parts.hostname) \
                and not settings["console.insecure"]:
            raise ConfigError(f"{name}={settings[name]}: expected https, because tokens pass it. "
                              "Use https, or set console.insecure=true")
    try:
        import joserfc  # noqa: F401
    except ModuleNotFoundError:
        raise ConfigError("console.auth=oidc needs joserfc: pip install 'pylog-broker[oauth]'"
                          ) from None

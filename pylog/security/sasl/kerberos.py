"""SASL GSSAPI (Kerberos), client and server side: authentication without a security layer.

Owns: nothing.
Invariants: only the RFC 4752 security layer "none" is offered and accepted, because TLS does the
  encryption; the principal is taken from the ticket, and the authorization id is ignored.
Source: RFC 4752, KIP-12; Kafka's KerberosRule, for names. The library is python-gssapi, which uses
  the system's libkrb5.
"""

from __future__ import annotations

import re

from pylog.config.errors import ConfigError
from pylog.security.errors import AuthenticationFailed

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any

MECHANISM = "GSSAPI"
MISSING = "GSSAPI needs python-gssapi: pip install 'pylog-broker[kerberos]'"
NO_LAYER = b"\x01\x00\x00\x00"  # Bit of the layer "none", and a maximum message size of 0.
LAYER_BYTES = 4
STEPS_MAX = 8
TOKEN_BYTES_MAX = 64 << 10
_RULE = re.compile(r"RULE:\[(?P<count>\d*):(?P<format>[^\]]*)\](?:\((?P<match>[^)]*)\))?"
                   r"(?:s/(?P<old>[^/]*)/(?P<new>[^/]*)/(?P<all>g)?)?/?(?P<case>[LU])?")
_NOT_SIMPLE = re.compile("[/@]")


def library():
    """Import the library. Raises ConfigError."""
    try:
        import gssapi
    except (ImportError, OSError) as error:
        # OSError: the package is installed, but libkrb5 is missing.
        raise ConfigError(f"{MISSING} ({error})") from error
    return gssapi


class Acceptor:
    """The broker's Kerberos credentials. options: of a login module; keyTab and principal are used.
    short_name: maps a principal to a name. Raises ConfigError.
    """

    def __init__(self, options: dict[str, str], short_name: Callable[[str], str]):
        gssapi = library()
        keytab, principal = options.get("keyTab"), options.get("principal")
        if not keytab:
            raise ConfigError("sasl.jaas.config of GSSAPI: keyTab is missing")
        name = None
        try:
            if principal and principal != "*":
                name = gssapi.Name(principal, gssapi.NameType.kerberos_principal)
            self._credentials = gssapi.Credentials(
                usage="accept", name=name, store={"keytab": f"FILE:{keytab}"})
        except gssapi.exceptions.GSSError as error:
            raise ConfigError(f"GSSAPI: {keytab}: {_reason(error)}") from None
        self.short_name = short_name

    def begin(self) -> Exchange:
        gssapi = library()
        return Exchange(gssapi.SecurityContext(creds=self._credentials, usage="accept"),
                        self.short_name)


class Exchange:
    """One login. Sets `name` to the short name of the ticket's principal when the login is
    complete. A step blocks: the replay cache is a file.
    """

    blocks = True

    def __init__(self, context: Any, short_name: Callable[[str], str]):
        self._context, self._short_name = context, short_name
        self._steps = 0
        self._layers_sent = False
        self.name = ""
        self.is_complete = False

    def step(self, token: bytes) -> bytes:
        """Return the response to the client's message. Raises AuthenticationFailed."""
        gssapi = library()
        self._steps += 1
        if self._steps > STEPS_MAX or len(token) > TOKEN_BYTES_MAX:
            raise AuthenticationFailed(reason="too many or too long messages")
        try:
            if self._layers_sent:
                return self._chosen(self._context.unwrap(token).message)
            response: bytes = b""
            if not self._context.complete:
                response = self._context.step(token) or b""
            elif token:
                raise AuthenticationFailed(reason="a message where none was expected")
            if self._context.complete and not response:
                # Offer only the layer "none".
                self._layers_sent = True
                response = bytes(self._context.wrap(NO_LAYER, False).message)
            return response
        except gssapi.exceptions.GSSError as error:
            raise AuthenticationFailed(reason=_reason(error)) from None

    def _chosen(self, message: bytes) -> bytes:
        # The authorization id follows the layer and is ignored.
        if len(message) < LAYER_BYTES or message[:1] != NO_LAYER[:1]:
            raise AuthenticationFailed(reason="the client requires a security layer")
        principal = str(self._context.initiator_name)
        name = self._short_name(principal)
        if not name:
            raise AuthenticationFailed(
                reason=f"no rule of sasl.kerberos.principal.to.local.rules matches {principal}")
        self.name, self.is_complete = name, True
        return b""


def tokens(service: str, host: str, principal: str | None,
           keytab: str | None) -> Generator[bytes, bytes, None]:
    """Yield the client's tokens, as client_exchange.tokens does.

    service, host: of the requested ticket. keytab: of the principal; None: use the ticket cache.
    Each step may block on the KDC. Raises AuthenticationFailed, ConfigError.
    """
    gssapi = library()
    try:
        target = gssapi.Name(f"{service}@{host}", gssapi.NameType.hostbased_service)
        context = gssapi.SecurityContext(
            name=target, usage="initiate", creds=_own(gssapi, principal, keytab),
            mech=gssapi.MechType.kerberos,
            flags=[gssapi.RequirementFlag.mutual_authentication,
                   gssapi.RequirementFlag.integrity])
        response: bytes | None = None
        while not context.complete:
            token = context.step(response)
            if token:
                response = yield token
            elif not context.complete:
                raise AuthenticationFailed("Kerberos: the broker's response cannot be used")
        # RFC 4752: an empty message requests the server's list of layers.
        layers = context.unwrap((yield b"")).message
        if len(layers) != LAYER_BYTES or not layers[0] & NO_LAYER[0]:
            raise AuthenticationFailed("the broker requires a Kerberos security layer")
        yield bytes(context.wrap(NO_LAYER, False).message)
    except gssapi.exceptions.GSSError as error:
        raise AuthenticationFailed(f"Kerberos: {_reason(error)}") from None


def _own(gssapi, principal: str | None, keytab: str | None):
    """Return the client's credentials; None: use the ticket cache."""
    if not keytab:
        return None
    return gssapi.Credentials(
        usage="initiate", name=gssapi.Name(principal, gssapi.NameType.kerberos_principal),
        store={"client_keytab": f"FILE:{keytab}", "ccache": f"MEMORY:pylog-{principal}"})


def _reason(error: Exception) -> str:
    # The text has two parts, from GSSAPI and from Kerberos. The second contains the cause.
    return " ".join(str(error).split())


# ---- names --------------------------------------------------------------------------------------

class ShortNames:
    """Maps principals by sasl.kerberos.principal.to.local.rules: `alice/host@REALM` to `alice`.
    default_realm: called for the rule DEFAULT. Raises ConfigError.
    """

    def __init__(self, rules: tuple[str, ...], default_realm: Callable[[], str]):
        self._default_realm = default_realm
        self._rules = [_rule(text.strip()) for text in rules]

    def __call__(self, principal: str) -> str:
        """Return the short name, "" if no rule matches."""
        whole, at, realm = principal.partition("@")
        parts = whole.split("/")
        if not at:
            return whole
        if "@" in realm or "/" in realm or len(parts) > 2:
            return ""
        for rule in self._rules:
            found = self._default(realm, parts) if rule is None else _applied(rule, realm, parts)
            if found is not None:
                return "" if _NOT_SIMPLE.search(found) else found
        return ""

    def _default(self, realm: str, parts: list[str]) -> str | None:
        return parts[0] if realm == self._default_realm() else None


def default_realm() -> str:
    """Return the default realm. Raises ConfigError."""
    gssapi = library()
    name = gssapi.Name("nobody", gssapi.NameType.user)
    try:
        return str(name.canonicalize(gssapi.MechType.kerberos)).partition("@")[2]
    except gssapi.exceptions.GSSError as error:
        raise ConfigError(f"GSSAPI: no default realm: {_reason(error)}") from None


def _rule(text: str):
    """Parse a rule into (component count, format, filter, pattern, replacement, count or 0 for all,
    case). Return None for DEFAULT.
    """
    if text == "DEFAULT":
        return None
    found = _RULE.fullmatch(text)
    try:
        if found is None:
            raise ValueError(text)
        like, old = (None if text is None else re.compile(text)
                     for text in (found["match"], found["old"]))
        # Java's $1 is \\1 in Python.
        new = re.sub(r"\$(\d+)", r"\\g<\1>", found["new"] or "")
        if old is not None:
            old.sub(new, "")  # Report a missing group now, not at a login.
        return (int(found["count"] or -1), found["format"], like, old, new,
                0 if found["all"] else 1, found["case"])
    except (ValueError, re.error):
        raise ConfigError(f"sasl.kerberos.principal.to.local.rules: {text} is not a rule") from None


def _applied(rule: tuple, realm: str, parts: list[str]) -> str | None:
    count, form, like, old, new, times, case = rule
    if count != len(parts):
        return None
    values = [realm, *parts]
    text = re.sub(r"\$(\d+)", lambda found: values[int(found[1])]
                  if int(found[1]) < len(values) else "", form)
    if like is not None and not like.fullmatch(text):
        return None
    if old is not None:
        text = old.sub(new, text, count=times)
    return {"L": text.lower(), "U": text.upper()}.get(case, text)

"""Removes secrets from texts and settings, for files that leave the machine.

Owns: the known secrets.
Invariants: a known secret of at least CHARACTERS_MIN characters (a number: DIGITS_MIN) is in no
  result, plain or encoded; a value whose name or form suggests a secret is hidden up to the end of
  its line, because a password can contain spaces; if in doubt, a text is hidden.
Source: the setting type password; RFC 3986 (user information), RFC 7468 (PEM), RFC 6750, RFC 7519.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, quote_plus, unquote

from pylog.config import properties
from pylog.config.errors import ConfigError
from pylog.config.sealing import is_sensitive

HIDDEN = "[hidden]"
CHARACTERS_MIN = 4  # Shorter ones would hide parts of ordinary words.
DIGITS_MIN = 6  # Of a secret that is a number.
_WORDS = (r"pass(?:word|wd|phrase|code)|secret|token|credential|jaas|authorization|user[._-]?info|"
          r"(?:api|private|access|stored|server|client|keystore|salted)[._-]?key|\bsalt\b|cookie|"
          r"\bpwd\b|hmac")
NAME = re.compile(_WORDS, re.IGNORECASE)  # Matches names of secrets.
_PEM = re.compile(r"-----BEGIN (?!CERTIFICATE-)[^-\n]*-----.*?(?:-----END [^-\n]*-----|\Z)",
                  re.DOTALL)
_SHAPES = (
    # scheme://user:password@host
    (re.compile(r"\b([a-z][a-z0-9+.-]*://)[^\s\"'<>]*@", re.IGNORECASE), rf"\1{HIDDEN}@"),
    (re.compile(r"\b(bearer|basic|negotiate|digest)\s+[\w+/=.~:-]{6,}", re.IGNORECASE),
     rf"\1 {HIDDEN}"),
    (re.compile(r"\beyJ[\w-]{6,}(?:\.[\w-]*)*"), HIDDEN),
    (re.compile(r"pylog:sealed:\S+"), HIDDEN),
    # --token VALUE
    (re.compile(rf"(--?[\w.-]*(?:{_WORDS})[\w.-]*\s+)(?![-=:])(?:\"[^\"]*\"|'[^']*'|\S+)",
                re.IGNORECASE), rf"\1{HIDDEN}"),
    # name="value", 'name': 'value'. Without the characters before the word, whose search would take
    # time that grows with the square of a word's length.
    (re.compile(rf"((?:{_WORDS})[\w.-]*[\"']?\s*[=:]\s*)"
                rf"(\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*')", re.IGNORECASE),
     rf'\1"{HIDDEN}"'),
    # name=value, up to the end of the line
    (re.compile(rf"((?:{_WORDS})[\w.-]*[\"']?\s*[=:]\s*)(?!\"\[hidden\]\")\S.*",
                re.IGNORECASE), rf"\1{HIDDEN}"),
)
# Options of login modules whose values are no secrets.
_JAAS_NAMES = ("username", "principal", "keyTab", "useKeyTab", "storeKey", "serviceName",
               "useTicketCache", "doNotPrompt", "refreshKrb5Config")
_JAAS_VALUE = re.compile(r"\b(\w+)\s*=\s*"
                         r"(?:\"((?:\\.|[^\"\\])*)\"|'((?:\\.|[^'\\])*)'|([^\s;\"']+))")
_USER_INFO = re.compile(r"\b[a-z][a-z0-9+.-]*://([^\s\"'<>]*)@", re.IGNORECASE)


class Redaction:
    """Hides secrets. `hidden`: how many values were hidden so far."""

    def __init__(self) -> None:
        self.hidden = 0
        self._secrets: set[str] = set()
        self._known: re.Pattern[str] | None = None

    def learn(self, name: str, value: object) -> None:
        """Note the value of a setting, and hide it everywhere if it is secret."""
        text = str(value)
        for user_info in _USER_INFO.findall(text):
            self._add(user_info.partition(":")[2] or user_info)
        if not is_secret(name):
            return
        if not text.strip().isdigit() or is_sensitive(name):
            self._add(text)
        if "jaas" in name.lower() or "required" in text:
            for option, *found in _JAAS_VALUE.findall(text):
                if option not in _JAAS_NAMES:
                    self._add(next(filter(None, found), ""))
        for line in text.replace("\\n", "\n").splitlines():
            if not line.strip().isdigit():
                self._add(line.strip())

    def _add(self, secret: str) -> None:
        secret = secret.strip()
        for one in {secret, unquote(secret)}:
            # Words such as `true` are settings of other types, and short numbers are everywhere.
            if len(one) >= (DIGITS_MIN if one.isdigit() else CHARACTERS_MIN) \
                    and one.lower() not in ("true", "false", "none", "null"):
                self._secrets.add(one)
                self._known = None

    def text(self, given: str) -> str:
        """Return the text without secrets."""
        if self._secrets and self._known is None:
            forms = {form for secret in self._secrets for form in _forms(secret)}
            self._known = re.compile("|".join(
                re.escape(form) for form in sorted(forms, key=len, reverse=True)))
        if self._known is not None:
            given = self._sub(self._known, HIDDEN, given)
        given = self._sub(_PEM, HIDDEN, given)
        for pattern, hidden in _SHAPES:
            given = self._sub(pattern, hidden, given)
        return given

    def _sub(self, pattern: re.Pattern[str], hidden: str, given: str) -> str:
        found, count = pattern.subn(hidden, given)
        self.hidden += count
        return found

    def value(self, given: Any, name: str = "") -> Any:
        """Return a JSON value without secrets. name: its key."""
        if isinstance(given, Mapping):
            named = given.get("name")
            return {self.text(str(key)): self.value(
                one, str(named) if key == "value" and isinstance(named, str) else str(key))
                for key, one in given.items()}
        if isinstance(given, list | tuple):
            return [self.value(one, name) for one in given]
        if isinstance(given, str):
            if given and NAME.search(name) and not _is_plain(given):
                self.hidden += 1
                return HIDDEN
            return self.text(given)
        return given

    def settings(self, given: Mapping[str, str | None]) -> dict[str, str | None]:
        """Return broker settings without secrets. Learns the hidden values."""
        for name, value in given.items():
            self.learn(name, value or "")
        found: dict[str, str | None] = {}
        for name, value in given.items():
            if value and (is_sensitive(name) and value.lower() not in ("true", "false")
                          or NAME.search(name) and not _is_plain(value)):
                self.hidden += 1
                found[name] = HIDDEN
            else:
                found[name] = None if value is None else self.text(value)
        return found

    def json_text(self, given: bytes | str) -> str:
        """Return a JSON document without secrets, or as text if it is none."""
        try:
            value = json.loads(given)
        except ValueError:
            return self.text(given if isinstance(given, str) else given.decode("utf-8", "replace"))
        return json.dumps(self.value(value), indent=1, ensure_ascii=False) + "\n"

    def command_line(self, words: Iterable[str]) -> list[str]:
        """Return the words of a command without secrets."""
        found = []
        follows_secret = False
        for word in words:
            name, equals, value = word.lstrip("-").partition("=")
            if equals:
                self.learn(name, value)
            if follows_secret or (equals and is_secret(name)):
                if follows_secret:
                    self._add(word)
                self.hidden += 1
                found.append(f"{name}={HIDDEN}" if equals else HIDDEN)
            else:
                found.append(self.text(word))
            follows_secret = not equals and word.startswith("-") and bool(NAME.search(word))
        return found


def is_secret(name: str) -> bool:
    """Return True if the value of a setting must be hidden: its type is password, or unknown, or
    its name suggests a secret.
    """
    return is_sensitive(name) or bool(NAME.search(name))


def properties_of(text: str, path: str) -> dict[str, str]:
    """Return the settings of a .properties file, {} if it cannot be parsed."""
    try:
        return {name: value for name, (value, _) in properties.parse(text, path).items()}
    except ConfigError:
        return {}


def _is_plain(value: str) -> bool:
    """Return True for numbers, such as the lifetime of tokens, and switches: no secrets."""
    return value.lower() in ("true", "false") or value.lstrip("-").isdigit()


def _forms(secret: str) -> set[str]:
    """Return the encodings in which a secret can appear."""
    raw = secret.encode("utf-8", "surrogateescape")
    return {secret, quote(raw, safe=""), quote_plus(raw), json.dumps(secret)[1:-1],
            json.dumps(secret, ensure_ascii=False)[1:-1], repr(secret)[1:-1],
            secret.replace("\n", "\\n"), base64.b64encode(raw).decode().rstrip("="),
            base64.urlsafe_b64encode(raw).decode().rstrip("=")}

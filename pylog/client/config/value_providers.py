"""Resolve setting values such as `${env:NAME}`, `${file:/path:key}` and `${dir:/path:name}`.

Owns: the table of Kafka's providers.
Invariants: a resolved value never appears in a message; references to an undeclared provider are
  not changed.
Source: KIP-297, KIP-421 and KIP-887, for the syntax. Kafka leaves missing values unchanged; here
  they are errors.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pylog.client.errors import ConfigError

SETTING = "config.providers"
USUAL = ("env", "file", "dir")

_REFERENCE = re.compile(r"\$\{(\w+):(?:([^}]*):)?([^}:]*)\}")


def _environment(path: str, key: str) -> str:
    return os.environ[key]


def _file(path: str, key: str) -> str:
    from pylog.config.properties import parse

    with open(path, encoding="latin-1") as file:
        return parse(file.read(), path)[key][0]


def _directory(path: str, key: str) -> str:
    if os.sep in key or key in ("", os.curdir, os.pardir):
        raise KeyError(key)
    with open(os.path.join(path, key), encoding="utf-8") as file:
        return file.read()


_CLASSES: dict[str, Callable[[str, str], str]] = {
    "EnvVarConfigProvider": _environment, "FileConfigProvider": _file,
    "DirectoryConfigProvider": _directory,
}
_BY_NAME = {"env": "EnvVarConfigProvider", "file": "FileConfigProvider",
            "dir": "DirectoryConfigProvider", "directory": "DirectoryConfigProvider"}


def resolved(given: Mapping[str, Any], usual: Iterable[str] = ()) -> dict[str, Any]:
    """Resolve references in settings and remove the settings of the providers.

    usual: providers that need no declaration. Raises ConfigError.
    """
    names = [*usual, *str(given.get(SETTING) or "").split(",")]
    found = {name: _of(name, given.get(f"{SETTING}.{name}.class"))
             for name in map(str.strip, names) if name}
    own = tuple(f"{SETTING}.{name}." for name in found)
    return {key: _whole(key, value, found) if isinstance(value, str) else value
            for key, value in given.items() if key != SETTING and not key.startswith(own)}


def _of(name: str, kind: str | None) -> Callable[[str, str], str]:
    wanted = str(kind or _BY_NAME.get(name, name)).rpartition(".")[2]
    if wanted not in _CLASSES:
        raise ConfigError(f"{SETTING}={name}: there are only {', '.join(_CLASSES)}")
    return _CLASSES[wanted]


def _whole(setting: str, value: str, found: dict[str, Callable[[str, str], str]]) -> str:
    return _REFERENCE.sub(lambda match: _value(setting, match, found), value)


def _value(setting: str, match: re.Match[str],
           found: dict[str, Callable[[str, str], str]]) -> str:
    """Return the value of a reference, never showing it in an error."""
    name, path, key = match.groups()
    if name not in found:
        return match[0]
    try:
        return found[name](path or "", key).rstrip("\n")
    except (KeyError, OSError, ValueError):
        where = f"{path} has no {key}" if path else f"there is no {key}"
        raise ConfigError(f"{setting}={match[0]}: {where}") from None

"""Create clients from settings that come from a file or another program.

Owns: nothing.
Invariants: settings are checked as those of the constructor: an unknown name is rejected.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from pylog.client.errors import ConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self


def given(more: Mapping[str, object], **formats: object) -> dict[str, Any]:
    """Return a constructor's keywords and those of its formats that are set."""
    return {**more, **{name: found for name, found in formats.items() if found is not None}}


class Configured:
    """Base class of clients. Type checkers cannot check the settings of these constructors."""

    @classmethod
    def from_settings(cls, settings: Mapping[str, object], /) -> Self:
        """Create a client from a mapping of Kafka's names to values.

        Raises ConfigError for an unknown name or an invalid value.
        """
        return cls(settings)  # type: ignore[call-arg]

    @classmethod
    def from_properties(cls, path: str | os.PathLike[str], /) -> Self:
        """Create a client from a Java .properties file, such as Kafka's client.properties.

        Raises OSError if the file cannot be read, and ConfigError for an unknown name or an invalid
        value.
        """
        # Imported here: few programs read a file.
        from pylog.config import errors, properties

        with open(path) as file:
            text = file.read()
        try:
            entries = properties.parse(text, os.fspath(path))
        except errors.ConfigError as failure:
            raise ConfigError(str(failure)) from None
        return cls({name: value for name, (value, _) in entries.items()})  # type: ignore[call-arg]

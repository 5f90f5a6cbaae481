"""The message classes by name: `messages.FetchRequest`, `messages.FetchRequest.FetchTopic`.

Owns: nothing; each class is made by the codec when its name is first used.
Invariants: (1) a name of this module is the name of a message in the tables, and nothing else.

A class takes keyword arguments, fills the rest with the schema's defaults, compares by value and
has its fields in snake case: `MetadataRequest(topics=None, allow_auto_topic_creation=False)`.
Source: protocol/schemas.
"""

from __future__ import annotations

from pylog.protocol.codec import message_class

TYPE_CHECKING = False  # The real one costs the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    try:
        cls = message_class(name)
    except KeyError:
        raise AttributeError(f"no message is called {name!r}") from None
    globals()[name] = cls
    return cls

"""The message classes by name: `messages.FetchRequest`, `messages.FetchRequest.FetchTopic`.

Owns: nothing; the codec creates each class on first use of its name.
Invariants: this module's names are exactly the names of messages in the tables.
Source: protocol/schemas.

A constructor takes keyword arguments and uses the schema's defaults for the others. Messages
compare by value, and field names are in snake case: `MetadataRequest(topics=None,
allow_auto_topic_creation=False)`.
"""

from __future__ import annotations

from pylog.protocol.codec import message_class

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
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

"""A real broker inside a test: on threads of this process, or as a child process.

Owns: the public names; each is imported on first use.
Invariants: importing this package imports nothing else, because every pytest run loads it.

    with Broker() as broker:
        orders = broker.create_topic("orders")
        orders.append(b"one", (b"key", b"two"))
        orders.assert_records([b"one", (b"key", b"two")])
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # Lazy imports: see __getattr__.
if TYPE_CHECKING:
    from pylog.testing.broker import Broker, Clock
    from pylog.testing.cluster import Cluster
    from pylog.testing.errors import BrokerFailed
    from pylog.testing.faults import Faults
    from pylog.testing.groups import Group
    from pylog.testing.records import Record, record
    from pylog.testing.topics import Topic


_MODULES = {
    "Broker": "broker", "Clock": "broker", "Cluster": "cluster", "Faults": "faults",
    "Group": "groups", "Record": "records", "Topic": "topics", "record": "records",
    "BrokerFailed": "errors",
}

__all__ = [
    "Broker", "BrokerFailed", "Clock", "Cluster", "Faults", "Group", "Record", "Topic", "record",
]


def _imported(name: str) -> object:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    globals()[name] = found
    return found


if not TYPE_CHECKING:
    __getattr__ = _imported

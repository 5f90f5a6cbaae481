"""Creates the metadata service of a node.

Owns: nothing.
Invariants: none of the modules of a cluster is imported by a broker that is its own controller.
"""

from __future__ import annotations

from pylog.config import clusters
from pylog.metadata.service import MetadataService

TYPE_CHECKING = False  # Importing typing would cost 6 ms at startup.
if TYPE_CHECKING:
    from typing import Any


def metadata_of(settings, logs, node_id: int, now_ms, seconds, first) -> Any:
    """Return the metadata service for the location of the controllers. seconds: a monotonic clock.
    first: initial records of a new cluster.
    """
    if not settings.is_member:
        return MetadataService(settings, logs, node_id, now_ms)
    # Imported here: a broker that is its own controller does not need it.
    if clusters.has_quorum(settings):
        from pylog.metadata.controller_service import ControllerMember

        return ControllerMember(settings, logs, node_id, now_ms, seconds=seconds, first=first)
    from pylog.metadata.broker_service import MemberMetadata

    return MemberMetadata(settings, logs, node_id, now_ms)

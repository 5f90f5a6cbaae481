"""Which requests run first, and how long each kind may occupy the event loop.

Owns: nothing.
Invariants: none.
"""

from pylog.protocol import api

# A late heartbeat costs a group member its partitions, so these never wait for long requests.
GROUP_APIS = frozenset((
    api.JOIN_GROUP, api.SYNC_GROUP, api.LEAVE_GROUP, api.OFFSET_COMMIT, api.OFFSET_FETCH,
    api.FIND_COORDINATOR, api.HEARTBEAT, api.CONSUMER_GROUP_HEARTBEAT, api.SHARE_GROUP_HEARTBEAT,
    api.STREAMS_GROUP_HEARTBEAT))
QUEUED_MAX = 1024  # Maximum of queued group requests, of other requests, and of events per poll.
SLICE_NS = 5_000_000
LONG_MAX = 2  # Concurrent long requests of each kind.
LONG_SLICE_NS = SLICE_NS // 3  # All three kinds may run in one slice.
LONG_BYTES_MAX = 64 << 20  # Running or queued, of each kind.

"""Decides which topics a client may use, when the data plane has no grant or must verify a
transaction.

Owns: nothing.
Invariants: atomic misses: a miss is decided from the current image in one step, so that no grant
  outlives its topic; each miss and each verification gets a result, because its connection waits.
"""

from __future__ import annotations

from pylog import supervisor
from pylog._native.server.grants import FOLLOW, READ, WRITE
from pylog.protocol.errors import ErrorCode

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from pylog._native.server.reactor import Miss, Verify
    from pylog.server.services import Services


class GrantDecisions:
    """Decides from the current image and the client's rights."""

    def __init__(self, services: Services):
        self._services = services
        self._reactors = services.reactors

    def decide(self, miss: Miss) -> None:
        """Grant or deny the topics of a miss, and resume its request."""
        errors: list[int] = [ErrorCode.UNKNOWN_SERVER_ERROR] * len(miss.topics)
        try:
            for index, (name, topic_id) in enumerate(miss.topics):
                errors[index] = self._grant(miss, name, topic_id)
        finally:
            self._reactors.resume(miss.token, errors)

    async def verify(self, requested: Verify) -> None:
        """Check if partitions are part of the producer's transaction, and resume the request."""
        services = self._services
        verdicts: list[int]
        try:
            if services.access is not None \
                    and not services.connection_security().may_write_in(requested):
                denied = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
                verdicts = [denied] * len(requested.partitions)
            else:
                verdicts = await services.verification.verdicts(requested)
        except Exception:
            # Without verdicts the producer would never get a response.
            supervisor.report("requests", "cannot verify the partitions of a transaction")
            verdicts = [ErrorCode.UNKNOWN_SERVER_ERROR] * len(requested.partitions)
        self._reactors.resume(requested.token, verdicts)

    def _grant(self, miss: Miss, name: bytes | None, topic_id: bytes | None) -> int:
        """Install the grant for one topic, in one step from the current image. Return an error
        code.
        """
        services = self._services
        image = services.metadata.image
        if name is not None:
            text = name.decode("utf-8", "replace")
            topic = image.topics.get(text)
            refusal = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            topic = image.topics_by_id.get(topic_id)
            refusal = ErrorCode.UNKNOWN_TOPIC_ID
            text = "" if topic is None else topic.name
        rights = READ | WRITE | FOLLOW
        # An empty name is also checked, because Kafka checks authorization before names. An unknown
        # id has no name to check.
        if services.access is not None and (name is not None or text):
            # An unauthorized client must not learn if the topic exists.
            may = services.connection_security().may(miss, text)
            if may is None:
                return ErrorCode.NOT_LEADER_OR_FOLLOWER
            if not may:
                return ErrorCode.TOPIC_AUTHORIZATION_FAILED
            rights = miss.right
        if topic is None:
            return refusal
        if not services.install(topic):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        services.grants.allow(miss.principal, topic.id, rights)
        return ErrorCode.NONE

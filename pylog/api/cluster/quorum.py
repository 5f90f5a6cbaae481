"""The metadata quorum: DescribeQuorum (55), UpdateFeatures (57), RemoveRaftVoter (81).

Owns: nothing.
Invariants: this node is the leader and never behind; the other voters' state is that of their
  etcds.
Source: KIP-595, KIP-642, KIP-836, KIP-853 (quorum); KIP-584 (features); responses as in Kafka 4.4.
"""

from __future__ import annotations

import logging

from pylog.eventloop.threads import in_thread
from pylog.metadata.log.local_log import TOPIC
from pylog.peer.controllers import voters_of
from pylog.protocol import api, messages
from pylog.protocol.api_error import Refusal
from pylog.protocol.errors import ErrorCode

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Callable

    from pylog._native.server.reactor import RequestContext
    from pylog.api.handler import Handler, Message
    from pylog.api.cluster.metadata_log import Observers
    from pylog.config import Settings
    from pylog.metadata.controller.active_controller import ActiveController
    from pylog.metadata.quorum.voter_status import Voter
    from pylog.metadata.service import MetadataService

log = logging.getLogger("pylog.metadata")

CONTROLLER = "CONTROLLER"
RESULTS_UNTIL = 1       # Later versions have one error for all features.


class QuorumApi:
    """The metadata quorum. now_ms: the wall clock. observers: None if there are none."""

    def __init__(self, controller: ActiveController, metadata: MetadataService, settings: Settings,
                 node_id: int, now_ms: Callable[[], int], observers: Observers | None = None):
        self._controller = controller
        self._metadata = metadata
        self._settings = settings
        self._node_id = node_id
        self._now_ms = now_ms
        self._observers = observers

    def handlers(self) -> dict[int, Handler]:
        return {
            api.DESCRIBE_QUORUM: self.describe_quorum,
            api.UPDATE_FEATURES: self.update_features,
            api.REMOVE_RAFT_VOTER: self.remove_raft_voter,
        }

    async def describe_quorum(self, context: RequestContext, request: Message) -> Message:
        """Return the leader, voters and offsets of the metadata log; nodes from version 2
        (KIP-853).

        Errors: NOT_CONTROLLER; UNKNOWN_TOPIC_OR_PARTITION for any other log.
        """
        response = messages.DescribeQuorumResponse
        requested = [(topic.topic_name, [entry.partition_index for entry in topic.partitions])
                 for topic in request.topics]
        if requested != [(TOPIC, [0])]:
            return response(error_message="", topics=[
                response.TopicData(topic_name=name, partitions=[
                    response.PartitionData(
                        partition_index=index, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                        error_message="this is not the metadata log",
                        current_voters=[], observers=[])
                    for index in indexes])
                for name, indexes in requested], nodes=[])
        voters = await self._query_voters()
        # Another node may have become leader during the query.
        if not self._controller.is_active:
            return response(error_code=ErrorCode.NOT_CONTROLLER, error_message="", topics=[],
                            nodes=[])
        image, now_ms = self._metadata.image, self._now_ms()
        end_offset = image.offset + 1
        partition = response.PartitionData(
            partition_index=0, error_code=ErrorCode.NONE, error_message="", leader_id=self._node_id,
            leader_epoch=image.epoch, high_watermark=end_offset,
            current_voters=self._states(voters, end_offset, now_ms),
            observers=[response.ReplicaState(
                replica_id=observer.id, replica_directory_id=observer.directory_id,
                log_end_offset=observer.end_offset, last_fetch_timestamp=observer.fetched_ms,
                last_caught_up_timestamp=observer.caught_up_ms)
                for observer in (self._observers.now(now_ms) if self._observers else ())])
        return response(
            error_message="", topics=[response.TopicData(topic_name=TOPIC, partitions=[partition])],
            nodes=self._nodes(context, voters) if context.api_version >= 2 else [])

    async def _query_voters(self) -> list[Voter]:
        """Return None if this node is the only one, or if the quorum's voters have no ids."""
        voters = self._metadata.voters
        if voters is None or not self._controller.is_active:
            return []
        return await voters.states(self._metadata.image.offset + 1)

    def _states(self, voters: list[Voter], end_offset: int, now_ms: int) -> list:
        """Return the leader's state, which is never behind, and the voters' states."""
        state = messages.DescribeQuorumResponse.ReplicaState
        heard_ms = {voter.id: voter.heard_ms for voter in voters}
        return [state(
            replica_id=self._node_id, log_end_offset=end_offset,
            last_fetch_timestamp=heard_ms.get(self._node_id, now_ms),
            last_caught_up_timestamp=now_ms),
            *(state(
                # The voter may have more records than are in force here.
                replica_id=voter.id, log_end_offset=min(voter.end_offset, end_offset),
                last_fetch_timestamp=voter.heard_ms, last_caught_up_timestamp=voter.caught_up_ms)
              for voter in voters if voter.id != self._node_id)]

    def _nodes(self, context, voters: list[Voter]) -> list:
        # The controller responds on the listener that the client used: it may have no separate one.
        response = messages.DescribeQuorumResponse
        names = self._settings["controller.listener.names"]
        known = voters_of(self._settings["controller.quorum.voters"])
        addresses = {self._node_id: (context.local_host, context.local_port), **{
            voter.id: (known[voter.id].host, known[voter.id].port)
            for voter in voters if voter.id != self._node_id}}
        return [response.Node(node_id=node_id, listeners=[response.Listener(
            name=names[0] if names else CONTROLLER, host=host, port=port)])
            for node_id, (host, port) in addresses.items()]

    async def remove_raft_voter(self, context: RequestContext, request: Message) -> Message:
        """Remove the etcd member of a lost controller (KIP-853).

        Errors: NOT_CONTROLLER; INCONSISTENT_CLUSTER_ID; VOTER_NOT_FOUND; UNSUPPORTED_VERSION if
        brokerd runs no etcd; INVALID_REQUEST while too few members respond.
        """
        response = messages.RemoveRaftVoterResponse
        seats = self._metadata.seats
        if not self._controller.is_active:
            return response(error_code=ErrorCode.NOT_CONTROLLER, error_message=None)
        if request.cluster_id not in (None, self._metadata.cluster_id):
            return response(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID, error_message=None)
        if seats is None:
            return response(error_code=ErrorCode.UNSUPPORTED_VERSION,
                            error_message="the controllers of this cluster run no etcd")
        if request.voter_directory_id != bytes(16):
            # Voters have no directory ids here: DescribeQuorum reports zeros.
            return response(error_code=ErrorCode.VOTER_NOT_FOUND, error_message=None)
        try:
            member = await in_thread(seats.remove, request.voter_id)
        except Refusal as refusal:
            return response(error_code=refusal.error, error_message=refusal.message)
        log.warning("an etcd member was removed on request", extra={
            "controller": request.voter_id, "member": member})
        return response(error_code=ErrorCode.NONE, error_message=f"member {member} was removed")

    async def update_features(self, context: RequestContext, request: Message) -> Message:
        """Change finalized feature levels, all or none (KIP-584).

        Errors: INVALID_UPDATE_VERSION and the other errors of metadata.controller.features, with a
        message.
        """
        response = messages.UpdateFeaturesResponse
        try:
            await self._controller.update_features(
                request.feature_updates, request.validate_only,
                await self._metadata.standby_features())
        except Refusal as refusal:
            return response(error_code=refusal.error, error_message=refusal.message, results=[])
        results = []
        if context.api_version <= RESULTS_UNTIL:
            results = [response.UpdatableFeatureResult(
                feature=wanted.feature, error_code=ErrorCode.NONE, error_message="NONE")
                for wanted in request.feature_updates]
        return response(error_code=ErrorCode.NONE, error_message=None, results=results)

"""Responses to denied requests: complete ones, and rows for the denied parts of a response.

Owns: nothing.
Invariants: a response contains only names from the request and the error, no stored information.
Source: the getErrorResponse of Kafka 4.4's requests.
"""

from __future__ import annotations

from types import SimpleNamespace

from pylog.protocol import api, messages, tables
from pylog.protocol.errors import ErrorCode

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from pylog._native.server.reactor import RequestContext
    from pylog.api.handler import Message
    from pylog.protocol.errors import Error

NONE_COMMITTED = -1
IDS_SINCE = 10  # of OffsetFetch
ERROR_SINCE = 2  # of OffsetFetch, before it supported several groups
ELECTION_ERROR_SINCE = 1  # of ElectLeaders, for the whole request
NO_ID = bytes(16)


def empty(api_key: int) -> Message:
    """Return a response without rows."""
    return getattr(messages, tables.name_of("response", api_key))()


def whole(context: RequestContext, request: Message, error: Error) -> Message:
    """Return the response that denies a whole request."""
    made = _WHOLE.get(context.api_key)
    if made is not None:
        response = made(request, error)
        if context.api_key == api.ELECT_LEADERS and context.api_version < ELECTION_ERROR_SINCE:
            response.error_code = ErrorCode.NONE
        return response
    response = empty(context.api_key)
    response.error_code = error
    if hasattr(response, "error_message"):
        response.error_message = error.message
    return response


def _of_each(field: str, requested: str, row: Callable) -> Callable:
    """field: the array of the response; row(new, element, error) for each element of the array
    `asked`.
    """
    def made(request: Message, error: Error) -> Message:
        name = type(request).__name__.removesuffix("Request") + "Response"
        new = getattr(messages, name)
        return new(**{field: [row(new, element, error) for element in getattr(request, requested)]})
    return made


def _moved(request: Message, error: Error) -> Message:
    new = messages.AlterReplicaLogDirsResponse
    requested: dict[str, dict[int, None]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            requested.setdefault(topic.name, {}).update(dict.fromkeys(topic.partitions))
    return new(results=[
        new.AlterReplicaLogDirTopicResult(topic_name=name, partitions=[
            new.AlterReplicaLogDirPartitionResult(partition_index=index, error_code=error)
            for index in indexes]) for name, indexes in requested.items()])


def _elected(request: Message, error: Error) -> Message:
    new = messages.ElectLeadersResponse
    return new(error_code=error, replica_election_results=[
        new.ReplicaElectionResult(topic=topic.topic, partition_result=[
            new.PartitionResult(partition_id=index, error_code=error, error_message=error.message)
            for index in topic.partitions]) for topic in request.topic_partitions or ()])


def _share_states(request: Message, error: Error) -> Message:
    """Return the response of the five APIs that store share partition state."""
    stem = type(request).__name__.removesuffix("Request")
    new = getattr(messages, f"{stem}Response")
    # ReadShareGroupStateSummary has rows of ReadStateSummaryResult.
    row = getattr(new, f"{stem.replace('ShareGroup', '')}Result")
    return new(results=[row(topic_id=topic.topic_id, partitions=[
        new.PartitionResult(partition=part.partition, error_code=error,
                            error_message=error.message)
        for part in topic.partitions]) for topic in request.topics])


def _users(request: Message, error: Error) -> Message:
    new = messages.DescribeUserScramCredentialsResponse
    return new(error_code=error, error_message=error.message, results=[
        new.DescribeUserScramCredentialsResult(error_code=error, error_message=error.message)])


def _scram(request: Message, error: Error) -> Message:
    new = messages.AlterUserScramCredentialsResponse
    names = dict.fromkeys(row.name for row in (*request.deletions, *request.upsertions))
    return new(results=[
        new.AlterUserScramCredentialsResult(
            user=name, error_code=error, error_message=error.message) for name in names])


def _quotas(new: Any, entry: Any, error: Error) -> Any:
    return new.EntryData(error_code=error, error_message=error.message, entity=[
        new.EntityData(entity_type=part.entity_type, entity_name=part.entity_name)
        for part in entry.entity])


def _coordinator(request: Message, error: Error) -> Message:
    new = messages.FindCoordinatorResponse
    if request.coordinator_keys:
        return new(coordinators=[coordinator(key, error) for key in request.coordinator_keys])
    return new(error_code=error, error_message=error.message, node_id=-1, host="", port=-1)


_WHOLE: dict[int, Callable[[Message, Error], Message]] = {
    api.FIND_COORDINATOR: _coordinator,
    api.CREATE_ACLS: _of_each("results", "creations", lambda new, row, error: (
        new.AclCreationResult(error_code=error, error_message=error.message))),
    api.DELETE_ACLS: _of_each("filter_results", "filters", lambda new, row, error: (
        new.DeleteAclsFilterResult(error_code=error, error_message=error.message))),
    api.ALTER_REPLICA_LOG_DIRS: _moved,
    api.ELECT_LEADERS: _elected,
    **dict.fromkeys((api.INITIALIZE_SHARE_GROUP_STATE, api.READ_SHARE_GROUP_STATE,
                     api.WRITE_SHARE_GROUP_STATE, api.DELETE_SHARE_GROUP_STATE,
                     api.READ_SHARE_GROUP_STATE_SUMMARY), _share_states),
    api.ALTER_CLIENT_QUOTAS: _of_each("entries", "entries", _quotas),
    api.ALTER_USER_SCRAM_CREDENTIALS: _scram,
    api.DESCRIBE_CLIENT_QUOTAS: lambda request, error: messages.DescribeClientQuotasResponse(
        error_code=error, error_message=error.message, entries=None),
    api.WRITE_TXN_MARKERS: lambda request, error: _markers(request, error),
    api.INIT_PRODUCER_ID: lambda request, error: messages.InitProducerIdResponse(
        error_code=error, producer_epoch=-1),
    api.DESCRIBE_USER_SCRAM_CREDENTIALS: _users,
    api.JOIN_GROUP: lambda request, error: messages.JoinGroupResponse(
        error_code=error, generation_id=-1, protocol_name=""),
}


# ---- rows ---------------------------------------------------------------------------------------

def coordinator(key: str, error: Error) -> Any:
    return messages.FindCoordinatorResponse.Coordinator(
        key=key, error_code=error, error_message=error.message, node_id=-1, host="", port=-1)


def topic_of_metadata(row: Any, by_id: bool) -> Any:
    """Return the row of a hidden topic: if it was named by id, the id is reported as unknown."""
    new = messages.MetadataResponse.MetadataResponseTopic
    if by_id:
        return new(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=row.topic_id)
    return new(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=row.name, topic_id=NO_ID)


def partitions_of_transaction(topics: Any, refused: dict[str, Error]) -> Message:
    """Return the response of AddPartitionsToTxn before version 4 if some topics are denied: none is
    added.
    """
    new = messages.AddPartitionsToTxnResponse
    return new(results_by_topic_v3_and_below=[
        new.AddPartitionsToTxnTopicResult(name=topic.name, results_by_partition=[
            new.AddPartitionsToTxnPartitionResult(
                partition_index=index, partition_error_code=refused.get(
                    topic.name, ErrorCode.OPERATION_NOT_ATTEMPTED)) for index in topic.partitions])
        for topic in topics])


def _markers(request: Message, error: Error) -> Message:
    new = messages.WriteTxnMarkersResponse
    return new(markers=[new.WritableTxnMarkerResult(producer_id=marker.producer_id, topics=[
        new.WritableTxnMarkerTopicResult(name=topic.name, partitions=[
            new.WritableTxnMarkerPartitionResult(partition_index=index, error_code=error)
            for index in topic.partition_indexes]) for topic in marker.topics])
        for marker in request.markers])


def offsets_of_group(context: RequestContext, request: Message) -> Message:
    """Return the OffsetFetch response for a hidden group, in the versions with one group."""
    error = ErrorCode.GROUP_AUTHORIZATION_FAILED
    if context.api_version >= ERROR_SINCE:
        return messages.OffsetFetchResponse(error_code=error)
    return messages.OffsetFetchResponse(topics=[
        _fetched(messages.OffsetFetchResponse, row, error, "Topic", "Partition")
        for row in request.topics or ()])


def group_of_offsets(group: Any) -> Any:
    return messages.OffsetFetchResponse.OffsetFetchResponseGroup(
        group_id=group.group_id, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)


def fetched_offsets(context: RequestContext, row: Any) -> Any:
    """Return the OffsetFetch row of a hidden topic."""
    error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    several = hasattr(row, "topic_id")
    return _fetched(messages.OffsetFetchResponse, row, error,
                    "Topics" if several else "Topic", "Partitions" if several else "Partition")


def _fetched(new: Any, row: Any, error: Error, topic: str, partition: str) -> Any:
    made = getattr(new, f"OffsetFetchResponse{topic}")(name=row.name, partitions=[
        getattr(new, f"OffsetFetchResponse{partition}")(
            partition_index=index, committed_offset=NONE_COMMITTED, metadata="", error_code=error)
        for index in row.partition_indexes])
    if hasattr(row, "topic_id"):
        made.topic_id = row.topic_id
    return made


def _list_offsets(row: Any, error: Error) -> Any:
    new = messages.ListOffsetsResponse
    return new.ListOffsetsTopicResponse(name=row.name, partitions=[
        new.ListOffsetsPartitionResponse(partition_index=cell.partition_index, error_code=error)
        for cell in row.partitions])


def _described_group(group_id: str, error: Error) -> Any:
    return messages.DescribeGroupsResponse.DescribedGroup(group_id=group_id, error_code=error)


def _described_consumers(group_id: str, error: Error) -> Any:
    return messages.ConsumerGroupDescribeResponse.DescribedGroup(
        group_id=group_id, error_code=error)


def _delete_records(row: Any, error: Error) -> Any:
    new = messages.DeleteRecordsResponse
    return new.DeleteRecordsTopicResult(name=row.name, partitions=[
        new.DeleteRecordsPartitionResult(
            partition_index=cell.partition_index, low_watermark=-1, error_code=error)
        for cell in row.partitions])


def _partitions(row: Any, error: Error) -> Any:
    return messages.CreatePartitionsResponse.CreatePartitionsTopicResult(
        name=row.name, error_code=error)


def _deleted_group(group_id: str, error: Error) -> Any:
    return messages.DeleteGroupsResponse.DeletableGroupResult(group_id=group_id, error_code=error)


def _producers(row: Any, error: Error) -> Any:
    new = messages.DescribeProducersResponse
    return new.TopicResponse(name=row.name, partitions=[
        new.PartitionResponse(partition_index=index, error_code=error, error_message=error.message)
        for index in row.partition_indexes])


def _described_topic(row: Any, error: Error) -> Any:
    return messages.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic(
        error_code=error, name=row.name, is_internal=False)


def _created_topic(row: Any, error: Error) -> Any:
    return messages.CreateTopicsResponse.CreatableTopicResult(
        name=row.name, error_code=error, error_message="Authorization failed.")


def _deleted_topic(name: str | None, topic_id: bytes) -> Any:
    error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return messages.DeleteTopicsResponse.DeletableTopicResult(
        name=name, topic_id=topic_id, error_code=error, error_message=error.message)


def _epoch_end(row: Any, error: Error) -> Any:
    new = messages.OffsetForLeaderEpochResponse
    return new.OffsetForLeaderTopicResult(topic=row.topic, partitions=[
        new.EpochEndOffset(partition=cell.partition, error_code=error) for cell in row.partitions])


def _described_configs(row: Any, error: Error) -> Any:
    return messages.DescribeConfigsResponse.DescribeConfigsResult(
        error_code=error, error_message=error.message, resource_type=row.resource_type,
        resource_name=row.resource_name)


def _altered_configs(api_key: int) -> Callable[[Any, Error], Any]:
    new = getattr(messages, tables.name_of("response", api_key)).AlterConfigsResourceResponse

    def made(row: Any, error: Error) -> Any:
        return new(error_code=error, error_message=error.message,
                   resource_type=row.resource_type, resource_name=row.resource_name)

    return made


def _committed(row: Any, error: Error) -> Any:
    new = messages.OffsetCommitResponse
    return new.OffsetCommitResponseTopic(
        name=row.name, topic_id=row.topic_id, partitions=[
            new.OffsetCommitResponsePartition(
                partition_index=cell.partition_index, error_code=error)
            for cell in row.partitions])


def _committed_in_transaction(row: Any, error: Error) -> Any:
    new = messages.TxnOffsetCommitResponse
    return new.TxnOffsetCommitResponseTopic(
        name=row.name, topic_id=row.topic_id, partitions=[
            new.TxnOffsetCommitResponsePartition(
                partition_index=cell.partition_index, error_code=error)
            for cell in row.partitions])


def _transaction(id_: str, error: Error) -> Any:
    return messages.DescribeTransactionsResponse.TransactionState(
        error_code=error, transactional_id=id_)


def _deleted_offsets(row: Any, error: Error) -> Any:
    new = messages.OffsetDeleteResponse
    return new.OffsetDeleteResponseTopic(name=row.name, partitions=[
        new.OffsetDeleteResponsePartition(partition_index=cell.partition_index, error_code=error)
        for cell in row.partitions])


ROWS = SimpleNamespace(
    list_offsets=_list_offsets, described_group=_described_group,
    described_consumers=_described_consumers, delete_records=_delete_records,
    partitions=_partitions, deleted_group=_deleted_group, producers=_producers,
    described_topic=_described_topic, created_topic=_created_topic, deleted_topic=_deleted_topic,
    epoch_end=_epoch_end, described_configs=_described_configs, altered_configs=_altered_configs,
    committed_in_transaction=_committed_in_transaction, transaction=_transaction,
    committed=_committed, deleted_offsets=_deleted_offsets, coordinator=coordinator)

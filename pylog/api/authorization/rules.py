"""The authorization of each API, in one table, and its denial.

Owns: the table of permissions.
Invariants: APIs outside the table require CLUSTER_ACTION; a handler never receives the denied parts
  of a request, and returns no rows for them; the response about a hidden object does not depend on
  its existence.
Source: KafkaApis and ControllerApis of Kafka 4.4, by their responses.
"""

from __future__ import annotations

import functools
from collections import namedtuple

from pylog.api.authorization import denied_responses
from pylog.api.authorization.response_edits import edited, with_rows
from pylog.api.authorization.share_rules import ShareRights
from pylog.api.authorization.streams_rules import StreamsRights
from pylog.metadata.controller.partitions import topic_branches
from pylog.protocol import api, messages
from pylog.protocol.errors import ErrorCode
from pylog.security.authorizer import (
    ALTER,
    ALTER_CONFIGS,
    CLUSTER,
    CLUSTER_ACTION,
    CLUSTER_NAME,
    CREATE,
    DELETE,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    GROUP,
    IDEMPOTENT_WRITE,
    READ,
    TOPIC,
    TRANSACTIONAL_ID,
    WRITE,
)

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from pylog._native.server.reactor import RequestContext
    from pylog.api.handler import Handler, Message, Result
    from pylog.config import Settings
    from pylog.metadata.service import MetadataService
    from pylog.security.authorization.access import Access

NO_ID = bytes(16)
ERRORS = {TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED, GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
          CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
          TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}
# Resource types of the config APIs.
RESOURCE_TOPIC, RESOURCE_GROUP = 2, 32
KEY_GROUP, KEY_TRANSACTION = 0, 1
BATCHED_SINCE = 4  # of FindCoordinator
IDS_SINCE = 12  # of Metadata requests
GROUPS_SINCE = 8  # of OffsetFetch
CONFIGS_SINCE = 5  # of CreateTopics

Whole = namedtuple("Whole", ("operation", "kind", "field"), defaults=(CLUSTER, None))
Whole.__doc__ = "A permission for the whole request, on the cluster or the resource in a field."
Each = namedtuple("Each", ("operation", "kind", "request_field", "name_field", "response_field",
                           "row"))
Each.__doc__ = """A permission for each element of the array `request_field`, named in `name_field`
("": the element itself); row(element, error): the row in the array `response_field` for a denied
element."""

_ROWS = denied_responses.ROWS
RULES: dict[int, Whole | Each] = {
    api.LIST_OFFSETS: Each(DESCRIBE, TOPIC, "topics", "name", "topics", _ROWS.list_offsets),
    api.JOIN_GROUP: Whole(READ, GROUP, "group_id"),
    api.HEARTBEAT: Whole(READ, GROUP, "group_id"),
    api.LEAVE_GROUP: Whole(READ, GROUP, "group_id"),
    api.SYNC_GROUP: Whole(READ, GROUP, "group_id"),
    api.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE: Whole(READ, GROUP, "group_id"),
    api.DELETE_RECORDS: Each(DELETE, TOPIC, "topics", "name", "topics", _ROWS.delete_records),
    api.DESCRIBE_ACLS: Whole(DESCRIBE),
    api.CREATE_ACLS: Whole(ALTER),
    api.DELETE_ACLS: Whole(ALTER),
    api.ALTER_REPLICA_LOG_DIRS: Whole(ALTER),
    api.DESCRIBE_LOG_DIRS: Whole(DESCRIBE),
    api.CREATE_PARTITIONS: Each(ALTER, TOPIC, "topics", "name", "results", _ROWS.partitions),
    api.DELETE_GROUPS: Each(DELETE, GROUP, "groups_names", "", "results", _ROWS.deleted_group),
    api.ELECT_LEADERS: Whole(ALTER),
    api.ALTER_PARTITION_REASSIGNMENTS: Whole(ALTER),
    api.LIST_PARTITION_REASSIGNMENTS: Whole(DESCRIBE),
    api.DESCRIBE_CLIENT_QUOTAS: Whole(DESCRIBE_CONFIGS),
    api.ALTER_CLIENT_QUOTAS: Whole(ALTER_CONFIGS),
    api.DESCRIBE_USER_SCRAM_CREDENTIALS: Whole(DESCRIBE),
    api.ALTER_USER_SCRAM_CREDENTIALS: Whole(ALTER),
    api.DESCRIBE_QUORUM: Whole(DESCRIBE),
    api.UPDATE_FEATURES: Whole(ALTER),
    api.UNREGISTER_BROKER: Whole(ALTER),
    api.UNREGISTER_CONTROLLER: Whole(ALTER),
    api.REMOVE_RAFT_VOTER: Whole(ALTER),
    api.END_TXN: Whole(WRITE, TRANSACTIONAL_ID, "transactional_id"),
    api.DESCRIBE_PRODUCERS: Each(READ, TOPIC, "topics", "name", "topics", _ROWS.producers),
    api.LIST_CONFIG_RESOURCES: Whole(DESCRIBE_CONFIGS),
}
# Always allowed, or allowed depending on a token's owner: see api.security.delegation_tokens.
FREE = frozenset((
    api.API_VERSIONS, api.SASL_HANDSHAKE, api.SASL_AUTHENTICATE, api.CREATE_DELEGATION_TOKEN,
    api.RENEW_DELEGATION_TOKEN, api.EXPIRE_DELEGATION_TOKEN, api.DESCRIBE_DELEGATION_TOKEN))


class Rights:
    """The permissions of one broker's clients. metadata: has the current image."""

    def __init__(self, access: Access, metadata: MetadataService, settings: Settings):
        self._access = access
        self._metadata = metadata
        self._settings = settings
        self._special: dict[int, Callable[[Handler, RequestContext, Message], Result]] = {
            api.METADATA: self._for_metadata,
            api.DESCRIBE_CLUSTER: self._describe_cluster,
            api.DESCRIBE_GROUPS: self._describe_groups,
            api.OFFSET_COMMIT: self._offset_commit,
            api.OFFSET_FETCH: self._offset_fetch,
            api.FIND_COORDINATOR: self._find_coordinator,
            api.LIST_GROUPS: self._list_groups,
            api.CONSUMER_GROUP_HEARTBEAT: self._consumer_group_heartbeat,
            api.CONSUMER_GROUP_DESCRIBE: self._consumer_group_describe,
            api.CREATE_TOPICS: self._create_topics,
            api.DELETE_TOPICS: self._delete_topics,
            api.INIT_PRODUCER_ID: self._init_producer_id,
            api.OFFSET_FOR_LEADER_EPOCH: self._offset_for_leader_epoch,
            api.DESCRIBE_CONFIGS: self._describe_configs,
            api.ALTER_CONFIGS: self._alter_configs,
            api.INCREMENTAL_ALTER_CONFIGS: self._alter_configs,
            api.OFFSET_DELETE: self._offset_delete,
            api.ADD_PARTITIONS_TO_TXN: self._add_partitions,
            api.ADD_OFFSETS_TO_TXN: self._add_offsets,
            api.TXN_OFFSET_COMMIT: self._txn_offset_commit,
            api.WRITE_TXN_MARKERS: self._write_markers,
            api.DESCRIBE_TRANSACTIONS: self._describe_transactions,
            api.LIST_TRANSACTIONS: self._list_transactions,
            api.DESCRIBE_TOPIC_PARTITIONS: self._describe_topic_partitions,
            **ShareRights(access).special(),
            **StreamsRights(access).special(),
        }

    def around(self, handlers: dict[int, Handler]) -> dict[int, Handler]:
        """Wrap the handlers in their permission checks."""
        return {key: handle if key in FREE else self._guarded(key, handle)
                for key, handle in handlers.items()}

    def _guarded(self, key: int, handle: Handler) -> Handler:
        special = self._special.get(key)
        # Unknown APIs require CLUSTER_ACTION.
        rule = RULES.get(key, Whole(CLUSTER_ACTION))

        def guarded(context: RequestContext, request: Message) -> Result:
            if special is not None:
                result = special(handle, context, request)
            elif isinstance(rule, Whole):
                result = self._whole(rule, handle, context, request)
            else:
                result = self._each(rule, handle, context, request)
            if not self._access.authorizer.from_image:
                context.cacheable = False
            return result

        return guarded

    # ---- the rules of the table -----------------------------------------------------------------

    def _may(self, context: RequestContext, operation: int, kind: int, name: str) -> bool:
        return self._access.may(context, operation, kind, name)

    def _may_cluster(self, context: RequestContext, operation: int) -> bool:
        return self._access.may(context, operation, CLUSTER, CLUSTER_NAME)

    def _may_cluster_besides(self, context: RequestContext, operation: int) -> bool:
        return self._access.may_besides(context, operation, CLUSTER, CLUSTER_NAME)

    def _whole(self, rule: Whole, handle: Handler, context: RequestContext,
               request: Message) -> Result:
        name = CLUSTER_NAME if rule.field is None else getattr(request, rule.field) or ""
        if self._may(context, rule.operation, rule.kind, name):
            return handle(context, request)
        return denied_responses.whole(context, request, ERRORS[rule.kind])

    def _each(self, rule: Each, handle: Handler, context: RequestContext,
              request: Message) -> Result:
        allowed, rows = [], []
        for element in getattr(request, rule.request_field):
            name = getattr(element, rule.name_field) if rule.name_field else element
            if self._may(context, rule.operation, rule.kind, name):
                allowed.append(element)
            else:
                rows.append(rule.row(element, ERRORS[rule.kind]))
        if not rows:
            return handle(context, request)
        # The handler receives only the permitted elements.
        setattr(request, rule.request_field, allowed)
        return with_rows(handle(context, request) if allowed else
                          denied_responses.empty(context.api_key), rule.response_field, rows)

    # ---- topics ---------------------------------------------------------------------------------

    def _topic_name(self, row: Any) -> str | None:
        """Return the name of a row's topic, None for an unknown id."""
        id_ = bytes(getattr(row, "topic_id", NO_ID))
        if id_ == NO_ID:
            return row.name
        topic = self._metadata.image.topics_by_id.get(id_)
        return None if topic is None else topic.name

    def _cluster_operations(self, context: RequestContext, requested: bool,
                            result: Any) -> Result:
        if not requested:
            return result
        operations = self._access.operations(context, CLUSTER, CLUSTER_NAME) \
            if self._may_cluster_besides(context, DESCRIBE) else 0

        def edit(part: Message) -> None:
            if not part.error_code:
                part.cluster_authorized_operations = operations

        return edited(result, edit)

    def _describe_cluster(self, handle: Handler, context: RequestContext,
                          request: Message) -> Result:
        return self._cluster_operations(
            context, request.include_cluster_authorized_operations, handle(context, request))

    def _describe_groups(self, handle: Handler, context: RequestContext,
                         request: Message) -> Result:
        def edit(part: Message) -> None:
            for row in part.groups:
                if row.error_code == ErrorCode.NONE:
                    row.authorized_operations = self._access.operations(
                        context, GROUP, row.group_id)

        result = self._each(Each(DESCRIBE, GROUP, "groups", "", "groups", _ROWS.described_group),
                            handle, context, request)
        return edited(result, edit) if request.include_authorized_operations else result

    def _for_metadata(self, handle: Handler, context: RequestContext, request: Message) -> Result:
        return self._cluster_operations(
            context, request.include_cluster_authorized_operations,
            self._topics_of_metadata(handle, context, request))

    def _topics_of_metadata(self, handle: Handler, context: RequestContext,
                            request: Message) -> Result:
        if request.topics is None or context.api_version == 0 and not request.topics:
            return handle(context, request)  # The handler omits hidden topics.
        if context.api_version < IDS_SINCE and any(
                bytes(row.topic_id) != NO_ID for row in request.topics):
            return handle(context, request)  # The handler rejects that for any id.
        allowed, rows = [], []
        creates = self._settings["auto.create.topics.enable"] and (
            context.api_version < BATCHED_SINCE or request.allow_auto_topic_creation)
        for row in request.topics:
            name = self._topic_name(row)
            by_id = bytes(row.topic_id) != NO_ID
            if name is None or self._may(context, DESCRIBE, TOPIC, name) and (
                    by_id or not creates or name in self._metadata.image.topics
                    or self._may_create(context, name)):
                allowed.append(row)
            else:
                # Hidden and missing topics have the same row.
                rows.append(denied_responses.topic_of_metadata(row, by_id))
        if not rows:
            return handle(context, request)
        # An empty tuple instead of a list means no topics, not all topics, in any version.
        request.topics = allowed or ()
        return with_rows(handle(context, request), "topics", rows)

    def _may_create(self, context: RequestContext, name: str) -> bool:
        return self._may_cluster_besides(context, CREATE) or self._may(context, CREATE, TOPIC, name)

    def _describe_topic_partitions(self, handle: Handler, context: RequestContext,
                                   request: Message) -> Result:
        new = messages.DescribeTopicPartitionsRequest
        if not request.topics:
            names = [name for name in self._metadata.image.topics
                     if self._access.may_besides(context, DESCRIBE, TOPIC, name)]
            if not names:
                return denied_responses.empty(context.api_key)
            request.topics = [new.TopicRequest(name=name) for name in names]
            result = handle(context, request)
        else:
            result = self._each(Each(DESCRIBE, TOPIC, "topics", "name", "topics",
                                     _ROWS.described_topic), handle, context, request)

        def edit(part: Message) -> None:
            for row in part.topics:
                if row.error_code in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                    row.topic_authorized_operations = self._access.operations(
                        context, TOPIC, row.name)

        return edited(result, edit)

    def _create_topics(self, handle: Handler, context: RequestContext,
                       request: Message) -> Result:
        may_create_all = self._may_cluster_besides(context, CREATE)
        allowed, rejected = [], []
        for topic in request.topics:
            may_create = may_create_all or self._may(context, CREATE, TOPIC, topic.name)
            if may_create and self._may_branch(context, topic):
                allowed.append(topic)
            else:
                rejected.append(_ROWS.created_topic(topic, ERRORS[TOPIC]))
        if not rejected:
            result = handle(context, request)
        else:
            request.topics = allowed
            result = with_rows(handle(context, request) if allowed else
                               denied_responses.empty(context.api_key), "topics", rejected)

        def edit(response: Message) -> None:
            for row in response.topics if context.api_version >= CONFIGS_SINCE else ():
                if row.error_code == ErrorCode.NONE and not self._access.may_besides(
                        context, DESCRIBE_CONFIGS, TOPIC, row.name):
                    row.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                    row.num_partitions = row.replication_factor = -1
                    row.configs = []

        return edited(result, edit)

    def _may_branch(self, context: RequestContext, topic: Any) -> bool:
        """Return True unless the topic is a branch whose source the client may not copy.

        A branch shows the records and the settings of its source. The answer is the same whether
        the source exists or not, so it does not reveal which topics exist.
        """
        source = topic_branches.source_name(topic)
        return source is None or (self._may(context, READ, TOPIC, source)
                                  and self._may(context, DESCRIBE_CONFIGS, TOPIC, source))

    def _delete_topics(self, handle: Handler, context: RequestContext,
                       request: Message) -> Result:
        if self._may_cluster_besides(context, DELETE):
            return handle(context, request)
        rows, names, topics = [], [], []
        for name in request.topic_names:
            if self._may_delete(context, name):
                names.append(name)
            else:
                rows.append(_ROWS.deleted_topic(name, NO_ID))
        for row in request.topics:
            name = self._topic_name(row)
            # If both a name and an id are given, the row is denied regardless of their values.
            is_both = row.name is not None and bytes(row.topic_id) != NO_ID
            if name is None or is_both or self._may_delete(context, name):
                topics.append(row)
            else:
                by_id = bytes(row.topic_id) != NO_ID
                shown = not by_id or self._may(context, DESCRIBE, TOPIC, name)
                rows.append(_ROWS.deleted_topic(name if shown else None, bytes(row.topic_id)))
        if not rows:
            return handle(context, request)
        request.topic_names, request.topics = names, topics
        return with_rows(handle(context, request), "responses", rows)

    def _may_delete(self, context: RequestContext, name: str) -> bool:
        """Return True also for a missing topic if the client may describe it."""
        operation = DELETE if name in self._metadata.image.topics else DESCRIBE
        return self._may(context, operation, TOPIC, name)

    def _offset_for_leader_epoch(self, handle: Handler, context: RequestContext,
                                 request: Message) -> Result:
        if self._may_cluster_besides(context, CLUSTER_ACTION):
            return handle(context, request)
        return self._each(Each(DESCRIBE, TOPIC, "topics", "topic", "topics", _ROWS.epoch_end),
                          handle, context, request)

    def _init_producer_id(self, handle: Handler, context: RequestContext,
                          request: Message) -> Result:
        error = None
        if request.transactional_id is not None:
            if not self._may(context, WRITE, TRANSACTIONAL_ID, request.transactional_id):
                error = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        elif not self._access.may_somewhere(context, WRITE, TOPIC) \
                and not self._may_cluster(context, IDEMPOTENT_WRITE):
            error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return handle(context, request) if error is None else \
            denied_responses.whole(context, request, error)

    # ---- settings -------------------------------------------------------------------------------

    def _describe_configs(self, handle: Handler, context: RequestContext,
                          request: Message) -> Result:
        return self._configs(handle, context, request, DESCRIBE_CONFIGS, "results",
                             _ROWS.described_configs)

    def _alter_configs(self, handle: Handler, context: RequestContext,
                       request: Message) -> Result:
        return self._configs(handle, context, request, ALTER_CONFIGS, "responses",
                             _ROWS.altered_configs(context.api_key))

    def _configs(self, handle: Handler, context: RequestContext, request: Message,
                 operation: int, answered: str, row: Callable) -> Result:
        allowed, rows = [], []
        for resource in request.resources:
            kind = {RESOURCE_TOPIC: TOPIC, RESOURCE_GROUP: GROUP}.get(
                resource.resource_type, CLUSTER)
            name = CLUSTER_NAME if kind == CLUSTER else resource.resource_name
            if self._may(context, operation, kind, name):
                allowed.append(resource)
            else:
                rows.append(row(resource, ERRORS[kind]))
        if not rows:
            return handle(context, request)
        request.resources = allowed
        return with_rows(handle(context, request), answered, rows)

    # ---- groups ---------------------------------------------------------------------------------

    def _find_coordinator(self, handle: Handler, context: RequestContext,
                          request: Message) -> Result:
        kind = {KEY_GROUP: GROUP, KEY_TRANSACTION: TRANSACTIONAL_ID}.get(request.key_type)
        if kind is None:
            return self._whole(Whole(CLUSTER_ACTION), handle, context, request)
        if context.api_version < BATCHED_SINCE:
            return self._whole(Whole(DESCRIBE, kind, "key"), handle, context, request)
        return self._each(Each(DESCRIBE, kind, "coordinator_keys", "", "coordinators",
                               _ROWS.coordinator), handle, context, request)

    def _list_groups(self, handle: Handler, context: RequestContext, request: Message) -> Result:
        result = handle(context, request)
        if self._may_cluster_besides(context, DESCRIBE):
            return result

        def edit(part: Message) -> None:
            part.groups = [row for row in part.groups
                           if self._access.may_besides(context, DESCRIBE, GROUP, row.group_id)]

        return edited(result, edit)

    def _consumer_group_heartbeat(self, handle: Handler, context: RequestContext,
                                  request: Message) -> Result:
        error = ErrorCode.NONE
        if not self._may(context, READ, GROUP, request.group_id):
            error = ErrorCode.GROUP_AUTHORIZATION_FAILED
        elif not all(self._may(context, DESCRIBE, TOPIC, name)
                     for name in request.subscribed_topic_names or ()):
            error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if error == ErrorCode.NONE:
            return handle(context, request)
        return denied_responses.whole(context, request, error)

    def _consumer_group_describe(self, handle: Handler, context: RequestContext,
                                 request: Message) -> Result:
        def edit(part: Message) -> None:
            for row in part.groups:
                if not all(self._may(context, DESCRIBE, TOPIC, name) for name in _topics(row)):
                    row.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                    row.error_message = "the group has topics that you may not describe"
                    row.members = []
                elif request.include_authorized_operations and row.error_code == ErrorCode.NONE:
                    row.authorized_operations = self._access.operations(
                        context, GROUP, row.group_id)

        return edited(self._each(
            Each(DESCRIBE, GROUP, "group_ids", "", "groups", _ROWS.described_consumers), handle,
            context, request), edit)

    def _offset_commit(self, handle: Handler, context: RequestContext,
                       request: Message) -> Result:
        error = None if self._may(context, READ, GROUP, request.group_id) else \
            ErrorCode.GROUP_AUTHORIZATION_FAILED
        return self._offsets_of_topics(handle, context, request, error, _ROWS.committed)

    def _offset_delete(self, handle: Handler, context: RequestContext,
                       request: Message) -> Result:
        if not self._may(context, DELETE, GROUP, request.group_id):
            return denied_responses.whole(context, request, ErrorCode.GROUP_AUTHORIZATION_FAILED)
        return self._offsets_of_topics(handle, context, request, None, _ROWS.deleted_offsets)

    def _offsets_of_topics(self, handle: Handler, context: RequestContext, request: Message,
                           error: Any, row_of: Callable) -> Result:
        """error: for all topics, None: each topic needs READ."""
        allowed, rows = [], []
        for row in request.topics:
            name = self._topic_name(row)
            if error is None and (name is None or self._may(context, READ, TOPIC, name)):
                allowed.append(row)
            else:
                rows.append(row_of(row, error or ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        if not rows:
            return handle(context, request)
        request.topics = allowed
        return with_rows(handle(context, request) if allowed else
                          denied_responses.empty(context.api_key), "topics", rows)

    # ---- transactions ---------------------------------------------------------------------------

    def _add_partitions(self, handle: Handler, context: RequestContext,
                        request: Message) -> Result:
        if context.api_version >= BATCHED_SINCE:
            # Brokers use these versions for verification.
            return self._whole(Whole(CLUSTER_ACTION), handle, context, request)
        id_, topics = (request.v3_and_below_transactional_id, request.v3_and_below_topics)
        if not self._may(context, WRITE, TRANSACTIONAL_ID, id_):
            return denied_responses.partitions_of_transaction(
                topics, dict.fromkeys((topic.name for topic in topics),
                                      ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
        refused = {topic.name: ErrorCode.TOPIC_AUTHORIZATION_FAILED for topic in topics
                   if not self._may(context, WRITE, TOPIC, topic.name)}
        # All of them or none, as for unknown partitions.
        return denied_responses.partitions_of_transaction(topics, refused) if refused else \
            handle(context, request)

    def _add_offsets(self, handle: Handler, context: RequestContext, request: Message) -> Result:
        error = self._offsets_error(context, request)
        return handle(context, request) if error is None else \
            denied_responses.whole(context, request, error)

    def _offsets_error(self, context: RequestContext, request: Message) -> Any:
        if not self._may(context, WRITE, TRANSACTIONAL_ID, request.transactional_id):
            return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        if not self._may(context, READ, GROUP, request.group_id):
            return ErrorCode.GROUP_AUTHORIZATION_FAILED
        return None

    def _txn_offset_commit(self, handle: Handler, context: RequestContext,
                           request: Message) -> Result:
        return self._offsets_of_topics(handle, context, request,
                                       self._offsets_error(context, request),
                                       _ROWS.committed_in_transaction)

    def _write_markers(self, handle: Handler, context: RequestContext,
                       request: Message) -> Result:
        if self._may_cluster_besides(context, ALTER):
            return handle(context, request)
        return self._whole(Whole(CLUSTER_ACTION), handle, context, request)

    def _describe_transactions(self, handle: Handler, context: RequestContext,
                               request: Message) -> Result:
        def edit(part: Message) -> None:
            for row in part.transaction_states:
                row.topics = [topic for topic in row.topics if self._access.may_besides(
                    context, DESCRIBE, TOPIC, topic.topic)]

        return edited(self._each(
            Each(DESCRIBE, TRANSACTIONAL_ID, "transactional_ids", "", "transaction_states",
                 _ROWS.transaction), handle, context, request), edit)

    def _list_transactions(self, handle: Handler, context: RequestContext,
                           request: Message) -> Result:
        def edit(part: Message) -> None:
            part.transaction_states = [
                row for row in part.transaction_states
                if self._access.may_besides(
                    context, DESCRIBE, TRANSACTIONAL_ID, row.transactional_id)]

        return edited(handle(context, request), edit)

    # ---- committed offsets ----------------------------------------------------------------------

    def _offset_fetch(self, handle: Handler, context: RequestContext, request: Message) -> Result:
        if context.api_version < GROUPS_SINCE:
            if not self._may(context, DESCRIBE, GROUP, request.group_id):
                return denied_responses.offsets_of_group(context, request)
            rows = self._fetchable(context, request)
            result = handle(context, request)
            if request.topics is None:
                return edited(result, functools.partial(self._show, context))
            return with_rows(result, "topics", rows) if rows else result
        return self._offsets_of_groups(handle, context, request)

    def _fetchable(self, context: RequestContext, holder: Any) -> list:
        """Remove hidden topics from a group's topics. Returns their rows for the response."""
        allowed, rows = [], []
        for row in holder.topics or ():
            name = self._topic_name(row)
            if name is None or self._may(context, DESCRIBE, TOPIC, name):
                allowed.append(row)
            else:
                rows.append(denied_responses.fetched_offsets(context, row))
        if rows:
            holder.topics = allowed
        return rows

    def _offsets_of_groups(self, handle: Handler, context: RequestContext,
                           request: Message) -> Result:
        allowed, refused = [], []
        rows_of: dict[str, list] = {}
        for group in request.groups:
            if self._may(context, DESCRIBE, GROUP, group.group_id):
                allowed.append(group)
                rows_of[group.group_id] = self._fetchable(context, group)
            else:
                refused.append(denied_responses.group_of_offsets(group))
        request.groups = allowed

        def edit(part: Message) -> None:
            for group in part.groups:
                self._show(context, group)
                group.topics += rows_of.pop(group.group_id, [])

        result = edited(handle(context, request) if allowed else
                         denied_responses.empty(context.api_key), edit)
        return with_rows(result, "groups", refused) if refused else result

    def _show(self, context: RequestContext, holder: Any) -> None:
        """Remove hidden topics from the response."""
        holder.topics = [row for row in holder.topics if self._is_visible(context, row)]

    def _is_visible(self, context: RequestContext, row: Any) -> bool:
        name = self._topic_name(row)
        return name is None or self._access.may_besides(context, DESCRIBE, TOPIC, name)


def _topics(group: Any) -> set[str]:
    """Return the topics in the description of a consumer group."""
    return {name for member in group.members for name in (
        *member.subscribed_topic_names,
        *(row.topic_name for held in (member.assignment, member.target_assignment)
          for row in held.topic_partitions))}

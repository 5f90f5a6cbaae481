"""The asyncio Admin client: topics, settings, quotas, log directories and the cluster.

Owns: a cluster's connections.
Invariants: retries cover only the items with a retriable error; if some of several items fail, the
  first one's exception has `results` with the outcome of each by name; no call treats a str as a
  list of its characters.
Source: Kafka's Admin client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from pylog.client.admin.groups import Groups
from pylog.client.admin.security import SecurityAdministration
from pylog.client.admin.share_groups import ShareAdministration
from pylog.client.admin.streams_groups import StreamsAdministration
from pylog.client.admin.transactions import TransactionAdministration
from pylog.client.admin.types import (
    AlterConfigOp, ClusterDescription, ConfigEntry, ConfigResource, ConfigSource,
    LogDirDescription, NewTopic, QuotaAlteration, ReplicaInfo, ResourceType,
)
from pylog.client.arguments import checks_iterables
from pylog.client.config.configured import Configured
from pylog.client.config.settings import ADMIN, Settings
from pylog.client.consumer import list_offsets
from pylog.client.consumer.list_offsets import TIMES
from pylog.client.errors import (
    KafkaError, UnsupportedByBrokerError, error, raise_among, raise_for,
)
from pylog.client.network.cluster import Cluster
from pylog.client.network.cluster_metadata import Node, TopicInfo
from pylog.client import shutdown
from pylog.client.types import TopicPartition
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self, Unpack

    from pylog.client.options import AdminConfig, AdminOptions

_MATCH_EXACT, _MATCH_DEFAULT, _MATCH_ANY = 0, 1, 2
_BROKER_TYPES = {ResourceType.BROKER, ResourceType.BROKER_LOGGER}


@checks_iterables
class Admin(Groups, ShareAdministration, StreamsAdministration, SecurityAdministration,
            TransactionAdministration, Configured):
    """`async with Admin(bootstrap_servers="…") as admin: …`"""

    def __init__(self, config: AdminConfig | None = None, /, **more: Unpack[AdminOptions]):
        self.settings = Settings(ADMIN, config, **more)
        self._made: Cluster | None = None

    @property
    def cluster(self) -> Cluster:
        """The connections, for pylog's own commands: not part of the API."""
        if self._made is None:
            self._made = Cluster(self.settings)
            self._made.may_create_topics = False
        return self._made

    async def start(self) -> Self:
        await self.cluster.start()
        return self

    def __del__(self) -> None:
        cluster = getattr(self, "_made", None)
        if cluster is not None and cluster.loop is not None:
            shutdown.dropped(self, cluster)

    async def close(self) -> None:
        if self._made is not None:
            await self._made.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def _retry_items(self, wanted: Mapping[Any, Any], timeout: float | None,
                           query: Callable[[dict[Any, Any]], Awaitable[dict[Any, Any]]]
                           ) -> dict[Any, Any]:
        """Run `query`, which returns {name: result or KafkaError}, and retry failed items.

        Returns the results by name. Raises the first error, with all `results`.
        """
        results: dict[Any, Any] = {}

        async def attempt() -> None:
            left = {name: value for name, value in wanted.items()
                    if not _final(results.get(name, _MISSING))}
            answered = await query(left)
            results.update({name: answered.get(name, _no_response(name)) for name in left})
            _raise_passing(results)

        if wanted:
            await self._attempt(attempt, timeout, wanted, results)
        raise_among(results)
        return results

    async def _run_concurrently(self, names: Iterable[Any], timeout: float | None,
                                work: Callable[[Any], Awaitable[Any]]) -> dict[Any, Any]:
        """Run `work` for all names concurrently, each with a separate request.

        Returns results, retries and raises as `_retry_items` does.
        """
        wanted, results = list(dict.fromkeys(names)), dict[Any, Any]()
        await self._attempt(lambda: _gathered(wanted, results, work), timeout, wanted, results)
        raise_among(results)
        return results

    async def _run_on_all_brokers(self, timeout: float | None, work: Callable[[int], Awaitable[Any]]
                                  ) -> dict[int, Any]:
        """Run work(broker) for every broker and return the results by broker.

        Follows changes of the broker list during retries. Raises the first error, with all
        `results`.
        """
        results: dict[int, Any] = {}
        nodes: list[int] = []

        async def attempt() -> None:
            nodes[:] = (await self.cluster.refresh()).nodes
            for node in [*results]:
                if node not in nodes and not _final(results[node]):
                    del results[node]
            await _gathered(nodes, results, work)

        await self._attempt(attempt, timeout, nodes, results)
        raise_among(results)
        return results

    async def _attempt(self, attempt: Callable[[], Awaitable[None]], timeout: float | None,
                       wanted: Iterable[Any], results: dict[Any, Any]) -> None:
        """Retry `attempt` and add `results` to its exception, also on a timeout."""
        try:
            await self.cluster.retry(attempt, timeout)
        except KafkaError as failure:
            failure.results = {**dict.fromkeys(wanted, failure), **results}
            raise

    async def _retry(self, query: Callable[[], Awaitable[Any]], timeout: float | None) -> Any:
        """Retry a request that succeeds or fails as a whole, and return its response."""
        async def attempt() -> Any:
            response = await query()
            raise_for(response.error_code, getattr(response, "error_message", None))
            return response

        return await self.cluster.retry(attempt, timeout)

    async def _send_to_controller(self, request: Any) -> Any:
        """Send one request to the controller, or to a broker that forwards it."""
        return await self.cluster.send(await self.cluster.controller(), request)

    # The cluster

    async def describe_cluster(self, timeout: float | None = None) -> ClusterDescription:
        metadata = await self.cluster.retry(self.cluster.refresh, timeout)
        return ClusterDescription(metadata.cluster_id or "", metadata.controller,
                                  list(metadata.nodes.values()))

    async def _nodes(self, timeout: float | None) -> list[Node]:
        if not self.cluster.metadata.nodes:
            await self.describe_cluster(timeout)
        return list(self.cluster.metadata.nodes.values())

    # Topics

    async def list_topics(self, internal: bool = False, timeout: float | None = None
                          ) -> dict[str, TopicInfo]:
        """Return every topic by name; internal topics only with `internal`."""
        metadata = await self.cluster.retry(self.cluster.every_topic, timeout)
        return {name: topic for name, topic in sorted(metadata.topics.items())
                if internal or not topic.is_internal}

    async def describe_topics(self, names: Iterable[str], timeout: float | None = None
                              ) -> dict[str, TopicInfo]:
        async def query(left: dict[str, None]) -> dict[str, Any]:
            response = await self.cluster.request_metadata(sorted(left))
            found = _topics(response)
            return {name: found[name] if not found[name].error_code
                    else error(found[name].error_code, context=name) for name in left}

        async def refuse_unknown(left: dict[str, None]) -> dict[str, Any]:
            found = await query(left)
            # Report a missing topic immediately instead of retrying.
            return {name: _settled(result) for name, result in found.items()}

        return await self._retry_items(dict.fromkeys(names), timeout, refuse_unknown)

    async def create_topics(self, topics: Iterable[NewTopic | str], validate_only: bool = False,
                            timeout: float | None = None) -> dict[str, bytes]:
        """Create topics and return their ids by name. Raises TopicAlreadyExistsError and other
        errors.
        """
        request = messages.CreateTopicsRequest
        wanted = {topic.name: topic for topic in [
            NewTopic(topic) if isinstance(topic, str) else topic for topic in topics]}

        async def query(left: dict[str, NewTopic]) -> dict[str, Any]:
            response = await self._send_to_controller(request(
                validate_only=validate_only, timeout_ms=self._timeout_ms(timeout), topics=[
                    request.CreatableTopic(
                        name=topic.name,
                        num_partitions=-1 if topic.replica_assignments else topic.num_partitions,
                        replication_factor=(-1 if topic.replica_assignments
                                            else topic.replication_factor),
                        assignments=[request.CreatableReplicaAssignment(
                            partition_index=number, broker_ids=list(brokers))
                            for number, brokers in topic.replica_assignments.items()],
                        configs=[request.CreatableTopicConfig(name=name, value=str(value))
                                 for name, value in topic.configs.items()])
                    for topic in left.values()]))
            return {row.name: _settled(_outcome(row, row.name, row.topic_id))
                    for row in response.topics}

        return await self._retry_items(wanted, timeout, query)

    async def delete_topics(self, names: Iterable[str], timeout: float | None = None) -> None:
        request = messages.DeleteTopicsRequest

        async def query(left: dict[str, None]) -> dict[str, Any]:
            response = await self._send_to_controller(request(
                topics=[request.DeleteTopicState(name=name) for name in left],
                topic_names=list(left), timeout_ms=self._timeout_ms(timeout)))
            return {row.name: _settled(_outcome(row, row.name)) for row in response.responses}

        await self._retry_items(dict.fromkeys(names), timeout, query)

    async def create_partitions(self, counts: Mapping[str, int], validate_only: bool = False,
                                timeout: float | None = None) -> None:
        """Add partitions. counts: the new number of partitions of each topic."""
        request = messages.CreatePartitionsRequest

        async def query(left: dict[str, int]) -> dict[str, Any]:
            response = await self._send_to_controller(request(
                topics=[request.CreatePartitionsTopic(name=name, count=count, assignments=None)
                        for name, count in left.items()],
                timeout_ms=self._timeout_ms(timeout), validate_only=validate_only))
            return {row.name: _settled(_outcome(row, row.name)) for row in response.results}

        await self._retry_items(counts, timeout, query)

    async def delete_records(self, before: Mapping[TopicPartition, int],
                             timeout: float | None = None) -> dict[TopicPartition, int]:
        """Delete records before each offset (-1: all). Returns the logs' new start offsets."""
        request = messages.DeleteRecordsRequest

        async def query(node: int, share: dict[TopicPartition, int]) -> dict[TopicPartition, Any]:
            topics: dict[str, Any] = {}
            for tp, offset in share.items():
                row = topics.setdefault(tp[0], request.DeleteRecordsTopic(name=tp[0]))
                row.partitions.append(request.DeleteRecordsPartition(
                    partition_index=tp[1], offset=offset))
            response = await self.cluster.send(node, request(
                topics=list(topics.values()), timeout_ms=self._timeout_ms(timeout)))
            return {TopicPartition(topic.name, row.partition_index):
                    _outcome(row, f"{topic.name}-{row.partition_index}", row.low_watermark)
                    for topic in response.topics for row in topic.partitions}

        wanted = {TopicPartition.of(tp): offset for tp, offset in before.items()}
        return await list_offsets.by_leader(self.cluster, wanted, query, timeout)

    async def list_offsets(self, at: Mapping[TopicPartition, int | str],
                           timeout: float | None = None) -> dict[TopicPartition, Any]:
        """Return OffsetAndTimestamp by partition. at: "earliest", "latest" or a time in ms."""
        times = {TopicPartition.of(tp): TIMES.get(which, which) for tp, which in at.items()}
        return await list_offsets.list_offsets(self.cluster, times, 0, timeout)

    async def elect_leaders(self, partitions: Iterable[TopicPartition] | None = None,
                            unclean: bool = False, timeout: float | None = None
                            ) -> dict[TopicPartition, Any]:
        """Elect leaders of these partitions, or of all. Returns None or the KafkaError of each."""
        request = messages.ElectLeadersRequest
        topics = None
        if partitions is not None:
            rows: dict[str, list[int]] = {}
            for topic, number in partitions:
                rows.setdefault(topic, []).append(number)
            topics = [request.TopicPartitions(topic=topic, partitions=numbers)
                      for topic, numbers in rows.items()]
        response = await self._retry(lambda: self._send_to_controller(request(
            election_type=int(unclean), topic_partitions=topics,
            timeout_ms=self._timeout_ms(timeout))), timeout)
        return {TopicPartition(topic.topic, row.partition_id):
                _outcome(row, f"{topic.topic}-{row.partition_id}")
                for topic in response.replica_election_results for row in topic.partition_result}

    async def alter_partition_reassignments(
            self, wanted: Mapping[TopicPartition, list[int] | None],
            timeout: float | None = None) -> None:
        """Set the brokers of each partition; None cancels a reassignment."""
        request = messages.AlterPartitionReassignmentsRequest

        async def query(left: dict[TopicPartition, Any]) -> dict[TopicPartition, Any]:
            topics: dict[str, Any] = {}
            for tp, replicas in left.items():
                row = topics.setdefault(tp[0], request.ReassignableTopic(name=tp[0]))
                row.partitions.append(request.ReassignablePartition(
                    partition_index=tp[1], replicas=replicas))
            response = await self._send_to_controller(request(
                topics=list(topics.values()), timeout_ms=self._timeout_ms(timeout)))
            raise_for(response.error_code, response.error_message)
            return {TopicPartition(topic.name, row.partition_index):
                    _settled(_outcome(row, f"{topic.name}-{row.partition_index}"))
                    for topic in response.responses for row in topic.partitions}

        await self._retry_items({TopicPartition.of(tp): to for tp, to in wanted.items()},
                                timeout, query)

    async def list_partition_reassignments(self, timeout: float | None = None
                                           ) -> dict[TopicPartition, Any]:
        """Return running reassignments: (replicas, adding, removing) by partition."""
        response = await self._retry(lambda: self._send_to_controller(
            messages.ListPartitionReassignmentsRequest()), timeout)
        return {TopicPartition(topic.name, row.partition_index):
                (row.replicas, row.adding_replicas, row.removing_replicas)
                for topic in response.topics for row in topic.partitions}

    # Settings

    async def describe_configs(self, resources: Iterable[ConfigResource],
                               timeout: float | None = None
                               ) -> dict[ConfigResource, dict[str, ConfigEntry]]:
        request = messages.DescribeConfigsRequest

        def build(share: list[ConfigResource], documented: bool = True) -> Any:
            return request(include_documentation=documented, resources=[
                request.DescribeConfigsResource(
                    resource_type=int(resource.type), resource_name=resource.name,
                    configuration_keys=None) for resource in share])

        def read(response: Any) -> dict[ConfigResource, Any]:
            return {_resource(row): _settled(_outcome(row, row.resource_name, {
                entry.name: ConfigEntry(
                    entry.name, entry.value, entry.config_source,
                    entry.config_source == ConfigSource.DEFAULT_CONFIG, entry.read_only,
                    entry.is_sensitive, entry.documentation) for entry in row.configs}))
                    for row in response.results}

        async def query(left: dict[ConfigResource, None]) -> dict[ConfigResource, Any]:
            found = await self._by_owner(left, build, read)
            old = [resource for resource, row in found.items()
                   if isinstance(row, UnsupportedByBrokerError)]
            return found | await self._by_owner(old, lambda share: build(share, False), read)

        wanted = {ConfigResource(ResourceType(kind), name): None for kind, name in resources}
        return await self._retry_items(wanted, timeout, query)

    async def incremental_alter_configs(
            self, changes: Mapping[ConfigResource, Iterable[AlterConfigOp] | Mapping[str, Any]],
            validate_only: bool = False, timeout: float | None = None) -> None:
        """Change settings per resource: operations, or {name: value} with None for the default."""
        request = messages.IncrementalAlterConfigsRequest

        wanted = {ConfigResource(ResourceType(kind), name): _ops(given)
                  for (kind, name), given in changes.items()}

        def build(share: list[ConfigResource]) -> Any:
            return request(validate_only=validate_only, resources=[
                request.AlterConfigsResource(
                    resource_type=int(resource.type), resource_name=resource.name, configs=[
                        request.AlterableConfig(
                            name=op.name, config_operation=int(op.op),
                            value=None if op.value is None else str(op.value))
                        for op in wanted[resource]]) for resource in share])

        def read(response: Any) -> dict[ConfigResource, Any]:
            return {_resource(row): _settled(_outcome(row, row.resource_name))
                    for row in response.responses}

        await self._retry_items(wanted, timeout, lambda left: self._by_owner(left, build, read))

    async def list_config_resources(self, types: Iterable[ResourceType] = (),
                                    timeout: float | None = None) -> list[ConfigResource]:
        response = await self._retry(lambda: self.cluster.send_any(
            messages.ListConfigResourcesRequest(resource_types=[int(kind) for kind in types])),
            timeout)
        return [_resource(row) for row in response.config_resources]

    async def _by_owner(self, resources: Iterable[ConfigResource],
                        build: Callable[[list[ConfigResource]], Any],
                        read: Callable[[Any], dict[ConfigResource, Any]]
                        ) -> dict[ConfigResource, Any]:
        """Send a broker's own settings to that broker, and all others to any broker."""
        shares: dict[int | None, list[ConfigResource]] = {}
        for resource in resources:
            owner = int(resource.name) if resource.type in _BROKER_TYPES and resource.name else None
            shares.setdefault(owner, []).append(resource)
        if any(owner is not None for owner in shares):
            await self._nodes(None)

        async def query(owner: int | None, share: list[ConfigResource]
                        ) -> dict[ConfigResource, Any]:
            try:
                return read(await (self.cluster.send_any(build(share)) if owner is None
                                   else self.cluster.send(owner, build(share))))
            except KafkaError as failure:
                return dict.fromkeys(share, failure)

        found: dict[ConfigResource, Any] = {}
        for some in await asyncio.gather(*[query(*row) for row in shares.items()]):
            found |= some
        return found

    # Quotas

    async def describe_client_quotas(self, entity: Mapping[str, str | None] | None = None,
                                     strict: bool = False, timeout: float | None = None
                                     ) -> list[tuple[dict[str, str | None], dict[str, float]]]:
        """Return (entity, quotas) of all entities, or of those that match: {"user": name, None:
        default}.
        """
        request = messages.DescribeClientQuotasRequest
        response = await self._retry(lambda: self.cluster.send_any(request(
            strict=strict, components=[
                request.ComponentData(
                    entity_type=kind, match=None if name in (None, "*") else name,
                    match_type=_MATCH_ANY if name == "*" else
                    _MATCH_DEFAULT if name is None else _MATCH_EXACT)
                for kind, name in (entity or {}).items()])), timeout)
        return [({part.entity_type: part.entity_name for part in entry.entity},
                 {value.key: value.value for value in entry.values})
                for entry in response.entries or ()]

    async def alter_client_quotas(self, alterations: Iterable[QuotaAlteration],
                                  validate_only: bool = False,
                                  timeout: float | None = None) -> None:
        new = messages.AlterClientQuotasRequest
        request = new(validate_only=validate_only, entries=[
            new.EntryData(
                entity=[new.EntityData(entity_type=kind, entity_name=name)
                        for kind, name in entity.items()],
                ops=[new.OpData(key=key, value=value or 0.0, remove=value is None)
                     for key, value in ops.items()])
            for entity, ops in alterations])

        async def attempt() -> None:
            response = await self._send_to_controller(request)
            raise_among({tuple((part.entity_type, part.entity_name) for part in entry.entity):
                         _outcome(entry, "") for entry in response.entries})

        await self.cluster.retry(attempt, timeout)

    # Directories

    async def describe_log_dirs(self, brokers: Iterable[int] | None = None,
                                timeout: float | None = None
                                ) -> dict[int, dict[str, LogDirDescription]]:
        """Return the log directories of each broker, by path."""
        async def query(broker: int) -> dict[str, LogDirDescription]:
            return _log_dirs(await self.cluster.send(
                broker, messages.DescribeLogDirsRequest(topics=None)))

        if brokers is None:
            return await self._run_on_all_brokers(timeout, query)
        await self._nodes(timeout)
        return await self._run_concurrently(brokers, timeout, query)

    def _timeout_ms(self, timeout: float | None) -> int:
        """Return the time limit for the broker's work: at most the time that the client waits."""
        most = int(self.settings["request.timeout.ms"])
        return most if timeout is None else max(1, min(most, int(timeout * 1000)))


_MISSING = object()
_FINAL = {int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), int(ErrorCode.UNKNOWN_TOPIC_ID)}


def _final(result: Any) -> bool:
    return result is not _MISSING and not (isinstance(result, KafkaError) and result.retriable)


def _no_response(name: Any) -> KafkaError:
    return error(ErrorCode.UNKNOWN_SERVER_ERROR, "the broker's response does not include it",
                 str(name))


def _raise_passing(results: Mapping[Any, Any]) -> None:
    """Raise a retriable error, so that it is retried."""
    for result in results.values():
        if isinstance(result, KafkaError) and result.retriable:
            raise result


async def _gathered(names: Iterable[Any], results: dict[Any, Any],
                    work: Callable[[Any], Awaitable[Any]]) -> None:
    """Set results[name] to the result of work(name), for all names without a final result."""
    async def one(name: Any) -> None:
        try:
            results[name] = await work(name)
        except KafkaError as failure:
            results[name] = failure

    await asyncio.gather(*[one(name) for name in names
                           if not _final(results.get(name, _MISSING))])
    _raise_passing(results)


def _settled(result: Any) -> Any:
    """Mark a missing topic as final, so that it is not retried."""
    if isinstance(result, KafkaError) and result.code in _FINAL:
        vars(result)["retriable"] = False
    return result


def _outcome(row: Any, name: str, result: Any = None) -> Any:
    """Return the result, or the error in a row of a response."""
    if not row.error_code:
        return result
    return error(row.error_code, getattr(row, "error_message", None), name)


def _topics(response: Any) -> dict[str, TopicInfo]:
    from pylog.client.network.cluster_metadata import Metadata, merged

    return merged(Metadata(), response, True).topics


def _resource(row: Any) -> ConfigResource:
    return ConfigResource(ResourceType(row.resource_type), row.resource_name)


def _ops(given: Any) -> list[AlterConfigOp]:
    from pylog.client.admin.types import OpType

    if not isinstance(given, Mapping):
        return [AlterConfigOp(*op) for op in given]
    return [AlterConfigOp(name, value, OpType.DELETE if value is None else OpType.SET)
            for name, value in given.items()]


def _log_dirs(response: Any) -> dict[str, LogDirDescription]:
    raise_for(response.error_code)
    return {row.log_dir: LogDirDescription(
        row.log_dir, row.error_code, row.total_bytes, row.usable_bytes,
        {TopicPartition(topic.name, part.partition_index): ReplicaInfo(
            part.partition_size, part.offset_lag, part.is_future_key)
         for topic in row.topics for part in topic.partitions}) for row in response.results}

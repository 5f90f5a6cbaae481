"""The active controller: decides on the newest image and appends; the publisher applies effects.

Owns: this broker's block of producer ids.
Invariants: a request is answered after its records took effect on this broker, and nothing else
  waits for the request; a producer id is allocated once; a decision that also depends on this
  broker's settings or disks is made after the newest image is in force here.
Source: KIP-631 (Kafka's QuorumController), KIP-320 (leader epochs).
"""

import logging

from pylog._native.log.log import LogError
from pylog.eventloop.slices import in_slices
from pylog.eventloop.threads import in_thread
from pylog.metadata.controller import (
    broker_registration, client_quotas, configs, features,
)
from pylog.metadata.controller.broker_control import Members
from pylog.metadata.controller.decision_queue import after
from pylog.metadata.controller.partitions import (
    elections, partitions, reassignments, topic_branches, topics,
)
from pylog.metadata.controller.partitions.partition_change import Rules
from pylog.metadata.image.image import RESOURCE_BROKER
from pylog.metadata.image.state_store import StoreError
from pylog.protocol import messages
from pylog.protocol.api_error import Refusal
from pylog.protocol.errors import ErrorCode

log = logging.getLogger("pylog.metadata")


class ActiveController(Members):
    """This node as controller. metadata_log: receives appends; tail: has the image for decisions;
    logs: this node's partitions, for preparing branches and finding failed directories.
    """

    def __init__(self, metadata_log, tail, logs, settings, random, node_id: int, cluster_id=None):
        super().__init__(metadata_log, tail, settings, random, node_id, cluster_id)
        self._logs = logs
        self._producer_ids = topics.ProducerIds(0, 0)

    # ---- before requests are served; these block ------------------------------------------------

    def become_active(self, clean: bool, first=()) -> None:
        """Become the controller of the log that the tail has followed to its end.

        clean: True if this broker's previous run stopped cleanly. Raises Conflict, LogError's
        kinds.
        """
        self._begin_term(self._log.elect(self._node_id))
        records = self._first_records()
        if "broker" in self._settings["process.roles"]:
            if not self._settings.controller_listeners:
                records += topics.reduce_to_single_broker(self._image, self._node_id)
            records += topics.elect_after_restart(
                after(self._image, records), self._node_id, clean)
        elif self._image.offset == -1:
            records += [*topics.bootstrap_cluster(self._image, self._settings), *first]
        records += configs.reencrypt(self._image, self._settings)
        self._commit_now(records)

    def _first_records(self) -> list:
        return [messages.AbortTransactionRecord(reason="a new controller")] \
            if self._tail.in_transaction else []

    async def begin(self, epoch: int, first=(), previous=None) -> None:
        """Become the controller of `epoch` in a cluster with several controllers. first: initial
        records of a new cluster. previous: as for tend(). Raises LogError's kinds.
        """
        self._begin_term(epoch)
        async with self._deciding:
            image = self._image
            records = self._first_records()
            if image.offset == -1:
                records += [*topics.bootstrap_cluster(self._image, self._settings), *first]
            records += configs.reencrypt(image, self._settings)
            await self._commit(records)
        self.tend(previous)

    def register(self, endpoints, directories, cordoned=(), first=()) -> None:
        """Register this node as a broker that leads partitions.

        endpoints: [(listener, host, port, security protocol's number)]. directories: ids of the log
        directories; cordoned: ids of those that get no new partitions. first: initial records of a
        new cluster. Raises LogError's kinds.
        """
        self._heartbeats.local_id = self._node_id
        if first and self._image.offset != -1:
            log.warning("the cluster already exists; the initial credentials are ignored")
        self._commit_now(self._registration(endpoints, directories, cordoned, first))

    def leave_offline_now(self, offline) -> None:
        """leave_offline() during a start. Raises LogError's kinds."""
        self._commit_now(elections.leave_offline(self._image, self._node_id, offline))

    def _registration(self, endpoints, directories, cordoned, first=()) -> list:
        image = self._image
        records = [*topics.bootstrap(image), *first] if image.offset == -1 else []
        records += topics.register_broker(
            after(image, records), self._node_id, endpoints, self._settings["broker.rack"],
            directories, self._random)
        records += topics.unfence_broker(after(image, records), self._node_id)
        # No record is needed if nothing was ever cordoned.
        if cordoned:
            records += broker_registration.cordoned(
                after(image, records), self._node_id, cordoned)
        return records

    # ---- decisions ------------------------------------------------------------------------------

    async def register_again(self, endpoints, directories, cordoned=()) -> None:
        """Register added or removed listeners; does not wait for the effects."""
        await self._changed_itself(
            lambda: self._registration(endpoints, directories, cordoned))

    async def cordon(self, directories) -> None:
        """Record which directories get no new partitions; does not wait for the effects."""
        await self._changed_itself(
            lambda: broker_registration.cordoned(self._image, self._node_id, directories))

    async def _changed_itself(self, decide) -> None:
        """Commit the records that decide() returns about this broker, in turn. Errors are only
        logged, because no caller waits for the result.
        """
        try:
            async with self._deciding:
                await self._commit(decide())
        except LogError as error:
            log.error("this broker cannot be registered", extra={"reason": str(error)})
        except Exception:
            log.exception("this broker cannot be registered")

    async def create_topics(self, request, mutations=None) -> list:
        """Decide a CreateTopicsRequest. Returns TopicResults.

        mutations: as for topics.create_topics.
        """
        async with self._deciding:
            request, branches, refused = topic_branches.split_branches(self._image, request)
            records, results = await in_slices(topics.create_topics(
                self._image, request, self._settings, self._random, mutations))
            if branches and records:
                topic_branches.with_epochs(self._image, records, results, branches)
                # A source created just before has logs only once its records are in force.
                await self._caught_up()
                results = await in_thread(self._prepare_branches, results, branches)
                records = topic_branches.without(
                    records, [result for result in results if result.error != ErrorCode.NONE])
            failure = await self._tried(records)
            if failure is not None:
                results = _refused(results, failure, lambda result: (
                    result.topic_id in self._image.topics_by_id))
                for result in results:
                    if result.error != ErrorCode.NONE:
                        await in_thread(self._logs.discard_branch, result.topic_id)
            offset = self._image.offset
        await self._tail.wait(offset)
        return results + refused

    async def _committed(self, records: list, results: list, refused=None) -> tuple:
        """Commit. Returns (results, with errors if the append failed; the offset to wait for after
        releasing the lock).
        """
        failure = await self._tried(records)
        if failure is not None:
            results = (refused or _refused)(results, failure)
        return results, self._image.offset

    def _prepare_branches(self, results: list, branches: dict) -> list:
        """Return the results, with an error for each branch that cannot be linked. Blocks."""
        prepared = []
        for result in results:
            if result.error == ErrorCode.NONE and result.name in branches:
                try:
                    self._logs.prepare_branch(
                        result.name, result.topic_id, *branches[result.name], result.configs)
                except (LogError, StoreError, OSError) as error:
                    log.error("a branch could not be made", extra={
                        "topic": result.name, "reason": str(error)})
                    result = result._replace(
                        error=ErrorCode.KAFKA_STORAGE_ERROR, message=f"no branch: {error}")
            prepared.append(result)
        return prepared

    async def delete_topics(self, wanted, mutations=None) -> list:
        """Delete topics: [(name or None, 16-byte id)]. Returns TopicResults."""
        async with self._deciding:
            records, results = await in_slices(topics.delete_topics(
                self._image, wanted, self._settings, mutations))
            failure = await self._tried(records)
            if failure is not None:
                results = _refused(results, failure, lambda result: (
                    result.name not in self._image.topics))
            offset = self._image.offset
        await self._tail.wait(offset)
        return results

    async def alter_configs(self, request, incremental: bool) -> list:
        """Decide an (Incremental)AlterConfigsRequest.

        Returns configs.Altered by resource, None for a logger.
        """
        async with self._deciding:
            if any(resource.resource_type == RESOURCE_BROKER for resource in request.resources):
                await self._caught_up()
            records, results = await in_slices(configs.alter(
                self._image, request.resources, self._settings, self._node_id, incremental))
            if request.validate_only or not records:
                return results
            results, offset = await self._committed(records, results)
        await self._tail.wait(offset)
        return results

    async def create_partitions(self, request, mutations=None) -> list:
        """Decide a CreatePartitionsRequest. Returns [(topic name, partitions.Outcome)]."""
        async with self._deciding:
            records, results = await in_slices(partitions.create_partitions(
                self._image, request.topics, self._random, mutations))
            if request.validate_only:
                return results
            results, offset = await self._committed(records, results, _refused_topics)
        await self._tail.wait(offset)
        return results

    async def elect_leaders(self, election: int, topics) -> list:
        """Elect leaders; arguments and results as for elections.elect_leaders."""
        async with self._deciding:
            await self._caught_up()
            lost = {(self._node_id, *partition) for partition in self._logs.offline}
            records, results = await in_slices(elections.elect_leaders(
                Rules(self._image, self._settings, lost), election, topics))
            results, offset = await self._committed(records, results, _refused_partitions)
        await self._tail.wait(offset)
        return results

    async def alter_reassignments(self, request) -> list:
        """Decide an AlterPartitionReassignmentsRequest; results as for reassignments.alter."""
        async with self._deciding:
            records, results = reassignments.alter(
                self._rules(), request.topics, request.allow_replication_factor_change)
            results, offset = await self._committed(records, results, _refused_partitions)
        await self._tail.wait(offset)
        return results

    async def leave_offline(self, offline) -> bool:
        """Give up leadership of partitions in a failed log directory: [(topic name, index)].

        Returns False if the log could not be written; the caller retries.
        """
        async with self._deciding:
            # A topic that was re-created since the failure has no logs in that directory.
            await self._caught_up()
            records = elections.leave_offline(self._image, self._node_id, [
                partition for partition in offline if self._logs.is_offline(*partition)])
            try:
                offset = await self._commit(records)
            except LogError as error:
                log.error("partitions keep a leader whose log directory is offline",
                          extra={"reason": str(error)})
                return False
        await self._tail.wait(offset)
        return True

    async def alter_client_quotas(self, request, hosts) -> list:
        """Decide an AlterClientQuotasRequest; hosts and results as for client_quotas.alter."""
        async with self._deciding:
            records, results = client_quotas.alter(self._image, request.entries, hosts)
            if request.validate_only:
                return results
            results, offset = await self._committed(records, results)
        await self._tail.wait(offset)
        return results

    async def alter_scram_credentials(self, deletions, upsertions) -> list:
        """Decide an AlterUserScramCredentialsRequest; results as for scram_credentials.alter."""
        # Imported here, like acls below: few clusters use them.
        from pylog.metadata.controller import scram_credentials

        return await self._secured(scram_credentials.alter, deletions, upsertions)

    async def create_acls(self, rules) -> list:
        """Create ACLs; arguments and results as for acls.create."""
        from pylog.metadata.controller import acls

        return await self._sliced(acls.create, rules, self._random)

    async def delete_acls(self, filters) -> list:
        """Delete ACLs; arguments and results as for acls.delete."""
        from pylog.metadata.controller import acls

        return await self._sliced(acls.delete, filters)

    async def change_tokens(self, decide, *args) -> list:
        """Make a decision of controller.delegation_tokens; returns its results."""
        return await self._secured(decide, *args)

    async def _sliced(self, decide, *args) -> list:
        async with self._deciding:
            records, results = await in_slices(decide(self._image, *args))
            results, offset = await self._committed(records, results)
        await self._tail.wait(offset)
        return results

    async def _secured(self, decide, *args) -> list:
        async with self._deciding:
            records, results = decide(self._image, *args)
            results, offset = await self._committed(records, results)
        await self._tail.wait(offset)
        return results

    async def update_features(self, updates, validate_only: bool, standbys=()) -> None:
        """Decide an UpdateFeaturesRequest. Raises Refusal if a feature cannot have its level.

        standbys: as for features.update.
        """
        async with self._deciding:
            records = features.update(
                self._image, updates, self._settings, self._node_id, standbys)
            if validate_only:
                return
            try:
                offset = await self._commit(records)
            except LogError as error:
                raise Refusal(error.code, str(error)) from None
        await self._tail.wait(offset)

    async def next_producer_id(self) -> int:
        """Return a producer id that was never allocated before. Raises LogError's kinds."""
        while not self._producer_ids.count:
            async with self._deciding:
                if not self._producer_ids.count:
                    records, block = topics.allocate_producer_ids(self._image, self._node_id)
                    await self._tail.wait(await self._commit(records))
                    self._producer_ids = block
        first, count = self._producer_ids
        self._producer_ids = topics.ProducerIds(first + 1, count - 1)
        return first


def _refused(results: list, error: LogError, is_done=lambda result: False) -> list:
    """Return the results with an error after a failed append, except None and finished ones."""
    return [result if result is None or result.error != ErrorCode.NONE or is_done(result)
            else result._replace(error=ErrorCode.of(error.code),
                                 message="the metadata log could not be written")
            for result in results]


def _refused_topics(results: list, error: LogError) -> list:
    """Apply _refused() to [(topic name, Outcome)]."""
    return [(name, *_refused([outcome], error)) for name, outcome in results]


def _refused_partitions(results: list, error: LogError) -> list:
    """Apply _refused() to [(topic name, [(index, Outcome)])]."""
    return [(name, _refused_topics(outcomes, error)) for name, outcomes in results]

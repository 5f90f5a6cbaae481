"""The controller at work: decides on the newest image, appends, applies, and lets logs follow.

Owns: the image in force, the metadata log, state.lmdb, the block of producer ids, the order of
decisions.
Called by: broker (open, register, close), api and dispatch (everything else), on the event loop.
Invariants: (1) one decision at a time, each on the image that holds all records before it; (2) the
  image changes only after its records are on disk; (3) a topic is answered as created when its
  partitions are open, as deleted when they are gone; (4) a producer id is given out once.
Source: KIP-631 (registration), KIP-320 (leader epochs).
"""

import asyncio
import logging
import random

from pylog._native.log import LogError
from pylog.log import branches as branches_on_disk
from pylog.log.errors import StartError
from pylog.metadata import (
    branching,
    configs,
    controller,
    features,
    identity,
    partitions,
    quotas,
    snapshots,
)
from pylog.metadata.image import RESOURCE_BROKER, RESOURCE_TOPIC, Image, MetadataError, apply
from pylog.metadata.local import LocalLog
from pylog.metadata.refusal import Refusal
from pylog.metadata.store import Store, StoreError
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode

RECORDS_PER_APPEND_MAX = 10_000
# About the 20 MiB of metadata.log.max.record.bytes.between.snapshots.
RECORDS_BETWEEN_SNAPSHOTS = 200_000
# How much log a start after a crash reads at most.
RECORDS_BETWEEN_IMAGES = 10_000
SECURITY_PROTOCOLS = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}
_BELONG_TO_THE_ONE_BEFORE = frozenset(("PartitionRecord", "ConfigRecord"))

log = logging.getLogger("pylog.metadata")


class Controller:
    """This node as the controller over a metadata log; `logs` are the node's own partitions."""

    def __init__(self, metadata_log, logs, settings, random, node_id: int):
        self.image = Image()
        self._log = metadata_log
        self._logs = logs
        self._settings = settings
        self._random = random
        self._node_id = node_id
        self._epoch = -1
        self._deciding = asyncio.Lock()
        self._producer_ids = controller.ProducerIds(0, 0)
        self._stored_offset = -1

    def take_office(self, image: Image, clean: bool) -> None:
        """Replays the log behind `image` and becomes its controller. Blocks; before requests are
        served.

        clean: how this broker's last run ended. Raises MetadataError,
        Conflict.
        """
        self.image, unfinished = replayed(image, self._log.read(image.offset + 1))
        self._take_broker_configs()
        self._log.session(self._node_id)
        self._epoch = self._log.elect(self._node_id)
        records = [messages.AbortTransactionRecord(reason="a new controller")] if unfinished else []
        self._commit_now(records + controller.lead_again(self.image, self._node_id, clean))

    def register(self, endpoints, directories) -> None:
        """Makes this broker one that leads partitions. Blocks; before requests are served.

        endpoints: [(listener, host, port, security protocol's number)]. directories: the log
        directories' ids.
        """
        records = controller.bootstrap(self.image) if self.image.offset == -1 else []
        image = _after(self.image, records)
        records += controller.register_broker(
            image, self._node_id, endpoints, self._settings["broker.rack"], directories,
            self._random)
        image = _after(self.image, records)
        self._commit_now(records + controller.unfence_broker(image, self._node_id))

    async def create_topics(self, request, mutations=None) -> list:
        """Decides a CreateTopicsRequest and opens the partitions. Returns TopicResults.

        mutations: as for controller.create_topics.
        """
        async with self._deciding:
            request, branches, refused = branching.taken(self.image, request)
            records, results = controller.create_topics(
                self.image, request, self._settings, self._random, mutations)
            prepared = {}
            if branches and records:
                branching.with_epochs(self.image, records, results, branches)
                results, prepared = await _in_thread(self._prepare_branches, results, branches)
                records = branching.without(
                    records, [result for result in results if result.error != ErrorCode.NONE])
            try:
                await self._commit(records)
            except LogError as error:
                for parts in prepared.values():
                    await _in_thread(branches_on_disk.discard, parts)
                return _refused(results + refused, error)
            if records:
                made = [self.image.topics[result.name] for result in results
                        if result.error == ErrorCode.NONE]
                await _in_thread(self._open_topics, made, prepared)
        return results + refused

    def _prepare_branches(self, results: list, branches: dict) -> tuple:
        """(results, name -> what LogManager.prepare_branch gave). Blocks."""
        told, prepared = [], {}
        for result in results:
            if result.error == ErrorCode.NONE and result.name in branches:
                try:
                    prepared[result.name] = self._logs.prepare_branch(
                        result.name, result.topic_id, *branches[result.name], result.configs)
                except (LogError, OSError) as error:
                    log.error("a branch could not be made", extra={
                        "topic": result.name, "reason": str(error)})
                    result = result._replace(
                        error=ErrorCode.KAFKA_STORAGE_ERROR, message=f"no branch: {error}")
            told.append(result)
        return told, prepared

    async def delete_topics(self, topics, mutations=None) -> list:
        """Removes topics: [(name or None, 16-byte id)]. Returns controller.TopicResults."""
        async with self._deciding:
            before = self.image
            records, results = controller.delete_topics(
                before, topics, self._settings, mutations)
            try:
                await self._commit(records)
            except LogError as error:
                return _refused(results, error)
            gone = [before.topics[result.name] for result in results
                    if result.error == ErrorCode.NONE]
            if gone:
                await _in_thread(self._close_topics, gone)
        return results

    async def alter_configs(self, request, incremental: bool) -> list:
        """Decides an (Incremental)AlterConfigsRequest and puts it into force.

        Returns configs.Altered by resource, None for a logger.
        """
        async with self._deciding:
            records, results = configs.alter(
                self.image, request.resources, self._settings, self._node_id, incremental)
            if request.validate_only or not records:
                return results
            try:
                await self._commit(records)
            except LogError as error:
                return _refused(results, error)
            await self._put_into_force({(record.resource_type, record.resource_name)
                                        for record in records})
        return results

    async def _put_into_force(self, altered: set) -> None:
        if any(kind == RESOURCE_BROKER for kind, _ in altered):
            self._take_broker_configs()
            await _in_thread(self._logs.reconfigure)
        for kind, name in altered:
            if kind == RESOURCE_TOPIC:
                await _in_thread(self._logs.configure, name, self.image.topic_config(name))

    async def create_partitions(self, request, mutations=None) -> list:
        """Decides a CreatePartitionsRequest and opens the partitions.

        Returns [(topic name, partitions.Outcome)].
        """
        async with self._deciding:
            records, results = partitions.create_partitions(
                self.image, request.topics, self._random, mutations)
            if request.validate_only:
                return results
            try:
                await self._change_partitions(records)
            except LogError as error:
                told = _refused([outcome for _, outcome in results], error)
                return [(name, outcome) for (name, _), outcome in zip(results, told, strict=True)]
        return results

    async def elect_leaders(self, election: int, topics) -> list:
        """Elects leaders; arguments and results as partitions.elect_leaders."""
        async with self._deciding:
            lost = {(self._node_id, *partition) for partition in self._logs.offline}
            records, results = partitions.elect_leaders(self.image, election, topics, lost)
            return await self._moved(records, results)

    async def leave_offline(self, offline) -> None:
        """Lets go of partitions whose log directory failed: [(topic name, partition index)]."""
        async with self._deciding:
            records = partitions.leave_offline(self.image, self._node_id, offline)
            try:
                await self._change_partitions(records)
            except LogError as error:
                log.error("partitions stay without a disk", extra={"reason": str(error)})

    async def alter_reassignments(self, request) -> list:
        """Decides an AlterPartitionReassignmentsRequest; results as partitions'."""
        async with self._deciding:
            records, results = partitions.alter_reassignments(
                self.image, request.topics, request.allow_replication_factor_change)
            return await self._moved(records, results)

    async def alter_client_quotas(self, request, hosts) -> list:
        """Decides an AlterClientQuotasRequest; hosts and results as quotas.alter."""
        async with self._deciding:
            records, results = quotas.alter(self.image, request.entries, hosts)
            if request.validate_only:
                return results
            try:
                await self._commit(records)
            except LogError as error:
                return _refused(results, error)
        return results

    async def update_features(self, updates, validate_only: bool) -> None:
        """Raises refusal.Refusal when one of the features cannot have its level."""
        async with self._deciding:
            records = features.update(self.image, updates, self._node_id)
            if not validate_only:
                try:
                    await self._commit(records)
                except LogError as error:
                    raise Refusal(error.code, str(error)) from None

    async def _moved(self, records: list, results: list) -> list:
        try:
            await self._change_partitions(records)
        except LogError as error:
            return [(name, [(index, _refused([outcome], error)[0]) for index, outcome in told])
                    for name, told in results]
        return results

    async def _change_partitions(self, records: list) -> None:
        """Commits records of partitions and lets their logs do what the image says."""
        await self._commit(records)
        topics = {bytes(record.topic_id) for record in records}
        if topics:
            await _in_thread(self._assume_roles, [self.image.topics_by_id[id_] for id_ in topics])

    def _assume_roles(self, topics) -> None:
        for topic in topics:
            self._logs.assume(topic.name, local_roles(topic, self._node_id))

    def _take_broker_configs(self) -> None:
        """Puts the dynamic settings of the image into force, but for those of another version's."""
        usable = []
        for name in ("", str(self._node_id)):
            stored = self.image.configs.get((RESOURCE_BROKER, name), {})
            usable.append(self._settings.usable_dynamic(stored, name != ""))
            for key in stored.keys() - usable[-1].keys():
                log.error("a dynamic setting cannot be used",
                          extra={"setting": key, "broker": name})
        refused = self._settings.set_dynamic(*usable)
        if refused is not None:
            log.error("dynamic settings cannot be used", extra={"reason": refused})

    async def next_producer_id(self) -> int:
        """An id that no producer had before (4). Raises LogError's kinds."""
        while not self._producer_ids.count:
            async with self._deciding:
                if not self._producer_ids.count:
                    records, block = controller.allocate_producer_ids(self.image, self._node_id)
                    await self._commit(records)
                    self._producer_ids = block
        first, count = self._producer_ids
        self._producer_ids = controller.ProducerIds(first + 1, count - 1)
        return first

    async def _commit(self, records: list) -> None:
        """Makes records part of the log, then of the image (2)."""
        for part in _parts(records):
            self.image = await _in_thread(self._appended, part)
        if self.image.offset - self._log.snapshot_end >= RECORDS_BETWEEN_SNAPSHOTS:
            await _in_thread(self._take_snapshot)
        if self.image.offset - self._stored_offset >= RECORDS_BETWEEN_IMAGES:
            self._stored_offset = self.image.offset
            await _in_thread(self._store_image)

    def _store_image(self) -> None:
        """Keeps the image where a start finds it; a log that lives elsewhere needs none."""

    def _take_snapshot(self) -> None:
        image = self.image
        self._log.snapshot(snapshots.records_of(image), image.offset, image.epoch)
        self._log.trim(image.offset + 1)

    def _commit_now(self, records: list) -> None:
        for part in _parts(records):
            self.image = self._appended(part)

    def _appended(self, records: list) -> Image:
        last_offset = self._log.append(records, self._epoch, self.image.offset + 1)
        assert last_offset == self.image.offset + len(records), (last_offset, self.image.offset)
        return apply(self.image, records, last_offset, self._epoch)

    def _open_topics(self, topics, branches: dict) -> None:
        for topic in topics:
            branch = {"branch": branches[topic.name]} if topic.name in branches else {}
            self._logs.create(topic.name, topic.id, local_roles(topic, self._node_id),
                              self.image.topic_config(topic.name), **branch)

    def _close_topics(self, topics) -> None:
        for topic in topics:
            self._logs.delete(topic.name)


class MetadataService(Controller):
    """The controller over this node's own metadata log, with what a start finds on disk."""

    def __init__(self, broker):
        super().__init__(None, broker.logs, broker.settings, random.SystemRandom(), broker.node_id)
        self._now_ms = broker.now_ms
        self._store = None
        self._identity = None

    @property
    def store(self):
        """The first directory's state.lmdb, while open."""
        return self._store

    @property
    def cluster_id(self) -> str:
        """The cluster's id, 22 characters."""
        return self._identity.cluster_id

    def open(self) -> None:
        """Formats or reads the log directories and opens the partitions. Raises StartError."""
        logs = self._logs
        self._identity = identity.load_or_format(
            [path for _, path in logs.disks.usable()], self._node_id, self._random)
        try:
            self._store = Store(logs.paths[0])
        except StoreError as error:
            raise StartError(f"{logs.paths[0]}/state.lmdb cannot be written: {error}") from error
        clean = logs.disks.take_clean_marks(self._store.take_clean_mark())
        checkpoints = self._store.load_checkpoints()
        try:
            self._log = LocalLog(
                logs.directories[0], checkpoints.pop(LocalLog.KEY, None) if 0 in clean else None,
                self._now_ms)
            # What lies in a directory that is offline now loses its leader, and so its epoch.
            self.take_office(
                self._stored_image(), all(number in clean for number, _ in logs.disks.usable()))
        except (MetadataError, LogError, ValueError) as error:
            # ValueError: records that do not decode, batches that are none.
            raise StartError(
                f"the metadata log in {logs.paths[0]} cannot be read: {error}") from error
        image = self.image
        if image.offset == -1 and logs.holds_partitions():
            raise StartError(
                f"{logs.paths[0]} holds partitions but its metadata log is empty or gone")
        logs.open_partitions(
            [(topic.name, topic.id, local_roles(topic, self._node_id),
              image.topic_config(topic.name)) for topic in image.topics.values()],
            checkpoints, clean, self._store)
        self._commit_now(partitions.leave_offline(image, self._node_id, logs.take_failed()))

    def _stored_image(self) -> Image:
        """The image in state.lmdb, unless it does not belong to this log."""
        image = self._store.load_image()
        self._stored_offset = image.offset
        if self._log.holds(image.offset, image.epoch):
            return image
        log.warning("the stored image is not of this metadata log: the log is read in full")
        return Image()

    def _store_image(self) -> None:
        try:
            self._store.save(self.image, [])
        except StoreError as error:
            log.error("the image could not be stored", extra={"reason": str(error)})

    def register(self, addresses) -> None:
        """Registers this broker. addresses: [(listener, host, port)] bound. Raises StartError."""
        try:
            super().register(self._endpoints(addresses), self._directories)
        except LogError as error:
            raise StartError(f"the metadata log cannot be written: {error}") from error

    async def register_again(self, addresses) -> None:
        """Makes known that listeners came or went. addresses: as in register."""
        async with self._deciding:
            try:
                await _in_thread(
                    super().register, self._endpoints(addresses), self._directories)
            except LogError as error:
                log.error("listeners cannot be made known", extra={"reason": str(error)})

    @property
    def _directories(self) -> list:
        return list(self._identity.directories.values())

    def _endpoints(self, addresses) -> list:
        protocols = {listener.name: SECURITY_PROTOCOLS[listener.protocol]
                     for listener in self._settings.listeners}
        told = [(listener.name, listener.host, listener.port)
                for listener in self._settings.advertised_listeners] or addresses
        return [(name, host, port, protocols[name]) for name, host, port in told]

    def close(self) -> None:
        """The clean stop: everything to disk, then the marks that say so."""
        if self._store is None:
            return
        entries = self._logs.close_partitions()
        clean = False
        try:
            entries.append((LocalLog.KEY, self._log.close()))
            # What failed is not known to be on disk: without its mark the next start looks. The
            # first directory has the store.
            if 0 in self._logs.stopped:
                broker = self.image.brokers.get(self._node_id)
                marks = self._logs.disks.write_clean_marks(
                    self._logs.stopped, broker.epoch if broker is not None else -1)
                if marks[0]:
                    self._store.save(self.image, entries, mark=marks)
                    clean = True
        except (LogError, StoreError, OSError) as error:
            log.error("the stop is not a clean one", extra={"reason": str(error)})
        try:
            self._store.close(clean)
        except OSError as error:
            log.warning("state.lmdb has no checksum", extra={"reason": str(error)})
        self._store = None


def local_roles(topic, node_id: int) -> list:
    """(leads, leader epoch, alone in the ISR) per partition; None where it has no replica."""
    roles = {}
    found = []
    for state in topic.partitions:
        # Partition states are shared, so that a topic has few different ones.
        if state not in roles:
            roles[state] = None if node_id not in state.replicas else (
                state.leader == node_id, state.leader_epoch, len(state.isr) <= 1)
        found.append(roles[state])
    return found


async def _in_thread(work, *args):
    # Files are written there; the loop goes on answering.
    return await asyncio.get_running_loop().run_in_executor(None, work, *args)


def replayed(image: Image, batches) -> tuple:
    """(the image after the batches, whether they end within a transaction, whose records are void).

    Kafka's controllers write what is too long for one append, and their first records, between a
    begin and an end (KIP-868).
    """
    held = None
    for batch in batches:
        records = []
        for record in batch.records:
            kind = type(record).__name__
            if kind == "BeginTransactionRecord":
                held = []
            elif kind == "EndTransactionRecord":
                records += held or ()
                held = None
            elif kind == "AbortTransactionRecord":
                held = None
            else:
                (records if held is None else held).append(record)
        image = apply(image, records, batch.last_offset, batch.epoch)
    return image, held is not None


def _refused(results: list, error: LogError) -> list:
    """The results when their records could not be appended; None stays."""
    log.error("metadata could not be appended", extra={"reason": str(error)})
    return [result if result is None or result.error != ErrorCode.NONE else result._replace(
        error=ErrorCode.of(error.code), message="the metadata log could not be written")
        for result in results]


def _after(image: Image, records: list) -> Image:
    """The image as it will be once the records are appended."""
    return apply(image, records, image.offset + len(records), image.epoch) if records else image


def _parts(records: list):
    """Records in stretches that are appended whole: a topic never without all of its partitions."""
    first = 0
    while first < len(records):
        end = min(first + RECORDS_PER_APPEND_MAX, len(records))
        while end < len(records) and type(records[end]).__name__ in _BELONG_TO_THE_ONE_BEFORE:
            end += 1
        yield records[first:end]
        first = end

"""The table of a broker's handlers by api key.

Owns: nothing.
Invariants: each api key has one handler; errors of a request are values in its response; a handler
  uses only the objects that its family's constructor receives.
Source: Kafka's KafkaApis.
"""

from __future__ import annotations

from pylog.api import versions
from pylog.api.cluster import (
    client_quotas as quotas, cluster, configs, log_dirs, metadata, partitions, quorum, topics,
)
from pylog.api.data import delete_records, offsets, producers
from pylog.api.data import transactions as transactions_family
from pylog.api.groups import (
    classic as classic_groups, committed_offsets, consumer as consumer_groups,
)
from pylog.api.security import acls_and_users, delegation_tokens as tokens
from pylog.protocol import api

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from pylog._native.server.reactor import RequestContext
    from pylog._native.server.heartbeat_cache import Repeats
    from pylog.api.handler import Handler, Message, Result
    from pylog.api.security.sasl import AuthenticationApi
    from pylog.config import Settings
    from pylog.config.client_quotas import ClientQuotas
    from pylog.coordinator.runtime.local_append import Markers
    from pylog.coordinator.groups.service import GroupCoordinator
    from pylog.coordinator.transactions.service import TransactionCoordinator
    from pylog.coordinator.transactions.verification import Verification
    from pylog.log.manager import LogManager
    from pylog.metadata.controller.active_controller import ActiveController
    from pylog.metadata.service import MetadataService
    from pylog.security.authorization.access import Access
    from pylog.share.service import Sharing

OF_SHARE_GROUPS = (
    api.SHARE_GROUP_HEARTBEAT, api.SHARE_GROUP_DESCRIBE, api.SHARE_FETCH, api.SHARE_ACKNOWLEDGE,
    api.INITIALIZE_SHARE_GROUP_STATE, api.READ_SHARE_GROUP_STATE, api.WRITE_SHARE_GROUP_STATE,
    api.DELETE_SHARE_GROUP_STATE, api.READ_SHARE_GROUP_STATE_SUMMARY,
    api.DESCRIBE_SHARE_GROUP_OFFSETS, api.ALTER_SHARE_GROUP_OFFSETS,
    api.DELETE_SHARE_GROUP_OFFSETS)
OF_STREAMS_GROUPS = (api.STREAMS_GROUP_HEARTBEAT, api.STREAMS_GROUP_DESCRIBE)


def _no_sasl(context: RequestContext) -> None:
    return None


def _made_later(keys: Iterable[int], make: Callable[[], dict[int, Handler]]) -> dict[int, Handler]:
    """Return handlers that are created on first use."""
    made: dict[int, Handler] = {}

    def later(key: int) -> Handler:
        def handle(context: RequestContext, request: Message) -> Result:
            if not made:
                made.update(make())
            return made[key](context, request)
        return handle

    return {key: later(key) for key in keys}


def _share_groups(sharing: Sharing, coordinator: GroupCoordinator, addresses: cluster.Addresses,
                  metadata_service: MetadataService, settings: Settings,
                  watch: Callable[[int], object], client_quotas: ClientQuotas,
                  access: Access | None) -> dict[int, Handler]:
    # Imported here because not every broker has share groups.
    from pylog.api.data import share_fetch, share_state
    from pylog.api.groups import share as share_groups, share_offsets

    may_read = None
    if access is not None:
        from pylog.security.authorizer import READ, TOPIC

        def may_read(context: RequestContext, name: str) -> bool:
            return access.may(context, READ, TOPIC, name)

    return {
        **share_groups.ShareGroupsApi(coordinator, sharing.coordinator, sharing.states,
                                      sharing.settings, metadata_service).handlers(),
        **share_fetch.ShareFetchApi(sharing.partitions, sharing.coordinator, addresses,
                                    metadata_service, settings, watch, client_quotas,
                                    may_read).handlers(),
        **share_state.ShareStatesApi(sharing.coordinator).handlers(),
        **share_offsets.ShareOffsetsApi(coordinator, sharing, metadata_service).handlers(),
    }


def _streams_groups(coordinator: GroupCoordinator, controller: ActiveController,
                    metadata_service: MetadataService, client_quotas: ClientQuotas,
                    settings: Settings, now_ms: Callable[[], int],
                    access: Access | None) -> dict[int, Handler]:
    # Imported here because few brokers have Streams groups.
    from pylog.api.groups.streams import StreamsGroupsApi
    from pylog.api.groups.streams_topics import InternalTopics

    return StreamsGroupsApi(coordinator, metadata_service, InternalTopics(controller, now_ms),
                            client_quotas, settings, access).handlers()


def handlers(*, settings: Settings, metadata_service: MetadataService,
             controller: ActiveController, logs: LogManager, coordinator: GroupCoordinator,
             transactions: TransactionCoordinator, verification: Verification, markers: Markers,
             client_quotas: ClientQuotas, listener_name: Callable[[int], str],
             registered: Callable[[], Awaitable[None]], node_id: int,
             now_ms: Callable[[], int], sharing: Callable[[], Sharing],
             watch: Callable[[int], object], asker: Callable[[RequestContext], tokens.Asker],
             forward: Callable[[RequestContext, Message], Awaitable[Message]] | None = None,
             access: Access | None = None, repeats: Repeats | None = None,
             authentication: Callable[[RequestContext], AuthenticationApi | None] = _no_sasl
             ) -> dict[int, Handler]:
    """Return the handlers of all families.

    metadata_service: has the current image. listener_name: see api.cluster.cluster. registered: see
    api.cluster.configs. sharing: returns the share groups, created on first use. watch: see
    api.data.share_fetch. asker, forward: see api.security.delegation_tokens. authentication: see
    api.security.acls_and_users. repeats: see api.groups.consumer.
    """
    addresses = cluster.Addresses(metadata_service, settings, node_id, listener_name)
    in_transactions = transactions_family.TransactionsApi(
        transactions, verification, markers, coordinator, metadata_service, now_ms)
    leaders = offsets.Leaders(metadata_service, logs, node_id)
    found: dict[int, Handler] = {}
    for family in (
            versions.VersionsApi(metadata_service, api.advertised(),
                                 metadata_service.replicates).handlers(),
            metadata.MetadataApi(addresses, metadata_service, controller, client_quotas, settings,
                                 node_id, access).handlers(),
            topics.TopicsApi(controller, client_quotas, settings).handlers(),
            offsets.OffsetsApi(leaders).handlers(),
            producers.ProducersApi(controller, metadata_service, logs, in_transactions,
                                   now_ms).handlers(),
            in_transactions.handlers(),
            cluster.ClusterApi(addresses, metadata_service, settings, node_id,
                               controller).handlers(),
            classic_groups.GroupsApi(coordinator, transactions, sharing, addresses).handlers(),
            _made_later(OF_SHARE_GROUPS, lambda: _share_groups(
                sharing(), coordinator, addresses, metadata_service, settings, watch, client_quotas,
                access)),
            _made_later(OF_STREAMS_GROUPS, lambda: _streams_groups(
                coordinator, controller, metadata_service, client_quotas, settings, now_ms,
                access)),
            consumer_groups.ConsumerGroupsApi(coordinator, metadata_service, settings, access,
                                              repeats).handlers(),
            committed_offsets.CommittedOffsetsApi(coordinator, metadata_service).handlers(),
            configs.ConfigsApi(controller, metadata_service, settings, registered, node_id,
                               forward).handlers(),
            partitions.PartitionsApi(controller, metadata_service, client_quotas).handlers(),
            delete_records.RecordsApi(leaders, metadata_service, logs, settings).handlers(),
            log_dirs.LogDirsApi(logs, metadata_service).handlers(),
            quorum.QuorumApi(controller, metadata_service, settings, node_id, now_ms).handlers(),
            quotas.QuotasApi(controller, metadata_service).handlers(),
            acls_and_users.SecurityApi(controller, metadata_service, access is not None,
                                       authentication).handlers(),
            tokens.DelegationTokensApi(controller, metadata_service, settings, asker, access,
                                       now_ms, forward).handlers()):
        assert not found.keys() & family.keys(), sorted(found.keys() & family.keys())
        found.update(family)
    return found if access is None else _guarded(found, access, metadata_service, settings)


def _guarded(found: dict[int, Handler], access: Access, metadata_service: MetadataService,
             settings: Settings) -> dict[int, Handler]:
    # Imported here because not every broker has an authorizer.
    from pylog.api.authorization.rules import Rights

    return Rights(access, metadata_service, settings).around(found)

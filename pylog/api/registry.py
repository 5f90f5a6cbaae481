"""The table of a broker's handlers by api key.

Owns: nothing.
Invariants: each api key has one handler; errors of a request are values in its response; a handler
  uses only the objects that its family's constructor receives.
Source: Kafka's KafkaApis.
"""

from __future__ import annotations

from pylog.api import versions
from pylog.api.cluster import (
    client_quotas, cluster, configs, log_dirs, metadata, partitions, quorum, topics,
)
from pylog.api.data import delete_records, offsets, producers
from pylog.api.data import transactions
from pylog.api.groups import (
    classic as classic_groups, committed_offsets, consumer as consumer_groups,
)
from pylog.api.security import acls_and_users, delegation_tokens
from pylog.protocol import api

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pylog._native.server.reactor import RequestContext
    from pylog.api.handler import Handler, Message, Result
    from pylog.api.services import ApiServices
    from pylog.config import Settings
    from pylog.metadata.service import MetadataService
    from pylog.security.authorization.access import Access

OF_SHARE_GROUPS = (
    api.SHARE_GROUP_HEARTBEAT, api.SHARE_GROUP_DESCRIBE, api.SHARE_FETCH, api.SHARE_ACKNOWLEDGE,
    api.INITIALIZE_SHARE_GROUP_STATE, api.READ_SHARE_GROUP_STATE, api.WRITE_SHARE_GROUP_STATE,
    api.DELETE_SHARE_GROUP_STATE, api.READ_SHARE_GROUP_STATE_SUMMARY,
    api.DESCRIBE_SHARE_GROUP_OFFSETS, api.ALTER_SHARE_GROUP_OFFSETS,
    api.DELETE_SHARE_GROUP_OFFSETS)
OF_STREAMS_GROUPS = (api.STREAMS_GROUP_HEARTBEAT, api.STREAMS_GROUP_DESCRIBE,
                     api.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE)


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


def _share_groups(services: ApiServices, addresses: cluster.Addresses) -> dict[int, Handler]:
    # Imported here because not every broker has share groups.
    from pylog.api.data import share_fetch, share_state
    from pylog.api.groups import share as share_groups, share_offsets

    access, sharing, metadata_service = services.access, services.sharing(), services.metadata
    may_read = None
    if access is not None:
        from pylog.security.authorizer import READ, TOPIC

        def may_read(context: RequestContext, name: str) -> bool:
            return access.may(context, READ, TOPIC, name)

    return {
        **share_groups.ShareGroupsApi(services.groups, sharing.coordinator, sharing.states,
                                      sharing.settings, metadata_service).handlers(),
        **share_fetch.ShareFetchApi(sharing.partitions, sharing.coordinator, addresses,
                                    metadata_service, services.settings, services.watch,
                                    services.client_quotas, may_read).handlers(),
        **share_state.ShareStatesApi(sharing.coordinator).handlers(),
        **share_offsets.ShareOffsetsApi(services.groups, sharing, metadata_service).handlers(),
    }


def _streams_groups(services: ApiServices) -> dict[int, Handler]:
    # Imported here because few brokers have Streams groups.
    from pylog.api.groups.streams import StreamsGroupsApi
    from pylog.api.groups.streams_topics import InternalTopics

    return StreamsGroupsApi(
        services.groups, services.metadata, InternalTopics(services.controller, services.now_ms),
        services.client_quotas, services.settings, services.access).handlers()


def handlers(services: ApiServices) -> dict[int, Handler]:
    """Return the handlers of all families."""
    settings, metadata_service, controller = \
        services.settings, services.metadata, services.controller
    quotas, node_id, now_ms = services.client_quotas, services.node_id, services.now_ms
    addresses = cluster.Addresses(metadata_service, settings, node_id, services.listener_name)
    in_transactions = transactions.TransactionsApi(
        services.transactions, services.verification, services.markers, services.groups,
        metadata_service, now_ms)
    leaders = offsets.Leaders(metadata_service, services.logs, node_id)
    found: dict[int, Handler] = {}
    for family in (
            versions.VersionsApi(metadata_service, api.advertised(), metadata_service.replicates,
                                 node_id, services.is_login_in_progress).handlers(),
            metadata.MetadataApi(addresses, metadata_service, controller, quotas, settings,
                                 node_id, services.access).handlers(),
            topics.TopicsApi(controller, quotas, settings).handlers(),
            offsets.OffsetsApi(leaders).handlers(),
            producers.ProducersApi(controller, metadata_service, services.logs, in_transactions,
                                   now_ms).handlers(),
            in_transactions.handlers(),
            cluster.ClusterApi(addresses, metadata_service, settings, node_id,
                               controller).handlers(),
            classic_groups.GroupsApi(services.groups, services.transactions, services.sharing,
                                     addresses).handlers(),
            _made_later(OF_SHARE_GROUPS, lambda: _share_groups(services, addresses)),
            _made_later(OF_STREAMS_GROUPS, lambda: _streams_groups(services)),
            consumer_groups.ConsumerGroupsApi(services.groups, metadata_service, settings,
                                              services.access, services.repeats).handlers(),
            committed_offsets.CommittedOffsetsApi(services.groups, metadata_service).handlers(),
            configs.ConfigsApi(controller, metadata_service, settings, services.registered,
                               node_id, services.forward).handlers(),
            partitions.PartitionsApi(controller, metadata_service, quotas).handlers(),
            delete_records.RecordsApi(leaders, metadata_service, services.logs,
                                      settings).handlers(),
            log_dirs.LogDirsApi(services.logs, metadata_service).handlers(),
            quorum.QuorumApi(controller, metadata_service, settings, node_id, now_ms).handlers(),
            client_quotas.QuotasApi(controller, metadata_service).handlers(),
            acls_and_users.SecurityApi(controller, metadata_service, services.access is not None,
                                       services.authentication).handlers(),
            delegation_tokens.DelegationTokensApi(
                controller, metadata_service, settings, services.asker, services.access, now_ms,
                services.forward).handlers()):
        assert not found.keys() & family.keys(), sorted(found.keys() & family.keys())
        found.update(family)
    return found if services.access is None else _guarded(
        found, services.access, metadata_service, settings)


def _guarded(found: dict[int, Handler], access: Access, metadata_service: MetadataService,
             settings: Settings) -> dict[int, Handler]:
    # Imported here because not every broker has an authorizer.
    from pylog.api.authorization.rules import Rights

    return Rights(access, metadata_service, settings).around(found)

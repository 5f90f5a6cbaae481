"""Settings over the wire: DescribeConfigs (32), AlterConfigs (33), IncrementalAlterConfigs (44),
ListConfigResources (74).

Owns: nothing.
Invariants: one result per resource of the request, in its order; a successful result is sent after
  the record is on disk and the setting is in force; with a remote controller, it takes effect a
  moment later.
Source: KIP-133, KIP-226, KIP-339, KIP-569, KIP-1142; responses as in Kafka 4.4.
"""

from __future__ import annotations

import itertools

from pylog.api.cluster import loggers
from pylog.config import entries
from pylog.metadata.controller import configs
from pylog.metadata.controller.partitions.topics import topic_name_fault
from pylog.metadata.image.image import RESOURCE_BROKER, RESOURCE_TOPIC
from pylog.peer.errors import PeerError
from pylog.protocol import api, messages
from pylog.protocol.api_error import Refusal
from pylog.protocol.errors import ErrorCode

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from pylog._native.server.reactor import RequestContext
    from pylog.api.handler import Handler, Message
    from pylog.config import Settings
    from pylog.metadata.controller.active_controller import ActiveController
    from pylog.metadata.service import MetadataService

RESOURCES = (RESOURCE_TOPIC, RESOURCE_BROKER, configs.RESOURCE_LOGGER,
             configs.RESOURCE_SUBSCRIPTION, configs.RESOURCE_GROUP)

PART_RESOURCES = 1000


class ConfigsApi:
    """Settings of topics, brokers, groups and subscriptions.

    registered: returns when this broker's current listeners are in the image. forward: forwards a
    request to the active controller; None: `controller` is it.
    """

    def __init__(self, controller: ActiveController, metadata: MetadataService, settings: Settings,
                 registered: Callable[[], Awaitable[None]], node_id: int,
                 forward: Callable[[RequestContext, Message], Awaitable[Message]] | None = None):
        self._controller = controller
        self._metadata = metadata
        self._settings = settings
        self._registered = registered
        self._node_id = node_id
        self._forward = forward

    def handlers(self) -> dict[int, Handler]:
        return {
            api.DESCRIBE_CONFIGS: self.describe_configs,
            api.ALTER_CONFIGS: self.alter_configs,
            api.INCREMENTAL_ALTER_CONFIGS: self.incremental_alter_configs,
            api.LIST_CONFIG_RESOURCES: self.list_config_resources,
        }

    def describe_configs(self, context: RequestContext, request: Message) -> Message:
        """Return each resource's settings: value, source and, on request, synonyms and
        documentation.

        Errors: INVALID_REQUEST for all if a resource type is unknown, and for another broker;
        UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION. KIP-226, KIP-569.
        """
        new = messages.DescribeConfigsResponse
        unknown = any(resource.resource_type not in RESOURCES for resource in request.resources)
        results = []
        for resource in request.resources:
            result = new.DescribeConfigsResult(
                error_code=ErrorCode.NONE, error_message="", resource_type=resource.resource_type,
                resource_name=resource.resource_name, configs=[])
            try:
                if unknown:
                    raise Refusal(ErrorCode.INVALID_REQUEST, "a resource type is unknown")
                result.configs = _shown(self._entries(resource), request)
            except Refusal as refusal:
                result.error_code = refusal.error
                result.error_message = refusal.message
            results.append(result)
        return new(results=results)

    def _entries(self, resource) -> list:
        """Return the settings of a resource. Raises Refusal."""
        kind, name, wanted = (resource.resource_type, resource.resource_name,
                              resource.configuration_keys)
        settings, own = self._settings, self._metadata.image.configs.get(
            (resource.resource_type, resource.resource_name), {})
        if kind == RESOURCE_TOPIC:
            fault = topic_name_fault(name)
            if fault is not None:
                raise Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
            if name not in self._metadata.image.topics:
                raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "")
            return entries.of_topic(settings, own, wanted)
        if kind == RESOURCE_BROKER and not name:
            return entries.of_cluster(settings, wanted)
        if not name:
            raise Refusal(ErrorCode.INVALID_REQUEST, f"{_WORDS[kind]} must not be empty")
        if kind in (RESOURCE_BROKER, configs.RESOURCE_LOGGER):
            self._check_broker_id(kind, name)
            return entries.of_broker(settings, wanted) if kind == RESOURCE_BROKER \
                else loggers.entries(wanted)
        if kind == configs.RESOURCE_GROUP:
            return entries.of_group(settings, own, wanted)
        return entries.of_subscription(own, wanted)

    def _check_broker_id(self, kind: int, name: str) -> None:
        number = configs.node_number(name)
        if number is None:
            raise Refusal(ErrorCode.INVALID_REQUEST,
                          f"Broker id must be an integer, but it is: {name}")
        if number != self._node_id:
            also = " or empty string," if kind == RESOURCE_BROKER else ""
            raise Refusal(ErrorCode.INVALID_REQUEST,
                          f"Unexpected broker id, expected {self._node_id}{also} but "
                          f"received {name}")

    async def incremental_alter_configs(self, context: RequestContext, request: Message) -> Message:
        """Set, delete, append to or subtract from settings, and set log levels (KIP-339).

        Applies all changes of a resource or none. Errors: INVALID_REQUEST, INVALID_CONFIG,
        UNKNOWN_TOPIC_OR_PARTITION.
        """
        results = await self._alter(context, request, incremental=True)
        results = [loggers.alter(self._node_id, resource, request.validate_only)
                   if result is None else result
                   for resource, result in zip(request.resources, results, strict=True)]
        return _altered(messages.IncrementalAlterConfigsResponse, request, results)

    async def alter_configs(self, context: RequestContext, request: Message) -> Message:
        """Replace each resource's settings by those of the request (KIP-133).

        Applies all changes of a resource or none; errors as for incremental_alter_configs.
        """
        results = await self._alter(context, request, incremental=False)
        return _altered(messages.AlterConfigsResponse, request, results)

    async def _alter(self, context: RequestContext, request: Message, incremental: bool) -> list:
        """Return configs.Altered of each resource, None for a logger."""
        if self._forward is not None:
            return await self._passed_on(context, request, incremental)
        results = await self._controller.alter_configs(request, incremental)
        if not request.validate_only and any(
                resource.resource_type == RESOURCE_BROKER for resource in request.resources):
            await self._registered()
        return results

    async def _passed_on(self, context: RequestContext, request: Message,
                         incremental: bool) -> list:
        """Like _alter(), with a remote controller: this broker validates the settings that depend
        on its own files and loggers, then the controller decides.
        """
        assert self._forward is not None, context.api_key
        resources, image = request.resources, self._metadata.image
        own = incremental * [configs.RESOURCE_LOGGER]
        refused = [configs.own_fault(image, resource, self._settings, self._node_id, incremental)
                   if resource.resource_type == RESOURCE_BROKER else None
                   for resource in resources]
        request.resources = [resource for resource, fault in zip(resources, refused, strict=True)
                             if fault is None and resource.resource_type not in own]
        decided = await self._decided(context, request) if request.resources else {}
        request.resources = resources
        return [None if resource.resource_type in own else
                fault or decided[resource.resource_type, resource.resource_name]
                for resource, fault in zip(resources, refused, strict=True)]

    async def _decided(self, context: RequestContext, request: Message) -> dict:
        """Return (type, name) -> configs.Altered, of each resource of a request."""
        assert self._forward is not None, context.api_key
        try:
            response = await self._forward(context, request)
        except PeerError as error:
            late = configs.Altered(ErrorCode.REQUEST_TIMED_OUT, str(error))
            return {(row.resource_type, row.resource_name): late for row in request.resources}
        return {(row.resource_type, row.resource_name):
                configs.Altered(ErrorCode.of(row.error_code), row.error_message)
                for row in response.responses}

    def list_config_resources(
            self, context: RequestContext, request: Message) -> Iterator[Message | None]:
        """Yield the resources that have settings, of the requested types (KIP-1142).

        Version 0 returns only client metrics subscriptions. Errors: UNSUPPORTED_VERSION for an
        unknown type.
        """
        response = messages.ListConfigResourcesResponse
        if context.api_version == 0:
            requested: tuple[int, ...] = (configs.RESOURCE_SUBSCRIPTION,)
        else:
            requested = tuple(request.resource_types or RESOURCES)
        if any(kind not in RESOURCES for kind in requested):
            yield response(error_code=ErrorCode.UNSUPPORTED_VERSION)
            return
        image = self._metadata.image
        rows = ((kind, name) for kind in RESOURCES if kind in requested
                for name in _resources(image, kind))
        yield response()
        while part := list(itertools.islice(rows, PART_RESOURCES)):
            yield response(config_resources=[
                response.ConfigResource(resource_name=name, resource_type=kind)
                for kind, name in part])


_WORDS = {configs.RESOURCE_LOGGER: "Broker id", configs.RESOURCE_GROUP: "Group name",
          configs.RESOURCE_SUBSCRIPTION: "Client metrics subscription name"}


def _shown(found, request) -> list:
    new = messages.DescribeConfigsResponse
    return [new.DescribeConfigsResourceResult(
        name=entry.name, value=entry.value, read_only=entry.read_only,
        config_source=entry.source, is_sensitive=entry.sensitive,
        synonyms=[new.DescribeConfigsSynonym(name=name, value=value, source=source)
                  for name, value, source in entry.synonyms] if request.include_synonyms else [],
        config_type=entry.type,
        documentation=entry.doc if request.include_documentation or not entry.doc else None)
        for entry in found]


def _altered(response, request, results):
    return response(responses=[
        response.AlterConfigsResourceResponse(
            error_code=result.error, error_message=result.message,
            resource_type=resource.resource_type, resource_name=resource.resource_name)
        for resource, result in zip(request.resources, results, strict=True)])


def _resources(image, kind: int) -> list:
    if kind == RESOURCE_TOPIC:
        return list(image.topics)
    if kind in (RESOURCE_BROKER, configs.RESOURCE_LOGGER):
        return [str(broker_id) for broker_id in image.brokers if image.broker_is_active(broker_id)]
    return [name for of_kind, name in image.configs if of_kind == kind]

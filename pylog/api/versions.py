"""ApiVersions (18): the supported API versions and features.

Owns: nothing.
Invariants: only supported versions and features are advertised.
Source: KIP-35, KIP-511 (client software names), KIP-584 (features), KIP-1242 (destination).
"""

from __future__ import annotations

import re

from pylog.metadata.image.feature_levels import CLUSTER_FEATURES, FEATURES
from pylog.protocol import api, messages
from pylog.protocol.errors import ErrorCode

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Callable

    from pylog._native.server.reactor import RequestContext
    from pylog.api.handler import Handler, Message
    from pylog.metadata.service import MetadataService
    from pylog.protocol.errors import Error

LEVEL_0_SINCE = 4  # Older clients cannot read a minimum level of 0 (KAFKA-17011).
DESTINATION_SINCE = 5  # A client names the node and the cluster that it expects (KIP-1242).

NO_NODE = -1

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


class VersionsApi:
    """ApiVersions. metadata: has the current image. advertised: api key -> (lowest, highest
    version). of_cluster: the cluster has several brokers. node_id: of this node.
    is_login_in_progress: of a request's connection.
    """

    def __init__(self, metadata: MetadataService, advertised: dict[int, tuple[int, int]],
                 of_cluster: bool, node_id: int,
                 is_login_in_progress: Callable[[RequestContext], bool]):
        self._metadata = metadata
        self._is_login_in_progress = is_login_in_progress
        self._node_id = node_id
        self._advertised = advertised
        self._features = CLUSTER_FEATURES if of_cluster else FEATURES

    def handlers(self) -> dict[int, Handler]:
        return {api.API_VERSIONS: self.api_versions}

    def api_versions(self, context: RequestContext, request: Message) -> Message:
        """Return the version range of each served API, and the finalized features.

        request: None if its version is not supported; the response is then UNSUPPORTED_VERSION with
        the range of ApiVersions, in version 0 (KIP-511). Errors: INVALID_REQUEST if a software name
        does not match Kafka's pattern, or if a request names only a node or only a cluster;
        REBOOTSTRAP_REQUIRED if it names another node or cluster than this one (KIP-1242);
        ILLEGAL_SASL_STATE during a login.
        """
        if self._is_login_in_progress(context):
            context.closes = True
            return messages.ApiVersionsResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
        if request is None:
            return _unsupported_version()
        if context.api_version >= 3 and not (
                _SOFTWARE.fullmatch(request.client_software_name)
                and _SOFTWARE.fullmatch(request.client_software_version)):
            return messages.ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        fault = self._misrouted(request) if context.api_version >= DESTINATION_SINCE else None
        if fault is not None:
            return messages.ApiVersionsResponse(error_code=fault)
        image = self._metadata.image
        response = messages.ApiVersionsResponse
        return response(
            api_keys=[response.ApiVersion(api_key=key, min_version=low, max_version=high)
                      for key, (low, high) in sorted(self._advertised.items())],
            supported_features=[response.SupportedFeatureKey(
                name=name, min_version=low if context.api_version >= LEVEL_0_SINCE else max(low, 1),
                max_version=high) for name, (low, high) in self._features.items()],
            # A metadata log written by Kafka may contain more features, which pylog does not
            # support.
            finalized_features_epoch=image.offset,
            finalized_features=[response.FinalizedFeatureKey(
                name=name, max_version_level=level, min_version_level=level)
                for name, level in sorted(image.features.items()) if name in self._features])

    def _misrouted(self, request: Message) -> Error | None:
        """Return the error of a request for another node or cluster, or None."""
        if request.cluster_id is None and request.node_id == NO_NODE:
            return None
        if request.cluster_id is None or request.node_id == NO_NODE:
            return ErrorCode.INVALID_REQUEST
        if request.cluster_id != self._metadata.cluster_id or request.node_id != self._node_id:
            return ErrorCode.REBOOTSTRAP_REQUIRED
        return None


def _unsupported_version():
    """Return an error response with the supported range of ApiVersions."""
    low, high = api.SERVED[api.API_VERSIONS]
    response = messages.ApiVersionsResponse
    return response(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[
        response.ApiVersion(api_key=api.API_VERSIONS, min_version=low, max_version=high)])

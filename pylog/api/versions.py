"""ApiVersions (18): what this broker serves, by API and by feature.

Owns: nothing.
Called by: dispatch through api.HANDLERS.
Invariants: (1) what is not served is not advertised.
Source: KIP-35, KIP-511 (client software names), KIP-584 (features).
"""

import re

from pylog.metadata.controller import METADATA_VERSION, METADATA_VERSION_MIN
from pylog.protocol import api, messages
from pylog.protocol.errors import ErrorCode

# A metadata log that Kafka wrote may have more: what they promise is not served here.
FEATURES_SERVED = frozenset(("metadata.version",))

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def api_versions(broker, context, request):
    """request: None when its version is beyond ours; the answer then goes out in version 0."""
    if request is None:
        return _unsupported_version()
    if context.api_version >= 3 and not (
            _SOFTWARE.fullmatch(request.client_software_name)
            and _SOFTWARE.fullmatch(request.client_software_version)):
        return messages.ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    image = broker.image
    response = messages.ApiVersionsResponse
    return response(
        api_keys=[response.ApiVersion(api_key=key, min_version=low, max_version=high)
                  for key, (low, high) in sorted(api.advertised().items())],
        supported_features=[response.SupportedFeatureKey(
            name="metadata.version", min_version=METADATA_VERSION_MIN,
            max_version=METADATA_VERSION)],
        finalized_features_epoch=image.offset,
        finalized_features=[response.FinalizedFeatureKey(
            name=name, max_version_level=level, min_version_level=level)
            for name, level in sorted(image.features.items()) if name in FEATURES_SERVED])


def _unsupported_version():
    """Tells the one range that would have worked."""
    low, high = api.SERVED[api.API_VERSIONS]
    response = messages.ApiVersionsResponse
    return response(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[
        response.ApiVersion(api_key=api.API_VERSIONS, min_version=low, max_version=high)])


HANDLERS = {api.API_VERSIONS: api_versions}

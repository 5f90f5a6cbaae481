"""ApiVersions (18): what this broker serves, by API and by feature.

Owns: nothing.
Called by: dispatch through api.HANDLERS; dispatch for a request of a version beyond ours.
Invariants: (1) what is not served is not advertised.
Source: KIP-35, KIP-511 (client software names), KIP-584 (features), KAFKA-18659 (Produce from 0).
"""

import re

from pylog import api
from pylog.metadata.controller import METADATA_VERSION, METADATA_VERSION_MIN
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode

API_VERSIONS = 18
PRODUCE = 0
FETCH = 1
# Served by native code, which needs no handler here.
NATIVE_APIS = (PRODUCE, FETCH)

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def versions_served() -> dict:
    """api key -> (lowest, highest version) that clients may send; derived from tables (1)."""
    served = {key: messages.versions(key) for key in (*NATIVE_APIS, *api.HANDLERS)}
    # Old librdkafka turns features off when Produce does not start at 0; versions below 3 are refused.
    served[PRODUCE] = (0, served[PRODUCE][1])
    return dict(sorted(served.items()))


def api_versions(broker, context, request):
    if context.api_version >= 3 and not (
            _SOFTWARE.fullmatch(request.client_software_name)
            and _SOFTWARE.fullmatch(request.client_software_version)):
        return messages.ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    image = broker.image
    response = messages.ApiVersionsResponse
    return response(
        api_keys=[response.ApiVersion(api_key=key, min_version=low, max_version=high)
                  for key, (low, high) in versions_served().items()],
        supported_features=[response.SupportedFeatureKey(
            name="metadata.version", min_version=METADATA_VERSION_MIN,
            max_version=METADATA_VERSION)],
        finalized_features_epoch=image.offset,
        finalized_features=[response.FinalizedFeatureKey(
            name=name, max_version_level=level, min_version_level=level)
            for name, level in sorted(image.features.items())])


def unsupported_version():
    """The answer, in version 0, to an ApiVersions request of a version that we do not know."""
    low, high = messages.versions(API_VERSIONS)
    response = messages.ApiVersionsResponse
    return response(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[
        response.ApiVersion(api_key=API_VERSIONS, min_version=low, max_version=high)])


HANDLERS = {API_VERSIONS: api_versions}

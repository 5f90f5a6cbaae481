"""Decisions on the cluster's feature levels: UpdateFeatures.

Owns: nothing.
Called by: metadata.active_controller, under its lock.
Invariants: (1) a level is one that this version can serve; (2) records of one request go together.
Source: KIP-584, KIP-778; error codes as Kafka 4.3's.
"""

from pylog.metadata import controller
from pylog.metadata.refusal import Refusal
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
METADATA_VERSION = "metadata.version"


def update(image, updates, node_id: int) -> list:
    """The records of UpdateFeaturesRequest.feature_updates; raises Refusal for all of them."""
    records = []
    for wanted in updates:
        level = wanted.max_version_level
        fault = _fault(image.features.get(wanted.feature, 0), wanted.feature, level,
                       wanted.upgrade_type, node_id)
        if fault is not None:
            raise Refusal(ErrorCode.INVALID_UPDATE_VERSION,
                          "The update failed for all features since the following feature "
                          f"had an error: Invalid update version {level} for feature "
                          f"{wanted.feature}. {fault}")
        records.append(messages.FeatureLevelRecord(name=wanted.feature, feature_level=level))
    return records


def _fault(current: int, name: str, level: int, kind: int, node_id: int) -> str | None:
    if kind not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        return "The controller does not support the given upgrade type."
    if level < 0:
        return "A feature version cannot be less than 0."
    if name not in controller.FEATURES:
        return f"Local controller {node_id} does not support this feature."
    low, high = controller.FEATURES[name]
    if not low <= level <= high:
        return f"Local controller {node_id} only supports versions {low}-{high}"
    if level < current and kind == UPGRADE:
        return "Can't downgrade the version of this feature without setting the upgrade type " \
               "to either safe or unsafe downgrade."
    if level > current and kind != UPGRADE:
        return "Can't downgrade to a newer version."
    if level < current and name == METADATA_VERSION:
        # Records are written in the newest version: an older Kafka could not read them.
        return "Refusing to perform the requested downgrade because it might delete metadata " \
               "information."
    return None

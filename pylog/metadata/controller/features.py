"""Decisions on the cluster's feature levels: UpdateFeatures.

Owns: nothing.
Invariants: this version, every broker and every controller that responds support each level; the
  records of one request are appended together.
Source: KIP-584, KIP-778; error codes as Kafka's.
"""

from pylog.metadata.controller.partitions import eligible_leader_replicas
from pylog.metadata.image.feature_levels import CLUSTER_FEATURES, ELR_FEATURE, METADATA_VERSION
from pylog.protocol import messages
from pylog.protocol.api_error import Refusal
from pylog.protocol.errors import ErrorCode

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
KRAFT_VERSION = "kraft.version"


def update(image, updates, settings, node_id: int, standbys=()) -> list:
    """Return the records of UpdateFeaturesRequest.feature_updates. Raises Refusal for all if one
    fails.

    standbys: [(node id, {feature: (lowest, highest supported level)})] of the other controllers.
    """
    records = []
    for wanted in updates:
        level = wanted.max_version_level
        if _has_no_effect(image, wanted.feature, level, node_id):
            continue
        fault = _fault(image, wanted.feature, level, wanted.upgrade_type, node_id, standbys)
        if fault is not None:
            raise Refusal(ErrorCode.INVALID_UPDATE_VERSION,
                          "The update failed for all features since the following feature "
                          f"had an error: Invalid update version {level} for feature "
                          f"{wanted.feature}. {fault}")
        records.append(messages.FeatureLevelRecord(name=wanted.feature, feature_level=level))
        if wanted.feature == ELR_FEATURE and level > 0:
            records += eligible_leader_replicas.single_min_isr(image, settings)
    return records


def _has_no_effect(image, name: str, level: int, node_id: int) -> bool:
    """Return True for a level that is accepted and changes nothing.

    Kafka's tool updates all features of a release together. etcd or ZooKeeper keeps the quorum's
    members, and a single broker has no eligible leader replicas.
    """
    if level not in (0, 1):
        return False
    return name == KRAFT_VERSION or name == ELR_FEATURE and name not in image.features \
        and image.brokers.keys() == {node_id} \
        and all(known != name for known, *_ in image.brokers[node_id].features)


def _ranges(image, name: str, node_id: int, standbys):
    """Yield (node, lowest, highest supported level); a node that does not report the feature
    supports only 0.
    """
    yield f"Local controller {node_id}", *CLUSTER_FEATURES.get(name, (0, 0))
    for broker in image.brokers.values():
        low, high = next(((low, high) for known, low, high in broker.features if known == name),
                         (0, 0))
        yield f"Broker {broker.id}", low, high
    for standby_id, supported in standbys:
        yield f"Controller {standby_id}", *supported.get(name, (0, 0))


def _fault(image, name: str, level: int, kind: int, node_id: int, standbys) -> str | None:
    current = image.features.get(name, 0)
    if kind not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        return "The controller does not support the given upgrade type."
    if level < 0:
        return "A feature version cannot be less than 0."
    for node, low, high in _ranges(image, name, node_id, standbys):
        if not low <= level <= high:
            return f"{node} does not support this feature." if high == 0 \
                else f"{node} only supports versions {low}-{high}"
    if name not in CLUSTER_FEATURES and name not in image.features:
        return f"Feature {name} not found."
    if level < current and kind == UPGRADE:
        return "Can't downgrade the version of this feature without setting the upgrade type " \
               "to either safe or unsafe downgrade."
    if level > current and kind != UPGRADE:
        return "Can't downgrade to a newer version."
    if level < current and name == METADATA_VERSION:
        # Records are written in the newest version, which an older Kafka could not read.
        return "Refusing to perform the requested downgrade because it might delete metadata " \
               "information."
    return None

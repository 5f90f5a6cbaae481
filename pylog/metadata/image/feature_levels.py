"""The feature levels of a cluster that this version supports.

Owns: the table of features.
Invariants: none.
Source: KIP-584, KIP-778; Kafka's MetadataVersion and Feature.
"""

from pylog.metadata.image.record_versions import NEWEST_VERSION, OLDEST_VERSION

METADATA_VERSION = "metadata.version"
ELR_FEATURE = "eligible.leader.replicas.version"
# Feature -> (lowest, highest supported level); a new cluster gets the highest.
FEATURES = {METADATA_VERSION: (OLDEST_VERSION, NEWEST_VERSION), "transaction.version": (0, 2),
            "group.version": (0, 1), "share.version": (0, 2), "streams.version": (0, 1)}
# The same for a cluster of several brokers.
CLUSTER_FEATURES = {**FEATURES, ELR_FEATURE: (0, 1)}


def level_fault(features: dict[str, int]) -> str | None:
    """Return why the finalized levels of an image cannot be served, None if they can."""
    for name, level in features.items():
        low, high = CLUSTER_FEATURES.get(name, (0, 0))
        if not low <= level <= high:
            supported = f"levels {low} to {high}" if high else "no level of it"
            return (f"the cluster has {name}={level}, but this version of brokerd supports "
                    f"{supported}. Start a version that supports it, or lower the level with "
                    "`kafka-features` first")
    return None

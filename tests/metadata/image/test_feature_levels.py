"""Finalized feature levels of other versions: a log with one cannot be served."""

import pytest

from pylog.metadata.image.feature_levels import CLUSTER_FEATURES
from pylog.metadata.image.image import Image, MetadataError, apply
from pylog.protocol import messages


def finalized(name: str, level: int) -> Image:
    return apply(Image(), [messages.FeatureLevelRecord(name=name, feature_level=level)], 0, 1)


@pytest.mark.parametrize("name", CLUSTER_FEATURES)
def test_level_above_the_supported_ones_is_rejected_by_its_number(name):
    high = CLUSTER_FEATURES[name][1]
    assert finalized(name, high).features == {name: high}
    with pytest.raises(MetadataError, match=f"the cluster has {name}={high + 1}, but this version "
                                            f"of brokerd supports levels [0-9]+ to {high}"):
        finalized(name, high + 1)


def test_levels_below_the_lowest_and_of_unknown_features_are_rejected():
    with pytest.raises(MetadataError, match="metadata.version=6"):
        finalized("metadata.version", 6)
    with pytest.raises(MetadataError, match="later.version=1.*supports no level of it"):
        finalized("later.version", 1)
    assert finalized("later.version", 0).features == {}

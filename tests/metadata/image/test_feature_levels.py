"""Finalized feature levels of other versions: a start on such a log is refused."""

import pytest

from pylog.metadata.image.feature_levels import CLUSTER_FEATURES
from pylog.metadata.image.image import Image, MetadataError
from pylog.metadata.image.loader import Tail
from pylog.metadata.log.metadata_log import MetadataBatch
from pylog.protocol import messages


def read(*levels: tuple[str, int]) -> dict[str, int]:
    """Return the features after the start on a log with these levels."""
    tail = Tail(Image())
    tail.replay(MetadataBatch(offset, 1, [
        messages.FeatureLevelRecord(name=name, feature_level=level)])
        for offset, (name, level) in enumerate(levels))
    return tail.newest.features


@pytest.mark.parametrize("name", CLUSTER_FEATURES)
def test_level_above_the_supported_ones_is_refused_by_its_number(name):
    high = CLUSTER_FEATURES[name][1]
    assert read((name, high)) == {name: high}
    with pytest.raises(MetadataError, match=f"the cluster has {name}={high + 1}, but this version "
                                            f"of brokerd supports levels [0-9]+ to {high}"):
        read((name, high + 1))


def test_levels_below_the_lowest_and_of_unknown_features_are_refused():
    with pytest.raises(MetadataError, match="metadata.version=6"):
        read(("metadata.version", 6))
    with pytest.raises(MetadataError, match="later.version=1.*supports no level of it"):
        read(("later.version", 1))


def test_log_whose_level_was_lowered_again_is_served():
    assert read(("metadata.version", 34), ("later.version", 1), ("metadata.version", 33),
                ("later.version", 0)) == {"metadata.version": 33}


def test_stored_image_with_an_unsupported_level_is_refused():
    with pytest.raises(MetadataError, match="metadata.version=34"):
        Tail(Image(features={"metadata.version": 34})).replay([])

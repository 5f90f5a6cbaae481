"""Permitted levels of a cluster feature, and dependent changes."""

import pytest

from pylog.metadata.controller import features
from pylog.metadata.controller.features import SAFE_DOWNGRADE, UNSAFE_DOWNGRADE, UPGRADE
from pylog.metadata.controller.partitions import eligible_leader_replicas, topics
from pylog.metadata.controller.partitions.eligible_leader_replicas import ELR_FEATURE, MIN_IN_SYNC
from pylog.metadata.image.image import RESOURCE_BROKER, RESOURCE_TOPIC, Image
from pylog.protocol import messages
from pylog.protocol.api_error import Refusal
from pylog.protocol.errors import ErrorCode as E
from tests.metadata.controller.test_broker_registration import Cluster

FEATURE = messages.UpdateFeaturesRequest.FeatureUpdateKey
VERSION, TRANSACTIONS = "metadata.version", "transaction.version"


def updated(cluster, *wanted):
    """Return the records. wanted: (feature, level, upgrade type)."""
    return features.update(cluster.image, [
        FEATURE(feature=name, max_version_level=level, upgrade_type=kind)
        for name, level, kind in wanted], cluster.settings, 9)


def levels(records):
    return [(record.name, record.feature_level) for record in records]


def with_feature(name, level, **fields):
    cluster = Cluster(**fields)
    cluster.take([messages.FeatureLevelRecord(name=name, feature_level=level)])
    return cluster


@pytest.mark.parametrize(("wanted", "text"), [
    ((VERSION, 33, 0), "does not support the given upgrade type"),
    ((VERSION, 33, 4), "does not support the given upgrade type"),
    ((VERSION, -1, UNSAFE_DOWNGRADE), "cannot be less than 0"),
    ((VERSION, 34, UPGRADE), "Local controller 9 only supports versions 7-33"),
    ((VERSION, 6, UNSAFE_DOWNGRADE), "Local controller 9 only supports versions 7-33"),
    ((VERSION, 29, UPGRADE), "without setting the upgrade type"),
    ((VERSION, 29, SAFE_DOWNGRADE), "might delete metadata information"),
    ((VERSION, 7, UNSAFE_DOWNGRADE), "might delete metadata information"),
    ((TRANSACTIONS, 1, UPGRADE), "Broker 1 does not support this feature"),
    (("no.such", 1, UPGRADE), "Local controller 9 does not support this feature"),
    (("no.such", 0, UPGRADE), "Feature no.such not found"),
    ((ELR_FEATURE, 0, UPGRADE), "without setting the upgrade type"),
])
def test_invalid_feature_level_rejects_the_whole_request(wanted, text):
    with pytest.raises(Refusal) as refused:
        updated(Cluster().join(1), (VERSION, 33, UPGRADE), wanted)
    assert refused.value.error == E.INVALID_UPDATE_VERSION and text in refused.value.message
    assert f"Invalid update version {wanted[1]} for feature {wanted[0]}. " in refused.value.message


@pytest.mark.parametrize("kind", [SAFE_DOWNGRADE, UNSAFE_DOWNGRADE])
def test_a_downgrade_leads_to_no_newer_version(kind):
    with pytest.raises(Refusal, match="Can't downgrade to a newer version"):
        updated(Cluster(), (TRANSACTIONS, 1, kind))
    assert levels(updated(with_feature(TRANSACTIONS, 2), (TRANSACTIONS, 1, kind))) == [
        (TRANSACTIONS, 1)]


def test_level_must_be_supported_by_each_broker():
    cluster = Cluster()
    cluster.register(1, features={VERSION: (7, 33), ELR_FEATURE: (0, 1), TRANSACTIONS: (0, 2)})
    cluster.register(2, features={VERSION: (7, 33), ELR_FEATURE: (0, 1), TRANSACTIONS: (0, 1)})
    assert levels(updated(cluster, (TRANSACTIONS, 1, UPGRADE))) == [(TRANSACTIONS, 1)]
    with pytest.raises(Refusal, match="Broker 2 only supports versions 0-1"):
        updated(cluster, (TRANSACTIONS, 2, UPGRADE))


@pytest.mark.parametrize("supported, fault", [
    ({TRANSACTIONS: (0, 1)}, "Controller 5 only supports versions 0-1"),
    ({}, "Controller 5 does not support this feature"),
])
def test_level_must_be_supported_by_each_other_controller(supported, fault):
    def update(level):
        return features.update(
            Cluster().image, [FEATURE(feature=TRANSACTIONS, max_version_level=level)],
            Cluster().settings, 9, [(4, {TRANSACTIONS: (0, 2)}), (5, supported)])

    with pytest.raises(Refusal, match=fault):
        update(2)
    if supported:
        assert levels(update(1)) == [(TRANSACTIONS, 1)]


@pytest.mark.parametrize("kind", [UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE])
def test_current_feature_level_can_be_set_again(kind):
    records = updated(Cluster().join(1), (VERSION, 33, kind), (ELR_FEATURE, 1, kind))
    assert levels(records[:2]) == [(VERSION, 33), (ELR_FEATURE, 1)]


def test_features_of_a_release_without_effect_are_accepted():
    alone = Cluster(keeps_eligible=False)
    alone.register(9, features={VERSION: (7, 33), TRANSACTIONS: (0, 2)})
    release = [("kraft.version", 1, UPGRADE), (ELR_FEATURE, 1, UPGRADE), (TRANSACTIONS, 2, UPGRADE)]
    assert levels(updated(alone, *release)) == [(TRANSACTIONS, 2)]
    with pytest.raises(Refusal, match="only supports versions 0-1"):
        updated(alone, (ELR_FEATURE, 2, UPGRADE))
    with pytest.raises(Refusal, match="does not support this feature"):
        updated(alone, ("kraft.version", 2, UPGRADE))


def test_another_broker_without_eligible_leader_replicas_rejects_them():
    cluster = Cluster(keeps_eligible=False)
    cluster.register(1, features={VERSION: (7, 33)})
    with pytest.raises(Refusal, match="Broker 1 does not support this feature"):
        updated(cluster, (ELR_FEATURE, 1, UPGRADE))


def test_unsupported_feature_in_the_log_can_be_removed():
    cluster = with_feature("odd", 1)
    assert levels(updated(cluster, ("odd", 0, SAFE_DOWNGRADE))) == [("odd", 0)]


def minimum(kind, name, value):
    return messages.ConfigRecord(resource_type=kind, resource_name=name, name=MIN_IN_SYNC,
                                 value=value)


def test_eligible_replicas_require_one_cluster_wide_minimum():
    cluster = Cluster(keeps_eligible=False, **{MIN_IN_SYNC: "2"})
    cluster.take([minimum(RESOURCE_BROKER, "1", "3"), minimum(RESOURCE_TOPIC, "t", "4"),
                  messages.ConfigRecord(resource_type=RESOURCE_BROKER, resource_name="2",
                                        name="background.threads", value="3")])
    feature, *others = updated(cluster, (ELR_FEATURE, 1, UPGRADE))
    assert levels([feature]) == [(ELR_FEATURE, 1)]
    assert others == [minimum(RESOURCE_BROKER, "1", None), minimum(RESOURCE_BROKER, "", "2")]
    cluster.take(others)
    assert eligible_leader_replicas.single_min_isr(cluster.image, cluster.settings) == []


def test_brokers_may_have_own_min_isr_without_eligible_leader_replicas():
    assert levels(updated(Cluster(), (ELR_FEATURE, 0, SAFE_DOWNGRADE))) == [(ELR_FEATURE, 0)]
    assert len(updated(Cluster(keeps_eligible=False), (TRANSACTIONS, 1, UPGRADE))) == 1


def test_changed_minimum_clears_eligible_replicas():
    records = [minimum(RESOURCE_TOPIC, "t", "2"), minimum(RESOURCE_BROKER, "", "2"),
               messages.ConfigRecord(resource_type=RESOURCE_TOPIC, resource_name="u",
                                     name="retention.ms", value="2"),
               messages.TopicRecord(name=MIN_IN_SYNC, topic_id=bytes(16))]
    assert eligible_leader_replicas.cleared(Cluster().image, records) == [
        messages.ClearElrRecord(topic_name="t"), messages.ClearElrRecord(topic_name="")]
    assert eligible_leader_replicas.cleared(Cluster(keeps_eligible=False).image, records) == []


def test_new_cluster_enables_eligible_leader_replicas_with_its_configured_min_isr():
    cluster = Cluster(**{MIN_IN_SYNC: "2"})
    records = topics.bootstrap_cluster(Image(), cluster.settings)
    assert records[:-2] == topics.bootstrap(Image())
    assert levels([records[-2]]) == [(ELR_FEATURE, 1)]
    assert records[-1] == minimum(RESOURCE_BROKER, "", "2")
    assert {name: level for name, level in levels(records[:-1])}[VERSION] == 33

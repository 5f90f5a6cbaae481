"""What a broker tells the controller of itself."""

import logging

from pylog.replication.registration import features

SERVED = {"metadata.version": (7, 30), "transaction.version": (0, 2), "group.version": (0, 1),
          "share.version": (0, 1),
          "eligible.leader.replicas.version": (0, 1), "kraft.version": (0, 1)}


def test_what_is_served_is_named_whatever_the_cluster_has(caplog):
    assert features({}) == SERVED
    assert features({"metadata.version": 30, "transaction.version": 2}) == SERVED
    assert caplog.messages == []


def test_what_the_cluster_has_and_is_not_served_is_named_and_logged(caplog):
    with caplog.at_level(logging.WARNING):
        assert features({"streams.version": 1}) == {**SERVED, "streams.version": (0, 1)}
    assert [record.feature for record in caplog.records] == ["streams.version"]


def test_what_nobody_knows_is_not_named():
    assert features({"made.up.version": 3}) == SERVED

"""A broker's registration at the controller."""

from types import SimpleNamespace

from pylog.replication.registration import registration

SERVED = {"metadata.version": (7, 33), "transaction.version": (0, 2), "group.version": (0, 1),
          "share.version": (0, 2), "streams.version": (0, 1),
          "eligible.leader.replicas.version": (0, 1), "kraft.version": (0, 1)}


def test_registration_lists_the_supported_features():
    request = registration(
        SimpleNamespace(incarnation_id=bytes(16), previous_broker_epoch=-1), node_id=1,
        cluster_id="c", endpoints=[], directories=[], rack=None)
    assert {row.name: (row.min_supported_version, row.max_supported_version)
            for row in request.features} == SERVED

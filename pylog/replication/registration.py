"""Builds this broker's registration and heartbeat requests.

Owns: nothing.
Invariants: each feature is sent with the levels that this version supports.
Source: KIP-631, KIP-584; the rejections of Kafka 4.4's ClusterControlManager.
"""

from pylog.metadata.image.feature_levels import CLUSTER_FEATURES
from pylog.protocol import messages

SERVED = {**CLUSTER_FEATURES, "kraft.version": (0, 1)}


def registration(wanted, *, node_id: int, cluster_id: str, endpoints, directories, rack):
    """Return the request for a lifecycle.Register. endpoints: [(listener, host, port, protocol
    number)].
    """
    new = messages.BrokerRegistrationRequest
    return new(
        broker_id=node_id, cluster_id=cluster_id, incarnation_id=wanted.incarnation_id,
        listeners=[new.Listener(name=name, host=host, port=port, security_protocol=protocol)
                   for name, host, port, protocol in endpoints],
        features=[new.Feature(name=name, min_supported_version=low, max_supported_version=high)
                  for name, (low, high) in SERVED.items()],
        rack=rack, log_dirs=list(directories),
        previous_broker_epoch=wanted.previous_broker_epoch)


def heartbeat(wanted, image, *, node_id: int, offline_directories, cordoned_directories):
    """Return the request for a lifecycle.Heartbeat."""
    own = image.brokers.get(node_id)
    # If no directory was ever cordoned, the controller need not write a record.
    never = not cordoned_directories and (own is None or not own.cordoned)
    return messages.BrokerHeartbeatRequest(
        broker_id=node_id, broker_epoch=wanted.broker_epoch,
        current_metadata_offset=wanted.current_metadata_offset, want_fence=wanted.want_fence,
        want_shut_down=wanted.want_shut_down, offline_log_dirs=list(offline_directories),
        cordoned_log_dirs=None if never else list(cordoned_directories))

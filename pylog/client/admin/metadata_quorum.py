"""The controllers' quorum, as DescribeQuorum reports it.

Owns: nothing.
Invariants: a voter whose last fetch is not known is silent for an unknown time, never for 0 ms.
Source: KIP-595, KIP-836.
"""

from __future__ import annotations

from typing import Any

from pylog.client.errors import KafkaError, raise_for
from pylog.client.network.cluster import Cluster
from pylog.protocol import messages

TOPIC = "__cluster_metadata"
# Kafka's voters fetch twice a second; brokerd reads an etcd member when DescribeQuorum arrives.
SILENT_MS_MAX = 5000


async def partition(cluster: Cluster) -> Any:
    """Return the DescribeQuorumResponse.PartitionData of the metadata log. Raises KafkaError."""
    new = messages.DescribeQuorumRequest
    response = await cluster.send_any(new(topics=[new.TopicData(
        topic_name=TOPIC, partitions=[new.PartitionData(partition_index=0)])]))
    raise_for(response.error_code, response.error_message, "DescribeQuorum")
    if not response.topics or not response.topics[0].partitions:
        raise KafkaError("DescribeQuorum returned nothing")
    row = response.topics[0].partitions[0]
    raise_for(row.error_code, row.error_message, "DescribeQuorum")
    return row


def silent_ms(row: Any) -> dict[int, int | None]:
    """Return the time since each voter's last fetch; None if it has not fetched yet.

    Uses the leader's times as the current time: comparing followers only with each other would hide
    that all of them stopped fetching.
    """
    now_ms = max((max(voter.last_fetch_timestamp, voter.last_caught_up_timestamp)
                  for voter in row.current_voters), default=-1)
    return {voter.replica_id: None if voter.last_fetch_timestamp < 0
            else now_ms - voter.last_fetch_timestamp for voter in row.current_voters}

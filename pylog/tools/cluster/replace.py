"""`pylog cluster replace`: remove the etcd member of a controller that is permanently lost.

Owns: nothing.
Invariants: proven absence: without --force, a controller that responds is not removed.
Source: KIP-853 (RemoveRaftVoter); kafka-metadata-quorum remove-controller.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode
from pylog.tools.cli import cluster_queries
from pylog.tools.cli.command import Tool, confirmed
from pylog.tools.cli.session import Session, ToolError

if TYPE_CHECKING:
    from pylog.client.network.cluster import Cluster

SILENT_MS_MIN = 5000
# Longer than the lock lasts that an attempt with unknown outcome leaves.
RETRY_S, PAUSE_S = 20.0, 1.0
RETRIABLE = (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_CONTROLLER)


@click.command(cls=Tool)
@click.argument("node", type=int)
@click.option("--force", is_flag=True,
              help="Remove the member even if it still responds; do not ask for confirmation.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.pass_obj
def replace(session: Session, node: int, force: bool, yes: bool) -> None:
    """Remove the etcd member of controller NODE, so that an empty node can replace it.

    Then start brokerd with empty directories on the machine that controller.quorum.voters names for
    NODE. The removed member stops and cannot rejoin.
    """
    async def check(asked: Cluster) -> None:
        new = messages.DescribeQuorumRequest
        response = await asked.send_any(new(topics=[new.TopicData(
            topic_name="__cluster_metadata", partitions=[new.PartitionData(partition_index=0)])]))
        if response.error_code:
            raise ToolError(cluster_queries.error_code_text(
                response.error_code, response.error_message, "the quorum"))
        voters = response.topics[0].partitions[0].current_voters
        found = next((voter for voter in voters if voter.replica_id == node), None)
        if found is None:
            raise ToolError(f"controller {node} is not one of the voters")
        if found.last_fetch_timestamp < 0:
            raise ToolError(f"the active controller never reached controller {node}, which does "
                            "not prove that it is gone: if it is, use --force")
        newest_ms = max(voter.last_fetch_timestamp for voter in voters)
        if newest_ms - found.last_fetch_timestamp < SILENT_MS_MIN:
            raise ToolError(f"controller {node} still responds: stop it first, or remove it "
                            f"anyway with --force")

    async def remove(asked: Cluster) -> str:
        is_retry = False
        loop = asyncio.get_running_loop()
        until = loop.time() + RETRY_S
        while True:
            response = await asked.send_any(messages.RemoveRaftVoterRequest(
                cluster_id=None, voter_id=node, voter_directory_id=bytes(16)))
            # etcd rejects membership changes until all members have been connected for five
            # seconds.
            if response.error_code not in RETRIABLE or loop.time() >= until:
                break
            await asyncio.sleep(PAUSE_S)
            is_retry = True
        if is_retry and response.error_code == ErrorCode.VOTER_NOT_FOUND:
            # An earlier attempt, whose response was lost, removed it.
            return f"the member of controller {node} was removed"
        if response.error_code:
            raise ToolError(cluster_queries.error_code_text(
                response.error_code, response.error_message, f"controller {node}"))
        return response.error_message or ""

    if not force:
        session.run(check)
    confirmed(f"Remove the etcd member of controller {node}?", yes or force)
    session.out.line(f"{session.run(remove)}: start brokerd with empty directories as node {node}")

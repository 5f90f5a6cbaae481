"""`pylog cluster forget`: unregister a broker that will not return.

Owns: nothing.
Invariants: a broker that is online or has replicas is not unregistered.
Source: kafka-cluster unregister (KIP-500's UnregisterBroker).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pylog.protocol.counts import counted
from pylog.protocol import messages
from pylog.tools.cli import cluster_queries
from pylog.tools.cli.command import Tool, confirmed
from pylog.tools.cli.session import Session, ToolError

if TYPE_CHECKING:
    from pylog.client.network.cluster import Cluster


@click.command(cls=Tool)
@click.argument("broker", type=int)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.pass_obj
def forget(session: Session, broker: int, yes: bool) -> None:
    """Unregister BROKER, which will not return. If it starts again, it registers again."""
    async def query(asked: Cluster) -> None:
        metadata = await cluster_queries.all_topics(asked)
        absent = await cluster_queries.absent_brokers(asked, metadata)
        if broker in metadata.nodes:
            raise ToolError(f"broker {broker} is running: run pylog cluster drain {broker}, then "
                            f"stop it")
        if broker not in absent:
            raise ToolError(f"there is no broker {broker}")
        if absent[broker]:
            raise ToolError(
                f"broker {broker} has replicas of {counted(absent[broker], 'partition')}: pylog "
                f"cluster drain {broker} moves them to other brokers")

    async def work(asked: Cluster) -> None:
        response = await asked.send_any(messages.UnregisterBrokerRequest(broker_id=broker))
        if response.error_code:
            raise ToolError(cluster_queries.error_code_text(
                response.error_code, response.error_message, f"broker {broker}"))

    session.run(query)  # Refuse to unregister a broker that is online or has replicas.
    confirmed(f"Unregister broker {broker}?", yes)
    session.run(work)
    session.out.line(f"broker {broker} is unregistered")

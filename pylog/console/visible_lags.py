"""The lag of all groups, as far as a user may see it.

Owns: nothing.
Invariants: readings with the console's own rights are limited to groups and topics that the user
  may describe; without such readings, the groups are read with the user's rights if there are few.
Source: none.
"""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, Any, NamedTuple

from pylog.config.console_access import NONE
from pylog.console.groups import lag as group_lag
from pylog.console.groups.history import GroupLag, LagHistory
from pylog.console.groups.samples import LagSample

if TYPE_CHECKING:
    from starlette.requests import Request

    from pylog.client.types import TopicPartition
    from pylog.console.clusters import ClusterSession

GROUPS_READ_MAX = 500
STALE_PERIODS = 3  # Then a reading is too old to be shown as the current lag.


class Lags(NamedTuple):
    """The lags that a page may show. history: None if they are unknown because of `error`. groups:
    those that the user may describe, None for all. note: what is missing from them, else "".
    """

    history: LagHistory | None
    groups: Container[str] | None
    error: str
    note: str = ""

    @property
    def read_ms(self) -> int | None:
        return self.history.read_ms if self.history is not None else None

    def worst(self) -> dict[str, GroupLag]:
        """Return the group with the largest lag in each topic."""
        return self.history.worst(self.groups) if self.history is not None else {}

    def top(self, count: int, topics: Container[str]) -> tuple[list[GroupLag], int]:
        """Return the groups with the largest lag, and the number of groups whose lag is unknown."""
        return self.history.top(count, self.groups, topics) if self.history is not None else ([], 0)


async def lags(request: Request, cluster: ClusterSession) -> Lags:
    """Return the newest lags of the groups that the user may describe. Raises KafkaError."""
    console = request.app.state.console
    history: LagHistory | None = console.lag_histories.get(cluster.name)
    groups: set[str] | None = None
    if history is None or console.auth != NONE:
        groups = {one.group_id for one in (await group_lag.listed(cluster.admin))[0]}
    if history is None:
        assert groups is not None
        if len(groups) > GROUPS_READ_MAX:
            return Lags(None, groups, f"{len(groups)} groups are too many to read for one page, "
                        "and the console takes no samples of this cluster")
        history = LagHistory(console.now_ms)
        await history.read(cluster.admin)
    elif history.read_ms is None:
        return Lags(None, groups, "the console has not read it yet; reload the page in a moment")
    elif console.now_ms() - history.read_ms > STALE_PERIODS * history.period_ms:
        return Lags(None, groups, "the last reading is too old")
    if history.error:
        return Lags(history if history.has_lags else None, groups, history.error)
    return Lags(history, groups, "", f"{history.left_out} groups are left out."
                if history.left_out else "")


def samples(request: Request, cluster: ClusterSession, group: str, rows: list[dict[str, Any]]
            ) -> list[LagSample]:
    """Return earlier samples of a group that the user may describe. rows: of its partitions; the
    topics that the user may not describe have an error.
    """
    history = request.app.state.console.lag_histories.get(cluster.name)
    if history is None:
        return []
    found: list[LagSample] = history.samples(
        group, {row["topic"] for row in rows if not row["error"]})
    return found


def before(request: Request, cluster: ClusterSession, group: str
           ) -> tuple[int, dict[TopicPartition, dict[str, int]]] | None:
    """Return an earlier reading of a group's offsets. Show only those of partitions that the user
    may describe.
    """
    history = request.app.state.console.lag_histories.get(cluster.name)
    return history.before(group) if history is not None else None

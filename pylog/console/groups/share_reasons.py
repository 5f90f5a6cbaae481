"""Why a share group lags, in sentences with their numbers.

Owns: nothing.
Invariants: a sentence is based on two readings of the user's own; a lag that is unknown is named
  as unknown, never as 0.
Source: KIP-932 (share groups: acquired records, acquisition locks, start offsets), KIP-1226 (lag).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pylog.console.groups.lag import Group
from pylog.protocol.counts import counted

Row = Mapping[str, Any]


def reasons(group: Group, before: Sequence[Row], now: Sequence[Row], seconds: float) -> list[str]:
    """Return the reasons, the most useful first.

    before, now: rows of partitions() in groups/lag.py.
    """
    if not now:
        return ["It has no partitions: no member has subscribed to a topic yet."]
    unstarted = [row for row in now if row["committed_offset"] is None]
    unknown = [row for row in now if row["lag_records"] is None
               and row["committed_offset"] is not None]
    lagging = [row for row in now if row["lag_records"]]
    lag = sum(row["lag_records"] for row in lagging)
    found = []
    if lagging and not group.members:
        found.append(f"The group has no members ({group.state}), and "
                     f"{counted(lag, 'record is', 'records are')} not processed.")
    elif lagging:
        found += _stuck(before, lagging, seconds) + _unassigned(lagging)
        found += _pace(before, now, lag, seconds)
    elif not unknown and len(unstarted) < len(now):
        found.append("It does not lag: all records are processed.")
    if unstarted:
        found.append(
            f"It has not started in {counted(len(unstarted), 'partition')}, such as "
            f"{_name(unstarted[0])}: the first member that fetches starts where the group's "
            "setting share.auto.offset.reset says.")
    if unknown:
        found.append(f"The lag of {counted(len(unknown), 'partition')} is unknown, such as "
                     f"{_name(unknown[0])}.")
    return found


def with_rates(before: Sequence[Row], now: Sequence[Row], seconds: float) -> list[dict[str, Any]]:
    """Return the rows with records per second that were produced and processed."""
    old = {_key(row): row for row in before}
    return [{**row, "produce_rate": _rate(old.get(_key(row)), row, "end_offset", seconds),
             "consume_rate": _processed(old.get(_key(row)), row, seconds)} for row in now]


def _stuck(before: Sequence[Row], lagging: Sequence[Row], seconds: float) -> list[str]:
    """Return a sentence about partitions whose first unprocessed record stays the same."""
    old = {_key(row): row for row in before}
    stuck = [row for row in lagging if row["member_id"] is not None
             and (then := old.get(_key(row))) is not None and then["lag_records"]
             and then["committed_offset"] == row["committed_offset"]
             and then["lag_records"] <= row["lag_records"]]
    if not stuck:
        return []
    worst = max(stuck, key=lambda row: row["lag_records"])
    return [f"In {counted(len(stuck), 'partition')}, no record was processed in {seconds:.1f} s. "
            f"In {_name(worst)}, the record at offset {worst['committed_offset']} is not "
            "processed: members hold it without an acknowledgement, or release it again and again. "
            "Its lock ends after group.share.record.lock.duration.ms; after "
            "group.share.delivery.count.limit deliveries it is skipped."]


def _unassigned(lagging: Sequence[Row]) -> list[str]:
    without = [row for row in lagging if row["member_id"] is None]
    if not without:
        return []
    return [f"{counted(len(without), 'lagging partition has', 'lagging partitions have')} no "
            f"member, such as {_name(without[0])}."]


def _pace(before: Sequence[Row], now: Sequence[Row], lag: int, seconds: float) -> list[str]:
    rows = with_rates(before, now, seconds)
    produced = sum(row["produce_rate"] or 0 for row in rows)
    processed = sum(row["consume_rate"] or 0 for row in rows)
    numbers = (f"{lag} records are not processed; {produced:.0f} a second are produced and "
               f"{processed:.0f} a second are processed")
    if processed <= produced:
        return [f"{numbers}: it does not catch up."]
    return [f"{numbers}: it catches up in about {lag / (processed - produced):.0f} s."]


def _processed(old: Row | None, row: Row, seconds: float) -> float | None:
    """Return the records per second by which the lag fell behind the produced ones."""
    produced = _rate(old, row, "end_offset", seconds)
    if old is None or produced is None or old["lag_records"] is None or row["lag_records"] is None:
        return None
    return max(0.0, produced - (row["lag_records"] - old["lag_records"]) / seconds)


def _rate(old: Row | None, row: Row, name: str, seconds: float) -> float | None:
    if old is None or old[name] is None or row[name] is None or seconds <= 0:
        return None
    return max(0.0, (row[name] - old[name]) / seconds)


def _key(row: Row) -> tuple[str, int]:
    return row["topic"], row["partition"]


def _name(row: Row) -> str:
    return f"{row['topic']}-{row['partition']}"

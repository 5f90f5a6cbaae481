"""Explains why a group lags: turns metrics into sentences.

Owns: nothing.
Invariants: the most useful reason comes first; each reason has the numbers that it is based on; the
  result depends only on the argument.
Source: the steps of an operator's diagnosis, ordered so that a cause comes before its effects.
"""

from pylog.coordinator.groups.state.rebalance_tracker import sentence
from pylog.protocol.counts import counted

REBALANCES_MANY = 3  # within the recorded minutes
HOT_SHARE = 0.5  # of all lag, in one partition or at one member
FAST = 2.0  # relative to the mean rate


def reasons(view: dict) -> list:
    """Return [{reason, text, ...numbers}], at least one, for a view of GroupLags.explain."""
    if not view["partitions"]:
        return [_reason("nothing_committed",
                        "It has committed nothing, so its position is unknown.",
                        members=len(view["members"]))]
    lagging = [part for part in view["partitions"] if part["lag_records"] > 0]
    if not lagging:
        return [_reason("no_lag",
                        "It does not lag: it has committed up to the end of its partitions.")]
    found = []
    for check in (_members, _rebalances, _throttling, _transactions, _slow_member, _hot_partition,
                 _cold, _pace):
        reason = check(view, lagging)
        if reason is not None:
            found.append(reason)
    return found


def _reason(code: str, text: str, **numbers) -> dict:
    return {"reason": code, "text": text, **numbers}


def _members(view, lagging):
    if view["members"]:
        return None
    return _reason("no_members", f"The group has no members ({view['state']}), and "
                   f"{counted(view['lag_records'], 'record is', 'records are')} not committed.",
                   state=view["state"])


def _rebalances(view, lagging):
    count, seconds = view["rebalances"]["count"], view["rebalances"]["seconds"]
    if view["members"] and view["state"] in ("PreparingRebalance", "CompletingRebalance"):
        return _reason("rebalancing",
                       f"It is rebalancing now ({view['state']}): consumption stops until its "
                       f"members have joined.", rebalances=count, seconds=seconds)
    if count < REBALANCES_MANY:
        return None
    last = f" The last time: {sentence(view['history'][0])}." if view.get("history") else ""
    return _reason("rebalancing", f"It rebalanced {counted(count, 'time')} in {seconds:.0f} s; "
                   f"each time its members stop.{last}", rebalances=count, seconds=seconds)


def _throttling(view, lagging):
    throttled = {member["client_id"]: member["throttled_ms"] for member in view["members"]
                 if member["throttled_ms"] > 0}
    if not throttled:
        return None
    worst = max(throttled, key=throttled.__getitem__)
    return _reason("throttled", f"Quotas throttled its clients, {worst} by {throttled[worst]} ms.",
                   clients=throttled)


def _transactions(view, lagging):
    held = [part for part in lagging if part["committed_offset"] >= part["last_stable_offset"]
            and part["last_stable_offset"] < part["high_watermark"]]
    lag = sum(part["lag_records"] for part in held)
    if lag <= HOT_SHARE * view["lag_records"]:
        return None
    names = _names(held)
    return _reason("open_transaction", f"An open transaction holds {names}: a read_committed "
                   f"consumer gets no further than where it began; "
                   f"{counted(lag, 'record waits', 'records wait')} behind it.",
                   partitions=names, lag_records=lag)


def _by_member(lagging) -> dict:
    shares: dict[str, list] = {}
    for part in lagging:
        shares.setdefault(part["member_id"], []).append(part)
    return shares


def _slow_member(view, lagging):
    if len(view["members"]) < 2:
        return None
    shares = _by_member(lagging)
    member, parts = max(shares.items(), key=lambda row: sum(
        part["lag_records"] for part in row[1]))
    lag = sum(part["lag_records"] for part in parts)
    if member is None or lag <= HOT_SHARE * view["lag_records"]:
        return None
    stands = all(part["consume_rate"] == 0 for part in parts)
    # If one of many partitions gets most of the produced records, its member is not to blame.
    if not stands and len(parts) == 1 and _hot_partition(view, lagging) is not None:
        return None
    what = "has committed nothing lately" if stands else "is slower than the others"
    paces = _paces(view)
    own, others = paces.pop(member, None), [pace for pace in paces.values() if pace is not None]
    pace = "" if own is None or stands else f", it commits {own:.0f} records/s"
    if pace and others:
        pace += f", the others {sum(others) / len(others):.0f} each"
    return _reason("slow_member", f"{member} {what}: {lag} of {view['lag_records']} records of "
                   f"lag are in its partitions ({_names(parts)}){pace}.", member_id=member,
                   lag_records=lag, partitions=_names(parts), consume_rate=own)


def _paces(view) -> dict:
    """Return {member: records/s}, None without samples."""
    found: dict[str, float | None] = {}
    for member, parts in _by_member(view["partitions"]).items():
        rates = [part["consume_rate"] for part in parts if part["consume_rate"] is not None]
        if member is not None:
            found[member] = round(sum(rates), 3) if rates else None
    return found


def _hot_partition(view, lagging):
    if len(view["partitions"]) < 2:
        return None
    hot = max(lagging, key=lambda part: part["lag_records"])
    rates = [part["produce_rate"] or 0.0 for part in view["partitions"]]
    mean = sum(rates) / len(rates)
    if hot["lag_records"] <= HOT_SHARE * view["lag_records"] \
            or (hot["produce_rate"] or 0.0) < FAST * mean or mean == 0:
        return None
    return _reason("hot_partition", f"{_names([hot])} gets {hot['produce_rate']:.0f} records/s, "
                   f"the mean is {mean:.0f}; {hot['lag_records']} of {view['lag_records']} "
                   "records of lag are there.", partition=_names([hot]),
                   produce_rate=hot["produce_rate"], mean_rate=round(mean, 3))


def _cold(view, lagging):
    reads = sum(part["cold_reads"] or 0 for part in lagging)
    if not reads:
        return None
    return _reason("cold_reads", "It reads data that is no longer in the page cache: "
                   f"{counted(reads, 'read')} went to the disk in {view['rate_seconds']:.0f} s.",
                   cold_reads=reads)


def _pace(view, lagging):
    """Return how the lag develops, for any reason."""
    consumed = sum(part["consume_rate"] or 0.0 for part in view["partitions"])
    produced = sum(part["produce_rate"] or 0.0 for part in view["partitions"])
    numbers = {"consume_rate": round(consumed, 3), "produce_rate": round(produced, 3)}
    if all(part["consume_rate"] is None for part in lagging):
        return _reason("unknown_pace",
                       "Its rate is not known yet: run this again in a few seconds.")
    if consumed == 0 and view["members"]:
        return _reason("stopped", f"Its members have committed nothing in "
                       f"{view['rate_seconds']:.0f} s, while {produced:.0f} records/s came.",
                       **numbers)
    if consumed > produced:
        left = view["lag_records"] / (consumed - produced)
        return _reason("catching_up", f"It catches up: {consumed:.0f} records/s against "
                       f"{produced:.0f} that come; {left:.0f} s are left.",
                       seconds_left=round(left, 1), **numbers)
    consumers = "it"
    if len(view["members"]) == 1:
        consumers = f"its only member, {view['members'][0]['member_id']},"
    return _reason("falling_behind", f"{produced:.0f} records/s come, {consumers} commits "
                   f"{consumed:.0f}.", **numbers)


def _names(parts) -> str:
    shown = [f"{part['topic']}-{part['partition']}" for part in parts[:3]]
    more = f" and {len(parts) - 3} more" if len(parts) > 3 else ""
    return ", ".join(shown) + more

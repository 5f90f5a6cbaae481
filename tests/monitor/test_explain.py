"""The reason for a group's lag, from its metrics."""

from pylog.monitor.explain import reasons


def part(index=0, lag=0, consume=100.0, produce=100.0, member="m1", **fields):
    return {"topic": "t", "partition": index, "lag_records": lag, "lag_seconds": lag / 100,
            "committed_offset": 1000 - lag, "high_watermark": 1000, "last_stable_offset": 1000,
            "consume_rate": consume, "produce_rate": produce, "cold_reads": 0,
            "member_id": member, **fields}


def view(*parts, members=("m1",), state="Stable", rebalances=0, throttled=0):
    return {"state": state, "partitions": list(parts), "rate_seconds": 60.0,
            "lag_records": sum(one["lag_records"] for one in parts),
            "rebalances": {"count": rebalances, "seconds": 300.0},
            "members": [{"member_id": name, "client_id": f"client-{name}",
                         "throttled_ms": throttled} for name in members]}


def first(*parts, **fields):
    return reasons(view(*parts, **fields))[0]


def test_group_without_lag_is_reported():
    assert first(part())["reason"] == "no_lag"


def test_group_without_commits_is_reported():
    assert first()["reason"] == "nothing_committed"


def test_group_without_members_has_no_consumers():
    found = first(part(lag=10, consume=0.0), members=(), state="Empty")
    assert found["reason"] == "no_members" and "10 records" in found["text"]


def test_group_that_rebalances_now_or_often_is_reported():
    assert first(part(lag=10), state="PreparingRebalance")["reason"] == "rebalancing"
    found = first(part(lag=10), rebalances=7)
    assert found["reason"] == "rebalancing" and found["rebalances"] == 7


def test_throttled_clients_are_named():
    found = first(part(lag=10), throttled=250)
    assert found["reason"] == "throttled" and found["clients"] == {"client-m1": 250}


def test_an_open_transaction_that_holds_the_lag_is_found():
    found = first(part(lag=500, last_stable_offset=500))
    assert found["reason"] == "open_transaction" and "t-0" in found["text"]


def test_member_whose_partitions_hold_the_lag_is_reported_as_slow():
    parts = [part(0, lag=900, consume=5.0), part(1, lag=800, consume=5.0),
             part(2, lag=10, member="m2"), part(3, lag=10, member="m2")]
    found = first(*parts, members=("m1", "m2"))
    assert found["reason"] == "slow_member" and found["member_id"] == "m1"


def test_slow_member_is_reported_with_its_rate_and_the_others_rate():
    parts = [part(0, lag=900, consume=5.0), part(1, lag=800, consume=2.0),
             part(2, lag=10, consume=100.0, member="m2"), part(3, consume=60.0, member="m3")]
    found = first(*parts, members=("m1", "m2", "m3"))
    assert found["text"].endswith("it commits 7 records/s, the others 80 each.")
    assert found["consume_rate"] == 7.0
    unknown = [part(0, lag=900, consume=None), part(1, lag=1, consume=None, member="m2")]
    found = first(*unknown, members=("m1", "m2"))
    assert found["text"].endswith("are in its partitions (t-0).")


def test_partition_with_most_of_the_records_is_hot():
    parts = [part(0, lag=5000, produce=1000.0, consume=400.0),
             *[part(index, produce=10.0, member="m2") for index in range(1, 6)]]
    found = first(*parts, members=("m1", "m2"))
    assert found["reason"] == "hot_partition" and found["partition"] == "t-0"


def test_cold_reads_are_reported():
    codes = [one["reason"] for one in reasons(view(part(lag=5000, cold_reads=40)))]
    assert codes[0] == "cold_reads"


def test_the_pace_ends_every_explanation():
    def last(*parts, **fields):
        return reasons(view(*parts, **fields))[-1]

    found = last(part(lag=100, consume=50.0))
    assert found["reason"] == "falling_behind"
    assert found["text"] == "100 records/s come, its only member, m1, commits 50."
    found = last(part(lag=100, consume=150.0))
    assert found["reason"] == "catching_up" and found["seconds_left"] == 2.0
    assert last(part(lag=100, consume=0.0))["reason"] == "stopped"
    assert last(part(lag=100, consume=None, produce=None))["reason"] == "unknown_pace"

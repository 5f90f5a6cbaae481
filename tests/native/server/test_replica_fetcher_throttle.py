"""A throttled fetcher."""

import time

from pylog._native.server import replica_fetcher
from pylog._native.server.rate_limit import NONE, Throttle
from tests.native.log.test_log import TOPIC_ID
from tests.native.server.fake_leader import row
from tests.native.server.test_replica_fetcher import (
    directory, filled, follower_of, leader, make_fetchers, until,
)

__all__ = ["directory", "leader", "make_fetchers"]      # Fixtures.


def test_lagging_throttled_partition_is_skipped_while_the_rate_is_exceeded(
        make_fetchers, leader, directory):
    throttle = Throttle(11, 1000)
    throttle.set(0)
    fetchers, source = make_fetchers(throttle=throttle), filled(directory)
    copies = [follower_of(directory, index) for index in range(2)]
    copies[0].set_throttled(False, True)
    kept = [fetchers.follow(copy, TOPIC_ID, index, 1, 0, index)
            for index, copy in enumerate(copies)]
    leader.attach(fetchers)
    leader.take()
    data = source.read(0, 1)
    leader.answer((TOPIC_ID, row(data, high_watermark=6)),
                  (TOPIC_ID, row(data, index=1, high_watermark=6)))
    asked = leader.take()
    assert [part.partition for _, part in leader.partitions()] == [1]
    assert [gone.partitions for gone in asked.forgotten_topics_data] == [[0]]
    assert throttle.rate(time.monotonic_ns() // 1_000_000) == len(data)
    throttle.set(NONE)
    until(lambda: kept[0].figures()[2] == replica_fetcher.FETCHING)
    leader.answer()
    leader.take()
    assert [(part.partition, part.fetch_offset) for _, part in leader.partitions()] == [(0, 2)]
    # It has all of the leader's records and is not throttled, whatever rate it counted.
    throttle.set(0)
    leader.answer((TOPIC_ID, row(source.read(2), high_watermark=6)))
    leader.take()
    assert [(part.partition, part.fetch_offset) for _, part in leader.partitions()] == [(0, 6)]

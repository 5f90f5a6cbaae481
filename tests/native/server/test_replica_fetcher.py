"""Fetcher threads with a leader whose responses are defined by the test."""

import select
import struct
import time

import pytest

from pylog._native.log import log
from pylog._native.server import replica_fetcher
from tests.fixtures.waits import until
from tests.native.log.test_log import NOW, TOPIC_ID, make, opened
from tests.native.server.fake_leader import FakeLeader, diverging, row

EMPTY_ANSWERS_MAX = 20


@pytest.fixture
def directory(tmp_path):
    return log.LogDir(tmp_path, 2)


# States after an error: it retries after 50 ms.
REFUSED_STATES = (replica_fetcher.BACKING_OFF, replica_fetcher.FETCHING)


@pytest.fixture
def make_fetchers():
    made = []

    def make_them(**options):
        settings = {"threads": 1, "replica_id": 2, "wait_ms_max": 500, "bytes_min": 1,
                    "bytes_max": 1 << 20, "partition_bytes_max": 1 << 16, "backoff_ms_max": 200,
                    "answer_ms_max": 20_000, **options}
        made.append(replica_fetcher.Fetchers(**settings))
        made[-1].start()
        return made[-1]

    yield make_them
    for one in made:
        one.stop()


@pytest.fixture
def fetchers(make_fetchers):
    return make_fetchers()


@pytest.fixture
def leader():
    one = FakeLeader()
    yield one
    one.close()


def follower_of(directory, partition=0, topic="f", **checkpoint):
    one = opened(directory, topic, partition, leader=False, **checkpoint)
    one.become_follower(0)
    return one


def filled(directory, count=3, **options):
    one = opened(directory, "leader")
    for _ in range(count):
        one.append(make(2, **options), NOW)
    return one


def next_notices(fetchers, timeout_s=20):
    assert select.select([fetchers.fileno()], [], [], timeout_s)[0], "no notice"
    return fetchers.take()


def test_follower_fetches_with_its_epochs_and_copies_the_leaders_records(
        fetchers, leader, directory):
    source, copy = filled(directory), follower_of(directory)
    fetchers.set_broker_epoch(33)
    followed = fetchers.follow(copy, TOPIC_ID, 0, 1, 4, 99)
    leader.attach(fetchers)
    asked = leader.take()
    assert leader.client_id == "broker-2-fetcher-0"
    assert (asked.replica_state.replica_id, asked.replica_state.replica_epoch) == (2, 33)
    assert (asked.max_wait_ms, asked.min_bytes, asked.max_bytes) == (500, 1, 1 << 20)
    assert (asked.session_id, asked.session_epoch, asked.rack_id) == (0, 0, "")
    [(topic_id, part)] = leader.partitions()
    assert topic_id == TOPIC_ID
    assert (part.partition, part.current_leader_epoch, part.fetch_offset) == (0, 4, 0)
    assert (part.last_fetched_epoch, part.log_start_offset) == (-1, 0)
    assert part.partition_max_bytes == 1 << 16
    leader.answer((TOPIC_ID, row(source.read(0), high_watermark=4)))
    asked = leader.take()
    assert (asked.session_id, asked.session_epoch) == (7, 1)
    [(_, part)] = leader.partitions()
    assert (part.fetch_offset, part.last_fetched_epoch) == (6, 0)
    assert copy.read(0) == source.read(0)
    assert copy.high_watermark == 4
    assert followed.figures()[0] == 0 and followed.figures()[2] == replica_fetcher.FETCHING
    leader.answer((TOPIC_ID, row(b"", high_watermark=9)))
    asked = leader.take()
    assert (asked.session_epoch, leader.partitions()) == (2, [])
    assert (copy.high_watermark, followed.figures()[0]) == (6, 3)
    assert fetchers.take() == []


def test_session_lists_changed_and_forgotten_partitions(fetchers, leader, directory):
    source = filled(directory)
    copies = [follower_of(directory, index) for index in range(4)]
    followed = [fetchers.follow(copy, TOPIC_ID, index, 1, 0, index)
                for index, copy in enumerate(copies)]
    leader.attach(fetchers)
    asked = leader.take()
    assert [part.partition for _, part in leader.partitions()] == [0, 1, 2, 3]
    assert len(asked.topics) == 1
    fetchers.unfollow(followed[3])
    leader.answer((TOPIC_ID, row(source.read(0), index=1)))
    asked = leader.take()
    assert [part.partition for _, part in leader.partitions()] == [1]
    if not asked.forgotten_topics_data:
        leader.answer()
        asked = leader.take()
    [gone] = asked.forgotten_topics_data
    assert (gone.topic_id, gone.partitions) == (TOPIC_ID, [3])
    assert [copy.end_offset for copy in copies] == [0, 6, 0, 0]


def test_readded_partition_is_not_forgotten(fetchers, leader, directory):
    copy = follower_of(directory)
    stays = fetchers.follow(follower_of(directory, 1), TOPIC_ID, 1, 1, 0, 1)
    first = fetchers.follow(copy, TOPIC_ID, 0, 1, 0, 2)
    leader.attach(fetchers)
    leader.take()
    fetchers.unfollow(first)
    again = fetchers.follow(copy, TOPIC_ID, 0, 1, 5, 3)
    until(lambda: first.figures()[2] == replica_fetcher.LEFT and again.figures()[2]
          == replica_fetcher.FETCHING)
    leader.answer((TOPIC_ID, row(filled(directory).read(0))))
    asked = leader.take()
    assert asked.forgotten_topics_data == []
    [(_, part)] = leader.partitions()
    assert (part.partition, part.current_leader_epoch, part.fetch_offset) == (0, 5, 0)
    assert copy.end_offset == 0  # The response for the previous epoch is dropped.
    assert stays.figures()[2] == replica_fetcher.FETCHING


@pytest.mark.parametrize("code", [70, 71, 106])
def test_lost_session_is_reopened(fetchers, leader, directory, code):
    kept = fetchers.follow(follower_of(directory), TOPIC_ID, 0, 1, 0, 1)
    leader.attach(fetchers)
    leader.take()
    leader.answer((TOPIC_ID, row()), session_id=9)
    assert (leader.take().session_id, leader.asked.session_epoch) == (9, 1)
    leader.answer(error_code=code, session_id=0)
    asked = leader.take()
    assert (asked.session_id, asked.session_epoch) == (0 if code == 70 else 9, 0)
    assert len(leader.partitions()) == 1
    assert kept.figures()[2] == replica_fetcher.FETCHING


def test_leader_without_sessions_gets_full_fetches(fetchers, leader, directory):
    kept = fetchers.follow(follower_of(directory), TOPIC_ID, 0, 1, 0, 1)
    leader.attach(fetchers)
    for _ in range(3):
        asked = leader.take()
        assert (asked.session_id, asked.session_epoch, len(leader.partitions())) == (0, 0, 1)
        leader.answer((TOPIC_ID, row()), session_id=0)
    assert kept.figures()[2] == replica_fetcher.FETCHING


def test_truncated_batch_is_fetched_again_with_a_larger_limit(
        fetchers, leader, directory):
    source, copy = filled(directory), follower_of(directory)
    data = source.read(0)
    kept = fetchers.follow(copy, TOPIC_ID, 0, 1, 0, 1)
    leader.attach(fetchers)
    leader.take()
    leader.answer((TOPIC_ID, row(data[:len(data) * 2 // 3 + 30])))
    leader.take()
    [(_, part)] = leader.partitions()
    assert (part.fetch_offset, part.partition_max_bytes) == (4, 1 << 17)
    leader.answer((TOPIC_ID, row(data[len(data) * 2 // 3:])))
    leader.take()
    assert copy.read(0) == data
    assert kept.figures()[2] == replica_fetcher.FETCHING


@pytest.mark.parametrize("step", [1, 7, 100])
def test_response_can_arrive_in_chunks(fetchers, leader, directory, step):
    source = filled(directory, size=50)
    copies = [follower_of(directory, index) for index in range(2)]
    kept = [fetchers.follow(copy, TOPIC_ID, index, 1, 0, index)
            for index, copy in enumerate(copies)]
    leader.attach(fetchers)
    leader.take()
    frame = leader.frame((TOPIC_ID, row(source.read(0), high_watermark=6)),
                         (TOPIC_ID, row(source.read(0, 1), index=1, high_watermark=1)))
    for at in range(0, len(frame), step):
        leader.near.sendall(frame[at:at + step])
        if at % 5 == 0:
            time.sleep(0.0005)
    leader.take()
    assert [(copy.end_offset, copy.high_watermark) for copy in copies] == [(6, 6), (2, 1)]
    assert len(kept) == 2


def test_batch_longer_than_the_buffer_is_copied(fetchers, leader, directory):
    source, copy = opened(directory, "leader"), follower_of(directory)
    for size in (700_000, 10, 400_000):
        source.append(make(1, size=size), NOW)
    kept = fetchers.follow(copy, TOPIC_ID, 0, 1, 0, 1)
    leader.attach(fetchers)
    leader.take()
    leader.answer((TOPIC_ID, row(source.read(0))))
    leader.take()
    assert copy.read(0) == source.read(0)
    assert kept.figures()[2] == replica_fetcher.FETCHING


def test_a_batch_longer_than_any_request_is_copied(fetchers, leader, directory):
    # A leader that stores batches uncompressed may inflate one far beyond socket.request.max.bytes.
    copy = follower_of(directory)
    stored = opened(directory, "leader")
    stored.append(make(1), NOW)
    long = make(1, size=24 << 20)
    long = long[:12] + stored.read(0)[12:16] + long[16:]
    followed = fetchers.follow(copy, TOPIC_ID, 0, 1, 0, 1)
    leader.attach(fetchers)
    leader.take()
    leader.answer((TOPIC_ID, row(long, high_watermark=1)))
    leader.take()
    assert (copy.end_offset, copy.high_watermark) == (1, 1)
    assert copy.read(0, 1 << 28) == long
    assert followed.figures()[2] == replica_fetcher.FETCHING


@pytest.mark.parametrize("code", [3, 6, 9, 56, 74, 75, 100])
def test_failed_partition_pauses_and_is_reported_once(fetchers, leader, directory, code):
    copies = [follower_of(directory, index) for index in range(2)]
    refused, other = [fetchers.follow(copy, TOPIC_ID, index, 1, 0, 10 + index)
                      for index, copy in enumerate(copies)]
    leader.attach(fetchers)
    leader.take()
    leader.answer((TOPIC_ID, row(error_code=code)))
    asked = leader.take()
    assert [gone.partitions for gone in asked.forgotten_topics_data] == [[0]]
    [notice] = next_notices(fetchers)
    assert (notice.kind, notice.code, notice.token) == (replica_fetcher.REFUSED, code, 10)
    for _ in range(2):
        while not leader.partitions():
            time.sleep(0.01)
            leader.answer()
            leader.take()
        leader.answer((TOPIC_ID, row(error_code=code)))
        leader.take()
    assert fetchers.take() == []
    assert refused.figures()[2] in REFUSED_STATES
    assert other.figures()[2] == replica_fetcher.FETCHING


def test_diverging_log_waits_for_the_truncation_and_continues(fetchers, leader, directory):
    copy = follower_of(directory)
    copy.append_as_follower(filled(directory).read(0), NOW)
    followed = fetchers.follow(copy, TOPIC_ID, 0, 1, 3, 5)
    leader.attach(fetchers)
    leader.take()
    [(_, part)] = leader.partitions()
    assert (part.fetch_offset, part.last_fetched_epoch) == (6, 0)
    leader.answer((TOPIC_ID, diverging(0, 4)))
    [notice] = next_notices(fetchers)
    assert (notice.kind, notice.token) == (replica_fetcher.DIVERGED, 5)
    assert (notice.epoch, notice.end_offset) == (0, 4)
    assert followed.figures()[2] == replica_fetcher.WAITING
    copy.truncate(4)
    fetchers.resume(followed)
    leader.take()
    [(_, part)] = leader.partitions()
    assert (part.fetch_offset, part.last_fetched_epoch) == (4, 0)


def test_epoch_without_records_is_never_reported(fetchers, leader, directory):
    copy = opened(directory, "f")
    copy.append(make(2), NOW)
    copy.become_leader(3)
    copy.become_follower(4)
    kept = fetchers.follow(copy, TOPIC_ID, 0, 1, 4, 1)
    leader.attach(fetchers)
    leader.take()
    [(_, part)] = leader.partitions()
    assert (part.fetch_offset, part.last_fetched_epoch) == (2, 0)
    assert kept.figures()[2] == replica_fetcher.FETCHING


def test_truncation_without_effect_pauses_the_partition(fetchers, leader, directory):
    copy = follower_of(directory)
    copy.append_as_follower(filled(directory).read(0), NOW)
    followed = fetchers.follow(copy, TOPIC_ID, 0, 1, 3, 5)
    leader.attach(fetchers)
    for _ in range(2):
        leader.take()
        leader.answer((TOPIC_ID, diverging(0, 6)))
        [notice] = next_notices(fetchers)
        assert notice.kind == replica_fetcher.DIVERGED
        copy.truncate(6)
        fetchers.resume(followed)
        until(lambda: followed.figures()[2] == replica_fetcher.BACKING_OFF)


def test_an_offset_out_of_range_waits_for_the_control_plane(fetchers, leader, directory):
    copy = follower_of(directory)
    followed = fetchers.follow(copy, TOPIC_ID, 0, 1, 3, 5)
    leader.attach(fetchers)
    leader.take()
    leader.answer((TOPIC_ID, row(error_code=1)))
    [notice] = next_notices(fetchers)
    assert (notice.kind, notice.token) == (replica_fetcher.OUT_OF_RANGE, 5)
    copy.restart_at(100)
    fetchers.resume(followed)
    leader.take()
    [(_, part)] = leader.partitions()
    assert (part.fetch_offset, part.last_fetched_epoch, part.log_start_offset) == (100, -1, 100)


def test_follower_adopts_the_leaders_log_start(fetchers, leader, directory):
    source, copy = filled(directory), follower_of(directory)
    kept = fetchers.follow(copy, TOPIC_ID, 0, 1, 0, 1)
    leader.attach(fetchers)
    leader.take()
    leader.answer((TOPIC_ID, row(source.read(0), high_watermark=6, log_start_offset=4)))
    leader.take()
    [(_, part)] = leader.partitions()
    assert (copy.start_offset, part.log_start_offset, part.fetch_offset) == (4, 4, 6)
    assert kept.figures()[2] == replica_fetcher.FETCHING


def test_fetch_offset_follows_the_flush_with_flush_before_fetch(
        make_fetchers, leader, directory):
    fetchers = make_fetchers(flush_first=True)
    source, copy = filled(directory), follower_of(directory)
    kept = fetchers.follow(copy, TOPIC_ID, 0, 1, 0, 1)
    leader.attach(fetchers)
    leader.take()
    for at in (0, 2, 4):
        leader.answer((TOPIC_ID, row(source.read(at, 1))))
        leader.take()
        [(_, part)] = leader.partitions()
        assert copy.flushed_offset == part.fetch_offset == at + 2
    assert kept.figures()[2] == replica_fetcher.FETCHING


def test_disk_failure_before_a_position_report_stops_the_partition(
        make_fetchers, leader, directory):
    fetchers = make_fetchers(flush_first=True)
    source, copy = filled(directory), follower_of(directory)
    followed = fetchers.follow(copy, TOPIC_ID, 0, 1, 0, 8)
    leader.attach(fetchers)
    leader.take()
    directory.set_disk(log.DISK_NO_SYNC)
    leader.answer((TOPIC_ID, row(source.read(0))))
    [notice] = next_notices(fetchers)
    assert (notice.kind, notice.token) == (replica_fetcher.FAILED, 8)
    assert followed.figures()[2] == replica_fetcher.WAITING


def test_lost_connection_is_reported_and_a_new_one_continues(fetchers, leader, directory):
    source, copy = filled(directory), follower_of(directory)
    kept = fetchers.follow(copy, TOPIC_ID, 0, 1, 0, 1)
    leader.attach(fetchers, serial=70)
    leader.take()
    leader.answer((TOPIC_ID, row(source.read(0, 1))))
    leader.take()
    leader.near.close()
    [notice] = next_notices(fetchers)
    assert (notice.kind, notice.token, notice.leader_id) == (replica_fetcher.LOST, 70, 1)
    other = FakeLeader()
    other.attach(fetchers, serial=71)
    asked = other.take()
    [(_, part)] = other.partitions()
    assert (asked.session_id, asked.session_epoch, part.fetch_offset) == (0, 0, 2)
    assert kept.figures()[2] == replica_fetcher.FETCHING
    other.close()


def test_partitions_are_distributed_over_threads(make_fetchers, directory):
    fetchers = make_fetchers(threads=3)
    leaders = [FakeLeader() for _ in range(3)]
    kept = [fetchers.follow(follower_of(directory, index), TOPIC_ID, index, 1, 0, index)
            for index in range(30)]
    seen = {}
    for thread, one in enumerate(leaders):
        one.attach(fetchers, thread=thread)
        assert one.take() and one.client_id == f"broker-2-fetcher-{thread}"
        seen |= {part.partition: thread for _, part in one.partitions()}
    assert seen == {index: fetchers.thread_of(TOPIC_ID, index) for index in range(30)}
    assert set(seen.values()) == {0, 1, 2} and len(kept) == 30
    for one in leaders:
        one.close()


# ---- leaders that send wrong data ----


def test_wrong_checksum_pauses_the_partition_and_keeps_valid_batches(fetchers, leader, directory):
    data = bytearray(filled(directory).read(0))
    size = len(data) // 3
    data[2 * size - 1] ^= 1
    copy = follower_of(directory)
    followed = fetchers.follow(copy, TOPIC_ID, 0, 1, 0, 1)
    leader.attach(fetchers)
    leader.take()
    leader.answer((TOPIC_ID, row(bytes(data))))
    [notice] = next_notices(fetchers)
    assert notice.kind == replica_fetcher.REFUSED and notice.code < 0
    assert copy.end_offset == 2
    assert followed.figures()[2] in REFUSED_STATES


def lengthened(data, length):
    return data[:8] + struct.pack(">i", length) + data[12:]


def lies(data):
    """Return invalid data that a leader may send instead of records."""
    yield "rubbish", b"\xff" * 200
    yield "a negative length", lengthened(data, -5)
    yield "a length below a header", lengthened(data, 20)
    yield "no complete batch", data[:50]
    yield "a batch that never ends", lengthened(data, 2**31 - 1)
    yield "a later epoch", data[:12] + struct.pack(">i", 9) + data[16:]
    yield "an old format", data[:16] + b"\1" + data[17:]


@pytest.mark.parametrize("lie", range(7))
def test_invalid_records_are_rejected_and_other_partitions_are_copied(
        fetchers, leader, directory, lie):
    source, copies = filled(directory), [follower_of(directory, index) for index in range(2)]
    kept = [fetchers.follow(copy, TOPIC_ID, index, 1, 0, index)
            for index, copy in enumerate(copies)]
    leader.attach(fetchers)
    leader.take()
    leader.answer((TOPIC_ID, row(list(lies(source.read(0, 1)))[lie][1])),
                  (TOPIC_ID, row(source.read(0), index=1)))
    [notice] = next_notices(fetchers)
    assert (notice.kind, notice.token) == (replica_fetcher.REFUSED, 0)
    leader.take()
    assert [copy.end_offset for copy in copies] == [0, 6]
    assert len(kept) == 2


def test_decreasing_offsets_are_rejected(fetchers, leader, directory):
    source, copy = filled(directory), follower_of(directory)
    kept = fetchers.follow(copy, TOPIC_ID, 0, 1, 0, 1)
    leader.attach(fetchers)
    leader.take()
    leader.answer((TOPIC_ID, row(source.read(0))))
    leader.take()
    leader.answer((TOPIC_ID, row(source.read(2))))
    [notice] = next_notices(fetchers)
    assert notice.kind == replica_fetcher.REFUSED and notice.code < 0
    assert copy.read(0) == source.read(0)
    assert kept.figures()[2] in REFUSED_STATES




@pytest.mark.parametrize("frame", [
    struct.pack(">i", -1), struct.pack(">i", 3), struct.pack(">i", 2**31 - 1) + b"\xff" * 5000,
    struct.pack(">ii", 4, 1), b"\0\0\0\x20" + b"\0" * 32, b"GET / HTTP/1.1\r\n\r\n" * 300,
])
def test_invalid_response_closes_the_connection(fetchers, leader, directory, frame):
    kept = fetchers.follow(follower_of(directory), TOPIC_ID, 0, 1, 0, 1)
    leader.attach(fetchers, serial=5)
    leader.take()
    leader.near.sendall(frame)
    leader.near.shutdown(1)
    [notice] = next_notices(fetchers)
    assert (notice.kind, notice.token) == (replica_fetcher.LOST, 5)
    assert kept.figures()[2] == replica_fetcher.FETCHING


def test_unrequested_bytes_close_the_connection(fetchers, leader, directory):
    kept = fetchers.follow(follower_of(directory), TOPIC_ID, 0, 1, 0, 1)
    leader.attach(fetchers)
    leader.take()
    frame = leader.frame((TOPIC_ID, row()))
    leader.near.sendall(frame + frame)
    [notice] = next_notices(fetchers)
    assert notice.kind == replica_fetcher.LOST
    assert kept.figures()[2] == replica_fetcher.FETCHING


def test_wrong_correlation_id_closes_the_connection(fetchers, leader, directory):
    kept = fetchers.follow(follower_of(directory), TOPIC_ID, 0, 1, 0, 1)
    leader.attach(fetchers)
    leader.take()
    leader.answer((TOPIC_ID, row()), correlation_id=leader.correlation_id + 1)
    [notice] = next_notices(fetchers)
    assert notice.kind == replica_fetcher.LOST
    assert kept.figures()[2] == replica_fetcher.FETCHING


def test_missing_response_closes_the_connection(make_fetchers, leader, directory):
    fetchers = make_fetchers(answer_ms_max=50)
    kept = fetchers.follow(follower_of(directory), TOPIC_ID, 0, 1, 0, 1)
    leader.attach(fetchers)
    leader.take()
    leader.near.send(leader.frame((TOPIC_ID, row()))[:9])
    [notice] = next_notices(fetchers)
    assert notice.kind == replica_fetcher.LOST
    assert kept.figures()[2] == replica_fetcher.FETCHING


@pytest.mark.parametrize("partition", [
    {"index": 5}, {"index": -1}, {"index": 0, "topic": bytes(16)}, {"index": 2**31 - 1},
])
def test_unfollowed_partitions_are_skipped(fetchers, leader, directory, partition):
    source, copy = filled(directory), follower_of(directory)
    kept = fetchers.follow(copy, TOPIC_ID, 0, 1, 0, 1)
    leader.attach(fetchers)
    leader.take()
    topic_id = partition.get("topic", TOPIC_ID)
    leader.answer((topic_id, row(source.read(0), index=partition["index"])),
                  (TOPIC_ID, row(source.read(0))))
    leader.take()
    assert copy.end_offset == 6
    assert kept.figures()[2] == replica_fetcher.FETCHING


def test_immediate_empty_responses_make_the_thread_pause(fetchers, leader, directory):
    kept = fetchers.follow(follower_of(directory), TOPIC_ID, 0, 1, 0, 1)
    leader.attach(fetchers)
    asked, begun_s = 0, time.monotonic()
    while time.monotonic() < begun_s + 1.0:
        leader.take()
        leader.answer()
        asked += 1
    assert asked <= EMPTY_ANSWERS_MAX, asked
    assert kept.figures()[2] == replica_fetcher.FETCHING


def test_permanently_diverging_log_pauses_the_partition(fetchers, leader, directory):
    copy = follower_of(directory)
    data = filled(directory, 1).read(0)
    followed = fetchers.follow(copy, TOPIC_ID, 0, 1, 0, 1)
    leader.attach(fetchers)
    truncated, begun_s = 0, time.monotonic()
    while time.monotonic() < begun_s + 1.5:
        leader.take()
        if not leader.partitions():
            time.sleep(0.002)
            leader.answer()
        elif leader.partitions()[0][1].fetch_offset == 0:
            leader.answer((TOPIC_ID, row(data)))
        else:
            leader.answer((TOPIC_ID, diverging(0, 0)))
            next_notices(fetchers)
            copy.truncate(0)
            truncated += 1
            fetchers.resume(followed)
    assert truncated <= 40, truncated


def test_leading_log_accepts_no_fetched_records(fetchers, leader, directory):
    source, copy = filled(directory), follower_of(directory)
    kept = fetchers.follow(copy, TOPIC_ID, 0, 1, 0, 1)
    leader.attach(fetchers)
    leader.take()
    copy.become_leader(5)
    leader.answer((TOPIC_ID, row(source.read(0))))
    [notice] = next_notices(fetchers)
    assert notice.kind == replica_fetcher.REFUSED
    assert copy.end_offset == 0
    assert kept.figures()[2] in REFUSED_STATES


def test_stop_during_all_operations_leaks_nothing(make_fetchers, directory):
    fetchers = make_fetchers(threads=2)
    kept = [fetchers.follow(follower_of(directory, index), TOPIC_ID, index, index % 3, 0, index)
            for index in range(12)]
    leaders = [FakeLeader() for _ in range(3)]
    for one, leader_id in zip(leaders, range(3), strict=True):
        one.attach(fetchers, leader_id=leader_id, thread=leader_id % 2)
    fetchers.unfollow(kept[0])
    fetchers.stop()
    fetchers.detach(0, 1)
    fetchers.unfollow(kept[1])
    del kept, fetchers
    for one in leaders:
        one.close()

"""A follower beside a bare receive-checksum-append loop: `python -m bench.follower`.

Invariants: the follower is brokerd's fetchers and log without the rest of brokerd, over loopback
TCP; its leader is a separate process that sends prepared responses; both sides write chunks of the
same size in the same folder, in turn.
"""

import argparse
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from bench import loads
from bench.machine import commit_line, machine_line, touch_free_memory
from bench.process import die_with_parent
from bench.programs import cache_dir
from pylog._native.log import log
from pylog._native.records import batch
from pylog._native.server import replica_fetcher
from pylog.protocol import codec

VERSION = 17
TOPIC_ID = bytes(15) + b"\x07"
RECORD_BYTES = 1024
NOW_MS = 1_700_000_000_000
TOUCHED_BYTES = 8 << 30
ANSWER_BYTES = 1 << 20
CORRELATION_AT = 4
ANSWER = codec.message_class("FetchResponse")


def _batch(size: int) -> bytes:
    count = max(1, size // (RECORD_BYTES + 8))
    return batch.build([(b"", bytes(RECORD_BYTES), NOW_MS, [])] * count)


def _records(one: bytes) -> int:
    count: int = struct.unpack_from(">i", one, 57)[0]
    return count


def _frame(records: bytes) -> bytearray:
    part = ANSWER.PartitionData(
        partition_index=0, error_code=0, high_watermark=0, last_stable_offset=0,
        log_start_offset=0, aborted_transactions=None, records=records)
    return bytearray(codec.response_frame(1, VERSION, 0, ANSWER(
        error_code=0, session_id=7,
        responses=[ANSWER.FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[part])])))


def lead(port: int, batch_bytes: int, answers: int) -> None:
    """Respond to each request with prepared batches, overwriting only their offsets."""
    one = _batch(batch_bytes)
    pieces = max(1, ANSWER_BYTES // len(one))
    records = _records(one)
    frame = _frame(one * pieces)
    first = frame.index(one[8:61]) - 8
    with socket.create_connection(("127.0.0.1", port)) as stream:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        offset = 0
        for _ in range(answers):
            asked = _received(stream, struct.unpack(">i", _received(stream, 4))[0])
            frame[CORRELATION_AT:CORRELATION_AT + 4] = asked[4:8]
            for piece in range(pieces):
                struct.pack_into(">q", frame, first + piece * len(one), offset)
                offset += records
            stream.sendall(frame)
        # The follower appended the last batch before it sends its next request.
        _received(stream, 4)


def _received(stream: socket.socket, count: int) -> bytes:
    data = stream.recv(count, socket.MSG_WAITALL)
    if len(data) < count:
        raise EOFError
    return data


def follow(folder: Path, batch_bytes: int, total: int) -> float:
    """Return CPU seconds of this process per 1e9 appended bytes."""
    answers, sent = max(1, total // ANSWER_BYTES), _batch(batch_bytes)
    directory = log.LogDir(folder, 2)
    one = log.Log.open(directory, "t", 0, TOPIC_ID, None, now_ms=NOW_MS)
    one.become_follower(4)
    fetchers = replica_fetcher.Fetchers(
        threads=1, replica_id=2, wait_ms_max=500, bytes_min=1, bytes_max=10 << 20,
        partition_bytes_max=1 << 20, backoff_ms_max=1000, answer_ms_max=30_000,
        flush_first=False)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        leader = subprocess.Popen(
            [sys.executable, "-m", "bench.follower", "--lead", str(listener.getsockname()[1]),
             str(batch_bytes), str(answers)], preexec_fn=die_with_parent)
        stream, _ = listener.accept()
    stream.setblocking(False)
    fetchers.start()
    before = time.process_time()
    fetchers.attach(0, 1, stream.detach(), VERSION, 1)
    fetchers.follow(one, TOPIC_ID, 0, 1, 4, 1)
    if leader.wait():
        raise loads.LoadFailed("the leader of bench.follower failed")
    used = time.process_time() - before
    fetchers.stop()
    batches = answers * max(1, ANSWER_BYTES // len(sent))
    assert one.end_offset == batches * _records(sent), one.end_offset
    one.close()
    return used / (batches * len(sent) / loads.GB)


def _in_process(batch_bytes: int, total: int) -> float:
    """Run follow() in a separate process, so that nothing is warm."""
    with tempfile.TemporaryDirectory(prefix="follower-", dir=cache_dir()) as folder:
        done = subprocess.run(
            [sys.executable, "-m", "bench.follower", "--follow", folder, str(batch_bytes),
             str(total)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise loads.LoadFailed(done.stderr[-1000:])
    return json.loads(done.stdout)


def main(argv: list[str]) -> int:
    """Print one line per batch size: medians over the rounds, and their ratio."""
    parser = argparse.ArgumentParser(prog="python -m bench.follower")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--mb", type=int, default=500)
    parser.add_argument("--batches", default="1000000,16384")
    parser.add_argument("--lead", nargs=3, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--follow", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.lead:
        lead(*options.lead)
        return 0
    if options.follow:
        folder, batch_bytes, total = options.follow
        print(follow(Path(folder), int(batch_bytes), int(total)))
        sys.stdout.flush()
        os._exit(0)
    print(f"commit {commit_line()}\n{machine_line()}", flush=True)
    cache_dir().mkdir(parents=True, exist_ok=True)
    touch_free_memory(TOUCHED_BYTES)
    for size in map(int, options.batches.split(",")):
        ours, bare = [], []
        length = len(_batch(size))
        pieces = max(1, ANSWER_BYTES // length)
        for _ in range(options.rounds):
            ours.append(_in_process(size, options.mb * 1_000_000))
            bare.append(loads.floor("recv", length * pieces, length, options.mb * 1e6,
                                    cache_dir()))
        print(f"batches of {length:,} bytes: follower {median(ours):.3f} CPU s/GB "
              f"({min(ours):.3f}), bare loop {median(bare):.3f} ({min(bare):.3f}), "
              f"{median(ours) / median(bare):.2f}x ({min(ours) / min(bare):.2f}x of the least)",
              flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

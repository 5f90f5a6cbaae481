"""The leader's end of a fetcher's connection, with responses defined by the test."""

import socket
import struct

from pylog.protocol import codec

VERSION = 17
ANSWER = codec.message_class("FetchResponse")


class FakeLeader:
    """One connection; `far` is the fetcher's end."""

    def __init__(self, timeout_s=20):
        self.near, self.far = socket.socketpair()
        self.near.settimeout(timeout_s)
        self.far.setblocking(False)
        self.asked = None
        self.correlation_id = 0

    def attach(self, fetchers, leader_id=1, serial=1, thread=0):
        fetchers.attach(thread, leader_id, self.far.detach(), VERSION, serial)

    def receive(self, count):
        data = b""
        while len(data) < count:
            piece = self.near.recv(count - len(data))
            if not piece:
                raise EOFError
            data += piece
        return data

    def take(self):
        """Receive the next request."""
        frame = self.receive(struct.unpack(">i", self.receive(4))[0])
        key, version, self.correlation_id, self.client_id, end = codec.decode_request_header(frame)
        assert (key, version) == (1, VERSION)
        self.asked = codec.decode_request(key, version, frame, end)
        return self.asked

    def partitions(self):
        """Return [(topic id, partition row)] of the current request."""
        return [(topic.topic_id, row) for topic in self.asked.topics for row in topic.partitions]

    def frame(self, *rows, session_id=7, error_code=0, correlation_id=None):
        """Return a response frame. rows: (topic id, fields of a partition)."""
        topics = [ANSWER.FetchableTopicResponse(
            topic_id=topic_id, partitions=[ANSWER.PartitionData(**fields)])
            for topic_id, fields in rows]
        body = ANSWER(
            error_code=error_code, session_id=session_id, responses=topics)
        if correlation_id is None:
            correlation_id = self.correlation_id
        return codec.response_frame(1, VERSION, correlation_id, body)

    def answer(self, *rows, **options):
        self.near.sendall(self.frame(*rows, **options))

    def close(self):
        self.near.close()
        self.far.close()


def row(records=None, *, index=0, error_code=0, high_watermark=0, log_start_offset=0, **tags):
    return {"partition_index": index, "error_code": error_code, "high_watermark": high_watermark,
            "last_stable_offset": high_watermark, "log_start_offset": log_start_offset,
            "records": records, "aborted_transactions": None, **tags}


def diverging(epoch, end_offset, **fields):
    return row(diverging_epoch=ANSWER.EpochEndOffset(epoch=epoch, end_offset=end_offset), **fields)

"""The codec compared with kio and kafka-python: five messages, decoded and encoded.

Owns: nothing.
Invariants: all three read the same bytes and write them back.
Source: kio 0.6 decodes in Rust and encodes in Python; kafka-python 3 does both in Python.
"""

import io

import kafka.protocol.consumer
import kafka.protocol.metadata
import pytest
from kio.index import load_payload_module
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from pylog.protocol import codec, messages, tables

KINDS = {"request": EntityType.request, "response": EntityType.response}


def metadata_response():
    response = messages.MetadataResponse
    brokers = [
        response.MetadataResponseBroker(node_id=i, host=f"broker-{i}", port=9092) for i in range(3)
    ]
    topics = [
        response.MetadataResponseTopic(
            name=f"topic-{i:03}", topic_id=bytes(15) + bytes([i + 1]),
            partitions=[
                response.MetadataResponsePartition(
                    partition_index=p, leader_id=p % 3, leader_epoch=5, replica_nodes=[0, 1, 2],
                    isr_nodes=[0, 1, 2],
                ) for p in range(10)
            ],
        ) for i in range(100)
    ]
    return response(brokers=brokers, cluster_id="c" * 22, controller_id=1, topics=topics)


def metadata_request():
    request = messages.MetadataRequest
    return request(topics=[
        request.MetadataRequestTopic(name=f"topic-{i:04}") for i in range(100)
    ])


def join_group_request():
    request = messages.JoinGroupRequest
    protocol = request.JoinGroupRequestProtocol(name="range", metadata=b"m" * 200)
    return request(
        group_id="some-group", session_timeout_ms=45000, rebalance_timeout_ms=300000,
        member_id="member-" + "x" * 36, protocol_type="consumer", protocols=[protocol],
    )


def offset_commit_request():
    request = messages.OffsetCommitRequest
    partitions = [
        request.OffsetCommitRequestPartition(
            partition_index=p, committed_offset=1000 + p, committed_metadata="",
        ) for p in range(10)
    ]
    topic = request.OffsetCommitRequestTopic(name="some-topic", partitions=partitions)
    return request(
        group_id="some-group", generation_id_or_member_epoch=3, member_id="member-" + "x" * 36,
        topics=[topic],
    )


def fetch_request():
    request = messages.FetchRequest
    topics = [
        request.FetchTopic(topic=f"topic-{i}", partitions=[
            request.FetchPartition(
                partition=p, fetch_offset=12345, partition_max_bytes=1 << 20,
                current_leader_epoch=3,
            ) for p in range(10)
        ]) for i in range(10)
    ]
    return request(max_wait_ms=500, min_bytes=1, max_bytes=50 << 20, topics=topics)


CASES = {
    "Metadata v12 response, 1000 partitions": (metadata_response, 12),
    "Metadata v12 request, 100 topics": (metadata_request, 12),
    "JoinGroup v9 request": (join_group_request, 9),
    "OffsetCommit v8 request, 10 partitions": (offset_commit_request, 8),
    "Fetch v12 request, 100 partitions": (fetch_request, 12),
}
CLASSES = {
    name: getattr(module, name)
    for module, name in (
        (kafka.protocol.metadata, "MetadataResponse"), (kafka.protocol.metadata, "MetadataRequest"),
        (kafka.protocol.consumer, "JoinGroupRequest"),
        (kafka.protocol.consumer, "OffsetCommitRequest"), (kafka.protocol.consumer, "FetchRequest"),
    )
}


def ours(name, version):
    program = codec.program(name, version)
    return program.decode, program.encode


def kio(name, version):
    table = tables.message(name)
    cls = getattr(load_payload_module(table.id, version, KINDS[table.kind]), name)
    read, write = entity_reader(cls), entity_writer(cls)

    def encode(message):
        with io.BytesIO() as buffer:
            write(buffer, message)
            return buffer.getvalue()

    return lambda data: read(data, 0)[0], encode


def kafka_python(name, version):
    cls = CLASSES[name]

    def encode(message):
        message._header = None  # encode() uses it, but decode() does not set it.
        return message.encode(version=version)

    return lambda data: cls.decode(data, version=version), encode


@pytest.mark.parametrize("codec_of", [ours, kio, kafka_python], ids=lambda make: make.__name__)
@pytest.mark.parametrize("direction", ["decode", "encode"])
@pytest.mark.parametrize("case", list(CASES))
def test_messages_per_second(benchmark, case, direction, codec_of):
    make, version = CASES[case]
    message = make()
    name = type(message).__name__
    data = codec.program(name, version).encode(message)
    decode, encode = codec_of(name, version)
    read = decode(data)
    assert encode(read) == data
    benchmark.group = f"{case} ({len(data)} bytes): {direction}"
    benchmark.extra_info["bytes"] = len(data)
    if direction == "decode":
        benchmark(decode, data)
    else:
        benchmark(encode, read)

"""Encoding and decoding messages, and rejecting protocol violations."""

import gc
import random
import struct
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pylog.protocol import codec, messages, tables
from pylog.protocol.errors import EncodeError, ErrorCode, ProtocolError, UnsupportedVersion
from tests.protocol.values import every_version, random_message

METADATA = 3
REQUESTS = [
    (name, version) for name, version in every_version() if tables.message(name).kind == "request"
]


def metadata_response():
    response = messages.MetadataResponse
    partition = response.MetadataResponsePartition(leader_id=1, replica_nodes=[1, 2])
    topic = response.MetadataResponseTopic(name="t", topic_id=b"i" * 16, partitions=[partition])
    broker = response.MetadataResponseBroker(node_id=1, host="h", port=9092)
    return response(brokers=[broker], topics=[topic], cluster_id="c", controller_id=1)


# ---------------------------------------------------------------- round trips


@settings(deadline=None, database=None, max_examples=300)
@given(pair=st.sampled_from(every_version()), rng=st.randoms(use_true_random=False))
def test_encoded_messages_decode_to_the_same_values(pair, rng):
    name, version = pair
    message = random_message(rng, name, version)
    program = codec.program(name, version)
    data = program.encode(message)
    read, position = program.decode_from(b"##" + data + b"tail", 2)
    assert read == message
    assert position == 2 + len(data)
    assert program.encode(read) == data


def test_bytes_after_a_body_are_ignored():
    data = codec.encode_request(METADATA, 12, messages.MetadataRequest())
    assert codec.decode_request(METADATA, 12, data + b"rest") == messages.MetadataRequest()


def test_a_field_that_a_version_lacks_reads_as_its_default():
    data = codec.encode_request(METADATA, 0, messages.MetadataRequest())
    assert codec.decode_request(METADATA, 0, data).allow_auto_topic_creation is True


def test_unknown_tagged_fields_are_skipped():
    data = codec.encode_request(METADATA, 12, messages.MetadataRequest())
    assert data.endswith(b"\0")
    tagged = data[:-1] + b"\2" + b"\x05\x03abc" + b"\xff\xff\xff\xff\x0f\x00"
    assert codec.decode_request(METADATA, 12, tagged) == messages.MetadataRequest()


def test_a_memoryview_and_a_bytearray_are_read_and_written():
    request = messages.SaslAuthenticateRequest
    data = codec.encode_request(36, 2, request(auth_bytes=memoryview(b"abc")))
    assert data == codec.encode_request(36, 2, request(auth_bytes=bytearray(b"abc")))
    assert codec.decode_request(36, 2, memoryview(data)).auth_bytes == b"abc"
    assert codec.decode_request(36, 2, bytearray(data)).auth_bytes == b"abc"


def test_error_codes_are_written_as_their_numbers():
    response = messages.MetadataResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED)
    data = codec.encode_response(METADATA, 13, response)
    assert codec.decode_response(METADATA, 13, data).error_code == 129


def test_text_that_is_no_utf8_reads_as_replacement_characters():
    request = messages.MetadataRequest
    topic = request.MetadataRequestTopic(name="ab")
    data = codec.encode_request(METADATA, 1, request(topics=[topic]))
    read = codec.decode_request(METADATA, 1, data.replace(b"ab", b"\xff\xfe"))
    assert read.topics[0].name == "\ufffd\ufffd"


# ---------------------------------------------------------------- headers and frames


def test_both_request_header_versions_are_parsed():
    for version in (8, 9):
        for client_id in ("me", "", None):
            header = codec.encode_request_header(METADATA, version, -7, client_id)
            assert codec.decode_request_header(header + b"body") == (
                METADATA, version, -7, client_id, len(header),
            )


def test_tags_in_a_flexible_request_header_are_skipped():
    header = codec.encode_request_header(METADATA, 12, 1, "me")[:-1] + b"\1\x09\2xy"
    assert codec.decode_request_header(header)[4] == len(header)


def test_a_header_of_an_unknown_api_key_is_rejected():
    for key in (9999, -1, 4, 7):
        with pytest.raises(ProtocolError, match=f"no api key {key}"):
            codec.decode_request_header(struct.pack(">hhih", key, 0, 1, -1))


@pytest.mark.parametrize("tail", [
    b"", b"\0", b"\x7f\xffab", b"\xff\xfe", b"\0\1a\xff\xff\xff\xff\xff\xff", b"\0\1a\xe9\x07",
    b"\0\1a\1\0\x05abc", b"\0\1a",
])
def test_a_broken_request_header_is_rejected(tail):
    with pytest.raises(ProtocolError):
        codec.decode_request_header(struct.pack(">hhi", METADATA, 12, 1) + tail)


def test_a_header_of_an_unknown_version_is_read_all_the_same():
    header = struct.pack(">hhih", 18, 99, 5, -1) + b"\0"
    assert codec.decode_request_header(header) == (18, 99, 5, None, 11)


def test_a_response_frame_is_size_header_and_body():
    message = metadata_response()
    for version in (8, 12):
        frame = codec.response_frame(METADATA, version, 7, message)
        rest = codec.encode_response_header(METADATA, version, 7) + codec.encode_response(
            METADATA, version, message
        )
        assert frame == struct.pack(">i", len(rest)) + rest
        assert codec.response_frame(METADATA, version, 7, message, size_prefix=False) == rest
        assert codec.decode_response_header(METADATA, version, rest)[0] == 7


def test_a_request_frame_is_size_header_and_body():
    message = messages.MetadataRequest(topics=None)
    frame = codec.request_frame(METADATA, 12, 3, "c", message)
    rest = codec.encode_request_header(METADATA, 12, 3, "c") + codec.encode_request(
        METADATA, 12, message
    )
    assert frame == struct.pack(">i", len(rest)) + rest


def test_chunked_encoding_produces_the_same_frame_without_copies():
    produce = messages.ProduceRequest
    long, short = bytearray(range(256)) * 20, b"short"
    rows = [produce.PartitionProduceData(index=index, records=memoryview(records))
            for index, records in enumerate([long, short, long] * 40)]
    message = produce(acks=1, timeout_ms=5, topic_data=[
        produce.TopicProduceData(name="t", partition_data=rows)])
    for version in (8, 12):
        pieces = codec.request_slices(0, version, 3, "c", message)
        assert b"".join(pieces) == codec.request_frame(0, version, 3, "c", message)
        assert pieces[1] is rows[0].records and pieces[3] is rows[2].records
        assert 64 <= len(pieces) <= 130  # No more pieces than writev accepts.


def test_api_versions_always_answers_with_the_first_header():
    frame = codec.response_frame(18, 4, 1, messages.ApiVersionsResponse())
    assert codec.decode_response_header(18, 4, frame[4:]) == (1, 4)


# ---------------------------------------------------------------- hostile bytes


@settings(deadline=None, database=None, max_examples=400)
@given(pair=st.sampled_from(every_version()), data=st.binary(max_size=300))
def test_random_bytes_give_a_message_or_a_protocol_error(pair, data):
    try:
        codec.program(*pair).decode(data)
    except ProtocolError:
        pass


@settings(deadline=None, database=None, max_examples=200)
@given(pair=st.sampled_from(every_version()), rng=st.randoms(use_true_random=False))
def test_damaged_messages_give_a_message_or_a_protocol_error(pair, rng):
    data = bytearray(codec.program(*pair).encode(random_message(rng, *pair)))
    for _ in range(rng.randint(1, 4)):
        if data:
            place = rng.randrange(len(data))
            data[place] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
    try:
        codec.program(*pair).decode(bytes(data))
    except ProtocolError:
        pass


def test_every_truncation_is_rejected():
    for name, version in REQUESTS:
        program = codec.program(name, version)
        data = program.encode(random_message(random.Random(f"{name}{version}"), name, version))
        for end in range(len(data)):
            with pytest.raises(ProtocolError):
                program.decode(data[:end])


@pytest.mark.parametrize("count", [b"\x7f\xff\xff\xff", b"\0\xff\xff\xff", b"\x80\0\0\0"])
def test_a_declared_count_beyond_the_bytes_allocates_nothing(count):
    tracemalloc.start()
    with pytest.raises(ProtocolError):
        codec.decode_request(METADATA, 1, count + b"\0\1a" * 10)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000


@pytest.mark.parametrize("count", [
    b"\xff\xff\xff\xff\x0f", b"\x80\x80\x80\x80\x10", b"\xff" * 10 + b"\1", b"\xff\xff\xff\x07",
])
def test_a_compact_count_beyond_the_bytes_is_rejected(count):
    with pytest.raises(ProtocolError):
        codec.decode_request(METADATA, 12, count + b"\0" * 40)


def test_more_than_a_thousand_tagged_fields_are_rejected():
    body = codec.encode_request(METADATA, 12, messages.MetadataRequest())[:-1]
    tags = b"".join(b"\x7f\0" for _ in range(1000))
    codec.decode_request(METADATA, 12, body + b"\xe8\x07" + tags)
    with pytest.raises(ProtocolError, match="1000"):
        codec.decode_request(METADATA, 12, body + b"\xe9\x07" + tags + b"\x7f\0")


def test_a_tagged_field_reads_no_byte_beyond_its_size():
    # ApiVersionsResponse tag 1 is an int64: here its declared size is only four bytes.
    body = codec.encode_response(18, 4, messages.ApiVersionsResponse())[:-1]
    with pytest.raises(ProtocolError, match="finalized_features_epoch"):
        codec.decode_response(18, 4, body + b"\1\1\4" + bytes(12))


def test_decoding_cost_is_bounded():
    # Tiny structs: two bytes each on the wire, over a hundred in memory.
    count = 1_000_000
    body = struct.pack(">i", count) + b"\0\0" * count + b"\0"
    with pytest.raises(ProtocolError, match="too much memory"):
        codec.decode_request(METADATA, 4, body, budget=10_000_000)


def test_disallowed_null_is_rejected_with_the_field_path():
    with pytest.raises(ProtocolError, match=r"topics\[0\].name: null"):
        codec.decode_request(METADATA, 1, b"\0\0\0\1\xff\xff")


def test_an_unknown_key_or_version_is_rejected():
    with pytest.raises(UnsupportedVersion):
        codec.decode_request(METADATA, 99, b"")
    with pytest.raises(UnsupportedVersion):
        codec.encode_response(METADATA, -1, messages.MetadataResponse())
    with pytest.raises(ProtocolError):
        codec.decode_request(4711, 0, b"")


def test_an_offset_outside_the_bytes_is_rejected():
    for offset in (-1, 5):
        with pytest.raises(ProtocolError):
            codec.decode_request(METADATA, 12, b"1234", offset)


# ---------------------------------------------------------------- values that cannot be encoded


@pytest.mark.parametrize(("change", "words"), [
    ({"leader_id": "1"}, r"leader_id: int32 expected, not str"),
    ({"leader_id": 2**31}, r"leader_id: out of range for int32"),
    ({"leader_id": None}, r"leader_id: int32 expected, not NoneType"),
    ({"leader_id": 2**70}, r"leader_id: out of range for int32"),
    ({"error_code": 1.0}, r"error_code: int16 expected, not float"),
    ({"replica_nodes": None}, r"replica_nodes: null is not allowed"),
    ({"replica_nodes": {1}}, r"replica_nodes: list expected, not set"),
    ({"replica_nodes": [1, "x"]}, r"replica_nodes\[1\]: int32 expected, not str"),
])
def test_a_wrong_value_is_named_by_its_path(change, words):
    message = metadata_response()
    for name, value in change.items():
        setattr(message.topics[0].partitions[0], name, value)
    with pytest.raises(EncodeError, match=r"topics\[0\]\.partitions\[0\]\." + words):
        codec.encode_response(METADATA, 12, message)


def test_wrong_structs_and_strings_are_rejected():
    message = metadata_response()
    message.brokers = [message.topics[0]]
    with pytest.raises(EncodeError, match=r"brokers\[0\]: MetadataResponse.MetadataResponseBroker"):
        codec.encode_response(METADATA, 12, message)
    for value, words in (
        (5, "str expected"), ("\ud800", "UTF-8"), ("x" * 40000, "too long"), (None, "null"),
    ):
        message = metadata_response()
        message.brokers[0].host = value
        with pytest.raises(EncodeError, match=rf"brokers\[0\].host: .*{words}"):
            codec.encode_response(METADATA, 12, message)
    message = metadata_response()
    message.topics[0].topic_id = b"short"
    with pytest.raises(EncodeError, match="16 bytes of a uuid expected"):
        codec.encode_response(METADATA, 12, message)
    with pytest.raises(EncodeError, match="MetadataResponse expected, not NoneType|null"):
        codec.encode_response(METADATA, 12, None)


def test_a_deleted_field_is_rejected():
    message = metadata_response()
    del message.brokers[0].host
    with pytest.raises(EncodeError, match=r"brokers\[0\].host: not set"):
        codec.encode_response(METADATA, 12, message)


def test_a_value_that_the_version_cannot_carry_is_rejected():
    request = messages.MetadataRequest(topics=None, include_topic_authorized_operations=True)
    with pytest.raises(EncodeError, match="include_topic_authorized_operations: this version"):
        codec.encode_request(METADATA, 5, request)


def test_ignorable_field_is_dropped_in_versions_without_it():
    response = messages.MetadataResponse(throttle_time_ms=5)
    data = codec.encode_response(METADATA, 0, response)
    assert codec.decode_response(METADATA, 0, data).throttle_time_ms == 0


def test_a_message_stays_usable_after_it_was_rejected():
    message = metadata_response()
    message.brokers[0].port = "x"
    for _ in range(50):
        with pytest.raises(EncodeError):
            codec.encode_response(METADATA, 12, message)
    message.brokers[0].port = 1
    assert codec.decode_response(
        METADATA, 12, codec.encode_response(METADATA, 12, message)
    ) == message


def test_refused_bytes_leak_nothing():
    program = codec.program("MetadataResponse", 12)
    data = program.encode(metadata_response())

    def refuse_all():
        for end in range(len(data)):
            try:
                program.decode(data[:end])
            except ProtocolError:
                continue
            raise AssertionError(end)

    refuse_all()
    tracemalloc.start()
    refuse_all()
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(20):
        refuse_all()
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert after - before < 20_000


def test_encoded_struct_is_reused_only_in_its_version():
    new = messages.MetadataResponse
    topic = new.MetadataResponseTopic(name="t", partitions=[
        new.MetadataResponsePartition(partition_index=3, replica_nodes=[1])])
    part = codec.encoded_part(3, 9, "topics", topic)
    plain = codec.encode_response(3, 9, new(cluster_id="c", topics=[topic, topic]))
    assert codec.encode_response(3, 9, new(cluster_id="c", topics=[part, topic])) == plain
    with pytest.raises(EncodeError, match="topics"):
        codec.encode_response(3, 8, new(topics=[part]))
    with pytest.raises(EncodeError):
        codec.encode_response(3, 9, new(brokers=[part]))
    with pytest.raises(KeyError):
        codec.encoded_part(3, 9, "cluster_id", topic)


# ---------------------------------------------------------------- threads


def of_two_threads(work, place, name, monkeypatch):
    """Return the results of work() on two threads, neither of which leaves place.name before both
    have entered it.
    """
    both = threading.Barrier(2)
    original = getattr(place, name)

    def meeting(*arguments):
        with suppress(threading.BrokenBarrierError):
            both.wait(5)
        return original(*arguments)

    monkeypatch.setattr(place, name, meeting)
    with ThreadPoolExecutor(2) as threads:
        return [done.result() for done in [threads.submit(work), threads.submit(work)]]


def test_concurrent_first_use_creates_one_message_class(monkeypatch):
    monkeypatch.delitem(codec._classes, "ListGroupsRequest", raising=False)
    one, other = of_two_threads(lambda: codec.message_class("ListGroupsRequest"), tables, "message",
                                monkeypatch)
    assert one is other is codec.message_class("ListGroupsRequest")


def test_concurrent_first_use_creates_one_program(monkeypatch):
    monkeypatch.delitem(codec._programs, ("ListGroupsRequest", 3), raising=False)
    one, other = of_two_threads(lambda: codec.program("ListGroupsRequest", 3), codec, "_compile",
                                monkeypatch)
    assert one is other is codec.program("ListGroupsRequest", 3)

"""Requests decoded in pieces: the combined content, duplicates, rejected requests."""

import random

import pytest

from pylog._native.protocol.request_slices import KEEP, ONCE, TWICE, Pieces
from pylog.protocol import api, codec, elements, messages, tables
from pylog.protocol.errors import ProtocolError
from tests.protocol.values import random_message

PLENTY = 1 << 30
ASKED = [(key, version) for key in elements.ELEMENTS for version in range(
    api.SERVED[key][0], api.SERVED[key][1] + 1)
    if elements.path_of(elements.of(key).request_paths, "request", key, version)]


def _pieces(key, version, message, repeats, elements_max=PLENTY, inner_max=PLENTY):
    path = elements.path_of(elements.of(key).request_paths, "request", key, version)
    program = codec.program(tables.name_of("request", key), version)
    return path, Pieces(program, program.encode(message), path, repeats, elements_max, PLENTY,
                        inner_max)


def _leaves(message, path):
    """Return [(key, element with its enclosing fields)] of a request, in order."""
    (name, keys), *below = path
    found = []
    for row in getattr(message, name) or ():
        own = tuple([getattr(row, key) for key in keys]) if keys else (row,)
        inner = getattr(row, below[0][0]) if below else None
        if not inner:
            found.append((own, repr(row)))
        else:
            around = tuple([getattr(row, key) for key in keys])
            found += [((*own, *key), (around, text)) for key, text in _leaves(row, below)]
    return found


def _expected(leaves, repeats):
    if repeats == KEEP:
        return leaves
    times = {}
    for key, _ in leaves:
        times[key] = times.get(key, 0) + 1
    out = []
    for key, text in leaves:
        count = times.pop(key, 0)
        out += [(key, text)] * (2 if count > 1 and repeats == TWICE else min(count, 1))
    return out


@pytest.mark.parametrize("repeats", [KEEP, ONCE, TWICE])
def test_chunks_of_a_request_contain_each_element_once(repeats):
    for key, version in ASKED:
        if elements.of(key).repeats == KEEP != repeats:
            continue  # Elements without a key have no duplicates.
        rng = random.Random(f"{key} {version} {repeats}")
        for size in (1, 2, 3, 1000):
            message = random_message(rng, tables.name_of("request", key), version)
            path, pieces = _pieces(key, version, message, repeats)
            if not pieces.survey():
                assert getattr(message, path[0][0]) is None
                continue
            found = []
            while (piece := pieces.next(size)) is not None:
                part = _leaves(piece, path)
                assert len(part) <= size * (2 if repeats == TWICE else 1), (key, version)
                # TWICE contains the whole duplicate, and only the first field of its key.
                found += part
                for field in tables.message(tables.name_of("request", key)).fields:
                    if field.name != path[0][0]:
                        assert getattr(piece, field.name) == getattr(message, field.name)
            whole = _expected(_leaves(message, path), repeats)
            if repeats == TWICE:
                assert [k for k, _ in found] == [k for k, _ in whole], (key, version)
            else:
                assert found == whole, (key, version, size)


def test_enclosing_fields_are_part_of_each_chunk():
    request = messages.ListOffsetsRequest(replica_id=-1, isolation_level=1, timeout_ms=77, topics=[
        messages.ListOffsetsRequest.ListOffsetsTopic(name=name, partitions=[
            messages.ListOffsetsRequest.ListOffsetsPartition(partition_index=i, timestamp=-1)
            for i in range(5)]) for name in ("a", "b")])
    _, pieces = _pieces(2, 10, request, KEEP)
    assert pieces.survey() and pieces.leaves == 10
    told = []
    while (piece := pieces.next(3)) is not None:
        assert (piece.isolation_level, piece.timeout_ms) == (1, 77)
        told.append([(topic.name, [row.partition_index for row in topic.partitions])
                     for topic in piece.topics])
    assert told == [[("a", [0, 1, 2])], [("a", [3, 4]), ("b", [0])], [("b", [1, 2, 3])],
                    [("b", [4])]]


def test_duplicate_is_recognised_with_any_length_encoding():
    plain = codec.program("DescribeGroupsRequest", 5).encode(
        messages.DescribeGroupsRequest(groups=["x", "x"]))
    assert plain[:5] == b"\x03\x02x\x02x"
    padded = b"\x03\x02x\x82\x00x" + plain[5:]
    pieces = Pieces(codec.program("DescribeGroupsRequest", 5), padded, (("groups", ()),), ONCE,
                    10, PLENTY, PLENTY)
    assert pieces.survey() and pieces.repeated == 1
    assert pieces.next(10).groups == ["x"] and pieces.next(10) is None


def test_too_many_elements_are_rejected_before_decoding():
    request = messages.DescribeGroupsRequest(groups=["x"] * 11)
    _, pieces = _pieces(15, 5, request, ONCE, elements_max=10)
    with pytest.raises(ProtocolError, match="more elements than one request may have"):
        pieces.survey()


def test_oversized_elements_are_rejected():
    request = messages.DescribeConfigsRequest(resources=[
        messages.DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=2, resource_name="t", configuration_keys=["k"] * 11)])
    _, pieces = _pieces(32, 4, request, ONCE, inner_max=10)
    assert pieces.survey()
    with pytest.raises(ProtocolError, match="more elements"):
        pieces.next(1)


def test_truncated_request_is_rejected_by_the_survey():
    for key, version in ASKED:
        rng = random.Random(f"cut {key} {version}")
        message = random_message(rng, tables.name_of("request", key), version)
        path, _ = _pieces(key, version, message, ONCE)
        program = codec.program(tables.name_of("request", key), version)
        body = program.encode(message)
        for end in range(len(body)):
            pieces = Pieces(program, body[:end], path, ONCE, PLENTY, PLENTY, PLENTY)
            with pytest.raises(ProtocolError):
                pieces.survey()


def test_duplicates_are_found_among_many():
    names = [f"group-{number}" for number in range(20_000)]
    request = messages.DescribeGroupsRequest(groups=names + names[::-1])
    _, pieces = _pieces(15, 5, request, ONCE)
    assert pieces.survey() and (pieces.leaves, pieces.repeated) == (40_000, 20_000)
    found = []
    while (piece := pieces.next(256)) is not None:
        found += piece.groups
    assert found == names


def test_too_long_key_is_rejected_before_decoding():
    request = messages.DeleteTopicsRequest(timeout_ms=1, topics=[
        messages.DeleteTopicsRequest.DeleteTopicState(name=name)
        for name in ("first", "x" * 32_767)])
    program = codec.program("DeleteTopicsRequest", 6)
    body = program.encode(request)
    longest = b"\x80\x80\x02" + b"x" * 32_767
    assert body.count(longest) == 1
    path = elements.path_of(elements.of(20).request_paths, "request", 20, 6)
    assert Pieces(program, body, path, ONCE, 10, PLENTY, PLENTY).survey()
    longer = body.replace(longest, b"\x81\x80\x02" + b"x" * 32_768)
    with pytest.raises(ProtocolError, match="an impossible length"):
        Pieces(program, longer, path, ONCE, 10, PLENTY, PLENTY).survey()


def test_only_duplicates_are_no_chunk():
    request = messages.MetadataRequest(topics=[
        messages.MetadataRequest.MetadataRequestTopic(name=name) for name in ["a"] * 600 + ["b"]])
    _, pieces = _pieces(3, 0, request, ONCE)
    assert pieces.survey()
    told = []
    while (piece := pieces.next(100)) is not None:
        told.append([topic.name for topic in piece.topics])
    assert [name for names in told for name in names] == ["a", "b"] and all(told)


def test_empty_array_is_one_chunk():
    _, pieces = _pieces(3, 0, messages.MetadataRequest(topics=[]), ONCE)
    assert pieces.survey()
    assert pieces.next(100).topics == [] and pieces.next(100) is None

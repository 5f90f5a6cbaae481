"""Records of the metadata log and of the coordinators."""

import pytest

from pylog.protocol import messages, records
from pylog.protocol.errors import ProtocolError, UnsupportedVersion


def test_a_metadata_record_carries_its_frame_number_and_version():
    record = messages.TopicRecord(name="t", topic_id=b"\1" * 16)
    data = records.encode_record(0, record)
    assert data == b"\1\2\0" + b"\2t" + b"\1" * 16 + b"\0"
    assert records.decode_record(data) == (0, record)


def test_a_metadata_record_keeps_its_version():
    record = messages.PartitionRecord(
        partition_id=1, topic_id=b"\1" * 16, replicas=[1], isr=[1], leader=1,
        directories=[b"d" * 16],
    )
    version, read = records.decode_record(records.encode_record(2, record))
    assert (version, read) == (2, record)


@pytest.mark.parametrize("data", [
    b"", b"\1", b"\1\2", b"\2\2\0", b"\1\x7f\0", b"\1\2\x63", b"\xff" * 6, b"\1\2\0\2t",
])
def test_a_broken_metadata_record_is_rejected(data):
    with pytest.raises(ProtocolError):
        records.decode_record(data)


def test_a_coordinators_key_carries_its_number_and_a_value_its_version():
    key = messages.OffsetCommitKey(group="g", topic="t", partition=3)
    data = records.encode_key(key)
    assert data == b"\0\1" + b"\0\1g" + b"\0\1t" + b"\0\0\0\3"
    assert records.decode_key("records_group", data) == key
    value = messages.OffsetCommitValue(offset=7, metadata="m", commit_timestamp=1)
    assert records.decode_value(key, records.encode_value(3, value)) == (3, value)
    assert records.encode_value(3, value)[:2] == b"\0\3"


def test_each_coordinator_numbers_its_own_records():
    key = messages.TransactionLogKey(transactional_id="x")
    assert records.decode_key("records_transaction", records.encode_key(key)) == key
    first = messages.LegacyOffsetCommitKey(group="g")
    assert records.decode_key("records_group", records.encode_key(first)) == first


def test_value_is_decoded_by_its_keys_type_in_any_order():
    offset = messages.OffsetCommitKey(group="g", topic="t", partition=3)
    group = messages.GroupMetadataKey(group="g")
    rows = [(offset, messages.OffsetCommitValue(offset=7, metadata="m", commit_timestamp=1)),
            (group, messages.GroupMetadataValue(protocol_type="consumer", generation=4))]
    for _ in range(2):
        for key, value in rows:
            assert records.decode_value(key, memoryview(records.encode_value(3, value))) == (
                3, value)
            assert records.decode_key("records_group", memoryview(records.encode_key(key))) == key
        with pytest.raises(UnsupportedVersion):
            records.decode_value(offset, b"\0\x63")
        with pytest.raises(ProtocolError):
            records.decode_value(offset, b"\0\3\0")


def test_record_key_of_an_unknown_type_is_reported():
    with pytest.raises(UnsupportedVersion, match="no key numbered 99"):
        records.decode_key("records_group", b"\0\x63")
    with pytest.raises(ProtocolError):
        records.decode_key("records_group", b"\0")

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pylog.metadata.image.image import Image, MetadataError, apply, is_internal, is_known
from pylog.protocol import messages, records

TOPIC_ID = bytes(15) + b"\x09"


def topic_records(name="t", topic_id=TOPIC_ID, partitions=2):
    return [messages.TopicRecord(name=name, topic_id=topic_id)] + [
        messages.PartitionRecord(partition_id=index, topic_id=topic_id, replicas=[1], isr=[1],
                                 leader=1, leader_epoch=0, partition_epoch=0)
        for index in range(partitions)]


def test_topic_is_one_object_by_name_and_by_id():
    image = apply(Image(), topic_records(), 2, 1)
    assert image.topics["t"] is image.topics_by_id[TOPIC_ID]
    assert [state.leader for state in image.topics["t"].partitions] == [1, 1]
    assert (image.offset, image.epoch) == (2, 1)


def test_an_older_image_does_not_see_later_records():
    before = apply(Image(), topic_records(), 2, 1)
    after = apply(before, topic_records("u", bytes(15) + b"\x0a"), 5, 1)
    assert "u" not in before.topics and "u" in after.topics
    assert after.topics["t"] is before.topics["t"]


def test_equal_partition_states_are_shared():
    image = apply(Image(), topic_records(partitions=1000), 1000, 1)
    image = apply(image, topic_records("u", bytes(15) + b"\x0a"), 1003, 1)
    states = {id(state) for topic in image.topics.values() for state in topic.partitions}
    assert len(states) == 1


def test_leader_change_raises_both_epochs_and_an_isr_change_only_one():
    image = apply(Image(), topic_records(), 2, 1)
    image = apply(image, [
        messages.PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID, leader=1),
        messages.PartitionChangeRecord(partition_id=1, topic_id=TOPIC_ID, isr=[])], 4, 1)
    first, second = image.topics["t"].partitions
    assert (first.leader_epoch, first.partition_epoch) == (1, 1)
    assert (second.leader_epoch, second.partition_epoch, second.isr) == (0, 1, ())


def test_topic_removal_includes_partitions_and_settings():
    image = apply(Image(), [*topic_records(), messages.ConfigRecord(
        resource_type=2, resource_name="t", name="retention.ms", value="1")], 3, 1)
    assert image.topic_config("t") == {"retention.ms": "1"}
    image = apply(image, [messages.RemoveTopicRecord(topic_id=TOPIC_ID)], 4, 1)
    assert not image.topics and not image.topics_by_id and not image.configs


def test_topic_can_be_removed_and_recreated_in_one_batch():
    image = apply(Image(), topic_records(), 2, 1)
    again = bytes(15) + b"\x0b"
    image = apply(image, [messages.RemoveTopicRecord(topic_id=TOPIC_ID),
                          *topic_records(topic_id=again, partitions=1)], 5, 1)
    assert image.topics["t"].id == again and len(image.topics["t"].partitions) == 1


def test_setting_without_a_value_is_reset():
    record = messages.ConfigRecord(resource_type=4, resource_name="1", name="x", value="1")
    image = apply(Image(), [record], 0, 1)
    record = messages.ConfigRecord(resource_type=4, resource_name="1", name="x", value=None)
    assert apply(image, [record], 1, 1).configs == {}


def test_records_that_contradict_the_image_are_rejected():
    image = apply(Image(), topic_records(), 2, 1)
    for record in (
            messages.TopicRecord(name="t", topic_id=bytes(16)),
            messages.PartitionRecord(partition_id=7, topic_id=TOPIC_ID),
            messages.PartitionChangeRecord(partition_id=2, topic_id=TOPIC_ID),
            messages.PartitionChangeRecord(partition_id=0, topic_id=bytes(16)),
            messages.RemoveTopicRecord(topic_id=bytes(16)),
            messages.BrokerRegistrationChangeRecord(broker_id=3),
            messages.RemoveAccessControlEntryRecord(id=TOPIC_ID)):
        with pytest.raises(MetadataError):
            apply(image, [record], 3, 1)


def test_a_broker_is_fenced_until_its_registration_changes():
    new = messages.RegisterBrokerRecord
    image = apply(Image(), [new(broker_id=1, broker_epoch=0, end_points=[
        new.BrokerEndpoint(name="PLAINTEXT", host="h", port=9092)], fenced=True)], 0, 1)
    assert not image.broker_is_active(1)
    image = apply(image, [messages.BrokerRegistrationChangeRecord(
        broker_id=1, broker_epoch=0, fenced=-1)], 1, 1)
    assert image.broker_is_active(1)
    assert image.brokers[1].endpoints[0].host == "h"


def security_records():
    return [
        messages.AccessControlEntryRecord(
            id=TOPIC_ID, resource_type=2, resource_name="t", pattern_type=3, principal="User:a",
            host="*", operation=3, permission_type=3),
        messages.UserScramCredentialRecord(
            name="a", mechanism=1, salt=b"s", stored_key=b"k", server_key=b"v", iterations=4096),
        messages.DelegationTokenRecord(
            owner="User:a", requester="User:b", renewers=[], issue_timestamp=1, max_timestamp=3,
            expiration_timestamp=2, token_id="x")]


def test_acls_and_credentials_are_applied_until_removed():
    image = apply(Image(), security_records(), 2, 1)
    assert list(image.security.values()) == security_records()
    image = apply(image, [
        messages.RemoveAccessControlEntryRecord(id=TOPIC_ID),
        messages.RemoveUserScramCredentialRecord(name="a", mechanism=1),
        messages.RemoveDelegationTokenRecord(token_id="x")], 5, 1)
    assert image == Image(offset=5, epoch=1)


def test_producer_ids_never_go_back():
    image = apply(Image(), [messages.ProducerIdsRecord(next_producer_id=1000)], 0, 1)
    with pytest.raises(MetadataError):
        apply(image, [messages.ProducerIdsRecord(next_producer_id=999)], 1, 1)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=40), st.data())
def test_image_does_not_depend_on_batch_boundaries(steps, data):
    log = []
    alive = {}
    for number, count in steps:
        topic_id = (number + 1).to_bytes(16, "big")
        if number in alive:
            log.append(messages.RemoveTopicRecord(topic_id=topic_id))
            del alive[number]
        else:
            log += topic_records(f"t{number}", topic_id, count)
            alive[number] = True
    whole = apply(Image(), log, len(log) - 1, 1)
    pieces = Image()
    at = 0
    while at < len(log):
        end = data.draw(st.integers(at + 1, len(log)))
        pieces = apply(pieces, log[at:end], end - 1, 1)
        at = end
    if log:
        assert pieces == whole
    assert set(whole.topics) == {f"t{number}" for number in alive}


def test_every_record_type_survives_encoding():
    for record in topic_records():
        version = 2 if type(record).__name__ == "PartitionRecord" else 0
        assert records.decode_record(records.encode_record(version, record)) == (version, record)


def registered(*directories, cordoned=None):
    """Return an image with broker 1, which has these directories."""
    return apply(Image(), [messages.RegisterBrokerRecord(
        broker_id=1, broker_epoch=0, incarnation_id=bytes(16), log_dirs=list(directories),
        cordoned_log_dirs=cordoned)], 0, 1)


@pytest.mark.parametrize(("cordoned", "takes"), [
    (None, True), ([], True), ([b"a" * 16], True), ([b"a" * 16, b"b" * 16], False),
    ([b"a" * 16, b"b" * 16, b"c" * 16], False)])
def test_broker_accepts_replicas_while_one_directory_is_uncordoned(cordoned, takes):
    assert registered(b"a" * 16, b"b" * 16, cordoned=cordoned).takes_replicas(1) == takes


def test_an_empty_image_is_before_the_first_record_of_the_first_epoch():
    image = Image()
    assert (image.next_producer_id, image.offset, image.epoch) == (0, -1, -1)


def test_an_image_equals_nothing_but_an_image():
    assert Image() == Image() and Image() != None  # noqa: E711 - equality is what is tested
    assert Image() != "an image"


@pytest.mark.parametrize(("name", "is_one"), [
    ("__consumer_offsets", True), ("__transaction_state", True), ("__share_group_state", True),
    ("consumer_offsets", False), ("__cluster_metadata", False)])
def test_only_the_topics_of_coordinators_are_internal(name, is_one):
    assert is_internal(name) == is_one


@pytest.mark.parametrize(("kind", "known"), [
    ("TopicRecord", True), ("BeginTransactionRecord", True), ("EndTransactionRecord", True),
    ("RemoveUserScramCredentialRecord", True), ("KRaftVersionRecord", False), ("", False)])
def test_metadata_records_are_identified_by_name(kind, known):
    assert is_known(kind) == known


def test_a_record_that_this_version_does_not_know_is_rejected():
    with pytest.raises(MetadataError, match="FetchRequest is unknown to this version"):
        apply(Image(), [messages.FetchRequest()], 0, 1)


@pytest.mark.parametrize(("told", "found"), [(-1, 1), (0, 0), (1, 1)])
def test_partition_change_keeps_the_leader_recovery_state_by_default(told, found):
    image = apply(Image(), topic_records(partitions=1), 1, 1)
    for offset, state in ((2, 1), (3, told)):
        image = apply(image, [messages.PartitionChangeRecord(
            partition_id=0, topic_id=TOPIC_ID, leader_recovery_state=state)], offset, 1)
    assert image.topics["t"].partitions[0].leader_recovery_state == found


@pytest.mark.parametrize("field", ["fenced", "in_controlled_shutdown"])
def test_registration_change_sets_clears_or_keeps_a_state(field):
    image, seen = registered(b"a" * 16), []
    for offset, change in enumerate((-1, 0, 1, 0, -1), 1):
        image = apply(image, [messages.BrokerRegistrationChangeRecord(
            broker_id=1, broker_epoch=0, **{field: change})], offset, 1)
        seen.append(getattr(image.brokers[1], field))
    assert seen == [False, False, True, True, False]


def test_the_pool_of_states_is_emptied_when_it_is_full_and_never_grows_beyond(monkeypatch):
    monkeypatch.setattr("pylog.metadata.image.image.STATE_POOL_MAX", 3)
    image, sizes = apply(Image(), topic_records(partitions=1), 1, 1), []
    for offset in range(2, 7):
        image = apply(image, [messages.PartitionChangeRecord(
            partition_id=0, topic_id=TOPIC_ID, leader=offset)], offset, 1)
        sizes.append(len(image.states))
        assert image.topics["t"].partitions[0].leader == offset
    assert sizes == [2, 3, 1, 2, 3]

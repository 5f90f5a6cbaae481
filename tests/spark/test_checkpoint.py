import json

from pylog.client import TopicPartition
from pylog.client.spark.checkpoint import Positions
from pylog.protocol.codec import ZERO_UUID

OLD_ID, NEW_ID = bytes(range(16)), bytes(range(16, 32))


def positions(topic_id=None, **offsets):
    """Return positions of topic t; offsets like p0=5."""
    found = {TopicPartition("t", int(name[1:])): at for name, at in offsets.items()}
    return Positions(found, {"t": topic_id} if topic_id else {})


def recreated(before, after):
    return before.recreated_topics(after) == {"t"}


def test_positions_survive_their_json():
    given = Positions({TopicPartition("a", 0): 5, TopicPartition("a", 11): 0,
                       TopicPartition("b", 2): 9}, {"a": OLD_ID})
    stored = json.loads(json.dumps(given.to_json()))
    assert stored["a"] == {"0": 5, "11": 0, "topicId": "AAECAwQFBgcICQoLDA0ODw"}
    assert stored["b"] == {"2": 9}
    assert Positions.from_json(stored) == given


def test_checkpoint_without_topic_ids_is_readable():
    assert Positions.from_json({"t": {"0": 7, "1": 3}}) == positions(p0=7, p1=3)


def test_unknown_topic_ids_are_not_stored():
    offsets = {TopicPartition("t", 0): 1}
    assert Positions.of(offsets, {"t": ZERO_UUID, "other": OLD_ID}) == positions(p0=1)


def test_another_topic_id_means_the_topic_was_recreated_wherever_it_ends():
    for end in (0, 5, 9):
        assert recreated(positions(OLD_ID, p0=5), positions(NEW_ID, p0=end))


def test_same_topic_id_means_the_log_shrank_if_it_ends_before_the_position():
    assert not recreated(positions(OLD_ID, p0=5), positions(OLD_ID, p0=3))


def test_without_an_id_one_partition_that_ends_before_its_position_shows_a_new_topic():
    for after in (None, NEW_ID):
        assert recreated(positions(p0=5, p1=5), positions(after, p0=4, p1=900))
        assert not recreated(positions(p0=5, p1=5), positions(after, p0=5, p1=900))


def test_a_missing_topic_was_not_recreated():
    assert positions(OLD_ID, p0=5).recreated_topics(Positions({}, {})) == set()

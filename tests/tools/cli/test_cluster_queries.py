"""What commands ask a cluster, and how they name what does not exist."""

from pylog.tools.cli.cluster_queries import unknown


def test_an_unknown_name_is_answered_with_the_nearest_one():
    assert str(unknown("topic", "ordres", ["orders", "other"])) == (
        "there is no topic 'ordres'; nearest valid name: orders")
    assert str(unknown("topic", "x", [])) == "there is no topic 'x'"


def test_a_new_topic_that_only_some_brokers_know_is_not_called_absent():
    assert str(unknown("topic", "t", ["t"])) == (
        "not every broker knows the topic 't' yet: run the command again")

from pylog.client import Admin, NewTopic
from pylog.testing import Cluster
from tests.clusters import until


def nodes(admin) -> list:
    return sorted(node.id for node in admin.describe_cluster().nodes)


def test_brokers_of_one_process_are_one_cluster():
    with Cluster(3) as cluster:
        with Admin({"bootstrap.servers": cluster[1].bootstrap}) as admin:
            until(lambda: nodes(admin) == [1, 2, 3])
            admin.create_topics([NewTopic("t", 3, 3)])
            until(lambda: list(admin.list_topics()) == ["t"])


def test_a_broker_leaves_and_comes_back():
    with Cluster(2) as cluster:
        with Admin({"bootstrap.servers": cluster[1].bootstrap}) as admin:
            cluster[2].stop()
            until(lambda: nodes(admin) == [1])
            cluster[2].start()
            until(lambda: nodes(admin) == [1, 2])

"""The blocking admin client, and its asyncio counterpart."""

import asyncio

import pytest

from pylog.client import Admin, ConfigResource, NewTopic, ResourceType, TopicPartition, errors
from pylog.client.admin.types import AlterConfigOp, ConfigSource, OpType
from pylog.client.aio import Admin as AsyncAdmin
from tests.client.support import new_name, new_topic, poll_until, put, reader, rows

BROKER_SETTINGS = {"group.initial.rebalance.delay.ms": "0"}


@pytest.fixture
def admin(broker):
    with Admin(bootstrap_servers=broker.bootstrap) as made:
        yield made


def waited(condition, what):
    """Kafka's brokers apply a change a moment after the response."""
    poll_until([], condition, what, 10)


def test_topics_are_created_listed_expanded_and_deleted(admin):
    name = new_name("made")
    ids = admin.create_topics([NewTopic(name, 3, 1, configs={"retention.ms": "7777777"})])
    assert len(ids[name]) == 16
    waited(lambda: name in admin.list_topics(), "the topic")
    found = admin.describe_topics([name])[name]
    assert found.id == ids[name] and list(found.partitions) == [0, 1, 2]
    admin.create_partitions({name: 5})
    waited(lambda: len(admin.describe_topics([name])[name].partitions) == 5, "the partitions")
    admin.delete_topics([name])
    waited(lambda: name not in admin.list_topics(), "the topic to go")
    with pytest.raises(errors.UnknownTopicOrPartitionError):
        admin.delete_topics([name])


def test_partial_failure_raises_with_all_results(admin):
    old, new = new_name("old"), new_name("new")
    admin.create_topics([old])
    with pytest.raises(errors.TopicAlreadyExistsError) as caught:
        admin.create_topics([new, old])
    assert isinstance(caught.value.results[old], errors.TopicAlreadyExistsError)
    assert len(caught.value.results[new]) == 16


def test_validate_only_creates_nothing(admin):
    name = new_name("checked")
    admin.create_topics([NewTopic(name, 2)], validate_only=True)
    assert name not in admin.list_topics()
    with pytest.raises(errors.InvalidPartitionsError):
        admin.create_topics([NewTopic(name, 0)], validate_only=True)


def test_settings_are_described_and_changed(broker, admin):
    resource = ConfigResource(ResourceType.TOPIC, new_topic(broker))
    admin.incremental_alter_configs({resource: {"retention.ms": 12345}})

    def entry():
        return admin.describe_configs([resource])[resource]["retention.ms"]

    waited(lambda: entry().value == "12345", "the value")
    assert entry().source == ConfigSource.DYNAMIC_TOPIC_CONFIG and not entry().is_default
    admin.incremental_alter_configs({resource: {"retention.ms": None}})
    waited(lambda: entry().is_default, "the default")
    ops = [AlterConfigOp("cleanup.policy", "compact", OpType.APPEND)]
    admin.incremental_alter_configs({resource: ops})
    waited(lambda: set(admin.describe_configs([resource])[resource]["cleanup.policy"].value
                       .split(",")) == {"compact", "delete"}, "both policies")
    with pytest.raises(errors.InvalidConfigError):
        admin.incremental_alter_configs({resource: {"retention.ms": "long"}})


def test_broker_describes_its_settings_and_directories(admin):
    cluster = admin.describe_cluster()
    node = cluster.nodes[0]
    broker = ConfigResource(ResourceType.BROKER, str(node.id))
    assert "log.retention.ms" in admin.describe_configs([broker])[broker]
    directories = admin.describe_log_dirs()[node.id]
    assert all(one.error_code == 0 for one in directories.values())
    assert cluster.cluster_id and cluster.controller in {one.id for one in cluster.nodes}


def test_log_dirs_include_the_size_of_each_replica(broker, admin):
    topic = new_topic(broker)
    put(broker, topic, rows(100))
    node = admin.describe_cluster().nodes[0].id
    sizes = [one.replicas[TopicPartition(topic, 0)].size
             for one in admin.describe_log_dirs([node])[node].values()
             if TopicPartition(topic, 0) in one.replicas]
    assert len(sizes) == 1 and sizes[0] > 1000


def test_records_are_deleted_and_offsets_listed(broker, admin):
    topic = new_topic(broker, 2)
    put(broker, topic, rows(50))
    part = TopicPartition(topic, 0)
    assert admin.delete_records({part: 20}) == {part: 20}
    assert admin.list_offsets({part: "earliest"})[part].offset == 20
    assert admin.list_offsets({part: "latest"})[part].offset == 50
    with pytest.raises(errors.OffsetOutOfRangeError):
        admin.delete_records({part: 1000})


def test_groups_are_listed_described_and_deleted(broker, admin):
    topic, group = new_topic(broker, 2), new_name("g")
    with reader(broker, group_id=group, client_id="me") as member:
        member.subscribe([topic])
        poll_until([member], lambda: len(member.assignment()) == 2, "the partitions")
        listed = {one.group_id: one for one in admin.list_groups()}
        assert listed[group].state == "Stable" and listed[group].protocol == "consumer"
        found = admin.describe_consumer_groups([group])[group]
        assert found.assignor == "range" and len(found.members) == 1
        assert found.members[0].client_id == "me"
        assert set(found.members[0].assignment) == set(member.assignment())
        with pytest.raises(errors.NonEmptyGroupError):
            admin.delete_consumer_groups([group])
        member.commit({TopicPartition(topic, 0): 0})
    admin.delete_consumer_groups([group])
    assert group not in {one.group_id for one in admin.list_groups()}
    with pytest.raises(errors.GroupIdNotFoundError):
        admin.describe_consumer_groups([group])


def test_offsets_of_a_group_are_listed_changed_and_deleted(broker, admin):
    topic, group = new_topic(broker, 3), new_name("g")
    parts = [TopicPartition(topic, number) for number in range(3)]
    admin.alter_consumer_group_offsets(group, {parts[0]: 5, parts[1]: 6})
    found = admin.list_consumer_group_offsets(group)
    assert {tp: one.offset for tp, one in found.items()} == {parts[0]: 5, parts[1]: 6}
    assert list(admin.list_consumer_group_offsets(group, [parts[1], parts[2]])) == [parts[1]]
    admin.delete_consumer_group_offsets(group, [parts[0]])
    assert list(admin.list_consumer_group_offsets(group)) == [parts[1]]


def test_calls_have_javas_names_and_older_aliases(broker, admin):
    topic, group = new_topic(broker), new_name("group")
    admin.alter_consumer_group_offsets(group, {TopicPartition(topic, 0): 3})
    assert admin.list_group_offsets(group) == admin.list_consumer_group_offsets(group)
    assert group in [row.group_id for row in admin.list_consumer_groups()]
    assert admin.describe_groups([group]) == admin.describe_consumer_groups([group])
    admin.delete_groups([group])
    with pytest.raises(errors.GroupIdNotFoundError):
        admin.describe_consumer_groups([group])


def test_the_asynchronous_twin_has_the_same_calls(broker):
    topic = new_topic(broker)

    async def work():
        async with AsyncAdmin(bootstrap_servers=broker.bootstrap) as admin:
            return await admin.describe_topics([topic])

    assert topic in asyncio.run(work())
    for name in dir(AsyncAdmin):
        if not name.startswith("_") and name not in ("start", "cluster", "settings"):
            assert hasattr(Admin, name), name


def test_quotas_are_described_and_changed(broker):
    from pylog.client.admin.types import QuotaAlteration

    user = {"user": new_name("user")}
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.alter_client_quotas([QuotaAlteration(user, {"producer_byte_rate": 1e6})])
        waited(lambda: admin.describe_client_quotas(user) == [(user, {"producer_byte_rate": 1e6})],
               "the quota")
        admin.alter_client_quotas([QuotaAlteration(user, {"producer_byte_rate": None})])
        waited(lambda: admin.describe_client_quotas(user) == [], "the quota to go")

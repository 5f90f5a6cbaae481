"""Config changes: rejected resources and operations, and the records of the others. Error codes and
messages as in Kafka 4.4.
"""

import pytest

from pylog.config import Settings
from pylog.metadata.controller import configs
from pylog.metadata.image.image import RESOURCE_BROKER, RESOURCE_TOPIC, apply
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode as E
from tests.metadata.controller.partitions.test_topics import cluster, create, decided, topic

INCREMENTAL, LEGACY = messages.IncrementalAlterConfigsRequest, messages.AlterConfigsRequest
LONGEST = 32_767


@pytest.fixture
def image():
    return create(cluster(), topic("t", configs={"retention.ms": "5"}))[0]


def resource(kind, name, *changes):
    """changes: (setting, operation, value)."""
    return INCREMENTAL.AlterConfigsResource(
        resource_type=kind, resource_name=name, configs=[
            INCREMENTAL.AlterableConfig(name=key, config_operation=operation, value=value)
            for key, operation, value in changes])


def replacement(kind, name, **values):
    return LEGACY.AlterConfigsResource(resource_type=kind, resource_name=name, configs=[
        LEGACY.AlterableConfig(name=key.replace("_", "."), value=value)
        for key, value in values.items()])


def alter(image, *resources, incremental=True, settings=None, node_id=1):
    return decided(configs.alter(
        image, resources, settings or Settings(), node_id, incremental))


def after(image, *resources, **options):
    """Return the resulting settings of the resources: {(kind, name): {setting: value}}."""
    records, results = alter(image, *resources, **options)
    assert [result.error for result in results] == [E.NONE] * len(resources), results
    return apply(image, records, image.offset + len(records), 1).configs


REFUSED = [
    (RESOURCE_TOPIC, "", [("retention.ms", 0, "5")], E.INVALID_REQUEST,
     "Default topic resources are not allowed."),
    (RESOURCE_TOPIC, "a/b", [("retention.ms", 0, "5")], E.INVALID_TOPIC_EXCEPTION, None),
    (RESOURCE_TOPIC, "x", [("retention.ms", 0, "5")], E.UNKNOWN_TOPIC_OR_PARTITION,
     "The topic 'x' does not exist."),
    (RESOURCE_TOPIC, "t", [("retention.ms", 0, "five")], E.INVALID_CONFIG, None),
    (RESOURCE_TOPIC, "t", [("no.such.setting", 0, "5")], E.INVALID_CONFIG, None),
    (RESOURCE_TOPIC, "t", [("retention.ms", 0, None)], E.INVALID_REQUEST,
     "Null value not supported for : retention.ms"),
    (RESOURCE_TOPIC, "t", [("retention.ms", 0, "5"), ("retention.ms", 0, "6")],
     E.INVALID_REQUEST, "Error due to duplicate config keys"),
    (RESOURCE_TOPIC, "t", [("retention.ms", 2, "5")], E.INVALID_CONFIG,
     "Can't APPEND to key retention.ms because its type is not LIST."),
    (RESOURCE_TOPIC, "t", [("retention.ms", 3, "5")], E.INVALID_CONFIG,
     "Can't SUBTRACT to key retention.ms because its type is not LIST."),
    (RESOURCE_TOPIC, "t", [("retention.ms", 4, "5")], E.INVALID_REQUEST,
     "Unknown operations type 4"),
    (RESOURCE_BROKER, "one", [("message.max.bytes", 0, "5")], E.INVALID_REQUEST,
     "Node id must be an integer, but it is: one"),
    (RESOURCE_BROKER, "2", [("message.max.bytes", 0, "5")], E.INVALID_REQUEST,
     "Unexpected broker id, expected 1, but received 2"),
    (RESOURCE_BROKER, "11111111111", [("message.max.bytes", 0, "5")], E.INVALID_REQUEST,
     "Node id must be an integer, but it is: 11111111111"),
    (RESOURCE_BROKER, "", [("message.max.bytes", 0, "x")], E.INVALID_REQUEST, None),
    (configs.RESOURCE_GROUP, "", [("consumer.session.timeout.ms", 0, "45000")], E.INVALID_REQUEST,
     "Default group resources are not allowed."),
    (configs.RESOURCE_SUBSCRIPTION, "", [("interval.ms", 0, "5000")], E.INVALID_REQUEST,
     "Subscription name can't be empty"),
    (configs.RESOURCE_SUBSCRIPTION, "s", [("no.such", 0, "5")], E.INVALID_REQUEST,
     "Unknown client metrics configuration: no.such"),
    (64, "x", [("retention.ms", 0, "5")], E.INVALID_REQUEST, "Unknown resource type 64"),
]


@pytest.mark.parametrize(("kind", "name", "changes", "error", "text"), REFUSED)
def test_invalid_change_is_rejected_and_other_resources_continue(
        image, kind, name, changes, error, text):
    other = resource(RESOURCE_BROKER, "1", ("message.max.bytes", 0, "7777"))
    records, results = alter(image, resource(kind, name, *changes), other)
    assert results[0].error == error and results[1].error == E.NONE, results
    assert results[0].message == text if text is not None else results[0].message
    record, = records
    assert (record.resource_type, record.value) == (RESOURCE_BROKER, "7777")


def test_repeated_resource_is_rejected_both_times(image):
    twice = resource(RESOURCE_TOPIC, "t", ("retention.ms", 0, "9"))
    records, results = alter(image, twice, twice)
    assert records == [] and [(row.error, row.message) for row in results] == [
        (E.INVALID_REQUEST, "Each resource must appear at most once.")] * 2


def test_settings_of_every_registered_broker_are_the_controllers_to_alter():
    records, results = alter(cluster(2), resource(
        RESOURCE_BROKER, "2", ("log.cleaner.threads", configs.SET, "2")),
        node_id=100)
    assert results[0].error == E.NONE and records[0].resource_name == "2"


@pytest.mark.parametrize(("node", "error"), [
    ("100", E.NONE), ("101", E.NONE), ("2", E.NONE), ("103", E.BROKER_ID_NOT_REGISTERED)])
def test_settings_of_controllers_can_be_altered(node, error):
    controller = Settings({
        "process.roles": "controller", "node.id": "100", "listeners": "CONTROLLER://:9093",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": "100@h:9093,101@i:9093,102@j:9093"})
    _, results = alter(cluster(2), resource(
        RESOURCE_BROKER, node, ("leader.replication.throttled.rate", configs.DELETE, None)),
        node_id=100, settings=controller)
    assert results[0].error == error


@pytest.mark.parametrize(("name", "value"), [
    ("listener.name.ssl.ssl.keystore.location", "/only/on/broker/2.pem"),
    ("listeners", "SSL://:9092"), ("num.io.threads", "64"), ("cordoned.log.dirs", "/disk2")])
def test_settings_of_another_broker_are_validated_by_that_broker(name, value):
    controller = Settings({
        "process.roles": "controller", "node.id": "100", "listeners": "CONTROLLER://:9093",
        "controller.listener.names": "CONTROLLER", "controller.quorum.voters": "100@h:9093"})
    records, results = alter(cluster(2), resource(RESOURCE_BROKER, "2", (name, configs.SET, value)),
                             node_id=100, settings=controller)
    assert results[0].error == E.NONE, results
    assert (records[0].resource_name, records[0].value) == ("2", value)
    _, results = alter(cluster(2), resource(
        RESOURCE_BROKER, "2", ("num.io.threads", configs.SET, "many")), node_id=100,
        settings=controller)
    assert results[0].error == E.INVALID_REQUEST


def test_setting_is_set_and_reset(image):
    key = RESOURCE_TOPIC, "t"
    assert after(image, resource(*key, ("segment.bytes", 0, "1048576")))[key] == {
        "retention.ms": "5", "segment.bytes": "1048576"}
    assert key not in after(image, resource(*key, ("retention.ms", 1, None)))


def test_unchanged_topic_setting_writes_no_record_but_a_brokers_does(image):
    records, _ = alter(image, resource(RESOURCE_TOPIC, "t", ("retention.ms", 0, "5")))
    assert records == []
    broker = resource(RESOURCE_BROKER, "", ("message.max.bytes", 0, "7777"))
    for _ in range(2):
        records, _ = alter(image, broker)
        assert [record.value for record in records] == ["7777"]
        image = apply(image, records, image.offset + 1, 1)


@pytest.mark.parametrize(("kind", "name", "first", "changes", "wanted"), [
    (RESOURCE_TOPIC, "t", None, ((2, "compact"),), "delete,compact"),
    (RESOURCE_TOPIC, "t", "compact", ((2, "compact,delete"),), "compact,delete"),
    (RESOURCE_TOPIC, "t", "compact,delete", ((3, "compact"),), "delete"),
    (RESOURCE_TOPIC, "t", "delete", ((3, "compact"),), "delete"),
    (RESOURCE_TOPIC, "t", "delete", ((2, "compact"), (3, "delete")), "compact"),
])
def test_list_values_are_appended_and_subtracted(image, kind, name, first, changes, wanted):
    if first is not None:
        image = apply(image, [messages.ConfigRecord(
            resource_type=kind, resource_name=name, name="cleanup.policy", value=first)],
            image.offset + 1, 1)
    for operation, words in changes:
        records, results = alter(image, resource(kind, name, ("cleanup.policy", operation, words)))
        assert results[0].error == E.NONE, results
        image = apply(image, records, image.offset + len(records), 1)
    assert image.configs.get((kind, name), {}).get("cleanup.policy", first) == wanted


def test_replacement_resets_settings_that_it_omits(image):
    key = RESOURCE_TOPIC, "t"
    assert after(image, replacement(*key, segment_bytes="1048576"), incremental=False)[key] == {
        "segment.bytes": "1048576"}
    assert key not in after(image, replacement(*key), incremental=False)


def test_value_length_is_limited(image):
    def error(value):
        _, (result,) = alter(image, resource(
            RESOURCE_TOPIC, "t", ("follower.replication.throttled.replicas", 0, value)))
        return result

    long = ",".join(["0:1"] * (LONGEST // 4 + 1))
    assert len(long) == LONGEST
    assert error(long).error == E.NONE, error(long)
    told = error(long + ",0:1")
    assert told.error == E.INVALID_CONFIG and str(LONGEST) in told.message


def test_loggers_are_no_metadata(image):
    asked = resource(configs.RESOURCE_LOGGER, "1", ("x", 0, "DEBUG"))
    assert alter(image, asked) == ([], [None])
    records, (result,) = alter(image, replacement(configs.RESOURCE_LOGGER, "1", x="DEBUG"),
                               incremental=False)
    assert records == [] and result.error == E.INVALID_REQUEST


@pytest.mark.parametrize(("name", "node"), [
    ("1", 1), ("-1", -1), ("+1", 1), ("0001", 1), ("", None), ("-", None), ("+", None),
    ("1-", None), ("1a", None), ("\u0661", None), ("1" * 10, 1111111111), ("1" * 11, None),
    ("-" + "1" * 10, -1111111111)])
def test_a_brokers_resource_is_named_by_its_number(name, node):
    assert configs.node_number(name) == node


def test_a_brokers_settings_are_judged_as_they_would_be_after_the_change(image):
    settings = Settings()
    at_all = resource(RESOURCE_BROKER, "", ("log.cleaner.threads", 0, "2"))
    assert after(image, at_all, settings=settings)[RESOURCE_BROKER, ""] == {
        "log.cleaner.threads": "2"}
    none = resource(RESOURCE_BROKER, "1", ("log.cleaner.threads", 0, "0"))
    _, (result,) = alter(image, none, settings=settings)
    assert result.error == E.INVALID_REQUEST and "log.cleaner.threads" in result.message


@pytest.mark.parametrize(("name", "value", "words"), [
    ("listener.name.sasl_plaintext.plain.sasl.jaas.config", "s3cret", "expected `module required"),
    ("listener.name.sasl_plaintext.sasl.enabled.mechanisms", "PLAIN,NONE", "some of PLAIN"),
    ("listener.name.sasl_plaintext.sasl.enabled.mechanisms", "OAUTHBEARER",
     "jwks.endpoint.url is not set"),
    ("listeners", "SASL_PLAINTEXT://:9093,SSL://:9094", "has no certificate"),
    ("listener.name.ssl.ssl.principal.mapping.rules", "RULE:x", "invalid rule")])
def test_change_that_locks_out_all_clients_or_the_next_start_is_rejected(image, name, value, words):
    settings = Settings({
        "listeners": "PLAINTEXT://:9092,SASL_PLAINTEXT://:9093" + ",SSL://:9095" * (
            "mapping" in name), "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": 'm required user_a="a";'})
    _, (result,) = alter(image, resource(RESOURCE_BROKER, "1", (name, 0, value)),
                         settings=settings)
    assert result.error == E.INVALID_REQUEST and words in result.message
    assert "s3cret" not in result.message
    good = 'm required user_a="b" user_b="b";'
    records, _ = alter(image, resource(RESOURCE_BROKER, "1", (
        "listener.name.sasl_plaintext.plain.sasl.jaas.config", 0, good)), settings=settings)
    assert [record.value for record in records] == [good]


PASSWORD = "listener.name.plaintext.ssl.key.password"


def sealing(secret, old=None) -> Settings:
    return Settings({name: value for name, value in {
        "password.encoder.secret": secret, "password.encoder.old.secret": old}.items() if value})


def altered(image, settings, name=PASSWORD, value="the password"):
    records, _ = alter(image, resource(RESOURCE_BROKER, "1", (name, 0, value)), settings=settings)
    return apply(image, records, image.offset + len(records), 1)


def test_password_is_sealed_in_its_record_if_a_secret_exists(image):
    settings = sealing("s")
    kept = altered(image, settings).configs[RESOURCE_BROKER, "1"][PASSWORD]
    assert "password" not in kept and settings.sealer.opened(PASSWORD, kept) == "the password"
    removed = alter(altered(image, settings), resource(RESOURCE_BROKER, "1", (PASSWORD, 1, None)),
                    settings=settings)[0]
    assert [(record.name, record.value) for record in removed] == [(PASSWORD, None)]


def test_public_and_unsealable_values_are_stored_unchanged(image):
    found = altered(image, sealing("s"), "background.threads", "12")
    assert found.configs[RESOURCE_BROKER, "1"] == {"background.threads": "12"}
    found = altered(image, Settings())
    assert found.configs[RESOURCE_BROKER, "1"] == {PASSWORD: "the password"}


@pytest.mark.parametrize(("first", "then", "old", "opens"), [
    (None, "s", None, True), ("a", "b", "a", True), ("a", "a", None, True),
    ("a", "b", None, False)])
def test_new_term_reseals_values_of_older_secrets(
        image, first, then, old, opens):
    image, settings = altered(image, sealing(first)), sealing(then, old)
    before = image.configs[RESOURCE_BROKER, "1"][PASSWORD]
    records = configs.reencrypt(image, settings)
    assert bool(records) == (opens and first != then)
    image = apply(image, records, image.offset + len(records), 1)
    kept = image.configs[RESOURCE_BROKER, "1"][PASSWORD]
    assert (kept == before) == (not records)
    if opens:
        assert sealing(then).sealer.opened(PASSWORD, kept) == "the password"
    assert not configs.reencrypt(image, settings)


def test_nothing_is_resealed_without_a_secret(image):
    assert configs.reencrypt(altered(image, Settings()), Settings()) == []

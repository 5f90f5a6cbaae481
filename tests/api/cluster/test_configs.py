import asyncio
import logging
from types import SimpleNamespace

import pytest

from pylog.api.cluster.configs import ConfigsApi
from pylog.config import Settings, entries
from pylog.metadata.controller.configs import APPEND, DELETE, SET, SUBTRACT
from pylog.peer.errors import PeerError
from pylog.protocol import api, messages
from pylog.protocol.errors import ErrorCode
from tests.api.support import with_broker

TOPIC, BROKER, LOGGER, SUBSCRIPTION, GROUP = 2, 4, 8, 16, 32
DYNAMIC_BROKER, DYNAMIC_DEFAULT, STATIC, DEFAULT = 2, 3, 4, 5


async def make(broker, name="t", **configs):
    new = messages.CreateTopicsRequest
    answer = await broker.ask(api.CREATE_TOPICS, 7, new(topics=[new.CreatableTopic(
        name=name, num_partitions=1, replication_factor=1, configs=[
            new.CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in configs.items()])]))
    assert answer.topics[0].error_code == 0, answer


async def alter(broker, kind, name, *rows, validate_only=False):
    """Return (error code, message) of one resource's incremental change."""
    new = messages.IncrementalAlterConfigsRequest
    answer = await broker.ask(api.INCREMENTAL_ALTER_CONFIGS, 1, new(
        validate_only=validate_only, resources=[new.AlterConfigsResource(
            resource_type=kind, resource_name=name, configs=[
                new.AlterableConfig(name=key, config_operation=operation, value=value)
                for key, operation, value in rows])]))
    return answer.responses[0].error_code, answer.responses[0].error_message


async def describe(broker, kind, name, *keys, **options):
    """Return setting name -> its row."""
    new = messages.DescribeConfigsRequest
    answer = await broker.ask(api.DESCRIBE_CONFIGS, 4, new(
        include_synonyms=True, resources=[new.DescribeConfigsResource(
            resource_type=kind, resource_name=name, configuration_keys=list(keys) or None)],
        **options))
    assert answer.results[0].error_code == 0, answer
    return {row.name: row for row in answer.results[0].configs}


def synonyms(row):
    return [(synonym.name, synonym.value, synonym.source) for synonym in row.synonyms]


def test_a_topics_setting_is_changed_stored_and_handed_to_its_logs():
    async def scenario(broker):
        await make(broker)
        assert await alter(broker, TOPIC, "t", ("retention.ms", SET, "5000")) == (0, None)
        assert broker.image.topic_config("t") == {"retention.ms": "5000"}
        assert broker.logs.topics["t"][2] == {"retention.ms": "5000"}
        row = (await describe(broker, TOPIC, "t"))["retention.ms"]
        assert row.value == "5000"
        assert synonyms(row) == [("retention.ms", "5000", 1)]
    with_broker(scenario)


def test_validate_only_changes_nothing():
    async def scenario(broker):
        await make(broker)
        asked = ("retention.ms", SET, "5000")
        assert await alter(broker, TOPIC, "t", asked, validate_only=True) == (0, None)
        assert broker.image.topic_config("t") == {}
    with_broker(scenario)


def test_list_setting_values_are_appended_and_subtracted():
    async def scenario(broker):
        await make(broker)
        await alter(broker, TOPIC, "t", ("cleanup.policy", APPEND, "compact"))
        assert broker.image.topic_config("t") == {"cleanup.policy": "delete,compact"}
        await alter(broker, TOPIC, "t", ("cleanup.policy", SUBTRACT, "delete"))
        assert broker.image.topic_config("t") == {"cleanup.policy": "compact"}
        await alter(broker, TOPIC, "t", ("cleanup.policy", DELETE, None))
        assert broker.image.topic_config("t") == {}
    with_broker(scenario)


def test_invalid_setting_rejects_all_settings_of_its_resource():
    async def scenario(broker):
        await make(broker)
        code, text = await alter(broker, TOPIC, "t", ("retention.ms", SET, "5000"),
                                 ("segment.bytes", SET, "0"))
        assert code == 40 and "segment.bytes" in text
        assert broker.image.topic_config("t") == {}
    with_broker(scenario)


def test_broker_setting_applies_to_topics_without_own_value():
    async def scenario(broker):
        await make(broker, "plain")
        await make(broker, "own", retention_ms="77")
        assert await alter(broker, BROKER, "", ("log.retention.ms", SET, "5000")) == (0, None)
        assert broker.logs.reconfigured == 1
        plain = (await describe(broker, TOPIC, "plain"))["retention.ms"]
        assert plain.value == "5000" and plain.config_source == DYNAMIC_DEFAULT
        own = (await describe(broker, TOPIC, "own"))["retention.ms"]
        assert own.value == "77"
        assert synonyms(own)[1] == ("log.retention.ms", "5000", DYNAMIC_DEFAULT)
    with_broker(scenario)


def test_dynamic_broker_settings_override_cluster_and_file_settings():
    async def scenario(broker):
        await alter(broker, BROKER, "", ("log.segment.bytes", SET, "2000000"))
        await alter(broker, BROKER, "1", ("log.segment.bytes", SET, "3000000"))
        row = (await describe(broker, BROKER, "1"))["log.segment.bytes"]
        assert synonyms(row) == [
            ("log.segment.bytes", "3000000", DYNAMIC_BROKER),
            ("log.segment.bytes", "2000000", DYNAMIC_DEFAULT),
            ("log.segment.bytes", "4000000", STATIC), ("log.segment.bytes", "1073741824", DEFAULT)]
        assert broker.settings["log.segment.bytes"] == 3_000_000
        await alter(broker, BROKER, "1", ("log.segment.bytes", DELETE, None))
        await alter(broker, BROKER, "", ("log.segment.bytes", DELETE, None))
        assert broker.settings["log.segment.bytes"] == 4_000_000
    with_broker(scenario, {"log.segment.bytes": "4000000"})


def test_dynamic_retention_overrides_the_file_in_any_unit():
    async def scenario(broker):
        assert broker.settings.topic_defaults()["retention.ms"] == 3_600_000
        await alter(broker, BROKER, "", ("log.retention.ms", SET, "5000"))
        assert broker.settings.topic_defaults()["retention.ms"] == 5000
        await alter(broker, BROKER, "", ("log.retention.ms", DELETE, None))
        assert broker.settings.topic_defaults()["retention.ms"] == 3_600_000
    with_broker(scenario, {"log.retention.hours": "1"})


@pytest.mark.parametrize("name, value", [
    ("node.id", "2"), ("log.retention.hours", "1"), ("log.segment.bytes", "x"),
    ("ssl.keystore.location", "/x"), ("background.threads", "500"), ("num.network.threads", "9"),
    ("log.roll.ms", "0")])
def test_a_broker_setting_that_cannot_change_is_rejected(name, value):
    async def scenario(broker):
        code, text = await alter(broker, BROKER, "1", (name, SET, value))
        assert code == 42 and name in text
        assert broker.image.configs == {}
    with_broker(scenario)


def test_settings_that_contradict_each_other_are_rejected_for_a_broker():
    async def scenario(broker):
        code, _ = await alter(broker, BROKER, "", ("log.cleaner.max.compaction.lag.ms", SET, "1"),
                              ("log.cleaner.min.compaction.lag.ms", SET, "2"))
        assert code == 42 and broker.image.configs == {}
    with_broker(scenario)


def test_a_password_is_never_shown():
    async def scenario(broker):
        name = "listener.name.plaintext.ssl.key.password"
        assert await alter(broker, BROKER, "1", (name, SET, "secret")) == (0, None)
        row = (await describe(broker, BROKER, "1", name))[name]
        assert row.is_sensitive and row.value is None
        assert synonyms(row)[0] == (name, None, DYNAMIC_BROKER)
    with_broker(scenario)


def test_legacy_alter_configs_replaces_all_settings_of_a_topic():
    async def scenario(broker):
        await make(broker, retention_ms="1", flush_ms="2")
        new = messages.AlterConfigsRequest
        answer = await broker.ask(api.ALTER_CONFIGS, 2, new(resources=[new.AlterConfigsResource(
            resource_type=TOPIC, resource_name="t", configs=[
                new.AlterableConfig(name="flush.ms", value="3")])]))
        assert answer.responses[0].error_code == 0
        assert broker.image.topic_config("t") == {"flush.ms": "3"}
    with_broker(scenario)


def test_logger_level_is_set_shown_and_reset():
    async def scenario(broker):
        logger = logging.getLogger("pylog.tests.level")
        row = ("pylog.tests.level", SET, "TRACE")
        assert await alter(broker, LOGGER, "1", row) == (0, None)
        assert logger.getEffectiveLevel() == 5
        shown = await describe(broker, LOGGER, "1", "pylog.tests.level")
        assert shown["pylog.tests.level"].value == "TRACE"
        await alter(broker, LOGGER, "1", ("pylog.tests.level", DELETE, None))
        assert logger.level == logging.NOTSET
        assert (await alter(broker, LOGGER, "1", ("pylog.tests.level", 9, "x")))[0] == 42
    with_broker(scenario)


def test_group_settings_are_limited_by_the_brokers():
    async def scenario(broker):
        name = "consumer.session.timeout.ms"
        assert await alter(broker, GROUP, "g", (name, SET, "50000")) == (0, None)
        assert (await describe(broker, GROUP, "g"))[name].value == "50000"
        assert (await alter(broker, GROUP, "g", (name, SET, "1")))[0] == 40
        new = messages.ListConfigResourcesRequest
        listed = await broker.ask(api.LIST_CONFIG_RESOURCES, 1, new(resource_types=[GROUP]))
        assert [row.resource_name for row in listed.config_resources] == ["g"]
    with_broker(scenario)


def test_documentation_is_returned_on_request():
    async def scenario(broker):
        await make(broker)
        row = (await describe(broker, TOPIC, "t", include_documentation=True))["retention.ms"]
        assert row.documentation
        assert (await describe(broker, TOPIC, "t"))["retention.ms"].documentation is None
    with_broker(scenario)


@pytest.mark.parametrize("name", ["9" * 5000, "--1", "1_0", "\u0663", " 1"])
@pytest.mark.parametrize("kind", [BROKER, LOGGER])
def test_non_numeric_broker_id_is_rejected(kind, name):
    async def scenario(broker):
        assert (await alter(broker, kind, name, ("log.roll.ms", SET, "7000000")))[0] == 42
        new = messages.DescribeConfigsRequest
        answer = await broker.ask(api.DESCRIBE_CONFIGS, 4, new(resources=[
            new.DescribeConfigsResource(resource_type=kind, resource_name=name)]))
        assert answer.results[0].error_code == 42
    with_broker(scenario)


def by_member(*resources, down=False):
    """Return (forwarded request, [(error code, message)]) of broker 2, whose controller is remote.
    resources: (kind, name, setting, value).
    """
    new, response = (messages.IncrementalAlterConfigsRequest,
                     messages.IncrementalAlterConfigsResponse)
    passed = []

    async def forward(context, request):
        passed.extend((row.resource_type, row.resource_name) for row in request.resources)
        if down:
            raise PeerError("nobody is active")
        return response(responses=[response.AlterConfigsResourceResponse(
            error_code=0, error_message=None, resource_type=row.resource_type,
            resource_name=row.resource_name) for row in reversed(request.resources)])

    member = ConfigsApi(None, SimpleNamespace(image=SimpleNamespace(configs={}, features={})),
                        Settings(), None, 2, forward)
    answer = asyncio.run(member.incremental_alter_configs(
        SimpleNamespace(api_key=api.INCREMENTAL_ALTER_CONFIGS), new(resources=[
            new.AlterConfigsResource(resource_type=kind, resource_name=name, configs=[
                new.AlterableConfig(name=key, config_operation=SET, value=value)])
            for kind, name, key, value in resources])))
    return passed, [(row.error_code, row.error_message) for row in answer.responses]


def test_loggers_are_local_with_a_remote_controller():
    logger = logging.getLogger("pylog.metadata")
    before = logger.level
    try:
        assert by_member((LOGGER, "2", "pylog.metadata", "DEBUG")) == ([], [(0, None)])
        assert logger.level == logging.DEBUG
    finally:
        logger.setLevel(before)


def test_with_a_remote_controller_a_broker_validates_its_own_settings():
    topic, all_brokers = (TOPIC, "t", "flush.ms", "7"), (BROKER, "", "num.io.threads", "9")
    assert by_member(topic, all_brokers, (BROKER, "2", "num.io.threads", "4")) == (
        [(TOPIC, "t"), (BROKER, ""), (BROKER, "2")], [(0, None)] * 3)
    passed, (other, mine, everybodys, good) = by_member(
        (BROKER, "1", "num.io.threads", "9"), (BROKER, "2", "num.io.threads", "900"),
        (BROKER, "", "num.io.threads", "nine"), topic)
    assert passed == [(TOPIC, "t")] and good == (0, None)
    assert other == (ErrorCode.INVALID_REQUEST, "Unexpected broker id, expected 2, but received 1")
    assert mine[0] == everybodys[0] == ErrorCode.INVALID_REQUEST and "double" in mine[1]


def test_without_an_active_controller_remote_decisions_time_out():
    _, ((error, text),) = by_member((TOPIC, "t", "flush.ms", "7"), down=True)
    assert (error, text) == (ErrorCode.REQUEST_TIMED_OUT, "nobody is active")


OF_ANOTHER_VERSION = {"message.format.version": "2.8", "segment.bytes": "1000"}


def test_topic_settings_of_another_version_are_ignored():
    """Kafka 3 accepted shorter segments, and settings that no longer exist."""
    settings, stored = Settings(), {**OF_ANOTHER_VERSION, "retention.ms": "5"}
    assert settings.topic_config(stored) == settings.topic_config({"retention.ms": "5"})
    shown = {entry.name: entry for entry in entries.of_topic(settings, stored)}
    assert (shown["retention.ms"].value, shown["retention.ms"].source) == ("5", entries.TOPIC)
    assert shown["segment.bytes"] == {
        entry.name: entry for entry in entries.of_topic(settings, {})}["segment.bytes"]
    assert "message.format.version" not in shown


def test_group_settings_of_another_version_are_ignored():
    settings, good = Settings(), {"share.session.timeout.ms": "50000"}
    stored = {**good, "share.of.a.later.version": "1", "consumer.session.timeout.ms": "many"}
    assert entries.of_group(settings, stored) == entries.of_group(settings, good)

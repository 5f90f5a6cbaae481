import pytest

from pylog.config import ConfigError, Settings, validate_topic_config


def test_every_setting_has_its_default_without_any_configuration():
    settings = Settings()
    assert settings["node.id"] == 1
    assert settings["log.segment.bytes"] == 1 << 30
    assert settings["process.roles"] == ("broker", "controller")
    assert [repr(entry) for entry in settings.listeners] == ["PLAINTEXT://localhost:9092"]
    assert settings.advertised_listeners == ()
    assert settings.origin("node.id") == "default"
    assert settings.warnings == []


def test_override_takes_precedence_over_the_file(tmp_path):
    path = tmp_path / "server.properties"
    path.write_text("node.id=3\nlog.segment.bytes : 2097152\n# a comment\nlog.dirs=/a, /b\n")
    settings = Settings.load(str(path), ["node.id=4"])
    assert settings["node.id"] == 4
    assert settings["log.segment.bytes"] == 2 << 20
    assert settings.log_dirs == ("/a", "/b")
    assert settings.origin("node.id") == "--override"
    assert settings.origin("log.segment.bytes") == f"{path}:2"


def test_an_unknown_key_is_rejected_with_the_nearest_valid_name(tmp_path):
    path = tmp_path / "server.properties"
    path.write_text("\nlog.segment.byte=1\n")
    with pytest.raises(ConfigError, match=r"log\.segment\.byte; nearest valid name: "
                       r"log\.segment\.bytes \(.*server\.properties:2\)"):
        Settings.load(str(path))


def test_removed_setting_is_rejected_with_its_replacement():
    with pytest.raises(ConfigError, match=r"zookeeper\.connect was removed.*process\.roles"):
        Settings({"zookeeper.connect": "localhost:2181"})


@pytest.mark.parametrize(("name", "text", "words"), [
    ("log.segment.bytes", "1048575", "1048575.*log.segment.bytes.*at least 1048576"),
    ("log.segment.bytes", "2147483648", "Not a number of type INT"),
    ("log.segment.bytes", "1_048_576", "Not a number of type INT"),
    ("log.segment.bytes", "", "Not a number of type INT"),
    ("log.preallocate", "yes", "true or false"),
    ("log.cleanup.policy", "delete,shred", "one of: compact, delete"),
    ("log.cleanup.policy", "delete,,compact", "values must not be empty"),
    ("compression.type", "brotli", "one of: uncompressed, zstd"),
    ("compression.gzip.level", "0", "between 1 and 9 or equal to -1"),
    ("log.cleaner.min.cleanable.ratio", "1.1", "no more than 1"),
    ("log.retention.ms", "0", "must be unlimited .-1."),
    ("log.roll.ms", "0", "greater than or equal to 1"),
    ("listeners", "PLAINTEXT:9092", "NAME://host:port"),
    ("listeners", "PLAINTEXT://h:70000", "0 to 65535"),
    ("listeners", "OTHER://h:1", "listener.security.protocol.map"),
    ("listeners", "PLAINTEXT://:1,PLAINTEXT://:2", "twice"),
    ("listeners", "", "must not be empty"),
    ("advertised.listeners", "PLAINTEXT://0.0.0.0:9092",
     "not an address that clients can connect to"),
    ("advertised.listeners", "PLAINTEXT://h:0", "not an address that clients can connect to"),
    ("inter.broker.listener.name", "INSIDE", "no listener has that name"),
    ("process.roles", "controller", "must only contain KRaft controller listeners"),
        ("process.roles", "broker", "controller.quorum.voters"),
    ("log.dirs", "/a,/a/", "twice"),
    ("remote.log.storage.system.enable", "true", "tiered"),
])
def test_invalid_value_is_rejected_with_the_permitted_ones(name, text, words):
    with pytest.raises(ConfigError, match=words):
        Settings({name: text})


def test_setting_without_effect_is_accepted_with_a_warning():
    settings = Settings({"num.replica.alter.log.dirs.threads": "2",
                         "listener.name.inside.ssl.protocol": "TLSv1.3",
                         "super.users": "User:a", "num.io.threads": "2"})
    assert settings["num.replica.alter.log.dirs.threads"] == 2
    assert [warning.split()[0] for warning in settings.warnings] == [
        "num.replica.alter.log.dirs.threads", "listener.name.inside.ssl.protocol"]


def test_setting_for_one_listener_that_applies_to_all_gives_a_warning():
    settings = Settings({"listener.name.inside.socket.send.buffer.bytes": "1000",
                         "listener.name.inside.max.connections": "5",
                         "listener.name.inside.plain.sasl.jaas.config": "x required;"})
    assert [warning.split()[0] for warning in settings.warnings] == [
        "listener.name.inside.socket.send.buffer.bytes"]
    assert "socket.send.buffer.bytes" in settings.warnings[0]


@pytest.mark.parametrize("name", [
    "principal.builder.class", "listener.name.plaintext.principal.builder.class",
    "sasl.server.callback.handler.class",
    "listener.name.sasl_ssl.plain.sasl.server.callback.handler.class"])
def test_java_class_that_identifies_clients_is_rejected(name):
    with pytest.raises(ConfigError, match=f"{name}=com.example.Own.*cannot load Java classes"):
        Settings({name: "com.example.Own"})
    with pytest.raises(ConfigError):
        Settings({}).check_dynamic({name: "com.example.Own"}, True)
    Settings({name: "org.apache.kafka.common.security.Kafkas"})


def test_byte_order_mark_at_the_start_of_a_file_is_ignored(tmp_path):
    path = tmp_path / "server.properties"
    path.write_bytes(b"\xef\xbb\xbfnode.id=7\n")
    assert Settings.load(str(path))["node.id"] == 7


def test_a_password_is_not_repeated_in_a_message():
    text = Settings({"ssl.key.password": "s3cret"}).explain("ssl.key.password")
    assert "s3cret" not in text


def test_kafkas_default_single_node_file_is_accepted():
    settings = Settings({
        "process.roles": "broker,controller", "node.id": "1",
        "controller.quorum.bootstrap.servers": "localhost:9093",
        "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
        "inter.broker.listener.name": "PLAINTEXT",
        "advertised.listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL",
        "log.dirs": "/tmp/kraft-combined-logs", "num.partitions": "1"})
    assert [repr(entry) for entry in settings.listeners] == ["PLAINTEXT://:9092"]
    assert list(map(repr, settings.advertised_listeners)) == ["PLAINTEXT://localhost:9092"]
    assert any("controller" in warning for warning in settings.warnings)


def test_a_listener_may_be_ipv6_and_on_port_zero():
    settings = Settings({"listeners": "plaintext://[::1]:0"})
    entry = settings.listeners[0]
    assert (entry.name, entry.host, entry.port, repr(entry)) == (
        "PLAINTEXT", "::1", 0, "PLAINTEXT://[::1]:0")


def test_two_listeners_do_not_share_a_port():
    protocols = "A:PLAINTEXT,B:PLAINTEXT"
    with pytest.raises(ConfigError, match="share a port"):
        Settings({"listeners": "A://:1,B://h:1", "listener.security.protocol.map": protocols})
    assert len(Settings({"listeners": "A://:0,B://h:0",
                         "listener.security.protocol.map": protocols}).listeners) == 2


def test_broker_id_is_the_old_name_of_node_id():
    assert Settings({"broker.id": "7"})["node.id"] == 7
    with pytest.raises(ConfigError, match="differ"):
        Settings({"broker.id": "7", "node.id": "8"})


@pytest.mark.parametrize(("texts", "ms"), [
    ({}, 7 * 86_400_000),
    ({"log.retention.hours": "2"}, 7_200_000),
    ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 180_000),
    ({"log.retention.ms": "5", "log.retention.minutes": "3"}, 5),
    ({"log.retention.hours": "-1"}, -1),
    ({"log.retention.minutes": "-5"}, -1),
])
def test_retention_uses_the_finest_configured_unit(texts, ms):
    assert Settings(texts).topic_defaults()["retention.ms"] == ms


def test_topic_defaults_come_from_the_brokers_settings():
    defaults = Settings({"log.roll.hours": "1", "log.roll.jitter.ms": "9",
                         "message.max.bytes": "77", "log.flush.interval.ms": "5",
                         "compression.type": "lz4"}).topic_defaults()
    assert defaults["segment.ms"] == 3_600_000
    assert defaults["segment.jitter.ms"] == 9
    assert defaults["max.message.bytes"] == 77
    assert defaults["flush.ms"] == 5
    assert defaults["compression.type"] == "lz4"
    assert defaults["flush.messages"] == 2**63 - 1


@pytest.mark.parametrize(("name", "text", "topic_name", "value"), [
    ("compression.lz4.level", "12", "compression.lz4.level", 12),
    ("log.flush.interval.messages", "7", "flush.messages", 7),
    ("log.flush.scheduler.interval.ms", "6", "flush.ms", 6),
    ("log.index.size.max.bytes", "4096", "segment.index.bytes", 4096),
    ("log.message.timestamp.after.max.ms", "8", "message.timestamp.after.max.ms", 8),
    ("log.message.timestamp.before.max.ms", "9", "message.timestamp.before.max.ms", 9),
    ("log.roll.jitter.hours", "2", "segment.jitter.ms", 7_200_000),
    ("log.segment.delete.delay.ms", "5", "file.delete.delay.ms", 5),
])
def test_broker_setting_is_the_default_of_its_topic_setting(name, text, topic_name, value):
    assert Settings().topic_defaults()[topic_name] != value
    assert Settings({name: text}).topic_defaults()[topic_name] == value


def test_topic_settings_override_broker_settings():
    effective = Settings().topic_config({"retention.ms": "5", "internal.segment.bytes": "1000"})
    assert effective["retention.ms"] == 5
    assert effective["segment.bytes"] == 1000
    assert effective["max.message.bytes"] == 1048588


@pytest.mark.parametrize(("name", "text", "words"), [
    ("retention.hours", "1", "Unknown topic config name: retention.hours"),
    ("segment.byte", "1", "nearest valid name: segment.bytes"),
    ("segment.bytes", "1", "at least 1048576"),
    ("retention.ms", None, "Null value"),
    ("cleanup.policy", "shred", "one of: compact, delete"),
    ("leader.replication.throttled.replicas", "1-2", "partitionId.:.brokerId"),
])
def test_a_wrong_topic_setting_is_rejected(name, text, words):
    with pytest.raises(ConfigError, match=words):
        validate_topic_config(name, text)


def test_topic_settings_that_contradict_each_other_are_rejected():
    settings = Settings()
    with pytest.raises(ConfigError, match=r"min.compaction.lag.ms \(10\) > max"):
        settings.validate_topic_configs(
            {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "9"})
    with pytest.raises(ConfigError, match="Tiered Storage functionality is disabled"):
        settings.validate_topic_configs({"remote.storage.enable": "true"})
    assert settings.validate_topic_configs({"retention.bytes": "-1"}) == {"retention.bytes": -1}


def test_explain_shows_value_origin_default_unit_and_effect():
    text = Settings.load(None, ["num.network.threads=5"]).explain("num.network.threads")
    assert "num.network.threads = 5" in text
    assert "--override" in text
    assert "(Kafka: 3)" in text
    assert "effect: yes" in text
    assert "broker default: log.retention.ms" in Settings().explain("retention.ms")
    with pytest.raises(ConfigError, match="nearest"):
        Settings().explain("num.network.thread")


def test_explain_shows_settings_of_the_authorizer():
    text = Settings.load(None, ["super.users=User:ann"]).explain("super.users")
    assert text.startswith("super.users = User:ann\n") and "separated by semicolons" in text
    with pytest.raises(ConfigError, match="nearest valid name: super.users"):
        Settings().explain("super.user")


def test_explain_shows_group_settings_and_required_restarts():
    settings = Settings({"group.consumer.session.timeout.ms": "50000"})
    told = settings.explain("consumer.session.timeout.ms")
    assert "consumer.session.timeout.ms = 50000" in told
    assert "broker default: group.consumer.session.timeout.ms" in told
    assert "start only" in settings.explain("queued.max.requests")
    assert "start only" not in settings.explain("num.io.threads")


def test_a_cleaner_thread_has_more_than_a_mebibyte_for_its_map():
    for texts in ({"log.cleaner.dedupe.buffer.size": "1048576"},
                  {"log.cleaner.dedupe.buffer.size": "2097153", "log.cleaner.threads": "2"}):
        with pytest.raises(ConfigError, match="at least 1MB per cleaner thread"):
            Settings(texts)
    settings = Settings({"log.cleaner.dedupe.buffer.size": "1048577"})
    with pytest.raises(ConfigError, match="at least 1MB per cleaner thread"):
        settings.check_dynamic({"log.cleaner.threads": "2"}, False)


def test_room_for_requests_must_hold_the_longest_request():
    with pytest.raises(ConfigError, match=r"queued\.max\.request\.bytes=1000.*104857600"):
        Settings({"queued.max.request.bytes": "1000"})
    assert Settings({"queued.max.request.bytes": "104857600"})


def test_a_controller_without_a_broker_names_the_brokers_listener_as_kafkas_may():
    texts = {"process.roles": "controller", "node.id": "7", "listeners": "CONTROLLER://127.0.0.1:9",
             "controller.listener.names": "CONTROLLER",
             "controller.quorum.voters": "7@127.0.0.1:9", "inter.broker.listener.name": "in",
             "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,IN:SASL_SSL"}
    settings = Settings(texts)
    assert settings.between_brokers == "IN" and settings.protocol_of("IN") == "SASL_SSL"
    with pytest.raises(ConfigError, match="=in: no listener has that name; there are: CONTROLLER$"):
        Settings({**texts, "listener.security.protocol.map": "CONTROLLER:PLAINTEXT"})


@pytest.mark.parametrize("former, name, text", [
    ("control.request.elements.max", "request.entries.max", "2000"),
    ("fetch.gather.max.ms", "fetch.batching.max.ms", "7"),
    ("log.dir.free.bytes.min", "log.dir.min.free.bytes", "5000"),
    ("request.log.slow.ms", "slow.request.threshold.ms", "70"),
])
def test_former_name_of_a_setting_still_works_with_a_warning(tmp_path, former, name, text):
    path = tmp_path / "server.properties"
    path.write_text(f"{former}={text}\n")
    settings = Settings.load(str(path))
    assert settings[name] == int(text) and settings.origin(name) == f"{path}:1"
    assert settings.warnings == [f"{former} is now called {name}: use that name, the former one "
                                 f"will be removed ({path}:1)"]
    assert settings.explain(former) == settings.explain(name)
    assert Settings({name: text}).warnings == []


def test_setting_under_both_names_is_an_error():
    with pytest.raises(ConfigError, match="request.log.slow.ms is the former name of "
                                          "slow.request.threshold.ms: both are set"):
        Settings({"request.log.slow.ms": "1", "slow.request.threshold.ms": "2"})


def test_dynamic_setting_stored_under_its_former_name_applies():
    settings = Settings({})
    former, name = "log.dir.free.bytes.min", "log.dir.min.free.bytes"
    assert settings.usable_dynamic({former: "7"}, False) == {name: "7"}
    settings.set_dynamic({former: "7"}, {})
    assert settings[name] == 7 and settings.dynamic_cluster == {name: "7"}
    settings.set_dynamic({former: "7", name: "8"}, {})
    assert settings[name] == 8

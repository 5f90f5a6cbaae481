"""Sensitive settings of a running brokerd do not appear on its disk, in its responses or its log.
"""

import pytest

from tests.fixtures.brokers import Brokerd
from tests.wire.messages import ask
from tests.wire.raw import Connection

NAME, PASSWORD = "listener.name.plaintext.ssl.key.password", "Pass-of-the-key-4711"
DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS = 32, 44
BROKER, DYNAMIC_BROKER, DEFAULT = 4, 2, 5


def alter(port: int) -> None:
    with Connection(port) as connection:
        answer = ask(connection, INCREMENTAL_ALTER_CONFIGS, 1, validate_only=False, resources=[{
            "resource_type": BROKER, "resource_name": "1", "configs": [
                {"name": NAME, "config_operation": 0, "value": PASSWORD}]}])
    assert answer["responses"][0]["error_code"] == 0, answer


def source_of(port: int) -> int:
    """Return the source of the setting, DEFAULT if it is not set."""
    with Connection(port) as connection:
        answer = ask(connection, DESCRIBE_CONFIGS, 4, resources=[{
            "resource_type": BROKER, "resource_name": "1", "configuration_keys": [NAME]}],
            include_synonyms=True, include_documentation=False)
    assert PASSWORD not in repr(answer)
    rows = answer["results"][0]["configs"]
    return rows[0]["config_source"] if rows else DEFAULT


def holds(broker: Brokerd, text: str) -> list[str]:
    """Return the files of a broker that contain a text."""
    return [str(path) for path in [*broker.data_dir.rglob("*"), broker.log, broker.output]
            if path.is_file() and text.encode() in path.read_bytes()]


@pytest.fixture
def broker(tmp_path):
    made = Brokerd(tmp_path, {"password.encoder.secret": "first"})
    with made:
        alter(made.port)
        assert source_of(made.port) == DYNAMIC_BROKER
    assert not holds(made, PASSWORD) and not holds(made, "first")
    return made


def test_value_is_resealed_with_a_new_secret_if_the_old_one_is_given(broker):
    broker.overrides.update({"password.encoder.secret": "second",
                             "password.encoder.old.secret": "first"})
    with broker:
        assert source_of(broker.port) == DYNAMIC_BROKER
    del broker.overrides["password.encoder.old.secret"]
    with broker:
        assert source_of(broker.port) == DYNAMIC_BROKER
    assert not holds(broker, PASSWORD)


def test_value_with_an_unknown_secret_is_not_in_force_and_logged(broker):
    broker.overrides["password.encoder.secret"] = "another"
    with broker:
        assert source_of(broker.port) == DEFAULT
    told = broker.log.read_text()
    assert "a dynamic setting cannot be used" in told and NAME in told
    broker.overrides["password.encoder.secret"] = "first"
    with broker:
        assert source_of(broker.port) == DYNAMIC_BROKER

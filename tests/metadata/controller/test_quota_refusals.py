"""Rejected client quotas, with Kafka's messages; the request's other quotas are applied."""

import pytest

from pylog.metadata.image.image import Image
from pylog.protocol.errors import ErrorCode
from tests.metadata.controller.test_client_quotas import altered, entry

RATE = ("producer_byte_rate", 5.0)
IP = (("ip", "10.0.0.1"),)


@pytest.mark.parametrize(("parts", "ops", "text"), [
    ((), [RATE], "Invalid empty client quota entity"),
    ((("group", "g"),), [RATE], "Unhandled client quota entity type: group"),
    ((("user", ""),), [RATE], "Empty user not supported"),
    ((("ip", "10.0.0.1"), ("user", "u")), [("connection_creation_rate", 5.0)],
     "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId"),
    ((("ip", "nowhere"),), [("connection_creation_rate", 5.0)],
     "nowhere is not a valid IP or resolvable host."),
    ((("user", "u"), ("client-id", None)), [RATE, RATE],
     "Ignoring duplicate entity ClientQuotaEntity(entries={client-id=null, user=u})"),
    (IP, [RATE], "Invalid configuration key producer_byte_rate"),
    ((("user", "u"),), [("connection_creation_rate", 5.0)],
     "Invalid configuration key connection_creation_rate"),
    ((("user", "u"),), [("producer_byte_rate", float("inf"))],
     "Quota producer_byte_rate must be a finite number"),
    ((("user", "u"),), [("producer_byte_rate", float("nan"))],
     "Quota producer_byte_rate must be a finite number"),
    ((("user", "u"),), [("producer_byte_rate", 0.0)],
     "Quota producer_byte_rate must be greater than 0"),
    ((("user", "u"),), [("request_percentage", -1.0)],
     "Quota request_percentage must be greater than 0"),
])
def test_invalid_quota_does_not_affect_other_entities(parts, ops, text):
    image, _, (refused, made) = altered(
        Image(), entry(parts, *ops), entry((("user", "other"),), RATE), hosts=("10.0.0.1",))
    assert (refused.error, refused.message) == (ErrorCode.INVALID_REQUEST, text)
    assert made.error == 0 and list(image.client_quotas.values()) == [dict([RATE])]


def test_repeated_entity_is_rejected_regardless_of_its_changes():
    ops = [RATE], [("consumer_byte_rate", 6.0)]
    _, _, (result,) = altered(Image(), *(entry((("user", "u"),), *some) for some in ops))
    assert result.error == ErrorCode.INVALID_REQUEST and "duplicate entity" in result.message


@pytest.mark.parametrize("value", [0.5, 1.0, 2.0])
def test_a_percentage_may_be_any_number_above_0(value):
    image, _, (result,) = altered(Image(), entry((("user", "u"),), ("request_percentage", value)))
    assert result.error == 0 and list(image.client_quotas.values()) == [
        {"request_percentage": value}]


@pytest.mark.parametrize("name", ["10.0.0.1", None])
def test_an_address_has_a_rate_of_connections(name):
    image, _, (result,) = altered(Image(), entry(
        (("ip", name),), ("connection_creation_rate", 1.0)), hosts=("10.0.0.1",))
    assert result.error == 0 and list(image.client_quotas.values()) == [
        {"connection_creation_rate": 1.0}]

"""AlterClientQuotas: records, rejections, and the resulting image."""


import pytest

from pylog.metadata.controller import client_quotas
from pylog.metadata.image import snapshot
from pylog.metadata.image.image import Image, apply
from pylog.metadata.image.state_store import Store
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode
from pylog.config.client_quotas import entity
from tests.metadata.node import Node

REQUEST = messages.AlterClientQuotasRequest


def entry(parts, *ops):
    return REQUEST.EntryData(
        entity=[REQUEST.EntityData(entity_type=kind, entity_name=name) for kind, name in parts],
        ops=[REQUEST.OpData(key=key, value=0.0 if value is None else value, remove=value is None)
             for key, value in ops])


def altered(image: Image, *entries, hosts=()):
    records, results = client_quotas.alter(image, entries, hosts)
    return apply(image, records, image.offset + max(1, len(records)), 1), records, results


USER = (("user", "u"),)
PAIR = (("user", None), ("client-id", "c"))


def test_quotas_are_stored_by_entity_and_removed_separately():
    image, _, results = altered(Image(), entry(USER, ("producer_byte_rate", 5.0),
                                               ("request_percentage", 1.5)),
                                entry(PAIR, ("consumer_byte_rate", 6.0)))
    assert [result.error for result in results] == [0, 0]
    assert image.client_quotas == {
        entity(USER): {"producer_byte_rate": 5.0, "request_percentage": 1.5},
        entity(PAIR): {"consumer_byte_rate": 6.0}}
    before = image
    image, records, _ = altered(image, entry(USER, ("producer_byte_rate", None)),
                                entry(PAIR, ("consumer_byte_rate", None)))
    assert len(records) == 2
    assert image.client_quotas == {entity(USER): {"request_percentage": 1.5}}
    assert entity(PAIR) in before.client_quotas


def test_unchanged_quota_writes_no_record():
    image, _, _ = altered(Image(), entry(USER, ("producer_byte_rate", 5.0)))
    _, records, results = altered(image, entry(USER, ("producer_byte_rate", 5.0),
                                               ("consumer_byte_rate", None)))
    assert records == [] and results[0].error == 0


def test_an_entity_is_altered_as_a_whole_or_not_at_all():
    image, records, results = altered(
        Image(), entry(USER, ("producer_byte_rate", 5.0), ("no_such", 1.0)),
        entry(PAIR, ("producer_byte_rate", 5.0)))
    assert [result.error for result in results] == [ErrorCode.INVALID_REQUEST, 0]
    assert results[0].message == "Invalid configuration key no_such"
    assert list(image.client_quotas) == [entity(PAIR)] and len(records) == 1


def test_quota_addresses_must_resolve():
    for name, error in (("known", 0), (None, 0), ("unknown", ErrorCode.INVALID_REQUEST)):
        _, _, (result,) = altered(Image(), entry((("ip", name),),
                                                 ("connection_creation_rate", 5.0)),
                                  hosts={"known"})
        assert result.error == error


def test_the_record_is_kafkas():
    _, (record,), _ = altered(Image(), entry(PAIR, ("consumer_byte_rate", 6.0)))
    assert [(part.entity_type, part.entity_name) for part in record.entity] == [
        ("client-id", "c"), ("user", None)]
    assert (record.key, record.value, record.remove) == ("consumer_byte_rate", 6.0, False)


@pytest.fixture
def limited():
    return altered(Image(offset=4, epoch=1), entry(USER, ("producer_byte_rate", 5.0)),
                   entry(PAIR, ("consumer_byte_rate", 6.0), ("request_percentage", 0.25)))[0]


def test_a_snapshot_and_the_stored_image_hold_quotas(limited, tmp_path):
    assert apply(Image(), snapshot.records_of(limited), limited.offset, limited.epoch) == limited
    store = Store(str(tmp_path))
    store.save(limited, [])
    assert store.load_image() == limited
    store.close()


@pytest.mark.parametrize("crash", [False, True])
def test_quotas_survive_a_restart(tmp_path, crash):
    node = Node(tmp_path)
    request = REQUEST(entries=[entry(PAIR, ("consumer_byte_rate", 6.0))])
    result, = node.decide(node.service.controller.alter_client_quotas(request, ()))
    assert result.error == 0
    dry = REQUEST(entries=[entry(USER, ("consumer_byte_rate", 6.0))], validate_only=True)
    assert node.decide(node.service.controller.alter_client_quotas(dry, ()))[0].error == 0
    node.crash() if crash else node.stop()
    node = Node(tmp_path)
    assert node.image.client_quotas == {entity(PAIR): {"consumer_byte_rate": 6.0}}
    node.stop()

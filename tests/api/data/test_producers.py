import pytest

from pylog.protocol import api, messages
from tests.api.support import with_broker

NEW = messages.InitProducerIdRequest


@pytest.mark.parametrize("version", range(6))
def test_producer_ids_are_unique(version):
    async def scenario(broker):
        answers = [await broker.ask(api.INIT_PRODUCER_ID, version, NEW(transactional_id=None))
                   for _ in range(3)]
        assert [(a.error_code, a.producer_epoch) for a in answers] == [(0, 0)] * 3
        assert len({a.producer_id for a in answers}) == 3
    with_broker(scenario)


def test_init_with_an_old_producer_id_returns_a_new_one():
    async def scenario(broker):
        first = await broker.ask(api.INIT_PRODUCER_ID, 4, NEW(transactional_id=None))
        second = await broker.ask(api.INIT_PRODUCER_ID, 4, NEW(
            transactional_id=None, producer_id=first.producer_id, producer_epoch=0))
        assert second.producer_id > first.producer_id and second.producer_epoch == 0
    with_broker(scenario)

import asyncio

from pylog.metadata.image.image import Broker, Image
from pylog.replication.departures import HOLD_S, LISTED_S, Departures


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def brokers(*active, fenced=(), leaving=()):
    image = Image()
    image.brokers = {id_: Broker(id_, 1, bytes(16), (), {}, None, id_ in fenced, id_ in leaving, ())
                     for id_ in (*active, *fenced, *leaving)}
    return image


def made(*active):
    clock = Clock()
    departures = Departures(clock)
    departures.take_brokers(brokers(*active))
    return departures, clock


def test_nothing_is_delayed_while_no_broker_is_lost():
    departures, _ = made(1, 2, 3)
    assert not departures.suspects and not departures.any
    asyncio.run(asyncio.wait_for(departures.settled(), 5))


def test_responses_wait_for_the_controller_after_a_leader_connection_is_lost():
    async def scenario():
        departures, _ = made(1, 2, 3)
        departures.lost(2)
        assert departures.suspects == {2} and departures.any
        waiting = asyncio.create_task(departures.settled())
        await asyncio.sleep(0)
        assert not waiting.done()
        departures.take_brokers(brokers(1, 3, fenced=[2]))
        await waiting
        assert not departures.suspects
    asyncio.run(scenario())


def test_broker_is_probed_when_its_connections_end_before_the_verdict():
    departures, _ = made(1, 2, 3)
    departures.refresh = lambda: departures.lost(2)
    assert departures.suspects


def test_responses_stop_waiting_when_the_connection_returns():
    async def scenario():
        departures, _ = made(1, 2, 3)
        departures.lost(2)
        waiting = asyncio.create_task(departures.settled())
        await asyncio.sleep(0)
        departures.back(2)
        await waiting
        assert not departures.any
    asyncio.run(scenario())


def test_responses_wait_for_all_suspected_brokers():
    async def scenario():
        departures, _ = made(1, 2, 3)
        departures.lost(2)
        departures.lost(3)
        waiting = asyncio.create_task(departures.settled())
        await asyncio.sleep(0)
        departures.back(3)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not waiting.done()
        departures.back(2)
        await waiting
    asyncio.run(scenario())


def test_responses_wait_for_a_bounded_time():
    departures, clock = made(1, 2, 3)
    departures.lost(2)
    clock.now += HOLD_S
    assert not departures.suspects
    asyncio.run(asyncio.wait_for(departures.settled(), 5))


def test_repeatedly_lost_connection_does_not_delay_each_time():
    departures, clock = made(1, 2, 3)
    departures.lost(2)
    departures.back(2)
    departures.lost(2)
    assert not departures.suspects
    clock.now += HOLD_S
    departures.lost(2)
    assert departures.suspects


def test_fenced_broker_is_not_awaited():
    departures, _ = made(1, 3)
    departures.lost(2)
    assert not departures.suspects


def test_dead_broker_stays_listed_temporarily():
    departures, clock = made(1, 2, 3)
    departures.take_brokers(brokers(1, 3, fenced=[2]))
    assert departures.is_listed(2) and departures.any and not departures.suspects
    clock.now += LISTED_S
    assert not departures.is_listed(2) and not departures.any


def test_returned_broker_is_listed_with_its_state():
    departures, _ = made(1, 2, 3)
    departures.take_brokers(brokers(1, 3, fenced=[2]))
    departures.take_brokers(brokers(1, 2, 3))
    assert not departures.is_listed(2) and not departures.any


def test_stopped_broker_is_no_longer_listed():
    departures, _ = made(1, 2, 3)
    departures.take_brokers(brokers(1, 3, leaving=[2]))
    departures.take_brokers(brokers(1, 3, fenced=[2]))
    assert not departures.is_listed(2) and not departures.any


def test_broker_fenced_before_this_ones_start_is_not_listed():
    departures = Departures(Clock())
    departures.take_brokers(brokers(1, 3, fenced=[2]))
    assert not departures.is_listed(2)

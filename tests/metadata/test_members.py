import asyncio
import random
import socket

from pylog.config import Settings
from pylog.metadata import controller
from pylog.metadata.active_controller import ActiveController
from pylog.metadata.image import Image
from pylog.metadata.quorum import QuorumLost
from pylog.metadata.tail import Tail
from pylog.protocol import messages
from tests.metadata.memory import MemoryLog, NoLogs


def registered(broker_id: int, port: int):
    """A broker that serves, as an earlier controller wrote it."""
    new = messages.RegisterBrokerRecord
    return new(broker_id=broker_id, incarnation_id=bytes([broker_id]) * 16, broker_epoch=broker_id,
               end_points=[new.BrokerEndpoint(name="PLAINTEXT", host="127.0.0.1", port=port,
                                              security_protocol=0)],
               features=[], rack=None, fenced=False, in_controlled_shutdown=False,
               log_dirs=[bytes([broker_id]) * 16])


def test_a_new_controller_fences_whoever_went_with_the_former_one_before_its_session_ends():
    async def run():
        with socket.create_server(("127.0.0.1", 0)) as alive, \
                socket.create_server(("127.0.0.1", 0)) as dead:
            ports = alive.getsockname()[1], dead.getsockname()[1]
            dead.close()
            log = MemoryLog()
            log.append([*controller.bootstrap(Image()), registered(2, ports[0]),
                        registered(3, ports[1])], log.elect(3), 0)
            tail = Tail(Image())
            tail.replay(log.read(0))
            settings = Settings({"broker.session.timeout.ms": "600000"})
            decider = ActiveController(log, tail, NoLogs(), settings, random.Random(7), 1, "c")
            await decider.begin(log.elect(1))
            async with asyncio.timeout(20):
                while not tail.newest.brokers[3].fenced:
                    await asyncio.sleep(0.01)
            assert not tail.newest.brokers[2].fenced
            decider.resign()
    asyncio.run(run())


def test_a_quorum_that_is_away_is_not_asked_for_a_silent_broker_again_and_again(caplog):
    tries = []

    class Away(MemoryLog):
        def append(self, records, epoch, expected_end):
            if self.is_away:
                tries.append(records)
                raise QuorumLost("planted")
            return super().append(records, epoch, expected_end)

    async def run():
        log = Away()
        log.is_away = False
        log.append([*controller.bootstrap(Image()), registered(2, 1)], log.elect(3), 0)
        tail = Tail(Image())
        tail.replay(log.read(0))
        settings = Settings({"broker.session.timeout.ms": "1"})
        decider = ActiveController(log, tail, NoLogs(), settings, random.Random(7), 1, "c")
        await decider.begin(log.elect(1))
        log.is_away = True
        async with asyncio.timeout(20):
            while len(tries) < 3:
                await asyncio.sleep(0.01)
        began_s, count = asyncio.get_running_loop().time(), len(tries)
        await asyncio.sleep(1)
        passed_s = asyncio.get_running_loop().time() - began_s
        assert len(tries) - count <= passed_s / 0.1 + 1
        decider.resign()

    asyncio.run(run())
    assert "Traceback" not in caplog.text

"""Clients after a fork, at program exit, when dropped, and when records are lost."""

import asyncio
import contextlib
import gc
import os
import subprocess
import sys
import time
import uuid
import weakref

import pytest

from pylog.client import Admin, Consumer, Producer, ShareConsumer, aio
from pylog.client.errors import ForkedError, LostRecords
from pylog.testing.ports import free_port
from tests.client.reading import new_topic
from tests.fixtures.brokers import REPOSITORY, Brokerd
from tests.fixtures.waits import until


def in_child(function) -> int:
    """Return the exit code of a forked child that runs function()."""
    child = os.fork()
    if child == 0:
        try:
            function()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_forked_child_raises_at_once_and_the_parent_continues(target):
    topic = new_topic(target.bootstrap, 1)
    with Producer(bootstrap_servers=target.bootstrap) as producer, \
            Consumer(bootstrap_servers=target.bootstrap) as consumer:
        producer.send(topic, b"before").result(10)

        def child():
            for call in (lambda: producer.send(topic, b"x"), producer.flush,
                         lambda: consumer.partitions_for(topic)):
                with pytest.raises(ForkedError, match="used after fork"):
                    call()
            producer.close()

        assert in_child(child) == 0
        assert producer.send(topic, b"after").result(10).offset == 1


def test_a_forked_child_does_not_read_its_parents_records(target):
    topic = new_topic(target.bootstrap, 1)
    with Producer(bootstrap_servers=target.bootstrap) as producer:
        for _ in range(9):
            producer.send(topic, b"x")
    with Consumer(bootstrap_servers=target.bootstrap, group_id=uuid.uuid4().hex,
                  auto_offset_reset="earliest", max_poll_records=3) as consumer:
        consumer.subscribe([topic])
        while not consumer.poll(5):
            pass

        def child():
            for call in (consumer.poll, consumer.poll_columns, consumer.commit_async,
                         consumer.wakeup, lambda: next(iter(consumer))):
                with pytest.raises(ForkedError, match="used after fork"):
                    call()

        assert in_child(child) == 0
        assert [record.offset for record in consumer.poll(5)] == [3, 4, 5]


def test_flush_counts_lost_records_and_raises_on_request(target):
    with Producer(bootstrap_servers=target.bootstrap, max_request_size=1 << 20,
                  enable_idempotence=False) as producer:
        topic = new_topic(target.bootstrap, 1, **{"max.message.bytes": "1000"})
        assert producer.flush() == 0
        for _ in range(3):
            producer.send(topic, os.urandom(2000))
        assert producer.flush() == 3
        assert producer.flush(check=True) == 0
        producer.send(topic, os.urandom(2000))
        with pytest.raises(LostRecords, match="1 record not acknowledged") as lost:
            producer.flush(check=True)
        assert lost.value.count == 1


def test_a_program_that_ends_without_a_flush_is_warned(target):
    topic = new_topic(target.bootstrap, 1)
    program = (
        "import logging; logging.basicConfig()\n"
        "from pylog.client import Producer\n"
        f"producer = Producer(bootstrap_servers={target.bootstrap!r}, linger_ms=60000)\n"
        f"producer.send({topic!r}, b'x')\n")
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True,
                          text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "records to 1 partition were not delivered: call flush()" in done.stderr


# Clients dropped by the application.

def descriptors() -> int:
    """Return the number of open sockets of this process."""
    found = 0
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found += os.readlink(f"/proc/self/fd/{number}").startswith("socket:")
    return found


def descriptors_with_a_loop(target) -> int:
    """Return descriptors() once the client's loop runs, which keeps a pair of sockets."""
    with Admin(bootstrap_servers=target.bootstrap) as admin:
        admin.describe_cluster()
    return descriptors()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_dropped_consumer_leaves_its_group(target, protocol):
    topic, group = new_topic(target.bootstrap, 1), f"g-{uuid.uuid4().hex[:8]}"
    settings = {"bootstrap.servers": target.bootstrap, "group.id": group,
                "group.protocol": protocol, "auto.offset.reset": "earliest"}

    def joined() -> weakref.ref:
        consumer = Consumer(settings)
        # A callback that refers to its consumer must not keep it.
        consumer.subscribe([topic], on_assign=lambda partitions: consumer.seek_to_beginning())
        until(lambda: consumer.poll(0.2) is None or consumer.assignment(), words="not assigned")
        return weakref.ref(consumer)

    with pytest.warns(ResourceWarning, match="unclosed Consumer"):
        dropped = joined()
        gc.collect()
        assert dropped() is None
    with Consumer(settings) as consumer, Producer(bootstrap_servers=target.bootstrap) as producer:
        producer.send(topic, b"value").result(30)
        consumer.subscribe([topic])
        end_s = time.monotonic() + 20  # Otherwise its session lasts 45 s.
        while not (found := consumer.poll(0.5)):
            assert time.monotonic() < end_s, "the dropped consumer is still a member"
        assert found[0].value == b"value"


def test_dropped_producer_delivers_its_records_and_closes_connections(target):
    topic = new_topic(target.bootstrap, 1)
    before = descriptors_with_a_loop(target)

    def sent():
        producer = Producer(bootstrap_servers=target.bootstrap, linger_ms=50)
        return [producer.send(topic, b"%d" % number) for number in range(10)]

    with pytest.warns(ResourceWarning, match="unclosed Producer"):
        deliveries = sent()
        gc.collect()
    assert [delivery.result(30).offset for delivery in deliveries] == list(range(10))
    until(lambda: descriptors() <= before, words=f"{descriptors()} sockets, {before} before")


def test_a_dropped_admin_closes_its_connections(target):
    before = descriptors_with_a_loop(target)

    def described():
        return Admin(bootstrap_servers=target.bootstrap).describe_cluster().nodes

    with pytest.warns(ResourceWarning, match="unclosed Admin"):
        assert described()
        gc.collect()
    until(lambda: descriptors() <= before, words=f"{descriptors()} sockets, {before} before")


def test_a_dropped_share_consumer_leaves_its_group(target):
    topic, group = new_topic(target.bootstrap, 1), f"g-{uuid.uuid4().hex[:8]}"

    def joined():
        consumer = ShareConsumer(bootstrap_servers=target.bootstrap, group_id=group)
        consumer.subscribe([topic])
        until(lambda: consumer.poll(0.2) == [] and consumer.assignment(), words="not assigned")

    with pytest.warns(ResourceWarning, match="unclosed ShareConsumer"):
        joined()
        gc.collect()
    with Admin(bootstrap_servers=target.bootstrap) as admin:
        until(lambda: not admin.describe_share_groups([group])[group].members,
              words="still a member")


def test_dropped_clients_of_asyncio_are_closed_on_their_loop(target):
    topic, group = new_topic(target.bootstrap, 1), f"g-{uuid.uuid4().hex[:8]}"
    before = descriptors()

    async def use():
        consumer = await aio.Consumer(
            bootstrap_servers=target.bootstrap, group_id=group,
            auto_offset_reset="earliest").start()
        await consumer.subscribe([topic], on_assign=lambda partitions: consumer.assignment())
        producer = await aio.Producer(bootstrap_servers=target.bootstrap).start()
        await producer.send_and_wait(topic, b"value")
        while not await consumer.poll(0.5):
            pass
        admin = await aio.Admin(bootstrap_servers=target.bootstrap).start()
        await admin.describe_cluster()

    async def main():
        async with asyncio.timeout(60):
            await use()
            gc.collect()
            while descriptors() > before + 3:  # of the loop itself
                await asyncio.sleep(0.05)
        async with aio.Admin(bootstrap_servers=target.bootstrap) as admin:
            while (await admin.describe_consumer_groups([group]))[group].members:
                await asyncio.sleep(0.05)

    with pytest.warns(ResourceWarning) as warned:
        asyncio.run(main())
    assert {"unclosed Consumer", "unclosed Producer", "unclosed Admin"} <= {
        str(one.message).partition(" of ")[0] for one in warned}


def test_a_closed_client_warns_of_nothing(target, recwarn):
    for make in (Consumer, Producer, Admin):
        made = make(bootstrap_servers=target.bootstrap)
        made.close()
        del made
    gc.collect()
    assert not [one for one in recwarn if "unclosed" in str(one.message)]


# Program exit.

def run(program: str, *arguments: str, wait_s: float = 60) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", program, *arguments], cwd=REPOSITORY,
                          capture_output=True, text=True, timeout=wait_s)


@pytest.fixture(scope="module")
def named(tmp_path_factory):
    """A broker whose clients connect by a name that must be resolved."""
    port = free_port()
    broker = Brokerd(tmp_path_factory.mktemp("named"), {
        "listeners": f"PLAINTEXT://localhost:{port}", "auto.create.topics.enable": "true"})
    broker.port = port
    with broker:
        yield broker


AFTER_MAIN = """
import sys, threading, time
from pylog.client import Consumer, Producer, TopicPartition

def late():
    while threading.main_thread().is_alive():
        time.sleep(0.01)
    with Producer(bootstrap_servers=sys.argv[1]) as producer:
        offset = producer.send(sys.argv[2], b"late").result(30).offset
    with Consumer(bootstrap_servers=sys.argv[1], auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(sys.argv[2], 0)])
        while not (found := consumer.poll(1.0)):
            pass
    print(offset, found[0].value)

threading.Thread(target=late).start()
"""


def test_clients_created_during_interpreter_shutdown_work(named):
    done = run(AFTER_MAIN, f"localhost:{named.port}", "after-main")
    assert (done.returncode, done.stdout) == (0, "0 b'late'\n"), done.stderr


AFTER_MAIN_AIO = """
import asyncio, sys, threading, time
from pylog.client.aio import Producer

def late():
    while threading.main_thread().is_alive():
        time.sleep(0.01)
    asyncio.run(main())

async def main():
    async with Producer(bootstrap_servers=sys.argv[1]) as producer:
        print((await producer.send_and_wait(sys.argv[2], b"late")).offset)

threading.Thread(target=late).start()
"""


def test_asyncio_clients_created_during_interpreter_shutdown_work(named):
    done = run(AFTER_MAIN_AIO, f"localhost:{named.port}", "after-main-aio")
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


RECONNECT = """
import sys, threading, time
from pylog.client import Producer

producer = Producer(bootstrap_servers=sys.argv[1])

def late():
    while threading.main_thread().is_alive():
        time.sleep(0.01)
    print("ready", flush=True)
    sys.stdin.readline()
    print(producer.send(sys.argv[2], b"late").result(60).offset)
    producer.close()

print(producer.send(sys.argv[2], b"first").result(30).offset)
threading.Thread(target=late).start()
"""


def test_a_client_reconnects_by_name_after_main_has_returned(named):
    process = subprocess.Popen(
        [sys.executable, "-c", RECONNECT, f"localhost:{named.port}", "reconnect"], cwd=REPOSITORY,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "0\n" and process.stdout.readline() == "ready\n"
        named.kill()
        named.start()
        out, complaints = process.communicate("go\n", timeout=90)
    finally:
        process.kill()
    assert (out, process.returncode) == ("1\n", 0), complaints[-3000:]
    assert len(complaints.splitlines()) < 50, complaints[-3000:]


AT_EXIT = """
import atexit, sys
from pylog.client import Producer

producer = Producer(bootstrap_servers=sys.argv[1], linger_ms=60000)
atexit.register(producer.close)
producer.send(sys.argv[2], b"last", on_delivery=lambda found, failure: print(found, failure))
"""


@pytest.mark.parametrize("warm", [False, True])
def test_close_at_exit_delivers_pending_records(named, warm):
    program = AT_EXIT
    if not warm:  # The handler opens the first connection to the leader.
        program = program.replace("producer.send(", "atexit.register(lambda: producer.send(")[:-1]
        program = program.rstrip() + ")\n"
    done = run(program, f"localhost:{named.port}", f"at-exit-{warm}")
    assert done.returncode == 0 and "offset=0" in done.stdout, done.stdout + done.stderr
    assert "Error" not in done.stderr, done.stderr


OPEN_AT_EXIT = """
import asyncio, sys, threading
from pylog.client import Admin, Consumer, Producer, ShareConsumer, aio, scan

bootstrap, topic, what = sys.argv[1:]
if what == "producer":
    held = Producer(bootstrap_servers=bootstrap)
    held.send(topic, b"value", on_delivery=print)
elif what == "consumer":
    held = Consumer(bootstrap_servers=bootstrap, group_id="exit")
    held.subscribe([topic])
    held.poll(1.0)
elif what == "polling":
    held = Consumer(bootstrap_servers=bootstrap, group_id="exit")
    held.subscribe([topic])
    threading.Thread(target=held.poll, args=(60,), daemon=True).start()
elif what == "share":
    held = ShareConsumer(bootstrap_servers=bootstrap, group_id="exit-share")
    held.subscribe([topic])
    held.poll(1.0)
elif what == "transaction":
    held = Producer(bootstrap_servers=bootstrap, transactional_id="exit")
    held.init_transactions()
    held.begin_transaction()
    held.send(topic, b"value")
elif what == "admin":
    held = Admin(bootstrap_servers=bootstrap)
    held.describe_cluster()
elif what == "iterator":
    held = iter(Consumer(bootstrap_servers=bootstrap, group_id="exit"))
elif what == "scan":
    Producer(bootstrap_servers=bootstrap).send(topic, b"value").result(30)
    held = iter(scan(topic, bootstrap_servers=bootstrap))
    next(held)
elif what.startswith("generator"):
    # The generator is closed after the threads of the clients have stopped.
    def suspended():
        if what == "generator of a consumer":
            with Consumer(bootstrap_servers=bootstrap, group_id="exit") as consumer:
                consumer.subscribe([topic])
                consumer.poll(1.0)
                yield
        elif what == "generator of a share consumer":
            with ShareConsumer(bootstrap_servers=bootstrap, group_id="exit-share") as consumer:
                consumer.subscribe([topic])
                consumer.poll(1.0)
                yield
        elif what == "generator of an Admin client":
            with Admin(bootstrap_servers=bootstrap) as admin:
                admin.describe_cluster()
                yield
        elif what == "generator of a producer":
            with Producer(bootstrap_servers=bootstrap) as producer:
                producer.send(topic, b"value")
                yield
        elif what == "generator in a transaction":
            producer = Producer(bootstrap_servers=bootstrap, transactional_id="exit")
            with producer.transaction():
                producer.send(topic, b"value")
                yield
        else:
            yield from RangeReader(
                {"bootstrap.servers": bootstrap}, OffsetRange(topic, 0, 0, 9), True)

    if what == "generator of a range":
        from pylog.client.spark.ranges import OffsetRange, RangeReader

        with Producer(bootstrap_servers=bootstrap) as producer:
            producer.send(topic, b"value")
    held = suspended()
    next(held)
else:
    async def main():
        global held
        held = [await made.start() for made in (
            aio.Producer(bootstrap_servers=bootstrap),
            aio.Consumer(bootstrap_servers=bootstrap, group_id="exit"),
            aio.Admin(bootstrap_servers=bootstrap))]
        await held[0].send(topic, b"value")
        await held[1].subscribe([topic])
        await held[1].poll(1.0)

    asyncio.run(main())
print("end")
"""


@pytest.mark.parametrize("what", ["producer", "consumer", "polling", "share", "transaction",
                                  "admin", "iterator", "scan", "generator of a consumer",
                                  "generator of a share consumer", "generator of an Admin client",
                                  "generator of a producer", "generator in a transaction",
                                  "generator of a range", "asyncio"])
def test_a_program_ends_with_an_open_client(target, what):
    topic = new_topic(target.bootstrap, 1)
    done = run(OPEN_AT_EXIT, target.bootstrap, topic, what)
    assert done.returncode == 0 and done.stdout.endswith("end\n"), done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr, done.stderr
    assert "never awaited" not in done.stderr, done.stderr


CALLS_AFTER_THE_END = """
import sys
from pylog.client import Consumer, Producer
from pylog.client.errors import ProgramEndedError

def suspended():
    bootstrap, topic = sys.argv[1:]
    producer = Producer(bootstrap_servers=bootstrap, linger_ms=60000)
    consumer = Consumer(bootstrap_servers=bootstrap, group_id="exit")
    consumer.subscribe([topic])
    delivery = producer.send(topic, b"value")
    types = Producer, ProgramEndedError
    try:
        yield
    finally:
        for call in (delivery.result, delivery.exception, producer.flush, consumer.commit,
                     lambda: consumer.poll(60), consumer.wakeup,
                     lambda: producer.partitions_for("another"),
                     lambda: types[0](bootstrap_servers=bootstrap)):
            try:
                call()
            except types[1] as failure:
                print(failure)

held = suspended()
next(held)
"""


def test_calls_raise_at_once_when_the_interpreter_is_shutting_down(target):
    done = run(CALLS_AFTER_THE_END, target.bootstrap, new_topic(target.bootstrap, 1))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("the program is ending") == 8, done.stdout + done.stderr

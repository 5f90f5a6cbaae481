"""A producer across a fork, at the end of its program, and when records are lost."""

import os
import subprocess
import sys

import pytest

from pylog.client.consumer import Consumer
from pylog.client.errors import ForkedError, LostRecords
from pylog.client.producer import Producer
from tests.brokers import REPOSITORY
from tests.client.reading import new_topic


def in_child(function) -> int:
    """The exit code of a forked child that runs function()."""
    child = os.fork()
    if child == 0:
        try:
            function()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_is_told_at_once_and_the_parent_goes_on(target):
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


def test_flush_counts_what_was_lost_and_raises_when_asked(target):
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

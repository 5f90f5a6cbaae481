"""A client whose calls are interrupted by signal handlers that call it again.

    python -m tests.client.interrupted_client SCENARIO BOOTSTRAP TOPIC

Owns: nothing; prints the acknowledged values as JSON.
Invariants: a call that hangs ends the process with the stacks of its threads.
"""

import faulthandler
import itertools
import json
import os
import random
import signal
import sys
import threading
import time

from pylog.client import Consumer, Producer, TopicPartition
from pylog.client.errors import ClosedError, WakeupError

HANG_S = 60
FLUSH_S = 40
STORM_S = 4
SEED = int(os.environ.get("SEED", random.randrange(1 << 32)))


class Program:
    """A producer, its records' outcomes, and signal handlers for it."""

    def __init__(self, bootstrap, topic, **settings):
        self.bootstrap, self.topic = bootstrap, topic
        self.numbers, self.acknowledged, self.accepted = itertools.count(), [], []
        self.settings = settings
        self.connect()

    def connect(self):
        self.producer = Producer(bootstrap_servers=self.bootstrap, **self.settings)
        self.producer.partitions_for(self.topic)

    def send(self):
        """Send a record with a callback; return its Delivery."""
        number = next(self.numbers)
        value = b"%d " % number + bytes(600)

        def delivered(metadata, failure):
            if failure is None:
                self.acknowledged.append(number)

        delivery = self.producer.send(self.topic, value, partition=0, on_delivery=delivered)
        self.accepted.append(number)
        return delivery

    def flush(self, *_):
        self.producer.flush(FLUSH_S)

    def send_and_flush(self, *_):
        self.send()
        self.flush()


class Interruption:
    """`with Interruption(handler, at) as it:` calls the handler before the at-th bytecode.

    passed: number of bytecodes executed.
    """

    def __init__(self, handler, at):
        self.handler, self.at, self.passed = handler, at, 0

    def __enter__(self):
        sys.settrace(self._trace)
        return self

    def __exit__(self, kind, *rest):
        sys.settrace(None)
        return kind is KeyboardInterrupt

    def _trace(self, frame, event, arg):
        if frame.f_code is Interruption.__exit__.__code__:
            return None  # The call has returned.
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.passed += 1
            if self.passed == self.at:
                self.handler()
        return self._trace


def at_every_bytecode(call, handler, prepare=lambda: None):
    """Run `call` repeatedly, with the handler before its first, its second, ... bytecode."""
    for at in itertools.count(1):
        prepare()
        faulthandler.dump_traceback_later(HANG_S, exit=True)
        with Interruption(handler, at) as interruption:
            call()
        if interruption.passed < at:
            assert at > 50, at
            return


def interrupt():
    raise KeyboardInterrupt


def sends(program):
    at_every_bytecode(program.send, program.flush)


def full_batches(program):
    at_every_bytecode(program.send, program.send_and_flush, prepare=program.send)


def flushes(program):
    at_every_bytecode(program.flush, program.flush, prepare=program.send)


def results(program):
    deliveries = []
    at_every_bytecode(lambda: deliveries[-1].result(FLUSH_S), program.flush,
                      prepare=lambda: deliveries.append(program.send()))


def cut_sends(program):
    at_every_bytecode(program.send, interrupt, prepare=program.send)


def closes(program):
    def prepare():
        program.producer.close()
        program.connect()

    def send():
        try:
            delivery = program.send()
        except ClosedError:
            return
        if delivery.exception(FLUSH_S) is not None:
            program.accepted.pop()

    at_every_bytecode(send, lambda: program.producer.close(), prepare)


def polls(program):
    with Consumer(bootstrap_servers=program.bootstrap) as consumer:
        consumer.assign([TopicPartition(program.topic, 0)])

        def poll():
            try:
                consumer.poll(0.005)
            except WakeupError:
                pass

        def handler():
            consumer.wakeup()
            program.flush()

        at_every_bytecode(poll, handler)


def storm(program, number):
    """Send while signals arrive at random moments; each handler flushes."""
    print(f"seed {SEED}", file=sys.stderr)
    source, inside, rounds = random.Random(SEED), False, 0

    def handler(*_):
        nonlocal inside, rounds
        if not inside:
            inside = True
            program.flush()
            inside, rounds = False, rounds + 1

    def shoot():
        while time.monotonic() < end_s:
            time.sleep(source.uniform(0, 0.004))
            os.kill(os.getpid(), number)

    signal.signal(number, handler)
    faulthandler.dump_traceback_later(HANG_S + STORM_S, exit=True)
    end_s = time.monotonic() + STORM_S
    thread = threading.Thread(target=shoot)
    thread.start()
    while time.monotonic() < end_s:
        for _ in range(20):
            program.send()
    thread.join()
    signal.signal(number, signal.SIG_IGN)
    assert rounds > 20, rounds


SCENARIOS = {
    "send": (sends, {"linger_ms": 0}),
    "full batches": (full_batches, {"linger_ms": 60_000, "batch_size": 1000}),
    "compressed batches": (full_batches, {"linger_ms": 60_000, "batch_size": 1000,
                                          "compression_type": "lz4"}),
    "flush": (flushes, {"linger_ms": 5}),
    "result": (results, {"linger_ms": 5}),
    "close": (closes, {"linger_ms": 0}),
    "poll": (polls, {}),
    "KeyboardInterrupt": (cut_sends, {"linger_ms": 60_000, "batch_size": 2000}),
    "SIGTERM": (lambda program: storm(program, signal.SIGTERM), {"linger_ms": 1}),
    "SIGALRM": (lambda program: storm(program, signal.SIGALRM),
                {"linger_ms": 1, "batch_size": 1000, "compression_type": "lz4"}),
}


def main(scenario, bootstrap, topic):
    function, settings = SCENARIOS[scenario]
    program = Program(bootstrap, topic, delivery_timeout_ms=120_000,
                      **settings)
    function(program)
    faulthandler.dump_traceback_later(HANG_S, exit=True)
    program.flush()
    program.producer.close()
    faulthandler.cancel_dump_traceback_later()
    print(json.dumps([program.accepted, program.acknowledged]))


if __name__ == "__main__":
    main(*sys.argv[1:])

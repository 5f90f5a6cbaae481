"""Clients that produce and consume continuously while brokers restart.

Contains librdkafka's program and the code that starts and reads the programs of all clients.

Owns: the processes of the clients.
Invariants: a producer sends the numbers from 0 on, each once, with its library's defaults for
  acks=all; records that the library gives up are reported as failed, never omitted.
"""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer

from bench import kafka
from bench.process import die_with_parent
from tests.compat import clients

PAUSE_S = 0.01
RATE = 100  # Records per second of Kafka's VerifiableProducer.
# Only this tool disables the library's retries; the file restores them.
JAVA_PRODUCER = Path(__file__).with_name("producer.properties")
GO_STEADY = "steady"
TOLD = {"producer_send_success": "acknowledged", "producer_send_error": "failed",
        "record_data": "record"}


class Steady:
    """One client's producer and its group with one member. name: a key of STARTS."""

    def __init__(self, name: str, bootstrap: str, topic: str, errors):
        self.acknowledged: list[int] = []
        self.failed: list[str] = []
        self.seen: set[int] = set()
        self.processes = [STARTS[name](way, bootstrap, topic, stdout=subprocess.PIPE,
                                       stderr=errors, text=True, preexec_fn=die_with_parent)
                          for way in ("produce", "consume")]
        for process in self.processes:
            threading.Thread(target=self._listen, args=(process.stdout,), daemon=True).start()

    def _listen(self, lines) -> None:
        for line in lines:
            word, number, *why = _words(line)
            if word == "acknowledged":
                self.acknowledged.append(int(number))
            elif word == "failed":
                self.failed.append(" ".join([number, *why]))
            elif word == "record":
                self.seen.add(int(number))

    def end_producer(self) -> None:
        self.processes[0].kill()
        self.processes[0].wait()

    def __enter__(self) -> "Steady":
        return self

    def __exit__(self, *exception) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def _words(line: str) -> list[str]:
    """Parse one output line, also of Kafka's tools."""
    if not line.startswith("{"):
        return [*line.split(), "", ""]
    row = json.loads(line)
    return [TOLD.get(row["name"], ""), str(row.get("value")), str(row.get("message", ""))]


def _librdkafka(way: str, bootstrap: str, topic: str, **options) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "tests.compat.steady", way, bootstrap, topic],
        cwd=clients.HERE.parent.parent, **options)


def _java(way: str, bootstrap: str, topic: str, **options) -> subprocess.Popen:
    options.pop("preexec_fn")         # Its own.
    if way == "produce":
        return kafka.start_tool(
            "org.apache.kafka.tools.VerifiableProducer", "--bootstrap-server", bootstrap,
            "--topic", topic, "--throughput", RATE, "--acks", -1, "--max-messages", -1,
            "--command-config", JAVA_PRODUCER, **options)
    return kafka.start_tool(
        "org.apache.kafka.tools.VerifiableConsumer", "--bootstrap-server", bootstrap,
        "--topic", topic, "--group-id", f"{topic}-group", "--session-timeout", 6000,
        "--reset-policy", "earliest", "--verbose", **options)


def _franz(way: str, bootstrap: str, topic: str, **options) -> subprocess.Popen:
    return subprocess.Popen([*clients.go_program(GO_STEADY)(), way, bootstrap, topic], **options)


STARTS = {"librdkafka": _librdkafka, "Java": _java, "franz-go": _franz}


# ---- the program of librdkafka ------------------------------------------------------------------

def _produce(bootstrap: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True,
                         "linger.ms": 0, "log_level": 0})

    def on_delivery(error, message) -> None:
        number = message.value().decode()
        print(f"acknowledged {number}" if error is None else f"failed {number} {error}",
              flush=True)

    number = 0
    while True:
        producer.produce(topic, str(number).encode(), on_delivery=on_delivery)
        producer.poll(0)
        number += 1
        time.sleep(PAUSE_S)


def _consume(bootstrap: str, topic: str) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"{topic}-group",
                         "auto.offset.reset": "earliest", "session.timeout.ms": 6000,
                         "heartbeat.interval.ms": 1000, "log_level": 0})
    consumer.subscribe([topic])
    while True:
        message = consumer.poll(1.0)
        if message is not None and not message.error():
            print(f"record {message.value().decode()}", flush=True)


if __name__ == "__main__":
    {"produce": _produce, "consume": _consume}[sys.argv[1]](*sys.argv[2:])

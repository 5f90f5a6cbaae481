"""Round trips of records by third-party clients, each with its own settings."""

import asyncio
import subprocess
import time


def librdkafka(settings: dict, topic: str, values: list) -> list:
    """Produce values and return the consumed ones."""
    from confluent_kafka import Consumer, Producer

    producer = Producer(settings)
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(60) == 0
    consumer = Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    got, end_s = [], time.monotonic() + 60
    while len(got) < len(values) and time.monotonic() < end_s:
        got += [message.value() for message in consumer.consume(100, 1.0)]
    consumer.close()
    return got


def kcat(bootstrap: str, settings: dict, topic: str, lines: str) -> str:
    command = ["kcat", "-b", bootstrap, *[
        word for name, value in settings.items() for word in ("-X", f"{name}={value}")],
        "-t", topic]
    subprocess.run([*command, "-P"], input=lines, text=True, check=True, timeout=60)
    return subprocess.run([*command, "-C", "-e", "-q"], capture_output=True, text=True,
                          timeout=60).stdout


def kafka_python(settings: dict, topic: str, values: list) -> list:
    from kafka import KafkaConsumer, KafkaProducer

    producer = KafkaProducer(**settings)
    for value in values:
        producer.send(topic, value)
    producer.close(60)
    consumer = KafkaConsumer(topic, auto_offset_reset="earliest", consumer_timeout_ms=20_000,
                             **settings)
    got = []
    for record in consumer:
        got.append(record.value)
        if len(got) == len(values):
            break
    consumer.close()
    return got


def aiokafka(settings: dict, topic: str, values: list) -> list:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    async def through() -> list:
        async with AIOKafkaProducer(**settings) as producer:
            for value in values:
                await producer.send(topic, value)
        async with AIOKafkaConsumer(topic, auto_offset_reset="earliest", **settings) as consumer:
            return [(await consumer.getone()).value for _ in values]

    return asyncio.run(asyncio.wait_for(through(), 60))


def java_tools(bootstrap: str, config, topic: str, lines: str, **options) -> str:
    """Create a topic and do the same with Kafka's console tools. config: for --command-config."""
    from bench.kafka import run_tool

    def tool(name: str, *arguments, **more) -> str:
        done = run_tool(f"org.apache.kafka.tools.{name}", "--bootstrap-server", bootstrap,
                        "--command-config", config, *arguments, wait_s=120, heap="256m",
                        **options, **more)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    tool("TopicCommand", "--create", "--topic", topic)
    tool("ConsoleProducer", "--topic", topic, input=lines)
    return tool("consumer.ConsoleConsumer", "--topic", topic, "--from-beginning",
                "--max-messages", len(lines.splitlines()))

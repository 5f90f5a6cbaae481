"""Twelve wrong programs: a type checker must report each line that ends in `# error`.

Not run, and not collected: tests/client/test_typing.py checks it.
"""

from pylog.client import Consumer, Producer, RecordMetadata, TopicPartition
from pylog.client.errors import KafkaError
from pylog.client.serialization import Int64


def misspelt_keyword() -> None:
    Consumer(bootstrap_server="localhost:9092")  # error


def misspelt_key_of_a_dict() -> None:
    Consumer({"bootstrap.server": "localhost:9092"})  # error


def wrong_value_of_a_setting() -> None:
    Producer(bootstrap_servers="localhost:9092", compression_type="zst")  # error


def wrong_type_of_a_setting() -> None:
    Producer(bootstrap_servers="localhost:9092", linger_ms="5")  # error


def value_without_a_serializer(producer: Producer) -> None:
    producer.send("orders", {"id": 1})  # error


def wrong_type_for_the_serializer() -> None:
    producer = Producer(bootstrap_servers="localhost:9092", value_serializer=Int64())
    producer.send("orders", "one")  # error


def misspelt_attribute_of_the_result(producer: Producer) -> None:
    print(producer.send("orders", b"one").result(10.0).offsett)  # error


def callback_with_too_few_parameters(producer: Producer) -> None:
    def delivered(metadata: RecordMetadata | None) -> None:
        print(metadata)

    producer.send("orders", b"one", on_delivery=delivered)  # error


def bytes_used_as_str(consumer: Consumer) -> None:
    for record in consumer.poll(1.0):
        if record.value is not None:
            print(record.value.split(","))  # error


def offset_as_str(consumer: Consumer) -> None:
    consumer.commit({TopicPartition("orders", 0): "10"})  # error


def misspelt_column(consumer: Consumer) -> None:
    consumer.poll_arrow(1.0, columns=["key", "valeu"])  # error


def misspelt_method(consumer: Consumer) -> None:
    consumer.seek_to_begining()  # error


def correct(metadata: RecordMetadata | None, failure: KafkaError | None) -> None:
    print(metadata, failure)

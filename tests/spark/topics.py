"""Topics with verifiable records, for the tests that start no JVM."""

from pylog.client import Producer
from spark import cluster, load, records
from spark.plan import Plan
from spark.summary import Expected


def filled(bootstrap, topic, content, count, partitions=2, generators=2, **settings):
    """Create and load a topic without Spark; return a validator's expectation."""
    given = {"bootstrap.servers": bootstrap, **settings}
    cluster.create_topic(given, topic, partitions)
    plan = Plan(topic, given, content, records=count, generators=generators)
    for generator in range(generators):
        for _ in load._generate(plan, generator):
            pass
    return Expected(content, {one: plan.limit(one) for one in range(generators)})


def sent(bootstrap, topic, rows):
    """rows: (value, key, partition), in this order."""
    with Producer(bootstrap_servers=bootstrap) as producer:
        for value, key, partition in rows:
            producer.send(topic, value, key, partition=partition)
        producer.flush()


def values(content, generator, start, count):
    """Return (value, key) of records as bytes."""
    made = records.made(content, generator, start, count)
    keys = [None] * count if made.key_data is None else [
        made.key_data[12 * row:12 * row + 12].tobytes() for row in range(count)]
    return [(made.data[low:high].tobytes(), key)
            for low, high, key in zip(made.offsets, made.offsets[1:], keys)]

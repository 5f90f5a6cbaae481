"""Serialize and deserialize values: text, numbers, JSON, Avro with a schema registry.

Each format is one object for both directions: `Producer(value_serializer=Json())` uses its
serialize(topic, value), `Consumer(value_deserializer=Json())` calls it with the bytes. numbers(),
json_column() and avro_column() decode whole columns.
"""

"""Values as bytes and back: texts, numbers, JSON, Avro with a schema registry.

Each format is one object for both ways: `Producer(value_serializer=Json())` uses its
serialize(topic, value), `Consumer(value_deserializer=Json())` calls it with the bytes. Whole
columns are decoded by numbers(), json_column() and avro_column().
"""

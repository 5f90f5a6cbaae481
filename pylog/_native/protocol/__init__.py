"""The codec of Kafka's messages, compiled from their tables.

Owns: nothing.
For: pylog/protocol and what decodes requests in slices.
"""

"""The codec of Kafka's messages, compiled from their tables.

Owns: nothing.
For: pylog/protocol, and the modules that decode requests in slices.
"""

"""Columns of records: pyarrow and NumPy. The consumer, the producer, serializers and the Spark data
source import its modules.

Owns: nothing.
"""

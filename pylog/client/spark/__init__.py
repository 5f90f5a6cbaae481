"""Spark reads and writes topics without a JVM connector: `spark.read.format("pylog")`.

Owns: nothing.
Invariants: (1) importing this package imports neither pyspark nor pyarrow.
"""

from __future__ import annotations

from typing import Any


def register(session: Any) -> None:
    """Makes the format "pylog" known to a SparkSession. Executors need pylog installed too."""
    from pylog.client.spark.source import PylogSource

    session.dataSource.register(PylogSource)

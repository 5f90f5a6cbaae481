"""Read and write topics with Spark without a JVM connector: `spark.read.format("pylog")`.

Owns: nothing.
Invariants: importing this package imports neither pyspark nor pyarrow.
"""

from __future__ import annotations

from typing import Any


def register(session: Any) -> None:
    """Register the format "pylog" in a SparkSession. Executors need pylog installed too."""
    from pylog.client.spark.source import PylogSource

    session.dataSource.register(PylogSource)

"""Read and write topics with Spark without a JVM connector: `spark.read.format("pylog")`.

Owns: nothing.
Invariants: importing this package imports neither pyspark nor pyarrow.
"""

from __future__ import annotations

import os
import sys
from typing import Any


def register(session: Any) -> None:
    """Register the format "pylog" in a SparkSession. Executors need pylog installed too.

    With a local master, Python workers use this interpreter unless PYSPARK_PYTHON or
    spark.pyspark.python names another one: Spark's default is the `python3` on the PATH, which is
    another one if no environment is activated.
    """
    from pylog.client.spark.source import PylogSource

    context = session.sparkContext
    if context.master.startswith("local") and not os.environ.get("PYSPARK_PYTHON") \
            and context.getConf().get("spark.pyspark.python") is None:
        context.pythonExec = sys.executable
    session.dataSource.register(PylogSource)

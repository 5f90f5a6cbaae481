"""A streaming query that writes the lines of files to a topic, exactly once: a separate driver,
which tests kill.

    python -m tests.spark.copying BOOTSTRAP DIRECTORY TOPIC CHECKPOINT
"""

import sys

from spark.session import session

SINK = "copying"
TASKS = 3


def main(bootstrap, directory, topic, checkpoint):
    spark = session("copying", master="local[2]", connector=False)
    lines = spark.readStream.format("text").option("maxFilesPerTrigger", 2).load(directory)
    # A line may get to another task when a batch is run again.
    query = (lines.repartition(TASKS).writeStream.format("pylog")
             .option("kafka.bootstrap.servers", bootstrap).option("topic", topic)
             .option("exactlyOnceId", SINK).option("checkpointLocation", checkpoint)
             .trigger(availableNow=True).start())
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])

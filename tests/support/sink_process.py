"""A streaming query into format("tolerantkafka") as a process of its own, to be killed.

    python -m support.sink_process SERVERS TOPIC CHECKPOINT BATCHES

Each micro-batch has TASKS tasks of ROWS rows, whose values are the numbers from 0 on.  Tasks are slow, so that a kill
meets them in the middle of their transactions; a failed one is tried again.  It ends after BATCHES micro-batches.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from typing import Any

TASKS = 4
ROWS = 400


def slowly(batches: Iterator[Any]) -> Iterator[Any]:
    """The same batches, one at a time."""
    for batch in batches:
        time.sleep(0.12)
        yield batch


def main(servers: str, topic: str, checkpoint: str, batches: int) -> None:
    """Runs the query; exits with 1 when it fails."""
    from pyspark.sql import SparkSession

    from spark_integration.source import TolerantKafkaDataSource

    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", str(ROWS // 4))
        .config("spark.driver.memory", "512m")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(TolerantKafkaDataSource)
    rows = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", ROWS * TASKS)
        .option("numPartitions", TASKS)
        .load()
        .selectExpr("cast(value as string) value")
        .mapInArrow(slowly, "value string")
    )
    query = (
        rows.writeStream.format("tolerantkafka")
        .option("kafka.bootstrap.servers", servers)
        .option("topic", topic)
        .option("exactlyOnce", "true")
        .option("checkpointLocation", checkpoint)
        .start()
    )
    while query.isActive and (query.lastProgress is None or query.lastProgress["batchId"] < batches - 1):
        time.sleep(0.1)
    failure = query.exception()
    query.stop()
    spark.stop()
    if failure is not None:
        sys.exit(str(failure)[:3000])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))

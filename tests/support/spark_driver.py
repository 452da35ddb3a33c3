"""A Spark driver of its own: spark_driver.py MODE ADDRESS SERVERS SOURCE TARGET ROUNDS FOLDER.

MODE is `master` or `remote`, ADDRESS what SparkSession.builder takes by that name.  It reads SOURCE in a batch, then
copies it to TARGET by a stream, a micro-batch a round.  Each step is one line of JSON on standard output; before
the next step it waits for a line on standard input.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from pyspark.sql import SparkSession

FORMAT = "tolerantkafka"


def tell(**step: Any) -> None:
    print(json.dumps(step), flush=True)


def rows(frame: Any) -> list[list[Any]]:
    found = frame.selectExpr("partition", "offset", "cast(value as string) as value").collect()
    return sorted([row.partition, row.offset, row.value] for row in found)


def where(batches: Any) -> Any:
    """The executor that reads a partition: its folder, under which Spark starts its Python workers."""
    import pyarrow as pa

    for batch in batches:
        yield pa.RecordBatch.from_pydict({"folder": [os.getcwd()] * len(batch)})


def main(mode: str, address: str, servers: str, source: str, target: str, rounds: int, folder: str) -> None:
    builder = getattr(SparkSession.builder, mode)(address)
    spark = (
        builder.config("spark.ui.enabled", "false")
        # Otherwise the first executor that registers might get all tasks; what is waited for is counted in cores.
        .config("spark.cores.max", "2")
        .config("spark.scheduler.minRegisteredResourcesRatio", "1.0")
        .config("spark.scheduler.maxRegisteredResourcesWaitingTime", "120s")
        .config("spark.driver.memory", "512m")
        .config("spark.executor.memory", "512m")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", folder)
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )

    def read(topic: str) -> Any:
        return spark.read.format(FORMAT).option("kafka.bootstrap.servers", servers).option("subscribe", topic).load()

    frame = read(source)
    executors = sorted({row.folder for row in frame.mapInArrow(where, "folder string").collect()})
    tell(step="session", kind=type(spark).__module__)
    tell(step="read", rows=rows(frame), executors=executors, chosen=rows(frame.where("partition = 1 and offset >= 2")))
    frame.selectExpr("value", "partition").write.format(FORMAT).mode("append").option(
        "kafka.bootstrap.servers", servers
    ).option("topic", target).save()
    tell(step="written", rows=rows(read(target)))

    stream = spark.readStream.format(FORMAT).option("kafka.bootstrap.servers", servers).option("subscribe", source)
    query = (
        stream.option("startingOffsets", "latest")
        .load()
        .selectExpr("value", "partition")
        .writeStream.format(FORMAT)
        .option("kafka.bootstrap.servers", servers)
        .option("topic", target)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    query.processAllAvailable()
    tell(step="streaming")
    for number in range(rounds):
        sys.stdin.readline()
        query.processAllAvailable()
        tell(step="round", number=number)
    sys.stdin.readline()
    query.stop()
    tell(step="copied", rows=rows(read(target)))
    spark.stop()
    tell(step="stopped")


if __name__ == "__main__":
    main(*sys.argv[1:6], int(sys.argv[6]), sys.argv[7])

"""A query with a shuffle, adaptive and speculative, whose first attempts of one task a micro-batch are slow.

    python -m support.speculation_process MASTER SERVERS SOURCE TOPIC CHECKPOINT

Copies SOURCE to TOPIC with exactlyOnce, in micro-batches of 100 records.  In the end it prints how the
attempts of tasks ended, by Spark's words: {"Success": 12, "TaskKilled": 3}.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import SparkSession

FORMAT = "tolerantkafka"


def slow_at_first(batches: Iterator[Any]) -> Iterator[Any]:
    """Half of a task's rows, and the rest only after the copy that Spark starts meanwhile has overtaken it."""
    context = TaskContext.get()
    is_slow = context is not None and context.partitionId() == 0 and context.attemptNumber() == 0
    for batch in batches:
        half = len(batch) // 2
        yield batch[:half]
        if is_slow:
            time.sleep(8)
        yield batch[half:]


def main(master: str, servers: str, source: str, topic: str, checkpoint: str) -> None:
    events = Path(checkpoint).parent / "events"
    events.mkdir(exist_ok=True)
    speculation = {"interval": "100ms", "multiplier": "1.1", "quantile": "0.5", "minTaskRuntime": "1s"}
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "4",
        "spark.speculation": "true",
        "spark.speculation.efficiency.enabled": "false",
        **{f"spark.speculation.{name}": value for name, value in speculation.items()},
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
    }
    # The number of tasks stays: adaptive execution would make one of so few bytes, and nothing would be slower than others.
    settings["spark.sql.adaptive.coalescePartitions.enabled"] = "false"
    spark = SparkSession.builder.master(master).config(map=settings).getOrCreate()
    frame = spark.readStream.format(FORMAT).option("kafka.bootstrap.servers", servers).option("subscribe", source)
    frame = frame.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "100").load()
    rows = frame.select("value").repartition(4, "value").mapInArrow(slow_at_first, "value binary")
    writer = rows.writeStream.format(FORMAT).option("kafka.bootstrap.servers", servers).option("topic", topic)
    writer = writer.option("exactlyOnce", "true").option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()
    spark.stop()
    ended: Counter[str] = Counter()
    for log in events.iterdir():
        for line in log.read_text().splitlines():
            event = json.loads(line)
            if event["Event"] == "SparkListenerTaskEnd":
                ended[event["Task End Reason"]["Reason"]] += 1
    print(json.dumps(ended), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

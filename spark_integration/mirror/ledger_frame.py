"""The ledger of losses as a DataFrame.

    from spark_integration.mirror.ledger_frame import ledger_dataframe

    ledger = ledger_dataframe(spark, {"bootstrap.servers": "target:9092"})
    ledger.where("reason = 'retention'").groupBy("topic").sum("offsets").show()

Columns: time (timestamp), link, topic, partition, from_offset, until_offset
(half-open), offsets (how many), reason, detail.  One row for each loss, oldest
first; no rows if no mirror has lost anything.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.mirror.state.ledger import read_ledger
from tolerant_client.security.kafka_config import kafka_python_config

_SCHEMA = (
    "time timestamp, link string, topic string, partition int, from_offset bigint, until_offset bigint, offsets bigint,"
    " reason string, detail string"
)


def ledger_dataframe(session: SparkSession, target: Mapping[str, str]) -> DataFrame:
    """Every loss in the target's ledger; `target` are Java client properties, without a prefix.

    Read once, in the driver: a ledger is small.  Raises ClusterUnreachableError.
    """
    with Cluster(kafka_python_config(target), name="target") as cluster:
        rows = cluster.run(read_ledger, cluster)
    return session.createDataFrame(
        [
            (
                datetime.datetime.fromtimestamp(row.time_ms / 1000, datetime.timezone.utc),
                row.link,
                row.topic,
                row.partition,
                row.from_offset,
                row.until_offset,
                row.until_offset - row.from_offset,
                str(row.reason),
                row.detail,
            )
            for row in rows
        ],
        _SCHEMA,
    )

"""The ledger of losses as a DataFrame."""

from __future__ import annotations

from typing import Any

import pytest

from spark_integration.mirror.ledger_frame import ledger_dataframe
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.mirror.batches.losses import LedgerRow
from tolerant_client.mirror.state.ledger import Ledger
from tolerant_client.testing import KafkaCluster

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


def test_ledger_is_a_table_with_a_row_for_each_loss(spark: Any, kafka_cluster: KafkaCluster) -> None:
    target = {"bootstrap.servers": kafka_cluster.bootstrap_servers}
    row = LedgerRow(1_700_000_000_123, "frame", "orders", 3, 30, 40, "retention", "gone")
    with Cluster({"bootstrap_servers": kafka_cluster.bootstrap_servers}, name="target") as cluster:
        cluster.run(Ledger(cluster, "frame").write, [row, row._replace(partition=4, from_offset=0)])
    found = ledger_dataframe(spark, target).where("link = 'frame'")
    assert found.where("partition = 3 and unix_millis(time) = 1700000000123 and reason = 'retention'").count() == 1
    assert found.groupBy("topic").sum("offsets").collect() == [("orders", 50)]

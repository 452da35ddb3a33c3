"""The streaming reader of spark.readStream.format("tolerantkafka").

An offset is {"topic": {"0": 23}}, the first offset of each partition that was
not read yet: the format of Spark's own Kafka source in a checkpoint, so either
source resumes where the other stopped.  It also has the topics' ids,
"topic:ID": {}, and their cluster's, ":ID": {}, which Spark's own source ignores.

Laws:
- The start of a query is determined once and stored in the end of its first micro-batch ("began at:JSON": {}), which
  Spark logs before it plans, even if there is nothing to read.  Spark stores no start for a Python source: it calls
  initialOffset for each use, also in a restart before that micro-batch is committed, so initialOffset only says that
  the query has not begun.  A first micro-batch that an earlier version or Spark's own source has planned
  has no start, and begins where the options say now.
- Micro-batches end where Spark's own source would end them (admission.py).
- What is read decides what is committed to a group, never the reverse.
- Offsets are valid only for the topic from which they were taken: a topic that was created again
  under the same name is lost data, whatever offsets its new log has.  A checkpoint
  of Spark's own source has no ids: the first micro-batch records them, empty
  if there is nothing to read.
- Topic ids are valid within one cluster.  A checkpoint of another cluster (a mirror's
  copy has identical offsets) resumes at its offsets, with a warning, like one without
  ids: only that the offsets are within the logs is checked.
- Spark asks for the next end only after the batch before it is done: so everything before
  the start is finished, and may be committed to a group.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from kafka.errors import KafkaError
from kafka.structs import TopicPartition
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from spark_integration.reading.admission import Admission, check_end
from spark_integration.reading.offsets import (
    NOT_BEGUN,
    NestedOffsets,
    began_at,
    cluster_of,
    first_end,
    flat_offsets,
    nested_offsets,
    topic_ids,
)
from spark_integration.reading.options import ReadOptions
from spark_integration.reading.reader import RangePartition, read_range
from spark_integration.reading.resolve import (
    check_same_topics,
    earliest_offsets,
    initial_offsets,
    latest_offsets,
    micro_batch_ranges,
    topics_made_anew,
)
from tolerant_client.cluster.admin.asking import raise_for
from tolerant_client.cluster.admin.groups import CommittedOffset, commit_offsets
from tolerant_client.cluster.cluster import Cluster

log = logging.getLogger(__name__)

_COMMIT_PAUSE_S = 30  # after a commit that failed


class KafkaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches on the driver; executors call `read` for each range."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self.options = options
        self.schema = schema
        self._admission = Admission(options.limits)
        self._cluster: Cluster | None = None
        self._latest: dict[TopicPartition, int] | None = None
        self._is_available_now = False
        self._available_now: dict[TopicPartition, int] | None = None
        self._finished: dict[TopicPartition, int] = {}
        self._commits_from = float("-inf")
        self._former_cluster: str | None = None  # the checkpoint's cluster, once it was warned of
        self._held: dict[TopicPartition, int] = {}  # last stable offsets that were warned of

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_cluster": None}  # executors get the reader only for `read`

    def getDefaultReadLimit(self) -> ReadLimit:
        # Spark only passes it back, or ReadAllAvailable for Trigger.Once; latestOffset knows both limits.
        limits = self.options.limits
        if limits.max_offsets is not None:
            return ReadMaxRows(limits.max_offsets)
        return ReadAllAvailable() if limits.min_offsets is None else ReadMinRows(limits.min_offsets)

    def initialOffset(self) -> NestedOffsets:
        return NOT_BEGUN

    def prepareForTriggerAvailableNow(self) -> None:
        self._is_available_now = True

    def latestOffset(self, start: NestedOffsets, limit: ReadLimit) -> NestedOffsets:
        is_first = start == NOT_BEGUN
        if is_first:
            start = self._begin()
        self.commit(start)
        cluster, given = self._connected(), flat_offsets(start)
        if self._available_now is not None:
            latest = self._available_now
        else:
            latest = cluster.run(latest_offsets, cluster, self.options, given, self._held)
        if self._is_available_now:
            self._available_now = latest
        self._latest = latest
        known = self._known_ids(start)
        ids = known | cluster.topic_ids
        anew = topics_made_anew(known, ids)  # becomes data loss once the batch is read
        given, end = _without(anew, given), latest
        if not isinstance(limit, ReadAllAvailable):
            new = sorted(latest.keys() - given.keys())
            first = cluster.run(earliest_offsets, cluster, new) if new else {}
            end = self._admission.end(given, latest, first, time.monotonic() * 1000)
        found = nested_offsets(end, ids, cluster.run(cluster.cluster_id))
        if is_first:
            return first_end(found, start)
        # Ids that the checkpoint does not have yet make a batch without rows: from then on they are compared.
        is_known = not anew and topic_ids(found).items() <= known.items()
        return start if is_known and end == given else found

    def reportLatestOffset(self) -> NestedOffsets | None:
        return nested_offsets(self._latest) if self._latest else None

    def partitions(self, start: NestedOffsets, end: NestedOffsets) -> Sequence[InputPartition]:
        if start == NOT_BEGUN:
            began = began_at(end)
            start = self._begin() if began is None else began
        cluster = self._connected()
        until = flat_offsets(end)
        # The end may come from an earlier run, or from Trigger.AvailableNow's first call.
        cluster.run(cluster.partitions, {partition.topic for partition in until})
        planned = self._known_ids(end)
        ids = {**cluster.topic_ids, **planned}
        # What was planned of a deleted topic is not read from the new one: the next batch begins there.
        gone = check_same_topics(self.options, planned, cluster.topic_ids)
        # An end of Spark's own source has no ids.
        anew = gone | check_same_topics(self.options, self._known_ids(start), ids)
        until = _without(gone, until)
        if self._available_now is not None:
            check_end(until, self._available_now, cluster.run(latest_offsets, cluster, self.options, until))
        known = _without(anew, flat_offsets(start))
        ranges = cluster.run(micro_batch_ranges, cluster, self.options, known, until, ids)
        return [RangePartition(wanted) for wanted in ranges]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, RangePartition)
        return read_range(self.options, partition.range, self.schema)

    def commit(self, end: NestedOffsets) -> None:
        offsets = flat_offsets(end)
        is_due = time.monotonic() >= self._commits_from or offsets == self._available_now
        if self.options.commits_offsets and self.options.group_id and offsets != self._finished and is_due:
            cluster = self._connected()
            try:
                cluster.run(commit_group_offsets, cluster, self.options.group_id, offsets)
                self._finished = offsets
            except KafkaError as error:
                # Nothing reads these offsets back: a later batch commits again, and those in between do not wait for the coordinator.
                self._commits_from = time.monotonic() + _COMMIT_PAUSE_S
                log.warning(
                    "The offsets of group %s were not committed, and are not for %d s: %s",
                    self.options.group_id,
                    _COMMIT_PAUSE_S,
                    error,
                )

    def stop(self) -> None:
        if self._cluster is not None:
            self._cluster.close()

    def _begin(self) -> NestedOffsets:
        """The offsets at which the options say that a new query begins, as of now."""
        cluster = self._connected()
        offsets = cluster.run(initial_offsets, cluster, self.options)
        return nested_offsets(offsets, cluster.topic_ids, cluster.run(cluster.cluster_id))

    def _known_ids(self, offset: NestedOffsets) -> dict[str, str]:
        """The topic ids of an offset, if they are of this cluster: another cluster's say nothing about its topics."""
        cluster = self._connected()
        former, here = cluster_of(offset), cluster.run(cluster.cluster_id)
        if former is None or here is None or former == here:
            return topic_ids(offset)
        if former != self._former_cluster:
            self._former_cluster = former
            log.warning(
                "The checkpoint is of cluster %s, and kafka.bootstrap.servers leads to cluster %s: the query resumes at"
                " its offsets, which are right only if this cluster has the same records at the same offsets",
                former,
                here,
            )
        return {}

    def _connected(self) -> Cluster:
        if self._cluster is None:
            self._cluster = Cluster(self.options.kafka)
        return self._cluster


def _without(topics: set[str], offsets: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
    return {partition: offset for partition, offset in offsets.items() if partition.topic not in topics}


async def commit_group_offsets(cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Commits the next offset to read of each partition, for tools that show lag; leaves out negative ones.

    The group has no members: generation -1 and no member id, like a consumer with manual assignment
    (KafkaApis.scala, handleOffsetCommitRequest).  Raises a kafka error if a broker refuses, or if none responds for some
    seconds: the next batch commits again.
    """
    wanted = {partition: CommittedOffset(offset, "") for partition, offset in offsets.items() if offset >= 0}
    if not wanted:
        return
    codes, failures = await commit_offsets(cluster, {group: wanted})
    for error in failures.values():
        raise error
    for partition, code in codes[group].items():
        raise_for(code, f"{partition.topic}-{partition.partition} of group {group}")

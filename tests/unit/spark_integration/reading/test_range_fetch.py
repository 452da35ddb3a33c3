"""Fetching one range from a scripted cluster: positions move only on proof (docs/incidents.md 2)."""

from __future__ import annotations

import asyncio
import base64
import uuid
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import errors as kafka_errors
from kafka.future import Future
from kafka.protocol.metadata import MetadataRequest
from kafka.structs import TopicPartition

from spark_integration.reading import range_fetch
from spark_integration.reading.offsets import EARLIEST, EARLIEST_LOCAL, LATEST, OffsetRange
from spark_integration.reading.options import parse_read_options
from spark_integration.reading.range_fetch import RangeFetch
from tolerant_client.cluster.fetch import FetchedPartition
from tolerant_client.errors import ClusterUnreachableError, DataLossError, RecordBatchError
from tolerant_client.records.record_batch import Record, encode_batch

TP = TopicPartition("t", 0)
OUT_OF_RANGE, NOT_LEADER, UNKNOWN_TOPIC_ID = 1, 6, 100
OLD, NEW = "SeZIJl4XSTmO6zYTSj2NNA", "pqNbVOZJQVyjiqER8A7NIg"


def batch(base_offset: int, count: int = 10, **options: Any) -> bytes:
    return encode_batch([Record(0, 1, None, b"x")] * count, base_offset=base_offset, **options)


def answer(records: bytes = b"", error_code: int = 0, end: int = 100) -> FetchedPartition:
    return FetchedPartition(TP, error_code, end, end, 0, (), memoryview(records))


THROTTLED = answer()


class ScriptedCluster:
    """Gives the responses of a script, repeating the last one; records the requests."""

    bootstrap_servers = ("nowhere:1",)

    def __init__(self, script: Sequence[FetchedPartition | Exception], log: tuple[int, int] = (0, 100)) -> None:
        self.script = list(script)
        self.log = log
        self.asked: list[int] = []
        self.refreshed = 0
        self.net = self
        self.has_tiers = True
        self.first_local = 0  # what lies before is in remote storage
        self.topics = {"t": [0]}
        self.topic_ids: dict[str, str] = {}
        self.has_ids = True  # whether it fetches by id
        self.waits: list[int] = []

    async def connect(self) -> None: ...

    async def sleep(self, seconds: float) -> None: ...

    def call_soon_with_future(self, function: Any, *args: Any) -> Future:
        """Runs coroutines that never wait here, at once."""
        future = Future()
        try:
            function(*args).send(None)
        except StopIteration as done:
            return future.success(done.value)
        except Exception as error:
            return future.failure(error)
        raise AssertionError("a scripted cluster answers at once")

    async def refresh(self) -> None:
        self.refreshed += 1

    async def leader(self, partition: TopicPartition) -> int:
        return 1

    async def partitions(self, topics: Sequence[str]) -> dict[str, list[int]]:
        return self.topics

    async def list_offsets(self, timestamps: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        named = {EARLIEST: self.log[0], EARLIEST_LOCAL: self.first_local, LATEST: self.log[1]}
        return {p: named[which] for p, which in timestamps.items()}

    async def fetch(
        self,
        node: int,
        positions: dict[TopicPartition, int],
        max_wait_ms: int = 0,
        topic_ids: dict[str, uuid.UUID] | None = None,
        **_: Any,
    ) -> list[FetchedPartition]:
        if topic_ids is not None:
            if not self.has_ids:
                raise kafka_errors.UnsupportedVersionError("Fetch version 13")
            if topic_ids["t"] != written_id(self.topic_ids["t"]):
                return [answer(error_code=UNKNOWN_TOPIC_ID)]
        self.asked.append(positions[TP])
        self.waits.append(max_wait_ms)
        step = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(step, Exception):
            raise step
        return [] if step is THROTTLED else [step]

    async def send(self, request: MetadataRequest, node: int) -> Any:
        (wanted,) = request.topics
        return SimpleNamespace(topics=[SimpleNamespace(topic_id=written_id(self.topic_ids[wanted.name]))])


def written_id(text: str) -> uuid.UUID:
    return uuid.UUID(bytes=base64.urlsafe_b64decode(f"{text}=="))


def read(
    cluster: ScriptedCluster, start: int = 0, until: int = 20, topic_id: str | None = None, **options: str
) -> list[int]:
    """The base offsets that a range yields."""
    parsed = parse_read_options({"kafka.bootstrap.servers": "h:1", "subscribe": "t", **options}, is_stream=False)
    fetch = RangeFetch(cluster, OffsetRange("t", 0, start, until, topic_id), parsed)  # type: ignore[arg-type]
    found: list[int] = []
    while not fetch.is_done:
        found += [header.base_offset for header, _ in asyncio.run(fetch.next_batches())]
    return found


def test_a_range_is_read_to_its_end_and_not_beyond() -> None:
    cluster = ScriptedCluster([answer(batch(0)), answer(batch(10) + batch(20))])
    assert read(cluster) == [0, 10]
    assert cluster.asked == [0, 10]


@pytest.mark.parametrize("has_ids", [True, False], ids=["by id", "by name"])
def test_a_range_is_read_of_the_topic_that_it_was_planned_of_alone(
    has_ids: bool, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = ScriptedCluster([answer(batch(0)), answer(batch(10))])
    cluster.has_ids, cluster.topic_ids = has_ids, {"t": OLD}
    assert read(cluster, topic_id=OLD) == [0, 10]
    cluster = ScriptedCluster([answer(batch(0)), answer(batch(10))])
    cluster.has_ids, cluster.topic_ids = has_ids, {"t": NEW}
    with pytest.raises(
        DataLossError, match=f"t-0 .* its topic was deleted and created again .its id was {OLD} and is {NEW}"
    ):
        read(cluster, topic_id=OLD)
    assert read(cluster, topic_id=OLD, failOnDataLoss="false") == []
    assert "t-0: the offsets from 0 to 20 are left out: its topic was deleted and created again" in caplog.text


def test_one_out_of_range_is_not_believed_when_the_log_says_otherwise() -> None:
    lie = answer(error_code=OUT_OF_RANGE)
    cluster = ScriptedCluster([lie, lie, lie, lie, answer(batch(0) + batch(10))])
    assert read(cluster) == [0, 10]
    assert cluster.asked == [0] * 5


def test_a_log_that_starts_later_is_data_loss() -> None:
    cluster = ScriptedCluster([answer(error_code=OUT_OF_RANGE)], log=(10, 100))
    with pytest.raises(DataLossError, match=r"t-0 .* from offset 0 to 20, but the log starts at 10"):
        read(cluster)
    assert len(cluster.asked) == 3


class WrittenTo(ScriptedCluster):
    """A log that others write to, and that retention shortens, between any two requests."""

    async def list_offsets(self, timestamps: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        self.log = (self.log[0] + 1, self.log[1] + 7)
        return await super().list_offsets(timestamps)

    async def fetch(self, *args: Any, **options: Any) -> list[FetchedPartition]:
        self.log = (self.log[0], self.log[1] + 7)
        return [part._replace(high_watermark=self.log[1]) for part in await super().fetch(*args, **options)]


def test_data_loss_is_believed_of_a_log_that_changes_meanwhile() -> None:
    cluster = WrittenTo([answer(error_code=OUT_OF_RANGE)], log=(10, 100))
    with pytest.raises(DataLossError, match="from offset 0 to 20, but the log starts at 15"):
        read(cluster)
    assert len(cluster.asked) == 3


def test_a_compacted_end_is_believed_of_a_log_that_others_write_to() -> None:
    cluster = WrittenTo([answer(batch(0)), answer()])
    assert read(cluster) == [0]
    assert cluster.asked == [0, 10, 10, 10]


def test_what_is_left_is_read_without_fail_on_data_loss() -> None:
    gone = answer(error_code=OUT_OF_RANGE)
    cluster = ScriptedCluster([gone, gone, gone, answer(batch(10))], log=(10, 100))
    assert read(cluster, failOnDataLoss="false") == [10]
    cluster = ScriptedCluster([gone], log=(50, 100))
    assert read(cluster, failOnDataLoss="false") == []


def test_records_before_a_log_start_inside_a_batch_are_not_wanted() -> None:
    gone = answer(error_code=OUT_OF_RANGE)
    cluster = ScriptedCluster([gone, gone, gone, answer(batch(0, 20))], log=(15, 100))
    options = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "failOnDataLoss": "false"}
    fetch = RangeFetch(cluster, OffsetRange("t", 0, 5, 20), parse_read_options(options, is_stream=False))  # type: ignore[arg-type]
    assert fetch.first_wanted == 5
    while not fetch.is_done:
        batches = asyncio.run(fetch.next_batches())
    assert len(batches) == 1 and fetch.first_wanted == 15


def test_a_log_that_ends_before_the_range_is_data_loss() -> None:
    with pytest.raises(DataLossError, match="the log ends at 5"):
        read(ScriptedCluster([answer(end=5)], log=(0, 5)), start=5)
    with pytest.raises(DataLossError, match="the log ends at 5"):
        read(ScriptedCluster([answer(error_code=OUT_OF_RANGE)], log=(0, 5)), start=9)


def test_a_late_high_watermark_is_waited_for() -> None:
    late = answer(end=0)
    assert read(ScriptedCluster([late] * 8 + [answer(batch(0, 20))])) == [0]


def test_a_compacted_end_is_believed_when_said_three_times() -> None:
    cluster = ScriptedCluster([answer(batch(0)), answer()])
    assert read(cluster) == [0]
    assert cluster.asked == [0, 10, 10, 10]


def test_a_moved_leader_is_looked_up_and_a_lost_answer_asked_again() -> None:
    cluster = ScriptedCluster(
        [answer(error_code=NOT_LEADER), kafka_errors.KafkaConnectionError("gone"), answer(batch(0, 20))]
    )
    assert read(cluster) == [0]
    assert cluster.refreshed == 2


def test_damage_on_the_way_is_fetched_again_and_damage_that_stays_is_raised() -> None:
    damaged = bytearray(batch(0, 20))
    damaged[-1] ^= 1
    assert read(ScriptedCluster([answer(bytes(damaged)), answer(batch(0, 20))])) == [0]
    with pytest.raises(RecordBatchError, match="CRC mismatch"):
        read(ScriptedCluster([answer(bytes(damaged))]))


def test_bytes_without_a_whole_batch_are_an_error() -> None:
    with pytest.raises(RecordBatchError, match="without a whole batch"):
        read(ScriptedCluster([answer(batch(0)[:70])]))


def test_no_progress_ends_with_an_error() -> None:
    silent = ScriptedCluster([kafka_errors.NodeNotReadyError("down")])
    with pytest.raises(ClusterUnreachableError, match=r"pollTimeoutMs"):
        read(silent, **{"kafkaConsumer.pollTimeoutMs": "50"})


def test_nothing_from_remote_storage_is_not_believed() -> None:
    """Kafka's DelayedRemoteFetch responds without records if the remote read is late."""
    nothing = answer()
    cluster = ScriptedCluster([answer(batch(0)), *[nothing] * 5, answer(batch(10))])
    cluster.first_local = 50
    assert read(cluster) == [0, 10]
    assert cluster.waits[1] < cluster.waits[2]


def test_brokers_without_tiers_are_not_asked_for_local_offsets() -> None:
    cluster = ScriptedCluster([answer(batch(0)), answer()])
    cluster.has_tiers, cluster.first_local = False, 50
    assert read(cluster) == [0]


def test_a_log_that_grows_again_is_read_on() -> None:
    cluster = ScriptedCluster([*[answer(end=10)] * 3, answer(batch(10))], log=(0, 15))
    assert read(cluster, start=10) == [10]


def test_answers_under_a_quota_are_waited_out() -> None:
    cluster = ScriptedCluster([*[THROTTLED] * 6, answer(batch(0) + batch(10))])
    assert read(cluster) == [0, 10]
    with pytest.raises(ClusterUnreachableError, match="under a quota"):
        read(ScriptedCluster([THROTTLED]), **{"kafkaConsumer.pollTimeoutMs": "1"})


def test_damage_behind_the_range_is_nobodys_concern() -> None:
    bad = bytearray(batch(20))
    bad[-1] ^= 1
    assert read(ScriptedCluster([answer(batch(0) + batch(10) + bytes(bad))])) == [0, 10]


def test_batches_that_overlap_are_damage() -> None:
    with pytest.raises(RecordBatchError, match="t-0: set that begins before the last one ended.*base offset 5"):
        read(ScriptedCluster([answer(batch(0) + batch(5))]))


def test_damage_names_its_place_and_what_to_do() -> None:
    bad = bytearray(batch(0))
    bad[-1] ^= 1
    with pytest.raises(
        RecordBatchError, match=r"^t-0: .*a stream by a new checkpointLocation and startingOffsets after it"
    ):
        read(ScriptedCluster([answer(bytes(bad))]))


def test_a_partition_that_is_gone_is_a_loss() -> None:
    gone = ScriptedCluster([kafka_errors.UnknownTopicOrPartitionError()])
    gone.topics = {}
    with pytest.raises(DataLossError, match="it does not exist any more"):
        read(gone)
    assert read(gone, failOnDataLoss="false") == []


def test_an_unreachable_cluster_is_waited_for_until_the_poll_timeout() -> None:
    away = ClusterUnreachableError("away")
    assert read(ScriptedCluster([*[away] * 8, answer(batch(0) + batch(10))])) == [0, 10]


def test_an_answer_that_was_asked_for_ahead_may_fail() -> None:
    cluster = ScriptedCluster([answer(batch(0)), kafka_errors.KafkaConnectionError(), answer(batch(10))])
    assert read(cluster) == [0, 10]
    assert (cluster.asked, cluster.refreshed) == ([0, 10, 10], 1)


def test_nothing_is_asked_ahead_for_a_slow_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """The response would be overdue before it is read."""
    monkeypatch.setattr(range_fetch, "SLOW", -1.0)
    cluster = ScriptedCluster([answer(batch(0)), answer(batch(10))])
    options = parse_read_options({"kafka.bootstrap.servers": "h:1", "subscribe": "t"}, is_stream=False)
    fetch = RangeFetch(cluster, OffsetRange("t", 0, 0, 20), options)  # type: ignore[arg-type]
    asyncio.run(fetch.next_batches())
    assert cluster.asked == [0]

"""What a task does with rows that cannot be written, on a producer that accepts everything and gets no responses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from kafka.structs import TopicPartition

from spark_integration.writing.columns import WriteColumns
from spark_integration.writing.dead_letters import REASON, TOPIC, TRIMMED, dead_letter, trimmed
from spark_integration.writing.options import parse_write_options
from spark_integration.writing.task import WriteTask
from tolerant_client.cluster.producer.batch_producer import Refused
from tolerant_client.errors import RecordRefusedError, RecordTooLargeError
from tolerant_client.records.batch_encoding import EncodedBatch
from tolerant_client.records.record_batch import Record, decode_records

DEAD = "dead"


class Producer:
    """Knows only the dead letter topic; is its own cluster and runs coroutines at once."""

    def __init__(self, topics: Sequence[str] = (DEAD,)) -> None:
        self.cluster = self
        self.bytes_in_flight = 0
        self.on_refused: Callable[[Refused], None] | None = None
        self.enqueued: list[tuple[TopicPartition, Record, int]] = []
        self._topics = topics
        self.looked_for: list[list[str]] = []

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)

    def partition_count(self, topic: str, is_fresh: bool = False) -> int:
        if topic not in self._topics:
            raise RecordRefusedError(f"Topic {topic} does not exist", topic)
        return 1

    def partition_counts(self, topics: Sequence[str]) -> dict[str, int | RecordRefusedError]:
        self.looked_for.append(list(topics))
        return {t: 1 if t in self._topics else RecordRefusedError(f"Topic {t} does not exist", t) for t in topics}

    def largest_batch(self, topic: str) -> int | None:
        return None

    def enqueue(self, partition: TopicPartition, batch: EncodedBatch, rows: Sequence[int]) -> None:
        self.enqueued += [(partition, r, int(n)) for r, n in zip(decode_records(batch.data), rows, strict=True)]

    def pump(self) -> None: ...
    def flush(self) -> None: ...


def task(producer: Any, topic: str) -> WriteTask:
    options = parse_write_options({"kafka.bootstrap.servers": "one:9092", "deadLetterTopic": DEAD})
    return WriteTask(producer, options, WriteColumns(topic, None, 0, None, None), 3)


def test_dead_letters_leave_with_every_piece() -> None:
    """Otherwise a task whose rows are all refused would keep all of them."""
    producer = Producer()
    seen: list[int] = []

    def rows() -> Iterator[pa.RecordBatch]:
        for _ in range(3):
            yield pa.record_batch([pa.array([b"x" * 9_000] * 1_000)], names=["value"])  # more than a piece
            seen.append(len(producer.enqueued))

    written = task(producer, "missing")
    written.write(rows())
    assert seen == [1_000, 2_000, 3_000]
    assert (written.rows, written.dead) == (3_000, 3_000)


def test_the_topics_of_a_column_are_looked_for_together() -> None:
    producer = Producer([DEAD, "a"])
    options = parse_write_options({"kafka.bootstrap.servers": "one:9092", "deadLetterTopic": DEAD})
    written = WriteTask(producer, options, WriteColumns(1, None, 0, None, None), 3)
    rows = pa.record_batch([pa.array([b"x"] * 4), pa.array(["a", "no", "nor", "a"])], names=["value", "topic"])
    written.write(iter([rows]))
    assert producer.looked_for == [["a", "no", "nor"]]
    letters = [dict(record.headers) for partition, record, _ in producer.enqueued if partition.topic == DEAD]
    assert [letter[REASON] for letter in letters] == [b"Topic no does not exist", b"Topic nor does not exist"]
    assert written.dead == 2


def test_a_row_for_the_dead_letter_topic_is_a_row_and_its_letter_is_none() -> None:
    """Refused as a row it becomes a letter; refused as a letter it loses its value."""
    producer = Producer()
    written = task(producer, DEAD)
    refusals = iter(range(2))

    def flush() -> None:
        partition, record, row = producer.enqueued[-1]
        if next(refusals, None) is not None:
            assert producer.on_refused is not None
            producer.on_refused(Refused(partition, record, row, RecordTooLargeError("too large", DEAD)))

    producer.flush = flush  # type: ignore[method-assign]
    written.write(iter([pa.record_batch([pa.array([b"value"])], names=["value"])]))
    (_, row, number), (_, letter, _), (_, rest, _) = producer.enqueued
    assert (row.value, number) == (b"value", 0)
    assert letter.value == b"value" and dict(letter.headers)[REASON] == b"too large"
    assert rest.value is None and dict(rest.headers)[TRIMMED] == b"5" and REASON in dict(rest.headers)
    assert (written.rows, written.dead) == (1, 1)


def test_a_letter_that_is_refused_without_its_value_fails_the_task() -> None:
    producer = Producer()
    task(producer, "t")
    letter = trimmed(dead_letter(Record(0, 1, None, b"v"), "why", "t", 5, 3))
    assert letter is not None and producer.on_refused is not None
    with pytest.raises(RecordRefusedError, match="not even so"):
        producer.on_refused(Refused(TopicPartition(DEAD, 0), letter, -1, RecordRefusedError("not even so", DEAD)))


def test_a_letter_keeps_the_start_of_a_topic_that_no_name_can_be() -> None:
    letter = dead_letter(Record(0, 1, None, b"v"), "why", "t" * 3_000_000, 5, 3)
    assert dict(letter.headers)[TOPIC] == b"t" * 249


def test_headers_of_the_record_with_our_names_are_its_own() -> None:
    record = Record(0, 1, b"key", b"value", ((TRIMMED, b"7"), (REASON, b"theirs")))
    letter = trimmed(dead_letter(record, "ours", "t", 5, 3))
    assert letter is not None
    assert [value for name, value in letter.headers if name in (REASON, TRIMMED)] == [b"ours", b"8"]

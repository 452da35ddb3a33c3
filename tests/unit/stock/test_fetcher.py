"""TolerantFetcher without a network: what it fetches, what it holds back, and when it believes a refusal."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from itertools import count, islice
from types import SimpleNamespace
from typing import Any

import kafka.errors as Errors
import pytest
from kafka import KafkaConsumer
from kafka.consumer.fetcher import CompletedFetch, Fetcher
from kafka.consumer.subscription_state import SubscriptionState
from kafka.future import Future
from kafka.protocol.consumer import OffsetResetStrategy
from kafka.record import MemoryRecordsBuilder
from kafka.structs import OffsetAndMetadata, TopicPartition

from tolerant_client.records.arrow import SCHEMA
from tolerant_client.records.record_batch import Record, encode_batch
from tolerant_client.stock import consumer as consumer_module
from tolerant_client.stock.consumer_records import PartitionRecords
from tolerant_client.stock.fetcher import TolerantFetcher
from tolerant_client.stock.moving import Destination, Move
from tolerant_client.stock.out_of_range import Doubts
from tolerant_client.tracker.events import Event, OffsetOutOfRange, RecoveryCounters

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
T0 = 1_700_000_000_000


def drive(work: Coroutine[Any, Any, Any]) -> None:
    """Runs a coroutine that never has to wait."""
    with pytest.raises(StopIteration):
        work.send(None)


class Manager:
    """What a fetcher needs of kafka-python's connection manager; `answers` are what `send` returns or raises."""

    def __init__(self, answers: Callable[[Any], Any] = lambda request: None) -> None:
        self._net = SimpleNamespace(sleep=self._sleep)
        self.broker_version = (4, 2)
        self.recovery_counters = RecoveryCounters()
        self.told: list[Event] = []
        self.cluster = SimpleNamespace(
            leader_for_partition=lambda tp: 1,
            leader_epoch_for_partition=lambda tp: 7,
            is_replica_node=lambda tp, node_id: True,
            request_update=lambda: None,
            add_listener=lambda listener: None,
            cluster_id="here",
            topics=lambda exclude_internal_topics: set(),
            topic_id=lambda name: None,
        )
        self.scheduled: list[Any] = []
        self.naps: list[float] = []
        self._answers = answers

    def call_soon(self, work: Any, *args: Any) -> None:
        if args:
            drive(work(*args))
        else:
            self.scheduled.append(work)

    def connection_delay(self, node_id: int) -> float:
        return 0

    def send(self, request: Any, node_id: int) -> Any:
        return request

    async def wait_for(self, request: Any, timeout_ms: float) -> Any:
        answer = self._answers(request)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def recovery_event(self, event: Event, node_id: Any = None) -> None:
        self.recovery_counters.add(event, node_id)
        self.told.append(event)

    async def _sleep(self, seconds: float) -> None:
        self.naps.append(seconds)


def batch(first: int, count: int = 30, epoch: int = 5) -> bytes:
    records = [Record(0, T0, None, b"%d" % n) for n in range(first, first + count)]
    return encode_batch(records, base_offset=first, partition_leader_epoch=epoch)


def answer(tp: TopicPartition, offset: int, data: bytes, error_code: int = 0) -> CompletedFetch:
    part = SimpleNamespace(
        error_code=error_code, high_watermark=1_000, last_stable_offset=500, records=memoryview(data), aborted_transactions=None,
        diverging_epoch=None, preferred_read_replica=-1, current_leader=None,
    )  # fmt: skip
    return CompletedFetch(tp, offset, 12, part, None)


def make(**options: Any) -> TolerantFetcher:
    manager = Manager()
    client = SimpleNamespace(_manager=manager, throttle_delay=lambda node_id: 0)
    subscriptions = SubscriptionState()
    subscriptions.assign_from_user([A, B])
    for tp in (A, B):
        subscriptions.seek(tp, OffsetAndMetadata(0, "", -1))
    return TolerantFetcher(client, subscriptions, **options)


@pytest.fixture
def fetcher() -> TolerantFetcher:
    return make()


def asked(fetcher: TolerantFetcher) -> dict[TopicPartition, tuple[int, int, int]]:
    """{partition: (fetch offset, last fetched epoch, current leader epoch)} of the requests that may leave now."""
    return {
        TopicPartition(topic.topic, part.partition): (
            part.fetch_offset,
            part.last_fetched_epoch,
            part.current_leader_epoch,
        )  # fmt: skip
        for request, _ in fetcher._create_fetch_requests().values()
        for topic in request.topics
        for part in topic.partitions
    }


def test_what_follows_the_buffered_response_is_asked_for_once_it_is_begun(fetcher: TolerantFetcher) -> None:
    fetcher._completed_fetches.append(answer(A, 0, batch(0) + batch(30, epoch=6)))
    assert asked(fetcher) == {B: (0, -1, 7)}
    fetcher.fetched_records(max_records=10)
    assert asked(fetcher) == {A: (60, 6, 7), B: (0, -1, 7)}
    _, offsets = fetcher._create_fetch_requests()[1]
    assert offsets == {A: 60, B: 0}
    fetcher._completed_fetches.append(answer(A, 60, batch(60)))
    assert asked(fetcher) == {B: (0, -1, 7)}
    records, _ = fetcher.fetched_records()
    assert [record.offset for record in records[A]] == list(range(10, 90))


def test_nothing_is_fetched_ahead_at_the_end_of_a_log_where_it_would_wait_before_the_fetch_after_a_seek(
    fetcher: TolerantFetcher,
) -> None:
    fetcher._completed_fetches.append(answer(A, 970, batch(970)))
    fetcher._subscriptions.seek(A, OffsetAndMetadata(970, "", -1))
    fetcher.fetched_records(max_records=10)
    assert A not in asked(fetcher)
    fetcher.fetched_records()
    assert asked(fetcher)[A][0] == 1_000


@pytest.mark.parametrize(
    ("options", "start", "others"),
    [({"isolation_level": "read_committed"}, 470, set()), ({"fetch_min_bytes": 2}, 0, {B})],
    ids=str,
)
def test_what_may_wait_at_the_broker_is_not_sent_ahead(
    options: dict[str, Any], start: int, others: set[TopicPartition]
) -> None:
    """A broker gives nothing from the last stable offset on, and nobody knows how many bytes follow the buffered ones."""
    fetcher = make(**options)
    fetcher._completed_fetches.extend([answer(B, 500, b""), answer(A, start, batch(start))])
    fetcher._subscriptions.seek(B, OffsetAndMetadata(500, "", -1))
    fetcher._subscriptions.seek(A, OffsetAndMetadata(start, "", -1))
    fetcher.fetched_records(max_records=10)
    assert set(asked(fetcher)) == others, "kafka-python fetches other partitions, too"
    fetcher.fetched_records()
    assert set(asked(fetcher)) == {A, B}


def test_an_idle_partition_is_not_asked_for_while_records_of_its_node_are_at_hand(fetcher: TolerantFetcher) -> None:
    fetcher._manager.cluster.leader_for_partition = {A: 1, B: 1}.get
    fetcher._subscriptions.seek(B, OffsetAndMetadata(1_000, "", -1))
    fetcher._completed_fetches.extend([answer(B, 1_000, b""), answer(A, 970, batch(970))])
    fetcher._subscriptions.seek(A, OffsetAndMetadata(970, "", -1))
    fetcher.fetched_records(max_records=10)
    assert asked(fetcher) == {}
    fetcher._manager.cluster.leader_for_partition = {A: 1, B: 2}.get
    assert set(asked(fetcher)) == {B}  # on another node, where no request of A's can wait for it
    fetcher._manager.cluster.leader_for_partition = {A: 1, B: 1}.get
    fetcher._subscriptions.seek(B, OffsetAndMetadata(999, "", -1))
    assert set(asked(fetcher)) == {B}  # there is something to respond with
    fetcher._subscriptions.seek(B, OffsetAndMetadata(1_000, "", -1))
    fetcher.fetched_records()
    assert set(asked(fetcher)) == {A, B}


def test_nothing_is_fetched_ahead_of_a_paused_or_moved_position_or_of_an_old_format(fetcher: TolerantFetcher) -> None:
    fetcher._completed_fetches.append(answer(A, 0, batch(0)))
    fetcher.fetched_records(max_records=10)
    fetcher._subscriptions.pause(A)
    assert A not in asked(fetcher)
    fetcher._subscriptions.resume(A)
    fetcher._subscriptions.seek(A, 500)
    assert A not in asked(fetcher)  # not before the old records are dropped
    assert fetcher.fetched_records() == ({}, False)
    assert asked(fetcher)[A] == (500, -1, 7)
    old = MemoryRecordsBuilder(magic=1, compression_type=0, batch_size=9_000, offset=500)
    for n in range(5):
        old.append(timestamp=T0, key=None, value=b"%d" % n)
    old.close()
    fetcher._completed_fetches.append(answer(A, 500, bytes(old.buffer())))
    assert len(fetcher.fetched_records(max_records=2)[0][A]) == 2
    assert A not in asked(fetcher)


def test_a_response_fetched_ahead_is_dropped_after_a_seek(fetcher: TolerantFetcher) -> None:
    fetcher._completed_fetches.extend([answer(A, 0, batch(0)), answer(A, 30, batch(30))])
    assert len(fetcher.fetched_records(max_records=10)[0][A]) == 10
    fetcher._subscriptions.seek(A, 3)
    assert fetcher.fetched_records()[0] == {}
    assert asked(fetcher)[A][0] == 3


def test_the_next_fetch_leaves_without_waiting_and_only_when_nothing_else_is_buffered(fetcher: TolerantFetcher) -> None:
    scheduled = fetcher._manager.scheduled
    fetcher._completed_fetches.extend([answer(A, 0, batch(0)), answer(B, 0, batch(0))])
    assert fetcher.fetch_records(max_records=10)[0]
    assert scheduled == []
    fetcher.fetch_records(max_records=25)
    fetcher.fetch_records(max_records=1)
    assert scheduled == [fetcher._send_fetches_async]


def test_the_event_loop_is_not_asked_to_fetch_what_is_in_flight_already(fetcher: TolerantFetcher) -> None:
    runs: list[Any] = []
    fetcher._manager.run = lambda work: runs.append(work) or []  # type: ignore[func-returns-value]
    fetcher.send_fetches()
    assert len(runs) == 1  # nothing is in flight
    fetcher._nodes_with_pending_fetch_requests.add(1)
    fetch = SimpleNamespace(is_done=False)
    fetcher._fetch_futures.append(fetch)
    assert fetcher.send_fetches() == [fetch]
    assert len(runs) == 1
    fetch.is_done = True  # it has to be removed, or every wait for records ends at once
    fetcher.send_fetches()
    assert len(runs) == 2
    fetch.is_done = False
    fetcher._is_fetch_due = True  # the fetch that is due may not be among the futures yet: wait for it
    fetcher.send_fetches()
    assert len(runs) == 3
    fetcher._is_fetch_due = False
    fetcher._nodes_with_pending_fetch_requests.clear()
    fetcher.send_fetches()
    assert len(runs) == 4


def test_an_assignment_that_changes_while_a_fetch_is_planned_is_left_to_the_event_loop(
    fetcher: TolerantFetcher,
) -> None:
    runs: list[Any] = []
    fetcher._manager.run = lambda work: runs.append(work) or []  # type: ignore[func-returns-value]
    fetcher._fetch_futures.append(SimpleNamespace(is_done=False))
    gone = TopicPartition("revoked", 0)
    fetcher._fetchable_partitions = lambda: [gone]  # type: ignore[method-assign]  # it was revoked between two checks
    assert fetcher.send_fetches() == []
    assert len(runs) == 1
    fetcher._ask_ahead()
    assert fetcher._manager.scheduled == [fetcher._send_fetches_async]


def test_a_resumed_partition_comes_back_although_another_one_was_drained(fetcher: TolerantFetcher) -> None:
    fetcher._completed_fetches.append(answer(A, 0, batch(0)))
    fetcher.fetched_records(max_records=10)
    fetcher._subscriptions.pause(A)
    fetcher._completed_fetches.append(answer(B, 0, batch(0)))
    records, _ = fetcher.fetched_records()
    assert set(records) == {B}
    fetcher._subscriptions.resume(A)
    records, _ = fetcher.fetched_records()
    assert [record.offset for record in records[A]] == list(range(10, 30))


def test_a_resumed_partition_comes_back_in_turn_although_another_one_has_much_left(fetcher: TolerantFetcher) -> None:
    fetcher._completed_fetches.append(answer(A, 0, batch(0)))
    fetcher.fetched_records(max_records=10)
    fetcher._subscriptions.pause(A)
    fetcher._completed_fetches.append(answer(B, 0, batch(0)))
    assert set(fetcher.fetched_records(max_records=7)[0]) == {B}
    assert set(fetcher.fetched_records(max_records=7)[0]) == {B}, "A is paused"
    fetcher._subscriptions.resume(A)
    records = [fetcher.fetched_records(max_records=7)[0] for _ in range(6)]
    assert [[tp.partition for tp in each] for each in records] == [[0], [1], [0], [1], [0], [1]]
    found = {tp: [r.offset for each in records for r in each.get(tp, [])] for tp in (A, B)}
    assert found == {A: list(range(10, 30)), B: list(range(14, 30))}


def test_arrow_stops_at_fetch_max_bytes_and_records_go_on_behind_it(fetcher: TolerantFetcher) -> None:
    big = [b"".join(encode_batch([Record(0, T0, None, b"." * 10_000)] * 100, base_offset=100 * n) for n in range(8))]
    fetcher._completed_fetches.append(answer(A, 0, big[0]))
    fetcher.config["fetch_max_bytes"] = 1_500_000
    rows = fetcher.table(SCHEMA, lambda: fetcher.fetched_records(max_records=10**9)[0]).num_rows
    assert 100 <= rows <= 300
    assert fetcher._subscriptions.position(A).offset == rows
    records, _ = fetcher.fetched_records(max_records=10)
    assert [record.offset for record in records[A]] == list(range(rows, rows + 10))


def test_a_batch_spoiled_on_its_way_is_fetched_again_in_silence(fetcher: TolerantFetcher) -> None:
    bad = bytearray(batch(30))
    bad[-1] ^= 1
    fetcher._completed_fetches.append(answer(A, 0, batch(0) + bad))
    records, _ = fetcher.fetched_records()
    assert [record.offset for record in records[A]] == list(range(30))
    assert fetcher.fetched_records() == ({}, False)
    assert asked(fetcher)[A] == (30, 5, 7)
    fetcher._completed_fetches.append(answer(A, 30, batch(30)))
    records, _ = fetcher.fetched_records()
    assert [record.offset for record in records[A]] == list(range(30, 60))


def test_an_iterator_finds_the_response_fetched_ahead_when_it_comes_there(fetcher: TolerantFetcher) -> None:
    fetcher._completed_fetches.extend([answer(A, 0, batch(0)), answer(A, 30, batch(30))])
    for start in (0, 30):
        fetcher._handed_out.clear()  # as each poll does
        records, _ = fetcher.fetched_records(max_records=500, update_offsets=False)
        assert [record.offset for record in records[A]] == list(range(start, start + 30))
        assert len(fetcher._completed_fetches) == (1 if start == 0 else 0)
        assert A not in asked(fetcher)  # what was handed out is not fetched again
        # The iterator has advanced.
        fetcher._subscriptions.assignment[A].position = OffsetAndMetadata(start + 30, "", 5)


def fills_of_an_iterator(kind: Any, count: int) -> int:
    """How many fills an iterator needs for one response with `count` partitions of two records each."""
    partitions = [TopicPartition("orders", n) for n in range(count)]
    subscriptions = SubscriptionState()
    subscriptions.assign_from_user(partitions)
    for tp in partitions:
        subscriptions.seek(tp, OffsetAndMetadata(0, "", -1))
    fetcher = kind(SimpleNamespace(_manager=Manager(), throttle_delay=lambda node_id: 0), subscriptions)
    fetcher.send_fetches = lambda: []
    fetcher._completed_fetches.extend(answer(tp, 0, batch(0, 2)) for tp in partitions)
    fills = read = 0
    while read < 2 * count:
        found, _ = fetcher.fetch_records(update_offsets=False)
        fills += 1
        for tp, records in found.items():
            subscriptions.assignment[tp].position = OffsetAndMetadata(records[-1].offset + 1, "", 5)
            read += len(records)
    return fills


def test_an_iterator_over_many_partitions_needs_no_more_fills_than_stock() -> None:
    assert fills_of_an_iterator(TolerantFetcher, 1_000) <= fills_of_an_iterator(Fetcher, 1_000)


def test_an_iterator_gets_other_partitions_before_what_follows_its_own_records(fetcher: TolerantFetcher) -> None:
    fetcher._completed_fetches.extend([answer(A, 0, batch(0)), answer(A, 30, batch(30)), answer(B, 0, batch(0))])
    for expected in ({A: range(0, 30), B: range(0, 30)}, {A: range(30, 60)}):
        found, _ = fetcher.fetch_records(max_records=500, update_offsets=False)
        assert {tp: [record.offset for record in records] for tp, records in found.items()} == {
            tp: list(offsets) for tp, offsets in expected.items()
        }
        for tp, records in found.items():
            fetcher._subscriptions.assignment[tp].position = OffsetAndMetadata(records[-1].offset + 1, "", 5)


def test_an_iterator_gets_the_error_behind_its_records_when_it_comes_there(fetcher: TolerantFetcher) -> None:
    def refuse_the_second(topic: str, headers: Any, value: bytes) -> bytes:
        if value == b"1":
            raise ValueError("refused")
        return value

    fetcher.config["value_deserializer"] = SimpleNamespace(deserialize=refuse_the_second)
    fetcher._completed_fetches.append(answer(A, 0, batch(0)))
    found, _ = fetcher.fetch_records(max_records=500, update_offsets=False)
    assert [record.offset for record in found[A]] == [0]
    fetcher._subscriptions.assignment[A].position = OffsetAndMetadata(1, "", 5)
    with pytest.raises(ValueError, match="refused"):
        fetcher.fetch_records(max_records=500, update_offsets=False)


def test_two_threads_in_one_consumer_are_refused(fetcher: TolerantFetcher) -> None:
    refused: list[BaseException] = []

    def poll() -> None:
        with pytest.raises(Errors.IllegalStateError, match="not safe for multi-threaded access") as raised:
            fetcher.fetch_records()
        refused.append(raised.value)

    with fetcher._taking:  # as the thread that polls does
        other = threading.Thread(target=poll)
        other.start()
        other.join()
    assert len(refused) == 1


def test_an_interrupt_within_a_poll_leaves_the_next_one_alone(
    fetcher: TolerantFetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as within:
        within.setattr(Fetcher, "fetched_records", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fetcher.fetch_records()
    fetcher._completed_fetches.append(answer(A, 0, batch(0)))
    assert fetcher.fetch_records()[0]


def stop_in_the_second(fetcher: TolerantFetcher, then: Callable[[], None] = lambda: None) -> None:
    """Has the decoding of the second partition end by an interrupt, as Ctrl-C does, after `then`."""

    class Interrupted(PartitionRecords):
        def interrupt(self, *args: Any) -> Any:
            then()
            raise KeyboardInterrupt

        take = take_arrow = interrupt

    def records(fetch_offset: int, tp: TopicPartition, *args: Any, **options: Any) -> Any:
        return (Interrupted if tp == B else PartitionRecords)(fetch_offset, tp, *args, **options)

    fetcher.PartitionRecords = records  # type: ignore[method-assign,assignment]


def by_poll(fetcher: TolerantFetcher) -> list[int]:
    return [record.offset for records in fetcher.fetch_records()[0].values() for record in records]


def by_poll_arrow(fetcher: TolerantFetcher) -> list[int]:
    consumer = SimpleNamespace(_fetcher=fetcher, fetch_records=fetcher.fetch_records)
    with pytest.MonkeyPatch.context() as within:
        within.setattr(consumer_module, "_stock_poll", lambda consumer, *_: consumer.fetch_records()[0])
        return consumer_module.poll_arrow(consumer)["offset"].to_pylist()


@pytest.mark.parametrize("poll", [by_poll, by_poll_arrow])
def test_what_a_call_took_and_did_not_return_is_taken_by_the_next_one(
    fetcher: TolerantFetcher, poll: Callable[[TolerantFetcher], list[int]]
) -> None:
    fetcher._completed_fetches.append(answer(A, 0, batch(0, 10)))
    assert poll(fetcher) == list(range(10))
    stop_in_the_second(fetcher)
    fetcher._completed_fetches.extend([answer(A, 10, batch(10)), answer(A, 40, batch(40)), answer(B, 0, batch(0))])
    with pytest.raises(KeyboardInterrupt):
        poll(fetcher)
    assert fetcher._subscriptions.position(A) == OffsetAndMetadata(10, "", 5), "close() would commit it"
    fetcher.PartitionRecords = PartitionRecords  # type: ignore[method-assign]
    fetcher._next_partition_records = None
    fetcher._completed_fetches.extend([answer(A, 10, batch(10)), answer(B, 0, batch(0))])
    assert poll(fetcher) == [*range(10, 40), *range(30)]


def test_what_did_not_become_a_table_is_taken_by_the_next_call(
    fetcher: TolerantFetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    fetcher._completed_fetches.extend([answer(A, 0, batch(0)), answer(B, 0, batch(0))])
    with monkeypatch.context() as within:
        within.setattr(consumer_module.pa, "Table", SimpleNamespace(from_batches=interrupted))
        with pytest.raises(KeyboardInterrupt):
            by_poll_arrow(fetcher)
    assert [fetcher._subscriptions.position(tp).offset for tp in (A, B)] == [0, 0]
    fetcher._completed_fetches.extend([answer(A, 0, batch(0)), answer(B, 0, batch(0))])
    assert by_poll_arrow(fetcher) == [*range(30), *range(30)]
    fetcher._manager.cluster.leader_for_partition = lambda tp: None
    with pytest.raises(ValueError, match="max_records"):
        fetcher.table(SCHEMA, lambda: fetcher.fetched_records(max_records=0)[0])
    assert [fetcher._subscriptions.position(tp).offset for tp in (A, B)] == [30, 30], "returned by the call before"


@contextmanager
def interrupt_at(number: int) -> Iterator[list[str]]:
    """An interrupt where the `number`th Python function begins, as signals strike; yields the name of that one."""
    struck: list[str] = []
    left = count(-number, 1)

    def trace(frame: Any, event: str, arg: Any) -> None:
        is_ours = frame.f_globals["__name__"].startswith(("tolerant_client.", "kafka."))
        if event == "call" and is_ours and not struck and next(left) == 0:
            struck.append(frame.f_code.co_name)
            raise KeyboardInterrupt

    former = sys.gettrace()
    sys.settrace(trace)
    try:
        yield struck
    finally:
        sys.settrace(former)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("poll", [by_poll, by_poll_arrow])
def test_wherever_an_interrupt_strikes_nothing_is_passed_over_and_nothing_comes_twice(
    poll: Callable[[TolerantFetcher], list[int]],
) -> None:
    struck: set[str] = set()
    for number in count():
        fetcher = make()
        fetcher._subscriptions.seek(A, OffsetAndMetadata(5, "", 5))
        fetcher._completed_fetches.extend([answer(A, 5, batch(0)), answer(B, 0, batch(0))])
        kept: Any = None
        found: list[int] = []
        try:
            with interrupt_at(number) as names:
                found = poll(fetcher)
        except KeyboardInterrupt as interrupt:
            kept = interrupt  # with its frames
        if not names:
            break
        struck.update(names)
        if kept is None:
            continue  # within a finalizer
        positions = [fetcher._subscriptions.position(tp).offset for tp in (A, B)]
        assert positions == [5, 0] and fetcher._unread_positions().keys() == {A, B}, names
        fetcher._completed_fetches.extend([answer(A, 5, batch(0)), answer(B, 0, batch(0))])
        found += poll(fetcher)
        assert sorted(found) == sorted([*range(5, 30), *range(30)]), names
        del kept
        assert [fetcher._subscriptions.position(tp).offset for tp in (A, B)] == [30, 30], names
    assert {"find", "last", "size", "_set_position"} <= struck


@pytest.mark.parametrize("poll", [by_poll, by_poll_arrow])
def test_an_interrupt_as_the_lock_is_released(
    fetcher: TolerantFetcher, poll: Callable[[TolerantFetcher], list[int]]
) -> None:
    class Lock:
        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None:
            fetcher._taking = threading.Lock()
            raise KeyboardInterrupt

        def locked(self) -> bool:
            return False

    fetcher._taking = Lock()  # type: ignore[assignment]
    fetcher._completed_fetches.append(answer(A, 0, batch(0)))
    with pytest.raises(KeyboardInterrupt):
        poll(fetcher)
    assert fetcher._subscriptions.position(A).offset == 0
    fetcher._completed_fetches.append(answer(A, 0, batch(0)))
    assert poll(fetcher) == list(range(30))


@pytest.mark.parametrize("offset", [30, 77])
def test_a_seek_meanwhile_is_not_undone(fetcher: TolerantFetcher, offset: int) -> None:
    stop_in_the_second(fetcher, lambda: fetcher._subscriptions.seek(A, offset))
    fetcher._completed_fetches.extend([answer(A, 0, batch(0)), answer(B, 0, batch(0))])
    with pytest.raises(KeyboardInterrupt):
        fetcher.fetch_records()
    assert fetcher._subscriptions.position(A).offset == offset


def test_a_caller_touches_no_fetch_in_flight_itself(fetcher: TolerantFetcher) -> None:
    """An interrupt between taking a Future's lock and releasing it would stop the event loop, which takes it to settle."""
    in_flight = Future()
    fetcher._fetch_futures.append(in_flight)
    fetcher._nodes_with_pending_fetch_requests.add(1)
    waits: list[Any] = []
    fetcher._net = SimpleNamespace(run=lambda *wait: waits.append(wait))
    with in_flight._lock:  # whoever adds a callback now waits for ever
        assert fetcher.fetch_records(timeout_ms=7) == ({}, False)
    assert waits == [(fetcher._until_one_is_done, [in_flight], 7)]


def test_what_is_done_before_the_event_loop_begins_to_wait_ends_the_wait(fetcher: TolerantFetcher) -> None:
    """A reset of positions that ends in between can no longer be waited for."""
    reset = fetcher._reset_task = Future()
    waits: list[Any] = []

    def run(wait: Callable[..., Coroutine[Any, Any, None]], futures: list[Any], timeout_ms: float) -> None:
        reset.success(None)
        drive(wait(futures, timeout_ms))

    async def wait_for(done: Any, timeout_ms: float) -> None:
        waits.append(done.is_done)

    fetcher._net = SimpleNamespace(run=run)
    fetcher._manager.wait_for = wait_for
    fetcher._nodes_with_pending_fetch_requests.add(1)
    fetcher.send_fetches = list
    fetcher.fetch_records(timeout_ms=7)
    assert waits == [True]


def test_a_batch_found_corrupt_three_times_is_raised_and_fetched_again(fetcher: TolerantFetcher) -> None:
    bad = bytearray(batch(30))
    bad[-1] ^= 1
    fetcher._completed_fetches.append(answer(A, 0, batch(0) + bad))
    records, _ = fetcher.fetched_records()
    assert [record.offset for record in records[A]] == list(range(30))
    for _ in range(2):
        assert fetcher.fetched_records() == ({}, False)
        fetcher._completed_fetches.append(answer(A, 30, bytes(bad)))
    for _ in range(2):
        with pytest.raises(Errors.CorruptRecordError, match="orders.*CRC.*30"):
            fetcher.fetched_records()
        assert fetcher.fetched_records() == ({}, False)
        assert asked(fetcher)[A] == (30, 5, 7)
        fetcher._completed_fetches.append(answer(A, 30, bytes(bad)))
    fetcher._completed_fetches.clear()
    fetcher._completed_fetches.append(answer(A, 30, batch(30)))
    records, _ = fetcher.fetched_records()
    assert [record.offset for record in records[A]] == list(range(30, 60))


def test_a_refused_position_rests_and_its_refusal_is_not_believed_yet(fetcher: TolerantFetcher) -> None:
    refusal = answer(A, 0, b"", error_code=1)
    fetcher._completed_fetches.append(refusal)
    assert fetcher.fetched_records() == ({}, False)
    assert A not in asked(fetcher) and B in asked(fetcher)
    assert fetcher._subscriptions.position(A).offset == 0
    fetcher._completed_fetches.append(answer(A, 55, b"", error_code=1))  # of a fetch that a seek made obsolete
    fetcher._doubts.clear()
    fetcher.fetched_records()
    assert A in asked(fetcher)


# -- doubts --------------------------------------------------------------------


class Looking:
    """Doubts about one partition at offset 100, whose leader responds with `looks`, one per check."""

    def __init__(self, *looks: Any, epoch: int = -1, epoch_end: int = -1) -> None:
        self.looks = deque(looks)
        self.epoch_requests = 0
        self.epoch_end = epoch_end
        self.manager = Manager(self._answer)
        self.subscriptions = SubscriptionState("earliest")
        self.subscriptions.assign_from_user([A])
        self.subscriptions.seek(A, OffsetAndMetadata(100, "", epoch))
        fetcher = SimpleNamespace(
            _manager=self.manager, _subscriptions=self.subscriptions, _completed_fetches=deque(),
            _handle_list_offsets_response=lambda answer: answer,
            config={"retry_backoff_ms": 50, "request_timeout_ms": 1_000},
        )  # fmt: skip
        self.given_back = fetcher._completed_fetches
        self.doubts = Doubts(fetcher)
        self.refusal = answer(A, 100, b"", error_code=1)
        self.doubts.look_into(self.refusal)
        assert A in self.doubts
        drive(self.manager.scheduled.pop()())

    def _answer(self, request: Any) -> Any:
        if type(request).__name__.startswith("OffsetForLeaderEpoch"):
            self.epoch_requests += 1
            part = SimpleNamespace(partition=0, error_code=0, end_offset=self.epoch_end)
            return SimpleNamespace(topics=[SimpleNamespace(topic="orders", partitions=[part])])
        look = self.looks[0]
        if isinstance(look, Exception):
            return self.looks.popleft()
        is_earliest = request.topics[0][1][0].timestamp == -2
        offset = look[0] if is_earliest else self.looks.popleft()[1]
        return {A: SimpleNamespace(offset=offset)}, set()


@pytest.mark.parametrize("look", [(0, 100), (100, 200), (50, 150)])
def test_a_position_within_the_range_is_a_false_alarm_after_one_look(look: tuple[int, int]) -> None:
    looking = Looking(look)
    assert A not in looking.doubts
    assert not looking.given_back
    assert looking.manager.told == [OffsetOutOfRange("Fetch", -1, "orders", 0, 100, *look, False)]
    assert looking.manager.recovery_counters.of("out_of_range", "Fetch", 1) == 1
    assert looking.manager.naps == [0.05]


@pytest.mark.parametrize("look", [(101, 200), (0, 99)])
def test_a_position_outside_the_range_is_believed_after_two_looks(look: tuple[int, int]) -> None:
    looking = Looking(look, look)
    assert list(looking.given_back) == [looking.refusal]
    assert looking.doubts.is_believed(looking.refusal) and not looking.doubts.is_believed(looking.refusal)
    assert looking.manager.told == [OffsetOutOfRange("Fetch", -1, "orders", 0, 100, *look, True)]
    assert len(looking.manager.naps) == 2


def test_one_look_that_is_not_confirmed_moves_nothing() -> None:
    looking = Looking((0, 99), (0, 100))
    assert not looking.given_back
    assert [event.is_believed for event in looking.manager.told] == [False]


def test_the_leader_epoch_speaks_for_a_position_above_a_lagging_high_watermark() -> None:
    assert not Looking((0, 90), epoch=3, epoch_end=100).given_back
    truncated = Looking((0, 90), (0, 90), epoch=3, epoch_end=90)
    assert truncated.given_back and truncated.epoch_requests == 2
    assert Looking((0, 90), (0, 90)).epoch_requests == 0


def test_where_nobody_answers_nothing_is_decided_and_looking_goes_on() -> None:
    looking = Looking(Errors.KafkaConnectionError("gone"), Errors.KafkaTimeoutError("late"), (0, 100))
    assert len(looking.manager.naps) == 3
    assert [event.is_believed for event in looking.manager.told] == [False]


class FrozenLeader(Manager):
    """On asyncio's loop: node 1 leads A and never responds, node 2 leads B and says (0, 99)."""

    def __init__(self) -> None:
        super().__init__()
        self._net = SimpleNamespace(sleep=lambda seconds: asyncio.sleep(0))
        self.leaders = {A: 1, B: 2}
        self.cluster.leader_for_partition = self.leaders.get
        self.running: list[Any] = []
        self.asked: list[int] = []

    def call_soon(self, work: Any, *args: Any) -> None:
        self.running.append(asyncio.ensure_future(work(*args)))

    def send(self, request: Any, node_id: int) -> Any:
        self.asked.append(node_id)
        return node_id, request

    async def wait_for(self, sent: Any, timeout_ms: float) -> Any:
        node_id, request = sent
        if node_id == 1:
            await asyncio.Event().wait()
        (_, partitions), *_ = request.topics
        offset = 0 if partitions[0].timestamp == -2 else 99
        return {TopicPartition("orders", part.partition_index): SimpleNamespace(offset=offset) for part in partitions}


async def beside_a_frozen_leader(then: Callable[[FrozenLeader], None], until: int) -> tuple[FrozenLeader, list[Any]]:
    """Refusals of A and B at offset 100, checked until `until` of them were given back."""
    manager = FrozenLeader()
    subscriptions = SubscriptionState("earliest")
    subscriptions.assign_from_user([A, B])
    given_back: list[Any] = []
    doubts = Doubts(SimpleNamespace(
        _manager=manager, _subscriptions=subscriptions, _completed_fetches=given_back,
        _handle_list_offsets_response=lambda found: (found, set()),
        config={"retry_backoff_ms": 50, "request_timeout_ms": 40_000},
    ))  # fmt: skip
    for tp in (A, B):
        subscriptions.seek(tp, OffsetAndMetadata(100, "", -1))
        doubts.look_into(answer(tp, 100, b"", error_code=1))
    for _ in range(200):
        await asyncio.sleep(0)
        if len(given_back) == 1:
            then(manager)
        if len(given_back) == until:
            break
    for task in manager.running:
        task.cancel()
    return manager, [refusal.topic_partition for refusal in given_back]


def test_a_frozen_leader_holds_up_no_other_and_is_asked_once_at_a_time() -> None:
    manager, given_back = asyncio.run(beside_a_frozen_leader(lambda manager: None, until=2))
    assert given_back == [B]
    assert manager.asked.count(1) == 1


def test_a_partition_whose_leader_froze_is_looked_up_at_the_next_leader() -> None:
    _, given_back = asyncio.run(beside_a_frozen_leader(lambda manager: manager.leaders.update({A: 2}), until=2))
    assert given_back == [B, A]


def test_a_leader_that_may_not_tell_leaves_it_to_the_next_fetch() -> None:
    looking = Looking(Errors.TopicAuthorizationFailedError({"orders"}))
    assert A not in looking.doubts
    assert not looking.given_back and not looking.manager.told


def test_a_position_that_moved_meanwhile_is_forgotten_without_a_word() -> None:
    looking = Looking((0, 100))
    looking.doubts.look_into(looking.refusal)
    looking.subscriptions.seek(A, 7)
    drive(looking.manager.scheduled.pop()())
    assert A not in looking.doubts
    assert len(looking.manager.told) == 1 and not looking.given_back


# -- a move to another cluster --------------------------------------------------


class Consumer(SimpleNamespace):
    """Which can be referred to weakly."""


def moved(fetcher: TolerantFetcher, ends: dict[TopicPartition, int]) -> Consumer:
    consumer = Consumer(_fetcher=fetcher, _iterator="a fill")
    fetcher.moved(Move(Destination({}, ends, lambda topic: topic == "orders"), consumer))
    return consumer


def test_before_a_move_is_settled_nothing_is_asked_for_and_no_position_validated(fetcher: TolerantFetcher) -> None:
    fetcher._subscriptions.seek(A, OffsetAndMetadata(30, "", 5))
    fetcher._completed_fetches.append(answer(B, 0, batch(0)))
    fetcher.fetched_records(max_records=10)  # what follows could be fetched ahead
    assert asked(fetcher)
    consumer = moved(fetcher, {A: 20, B: 5})
    assert not asked(fetcher)
    fetcher.maybe_validate_positions()
    assert not fetcher._subscriptions.partitions_needing_validation()
    with pytest.raises(Errors.StaleMetadata):
        drive(fetcher._send_offset_for_leader_epoch_request(1, {}))
    fetcher.fetched_records()
    assert consumer._iterator is None
    assert asked(fetcher) == {A: (20, -1, 7), B: (5, -1, 7)}


def test_what_came_from_the_former_cluster_is_dropped_errors_and_the_fill_of_an_iterator_too(
    fetcher: TolerantFetcher,
) -> None:
    fetcher._completed_fetches.append(answer(A, 0, batch(0)))
    consumer = moved(fetcher, {A: 20, B: 5})
    fetcher._cached_list_offsets_exception = fetcher._cached_log_truncation = ValueError()
    fetcher._next_in_line_exception_metadata = SimpleNamespace(partition=A, fetched_offset=0, exception=ValueError())
    assert fetcher.fetched_records() == ({}, False)
    assert consumer._iterator is None
    fetcher.reset_offsets_if_needed()
    assert fetcher._cached_log_truncation is None


def test_until_where_it_has_read_on_the_former_cluster_is_known_after_a_seek_back_too(fetcher: TolerantFetcher) -> None:
    fetcher._completed_fetches.extend([answer(A, 0, batch(0)), answer(B, 0, batch(0))])
    assert sum(map(len, fetcher.fetched_records()[0].values())) == 60
    fetcher._subscriptions.seek(A, 3)
    assert fetcher.settle(Destination({}, {A: 20, B: 20}, lambda topic: True)) == {A: 30, B: 30}


def test_until_records_come_from_the_next_cluster_a_seek_may_be_to_an_offset_of_either(
    fetcher: TolerantFetcher,
) -> None:
    fetcher._completed_fetches.extend([answer(A, 0, batch(0)), answer(B, 0, batch(0))])
    fetcher.fetched_records()
    consumer = moved(fetcher, {A: 20, B: 20})
    fetcher.settle_move()
    for tp in (A, B, A):
        assert [fetcher.sought(tp, offset) for offset in (7, 25, 31)] == [7, 20, 31]
    assert fetcher.fetched_records() == ({}, False)
    assert (fetcher.sought(A, 25), fetcher.sought(B, 25)) == (20, 20), "nothing was given out"
    fetcher._completed_fetches.append(answer(A, 20, batch(20)))
    assert fetcher.fetched_records()[0].keys() == {A}
    assert (fetcher.sought(A, 25), fetcher.sought(B, 25)) == (25, 20) and consumer._iterator is None


def iterate(fetcher: TolerantFetcher) -> Iterator[Any]:
    """kafka-python's iterator, for one fill."""
    consumer = SimpleNamespace(
        poll=lambda timeout_ms, update_offsets: fetcher.fetch_records(None, update_offsets)[0],
        _subscription=fetcher._subscriptions,
        _consumer_timeout=0.0,
    )
    records: Iterator[Any] = KafkaConsumer._message_generator_v2(consumer)
    return records


def test_of_a_fill_only_what_the_iterator_has_come_to_is_given_out(fetcher: TolerantFetcher) -> None:
    fetcher._completed_fetches.extend([answer(A, 0, batch(0)), answer(B, 0, batch(0))])
    assert [record.partition for record in islice(iterate(fetcher), 2)] == [0, 0]
    consumer = moved(fetcher, {A: 20, B: 20})
    assert consumer._fetcher._move.unread_positions.keys() == {B}
    fetcher.settle_move()
    fetcher._subscriptions.seek(B, 20)
    fetcher._move._read = {A: 30, B: 30}  # type: ignore[union-attr]
    fetcher._completed_fetches.extend([answer(A, 2, batch(0)), answer(B, 20, batch(20))])
    records = iterate(fetcher)
    assert next(records).partition == 0
    assert (fetcher.sought(A, 25), fetcher.sought(B, 25)) == (25, 20)
    fetcher._subscriptions.pause(B)
    assert {record.partition for record in records} == {0}
    assert fetcher.sought(B, 25) == 20, "the iterator has passed over it"


@pytest.mark.parametrize("poll", [by_poll, by_poll_arrow, lambda fetcher: list(iterate(fetcher))])
def test_what_a_call_took_and_did_not_return_is_not_given_out(
    fetcher: TolerantFetcher, poll: Callable[[TolerantFetcher], list[int]]
) -> None:
    fetcher._completed_fetches.append(answer(A, 0, batch(0)))
    fetcher.fetch_records()
    consumer = moved(fetcher, {A: 20, B: 20})
    fetcher.settle_move()
    stop_in_the_second(fetcher)
    fetcher._completed_fetches.extend([answer(A, 20, batch(20)), answer(B, 0, batch(0))])
    with pytest.raises(KeyboardInterrupt):
        poll(fetcher)
    assert fetcher.sought(A, 25) == 20 and consumer._fetcher._unread_positions().keys() == {A, B}
    fetcher.PartitionRecords = PartitionRecords  # type: ignore[method-assign]
    fetcher._next_partition_records = None
    fetcher._completed_fetches.append(answer(A, 20, batch(20)))
    assert poll(fetcher) and fetcher.sought(A, 25) == 25


def test_positions_from_which_nothing_was_given_out_are_known_also_while_something_is(fetcher: TolerantFetcher) -> None:
    fetcher._subscriptions.seek(B, OffsetAndMetadata(50, "m", 5))
    fetcher._completed_fetches.append(answer(A, 0, batch(0)))
    found = []
    give_out = fetcher._give_out

    def gives_out(*args: Any) -> int:  # the event loop may look at any moment
        count = give_out(*args)
        found.append(fetcher._unread_positions())
        return count

    fetcher._give_out = gives_out
    assert fetcher._unread_positions().keys() == {A, B}
    assert fetcher.fetched_records()[0]
    moved(fetcher, {A: 20, B: 60})
    assert fetcher._move is not None and found == [fetcher._move.unread_positions] == [
        {B: OffsetAndMetadata(50, "", -1)}
    ]


def test_a_partition_of_which_nothing_was_copied_is_read_from_its_first_record(
    fetcher: TolerantFetcher, caplog: pytest.LogCaptureFixture
) -> None:
    fetcher._subscriptions.seek(B, 50)
    consumer = moved(fetcher, {A: 20})
    consumer._fetcher.settle_move()
    assert fetcher._subscriptions.assignment[B].reset_strategy == OffsetResetStrategy.EARLIEST
    assert "No record of orders-1 is known to be copied: position 50 becomes the first record" in caplog.text


def test_a_position_in_a_topic_that_was_not_copied_is_missing_without_auto_offset_reset() -> None:
    fetcher = make()
    fetcher._subscriptions = subscriptions = SubscriptionState("none")
    other = TopicPartition("else", 0)
    subscriptions.assign_from_user([other])
    subscriptions.seek(other, 50)
    consumer = moved(fetcher, {})
    consumer._fetcher.settle_move()
    with pytest.raises(Errors.NoOffsetForPartitionError):
        subscriptions.reset_missing_positions()

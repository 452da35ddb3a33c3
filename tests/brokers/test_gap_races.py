"""Writers of one link race for a gap: one stops before any of its requests, another does everything, the first goes on.

A stopped writer is a zombie and a late request in one: what it sends when it goes on arrives after all that the other
has done.  The steps of a writer are its requests; around every gap it does what the engine does: it reads the log end,
fills the gap if the log ends in it, appends the next data batch with the sequence that follows from the log, and after
whatever it did not expect reads the log end again.

Outcomes, as these tests find them.  "At once": it finds all done by the first answer.

    stopped before             | transactions               | markers                    | records
    ---------------------------+----------------------------+----------------------------+------------------------
    1 reading the log end      | at once                    | at once                    | at once
    2 finding the coordinator  | takes over, reads the end  |                            |
    3 InitProducerId           | takes over, reads the end  |                            |
    4 reading the log end      | reads the end              |                            |
    5 AddPartitionsToTxn       | fenced, reads the end      |                            |
    6 Produce of filler        | fenced, reads the end      | NOT WITHSTOOD: the last    | a repeat: same offsets
      or WriteTxnMarkers       |                            | marker lies there twice    |
    7 EndTxn                   | fenced, reads the end      |                            |
    8 reading the log end      | reads the end              | reads the end              |
    9 Produce of data          | a repeat: same offset      | a repeat: same offset      | a repeat: same offset

    writers that see different | NOT WITHSTOOD              | NOT WITHSTOOD              | sequences refuse the
    holes (the cleaner)        |                            |                            | later one
    a request that arrives     | fenced                     | as 6                       | a repeat, or refused
    after it was given up      |                            |                            |
    a marker that a coordinator| has room, but for the last |                            |
    writes again (failover)    | one of a gap: NOT WITHSTOOD|                            |

What is not withstood is found: fill() returns a log end beyond the gap, and the next data batch lies elsewhere.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import kafka.errors as Errors
import pytest
from kafka.future import Future
from kafka.protocol.producer import EndTxnRequest
from kafka.structs import TopicPartition

from support.mirror_link import T0, create_topic, nobody_is_promoted
from tolerant_client.cluster.admin.transactions import init_producer_id, write_abort_markers
from tolerant_client.cluster.cluster import EARLIEST, LATEST, Cluster
from tolerant_client.errors import TargetDivergedError
from tolerant_client.mirror.batches.appendable import AppendState
from tolerant_client.mirror.batches.gaps import Gap, filler_batches, is_filler
from tolerant_client.mirror.engine.identical.fill import MarkerFiller, TransactionFiller
from tolerant_client.mirror.engine.identical.log_start import start_log_at
from tolerant_client.records.record_batch import (
    Record,
    decode_records,
    encode_batch,
    iter_batches,
    read_header,
    restamp,
)
from tolerant_client.testing import KafkaCluster

# kafka-python leaves the socket of a refused connection to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

PARTITIONS = 24  # at least as many as a way has steps
BEFORE, AFTER = 3, 2  # data records on both sides of a gap
LARGE = 1 << 20


class SteppedCluster(Cluster):
    """A cluster whose nth step waits, and all behind it, until it is let go: a request, with its repeats at once."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.steps: list[str] = []
        self.stop_before = -1
        self.stopped = Future()
        self.go = Future()

    def step_anew(self, stop_before: int) -> None:
        self.steps, self.stop_before, self.stopped, self.go = [], stop_before, Future(), Future()

    async def send(self, request: Any, node_id: int | str | None = None) -> Any:
        await self._step(request.name.removesuffix("Request"))
        return await super().send(request, node_id)

    def produce(self, *args: Any, **kwargs: Any) -> Any:
        return self.net.call_soon_with_future(self._produce, args, kwargs)

    async def _produce(self, args: Any, kwargs: Any) -> Any:
        await self._step("Produce")
        return await super().produce(*args, **kwargs)

    async def _step(self, name: str) -> None:
        if name == "Produce" or self.steps[-1:] != [name]:
            self.steps.append(name)
            if len(self.steps) == self.stop_before + 1:
                self.stopped.success(None)
        if 0 <= self.stop_before < len(self.steps):
            await self.go


@contextmanager
def racers(servers: str, count: int = 1) -> Iterator[tuple[SteppedCluster, list[Cluster]]]:
    """One writer that can be stopped, and `count` others, on one event loop."""
    config = {"bootstrap_servers": servers}
    stepped = SteppedCluster(config, name="stopped")
    with stepped:
        others = [Cluster(config, stepped.net, name=f"other {number}") for number in range(count)]
        try:
            yield stepped, others
        finally:
            for other in others:
                other.close()


class Writer:
    """What the engine does with gaps and the data between them; `happened` says what it met."""

    def __init__(self, cluster: Cluster, producer_id: int, way: str, link: str) -> None:
        self.cluster = cluster
        self.producer_id = producer_id
        self.way = way
        self.happened: list[str] = []
        self.fill: Callable[[TopicPartition, Gap], Awaitable[int]] = {
            "transactions": TransactionFiller(cluster, link, nobody_is_promoted).fill,
            "filled transaction": TransactionFiller(cluster, link, nobody_is_promoted, empty_transactions=1).fill,
            "markers": MarkerFiller(cluster, nobody_is_promoted).fill,
            "records": self._fill_with_records,
        }[way]

    async def run(self, partition: TopicPartition, gaps: Sequence[Gap]) -> None:
        """Brings the log to its end: data up to each gap, and AFTER records behind the last one."""
        for _ in range(40 + 4 * len(gaps)):
            end = await self.log_end(partition)
            gap = next((gap for gap in gaps if end < gap.until_offset), None)
            try:
                if gap is not None and end >= gap.from_offset:
                    seen = await self.fill(partition, Gap(end, gap.until_offset))
                    if seen != gap.until_offset:
                        self.happened.append(f"log end {seen}")
                elif gap is not None:
                    await self.append(partition, data_batch(end, gap.from_offset - end), gaps)
                elif end == gaps[-1].until_offset:
                    await self.append(partition, data_batch(end, AFTER), gaps)
                else:
                    return
            except Errors.KafkaError as error:
                self.happened.append(type(error).__name__)
        raise AssertionError(f"no end in sight: {self.happened}")

    async def log_end(self, partition: TopicPartition) -> int:
        return (await self.cluster.list_offsets({partition: LATEST}))[partition]

    async def append(self, partition: TopicPartition, batch: bytearray, gaps: Sequence[Gap]) -> None:
        """With the sequence that follows from the log: markers and aborted records have none of the link's producer."""
        offset = read_header(batch).base_offset
        passed = sum(gap.until_offset - gap.from_offset for gap in gaps if gap.until_offset <= offset)
        restamp(batch, self.producer_id, 0, offset if self.way == "records" else offset - passed)
        node = await self.cluster.leader(partition)
        (part,) = await self.cluster.produce(node, {partition: memoryview(batch)})
        if part.error_code:
            raise Errors.for_code(part.error_code)(str(partition))
        if part.base_offset != offset:
            raise TargetDivergedError(f"{offset} lies at {part.base_offset}")

    async def _fill_with_records(self, partition: TopicPartition, gap: Gap) -> int:
        for header, batch in filler_batches(gap, is_compacted=False, max_batch_bytes=LARGE, timestamp_ms=T0):
            data = bytearray(batch)
            struct.pack_into(">q", data, 0, header.base_offset)
            await self.append(partition, data, ())
        return gap.until_offset


def data_batch(offset: int, count: int) -> bytearray:
    records = [Record(n, T0 + n, None, b"%d" % n) for n in range(offset, offset + count)]
    return bytearray(encode_batch(records, base_offset=offset))


async def content(cluster: Cluster, partition: TopicPartition) -> str:
    """A letter for each offset: d data that says its offset, f filler, a filler of a transaction, m marker.

    Says so if a transaction is left open.
    """
    start = (await cluster.list_offsets({partition: EARLIEST}))[partition]
    end = (await cluster.list_offsets({partition: LATEST}))[partition]
    stable = (await cluster.list_offsets({partition: LATEST}, isolation_level=1))[partition]
    letters = ""
    while start < end:
        (part,) = await cluster.fetch(await cluster.leader(partition), {partition: start}, max_wait_ms=0)
        for header, batch in iter_batches(part.records):
            assert header.base_offset == start
            start = header.next_offset
            for record in decode_records(batch):
                if header.is_control:
                    letters += "m"
                elif is_filler(record):
                    letters += "a" if header.is_transactional else "f"
                else:
                    letters += "d" if record.value == b"%d" % record.offset else "?"
    return letters + ("" if stable == end else f", open from {stable}")


async def stopped_or_done(stepped: SteppedCluster, done: Any) -> bool:
    """Waits for the one or the other; true when the cluster was stopped."""
    either = Future()
    for future in (done, stepped.stopped):
        future.add_both(lambda _: either.is_done or either.success(None))
    await either
    return bool(stepped.stopped.is_done)


async def race(
    stepped: SteppedCluster, other: Cluster, topic: str, way: str, gap: Gap, intact: str
) -> dict[str, set[str]]:
    """The table of one way: before which request the first writer stopped, and what it met when it went on."""
    producer_id = await init_producer_id(other, topic)
    table: dict[str, set[str]] = {}
    for number in range(PARTITIONS):
        partition = TopicPartition(topic, number)
        stepped.step_anew(-1)
        await stepped.list_offsets({partition: LATEST})
        first, second = (Writer(cluster, producer_id, way, topic) for cluster in (stepped, other))
        await second.append(partition, data_batch(0, BEFORE), [gap])
        stepped.step_anew(number)
        done = stepped.net.call_soon_with_future(first.run, partition, [gap])
        if not await stopped_or_done(stepped, done):
            await done
            assert await content(other, partition) == intact
            return table
        await second.run(partition, [gap])
        before = await content(other, partition)
        assert re.fullmatch(f"ddd[fam]{{{gap.until_offset - BEFORE}}}dd", before), (stepped.steps, before)
        assert second.happened == []
        stopped_before = stepped.steps[-1]
        stepped.go.success(None)
        await done
        after = await content(other, partition)
        outcome = ", ".join(first.happened) or "at once"
        table.setdefault(stopped_before, set()).add(outcome if after == before else f"{outcome}: {after}")
    raise AssertionError(f"more steps than partitions: {table}")


@pytest.mark.parametrize(
    ("way", "length", "intact"),
    [
        pytest.param("transactions", 1, "dddmdd", marks=pytest.mark.long),
        ("transactions", 2, "dddmmdd"),
        ("filled transaction", 5, "dddaamamdd"),
        ("records", 4, "dddffffdd"),
    ],
)
def test_a_writer_that_stops_anywhere_in_a_gap_does_no_harm_when_it_goes_on(
    kafka_cluster: KafkaCluster, way: str, length: int, intact: str
) -> None:
    topic = f"gap-race-{way.replace(' ', '-')}-{length}"
    create_topic(kafka_cluster.bootstrap_servers, topic, PARTITIONS)
    with racers(kafka_cluster.bootstrap_servers) as (stepped, (other,)):
        table = stepped.run(race, stepped, other, topic, way, Gap(BEFORE, BEFORE + length), intact)
    if way == "records":
        assert table == {"ListOffsets": {"at once"}, "Produce": {"at once"}}
    else:
        beyond = {f"log end {BEFORE + length + AFTER}"}  # read after a takeover, or after it was fenced
        assert table == {
            "ListOffsets": {"at once", *beyond},
            "FindCoordinator": beyond,
            "InitProducerId": beyond,
            "AddPartitionsToTxn": beyond,
            "EndTxn": beyond,
            "Produce": {"at once"} | (beyond if "filled" in way else set()),
        }


def test_markers_withstand_a_late_writer_but_for_the_last_one_and_that_is_found(kafka_cluster: KafkaCluster) -> None:
    topic = "gap-race-markers"
    create_topic(kafka_cluster.bootstrap_servers, topic, PARTITIONS)
    with racers(kafka_cluster.bootstrap_servers) as (stepped, (other,)):
        table = stepped.run(race, stepped, other, topic, "markers", Gap(3, 7), "dddmmmmdd")
    assert table == {
        "ListOffsets": {"at once", "log end 9"},
        # Three of its markers are refused, the last one is not: the log end that fill() returns lies behind the gap.
        "WriteTxnMarkers": {"log end 10: dddmmmmddm"},
        "Produce": {"at once"},
    }


@pytest.mark.parametrize(
    ("way", "writers"),
    [("transactions", 10), pytest.param("filled transaction", 4, marks=pytest.mark.long), ("records", 10)],
)
def test_many_writers_at_once_bring_a_log_to_its_end(kafka_cluster: KafkaCluster, way: str, writers: int) -> None:
    topic = f"gap-crowd-{way.replace(' ', '-')}"
    create_topic(kafka_cluster.bootstrap_servers, topic)
    partition = TopicPartition(topic, 0)
    gaps = [Gap(start, start + 1 + start // 10 % 3) for start in range(BEFORE, 80, 10)]
    with racers(kafka_cluster.bootstrap_servers, writers) as (one, others):

        async def run() -> str:
            producer_id = await init_producer_id(one, topic)
            pending = [
                one.net.call_soon_with_future(Writer(c, producer_id, way, topic).run, partition, gaps) for c in others
            ]
            for done in pending:
                await done
            return await content(one, partition)

        found = one.run(run)
    expected = ["d"] * (gaps[-1].until_offset + AFTER)
    for gap in gaps:
        for offset in range(*gap):
            expected[offset] = "[fam]"
    assert re.fullmatch("".join(expected), found)


class LossyCluster(Cluster):
    """Keeps the first request of a name on its way until it is told to deliver it, long after it was given up."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.loses = ""
        self.deliver: Callable[[], Awaitable[Any]] | None = None

    async def send(self, request: Any, node_id: int | str | None = None) -> Any:
        if self.deliver is None and request.name.removesuffix("Request") == self.loses:
            self.deliver = partial(super().send, request, node_id)
            raise Errors.KafkaConnectionError("connection reset")
        return await super().send(request, node_id)

    def produce(self, node_id: int, batches: Any, timeout_ms: int = 30_000, **options: Any) -> Any:
        send = partial(super().produce, node_id, batches, timeout_ms, **options)
        if self.deliver is None and self.loses == "Produce" and "transactional_id" in options:

            async def deliver() -> Any:
                return await send()

            self.deliver = deliver
            return Future().failure(Errors.KafkaConnectionError("connection reset"))
        return send()


@pytest.mark.parametrize("request_name", ["InitProducerId", "AddPartitionsToTxn", "Produce", "EndTxn"])
def test_a_request_that_arrives_after_its_writer_gave_it_up_changes_nothing(
    kafka_cluster: KafkaCluster, request_name: str
) -> None:
    topic = f"gap-late-{request_name}"
    create_topic(kafka_cluster.bootstrap_servers, topic)
    partition = TopicPartition(topic, 0)
    cluster = LossyCluster({"bootstrap_servers": kafka_cluster.bootstrap_servers})
    with cluster:

        async def run() -> None:
            writer = Writer(cluster, await init_producer_id(cluster, topic), "filled transaction", topic)
            await writer.run(partition, [Gap(3, 7)])
            cluster.loses = request_name
            if request_name == "InitProducerId":
                writer = Writer(cluster, writer.producer_id, "filled transaction", topic)
            await writer.run(partition, [Gap(3, 7), Gap(11, 15)])
            before = await content(cluster, partition)
            assert re.fullmatch("ddd[am]{4}dddd[am]{4}dd", before)
            assert cluster.deliver is not None
            answer = await cluster.deliver()
            assert await content(cluster, partition) == before
            if request_name != "InitProducerId":
                assert re.search(r"error_code['\"]?[=:] ?(47|90)\b", str(answer)), answer
            # Nor does it stay behind as an open transaction: the next gap is filled where it should be.
            await writer.run(partition, [Gap(3, 7), Gap(11, 15), Gap(19, 21)])
            assert (await content(cluster, partition)).startswith(before + "dd")

        cluster.run(run)


class RepeatingCluster(Cluster):
    """Has the marker of its nth transaction written twice, as a coordinator does that lost the leader's answer."""

    repeats = -1
    ended = 0

    async def send(self, request: Any, node_id: int | str | None = None) -> Any:
        answer = await super().send(request, node_id)
        if isinstance(request, EndTxnRequest) and not answer.error_code:
            self.ended += 1
            if self.ended == self.repeats:
                partition = TopicPartition(request.transactional_id.split("-", 4)[4].rsplit("-", 1)[0], 0)
                goal = 1 + (await self.list_offsets({partition: LATEST}))[partition]
                while (await super().send(request, node_id)).error_code:
                    pass
                producer = request.producer_id, request.producer_epoch
                assert await write_abort_markers(self, await self.leader(partition), partition, [producer]) == set()
                assert (await self.list_offsets({partition: LATEST}))[partition] >= goal
        return answer


@pytest.mark.parametrize(
    # An EndTxn is answered twice for the last transaction of a part: 4 + 2 + 1 + 1 markers, or 5 records, one, and so on.
    ("empty_transactions", "repeats", "end"),
    [(200, 1, 8), (200, 6, 8), (200, 9, 8), (200, 11, 9), (1, 1, 8), (1, 3, 9)],
)
def test_a_marker_that_the_broker_repeats_has_room_but_for_the_last_one(
    kafka_cluster: KafkaCluster, empty_transactions: int, repeats: int, end: int
) -> None:
    topic = f"repeated_{empty_transactions}_{repeats}"
    create_topic(kafka_cluster.bootstrap_servers, topic)
    partition = TopicPartition(topic, 0)
    cluster = RepeatingCluster({"bootstrap_servers": kafka_cluster.bootstrap_servers})
    cluster.repeats = repeats
    with cluster:
        filler = TransactionFiller(cluster, "repeats", nobody_is_promoted, empty_transactions=empty_transactions)

        async def run() -> tuple[int, str]:
            return await filler.fill(partition, Gap(0, 8)), await content(cluster, partition)

        found, letters = cluster.run(run)
    assert cluster.ended >= repeats
    assert (found, len(letters)) == (end, end), letters


@pytest.mark.parametrize("stop_before", [pytest.param(n, marks=[pytest.mark.long] if n % 2 else []) for n in range(5)])
def test_records_withstand_writers_that_see_different_holes(kafka_cluster: KafkaCluster, stop_before: int) -> None:
    # 1. A reads the source: a hole at 3 and 4, a record at 5.  2. The cleaner takes the record away.  3. B reads the
    # source: a hole from 3 to 5.  4. Both append.
    topic = f"gap-views-{stop_before}"
    create_topic(kafka_cluster.bootstrap_servers, topic)
    partition = TopicPartition(topic, 0)
    with racers(kafka_cluster.bootstrap_servers) as (stepped, (other,)):

        async def run() -> str:
            producer_id = await init_producer_id(other, topic)
            await stepped.list_offsets({partition: LATEST})
            first, second = (Writer(cluster, producer_id, "records", topic) for cluster in (stepped, other))
            await second.append(partition, data_batch(0, BEFORE), ())
            stepped.step_anew(stop_before)
            done = stepped.net.call_soon_with_future(first.run, partition, [Gap(3, 5), Gap(6, 6)])
            assert await stopped_or_done(stepped, done)
            await second.run(partition, [Gap(3, 6)])
            stepped.go.success(None)
            await done
            return await content(other, partition)

        assert re.fullmatch("dddff[fd]dd", stepped.run(run))


@pytest.mark.long
def test_transactions_do_not_withstand_writers_that_see_different_holes_and_that_is_found(
    kafka_cluster: KafkaCluster,
) -> None:
    # Why compacted topics are filled with records: the epoch keeps two writers apart that fill the same gap, not one
    # that fills from one that appends data there.
    topic = "gap-views-transactions"
    create_topic(kafka_cluster.bootstrap_servers, topic)
    partition = TopicPartition(topic, 0)
    with racers(kafka_cluster.bootstrap_servers) as (stepped, (other,)):

        async def run() -> tuple[list[str], str]:
            producer_id = await init_producer_id(other, topic)
            await stepped.list_offsets({partition: LATEST})
            first, second = (Writer(cluster, producer_id, "transactions", topic) for cluster in (stepped, other))
            await second.run(partition, [Gap(3, 5)])  # sees data at 5
            stepped.step_anew(stepped_before_adding)
            done = stepped.net.call_soon_with_future(first.fill, partition, Gap(7, 9))
            assert await stopped_or_done(stepped, done)
            await second.append(partition, data_batch(7, 2), [Gap(3, 5)])  # sees data at 7 and 8
            stepped.go.success(None)
            return [str(await done)], await content(other, partition)

        stepped_before_adding = 4  # it reads the end, finds the coordinator, takes over, reads the end
        assert stepped.run(run) == (["10"], "dddmmddddm")


@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_log_start_withstands_writers_that_stop_anywhere(kafka_cluster: KafkaCluster, is_compacted: bool) -> None:
    topic = f"gap-start-{is_compacted}"
    policy = "compact" if is_compacted else "delete"
    create_topic(kafka_cluster.bootstrap_servers, topic, PARTITIONS, {"cleanup.policy": policy})
    start = 100

    async def run() -> set[str]:
        producer_id = await init_producer_id(other, topic)
        steps: set[str] = set()
        for number in range(PARTITIONS):
            partition = TopicPartition(topic, number)
            stepped.step_anew(-1)
            await stepped.list_offsets({partition: LATEST})
            stepped.step_anew(number)
            done = stepped.net.call_soon_with_future(begin, stepped, partition, producer_id)
            if not await stopped_or_done(stepped, done):
                await done
                return steps
            await begin(other, partition, producer_id)
            batch = bytearray(encode_batch([Record(start, T0, b"key", b"%d" % start)], base_offset=start))
            restamp(batch, producer_id, 0, start)
            await other.produce(await other.leader(partition), {partition: memoryview(batch)})
            stepped.go.success(None)
            await done
            steps.add(stepped.steps[number])
            letters = await content(other, partition)
            assert letters == ("f" * start + "d" if is_compacted else "d"), (stepped.steps, letters)
        raise AssertionError("more steps than partitions")

    async def begin(cluster: Cluster, partition: TopicPartition, producer_id: int) -> None:
        """As the engine does: what is begun goes on, what is refused is looked at again."""
        for _ in range(20):
            begun = (await cluster.list_offsets({partition: EARLIEST}))[partition]
            end = (await cluster.list_offsets({partition: LATEST}))[partition]
            if end > start or end == start and (begun == start or is_compacted):
                return
            try:
                state = AppendState(end, producer_id, 0, end)
                await start_log_at(
                    cluster, partition, state, start, {producer_id}, is_compacted=is_compacted, max_batch_bytes=700
                )
            except Errors.KafkaError:
                pass
        raise AssertionError("no end in sight")

    with racers(kafka_cluster.bootstrap_servers) as (stepped, (other,)):
        assert stepped.run(run) == {"ListOffsets", "Produce", "Fetch", "DeleteRecords"}

"""verify between two real clusters: every difference is found, and nothing else is one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import kafka
import pytest
from kafka.structs import TopicPartition
from support.mirror_link import T0, append_batches, append_records, both, create_topic

from tolerant_client.mirror.gaps import FILLER
from tolerant_client.mirror.verify import slices_comparison
from tolerant_client.mirror.verify.slices import Slice, SliceResult
from tolerant_client.mirror.verify.slices_comparison import SlicesComparison
from tolerant_client.mirror.verify.verification import Difference, Verification, VerifyReport, compare_here, verify
from tolerant_client.raw import RawCluster
from tolerant_client.record_batch import Record, encode_batch

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
LONG = bool(os.environ.get("TOLERANT_LONG"))


@pytest.fixture(scope="session")
def clusters(source: str, target: str) -> tuple[str, str]:
    return source, target


@pytest.fixture
def topic(clusters: tuple[str, str], request: pytest.FixtureRequest) -> Callable[..., str]:
    """Makes a topic of the test's name on both clusters."""

    def make(partitions: int = 1, **config: str) -> str:
        name = f"verify-{request.node.name[5:45]}".replace("[", ".").rstrip("]")
        for servers in clusters:
            create_topic(servers, name, partitions, {key.replace("_", "."): value for key, value in config.items()})
        return name

    return make


def run(clusters: tuple[str, str], topics: str, **options: Any) -> VerifyReport:
    with both(*clusters) as (source, target):

        async def compare() -> VerifyReport:
            return await verify(source, target, topics, **options)

        return source.run(compare)


def run_slices(clusters: tuple[str, str], slices: Sequence[Slice], **options: Any) -> list[SliceResult]:
    with both(*clusters) as (source, target):
        return source.run(SlicesComparison(source, target, slices, **options).run)


def log(count: int, first: int = 0) -> list[Record]:
    numbers = range(first, first + count)
    return [Record(0, T0 + n, b"k%d" % n, b"value %d" % n, (("a", b"%d" % n), ("b", None))) for n in numbers]


def write(
    servers: str, topic: str, records: Sequence[Record], partition: int = 0, per_batch: int = 10, codec: int = 0
) -> None:
    def batches() -> Iterator[tuple[TopicPartition, bytes]]:
        for start in range(0, len(records), per_batch):
            yield TopicPartition(topic, partition), encode_batch(records[start : start + per_batch], codec=codec)

    append_batches(servers, batches())


def delete_records(servers: str, topic: str, before: int, partition: int = 0) -> None:
    admin = kafka.KafkaAdminClient(bootstrap_servers=servers)
    try:
        admin.delete_records({TopicPartition(topic, partition): before})
    finally:
        admin.close()


def test_logs_with_other_cuts_and_codecs_are_identical(clusters: tuple[str, str], topic: Callable[..., str]) -> None:
    name = topic(partitions=3)
    for servers, per_batch, codec in zip(clusters, (100, 333), (3, 4)):
        append_records(servers, name, 2000, per_batch=per_batch, codec=codec, partitions=2)
        write(servers, name, log(500), partition=2, per_batch=1 if codec == 3 else 500)
    report = run(clusters, name)
    assert report.identical
    assert [p.records for p in report.partitions] == [2000, 2000, 500]
    assert [p.identical_until for p in report.partitions] == [2000, 2000, 500]


CHANGES: tuple[tuple[str, int, Callable[[list[Record]], list[Record]]], ...] = (
    ("timestamp differs", 7, lambda r: [*r[:7], r[7]._replace(timestamp=T0), *r[8:]]),
    ("key differs", 0, lambda r: [r[0]._replace(key=None), *r[1:]]),
    ("key differs", 31, lambda r: [*r[:31], r[31]._replace(key=b"k32"), *r[32:]]),
    ("value differs", 99, lambda r: [*r[:99], r[99]._replace(value=b"value 9" + bytes([ord("9") ^ 1]))]),
    ("value differs", 50, lambda r: [*r[:50], r[50]._replace(value=b""), *r[51:]]),  # null on the source
    ("headers differs", 40, lambda r: [*r[:40], r[40]._replace(headers=r[40].headers[::-1]), *r[41:]]),
    ("headers differs", 41, lambda r: [*r[:41], r[41]._replace(headers=(r[41].headers[0], ("b", b""))), *r[42:]]),
    ("timestamp differs", 12, lambda r: [*r[:12], r[13], r[12], *r[14:]]),
    ("the target log ends earlier", 99, lambda r: r[:99]),
    ("the source log ends earlier", 100, lambda r: [*r, r[0]]),
)


def test_every_kind_of_difference_is_found_at_its_offset(clusters: tuple[str, str], topic: Callable[..., str]) -> None:
    name = topic(partitions=len(CHANGES))
    right = log(100)
    right[50] = right[50]._replace(value=None)
    for partition, (_, _, change) in enumerate(CHANGES):
        write(clusters[0], name, right, partition, codec=2)
        write(clusters[1], name, change(right), partition, per_batch=10 if partition % 2 else 13, codec=2)
    report = run(clusters, name)
    assert [(p.first_difference.reason, p.first_difference.offset) for p in report.partitions if p.first_difference] == [
        (reason, offset) for reason, offset, _ in CHANGES
    ]
    assert [p.identical_until for p in report.partitions] == [offset for _, offset, _ in CHANGES]
    assert report.is_different and report.is_complete


def test_what_aborted_transactions_and_markers_leave_is_no_difference(
    clusters: tuple[str, str], topic: Callable[..., str]
) -> None:
    name = topic(partitions=2)
    producer = kafka.KafkaProducer(bootstrap_servers=clusters[0], transactional_id=name, linger_ms=50)
    try:
        producer.init_transactions()
        for number in range(6):
            producer.begin_transaction()
            for n in range(3):
                producer.send(name, b"%d" % n, key=b"%d" % number, partition=0, timestamp_ms=T0 + n)
                producer.send(name, b"%d" % n, key=b"%d" % number, partition=1, timestamp_ms=T0 + n)
            producer.flush()  # an abort gives up what was not sent yet
            (producer.abort_transaction if number % 2 else producer.commit_transaction)()
    finally:
        producer.close()
    filler = Record(0, T0, None, None, ((FILLER, None),))
    for partition in (0, 1):
        for number in range(6):
            kept = [Record(0, T0 + n, b"%d" % number, b"%d" % n) for n in range(3)]
            if partition == 1 and number == 4:
                kept[1] = filler  # where the source has a record
            write(clusters[1], name, [filler] * 4 if number % 2 else [*kept, filler], partition)
    report = run(clusters, name)
    first, second = report.partitions
    assert (first.first_difference, first.records, first.filler, first.identical_until) == (None, 9, 15, 24)
    assert second.first_difference == Difference(17, "the target has filler in place of the record")


def test_a_record_where_the_source_has_a_marker_is_found(clusters: tuple[str, str], topic: Callable[..., str]) -> None:
    name = topic()
    producer = kafka.KafkaProducer(bootstrap_servers=clusters[0], transactional_id=name)
    try:
        producer.init_transactions()
        for _ in range(2):
            producer.begin_transaction()
            producer.send(name, b"v", timestamp_ms=T0)
            producer.commit_transaction()
    finally:
        producer.close()
    write(clusters[1], name, [Record(0, T0, None, b"v")] * 4)
    assert run(clusters, name).partitions[0].first_difference == Difference(1, "missing on the source")


def test_logs_that_start_elsewhere_are_compared_where_both_have_records(
    clusters: tuple[str, str], topic: Callable[..., str]
) -> None:
    name = topic(partitions=2)
    for servers in clusters:
        for partition in (0, 1):
            write(servers, name, log(100), partition, codec=4)
    delete_records(clusters[0], name, 25, 0)
    delete_records(clusters[1], name, 33, 1)
    report = run(clusters, name)
    assert report.identical
    assert [(p.from_offset, p.until_offset, p.records) for p in report.partitions] == [(25, 100, 75), (33, 100, 67)]
    assert [(p.source_start, p.target_start) for p in report.partitions] == [(25, 0), (0, 33)]


def test_offsets_that_retention_takes_during_the_run_are_named(clusters: tuple[str, str], topic: Callable[..., str]) -> None:
    """The bounds were taken, then both log starts moved: as if the slices had waited for their turn."""
    name = topic(partitions=2)
    for servers in clusters:
        for partition in (0, 1):
            write(servers, name, log(100), partition)
    delete_records(clusters[0], name, 25, 0)
    delete_records(clusters[1], name, 33, 0)
    delete_records(clusters[1], name, 100, 1)
    first, second = run_slices(clusters, [Slice(name, 0, 0, 100), Slice(name, 1, 0, 100)])
    assert (first.first_difference, first.error, first.identical_until, first.records) == (None, None, 100, 67)
    assert [(gap.from_offset, gap.until_offset) for gap in first.not_compared] in ([(0, 33)], [(0, 25), (25, 33)])
    assert (second.first_difference, second.error, second.records) == (None, None, 0)
    assert second.not_compared == ((0, 100, "the target log starts at 100 now"),)


def test_target_that_is_behind_lags_while_the_mirror_runs(clusters: tuple[str, str], topic: Callable[..., str]) -> None:
    name = topic()
    write(clusters[0], name, log(100))
    write(clusters[1], name, log(60), per_batch=20)
    (part,) = run(clusters, name).partitions
    assert part.first_difference == Difference(60, "the target log ends earlier")
    report = run(clusters, name, allow_behind=True)
    assert report.identical
    assert (report.lag, report.partitions[0].identical_until, report.partitions[0].records) == (40, 60, 60)


def test_missing_partitions_are_a_difference_or_a_lag(clusters: tuple[str, str]) -> None:
    name = "verify-missing"
    create_topic(clusters[0], name)
    write(clusters[0], name, log(10))
    assert run(clusters, name).partitions[0].first_difference == Difference(0, "the target has no such partition")
    report = run(clusters, name, allow_behind=True)
    assert (report.identical, report.lag) == (True, 10)


def test_later_run_goes_on_from_the_report_of_an_earlier_one(clusters: tuple[str, str], topic: Callable[..., str]) -> None:
    name = topic(partitions=2)
    for servers in clusters:
        for partition in (0, 1):
            write(servers, name, log(50), partition)
    earlier = run(clusters, name).as_json()
    for servers in clusters:
        write(servers, name, log(30, 50), 0, per_batch=7)
    later = run(clusters, name, resume=earlier)
    assert later.identical
    assert [(p.from_offset, p.resumed_at, p.identical_until, p.records) for p in later.partitions] == [
        (0, 50, 80, 30),
        (0, 50, 50, 0),
    ]
    # What a log no longer has is not taken as compared: it was truncated, or is another topic of this name.
    admin = kafka.KafkaAdminClient(bootstrap_servers=clusters[1])
    try:
        admin.delete_topics([name])
        deadline = time.monotonic() + 30
        while name in admin.list_topics() and time.monotonic() < deadline:
            time.sleep(0.1)
    finally:
        admin.close()
    create_topic(clusters[1], name, 2)
    write(clusters[1], name, log(90, 1))
    with both(*clusters) as (source, target):
        verification = Verification(source, target, name, resume=later.as_json())
        report = source.run(compare_here, verification)
    assert report.partitions[0].first_difference == Difference(0, "timestamp differs")
    assert len(verification.warnings) == 1 and "target" in verification.warnings[0]


def test_one_partition_without_a_leader_does_not_hold_up_the_others(
    clusters: tuple[str, str], topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices_comparison, "_PARKED_AFTER", 0.2)
    name = topic(partitions=2)
    for servers in clusters:
        for partition in (0, 1):
            write(servers, name, log(50), partition)
    done: dict[int, float] = {}
    started = time.monotonic()

    def progress(results: Sequence[SliceResult]) -> None:
        for result in results:
            if result.identical_until == 50:
                done.setdefault(result.slice.partition, time.monotonic() - started)

    # There is no partition 9: nobody leads it.  There is room for one slice at a time.
    wanted = [Slice(name, 9, 0, 50), Slice(name, 0, 0, 50), Slice(name, 1, 0, 50)]
    lost, *others = run_slices(clusters, wanted, max_bytes=1, patience_ms=3000, progress=progress)
    assert lost.error is not None and "no leader" in lost.error
    assert [(o.records, o.first_difference) for o in others] == [(50, None)] * 2
    assert max(done.values()) < 2.9


def test_memory_is_bounded_whatever_the_number_of_partitions(
    clusters: tuple[str, str], topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic(partitions=8)
    for servers, per_batch in zip(clusters, (1000, 999)):
        append_records(servers, name, 9_000, partitions=8, per_batch=per_batch, size=1000)
    held = []
    taken = SlicesComparison._take

    def take(self: SlicesComparison, *args: Any) -> None:
        taken(self, *args)
        held.append(sum(r.log.held_bytes(side) for r in [*self._open.values(), *self._waiting] for side in (0, 1)))

    monkeypatch.setattr(SlicesComparison, "_take", take)
    wanted = [Slice(name, partition, 0, 9_000) for partition in range(8)]
    results = run_slices(clusters, wanted, max_bytes=8 << 20)
    assert [(r.records, r.error) for r in results] == [(9_000, None)] * 8
    assert 0 < max(held) <= 8 << 20


def test_batch_larger_than_its_share_is_still_compared(
    clusters: tuple[str, str], topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices_comparison, "_LEAST_BYTES", 1000)
    name = topic(partitions=4)
    for servers, per_batch in zip(clusters, (100, 50)):
        append_records(servers, name, 300, partitions=4, per_batch=per_batch, size=200)
    results = run_slices(clusters, [Slice(name, partition, 0, 300) for partition in range(4)], max_bytes=16_000)
    assert [(r.records, r.error) for r in results] == [(300, None)] * 4


class Tampered:
    """A cluster whose first answers are not true: records with another value, then OFFSET_OUT_OF_RANGE, then nothing."""

    def __init__(self, cluster: RawCluster) -> None:
        self._cluster = cluster
        self._lies = [self._other_value, self._out_of_range, self._nothing]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    async def fetch(self, *args: Any, **options: Any) -> list[Any]:
        (part,) = await self._cluster.fetch(*args, **options)
        return [self._lies.pop(0)(part) if self._lies else part]

    @staticmethod
    def _other_value(part: Any) -> Any:
        lie = encode_batch([r._replace(value=b"a lie") for r in log(10)])
        return part._replace(records=memoryview(lie))

    @staticmethod
    def _out_of_range(part: Any) -> Any:
        return part._replace(error_code=1, records=memoryview(b""))

    @staticmethod
    def _nothing(part: Any) -> Any:
        return part._replace(records=memoryview(b""))


def test_one_wrong_answer_is_no_difference(clusters: tuple[str, str], topic: Callable[..., str]) -> None:
    name = topic()
    for servers in clusters:
        write(servers, name, log(100))
    for side in (0, 1):
        with both(*clusters) as pair:
            lying: list[Any] = list(pair)
            lying[side] = Tampered(pair[side])
            (result,) = pair[0].run(SlicesComparison(*lying, [Slice(name, 0, 0, 100)]).run)
        assert (result.first_difference, result.error, result.identical_until) == (None, None, 100)
        assert result.not_compared == ()


class Crowded:
    """A cluster in whose answers the first partition takes all the room."""

    def __init__(self, cluster: RawCluster) -> None:
        self._cluster = cluster

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    async def fetch(self, *args: Any, **options: Any) -> list[Any]:
        parts = await self._cluster.fetch(*args, **options)
        first = min(part.partition for part in parts)
        return [part if part.partition == first else part._replace(records=memoryview(b"")) for part in parts]


def test_partition_for_which_an_answer_has_no_room_is_not_taken_for_an_empty_one(
    clusters: tuple[str, str], topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices_comparison, "_LEAST_BYTES", 1000)  # a batch for each answer
    name = topic(partitions=4)
    for servers in clusters:
        append_records(servers, name, 300, partitions=4, per_batch=10, size=200)
    with both(*clusters) as pair:
        crowded: list[Any] = [Crowded(cluster) for cluster in pair]
        slices = [Slice(name, partition, 0, 300) for partition in range(4)]
        results = pair[0].run(SlicesComparison(*crowded, slices, max_bytes=16_000).run)
    assert [(r.records, r.error) for r in results] == [(300, None)] * 4


def test_accepted_losses_of_the_ledger_are_told_apart(
    clusters: tuple[str, str], topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tolerant_client.mirror.verify import verification as verify_module
    from tolerant_client.mirror.losses import LedgerRow

    name = topic()
    lost = [Record(0, T0, None, None, ((FILLER, None),))]
    write(clusters[0], name, log(100))
    write(clusters[1], name, log(40) + lost * 10 + log(50, 50))

    async def rows(cluster: RawCluster) -> list[LedgerRow]:
        return [LedgerRow(1, "tests", name, 0, 40, 50, "oversized", "")]

    assert run(clusters, name).partitions[0].first_difference == Difference(40, "the target has filler in place of the record")
    monkeypatch.setattr(verify_module, "read_ledger", rows)
    (part,) = run(clusters, name).partitions
    assert (part.first_difference, part.accepted, part.accepted_records, part.records) == (None, ((40, 50),), 10, 90)


@pytest.mark.skipif(not LONG, reason="the cleaner takes its time")
def test_cleaners_of_both_sides_may_have_got_differently_far(clusters: tuple[str, str]) -> None:
    name = "verify-cleaners"
    config = {"cleanup.policy": "compact", "segment.ms": "200", "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "100"}
    create_topic(clusters[0], name, 1, config)
    create_topic(clusters[1], name, 1, {"cleanup.policy": "compact"})  # its only segment is never cleaned
    records = [Record(0, T0 + n, b"%d" % (n % 37), None if n % 5 == 0 else b"%d" % n) for n in range(2000)]
    for servers in clusters:
        for first in range(0, 2000, 500):
            write(servers, name, records[first : first + 500])
            time.sleep(0.5)
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        found = [run(pair, name).partitions[0] for pair in (clusters, clusters[::-1])]
        assert [(part.first_difference, part.error) for part in found] == [(None, None)] * 2
        if all(part.compacted > 1000 for part in found):
            return
        time.sleep(2)
    raise AssertionError("the cleaner did not run")

"""verify between two real clusters: every difference is found, and nothing else is one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import kafka
import pytest
from kafka.structs import TopicPartition

from support.mirror_link import T0, append_batches, append_records, both, create_topic, delete_topic
from tolerant_client.cluster.admin.topics import topic_ids
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import OversizedRecordError
from tolerant_client.mirror.batches.gaps import FILLER
from tolerant_client.mirror.batches.losses import LedgerRow
from tolerant_client.mirror.batches.rewrite import rewrite
from tolerant_client.mirror.state.control_topic import update_control
from tolerant_client.mirror.state.ledger import Ledger
from tolerant_client.mirror.state.link_control import LinkControl, TopicIds
from tolerant_client.mirror.state.topic_filter import LinkTopics
from tolerant_client.mirror.verify import log_comparison, slices_comparison, verification
from tolerant_client.mirror.verify.outcome import Difference, Outcome
from tolerant_client.mirror.verify.report import VerifyReport
from tolerant_client.mirror.verify.slices import Slice, SliceResult
from tolerant_client.mirror.verify.slices_comparison import SlicesComparison
from tolerant_client.mirror.verify.verification import Verification, compare_here, verify
from tolerant_client.records.record_batch import Record, encode_batch, read_header

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


@pytest.fixture(scope="session")
def clusters(source: str, target: str) -> tuple[str, str]:
    return source, target


@pytest.fixture
def topic(clusters: tuple[str, str], request: pytest.FixtureRequest) -> Callable[..., str]:
    """Makes a topic of the test's name on both clusters."""

    def make(partitions: int = 1, **config: str) -> str:
        name = f"verify-{request.node.name[5:]}".replace("[", ".").rstrip("]")
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
    assert [
        (p.first_difference.reason, p.first_difference.offset) for p in report.partitions if p.first_difference
    ] == [(reason, offset) for reason, offset, _ in CHANGES]
    assert [p.identical_until for p in report.partitions] == [offset for _, offset, _ in CHANGES]
    assert report.outcome is Outcome.DIFFERENT


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


@pytest.mark.parametrize("full", [0, 64 << 20])
def test_a_tombstone_where_the_source_has_a_marker_is_found_if_its_key_is_alive_there(
    clusters: tuple[str, str], topic: Callable[..., str], full: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_comparison, "MAX_UNPROVED_BYTES", full)
    monkeypatch.setattr(slices_comparison, "_MOST_BYTES", 200)  # a batch for each fetch
    name = topic(partitions=2, cleanup_policy="compact")
    producer = kafka.KafkaProducer(bootstrap_servers=clusters[0], transactional_id=name)
    try:
        producer.init_transactions()
        for number in range(20):
            producer.begin_transaction()
            for partition in range(2):
                producer.send(name, b"v", b"%d" % number, partition=partition, timestamp_ms=T0)
            producer.commit_transaction()
    finally:
        producer.close()
    for partition, alive in ((0, b"7"), (1, b"gone")):
        rows = [(b"%d" % (n // 2), b"v") if n % 2 == 0 else (b"gone %d" % n, None) for n in range(40)]
        rows[21] = alive, None
        write(clusters[1], name, [Record(0, T0, *row) for row in rows], partition)
    why = "the tombstone is missing on the source, which still has an older record of its key"
    one, other = run(clusters, name).partitions
    if full:
        assert one.first_difference == Difference(21, why)
    else:  # a key for which there is no room
        assert one.outcome is Outcome.NOT_COMPARED
    assert (other.outcome, other.records, other.compacted) == (Outcome.IDENTICAL, 20, 20)


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
    first, second = report.partitions
    assert [(p.from_offset, p.until_offset, p.records) for p in (first, second)] == [(25, 100, 75), (33, 100, 67)]
    assert [(p.source_start, p.target_start) for p in (first, second)] == [(25, 0), (0, 33)]
    # What the source itself no longer has nobody misses; what only the target no longer has was not compared.
    assert (first.outcome, first.compared, first.held) == (Outcome.IDENTICAL, 75, 75)
    assert (second.outcome, second.compared, second.held) == (Outcome.NOT_COMPARED, 67, 100)
    assert second.not_compared == ((0, 33, "the target no longer has them: its log starts at 33", True),)


def test_offsets_that_retention_takes_during_the_run_are_named(
    clusters: tuple[str, str], topic: Callable[..., str]
) -> None:
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
    assert second.not_compared == ((0, 100, "the target log starts at 100 now", True),)
    assert [gap.matters for gap in first.not_compared if gap.from_offset == 0 and gap.until_offset == 25] in (
        [],
        [False],
    )


def test_target_that_is_behind_lags_while_the_mirror_runs(clusters: tuple[str, str], topic: Callable[..., str]) -> None:
    name = topic()
    write(clusters[0], name, log(100))
    write(clusters[1], name, log(60), per_batch=20)
    (part,) = run(clusters, name).partitions
    assert part.first_difference == Difference(60, "the target log ends earlier")
    report = run(clusters, name, allow_behind=True)
    assert report.identical
    assert (report.lag, report.partitions[0].identical_until, report.partitions[0].records) == (40, 60, 60)
    assert (report.compared, report.held) == (60, 100)


def test_missing_partitions_are_a_difference_or_a_lag(clusters: tuple[str, str]) -> None:
    name = "verify-missing"
    create_topic(clusters[0], name)
    write(clusters[0], name, log(10))
    assert run(clusters, name).partitions[0].first_difference == Difference(0, "the target has no such partition")
    report = run(clusters, name, allow_behind=True)
    assert (report.outcome, report.lag, report.compared) == (Outcome.NOT_COMPARED, 10, 0)


def test_later_run_goes_on_from_the_report_of_an_earlier_one(
    clusters: tuple[str, str], topic: Callable[..., str]
) -> None:
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
    delete_topic(clusters[1], name)
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

    def __init__(self, cluster: Cluster) -> None:
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

    def __init__(self, cluster: Cluster) -> None:
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


def tell(
    clusters: tuple[str, str], topic: str, *losses: tuple[int, int, str], detail: str = "", partition: int = 0
) -> None:
    """Writes rows into the target's ledger, as a link does that goes on behind losses."""
    with both(*clusters) as (_, target):

        async def write_rows() -> None:
            await target.connect()
            await Ledger(target, "tests").write(
                [LedgerRow(1, "tests", topic, partition, *loss, detail) for loss in losses]
            )

        target.run(write_rows)


def test_a_doubled_batch_that_the_ledger_calls_a_truncation_is_different(
    clusters: tuple[str, str], topic: Callable[..., str]
) -> None:
    """120 records twice and 120 missing, as two writers of one partition left it, and went on behind the row."""
    name = topic(partitions=2)
    right = log(1000)
    shifted = [*right[:500], *right[380:500], *right[500:700], *right[820:]]
    assert len(shifted) == 1000
    for partition, records in enumerate((shifted, right)):
        write(clusters[0], name, right, partition, per_batch=20)
        write(clusters[1], name, records, partition, per_batch=20)
    tell(clusters, name, (500, 820, "truncation"))
    first, second = (report := run(clusters, name)).partitions
    assert (report.outcome, report.outcome.exit_code) == (Outcome.DIFFERENT, 1)
    assert (first.first_difference, first.identical_until) == (Difference(500, "timestamp differs"), 500)
    assert (first.told_records, first.records, first.compared, first.untold_difference) == (320, 680, 1000, None)
    assert second.outcome is Outcome.IDENTICAL


@pytest.mark.parametrize("reason", ["retention", "truncation", "recreation", "oversized", "refused", "anything"])
def test_no_row_of_the_ledger_excuses_a_record_that_the_source_still_has(
    clusters: tuple[str, str], topic: Callable[..., str], reason: str
) -> None:
    name = topic(partitions=3)
    right = log(100)
    filler = [Record(0, T0, None, None, ((FILLER, None),))]
    for partition, wrong in enumerate((filler, [right[39]], right[40:41])):
        write(clusters[0], name, right, partition)
        write(clusters[1], name, [*right[:40], *wrong, *right[41:]], partition)
        told = "the record at offset 40 takes a batch of 3000 bytes, the target's max.message.bytes is 2000; raise it"
        tell(clusters, name, (40, 41, reason), (50, 60, reason), detail=told, partition=partition)
    filled, other, same = run(clusters, name).partitions
    assert filled.first_difference == Difference(40, "the target has filler in place of the record")
    assert other.first_difference == Difference(40, "timestamp differs")
    assert [(p.told_records, p.compared, p.untold_difference) for p in (filled, other, same)] == [
        (1, 100, None),
        (1, 100, None),
        (0, 100, None),
    ]
    assert same.outcome is Outcome.IDENTICAL and len(same.ledger) == 2


def test_a_record_that_is_really_too_large_for_the_target_is_explained_and_not_plainly_identical(
    clusters: tuple[str, str], topic: Callable[..., str]
) -> None:
    name = topic(partitions=2)
    right = log(100)
    right[40] = right[40]._replace(value=os.urandom(3000))
    large = encode_batch(right[40:41])
    with pytest.raises(OversizedRecordError) as caught:
        rewrite([(read_header(large), memoryview(large))], 0, fill_holes=True, is_compacted=False, max_batch_bytes=2000)
    filler = [Record(0, T0, None, None, ((FILLER, None),))]
    for partition in (0, 1):
        write(clusters[0], name, right, partition, codec=1)
        write(
            clusters[1],
            name,
            [*right[:40], *filler, *right[41:70], *filler * partition, *right[70 + partition :]],
            partition,
        )
        tell(clusters, name, (40, 41, "oversized"), detail=str(caught.value), partition=partition)
    first, second = run(clusters, name).partitions
    assert (first.outcome, first.outcome.exit_code, first.explained, first.records) == (Outcome.EXPLAINED, 3, 1, 99)
    assert (second.first_difference, second.explained) == (
        Difference(70, "the target has filler in place of the record"),
        1,
    )


def test_what_retention_took_before_it_was_copied_is_explained_while_the_target_has_filler_there(
    clusters: tuple[str, str], topic: Callable[..., str]
) -> None:
    name = topic()
    write(clusters[0], name, log(100))
    write(clusters[1], name, log(40) + [Record(0, T0, None, None, ((FILLER, None),))] * 10 + log(50, 50))
    tell(clusters, name, (40, 50, "retention"))
    assert run(clusters, name).partitions[0].first_difference == Difference(
        40, "the target has filler in place of the record"
    )
    delete_records(clusters[0], name, 50)
    report = run(clusters, name)
    assert (report.outcome, report.explained, report.compared, report.held) == (Outcome.EXPLAINED, 10, 50, 50)
    again = run(clusters, name, resume=report.as_json())
    assert (again.outcome, again.explained, again.compared) == (Outcome.EXPLAINED, 10, 50)
    delete_records(clusters[1], name, 50)
    assert run(clusters, name).outcome is Outcome.IDENTICAL


def test_a_target_without_a_record_is_different_or_not_compared_but_never_identical(
    clusters: tuple[str, str], topic: Callable[..., str]
) -> None:
    name = topic(partitions=4)
    for servers, counts in zip(clusters, ((100, 100, 0, 50), (0, 100, 0, 100))):
        for partition, count in enumerate(counts):
            write(servers, name, log(count), partition)
    delete_records(clusters[1], name, 100, 1)  # as retention does
    # A test topic that was purged, and mirrored into: 0 to 49 were never copied.
    delete_records(clusters[1], name, 100, 3)
    write(clusters[0], name, log(60, 50), 3)
    write(clusters[1], name, log(10, 100), 3)
    lacking, emptied, unused, purged = (report := run(clusters, name)).partitions
    assert lacking.first_difference == Difference(0, "the target log ends earlier")
    assert (emptied.outcome, emptied.compared, emptied.held) == (Outcome.NOT_COMPARED, 0, 100)
    assert emptied.not_compared == ((0, 100, "the target no longer has them: its log starts at 100", True),)
    assert unused.outcome is Outcome.IDENTICAL
    assert (purged.outcome, purged.compared, purged.held) == (Outcome.NOT_COMPARED, 10, 110)
    assert (report.outcome, report.compared, report.held) == (Outcome.DIFFERENT, 10, 310)


def test_records_behind_an_open_transaction_are_not_compared_and_the_transaction_is_named(
    clusters: tuple[str, str], topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic(partitions=2)
    for servers in clusters:
        write(servers, name, log(100), 0)
    producers = []
    try:
        for number, servers in enumerate(clusters):
            producer = kafka.KafkaProducer(bootstrap_servers=servers, transactional_id=f"{name}-{number}")
            producers.append(producer)
            producer.init_transactions()
            producer.begin_transaction()
            producer.send(name, b"open", partition=number).get(30)
        write(clusters[0], name, log(50, 101), 0)
        write(clusters[0], name, log(30), 1)
        write(clusters[1], name, log(20), 1)
        first, second = (report := run(clusters, name)).partitions
        assert (first.first_difference, first.outcome, first.compared, first.held) == (
            None,
            Outcome.NOT_COMPARED,
            100,
            151,
        )
        ((start, until, reason, matters),) = first.not_compared
        assert (start, until, matters) == (100, 151, True)
        assert "open transaction (producer id" in reason and f"{name}-0" in reason and "since" in reason
        # The one of the target: what it has before its end cannot be read; that it ends earlier is a difference.
        assert second.first_difference == Difference(21, "the target log ends earlier")
        assert (second.compared, [gap[:2] for gap in second.not_compared]) == (0, [(0, 21), (21, 30)])
        assert f"{name}-1" in second.not_compared[0].reason
        assert report.outcome.exit_code == 1

        # While the mirror runs a young transaction is as good as lag, but nobody waits for an old one.
        first, second = run(clusters, name, allow_behind=True).partitions
        assert (first.outcome, first.compared, first.held) == (Outcome.IDENTICAL, 100, 151)
        assert second.outcome is Outcome.NOT_COMPARED
        monkeypatch.setattr(verification, "_LIVE_MS", 0)
        assert run(clusters, name, allow_behind=True).partitions[0].outcome is Outcome.NOT_COMPARED
    finally:
        for producer in producers:
            producer.close()


def test_partitions_that_only_the_target_has_are_different_unless_they_are_empty(clusters: tuple[str, str]) -> None:
    name = "verify-more-partitions"
    create_topic(clusters[0], name, 1)
    create_topic(clusters[1], name, 3)
    for servers in clusters:
        write(servers, name, log(10))
    assert run(clusters, name).outcome is Outcome.IDENTICAL
    write(clusters[1], name, log(10), 2)
    report = run(clusters, name)
    assert [p.first_difference for p in report.partitions] == [
        None,
        None,
        Difference(0, "the source has no such partition"),
    ]


@pytest.mark.parametrize("side", [0, 1])
def test_topic_that_is_made_anew_while_it_is_compared_was_not_compared(
    clusters: tuple[str, str], topic: Callable[..., str], side: int
) -> None:
    name = topic()
    for servers in clusters:
        write(servers, name, log(50))

    def make_anew() -> None:
        delete_topic(clusters[side], name)
        create_topic(clusters[side], name)
        write(clusters[side], name, log(1))  # so that the broker knows it

    with both(*clusters) as (source, target):
        asked = Verification(source, target, name)

        async def compare() -> VerifyReport:
            await asked.prepare()
            slices = await asked.next_slices()
            asked.take(await SlicesComparison(source, target, slices).run())
            make_anew()
            assert await asked.next_slices() == []
            return asked.report()

        report = source.run(compare)
    assert report.outcome is Outcome.NOT_COMPARED
    told = report.partitions[0].error
    assert told is not None and "created again on the " + ("source", "target")[side] in told


def test_a_topic_that_was_made_anew_since_its_link_began_is_told(
    clusters: tuple[str, str], topic: Callable[..., str]
) -> None:
    name = topic()
    for servers in clusters:
        write(servers, name, log(50))
    with both(*clusters) as (source, target):

        async def compare() -> list[list[str]]:
            asked = [Verification(source, target, name) for _ in range(2)]
            ids = [str((await topic_ids(cluster, [name]))[name]) for cluster in (source, target)]
            cluster_id = await source.cluster_id()
            for each, of_source in zip(asked, (ids[0], "the one before")):
                begun = {TopicPartition(name, 0): TopicIds(of_source, ids[1])}
                control = LinkControl(topics=LinkTopics.of(name).to_json(), source_cluster_id=cluster_id, begun=begun)
                await update_control(target, f"verify-{name}", lambda _, control=control: control)
                await each.prepare()
            return [each.warnings for each in asked]

        same, other = source.run(compare)
    assert same == []
    assert [
        f"topic {name} was deleted and created again on the source since link verify-{name} began" in text
        for text in other
    ] == [True]


@pytest.mark.long
def test_cleaners_of_both_sides_may_have_got_differently_far(clusters: tuple[str, str]) -> None:
    name = "verify-cleaners"
    config = {
        "cleanup.policy": "compact",
        "segment.ms": "200",
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": "100",
    }
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

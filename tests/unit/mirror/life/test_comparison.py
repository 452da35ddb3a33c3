"""Logs are compared up to the target's high watermark, whatever a mirror at work has appended behind that."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import kafka.errors as Errors
import pytest
from kafka.protocol.admin import DescribeProducersRequest
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.ask_nodes import SilentError
from tolerant_client.cluster.admin.offsets import Unreplicated, Untold
from tolerant_client.cluster.admin.transactions import CoordinatorView, ProducerEntry
from tolerant_client.cluster.cluster import CONSUMER, EARLIEST, Cluster
from tolerant_client.cluster.fetch import FetchedPartition
from tolerant_client.errors import TargetDivergedError
from tolerant_client.mirror.batches.appendable import AppendState
from tolerant_client.mirror.batches.divergence import LogSlice
from tolerant_client.mirror.batches.gaps import FILLER, marker_producer
from tolerant_client.mirror.batches.losses import LedgerRow, Loss, MirrorPolicy
from tolerant_client.mirror.engine.identical import (
    evidence,
    log_start,
    next_sequence,
    open_gaps,
    other_writers,
    resume_point,
)
from tolerant_client.mirror.engine.identical.difference import OpenTransaction
from tolerant_client.mirror.life import comparison, mirrors, plan_report
from tolerant_client.mirror.life.comparison import Comparison, compare_ends
from tolerant_client.mirror.life.promotion_blockers import blockers
from tolerant_client.mirror.life.status_reasons import uncompared_reasons
from tolerant_client.mirror.state.claims import Run
from tolerant_client.mirror.state.claims_record import Waiting
from tolerant_client.mirror.state.health import Health
from tolerant_client.mirror.state.ledger import Ledger
from tolerant_client.mirror.state.link_control import LinkControl, Positions, TopicIds
from tolerant_client.records.record_batch import Record, encode_batch, read_header

P = TopicPartition("orders", 0)
LINK_ID = 7
GAP_ID = open_gaps.gap_transactional_id("default", P)
IDS = TopicIds("source-id", str(uuid.UUID(int=7)))
CONTROL = LinkControl(producer_ids=(LINK_ID,), begun={P: IDS})
ENTRY = ProducerEntry(LINK_ID, 0, 19, 0, -1)


class Log:
    """A cluster of one node and one partition; `leader_end` is what the leader has beyond the high watermark.

    A transaction is open from `stable` on.
    """

    file_options = "--config mm2.properties"

    def __init__(
        self, *batches: bytes, end: int, leader_end: int | None = None, start: int = 0, stable: int | None = None
    ) -> None:
        self.stable = end if stable is None else stable
        self.batches, self.start, self.end = batches, start, end
        self.aborted: tuple[tuple[int, int], ...] = ()
        self.asked: list[int] = []  # positions of fetches
        self.fetch_error = 0
        self.leader_end = end if leader_end is None else leader_end
        self.net = self.manager = self
        self.name = "target"
        self.untold: Exception | None = None  # what its node says instead of the log's end

    def highest_version(self, request: Any) -> int:
        return 0 if request is DescribeProducersRequest else -1

    async def offsets_at(
        self,
        node: int,
        partitions: Iterable[TopicPartition],
        asked: Mapping[TopicPartition, int],
        isolation_level: int,
        *,
        replica_id: int = CONSUMER,
    ) -> dict[TopicPartition, int | Exception]:
        end = self.stable if isolation_level else self.end if replica_id == CONSUMER else self.leader_end
        return {p: self.start if asked[p] == EARLIEST else self.untold or end for p in partitions}

    async def list_offsets(self, asked: Mapping[TopicPartition, int]) -> dict[TopicPartition, Any]:
        return await self.offsets_at(1, asked, asked, 0)

    async def connect(self) -> None:
        pass

    async def sleep(self, seconds: float) -> None:
        pass

    def call_soon_with_future(self, function: Any, *args: Any) -> asyncio.Future[Any]:
        return asyncio.ensure_future(function(*args))

    async def heard(self, future: asyncio.Future[Any], timeout_ms: float, node_id: int) -> Any:
        return await future

    async def by_leader(self, partitions: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
        return {1: list(partitions)}

    async def leader(self, partition: TopicPartition) -> int:
        return 1

    def known_leader(self, partition: TopicPartition) -> int:
        return 1

    async def track(self, topics: Iterable[str]) -> None:
        pass

    async def refresh(self) -> None:
        pass

    async def insist(self, what: str, attempt: Any) -> Any:
        return await attempt()

    async def fetch(
        self, node: int, positions: Mapping[TopicPartition, int], *, isolation_level: int = 0, **_: Any
    ) -> list[FetchedPartition]:
        self.asked.append(positions[P])
        end = self.stable if isolation_level else self.end
        held = [
            b
            for b in self.batches
            if positions[P] <= (header := read_header(b)).last_offset and header.base_offset < end
        ]
        return [
            FetchedPartition(
                P,
                self.fetch_error,
                self.end,
                self.end,
                self.start,
                self.aborted if isolation_level else (),
                memoryview(b"".join(held)),
            )
        ]


def batch(base_offset: int, value: bytes = b"x", **options: Any) -> bytes:
    return encode_batch([Record(0, 1, None, value)] * 10, base_offset=base_offset, **options)


def of_link(base_offset: int, value: bytes = b"x") -> bytes:
    return batch(base_offset, value, producer_id=LINK_ID, producer_epoch=0, base_sequence=base_offset)


def marker(base_offset: int, *, commits: bool = False, producer_id: int = 99) -> bytes:
    records = [Record(0, 1, b"\0\0\0\1" if commits else b"\0\0\0\0", b"")]
    return encode_batch(records, base_offset=base_offset, producer_id=producer_id, producer_epoch=4, is_control=True)


def in_transaction(base_offset: int, *records: Record) -> bytes:
    return encode_batch(
        records, base_offset=base_offset, producer_id=99, producer_epoch=4, base_sequence=0, is_transactional=True
    )


SOURCE = Log(batch(0), batch(10), end=20)


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ids(*_: Any) -> dict[str, TopicIds]:
        return {"orders": IDS}

    async def producers(target: Any, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, list[ProducerEntry]]:
        written = [header for b in target.batches if (header := read_header(b)).producer_id == LINK_ID]
        is_behind = target.leader_end > target.end  # the leader has more of the link than consumers see
        if not written and not is_behind:
            return {p: [] for p in partitions}
        last = ENTRY.last_sequence if is_behind else written[-1].base_sequence + written[-1].last_offset_delta
        return {p: [ENTRY._replace(last_sequence=last)] for p in partitions}

    monkeypatch.setattr(resume_point, "read_ids", ids)
    monkeypatch.setattr(next_sequence, "describe_producers", producers)
    monkeypatch.setattr(comparison, "copied_now", AsyncMock(return_value=frozenset()))  # no mirror runs


async def no_rows(**_: Any) -> dict[TopicPartition, Any]:
    return {}


def compared(source: Any, target: Any, **said: Any) -> Comparison | None:
    ledger: Any = SimpleNamespace(link="default", rows=no_rows)
    return asyncio.run(compare_ends(source, target, [P], ledger, replace(CONTROL, **said), False))


def test_a_mirror_that_appends_is_in_no_comparisons_way_and_a_place_waits_for_the_replicas() -> None:
    source: Any = SOURCE
    target: Any = Log(of_link(0), end=10, leader_end=20)
    assert compared(source, target) == Comparison({}, ())
    placed = asyncio.run(resume_point.read_append_states(source, target, [P], LINK_ID, control=CONTROL))
    assert placed == {P: Unreplicated(10, 20)}


class Copied(Log):
    """A target to which a mirror appends its last batch after its end was told once; it tells it `times` times."""

    times = 2

    async def offsets_at(
        self,
        node: int,
        partitions: Iterable[TopicPartition],
        asked: Mapping[TopicPartition, int],
        *how: Any,
        **more: Any,
    ) -> dict[TopicPartition, int | Exception]:
        told = await super().offsets_at(node, partitions, asked, *how, **more)
        if EARLIEST not in asked.values():
            self.end = self.leader_end
            self.times -= 1
            self.untold = None if self.times > 0 else Errors.OffsetNotAvailableError("orders-0")
        return told


def test_a_source_that_is_purged_of_what_was_just_copied_has_not_overtaken_the_mirror() -> None:
    """Its start is read after the target's end: that end is old by then, and is read once more."""
    source: Any = Log(batch(20), start=20, end=30)
    assert compared(source, Copied(of_link(0), of_link(10), end=10, leader_end=20)) == Comparison({}, ())
    stuck = compared(source, Copied(of_link(0), end=10, leader_end=10))
    assert stuck is not None and "no longer has offsets 10 to 20: retention overtook the mirror" in stuck.differing[P]
    silent = Copied(of_link(0), of_link(10), end=10, leader_end=20)
    silent.times = 1
    assert compared(source, silent) == Comparison({}, (P,))


@pytest.mark.parametrize("is_of_target", [False, True])
def test_what_a_leader_says_instead_of_an_offset_is_told_of_its_partition(is_of_target: bool) -> None:
    """A replica that leads after a crash has no high watermark until its ISR is large enough again."""
    logs: list[Any] = [Log(batch(0), batch(10), end=20), Log(of_link(0), end=10)]
    logs[is_of_target].untold = Errors.OffsetNotAvailableError("orders-0")
    assert compared(*logs) == Comparison({}, (P,))
    placed = asyncio.run(resume_point.read_append_states(*logs, [P], LINK_ID, control=CONTROL))
    assert isinstance(placed[P], Untold) and "gives no offset for it: [Error 78] OffsetNotAvailable" in str(placed[P])


def test_a_log_whose_last_batch_fills_a_gap_is_compared_while_more_is_appended() -> None:
    source: Any = Log(batch(0), batch(11), end=21)
    assert compared(source, Log(of_link(0), marker(10), end=11, leader_end=21)) == Comparison({}, ())


def test_an_emptied_log_whose_sequence_is_of_later_batches_is_not_compared_this_time() -> None:
    assert compared(SOURCE, Log(end=10, leader_end=20, start=10)) == Comparison({}, (P,))


def test_what_differs_before_the_high_watermark_is_found() -> None:
    found = compared(SOURCE, Log(of_link(0, b"other"), end=10, leader_end=20))
    assert found is not None and not found.unread and "another record than the source" in found.differing[P]


def test_what_others_wrote_while_a_transaction_is_open_on_the_source_is_no_copy_of_it() -> None:
    source: Any = Log(batch(0), batch(10), end=20, stable=10)
    strangers = [
        batch(10, b"other", producer_id=99, producer_epoch=0, base_sequence=0),
        batch(10, b"other", producer_id=99, producer_epoch=0, base_sequence=0, is_transactional=True),
    ]
    for stranger in strangers:
        found = compared(source, Log(of_link(0), stranger, end=20))
        assert found is not None and "foreign record batch at offset 10" in found.differing[P]
        assert found.differing[P].endswith(
            "Stop that producer. If nobody needs what others wrote there, delete the target topic: the next start fills it"
            " again; to copy after what others wrote, if nothing was copied there yet: a link of its own with --offsets"
            " translated and another --link; to have the other topics copied until then: tolerant-kafka pause --config mm2.properties --topic orders"
        ), "a link without a file cannot mirror into a topic of another name"
    assert compared(source, Log(of_link(0), end=10)) == Comparison({}, ())


FOREIGN, GAP = Record(0, 1, None, b"other"), Record(0, 1, None, None, ((FILLER, None),))


@pytest.mark.parametrize(
    "end",
    [
        (marker(10, commits=True),),
        (in_transaction(10, FOREIGN),),
        (in_transaction(10, FOREIGN), marker(11)),
        (in_transaction(10, FOREIGN), marker(11), marker(12)),
        (in_transaction(10, GAP), marker(11, commits=True)),
        (batch(10, b"other", producer_id=99, producer_epoch=0, base_sequence=0), marker(20)),
    ],
)
def test_a_transaction_of_others_at_the_end_is_no_copy_of_what_the_source_has_deleted(end: tuple[bytes, ...]) -> None:
    assert isinstance(placed_after_retention(*end), TargetDivergedError)


@pytest.mark.parametrize(
    ("end", "lost_from"),
    [
        ((marker(10),), 10),
        ((marker(10), marker(11), marker(12)), 12),
        ((in_transaction(10, GAP), marker(11)), 11),
        ((in_transaction(10, GAP),), 11),
        ((marker(10, producer_id=marker_producer(10)[0]),), 11),
    ],
)
def test_what_the_link_wrote_into_a_gap_is_its_own_where_the_source_has_deleted_it(
    end: tuple[bytes, ...], lost_from: int
) -> None:
    """A bare marker may be another's all the same, so its offset counts among those that were lost."""
    found = placed_after_retention(*end)
    assert isinstance(found, Loss) and found.row.from_offset == lost_from


def test_a_marker_with_nothing_before_it_is_the_links_only_where_that_has_copied_as_far() -> None:
    source: Any = Log(batch(30), start=30, end=40)
    target: Any = Log(marker(20), start=20, end=21)
    for copied, kind in ((10, TargetDivergedError), (20, Loss)):
        control = replace(CONTROL, copied={P: copied})
        found = asyncio.run(resume_point.read_append_states(source, target, [P], LINK_ID, control=control))
        assert isinstance(found[P], kind)


def placed_after_retention(*end: bytes) -> Any:
    """What a start makes of a log of the link with another end, whose offsets the source has deleted since."""
    source: Any = Log(batch(30), start=30, end=40)
    target: Any = Log(of_link(0), *end, end=read_header(end[-1]).next_offset)
    return asyncio.run(resume_point.read_append_states(source, target, [P], LINK_ID, control=CONTROL))[P]


def test_records_of_others_where_the_source_has_none_are_no_proof_of_a_copy() -> None:
    source: Any = Log(batch(0), batch(30), end=40)
    stranger = batch(10, b"other", producer_id=99, producer_epoch=0, base_sequence=0)
    found = compared(source, Log(of_link(0), stranger, end=20))
    assert found is not None and "foreign record batch at offset 10" in found.differing[P]


WITH_HOLE = Log(batch(0), batch(30), end=40)  # the cleaner took 10 to 29


@pytest.mark.parametrize(
    "end",
    [
        (in_transaction(10, FOREIGN), marker(11, commits=True)),
        (in_transaction(10, FOREIGN), marker(11)),
        (batch(10, b"other", producer_id=99, producer_epoch=0, base_sequence=0), marker(20)),
        (in_transaction(10, GAP), marker(11), in_transaction(12, Record(0, 1, b"key", None)), marker(13, commits=True)),
    ],
)
def test_a_marker_hides_no_records_of_others_where_the_source_has_none(end: tuple[bytes, ...]) -> None:
    source: Any = WITH_HOLE
    target = Log(of_link(0), *end, end=read_header(end[-1]).next_offset)
    found = compared(source, target)
    assert found is not None and "foreign record batch" in found.differing[P]


def test_a_copy_that_another_wrote_stays_one_where_the_source_has_cleaned_it_since() -> None:
    """It was compared before the link stopped, and nobody has written since."""
    source: Any = WITH_HOLE
    target: Any = Log(of_link(0), batch(10, b"copied", producer_id=99, producer_epoch=0, base_sequence=0), end=20)
    found = asyncio.run(
        resume_point.read_append_states(source, target, [P], LINK_ID, control=replace(CONTROL, copied={P: 20}))
    )
    assert isinstance(found[P], AppendState)


@pytest.mark.parametrize("is_held", [True, False])
def test_an_emptied_log_is_its_running_mirrors_to_judge(monkeypatch: pytest.MonkeyPatch, is_held: bool) -> None:
    """It knows how far it has copied, and healthy is what it says; the control says so once the log rests."""
    source: Any = Log(batch(0), batch(20), end=30)
    target = Log(start=30, end=30)
    monkeypatch.setattr(comparison, "copied_now", AsyncMock(return_value=frozenset({P} if is_held else ())))
    found = compared(source, target)
    assert found is not None
    (blocker,) = blockers([], {}, compared=found)
    assert (found.differing.keys(), found.emptied.keys()) == ((set(), {P}) if is_held else ({P}, set()))
    assert uncompared_reasons(found) == [] and blocker.lasts != is_held
    assert (
        "not recorded yet" if is_held else "delete the target topic, with what only it has (compare both"
    ) in blocker.text
    ledger, policy = cast(Ledger, SimpleNamespace(link="default", rows=no_rows)), MirrorPolicy()
    stopped, losses, told = asyncio.run(
        plan_report._differences(source, cast(Any, target), [P], ledger, CONTROL, policy)
    )
    assert (not stopped) == is_held and not losses and not told


@pytest.mark.parametrize("is_held", [True, False])
def test_a_loss_is_its_running_mirrors_to_settle_until_it_reports_a_block(
    monkeypatch: pytest.MonkeyPatch, is_held: bool
) -> None:
    """A status that sees it first calls nobody: its --on-loss may say that it resumes."""
    monkeypatch.setattr(comparison, "copied_now", AsyncMock(return_value=frozenset({P} if is_held else ())))
    found = compared(cast(Any, Log(batch(20), start=20, end=30)), Log(of_link(0), end=10))
    assert found is not None
    assert (found.differing.keys(), found.unsettled.keys()) == ((set(), {P}) if is_held else ({P}, set()))
    assert found.unlike == {P}, "how much is copied is unknown meanwhile"
    refused, emptied = TopicPartition("orders", 1), TopicPartition("orders", 2)
    others = Comparison({}, unread=(P,), refused={refused: "no right"}, emptied={emptied: "it is empty"})
    assert (others.unlike, others.unproved) == (set(), {P, refused})
    (blocker,) = blockers([], {}, compared=found)
    assert blocker.lasts != is_held and list(blocker.causes) == ([f"loss: {P}"] if is_held else [])
    many = {TopicPartition("many", n): f"many-{n} has lost records" for n in range(7)}
    *_, last = found_of_many = blockers([], {}, compared=Comparison({}, unsettled=many))
    assert len(found_of_many) == 6 and last.text == "losses in many-5, many-6 wait for the mirror, too"
    assert {cause for each in found_of_many for cause in each.causes} == {f"loss: {p}" for p in many}
    paused = compared(cast(Any, Log(batch(20), start=20, end=30)), Log(of_link(0), end=10), paused=frozenset({P.topic}))
    assert paused is not None and paused.differing.keys() == {P}, "of which the mirror does nothing"
    lost = "The source of orders-0 no longer has offsets 10 to 20: retention overtook the mirror; "
    assert blocker.text == lost + (
        "the running mirror resumes after them, pauses the partition or reports it as blocked, as its --on-loss says"
        if is_held
        else "resume after them with --on-loss continue (in the file of --config: tolerant.on.loss = continue), or"
        " delete the target topic, with what only it has (compare both with tolerant-kafka verify first): the next start creates it"
        " and fills it again"
    )


def test_what_running_mirrors_copy_is_what_they_hold_and_do_not_call_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    blocked, other = TopicPartition("orders", 1), TopicPartition("orders", 2)
    at_work = Run("dr", "r", "m1", 812, 0, 0, is_alive=True, copies=frozenset({P, blocked}))
    at_work = replace(at_work, waiting={blocked: Waiting("it is empty", 0, is_blocked=True), P: Waiting("slow", 0)})
    killed = Run("dr", "s", "m1", 813, 0, 0, is_alive=False, copies=frozenset({other}))
    monkeypatch.setattr(mirrors, "look_at_claims", AsyncMock())
    at_work = replace(at_work, waiting_count=2)
    untold = replace(at_work, waiting_count=3)  # which may be any of its partitions
    for runs, copied in (([killed, at_work], {P}), ([untold], set()), ([killed], set()), (None, set())):
        monkeypatch.setattr(mirrors, "seen_mirrors", AsyncMock(return_value=runs))
        assert asyncio.run(mirrors.copied_now(cast(Any, None), "dr")) == copied


MEANT_FOR_280 = batch(0, producer_id=LINK_ID, producer_epoch=0, base_sequence=280)


@pytest.mark.parametrize(
    "source",
    [Log(batch(50), start=50, end=60), Log(batch(30), end=40), Log(batch(0), end=10), Log(batch(0), batch(10), end=20)],
    ids=["retention", "cleaned", "equal", "more"],
)
@pytest.mark.parametrize("end", [(), (marker(10),)], ids=["data", "marker"])
def test_a_batch_of_the_link_that_was_meant_for_a_later_offset_is_no_copy_whatever_the_source_has(
    source: Any, end: tuple[bytes, ...]
) -> None:
    """The target's topic is created again between two appends: its broker knows no producer, and takes any sequence."""
    target: Any = Log(MEANT_FOR_280, *end, end=10 + len(end))
    found = asyncio.run(resume_point.read_append_states(source, target, [P], LINK_ID, control=CONTROL))
    assert isinstance(found[P], TargetDivergedError) and "meant for a later offset" in str(found[P])


def start_filler(base_offset: int, count: int) -> bytes:
    filler = [Record(0, 1, None, None, ((FILLER, None),))] * count
    return encode_batch(
        filler, base_offset=base_offset, producer_id=LINK_ID, producer_epoch=0, base_sequence=base_offset
    )


@pytest.mark.parametrize(
    ("end", "source_start"),
    [(20, 50), (20, 60), (50, 50), (50, 60)],
    ids=["half", "moved on", "filled", "filled, moved on"],
)
def test_a_log_start_that_a_killed_mirror_left_half_done_is_brought_to_its_end(
    monkeypatch: pytest.MonkeyPatch, end: int, source_start: int
) -> None:
    """To no other one: what the source had behind it, and has no more, is a loss."""
    source: Any = Log(batch(source_start), start=source_start, end=source_start + 10)
    target: Any = Log(*(start_filler(offset, 10) for offset in range(0, end, 10)), end=end)
    control = replace(CONTROL, log_starts={P: 50})
    can_delete = True

    async def topic_facts(*_: Any) -> dict[str, Any]:
        return {P.topic: SimpleNamespace(can_delete_records=can_delete)}

    def found() -> Any:
        return asyncio.run(resume_point.read_append_states(source, target, [P], LINK_ID, control=control))[P]

    monkeypatch.setattr(log_start, "topic_facts", topic_facts)
    assert isinstance(found(), resume_point.LogStart) and found().start == 50
    can_delete = False  # where the topic is compacted only the filler stays
    kinds = {(50, 50): AppendState, (50, 60): Loss}
    assert isinstance(found(), kinds.get((end, source_start), resume_point.LogStart))


def test_records_of_others_up_to_where_a_log_was_to_begin_are_no_filler() -> None:
    source: Any = Log(batch(10), start=10, end=20)
    target: Any = Log(batch(0, producer_id=5, producer_epoch=0, base_sequence=0), end=10)
    control = replace(CONTROL, log_starts={P: 10})
    found = asyncio.run(resume_point.read_append_states(source, target, [P], LINK_ID, control=control))
    assert isinstance(found[P], TargetDivergedError)


@pytest.mark.parametrize(
    ("written", "at"),
    [
        ((start_filler(0, 10), batch(10, producer_id=5), start_filler(20, 10)), 10),
        ((start_filler(0, 10), batch(10, producer_id=5)), 10),
        ((batch(0, producer_id=-1), start_filler(10, 40)), 0),
        ((batch(0, producer_id=5), start_filler(10, 50)), 0),
    ],
    ids=["among", "last", "filled", "filled beyond"],
)
@pytest.mark.parametrize("source_end", [50, 70])
@pytest.mark.parametrize("at_high_watermark", [False, True])
def test_records_of_others_among_the_filler_are_refused_at_every_start_and_never_deleted(
    monkeypatch: pytest.MonkeyPatch, written: tuple[bytes, ...], at: int, source_end: int, at_high_watermark: bool
) -> None:
    """Nothing else tells: the log ends with filler of the link, as one does whose start was left half done."""

    async def topic_facts(*_: Any) -> dict[str, Any]:
        return {P.topic: SimpleNamespace(can_delete_records=False)}  # where nothing is deleted it is refused, too

    monkeypatch.setattr(log_start, "topic_facts", topic_facts)
    source: Any = Log(*(batch(offset) for offset in range(50, source_end, 10)), start=50, end=source_end)
    target: Any = Log(*written, end=read_header(written[-1]).next_offset)
    control = replace(CONTROL, log_starts={P: 50})
    (found,) = asyncio.run(
        resume_point.read_append_states(
            source, target, [P], LINK_ID, control=control, at_high_watermark=at_high_watermark
        )
    ).values()
    assert isinstance(found, TargetDivergedError)
    assert f"is to begin at offset 50, and has a foreign record batch before that, at offset {at} " in str(found)


def test_a_log_start_that_cannot_be_read_this_time_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unread(*_: Any) -> None:
        raise Errors.OffsetNotAvailableError

    monkeypatch.setattr(log_start, "others_before", unread)
    source: Any = Log(batch(50), start=50, end=60)
    target: Any = Log(start_filler(0, 10), end=10)
    control = replace(CONTROL, log_starts={P: 50})
    assert asyncio.run(resume_point.read_append_states(source, target, [P], LINK_ID, control=control)) == {}


def test_of_a_log_that_was_copied_beyond_its_start_the_filler_is_not_read_again() -> None:
    """In a compacted topic it stays."""
    source: Any = Log(batch(500), start=500, end=510)
    target: Any = Log(*(start_filler(offset, 10) for offset in range(0, 500, 10)), of_link(500), end=510)
    control = replace(CONTROL, log_starts={P: 500}, copied={P: 510})
    found = asyncio.run(resume_point.read_append_states(source, target, [P], LINK_ID, control=control))
    assert isinstance(found[P], AppendState) and min(target.asked) > 400


def test_a_log_that_has_its_start_is_filled_from_there() -> None:
    """It is empty, and no broker may remember who deleted the filler."""
    source: Any = Log(batch(10), start=10, end=20)
    target: Any = Log(start=10, end=10)
    control = replace(CONTROL, log_starts={P: 10})
    found = asyncio.run(resume_point.read_append_states(source, target, [P], LINK_ID, control=control))
    assert isinstance(found[P], AppendState) and found[P].log_end == 10


@pytest.mark.parametrize("copied", [{}, {P: 20}])
@pytest.mark.parametrize("starts", [{}, {P: 10}])
def test_copied_records_that_look_like_filler_start_no_log(copied: Positions, starts: Positions) -> None:
    """The target of another link has some, and any producer can write them: what retention took is a loss as ever."""
    source: Any = Log(batch(50), start=50, end=60)
    target: Any = Log(start_filler(0, 10), start_filler(10, 10), end=20)
    control = replace(CONTROL, copied=copied, log_starts=starts)
    found = asyncio.run(resume_point.read_append_states(source, target, [P], LINK_ID, control=control))
    assert isinstance(found[P], Loss) and (found[P].row.from_offset, found[P].row.until_offset) == (20, 50)


@pytest.mark.parametrize("is_transactional", [False, True])
def test_what_others_wrote_before_a_transaction_that_the_source_has_too_is_compared(is_transactional: bool) -> None:
    """A marker at the end of a log is no gap of the link: only an aborted one, before which it has written last."""
    records = [Record(0, 1, None, b"x")] * 10
    committed = [*(in_transaction(offset, *records) for offset in range(20, 300, 10)), marker(300, commits=True)]
    wrong = batch(10, b"wrong", producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=is_transactional)
    source: Any = Log(batch(0), batch(10), *committed, end=301)
    target: Any = Log(of_link(0), wrong, *committed, end=301)
    for copied in ({P: 10}, {}):
        control = replace(CONTROL, copied=copied)
        found = asyncio.run(resume_point.read_append_states(source, target, [P], LINK_ID, control=control))
        assert isinstance(found[P], TargetDivergedError) and "foreign record batch at offset 10" in str(found[P])


def test_a_transaction_that_others_have_aborted_on_the_target_alone_is_no_copy() -> None:
    """An application writes to both clusters: readers of committed records would lack what the source has."""
    records = [Record(0, 1, None, b"x")] * 10
    later = [in_transaction(21, *records), marker(31, commits=True)]
    source: Any = Log(batch(0), in_transaction(10, *records), marker(20, commits=True), *later, end=32)
    target: Any = Log(of_link(0), in_transaction(10, *records), marker(20), *later, end=32)
    target.aborted = ((99, 10),)
    found = asyncio.run(resume_point.read_append_states(source, target, [P], LINK_ID, control=CONTROL))
    assert isinstance(found[P], TargetDivergedError) and "offset 10" in str(found[P])


@pytest.mark.parametrize("has_more", [False, True], ids=["alone", "before plain records"])
def test_what_others_wrote_is_told_once_the_transaction_that_is_open_in_it_is_over(has_more: bool) -> None:
    """An application writes to both clusters, and dies in its transaction on the target: nobody knows how that ends."""
    theirs = [in_transaction(10, *[Record(0, 1, None, b"x")] * 10)]
    if has_more:
        theirs += [batch(n, producer_id=5, producer_epoch=0, base_sequence=n) for n in range(20, 200, 10)]
    end = 200 if has_more else 20
    source: Any = Log(*(batch(n) for n in range(0, end + 50, 10)), end=end + 50)

    def found(control: LinkControl = CONTROL) -> Any:
        return asyncio.run(resume_point.read_append_states(source, target, [P], LINK_ID, control=control))[P]

    target: Any = Log(of_link(0), *theirs, end=end, stable=10)
    for copied in ({P: 10}, {}):
        assert found(replace(CONTROL, copied=copied)) == OpenTransaction(99, 10)
    assert "a transaction of producer 99 is open on the target since offset 10" in str(found())
    opened = compared(source, target)
    assert opened == Comparison({}, (), {}, {P: str(OpenTransaction(99, 10))})
    (reason,) = uncompared_reasons(opened)
    assert reason.health is Health.UNKNOWN and "orders-0 could not be compared: a transaction of" in reason.text
    (blocker,) = blockers([], {}, CONTROL, opened)
    assert "a transaction of producer 99 is open" in blocker.text and not blocker.lasts
    stopped, _, (warning,) = asyncio.run(
        plan_report._differences(source, target, [P], KnownLedger(), CONTROL, MirrorPolicy())
    )
    assert not stopped and warning.startswith("orders-0 waits: a transaction of producer 99 is open")

    target = Log(of_link(0), *theirs, marker(end, commits=True), end=end + 1)
    source.batches = (*(batch(n) for n in range(0, end, 10)), marker(end), batch(end + 1))
    assert isinstance(found(), AppendState)
    target = Log(of_link(0), *theirs, marker(end), end=end + 1)
    target.aborted = ((99, 10),)
    assert isinstance(found(), TargetDivergedError) and "offset 10" in str(found())


def test_a_difference_from_what_others_wrote_waits_for_no_transaction() -> None:
    source: Any = Log(*(batch(n) for n in range(0, 40, 10)), end=40)
    wrong = batch(10, b"wrong", producer_id=5, producer_epoch=0, base_sequence=0)
    target: Any = Log(of_link(0), wrong, in_transaction(20, *[Record(0, 1, None, b"x")] * 10), end=30, stable=20)
    found = asyncio.run(resume_point.read_append_states(source, target, [P], LINK_ID, control=CONTROL))
    assert isinstance(found[P], TargetDivergedError) and "offset 10" in str(found[P])


def test_the_links_own_transaction_that_is_open_in_a_gap_is_in_no_comparisons_way() -> None:
    source: Any = Log(batch(0), batch(13), end=23)
    assert compared(source, Log(of_link(0), in_transaction(10, GAP, GAP), end=12, stable=10)) == Comparison({}, ())


def test_many_bare_markers_hide_nothing_that_others_wrote_before_them() -> None:
    markers = [marker(offset) for offset in range(200, 261)]
    equal = range(20, 200, 10)
    source: Any = Log(
        *(batch(n) for n in range(0, 200, 10)),
        in_transaction(200, *[Record(0, 1, None, b"x")] * 60),
        marker(260),
        end=261,
    )
    source.aborted = ((99, 200),)
    theirs = [batch(n, producer_id=5, producer_epoch=0, base_sequence=n) for n in equal]
    target: Any = Log(
        of_link(0), batch(10, b"wrong", producer_id=5, producer_epoch=0, base_sequence=10), *theirs, *markers, end=261
    )
    found = asyncio.run(resume_point.read_append_states(source, target, [P], LINK_ID, control=CONTROL))
    assert isinstance(found[P], TargetDivergedError) and "offset 10" in str(found[P])


@pytest.mark.parametrize("cleaned", [range(0), range(100, 200)], ids=["more markers than steps", "a hole"])
def test_markers_behind_which_nobody_finds_who_wrote_last_hide_nothing(
    monkeypatch: pytest.MonkeyPatch, cleaned: range
) -> None:
    if not cleaned:
        monkeypatch.setattr(other_writers, "MOST_STEPS_BACK", 55)
    source: Any = Log(
        *(batch(n) for n in range(0, 200, 10)),
        in_transaction(200, *[Record(0, 1, None, b"x")] * 60),
        marker(260),
        end=261,
    )
    source.aborted = ((99, 200),)
    equal = [batch(n, producer_id=5, producer_epoch=0, base_sequence=n) for n in range(20, 200, 10) if n not in cleaned]
    markers = [marker(offset) for offset in range(200, 261)]
    for value, kind in ((b"wrong", TargetDivergedError), (b"x", AppendState)):
        second = batch(10, value, producer_id=5, producer_epoch=0, base_sequence=10)
        target: Any = Log(of_link(0), second, *equal, *markers, end=261)
        found = asyncio.run(resume_point.read_append_states(source, target, [P], LINK_ID, control=CONTROL))
        assert isinstance(found[P], kind)
        assert kind is AppendState or "offset 10" in str(found[P])


def test_an_equal_batch_of_others_at_the_end_says_nothing_of_what_they_wrote_before_it() -> None:
    source: Any = Log(batch(0), batch(10), *(batch(offset) for offset in range(20, 300, 10)), end=300)
    theirs = [
        batch(offset, producer_id=5, producer_epoch=0, base_sequence=offset - 10) for offset in range(20, 300, 10)
    ]
    target: Any = Log(
        of_link(0), batch(10, b"wrong", producer_id=5, producer_epoch=0, base_sequence=0), *theirs, end=300
    )
    for copied in ({P: 10}, {}):  # the mirror was killed before it had written that down
        found = asyncio.run(
            resume_point.read_append_states(source, target, [P], LINK_ID, control=replace(CONTROL, copied=copied))
        )
        assert isinstance(found[P], TargetDivergedError) and "foreign record batch at offset 10" in str(found[P])


def test_a_log_that_was_adopted_may_end_with_any_marker() -> None:
    """A failback begins with the old source's log, where the marker of a committed transaction is nobody's that we know."""
    source: Any = Log(batch(0), batch(12), end=22)
    target: Any = Log(batch(0, producer_id=99, producer_epoch=0, base_sequence=0), marker(10, commits=True), end=11)
    control = replace(CONTROL, begun={}, adopted={P: 11})
    found = asyncio.run(resume_point.read_append_states(source, target, [P], LINK_ID, control=control))
    assert isinstance(found[P], AppendState)


def test_of_a_log_that_ends_with_a_gap_of_the_link_the_end_alone_is_compared() -> None:
    """All logs of a transactional source end so: what is read of them at each start, and each status, is little."""
    copies = [of_link(offset) for offset in range(0, 3000, 10)]
    source: Any = Log(*(batch(offset) for offset in range(0, 3000, 10)), batch(3001), end=3011)
    target: Any = Log(*copies, marker(3000), end=3001)
    found = asyncio.run(resume_point.read_append_states(source, target, [P], LINK_ID, control=CONTROL))
    assert isinstance(found[P], AppendState) and min(source.asked) >= 2900


def test_a_log_start_is_brought_to_its_end_though_the_cleaner_took_the_filler_that_it_begins_with() -> None:
    source: Any = Log(batch(500), start=500, end=510)
    for starts, kind in (({P: 500}, resume_point.LogStart), ({}, Loss)):
        target: Any = Log(start_filler(300, 10), end=310)
        control = replace(CONTROL, log_starts=starts)
        found = asyncio.run(resume_point.read_append_states(source, target, [P], LINK_ID, control=control))
        assert isinstance(found[P], kind)


def test_others_plain_copy_of_an_aborted_transaction_is_no_copy() -> None:
    """Its headers are those of a copy: whether a transaction was aborted stands in its marker."""
    aborted, plain = ([Record(0, 1, None, b"x")] * 10,) * 2
    source: Any = Log(batch(0), in_transaction(10, *aborted), marker(20), batch(21), end=31)
    source.aborted = ((99, 10),)
    target: Any = Log(
        of_link(0), encode_batch(plain, base_offset=10, producer_id=5, producer_epoch=0, base_sequence=0), end=20
    )
    found = asyncio.run(resume_point.read_append_states(source, target, [P], LINK_ID, control=CONTROL))
    assert isinstance(found[P], TargetDivergedError) and "foreign record batch at offset 10" in str(found[P])


def test_what_the_source_could_not_be_read_of_makes_nobody_a_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    async def cut(
        cluster: Any, ranges: Mapping[TopicPartition, tuple[int, int]], *, is_committed: bool
    ) -> dict[TopicPartition, LogSlice]:
        return {
            p: LogSlice(start) if cluster is source else LogSlice(end, {10: Record(10, 1, None, b"x")})
            for p, (start, end) in ranges.items()
        }

    source: Any = Log(batch(0), batch(10, b"y"), end=20)
    target: Any = Log(of_link(0), batch(10, producer_id=99, producer_epoch=0, base_sequence=0), end=20)
    for module in (evidence, other_writers):
        monkeypatch.setattr(module, "read_slices", cut)
    assert asyncio.run(resume_point.read_append_states(source, target, [P], LINK_ID, control=CONTROL)) == {}


def planned(target: Any) -> list[str]:
    source: Any = SOURCE
    ledger = Ledger(target, "default")
    return asyncio.run(plan_report._differences(source, target, [P], ledger, CONTROL, MirrorPolicy()))[2]


def test_a_plan_warns_of_what_could_not_be_compared() -> None:
    assert planned(Log(of_link(0), end=10, leader_end=20)) == []
    (warning,) = planned(Log(end=10, leader_end=20, start=10))
    assert warning.startswith("could not be compared with the source's log") and warning.endswith(": orders-0")
    target = Log(of_link(0), end=10)
    target.untold = Errors.TopicAuthorizationFailedError("orders-0")
    (warning,) = planned(target)
    assert "orders-0 could not be compared with the source's log this time: " in warning
    assert "TopicAuthorizationFailed" in warning, "with what its leader said"


def test_a_target_whose_log_we_may_not_read_is_refused_and_does_not_just_fail_this_time() -> None:
    target = Log(of_link(0), end=10)
    target.fetch_error = Errors.TopicAuthorizationFailedError.errno
    found = asyncio.run(
        comparison.compare_ends(cast(Cluster, SOURCE), cast(Cluster, target), [P], KnownLedger(), CONTROL, False)
    )
    assert found is not None and not found.unread and "Fetch of orders-0; comparing takes Read" in found.refused[P]


class KnownLedger(Ledger):
    """One that was read before."""

    def __init__(self) -> None:
        self.link = "default"

    async def rows(self, *, refresh: bool = False) -> Any:
        return {}


def test_a_plan_tells_of_what_may_not_be_read_as_refused_and_of_the_rest_as_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuse(*_: Any, **__: Any) -> None:
        raise Errors.TopicAuthorizationFailedError("Fetch of orders-0")

    monkeypatch.setattr(comparison, "read_append_states", refuse)
    course = plan_report._differences(Any, Any, [P], KnownLedger(), CONTROL, MirrorPolicy())
    stopped, losses, told = asyncio.run(course)
    assert stopped[P].startswith("orders-0 could not be compared: Fetch of orders-0; ") and not losses and not told


def test_a_plan_names_the_loss_for_which_the_mirror_waits_until_the_source_has_as_much_again() -> None:
    earlier, kept = (LedgerRow(1, "default", *P, *span, "truncation", "gone") for span in ((2, 5), (10, 20)))
    ledger = cast(Ledger, SimpleNamespace(link="default", rows=AsyncMock(return_value={P: [earlier, kept]})))
    why = "the source has not come to offset 20 again, which the target keeps"
    assert asyncio.run(plan_report._kept({P: 20}, {P: 14}, ledger)) == {P: f"{why}; in the ledger: {kept}"}
    for ends in ({P: 20}, {P: 21}, {}):
        assert asyncio.run(plan_report._kept({P: 20}, ends, ledger)) == {}


def test_topics_that_we_may_not_read_keep_no_other_from_being_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[set[str]] = []

    async def read(
        source: Any, target: Any, partitions: Iterable[TopicPartition], *_: Any, **__: Any
    ) -> dict[TopicPartition, Any]:
        wanted = list(partitions)
        asked.append({p.topic for p in wanted})
        if hidden & asked[-1]:
            raise Errors.TopicAuthorizationFailedError("Fetch: comparing records of the source is not allowed to us")
        return {
            p: TargetDivergedError("other records") if p.topic == "differs" else AppendState(1, LINK_ID, 0, 1)
            for p in wanted
        }

    monkeypatch.setattr(comparison, "read_append_states", read)
    partitions = [TopicPartition(name, n) for name in ("audit", "clicks", "differs", "orders", "views") for n in (0, 1)]
    for hidden in (set(), {"clicks"}, {"audit", "views"}, {p.topic for p in partitions}):
        found = asyncio.run(comparison.compare_ends(Any, Any, partitions, KnownLedger(), CONTROL, False))
        assert found is not None and {p.topic for p in found.refused} == hidden and not found.unread
        assert all(
            "of the source is not allowed to us; comparing takes Read and" in why for why in found.refused.values()
        )
        assert {p.topic for p in found.differing} == {"differs"} - hidden
    assert len(asked) < 30


@pytest.mark.parametrize(
    "log",
    [
        Log(of_link(0), end=10),
        Log(in_transaction(0, *[GAP] * 10), marker(10), end=11),
        Log(batch(0), end=10),
        Log(end=10, start=10),
    ],
    ids=["the link's", "filler", "the source's records", "emptied"],
)
def test_a_log_of_a_topic_that_was_made_anew_since_the_link_began_is_no_copy_whatever_its_end_is(log: Any) -> None:
    """A name is not a topic; one that is empty is begun anew."""
    former = replace(CONTROL, begun={P: IDS._replace(target=str(uuid.UUID(int=8)))}, copied={P: 10})

    async def placed(target: Any) -> Any:
        return (await resume_point.read_append_states(cast(Any, SOURCE), target, [P], LINK_ID, control=former))[P]

    found = asyncio.run(placed(log))
    assert isinstance(found, TargetDivergedError) and "was deleted and created again on the target" in str(found)
    assert asyncio.run(placed(Log(end=0))) == AppendState(0, LINK_ID, 0, 0, uuid.UUID(int=7))


@pytest.mark.parametrize("now", ["begun anew", "deleted", "hidden"])
def test_a_log_that_the_links_mirror_has_begun_anew_since_the_control_was_read_is_its_copy(
    monkeypatch: pytest.MonkeyPatch, now: str
) -> None:
    """What a deleted or hidden control does not say is no evidence for it."""
    former = replace(CONTROL, begun={P: IDS._replace(target=str(uuid.UUID(int=8)))}, copied={P: 500})
    read = AsyncMock(
        return_value={"begun anew": CONTROL, "deleted": LinkControl()}.get(now, LinkControl(is_hidden=True))
    )
    monkeypatch.setattr(resume_point, "read_control", read)
    ledger: Any = SimpleNamespace(link="default", rows=no_rows)
    target: Any = Log(of_link(0), end=10)
    found = asyncio.run(compare_ends(cast(Any, SOURCE), target, [P], ledger, former, False))
    assert found is not None and bool(found.differing) == (now != "begun anew")
    asyncio.run(compare_ends(cast(Any, SOURCE), target, [P], ledger, CONTROL, False))
    assert read.await_count == 1  # only where a topic is not the one that was begun


@pytest.mark.parametrize(
    ("producer_id", "found"),
    [
        (99, "has the end of a gap transaction of the mirror at offset 10.* wrote that twice while it moved"),
        (98, "producer id 99.*another producer wrote it"),
        (None, "whether another producer wrote it, or the mirror's own coordinator, is unknown.*before you delete"),
    ],
    ids=["the link's", "another's", "of a coordinator that is away"],
)
def test_a_marker_in_the_place_of_a_record_is_the_links_where_its_coordinator_says_so(
    monkeypatch: pytest.MonkeyPatch, producer_id: int | None, found: str
) -> None:
    async def coordinators(*_: Any) -> dict[str, int]:
        return {GAP_ID: 1}

    async def described(*_: Any) -> dict[str, CoordinatorView | Exception]:
        if producer_id is None:
            return {GAP_ID: SilentError("broker 1 does not respond")}
        return {GAP_ID: CoordinatorView(GAP_ID, "CompleteAbort", 10_000, -1, frozenset(), producer_id)}

    monkeypatch.setattr(open_gaps, "can_list_transactions", lambda target: True)
    monkeypatch.setattr(open_gaps, "find_coordinators", coordinators)
    monkeypatch.setattr(open_gaps, "describe_transactions", described)
    target: Any = Log(of_link(0), marker(10), end=11)

    async def at_once(cluster: Any, nodes: Any, ask: Any, timeout_s: float) -> Any:
        return await ask(1, [GAP_ID])

    monkeypatch.setattr(open_gaps, "ask_nodes", at_once)
    differing = compared(SOURCE, target)
    assert differing is not None and re.search(found, str(differing.differing[P]))


@pytest.mark.parametrize(
    "after", [(), (of_link(11),), (batch(11),)], ids=["alone", "filler of the fence", "the new producers'"]
)
def test_the_fence_of_a_promotion_is_not_told_as_anothers_marker_and_nothing_is_to_be_deleted(after: Any) -> None:
    target: Any = Log(of_link(0), marker(10, producer_id=LINK_ID), *after, end=21 if after else 11)
    differing = compared(SOURCE, target)
    assert differing is not None
    told = str(differing.differing[P])
    assert "has at offset 10 the fence of this very link (a marker of producer id 7, the mirror's own)" in told
    assert "elete" not in told and "tolerant-kafka failback copies back" in told

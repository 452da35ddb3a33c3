"""How a translated link treats logs that another mirror had copied, and that have changed since."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import kafka.errors as Errors
import pytest
from kafka.net.selector import NetworkSelector
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import LedOffsets
from tolerant_client.cluster.cluster import EARLIEST, OffsetAndEpoch
from tolerant_client.errors import DataLossError, TargetDivergedError
from tolerant_client.mirror.batches.divergence import LogSlice
from tolerant_client.mirror.batches.losses import LedgerRow, LossReason
from tolerant_client.mirror.engine.translated import adopted as module
from tolerant_client.mirror.engine.translated import foresight
from tolerant_client.mirror.engine.translated import place as place_module
from tolerant_client.mirror.engine.translated.adopted import Adopted
from tolerant_client.mirror.engine.translated.copied_before import OtherCopy
from tolerant_client.mirror.engine.translated.place import Place
from tolerant_client.mirror.engine.translated.target_checks import LostOffsets, TopicPair, find_losses, taken_over
from tolerant_client.mirror.state.link_control import LinkControl, TopicIds
from tolerant_client.mirror.state.map_rows import LastRow
from tolerant_client.mirror.state.map_topic import copier_id
from tolerant_client.mirror.state.offset_map import MapRow, RowKey, Run, extend
from tolerant_client.mirror.state.plan import TopicSpec
from tolerant_client.mirror.state.topics import DescribedTopics, TopicFacts
from tolerant_client.records.record_batch import Record

PLACES = [TopicPartition("orders", n) for n in range(4)]
P = PLACES[0]
OTHER = TopicPartition("clicks", 0)
IDS = ("source-id", "target-id")
PLACE = "tolerant_client.mirror.engine.translated.place"


class World:
    """A link that has taken over; `writes` counts the writes to its control, which its watch sees when it refreshes."""

    def __init__(self) -> None:
        self.net = NetworkSelector()
        self.written = LinkControl(adopted={**dict.fromkeys(PLACES, 1_000), OTHER: 70}, generation=1)
        self.writes = 0
        self.source_start = 0
        self.source_end = 2_000
        self.source_epoch = -1  # of its leader
        self.stable_end: int | None = None
        self.target_ends: dict[TopicPartition, int] = {}
        self.row: MapRow | None = None
        self.opened: set[int] | None = None  # who has a transaction open in the target's log
        self.writer: int | None = None  # of rows whose transaction is not over
        self.copied_untold: tuple[TopicPartition, int] | None = (
            None  # a log with batches of a producer id, if the map has no row
        )
        self.asked: list[Any] = []  # for such logs
        self.losses: dict[TopicPartition, list[LedgerRow]] = {}
        self.told: list[LedgerRow] = []
        self.others: tuple[OtherCopy, ...] = ()
        self.value = self.written
        self.link = "dr"

    async def refresh(self) -> LinkControl:
        self.value = self.written
        return self.value

    async def update(self, change: Any) -> LinkControl:
        before = self.written
        self.writes += 1
        await self.net.sleep(0.01)  # others read meanwhile
        self.written = change(before)
        return self.written

    async def led(self, _: Any, wanted: Any) -> LedOffsets:
        return LedOffsets({p: self.target_ends.get(p, 0) for p in wanted}, {})

    async def rows(self, *, refresh: bool) -> dict[TopicPartition, list[LedgerRow]]:
        return self.losses

    async def write(self, rows: list[LedgerRow]) -> None:
        """Writes to the ledger."""
        self.told += rows

    def adopted(self) -> Adopted:
        return Adopted(None, self)  # type: ignore[arg-type]

    def place(self) -> Place:
        """As in a process that has just started."""

        async def source_offsets(wanted: Any, isolation_level: int = 0) -> Any:
            end = self.source_end if self.stable_end is None or not isolation_level else self.stable_end
            return {p: self.source_start if at == EARLIEST else end for p, at in wanted.items()}

        async def source_epochs(wanted: Any) -> Any:
            return {p: OffsetAndEpoch(at, self.source_epoch) for p, at in (await source_offsets(wanted)).items()}

        async def target_offsets(wanted: Any) -> Any:
            return {p: 0 if at == EARLIEST else self.target_ends.get(p, 0) for p, at in wanted.items()}

        async def target_epochs(wanted: Any) -> Any:
            return {p: OffsetAndEpoch(at, 1) for p, at in (await target_offsets(wanted)).items()}

        async def topics(_: str) -> TopicPair:
            return TopicPair(IDS, TopicFacts(False, 1 << 20, None))

        async def last_row(_: TopicPartition) -> LastRow:
            return LastRow(self.row, self.writer)

        async def map_epoch(_: TopicPartition) -> int:
            return 0

        async def open_producers(_: TopicPartition) -> set[int] | None:
            return self.opened

        async def has_written(*of: Any) -> bool:
            self.asked.append(of)
            return of == self.copied_untold

        link: Any = SimpleNamespace(
            source=SimpleNamespace(list_offsets=source_offsets, list_offsets_and_epochs=source_epochs),
            target=SimpleNamespace(list_offsets=target_offsets, list_offsets_and_epochs=target_epochs),
            name="dr",
            clock=lambda: 0.0,
            control=self,
            ledger=self,
        )

        async def other_copies(_: TopicPartition) -> tuple[OtherCopy, ...]:
            return self.others

        reads: Any = SimpleNamespace(
            topics=topics,
            last_row=last_row,
            map_epoch=map_epoch,
            has_written=has_written,
            open_producers=open_producers,
            other_copies=other_copies,
            origins=none,
            copies_of_mm2=none,
        )
        return Place(link, reads, self.adopted(), P)

    def goes_on_at(self, place: Place | None = None) -> int:
        async def look() -> int:
            return await (place or self.place()).read(7)

        found: int = self.net.run(look)
        return found


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    found = World()
    monkeypatch.setattr(module, "list_led_offsets", found.led)

    async def cleaned(*_: Any) -> dict[TopicPartition, Any]:
        return {}  # of the last batch nothing is left that could show who wrote it

    monkeypatch.setattr("tolerant_client.mirror.engine.translated.place.read_headers", cleaned)
    monkeypatch.setattr("tolerant_client.mirror.engine.translated.copied_before.require_no_identical_copy", none)
    monkeypatch.setattr(f"{PLACE}.committed_copy", none)
    yield found
    found.net.close()


def test_a_topic_that_was_made_anew_behind_a_takeover_is_copied_whole_whoever_goes_on(world: World) -> None:
    """1. The log is empty: copying begins at the source's start.  2. Some is copied.  3. Another process continues."""
    assert world.goes_on_at() == 0
    (world.row,) = extend(None, P, "orders", IDS, [Run(0, 0, 300)], 300, -1)
    world.target_ends[P] = 300
    assert world.goes_on_at() == 300, "not where the deleted log had ended"


def test_a_source_that_was_made_anew_is_no_election_of_the_target_and_counts_its_epochs_anew(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link's producer id has expired since, so the target's last batch has another id."""
    (world.row,) = extend(None, P, "orders", ("former-id", "target-id"), [Run(1_100, 1_100, 300)], 1_400, 7)
    world.target_ends[P] = 1_400

    async def compared(*_: Any) -> None:
        raise TargetDivergedError("other records than the source's")

    async def uncut(*_: Any) -> dict[TopicPartition, int]:
        return {}

    monkeypatch.setattr(Place, "_has_other", compared)
    monkeypatch.setattr("tolerant_client.mirror.engine.translated.place.source_truncations", uncut)
    place = world.place()
    with pytest.raises(DataLossError, match="deleted and created again"):
        world.goes_on_at(place)
    assert place.leader_epoch == -1


@pytest.mark.parametrize(("start", "given", "at"), [(0, None, 0), (0, 40, 40), (60, 40, 60)])
def test_a_source_that_was_made_anew_before_anything_was_copied_is_told_and_copied_whole(
    world: World, monkeypatch: pytest.MonkeyPatch, start: int, given: int | None, at: int
) -> None:
    """The former topic's start offset, and how far the link had read it, do not apply to the new topic."""
    world.written = world.value = LinkControl(starts={P: 500}, starts_of={P: TopicIds("former-id")})
    if given is not None:
        world.written = world.value = LinkControl().with_starts({P: OffsetAndEpoch(given, -1)}, {P.topic: IDS[0]})
    (world.row,) = extend(None, P, "orders", ("former-id", "target-id"), (), 500, -1)
    world.source_start = start
    place = world.place()
    with pytest.raises(DataLossError, match="again before anything of it was copied") as caught:
        world.goes_on_at(place)
    loss = place.loss
    assert loss is not None and loss.from_offset == loss.until_offset

    async def accept() -> None:
        await place.accept(loss, caught.value)

    world.net.run(accept)
    assert world.goes_on_at(place) == at and not place.is_begun, "its row names the new topic"
    (row,) = world.told
    assert row.detail.startswith("The source topic of orders-0 was deleted") and "on-loss" not in row.detail


def test_until_a_link_has_copied_a_record_others_may_have_copied_it_whenever_it_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def uncut(*_: Any) -> dict[TopicPartition, int]:
        return {}

    monkeypatch.setattr("tolerant_client.mirror.engine.translated.place.source_truncations", uncut)
    (theirs,) = extend(None, P, "orders", IDS, [Run(0, 0, 300)], 300, -1)
    (begun,) = extend(None, P, "orders", IDS, (), 0, -1)
    world.written = world.value = LinkControl()
    world.target_ends[P], world.others = 300, (OtherCopy("eu", theirs, False),)
    for world.row in (None, begun):
        place = world.place()
        for _ in range(2):
            with pytest.raises(TargetDivergedError, match="link eu has copied"):
                world.goes_on_at(place)
    (world.row,) = extend(begun, P, "orders", IDS, [Run(0, 0, 200)], 200, -1)
    assert world.goes_on_at() == 200
    world.source_start = 250
    place = world.place()
    with pytest.raises(DataLossError, match="retention overtook") as caught:
        world.goes_on_at(place)
    loss = place.loss
    assert loss is not None

    async def accept() -> None:
        await place.accept(loss, caught.value)

    world.net.run(accept)
    with pytest.raises(TargetDivergedError, match="link eu has copied"):
        world.goes_on_at(place)


def test_what_was_taken_over_and_is_there_stays_adopted(world: World) -> None:
    world.target_ends[P] = 900
    assert world.goes_on_at() == 1_000 and world.writes == 0


def test_all_partitions_of_a_topic_that_was_made_anew_are_one_record_of_the_control(world: World) -> None:
    world.target_ends[PLACES[3]] = 5
    known = world.adopted()

    async def all_at_once() -> list[int]:
        futures = [world.net.call_soon_with_future(known.until, p, world.target_ends.get(p, 0)) for p in PLACES]
        return [await future for future in futures]

    assert world.net.run(all_at_once) == [0, 0, 0, 1_000] and world.writes == 1
    assert world.written.adopted == {PLACES[3]: 1_000, OTHER: 70}, "other topics, and logs with records, stay"


def test_what_is_read_behind_a_log_that_was_taken_over_is_recorded_and_holds_for_that_log_alone(world: World) -> None:
    """Markers after the last record: retention may take them, too, and nothing of that was to be copied."""
    world.target_ends[P], world.source_end = 900, 1_001
    place = world.place()
    assert world.goes_on_at(place) == 1_000 and not place.is_begun
    (row,) = extend(place.row, P, "orders", place.ids, [], 1_000, -1)
    assert row.is_adopted and MapRow.decode(row.key, row.encode()) == row
    (world.row,) = extend(row, P, "orders", place.ids, [], 1_001, -1)
    world.source_start = 1_001
    place = world.place()
    assert world.goes_on_at(place) == 1_001 and place.is_begun, "it is no loss"
    world.written = world.value = LinkControl(adopted={P: 1_000}).with_starts(
        {P: OffsetAndEpoch(1_500, -1)}, {P.topic: IDS[0]}
    )
    assert world.goes_on_at() == 1_001, "what was taken over has its start"
    world.written, world.source_start = LinkControl(), 0
    for target_id, end in ((IDS[1], 0), ("another", 7)):
        world.row, world.target_ends[P] = row._replace(ids=(IDS[0], target_id)), end
        world.value = world.written
        place = world.place()
        assert world.goes_on_at(place) == 0 and not place.is_begun, "the log that was taken over is gone"


@pytest.mark.parametrize("adopted", [False, True])
def test_a_cut_is_found_though_nothing_was_copied_and_the_source_has_grown_past_the_position(
    world: World, monkeypatch: pytest.MonkeyPatch, adopted: bool
) -> None:
    """An unclean election cuts the source at 1,200, in epoch 5; a row of an earlier version gets its epoch once the log was read."""

    async def cuts(_: Any, copied: Any) -> dict[TopicPartition, int]:
        return {p: 1_200 for p, (known, at) in copied.items() if 0 <= known < world.source_epoch and at > 1_200}

    monkeypatch.setattr(f"{PLACE}.source_truncations", cuts)
    monkeypatch.setattr(f"{PLACE}.first_other", none)
    at, world.source_epoch = 1_500, 3
    known = (
        LinkControl(adopted={P: at})
        if adopted
        else LinkControl().with_starts({P: OffsetAndEpoch(at, -1)}, {P.topic: IDS[0]})
    )
    world.written = world.value = known
    world.target_ends[P] = 900 if adopted else 0
    first = world.place()
    assert world.goes_on_at(first) == at
    for world.row in (None, *extend(first.row, P, "orders", IDS, [], at, -1)):
        place = world.place()
        assert world.goes_on_at(place) == at and not place.is_begun, "its epoch is to be written"
    (world.row,) = extend(place.row, P, "orders", place.ids, [], at, place.leader_epoch)
    assert world.row.epoch == 3
    assert world.goes_on_at(place) == at and place.is_begun
    world.source_epoch = 5
    place = world.place()
    with pytest.raises(DataLossError, match="up to 1500" if adopted else "nothing of it was copied yet, .* at 1500"):
        world.goes_on_at(place)
    assert place.loss == LostOffsets(LossReason.TRUNCATION, 1_200, at)
    place._accepted.add(place.loss)
    assert world.goes_on_at(place) == 1_200
    world.net.run(place.limit_adopted)
    world.value = world.written
    (world.row,) = extend(place.row, P, "orders", place.ids, [], 1_200, place.leader_epoch)
    assert world.goes_on_at() == 1_200, "also of a process that is followed by one before it has copied a record"


def test_a_log_that_was_cut_before_anything_recorded_its_start_begins_at_the_cut(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control has where the source was to be copied from, and its leader epoch; also later no row goes back to that start."""

    async def cuts(_: Any, copied: Any) -> dict[TopicPartition, int]:
        return {p: 1_200 for p, (known, at) in copied.items() if known == 3 and at > 1_200}

    monkeypatch.setattr(f"{PLACE}.source_truncations", cuts)
    world.written = world.value = LinkControl().with_starts({P: OffsetAndEpoch(1_500, 3)}, {P.topic: IDS[0]})
    world.source_epoch = 5
    place = world.place()
    assert world.goes_on_at(place) == 1_200 and not place.is_begun
    (world.row,) = extend(place.row, P, "orders", place.ids, [], 1_200, place.leader_epoch)
    assert world.goes_on_at() == 1_200


def test_a_later_life_of_the_link_keeps_what_it_has_taken_over(world: World) -> None:
    world.written = replace(world.written, generation=2)
    assert world.net.run(world.adopted().until, P, 0) == 0 and P in world.written.adopted


# -- a source that was cut ----------------------------------------------------


def test_a_source_that_was_cut_before_the_link_copied_anything_itself_is_found(world: World) -> None:
    world.target_ends[P], world.source_end = 900, 400
    place = world.place()
    with pytest.raises(DataLossError, match=r"orders-0 ends at offset 400, but up to 1000 .*; resume after"):
        world.goes_on_at(place)
    assert place.loss == (LossReason.TRUNCATION, 400, 1_000)


@pytest.mark.parametrize("has_row", [False, True])
def test_a_cut_that_policy_has_accepted_is_one_loss_while_the_log_grows_and_is_written_down(
    world: World, monkeypatch: pytest.MonkeyPatch, has_row: bool
) -> None:
    """It resumes at the cut, even if the log has grown beyond the former position before that is recorded."""
    monkeypatch.setattr(f"{PLACE}.source_truncations", none)
    monkeypatch.setattr(f"{PLACE}.first_other", none)
    if has_row:
        (world.row,) = extend(None, P, "orders", IDS, [Run(0, 0, 900)], 900, -1)
    world.target_ends[P], world.source_end = 900, 400
    place = world.place()
    place._accepted.add(LostOffsets(LossReason.TRUNCATION, 400, 1_000))
    for world.source_end in (400, 700, 1_200):
        assert world.goes_on_at(place) == 400 and not place.is_begun
    world.net.run(place.limit_adopted)
    assert world.goes_on_at(place) == 400, (
        "a process that is killed here is followed by one that finds the loss, or resumes there"
    )
    (world.row,) = extend(place.row, P, "orders", place.ids, [], 400, place.leader_epoch)
    place.begun()
    assert world.written.adopted[P] == 400, "nobody has copied what the source has there now"
    for another in (world.place(), place):
        assert world.goes_on_at(another) == 400 and another.is_begun


@pytest.mark.parametrize(
    ("ids", "epoch", "loss", "at", "then"),
    [
        (("former-id", "target-id"), 7, LostOffsets(LossReason.RECREATION, 1_400, 1_400), 0, 5),
        (IDS, 3, LostOffsets(LossReason.TRUNCATION, 1_300, 1_400), 1_300, 5),
    ],
)
def test_a_loss_that_policy_has_accepted_is_found_by_no_other_process(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    ids: tuple[str, str],
    epoch: int,
    loss: LostOffsets,
    at: int,
    then: int,
) -> None:
    """The source's log, of another topic or another election, has grown again; its leader has epoch 5."""
    world.source_epoch = 5
    (world.row,) = extend(None, P, "orders", ids, [Run(1_100, 1_100, 300)], 1_400, epoch)
    world.target_ends[P] = 1_400

    async def headers(cluster: Any, offsets: Any) -> Any:
        return {
            p: SimpleNamespace(
                partition_leader_epoch=5, producer_id=7, has_log_append_time=False, is_transactional=True
            )
            for p in offsets
        }

    async def cuts(_: Any, copied: Any) -> dict[TopicPartition, int]:
        return {p: 1_300 for p, (known, _) in copied.items() if known == 3}

    monkeypatch.setattr("tolerant_client.mirror.engine.translated.place.read_headers", headers)
    monkeypatch.setattr("tolerant_client.mirror.engine.translated.place.source_truncations", cuts)
    monkeypatch.setattr(f"{PLACE}.first_other", none)
    monkeypatch.setattr(f"{PLACE}.read_slices", same_records)
    place = world.place()
    with pytest.raises(DataLossError):
        world.goes_on_at(place)
    assert place.loss == loss
    place._accepted.add(loss)
    assert world.goes_on_at(place) == at and not place.is_begun
    world.net.run(place.limit_adopted)
    (world.row,) = extend(place.row, P, "orders", place.ids, [], at, place.leader_epoch)
    assert world.row.key.number == 1, "the rows before it describe what the source no longer has"
    place.begun()
    for other in (world.place(), place):
        assert world.goes_on_at(other) == at and other.is_begun
        assert (other.ids, other.leader_epoch) == (IDS, then)


@pytest.mark.parametrize(
    ("ids", "cut", "losses"),
    [
        (("former-id", "target-id"), None, [LostOffsets(LossReason.RECREATION, 1_400, 1_400)]),
        (
            IDS,
            1_300,
            [LostOffsets(LossReason.TRUNCATION, 1_300, 1_400), LostOffsets(LossReason.RETENTION, 1_300, 1_500)],
        ),
    ],
)
def test_what_retention_took_behind_a_cut_that_policy_has_accepted_is_another_loss(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    ids: tuple[str, str],
    cut: int | None,
    losses: list[LostOffsets],
) -> None:
    """A log that has grown again has nothing before 1,500; a topic that was created again is read for the first time."""
    (world.row,) = extend(None, P, "orders", ids, [Run(1_100, 1_100, 300)], 1_400, -1)
    world.target_ends[P], world.source_start = 1_400, 1_500

    async def cuts(*_: Any) -> dict[TopicPartition, int]:
        return {} if cut is None else {P: cut}

    monkeypatch.setattr("tolerant_client.mirror.engine.translated.place.source_truncations", cuts)
    monkeypatch.setattr(f"{PLACE}.first_other", none)
    place = world.place()
    for loss in losses:
        with pytest.raises(DataLossError):
            world.goes_on_at(place)
        assert place.loss == loss
        place._accepted.add(loss)
    assert world.goes_on_at(place) == 1_500 and not place.is_begun


@pytest.mark.parametrize("has_row", [False, True])
def test_retention_that_policy_has_accepted_is_found_by_no_other_process(
    world: World, monkeypatch: pytest.MonkeyPatch, has_row: bool
) -> None:
    async def no_cuts(*_: Any) -> dict[TopicPartition, int]:
        return {}

    monkeypatch.setattr("tolerant_client.mirror.engine.translated.place.source_truncations", no_cuts)
    world.target_ends[P], world.source_start = 1_000, 1_500
    if has_row:
        (world.row,) = extend(None, P, "orders", IDS, [Run(0, 0, 1_000)], 1_000, -1)
    place = world.place()
    with pytest.raises(DataLossError, match="no longer has offsets 1000 to 1500"):
        world.goes_on_at(place)
    assert place.loss is not None
    place._accepted.add(place.loss)
    assert world.goes_on_at(place) == 1_500 and not place.is_begun
    (world.row,) = extend(place.row, P, "orders", place.ids, [], 1_500, place.leader_epoch)
    other = world.place()
    assert world.goes_on_at(other) == 1_500 and other.is_begun


def test_another_record_where_the_source_lost_what_was_copied_is_no_election_of_the_target(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (world.row,) = extend(None, P, "orders", IDS, [Run(1_100, 1_100, 300)], 1_400, -1)
    world.target_ends[P] = 1_400
    monkeypatch.setattr("tolerant_client.mirror.engine.translated.place.read_headers", of_another)
    monkeypatch.setattr("tolerant_client.mirror.engine.translated.place.read_slices", other_records)
    with pytest.raises(TargetDivergedError, match="offset 1399"):
        world.goes_on_at()
    world.losses[P] = [LedgerRow(0, "dr", P.topic, 0, 0, 1_400, LossReason.RECREATION, "created again")]
    assert world.goes_on_at() == 1_400


@pytest.mark.parametrize("found", [None, 1_150])
@pytest.mark.parametrize("known", [None, LossReason.TRUNCATION, LossReason.RECREATION])
def test_another_record_where_our_last_one_was_copied_from_is_a_cut_of_the_source(
    world: World, monkeypatch: pytest.MonkeyPatch, found: int | None, known: LossReason | None
) -> None:
    """A restored source continues with other records beyond the position, and with the same leader epochs.

    The ledger's rows for these offsets are of another cut, or of this one: the process was killed before the map had it.
    """
    if known is not None:
        world.losses[P] = [LedgerRow(0, "dr", P.topic, 0, 1_150, 1_400, known, "before")]
    (world.row,) = extend(None, P, "orders", IDS, [Run(1_100, 1_100, 300)], 1_400, 5)
    world.target_ends[P] = 1_400

    async def first_other(*_: Any) -> int | None:
        return found

    monkeypatch.setattr(f"{PLACE}.read_headers", ours)
    monkeypatch.setattr(f"{PLACE}.read_slices", other_records)
    monkeypatch.setattr(f"{PLACE}.source_truncations", none)
    monkeypatch.setattr(f"{PLACE}.first_other", first_other)
    place = world.place()
    if found is None:
        assert world.goes_on_at(place) == 1_400, "no difference is believed that is not found again"
        return
    with pytest.raises(DataLossError, match="cut at offset 1150, but it was copied up to 1400"):
        world.goes_on_at(place)
    assert place.loss == LostOffsets(LossReason.TRUNCATION, found, 1_400)
    place._accepted.add(place.loss)
    assert world.goes_on_at(place) == found


@pytest.mark.parametrize(
    ("shown", "is_uncommitted", "found"),
    [
        (
            "aborted",
            None,
            "has at offset 1399 nothing that is committed, but had the copy of orders-0, offset 1399, that link dr committed there",
        ),
        ("open", True, "has at offset 1399 nothing that is committed"),
        ("open", False, None),
        ("committed", None, None),
    ],
)
def test_a_copy_of_our_own_that_is_not_committed_shows_a_loss_of_the_target_and_none_of_the_source(
    world: World, monkeypatch: pytest.MonkeyPatch, shown: str, is_uncommitted: bool | None, found: str | None
) -> None:
    """Its log was cut, and the next copy, which was aborted, stands at that offset; others may have a transaction open before it."""
    (world.row,) = extend(None, P, "orders", IDS, [Run(1_100, 1_100, 300)], 1_400, 5)
    world.target_ends[P] = 1_400
    world.losses[P] = [LedgerRow(0, "dr", P.topic, 0, 0, 1_400, LossReason.TRUNCATION, "before")]

    async def slices(cluster: Any, spans: Any, *, is_committed: bool, first_bytes: int) -> Any:
        ((at, until),) = spans.values()
        copy = Record(at, 0, None, b"other" if shown == "aborted" and cluster is place._link.target else b"v")
        if is_committed and shown == "aborted":
            return {P: LogSlice(until, {}, [range(at, until)])}
        return {P: LogSlice(at) if is_committed and shown == "open" else LogSlice(until, {at: copy})}

    async def asked(*_: Any) -> bool:
        assert is_uncommitted is not None, "the last stable offset is behind it"
        return is_uncommitted

    monkeypatch.setattr(f"{PLACE}.read_headers", ours)
    monkeypatch.setattr(f"{PLACE}.read_slices", slices)
    monkeypatch.setattr(f"{PLACE}.is_uncommitted", asked)
    monkeypatch.setattr(f"{PLACE}.source_truncations", none)
    place = world.place()
    if found is None:
        assert world.goes_on_at(place) == 1_400
    else:
        with pytest.raises(TargetDivergedError, match=found):
            world.goes_on_at(place)


@pytest.mark.parametrize("has_row", [True, False])
def test_a_log_with_copies_of_which_the_map_does_not_tell_gets_none_of_them_twice(
    world: World, monkeypatch: pytest.MonkeyPatch, has_row: bool
) -> None:
    """A power failure, or an unclean election, took the newest rows of the map, or all of one of its partitions."""
    world.written = world.value = LinkControl()
    asked = world.asked

    async def committed_copy(*of: Any) -> int:
        asked.append(of[1:])
        return 1_402

    monkeypatch.setattr(f"{PLACE}.committed_copy", committed_copy)
    world.copied_untold = (P, 7)
    monkeypatch.setattr(f"{PLACE}.source_truncations", none)
    if has_row:
        (world.row,) = extend(None, P, "orders", IDS, [Run(1_100, 1_100, 300)], 1_400, -1)
        world.target_ends[P] = 1_401
        assert world.goes_on_at() == 1_400 and not asked, "nothing but the marker of the last copy follows"
        world.target_ends[P] = 1_500
    else:
        assert world.goes_on_at() == 0 and not asked, "the log is empty"
        world.target_ends[P] = 1_500
        world.written = world.value = LinkControl(adopted={P: 900})
        assert world.goes_on_at() == 900 and not asked, "what a former link of this name copied was taken over"
        world.written = world.value = LinkControl()
    told = " at offset 1402, and .* up to offset 1400 only" if has_row else ", and .* has no row of it"
    with pytest.raises(TargetDivergedError, match=f"has what link dr has copied{told}: it has lost rows") as caught:
        world.goes_on_at()
    assert "verify" not in str(caught.value), "it compares nothing of such links"
    assert asked == [(P, 1_400, 1_500, 7) if has_row else (P, 7)]


@pytest.mark.parametrize(
    ("writer", "opened", "is_open"),
    [(None, None, False), (7, None, True), (8, None, False), (None, {8}, False), (None, {7, 8}, True)],
)
def test_what_the_links_own_producer_has_open_has_lost_its_marker(
    world: World, monkeypatch: pytest.MonkeyPatch, writer: int | None, opened: set[int] | None, is_open: bool
) -> None:
    """Its transactions are over when a log is read.  What others, or a former id of it, have open no commit of it can end."""
    world.written = world.value = LinkControl()
    monkeypatch.setattr(f"{PLACE}.source_truncations", none)
    (world.row,) = extend(None, P, "orders", IDS, [Run(1_100, 1_100, 300)], 1_400, -1)
    world.target_ends[P], world.writer, world.opened = 1_500, writer, opened
    place = world.place()
    assert world.goes_on_at(place) == 1_400 and place.is_open is is_open


TAIL = [1_450, 1_480]  # records that a source has between the last copied one, 1,399, and the position, 1,501
TRUNCATED = LossReason.TRUNCATION


class Tail:
    """A link that copied up to 1,400, and read 101 offsets more without a record; `records` are there now."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch, records: list[int], told: int | None = None):
        self.world, self.records, self.markers = world, records, list[range]()
        self.source_topic: TopicSpec | None = TopicSpec("orders", 1, 1, {}, {"cleanup.policy": "delete"})
        self.pieces: list[int] = []
        (world.row,) = extend(None, P, "orders", IDS, [Run(1_100, 1_100, 300)], 1_501, 5)
        world.target_ends[P] = 1_400

        async def headers(_: Any, offsets: Any) -> Any:
            header = SimpleNamespace(
                partition_leader_epoch=5, producer_id=7, has_log_append_time=False, is_transactional=True
            )
            return {p: header for p in offsets}

        async def cuts(*_: Any) -> dict[TopicPartition, int]:
            return {} if told is None else {P: told}

        async def slices(cluster: Any, spans: Any, *, is_committed: bool, first_bytes: int) -> Any:
            ((start, until),) = spans.values()
            if not is_committed or start == 1_399:  # of the last copied record
                markers = [] if is_committed else self.markers
                return {P: LogSlice(until, {start: Record(start, 0, None, b"v")}, markers)}
            assert world.source_start <= start, "what retention took cannot be read"
            self.pieces.append(until - start)
            return {P: LogSlice(until, {o: Record(o, 0, None, b"w") for o in self.records if start <= o < until})}

        monkeypatch.setattr(f"{PLACE}.read_headers", headers)
        monkeypatch.setattr(f"{PLACE}.source_truncations", cuts)
        monkeypatch.setattr(f"{PLACE}.read_slices", slices)
        monkeypatch.setattr(f"{PLACE}.first_other", none)

        async def described(_: Any, names: list[str]) -> DescribedTopics:
            topic = self.source_topic
            return DescribedTopics({} if topic is None else {topic.name: topic}, {})

        monkeypatch.setattr(f"{PLACE}.describe_each_topic", described)

    def resumes_at(self) -> int:
        """Once policy has accepted the loss, if there is one."""
        place = self.world.place()
        with pytest.raises(DataLossError):
            self.world.goes_on_at(place)
        assert place.loss is not None and place.loss.reason is LossReason.TRUNCATION and place.loss[2] == 1_501
        place._accepted.add(place.loss)
        position = self.world.goes_on_at(place)
        assert position == place.loss.from_offset and not place.is_begun
        return position


def test_a_record_between_the_last_copied_one_and_the_position_shows_a_restored_source(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that was copied agrees; an aborted transaction followed, and the restored source has other records there."""
    world.written = world.value = LinkControl()
    tail = Tail(world, monkeypatch, TAIL)
    assert tail.resumes_at() == 1_400, "nothing that follows was copied, so nothing is left out, or doubled"
    world.losses[P] = [LedgerRow(0, "dr", P.topic, 0, 1_300, 1_501, TRUNCATED, "of another cut")]
    assert tail.resumes_at() == 1_400
    tail.records = []
    assert world.goes_on_at() == 1_501


@pytest.mark.parametrize(("told", "end"), [(1_480, 2_000), (None, 1_470), (1_460, 1_470)])
def test_a_cut_behind_the_last_copied_record_begins_right_behind_it(
    world: World, monkeypatch: pytest.MonkeyPatch, told: int | None, end: int
) -> None:
    world.written = world.value = LinkControl()
    world.source_end = end
    assert Tail(world, monkeypatch, TAIL, told).resumes_at() == 1_400


@pytest.mark.parametrize("reason", [LossReason.OVERSIZED, LossReason.RETENTION])
def test_what_policy_left_out_before_the_position_shows_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, reason: LossReason
) -> None:
    world.written = world.value = LinkControl()
    tail = Tail(world, monkeypatch, TAIL)
    world.losses[P] = [LedgerRow(0, "dr", P.topic, 0, o, o + 1, reason, "left out") for o in TAIL]
    assert world.goes_on_at() == 1_501
    del world.losses[P][0]
    assert tail.resumes_at() == 1_400


def test_what_another_mirror_had_copied_or_retention_took_shows_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    tail = Tail(world, monkeypatch, TAIL)
    world.written = world.value = LinkControl(adopted={P: 1_470})
    assert tail.resumes_at() == 1_470
    tail.records = TAIL[:1]
    assert world.goes_on_at() == 1_501
    world.written = world.value = LinkControl()
    world.source_start = 1_460
    assert world.goes_on_at() == 1_501
    world.source_start = 1_501
    assert world.goes_on_at() == 1_501


def test_a_source_with_open_transactions_before_the_position_is_not_resumed_before_it_shows_what_they_are(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.written = world.value = LinkControl()
    Tail(world, monkeypatch, [])
    world.stable_end, starts = 1_420, {P: 1_419}

    async def not_before_start(cluster: Any, offsets: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        return {p: max(offset, starts[p]) for p, offset in offsets.items()}

    monkeypatch.setattr(place_module, "not_before_start", not_before_start)
    with pytest.raises(Errors.OffsetNotAvailableError, match="last stable offset is 1420"):
        world.goes_on_at()
    starts[P] = 2_000  # retention took the open transactions' first records, and brokers tell the batch that was cut
    world.goes_on_at()


@pytest.mark.parametrize(
    "topic",
    [
        TopicSpec("orders", 1, 1, {"cleanup.policy": "compact,delete"}, {"cleanup.policy": "compact,delete"}),
        TopicSpec("orders", 1, 1),  # brokers before 0.11 do not tell
        None,  # we may not describe it
    ],
)
def test_what_another_leaders_cleaner_had_removed_is_copied_and_is_no_loss(
    world: World, monkeypatch: pytest.MonkeyPatch, topic: TopicSpec | None
) -> None:
    """Each replica cleans its log by itself; only a record that differs from a copied one shows another log."""
    world.written = world.value = LinkControl()
    tail = Tail(world, monkeypatch, TAIL)
    tail.source_topic = topic
    place = world.place()
    assert world.goes_on_at(place) == 1_400 and place.is_begun and place.row == world.row
    assert place.position == 1_501, "so its copier knows that it resumes before its position"
    tail.records = []
    assert world.goes_on_at(place) == 1_501, "the cleaner has come round"
    tail.records = TAIL

    async def found(*_: Any) -> int:
        return 1_250

    monkeypatch.setattr(f"{PLACE}.first_other", found)
    assert tail.resumes_at() == 1_250


def test_a_last_copied_record_that_differs_is_told_while_transactions_are_open_before_the_position(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def found(*_: Any) -> int:
        return 1_250

    world.written = world.value = LinkControl()
    world.stable_end = 1_420
    tail = Tail(world, monkeypatch, TAIL)
    tail.markers = [range(1_399, 1_400)]
    monkeypatch.setattr(f"{PLACE}.first_other", found)
    assert tail.resumes_at() == 1_250


@pytest.mark.parametrize(("told", "end"), [(1_480, 2_000), (None, 1_490)])
def test_a_cut_of_a_source_that_starts_within_the_tail_is_one_loss_from_its_start(
    world: World, monkeypatch: pytest.MonkeyPatch, told: int | None, end: int
) -> None:
    """Of what retention took before its start nothing was to be copied."""
    world.written = world.value = LinkControl()
    world.source_start, world.source_end = 1_460, end
    assert Tail(world, monkeypatch, [], told).resumes_at() == 1_460


def test_a_long_tail_without_a_record_is_read_in_ever_larger_pieces(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.written = world.value = LinkControl()
    tail = Tail(world, monkeypatch, [])
    (world.row,) = extend(None, P, "orders", IDS, [Run(1_100, 1_100, 300)], 10_001_400, 5)
    world.source_end = 20_000_000
    assert world.goes_on_at() == 10_001_400
    assert tail.pieces[:2] == [1_000, 4_000] and sum(tail.pieces) == 10_000_000 and len(tail.pieces) < 200


def test_a_marker_at_the_offset_of_the_last_copied_record_is_of_another_log(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def found(*_: Any) -> int:
        return 1_250

    world.written = world.value = LinkControl()
    tail = Tail(world, monkeypatch, [])
    monkeypatch.setattr(f"{PLACE}.first_other", found)
    tail.markers = [range(1_399, 1_400)]
    assert tail.resumes_at() == 1_250


async def none(*_: Any) -> Any:
    """No cuts, and nothing that differs."""
    return {} if len(_) == 2 else None


async def ours(_: Any, offsets: Any) -> Any:
    """Headers of copies that this process, or one before it, has made."""
    header = SimpleNamespace(partition_leader_epoch=5, producer_id=7, has_log_append_time=False, is_transactional=True)
    return dict.fromkeys(offsets, header)


async def of_another(_: Any, offsets: Any) -> Any:
    """Headers of a producer id that has expired since."""
    return {
        p: SimpleNamespace(partition_leader_epoch=5, producer_id=8, has_log_append_time=False, is_transactional=True)
        for p in offsets
    }


async def other_records(cluster: Any, spans: Any, *, is_committed: bool, first_bytes: int) -> Any:
    """One record at each offset, a different one on each cluster."""
    value = str(id(cluster)).encode()
    return {p: LogSlice(at + 1, {at: Record(at, 0, None, value)}) for p, (at, _) in spans.items()}


async def same_records(cluster: Any, spans: Any, *, is_committed: bool, first_bytes: int) -> Any:
    return {p: LogSlice(at + 1, {at: Record(at, 0, None, b"v")}) for p, (at, _) in spans.items()}


def test_what_retention_takes_later_is_another_loss() -> None:
    accepted = LostOffsets(LossReason.RETENTION, 100, 200)
    assert accepted.is_part_of(accepted)
    assert not LostOffsets(LossReason.RETENTION, 100, 250).is_part_of(accepted)
    assert not LostOffsets(LossReason.TRUNCATION, 100, 200).is_part_of(accepted)
    row = taken_over(None, P, IDS, 90, 100)
    assert row is not None and row.is_adopted and row == MapRow.decode(row.key, row.encode())
    assert [loss for loss, _ in find_losses(row, IDS[0], 150, 300)] == [(LossReason.RETENTION, 100, 150)]
    assert find_losses(row, IDS[0], 50, 100) == []


def test_the_row_of_a_log_that_was_taken_over_does_not_outlive_the_log() -> None:
    """Brokers before 2.8 have no ids: a log that ends before the row's end was created again."""
    row = MapRow(RowKey(P, 0), P.topic, ("", ""), 1_001, 3, (Run(1_001, 900, 0),))
    for target_end, adopted, position in ((900, 1_000, 1_001), (300, 300, 300), (0, 1_000, 1_000)):
        found = taken_over(row, P, ("", ""), target_end, adopted)
        assert found is not None and found.position == position


def copied_at(position: int, source_id: str = IDS[0]) -> MapRow:
    (row,) = extend(None, P, P.topic, (source_id, IDS[1]), [Run(0, 0, position)], position, -1)
    return row


@pytest.mark.parametrize(
    ("row", "adopted", "source", "target_end", "lost"),
    [
        (None, 1_000, (0, 1_000), 900, None),
        (None, 1_000, (1_000, 1_300), 900, None),
        (None, 1_000, (1_300, 1_300), 900, "no longer has offsets 1000 to 1300"),
        (None, 1_000, (0, 200), 900, "ends at offset 200, but up to 1000 it was copied when the link took over"),
        (None, 1_000, (500, 700), 0, None),  # the target was created again: all is copied again
        (copied_at(500), 1_000, (800, 1_000), 900, None),
        (copied_at(500), 1_000, (1_001, 1_001), 900, "no longer has offsets 1000 to 1001"),
        (copied_at(1_200), 1_000, (1_100, 1_200), 1_200, None),
        (copied_at(1_200), 1_000, (1_201, 1_300), 1_200, "no longer has offsets 1200 to 1201"),
        (copied_at(500), 0, (0, 1_000), 400, "The target log of orders-0 ends at offset 400"),
        (copied_at(500), 0, (0, 1_000), 900, "another record .* offset 499, .* and others wrote in its place"),
        (copied_at(500, "former-id"), 1_000, (0, 10), 900, "created again after it was copied up to 1000"),
        (copied_at(0, "former-id"), 0, (0, 10), 0, "created again before anything of it was copied"),
    ],
)
def test_what_stops_a_mirror_is_foreseen_and_nothing_else(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    row: MapRow | None,
    adopted: int,
    source: tuple[int, int],
    target_end: int,
    lost: str | None,
) -> None:
    """Status, plan and promote say what the mirror says of the same logs."""
    world.row, world.written = row, LinkControl(adopted={P: adopted} if adopted else {})
    world.value = control = world.written
    (world.source_start, world.source_end), world.target_ends[P] = source, target_end
    monkeypatch.setattr(f"{PLACE}.source_truncations", none)

    async def last_rows(*_: Any) -> dict[TopicPartition, MapRow]:
        return {} if row is None else {P: row}

    async def ids(*_: Any) -> dict[str, TopicIds]:
        return {P.topic: TopicIds(*IDS)}

    async def led(cluster: str, wanted: Any) -> LedOffsets:
        ends = {"source": world.source_end, "target": target_end}
        return LedOffsets({p: world.source_start if at == EARLIEST else ends[cluster] for p, at in wanted.items()}, {})

    async def headers(_: Any, offsets: Any) -> Any:
        of_others = SimpleNamespace(is_transactional=False)
        return dict.fromkeys(offsets, of_others) if lost is not None and "others wrote" in lost else {}

    monkeypatch.setattr(f"{PLACE}.read_headers", headers)
    monkeypatch.setattr("tolerant_client.mirror.engine.translated.own_copies.read_headers", headers)
    monkeypatch.setattr(foresight, "last_rows", last_rows)
    monkeypatch.setattr(foresight, "read_ids", ids)
    monkeypatch.setattr(foresight, "list_led_offsets", led)
    monkeypatch.setattr(foresight, "source_truncations", none)
    both: list[Any] = ["source", "target"]
    foreseen = asyncio.run(foresight.contradicted(*both, "dr", control, PLACES))
    if lost is None:
        assert not foreseen
        world.goes_on_at()
        return
    with pytest.raises((DataLossError, TargetDivergedError), match=lost) as caught:
        world.goes_on_at()
    assert {p: str(error) for p, error in foreseen.items()} == {P: str(caught.value)}


def begun_at(position: int) -> MapRow:
    (row,) = extend(None, P, P.topic, IDS, [], position, -1)
    return row


def test_a_link_that_has_only_begun_has_a_position_that_retention_may_overtake(world: World) -> None:
    world.source_start = 50
    world.written = LinkControl()
    place = world.place()
    assert world.goes_on_at(place) == 50 and not place.is_begun  # from now on it is recorded
    world.row = begun_at(50)
    place = world.place()
    assert world.goes_on_at(place) == 50 and place.is_begun
    world.source_start = 80
    with pytest.raises(DataLossError, match="no longer has offsets 50 to 80"):
        world.goes_on_at()


def test_a_start_that_an_operator_gives_holds_while_nothing_is_copied(world: World) -> None:
    world.written = world.value = LinkControl(starts={P: 70}, starts_of={P: TopicIds(IDS[0])})
    assert world.goes_on_at() == 70
    world.row = begun_at(50)
    assert world.goes_on_at() == 70


def test_a_start_that_an_operator_gave_a_former_topic_of_the_source_is_none_of_this_one(world: World) -> None:
    world.written = world.value = LinkControl(starts={P: 70}, starts_of={P: TopicIds("former-id")})
    assert world.goes_on_at() == 0
    world.written = world.value = LinkControl(starts={P: 2_001})  # no ids show it, but the source ends before
    assert world.goes_on_at() == 0


@pytest.mark.parametrize("meanwhile", [LastRow(begun_at(100)), LastRow(begun_at(90), 7), None])
@pytest.mark.parametrize("moves_at", [0, 1, 2])
def test_a_copy_that_the_map_tells_of_by_now_or_is_about_to_is_no_lost_row(
    monkeypatch: pytest.MonkeyPatch, meanwhile: LastRow | None, moves_at: int
) -> None:
    """A mirror at work commits between the reads, and the marker in the map may come after that in the copied log."""
    row = begun_at(90)
    told = [LastRow(row) if at < moves_at else meanwhile for at in range(2)]
    read = AsyncMock(return_value=95)
    monkeypatch.setattr(foresight, "followed", AsyncMock(return_value={P: 7}))
    monkeypatch.setattr(foresight, "committed_copy", read)
    producers = AsyncMock(return_value={copier_id("dr", P): 7})
    monkeypatch.setattr(foresight, "transactional_producers", producers)
    monkeypatch.setattr(foresight, "last_told", AsyncMock(side_effect=[{P: last} if last else {} for last in told]))
    target: Any = None
    found = asyncio.run(foresight._untold_copies(target, "dr", {P: row}, {P: 120}))
    assert found == ({P: 95} if moves_at == 2 else {}) and read.await_count == (moves_at > 0)


@pytest.mark.parametrize("known", [None, {}, {copier_id("dr", P): 8}])
def test_what_others_have_written_behind_what_they_wrote_in_place_of_the_last_copy_is_no_lost_row(
    monkeypatch: pytest.MonkeyPatch, known: dict[str, int] | None
) -> None:
    row = begun_at(90)
    monkeypatch.setattr(foresight, "followed", AsyncMock(return_value={P: 7}))
    monkeypatch.setattr(foresight, "last_told", AsyncMock(return_value={P: LastRow(row)}))
    monkeypatch.setattr(foresight, "transactional_producers", AsyncMock(return_value=known))
    target: Any = None
    assert not asyncio.run(foresight._untold_copies(target, "dr", {P: row}, {P: 120}))

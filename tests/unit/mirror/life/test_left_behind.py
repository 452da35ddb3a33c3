"""left_behind.py without brokers: what a promoted link has left on its source, and where that is unknown."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any
from unittest.mock import AsyncMock

import kafka.errors as Errors
import pytest
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.groups import CommittedOffset
from tolerant_client.cluster.admin.offsets import LogOffsets
from tolerant_client.errors import ClusterUnreachableError, OptionError, TargetDivergedError
from tolerant_client.mirror.follow.group_positions import GroupPosition, GroupPositions
from tolerant_client.mirror.follow.groups import GroupsReport, decide_moves
from tolerant_client.mirror.life import left_behind, promotion_groups
from tolerant_client.mirror.life.lens import PartitionLag
from tolerant_client.mirror.life.lost_copies import LostCopies
from tolerant_client.mirror.life.promotion_report import PromotionReport
from tolerant_client.mirror.logs.committed import Committed
from tolerant_client.mirror.state import copied_back
from tolerant_client.mirror.state.control_record import Controls, decode_control, encode_control
from tolerant_client.mirror.state.link_control import LinkControl, TopicIds
from tolerant_client.mirror.state.map_rows import NO_MAP, MappedTopics
from tolerant_client.mirror.state.offset_map import MapRow, RowKey, Run
from tolerant_client.mirror.state.topic_filter import LinkTopics, TopicFilter

P, Q = TopicPartition("orders", 0), TopicPartition("clicks", 0)
PROMOTED = LinkControl(
    is_promotion_begun=True,
    is_fenced=True,
    source_cluster_id="A",
    topics=LinkTopics.of("orders|clicks").to_json(),
    begun={P: TopicIds("1", "2"), Q: TopicIds("3", "4")},
    copied_until={P: 100, Q: 20},
)
BACK = LinkControl(source_cluster_id="B", topics=LinkTopics.of("orders").to_json(), producer_ids=(9,))

FORMER_BACK = replace(BACK, is_promotion_begun=True, is_fenced=True, copied_until={P: 60})

FOUND = LinkControl(
    is_promotion_begun=True,
    is_fenced=True,
    topics=LinkTopics.of(".*").to_json(),
    copied_until={TopicPartition("x", 0): 5},
    map_id="",
)


class Source:
    """A source whose logs end at `ends`; `links` copy to it."""

    def __init__(self, links: dict[str, LinkControl] | Exception = {}, ids: dict[str, str] = {}) -> None:
        self.links, self.ids = links, {"orders": "1", "clicks": "3", **ids}
        self.ends = {P: 150, Q: 20}
        self.start = 0
        self.read_until = 150

    def wire_topic(self, name: str) -> str:
        return name

    async def partitions(self, topics: list[str] | None = None) -> dict[str, list[int]]:
        return {}

    async def cluster_id(self) -> str:
        return "A"


class Target:
    async def partitions(self) -> dict[str, list[int]]:
        return {}

    async def cluster_id(self) -> str:
        return "B"


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    async def present_ids(source: Source, topics: list[str]) -> dict[str, str]:
        return {name: source.ids[name] for name in topics}

    async def read_controls(source: Source, begun_of: frozenset[str]) -> Controls:
        if isinstance(source.links, Exception):
            raise source.links
        return Controls(source.links)

    async def within_bound(_: Any, function: Any, *args: Any) -> Any:
        return await function(*args)

    async def look_led(
        source: Source, _: Any, __: str, wanted: list[TopicPartition], ___: bool, control: LinkControl, ____: None
    ) -> Any:
        logs = {p: (source.ends[p], source.ends[p], min(source.start, source.ends[p])) for p in wanted}
        return [replace(PartitionLag(p, control.copied_until[p], *logs[p]), begun_at=0) for p in wanted], {}

    async def has_map(*_: Any) -> bool:
        return False

    async def count_committed(source: Source, ranges: dict[TopicPartition, Any]) -> dict[TopicPartition, Committed]:
        starts = {P: min(max(100, source.start), source.ends[P]), Q: 20}
        assert all(span == (starts[p], source.ends[p]) for p, span in ranges.items())
        there = Committed(30 if source.start < 150 else 0, source.read_until)
        return {p: there if p == P else Committed(0, 20) for p in ranges}

    monkeypatch.setattr(left_behind, "lost_copies", AsyncMock(return_value=LostCopies()))
    monkeypatch.setattr(left_behind, "lost_map", AsyncMock(return_value=None))
    monkeypatch.setattr(copied_back, "read_controls", read_controls)
    for function in (present_ids, within_bound, look_led, has_map, count_committed):
        monkeypatch.setattr(left_behind, function.__name__, function)


def again(
    source: Source | None,
    control: LinkControl = PROMOTED,
    groups: TopicFilter | None = None,
    *,
    is_dry_run: bool = False,
) -> PromotionReport:
    asked: Any = (source, Target(), "dr", control, groups)
    return asyncio.run(left_behind.promoted_before("promote", *asked, is_dry_run=is_dry_run))


def test_how_far_an_older_version_had_copied_with_translated_offsets_is_what_the_map_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends, lost = dict(PROMOTED.copied_until), "topic tolerant-mirror-offsets-dr was deleted"

    async def has_map(*_: Any) -> bool:
        return True

    unread: dict[TopicPartition, str] = {}

    async def mapped_topics(*_: Any) -> MappedTopics:
        return MappedTopics(frozenset(ends), unread)

    async def copied_until(_: Any, __: str, partitions: Any) -> dict[TopicPartition, int]:
        return {p: ends[p] for p in partitions}

    async def lost_map(*_: Any) -> str | None:
        return None if ends else lost

    for function in (has_map, mapped_topics, copied_until, lost_map):
        monkeypatch.setattr(left_behind, function.__name__, function)
    of_01 = replace(PROMOTED, copied_until={})
    report = again(None, of_01)
    assert report.copies_end == ends and report.warnings == (
        "link dr was promoted before; no topic and no group was changed",
    )
    unread[TopicPartition("tolerant-mirror-offsets-dr", 3)] = "it has no leader"
    assert again(None, of_01).warnings[1].startswith("tolerant-mirror-offsets-dr-3 cannot be read")
    unread.clear()
    ends.clear()
    report = again(None, of_01)
    assert report.unknown_left == (f"how far link dr had copied is unknown: {lost}",) and report.exit_code == 3


def test_what_a_promoted_link_left_behind_was_left_also_by_a_dry_run() -> None:
    report = again(Source(), is_dry_run=True)
    assert report.left_behind == "30 committed records of orders-0 were not copied: only the source has what is there"
    (row,) = [p for p in report.partitions if p.left_records]
    one = replace(report, partitions=(replace(row, left_records=1),))
    assert one.left_behind.startswith("1 committed record of orders-0 was not copied")


def test_offsets_of_which_nobody_knows_what_they_have_are_no_records() -> None:
    source = Source()
    source.read_until = 110
    report = again(source)
    (_, part), unknown = report.partitions, "how many committed records they have is unknown"
    assert report.exit_code == 3 and (part.lag, part.left_records, part.left_unread) == (50, 30, 40)
    assert report.left_behind.startswith(
        "30 committed records of orders-0 were not copied; 40 offsets of orders-0 were not"
    )
    report = replace(report, partitions=(replace(part, left_records=0),))
    assert report.left_behind.startswith(f"40 offsets of orders-0 were not copied, and {unknown}")
    aborted = replace(report, partitions=(replace(part, left_records=0, left_unread=0),))
    assert (aborted.left_behind, aborted.exit_code) == ("", 0)


@pytest.mark.parametrize(
    ("start", "lag", "others"), [(120, 50, "30 committed records of orders-0 were not copied: "), (150, 50, "")]
)
def test_what_the_source_has_deleted_of_what_was_not_copied_was_left_behind_too(
    start: int, lag: int, others: str
) -> None:
    source = Source()
    source.start = start
    report = again(source)
    part = report.partitions[1]
    assert report.exit_code == 3 and (part.lag, part.left_deleted) == (lag, (100, start))
    assert report.left_behind.startswith(others)
    assert f"offsets 100 to {start} of orders-0 were not copied, and the source has deleted them" in report.left_behind
    assert ("only the source has" in report.left_behind) is bool(others)
    source.start = 100  # what was copied
    assert again(source).partitions[1].left_deleted is None


def test_status_says_what_was_left_behind_as_a_repeated_promotion_does() -> None:
    source: Any = Source()
    lags = [
        replace(PartitionLag(p, PROMOTED.copied_until[p], end, end, 0), begun_at=0) for p, end in source.ends.items()
    ]
    why = {TopicPartition("orders", 1): "it has no leader on the source"}
    left, unknown = asyncio.run(left_behind.left_texts(source, PROMOTED, lags, why))
    assert left == again(source).left_behind != ""
    assert unknown == "what orders-1 left behind on the source is unknown: it has no leader on the source"


def test_a_promotion_that_is_repeated_says_again_what_was_left_behind() -> None:
    report = again(Source())
    assert [(p.topic, p.copied_until, p.lag) for p in report.partitions] == [("clicks", 20, 0), ("orders", 100, 50)]
    assert (
        report.is_done
        and report.exit_code == 3
        and report.warnings == ("link dr was promoted before; no topic and no group was changed",)
    )
    report = again(None)  # failover asks no source
    assert [(p.copied_until, p.lag) for p in report.partitions] == [(20, None), (100, None)] and report.exit_code == 0
    report = again(Source(), replace(PROMOTED, copied_until={}))
    assert not report.partitions and report.exit_code == 0 and "version 0.1 did not write it" in report.warnings[1]
    assert decode_control(encode_control(PROMOTED, 1)) == PROMOTED


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (Source(ids={"orders": "5"}), "was created again on the source"),
        (Source({"back": BACK}), "link back has copied back to it"),
        (Source({"back": replace(BACK, is_promotion_begun=True, is_fenced=True)}), "link back has copied back to it"),
        (Source({"back": replace(FORMER_BACK, copied_until={P: 101})}), "link back has copied back to it"),
        (Source({"back": FORMER_BACK}), ""),  # before our own copies
        (Source(Errors.TopicAuthorizationFailedError("no")), "we may not read tolerant-mirror-control of the source"),
        (Source({"in": replace(BACK, source_cluster_id="C")}), ""),
        (Source({"back": replace(BACK, producer_ids=(), adopted={P: 100})}), ""),  # prepared, and not started yet
        (Source({"x": FOUND}), ""),  # its failover was given expressions that match our topics, too
        (Source({"x": replace(FOUND, copied_until={P: 101})}), "link x has copied back to it"),
    ],
)
def test_what_the_source_has_now_is_not_called_left_behind_where_others_wrote_it(source: Source, why: str) -> None:
    report = again(source)
    lags = {p.topic: p.lag for p in report.partitions}
    assert lags["orders"] == (None if why else 50) and report.exit_code == 3, "an unknown number is not 0"
    assert [text for text in report.unknown_left if why in text] == list(report.unknown_left)
    assert bool(report.unknown_left) is bool(why) is not bool(report.left_behind)


@pytest.mark.parametrize(
    ("links", "until"),
    [
        ({"back": replace(FORMER_BACK, copied_until={P: 101})}, 101),
        ({"back": BACK}, None),  # it goes on
        ({"a": replace(FORMER_BACK, copied_until={P: 101}), "back": replace(FORMER_BACK, copied_until={P: 120})}, 120),
        ({"a": BACK, "back": replace(FORMER_BACK, copied_until={P: 120})}, None),
        (
            {"x": replace(FOUND, copied_until={P: 101})},
            None,
        ),  # it had no control: how far it copied is no end of both logs
    ],
)
def test_both_logs_go_on_as_one_until_the_last_link_back_has_ended(
    links: dict[str, LinkControl], until: int | None
) -> None:
    asked: Any = (Source(links), Target(), [P], {P: 100})
    (found,) = asyncio.run(copied_back.copied_back(*asked)).values()
    assert found.until == until and found.no_copy.startswith("the target is no longer the source's copy: link ")
    hidden: Any = (Source(Errors.TopicAuthorizationFailedError("no")), *asked[1:])
    (found,) = asyncio.run(copied_back.copied_back(*hidden)).values()
    assert found.until is None and found.no_copy.startswith("the target may no longer be the source's copy: we may not")


@pytest.mark.parametrize("known_by", ["map", "map without a record", "control"])
def test_a_translated_link_says_of_a_topic_that_was_created_again_what_an_identical_one_says(
    monkeypatch: pytest.MonkeyPatch, known_by: str
) -> None:
    anew = Source(ids={"orders": "5"})
    twin = again(anew)
    control = replace(PROMOTED, begun={}, map_id="m")
    rows = {p: MapRow(RowKey(p, 0), p.topic, ids, 20, 0, (Run(0, 0, 20),)) for p, ids in PROMOTED.begun.items()}
    mapped = MappedTopics(frozenset(rows), copies=rows)
    if known_by == "map without a record":
        mapped = MappedTopics(frozenset(rows), uncopied=rows)
    if known_by == "control":
        mapped, control = NO_MAP, replace(control, mapped=PROMOTED.begun)
    monkeypatch.setattr(left_behind, "has_map", AsyncMock(return_value=True))
    monkeypatch.setattr(left_behind, "mapped_topics", AsyncMock(return_value=mapped))
    report = again(anew, control)
    assert "orders-0 left behind on the source is unknown: its topic was created again" in report.unknown_left[-1]
    assert report.to_json() == twin.to_json()
    same = again(Source(), control)
    assert not same.unknown_left and same.left_behind.startswith("30 committed records of orders-0")


def test_another_cluster_as_source_is_refused() -> None:
    with pytest.raises(OptionError, match="Link dr has copied from cluster C, and this source is cluster A"):
        again(Source(), replace(PROMOTED, source_cluster_id="C"))


def test_while_a_promotion_without_a_control_is_not_finished_what_it_left_behind_is_unknown() -> None:
    """Its control does not have the producer id of the marker that ends a log."""
    half = LinkControl(is_promotion_begun=True, topics=PROMOTED.topics, copied_until={Q: 20}, unfenced=frozenset((P,)))
    lags, why = asyncio.run(
        left_behind.as_left(
            Source(), Target(), half, NO_MAP, [PartitionLag(P, 11, 10, 10, 0), PartitionLag(Q, 20, 25, 25, 0)]
        )  # type: ignore[arg-type]
    )
    assert [e.lag_offsets for e in lags] == [None, 5] and why.keys() == {P} and "not finished" in why[P]


def test_a_source_that_ends_before_what_was_copied_tells_nothing_either() -> None:
    source = Source()
    source.ends = {P: 5, Q: 20}
    report = again(source)
    assert {p.topic: p.lag for p in report.partitions} == {"orders": None, "clicks": 0}
    assert "orders-0 left behind on the source is unknown: the source's log ends before" in report.unknown_left[-1]


def test_of_the_groups_that_an_earlier_promotion_or_failover_did_not_move_none_is_moved_and_each_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, elsewhere = Source(), TopicPartition("orders", 9)
    source.ends = {P: 100, Q: 20}
    monkeypatch.setattr(left_behind, "count_committed", AsyncMock(return_value={}))

    def at(group: str, partition: TopicPartition, upstream: int) -> GroupPosition:
        return GroupPosition(group, partition, upstream, upstream, "", is_behind=False)

    found = [at("a", P, 90), at("b", P, 40), at("c", Q, 30), at("d", elsewhere, 5)]

    async def read_positions(*_: Any, **__: Any) -> GroupPositions:
        return GroupPositions(tuple(found), (), 0.0)

    async def sync_groups(_: Any, known: GroupPositions, *, is_dry_run: bool) -> GroupsReport:
        assert is_dry_run
        before = {"a": {P: CommittedOffset(90, "")}, "b": {P: CommittedOffset(10, "")}, "c": {}, "d": {}}
        moves, left, unchanged = decide_moves(known.positions, before, dict.fromkeys(before, "Empty"))
        return GroupsReport(tuple(moves), unchanged, known.behind, tuple(left))

    monkeypatch.setattr(promotion_groups, "read_positions", read_positions)
    monkeypatch.setattr(promotion_groups, "sync_groups", sync_groups)
    assert again(source).exit_code == 0 and again(source).groups is None, "nobody asked for groups"
    report = again(source, groups=TopicFilter())
    assert report.groups is not None and report.exit_code == 3 and promotion_groups.STAY in report.warnings
    assert (report.groups.moved, report.groups.unchanged) == ((), 1)
    assert [str(left) for left in report.groups.left] == [
        "group b, orders-0: by its position on the source it belongs at offset 40 of the target, where its offset is 10: it was not moved",
        "group c, clicks-0: by its position on the source it belongs at offset 20 of the target, where it has none: it was not moved",
    ]
    assert [p.group for p in report.groups.behind] == ["c"]
    del found[1:]
    report = again(source, groups=TopicFilter())
    assert report.exit_code == 0 and promotion_groups.STAY not in report.warnings, "all are where they belong"
    report = again(source, replace(PROMOTED, copied_until={}), TopicFilter())
    assert report.groups is not None and report.exit_code == 3
    assert [(left.name, left.reason) for left in report.groups.left] == [("all groups", "over")]


def test_a_map_that_is_lost_tells_of_no_group_where_it_belongs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promotion_groups, "read_positions", AsyncMock(side_effect=TargetDivergedError("map lost")))
    report = again(Source(), groups=TopicFilter())
    assert report.groups is not None and report.exit_code == 3
    assert [left.reason for left in report.groups.left] == ["error"] and "map lost" in report.groups.left[0].why
    monkeypatch.setattr(promotion_groups, "read_positions", AsyncMock(side_effect=ClusterUnreachableError("away")))
    with pytest.raises(ClusterUnreachableError):
        again(Source(), groups=TopicFilter())


UNSEEN = TopicPartition("orders", 1)


def unseen_by(
    monkeypatch: pytest.MonkeyPatch,
    log: tuple[int, int],
    control: LinkControl = PROMOTED,
    links: dict[str, LinkControl] = {},
    unled: dict[TopicPartition, str] = {},
    back: dict[str, LinkControl] = {},
) -> PromotionReport:
    """What a repeat says where the source has orders-1, which no mirror had seen, with this log of records; all else was copied."""
    source = Source(dict(back))
    source.ends = {P: 100, Q: 20}

    async def partitions(*_: Any) -> dict[str, list[int]]:
        return {"orders": [0, 1], "clicks": [0]}

    async def logs(_: Any, wanted: list[TopicPartition]) -> Any:
        return {p: LogOffsets(log[0], log[1], log[1]) for p in wanted if p not in unled}, unled

    async def count_committed(_: Any, ranges: dict[TopicPartition, Any]) -> dict[TopicPartition, Committed]:
        return {p: Committed(end - start, end) for p, (start, end) in ranges.items()}

    monkeypatch.setattr(Source, "partitions", partitions)
    for name, value in {
        "list_led_log_offsets": logs,
        "count_committed": count_committed,
        "find_taken": AsyncMock(return_value={}),
        "read_controls": AsyncMock(return_value=Controls({"dr": control, **links})),
        "_write_found": AsyncMock(),
    }.items():
        monkeypatch.setattr(left_behind, name, value)
    return again(source, control)


def test_what_the_source_has_deleted_of_a_partition_that_no_mirror_had_seen_is_not_on_the_target_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = "4 committed records of orders-1 were not copied: only the source has what is there"
    deleted = "offsets 0 to {} of orders-1 were not copied, and the source has deleted them: nobody has what was there"
    for log, texts in {
        (0, 4): [there],
        (6, 10): [there, deleted.format(6)],
        (10, 10): [deleted.format(10)],
        (0, 0): [],
    }.items():
        report = unseen_by(monkeypatch, log)
        assert [text for text in (there, deleted.format(log[0])) if text in report.left_behind] == texts, report
        assert report.exit_code == (3 if texts else 0) and not report.unknown_left
    # An earlier repeat has found that they were no records.
    assert unseen_by(monkeypatch, (10, 10), replace(PROMOTED, empty_until={UNSEEN: 10})).exit_code == 0


def test_what_neither_cluster_had_is_new_where_the_source_has_got_it_since(monkeypatch: pytest.MonkeyPatch) -> None:
    left = "4 committed records of orders-1 were not copied"
    had = replace(PROMOTED, mapped={UNSEEN: TopicIds("1", "9")}, copied={UNSEEN: 12})
    assert not unseen_by(monkeypatch, (0, 4), had).left_behind, "it was copied"
    promoted = had.with_gone([UNSEEN], is_translated=True)
    assert unseen_by(monkeypatch, (0, 4), promoted).left_behind.startswith(left)
    promoted = replace(had, mapped={}).with_gone([UNSEEN], is_translated=False)
    assert unseen_by(monkeypatch, (0, 4), promoted).left_behind.startswith(left)


def test_that_a_partition_that_no_mirror_had_seen_has_no_record_is_written_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before the source deletes its markers and aborted records."""
    control = replace(PROMOTED, copied_until={P: 100})

    async def none(_: Any, ranges: dict[TopicPartition, Any]) -> dict[TopicPartition, Committed]:
        return {p: Committed(0, end) for p, (_, end) in ranges.items()}

    def written() -> Any:
        unseen_by(monkeypatch, (0, 4), control)
        monkeypatch.setattr(left_behind, "count_committed", none)
        again(Source(), control)
        write: Any = left_behind._write_found
        return write.await_args_list

    (call,) = written()
    assert call.args[-1][UNSEEN] == 4


def test_what_another_link_has_begun_is_its_to_tell_and_what_has_no_leader_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    theirs = LinkControl(source_cluster_id="A", topics=PROMOTED.topics, is_promotion_begun=True, is_fenced=True)
    log = (0, 4)
    assert unseen_by(monkeypatch, log, links={"x": replace(theirs, copied_until={UNSEEN: 4})}).exit_code == 0
    assert unseen_by(monkeypatch, log, links={"x": replace(theirs, begun={UNSEEN: TopicIds("1", "9")})}).exit_code == 0
    for other in (theirs, replace(theirs, source_cluster_id="C", copied_until={UNSEEN: 4})):
        assert unseen_by(monkeypatch, log, links={"x": other}).left_behind.startswith("4 committed records of orders-1")
    report = unseen_by(monkeypatch, log, unled={UNSEEN: "it has no leader"})
    assert report.unknown_left == ("what orders-1 left behind on the source is unknown: it has no leader",)
    assert report.exit_code == 3


def test_a_link_back_has_not_copied_what_it_has_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes that down before its first record; version 0.1 did not, nor does one with translated offsets."""
    back, why = replace(BACK, begun={P: TopicIds("2", "1")}), "unknown: link back has copied back to it"
    left = "4 committed records of orders-1 were not copied"
    for control, is_told in (
        (back, True),
        (replace(back, begun={P: TopicIds(), UNSEEN: TopicIds()}), False),
        (BACK, False),
        (replace(BACK, producer_ids=(), map_id="m", begun={P: TopicIds()}), False),
        (replace(BACK, is_promotion_begun=True, is_fenced=True, copied_until={P: 120}), True),
    ):
        report = unseen_by(monkeypatch, (0, 4), back={"back": control})
        (text,) = report.unknown_left
        assert why in text and report.left_behind.startswith(left) is is_told, control
        assert ("1 more partition" in text) is not is_told

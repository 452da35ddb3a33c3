"""What a target log already has of what a translated link is about to append, by others' maps and by the log itself."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import kafka.errors as Errors
import pytest
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import EARLIEST
from tolerant_client.errors import TargetDivergedError
from tolerant_client.mirror.batches.divergence import LogSlice
from tolerant_client.mirror.engine.copied_by_mm2 import Mm2Copy
from tolerant_client.mirror.engine.translated import copied_before as module
from tolerant_client.mirror.engine.translated.copied_before import (
    Origin,
    OtherCopy,
    other_copies,
    require_no_copy,
    require_no_identical_copy,
    require_no_original,
)
from tolerant_client.mirror.state.control_record import Controls
from tolerant_client.mirror.state.known_maps import KnownMaps
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.map_rows import MappedTopics
from tolerant_client.mirror.state.map_topic import map_partition
from tolerant_client.mirror.state.offset_map import MapRow, RowKey, Run
from tolerant_client.records.record_batch import Record

P = TopicPartition("orders", 0)
ROW = MapRow(RowKey(P, 0), "orders", ("s", "t"), 100, 0, (Run(0, 7, 100),))


@pytest.mark.parametrize(
    ("ids", "begin", "is_over", "told", "start"),
    [
        (("s", "t"), 0, False, r"this very topic of the source \(id s\), up to its offset 100.*Mirror it with --link eu .*resumes", 106),
        (("s", "t"), 99, True, "tolerant-mirror-offsets-eu of the target says.*That link was promoted with it: leave the topic out", 0),
        (("s", "t"), 100, False, "", 0),  # nothing of it is to be copied
        (("s", "t"), 0, False, "", 107),  # nothing of it is left
        (("other", "t"), 0, False, "", 0),  # of another source, or made anew
        (("s", "other"), 0, False, "", 0),
        (("", "t"), 0, False, "whether of this source is unknown, since brokers before 2.8", 0),
        (("s", ""), 0, False, "is unknown", 0),
        (("", "other"), 0, False, "", 0),
    ],
)  # fmt: skip
def test_what_the_map_of_another_link_has_of_the_same_topics_is_not_appended_again(
    ids: tuple[str, str], begin: int, is_over: bool, told: str, start: int
) -> None:
    others = [OtherCopy("eu", ROW, is_over)]
    if not told:
        return require_no_copy("dr", P, ids, begin, start, others)
    with pytest.raises(TargetDivergedError, match=told) as caught:
        require_no_copy("dr", P, ids, begin, start, others)
    assert "delete tolerant-mirror-offsets-eu on the target" in caught.value.remedy


def test_of_a_map_that_cannot_be_read_nothing_is_decided() -> None:
    with pytest.raises(
        Errors.OffsetNotAvailableError, match="Whether link eu has copied orders-0 before is unknown"
    ) as caught:
        require_no_copy("dr", P, ("s", "t"), 0, 0, [OtherCopy("eu", None, False, "no leader")])
    assert caught.value.retriable and "promoted" not in str(caught.value)
    with pytest.raises(TargetDivergedError, match="link us has copied"):  # which the other one does not change
        require_no_copy("dr", P, ("s", "t"), 0, 0, [OtherCopy("eu", None, False, "slow"), OtherCopy("us", ROW, False)])


def test_what_another_link_may_commit_yet_is_unknown_if_it_would_be_a_copy_of_ours() -> None:
    undecided = OtherCopy("eu", ROW, False, "up to the end of a transaction that is not over")
    with pytest.raises(Errors.OffsetNotAvailableError, match="unknown yet: .* transaction that is not over"):
        require_no_copy("dr", P, ("s", "t"), 0, 0, [undecided])
    for ids, begin, start in ((("other", "t"), 0, 0), (("s", "t"), 100, 0), (("s", "t"), 0, 107)):
        require_no_copy("dr", P, ids, begin, start, [undecided])
    with pytest.raises(TargetDivergedError, match="link eu has copied"):
        require_no_copy("dr", P, ("s", "t"), 0, 0, [undecided, undecided._replace(unread="")])


def test_maps_are_asked_whose_links_may_have_the_same_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of links that no control names; their own part of each map counts."""
    asked: list[str] = []
    links = {
        "dr": LinkControl(source_cluster_id="A"),
        "same": LinkControl(source_cluster_id="A"),
        "again": LinkControl(source_cluster_id="A", generation=1),
        "other": LinkControl(source_cluster_id="B"),
        "unknown": LinkControl(),
    }

    async def each(_: Any, of: Mapping[str, tuple[LinkControl, Collection[TopicPartition]]], **__: Any) -> Any:
        asked.extend(of)
        away = {map_partition("unknown", P): "away", map_partition("same", TopicPartition("x", 0)): "another part"}
        found = {
            "again": MappedTopics(copies={P: ROW}, last=0),
            "left": MappedTopics(copies={P: ROW}, last=0, undecided={P: ROW}),
            "same": MappedTopics(unread=away),
            "unknown": MappedTopics(unread=away),
        }
        assert all(control == LinkControl() and set(wanted) == {P} for control, wanted in of.values())
        return {name: found[name] for name in of}

    monkeypatch.setattr(module, "read_controls", AsyncMock(return_value=Controls(links, ())))
    monkeypatch.setattr(
        module, "mapped_links", AsyncMock(return_value=["again", "dr", "left", "other", "same", "unknown"])
    )
    monkeypatch.setattr(module, "read_each_map", each)
    found = asyncio.run(other_copies(AsyncMock(), "dr", [P], KnownMaps(lambda: 0.0), 5.0))
    assert asked == ["again", "left", "same", "unknown"]
    left = OtherCopy("left", ROW, True), OtherCopy("left", ROW, True, "up to the end of a transaction that is not over")
    copies = OtherCopy("again", ROW, False), *left, OtherCopy("unknown", None, False, "away")
    assert found == {P: copies}, "a link that began again after its promotion copies now"


def records(*offsets: int, value: bytes = b"v") -> dict[int, Record]:
    return {n: Record(n, 1_000 + n, b"k", value) for n in offsets}


BACK = MapRow(
    RowKey(P, 0), "orders", ("t", "s"), 100, 0, (Run(0, 7, 100),)
)  # offsets 7 to 107 of the source are from the target


@pytest.mark.parametrize(
    ("origin", "ids", "begin", "start", "told"),
    [
        (Origin("dr", False, BACK), ("s", "t"), 0, 0, "is the original: link dr has .*Leave the topic out: .*a replication policy"),
        (Origin("dr", False, BACK), ("s", ""), 106, 99, "is the original"),
        (Origin("dr", False, BACK), ("s", "t"), 107, 0, ""),  # what follows is the source's own
        (Origin("dr", False, BACK), ("s", "t"), 0, 100, ""),  # none of the originals is left
        (Origin("dr", False, BACK), ("s", "anew"), 0, 0, ""),
        (Origin("dr", False, BACK), ("anew", "t"), 0, 0, ""),
        (Origin("dr", True), ("s", "t"), 0, 0, ""),  # its log shows it
        (Origin("dr", False), ("s", "t"), 0, 0, ""),
    ],
)  # fmt: skip
def test_what_a_map_of_the_source_says_to_be_from_the_target_is_not_copied_back(
    origin: Origin, ids: tuple[str, str], begin: int, start: int, told: str
) -> None:
    if not told:
        return require_no_original("back", P, ids, begin, start, [origin])
    with pytest.raises(TargetDivergedError, match=told):
        require_no_original("back", P, ids, begin, start, [origin])


def test_of_a_map_of_the_source_that_cannot_be_read_nothing_is_decided() -> None:
    with pytest.raises(
        Errors.OffsetNotAvailableError, match="Whether link dr has copied orders-0 from this target .* is unknown"
    ):
        require_no_original("back", P, ("s", "t"), 0, 0, [Origin("dr", False, None, "no leader")])


@pytest.mark.parametrize(
    ("original", "copied", "begin", "is_transactional", "told"),
    [
        (records(*range(9)), records(*range(9)), 0, False, "from offset 0 on"),
        (records(5, 6), records(3, 6), 3, False, "from offset 6 on"),
        (records(450), records(450), 0, False, "from offset 450 on"),  # neither has one before
        (records(*range(9)), records(*range(9)), 0, True, ""),  # what a former link has copied with translated offsets
        (records(*range(9)), records(*range(9), value=b"other"), 0, False, ""),
        (records(1, 2), {**records(1), **records(2, value=b"other")}, 0, False, ""),  # by chance
        (records(*range(9)), {**records(*range(5)), **records(*range(5, 9), value=b"its own since")}, 0, False, "from offset 0 on"),
        (records(*range(9)), records(*range(9)), 500, False, ""),  # nothing that is there is to be copied
        (records(1), records(2), 0, False, ""),
    ],
)  # fmt: skip
def test_records_at_their_own_offsets_are_an_identical_copy(
    monkeypatch: pytest.MonkeyPatch,
    original: dict[int, Record],
    copied: dict[int, Record],
    begin: int,
    is_transactional: bool,
    told: str,
) -> None:
    def cluster(log: dict[int, Record]) -> Any:
        async def offsets(wanted: Mapping[TopicPartition, int], **_: Any) -> dict[TopicPartition, int]:
            return {p: 0 if at == EARLIEST else 500 for p, at in wanted.items()}

        return SimpleNamespace(list_offsets=offsets, log=log)

    async def slices(cluster: Any, spans: Any, *, is_committed: bool) -> dict[TopicPartition, LogSlice]:
        assert is_committed is (cluster is source)
        return {p: LogSlice(b, {n: r for n, r in cluster.log.items() if a <= n < b}) for p, (a, b) in spans.items()}

    source, target = cluster(original), cluster(copied)
    header = SimpleNamespace(is_transactional=is_transactional)
    monkeypatch.setattr(module, "read_slices", slices)
    monkeypatch.setattr(module, "read_headers", AsyncMock(return_value={P: header}))
    checking = require_no_identical_copy(source, target, "dr", P, begin, 0)
    if not told:
        return asyncio.run(checking)
    with pytest.raises(TargetDivergedError, match=f"{re.escape('orders-0')} has the source's records {told}"):
        asyncio.run(checking)
    back = [Origin("dr", True)]
    with pytest.raises(TargetDivergedError, match="is the original: link dr .*tolerant-kafka failback") as caught:
        asyncio.run(require_no_identical_copy(source, target, "back", P, begin, 0, back))
    assert "delete" not in str(caught.value)


def test_logs_that_cannot_be_read_are_not_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    async def offsets(wanted: Mapping[TopicPartition, int], **_: Any) -> dict[TopicPartition, int]:
        return {p: 0 if at == EARLIEST else 5 for p, at in wanted.items()}

    cluster: Any = SimpleNamespace(list_offsets=offsets)
    monkeypatch.setattr(module, "read_slices", AsyncMock(return_value={P: LogSlice(0)}))
    with pytest.raises(Errors.OffsetNotAvailableError, match="cannot be compared from 0 on"):
        asyncio.run(require_no_identical_copy(cluster, cluster, "dr", P, 0, 0))


@pytest.mark.parametrize("beside", [True, False])
def test_what_mirrormaker_2_may_have_copied_to_another_topic_is_not_left_out_unsaid(
    monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    """Its position names the source's topic alone, and equal records may be by chance."""

    async def partitions(names: list[str]) -> dict[str, list[int]]:
        assert names == ["A.orders"]
        return {"A.orders": [0]} if beside else {}

    async def found(*_: Any) -> Mm2Copy:
        return Mm2Copy("mm2-offsets.A.internal", 200)

    monkeypatch.setattr(module, "find_copy_of_mm2", found)
    source: Any = SimpleNamespace(wire_topic=str)
    target: Any = SimpleNamespace(partitions=partitions, file_options="")
    asked = source, target, "dr", TopicPartition("orders", 0), 0, ()
    with pytest.raises(
        TargetDivergedError, match="has what MirrorMaker 2 has copied up to the source's offset 200"
    ) as raised:
        asyncio.run(module.require_no_copy_of_mm2(*asked, begins_again=False))
    said = "If MirrorMaker 2 has copied it to A.orders instead, and the log has other records that are equal, copy it into a topic of another"
    assert (said in str(raised.value)) == beside

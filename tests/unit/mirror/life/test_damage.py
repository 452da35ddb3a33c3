"""What a target shows of copies that it has lost, where the source is gone (damage.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from kafka.structs import TopicPartition

from support.one_log import OneLog
from tolerant_client.cluster.admin.transactions import CoordinatorView
from tolerant_client.errors import TargetDivergedError
from tolerant_client.mirror.engine.identical import open_gaps
from tolerant_client.mirror.engine.identical.gap_producer import gap_transactional_id
from tolerant_client.mirror.life import damage
from tolerant_client.mirror.life.damage import SeenLog, damage_of
from tolerant_client.mirror.life.promotion_view import PromotedLink
from tolerant_client.mirror.state.link_control import LinkControl, TopicIds
from tolerant_client.mirror.state.map_rows import MappedTopics
from tolerant_client.mirror.state.offset_map import MapRow, RowKey, Run
from tolerant_client.mirror.state.topic_filter import LinkTopics
from tolerant_client.records.record_batch import Record, encode_batch

P = TopicPartition("orders", 0)
IDS = TopicIds("", "target-id")
CONTROL = LinkControl(producer_ids=(7,), begun={P: TopicIds("source-id", "target-id")}, copied={P: 200})
STARTS = LinkControl(producer_ids=(7,), begun=CONTROL.begun, log_starts={P: 500})


@pytest.mark.parametrize(
    ("control", "now", "log", "text", "copied_until"),
    [
        (CONTROL, TopicIds("", "another"), SeenLog(0, 0, 0), "created again on the target", 0),
        (CONTROL, TopicIds("", "another"), SeenLog(0, 300, 0, foreign=-1), "up to offset 200", 0),
        (CONTROL, IDS, SeenLog(0, 150, 150), "ends at offset 150, and link dr had copied it up to 200", 150),
        (CONTROL, IDS, SeenLog(0, 230, 200, foreign=-1), "others have written to orders-0", 200),
        (
            LinkControl(producer_ids=(7,)),
            IDS,
            SeenLog(0, 230, 200, hidden_by=9, is_fenced=True),
            "promoted before",
            200,
        ),
        (STARTS, IDS, SeenLog(0, 100, 100, is_filler=True), "to begin at offset 500, and ends at 100", 0),
        (STARTS, IDS, SeenLog(100, 100, 100), "nothing of orders-0 was copied", 0),
        (STARTS, IDS, SeenLog(0, 500, 500, is_filler=True), "nothing of orders-0 was copied", 0),
        (
            CONTROL,
            IDS,
            SeenLog(0, 1700, 1700, hidden_by=10),
            "who wrote last to orders-0 on the target is unknown",
            1700,
        ),
    ],
)
def test_what_is_no_copy_is_named_and_no_record_of_others_counts(
    control: LinkControl, now: TopicIds, log: SeenLog, text: str, copied_until: int
) -> None:
    found = damage_of("dr", control, P, now, log)
    assert found is not None and text in found.text and found.copied_until == copied_until


@pytest.mark.parametrize(
    ("control", "now", "log"),
    [
        (CONTROL, IDS, SeenLog(0, 200, 200)),
        (CONTROL, IDS, SeenLog(50, 400, 400)),
        (CONTROL, TopicIds("", ""), SeenLog(0, 200, 200)),
        (STARTS, IDS, SeenLog(0, 0, 0)),
        (STARTS, IDS, SeenLog(500, 500, 500)),
        (STARTS, IDS, SeenLog(500, 600, 600)),
        (STARTS, IDS, SeenLog(0, 500, 500)),  # where nothing is deleted the filler stays
        (LinkControl(producer_ids=(7,)), IDS, SeenLog(0, 20, 20)),
    ],
)
def test_a_copy_has_no_damage(control: LinkControl, now: TopicIds, log: SeenLog) -> None:
    assert damage_of("dr", control, P, now, log) is None


def test_a_topic_of_the_targets_own_is_no_damage_and_nothing_of_it_is_copied() -> None:
    local = TopicPartition("local", 0)
    found = damage_of("dr", CONTROL, local, IDS, SeenLog(0, 30, 0, foreign=-1))
    assert found is not None and (found.text, found.copied_until) == ("", 0)
    found = damage_of("dr", CONTROL, local, IDS, SeenLog(0, 1700, 0, hidden_by=11))
    assert found is not None and (found.text, found.copied_until) == ("", 0)
    found = damage_of("dr", LinkControl(producer_ids=(7,)), local, IDS, SeenLog(0, 1700, 0, hidden_by=11))
    assert found is not None and "is unknown" in found.text, "a link that remembers no beginnings may have begun it"
    found = damage_of("dr", CONTROL, local, IDS, SeenLog(0, 30, 10, foreign=-1))  # a link that remembers no beginnings
    assert found is not None and "from offset 10 on" in found.text


GAPS_ID, OTHER_ID = 10, 11


def batch(offset: int, producer_id: int, **options: Any) -> bytes:
    records = [Record(0, 1, None, b"kept")]
    return encode_batch(
        records, base_offset=offset, producer_id=producer_id, producer_epoch=0, base_sequence=0, **options
    )


@pytest.mark.parametrize("others", [0, 1], ids=["none", "one after the link"])
@pytest.mark.parametrize("gaps_id", [GAPS_ID, OTHER_ID, None], ids=["the link's", "another's", "not told"])
def test_any_number_of_ends_of_the_links_gaps_is_no_writing_of_others(
    monkeypatch: pytest.MonkeyPatch, gaps_id: int | None, others: int
) -> None:
    """A partition in which small transactions are aborted steadily ends so; its coordinator tells whose the producer id is."""

    async def told(target: Any, by_node: Mapping[int, Any]) -> Any:
        names = [name for at in by_node.values() for name in at]
        assert names == [gap_transactional_id("dr", P)]
        return {
            name: Exception() if gaps_id is None else CoordinatorView(name, "", 0, 0, frozenset(), gaps_id)
            for name in names
        }

    async def coordinators(target: Any, kind: Any, names: Any) -> Any:
        return dict.fromkeys(names, 1)

    async def nothing(*_: Any) -> dict[str, Any]:
        return {}

    monkeypatch.setattr(damage, "topic_facts", nothing)
    monkeypatch.setattr(open_gaps, "can_list_transactions", lambda target: True)
    monkeypatch.setattr(open_gaps, "find_coordinators", coordinators)
    monkeypatch.setattr(open_gaps, "_views", told)

    def seen(markers: int) -> SeenLog:
        data = [batch(0, 7), *(batch(1, 9) for _ in range(others))]
        ends = [batch(at, GAPS_ID, is_control=True) for at in range(len(data), len(data) + markers)]
        log: Any = OneLog([*data, *ends])
        found = asyncio.run(damage._seen_logs(log, "dr", CONTROL, {P: log.end}, {"orders": IDS}))
        return found[P]._replace(end=0)

    assert seen(20) == (SeenLog(0, 0, 1, foreign=9) if others else SeenLog(0, 0, 21))
    if gaps_id == GAPS_ID:
        assert seen(1100) == SeenLog(0, 0, 1100 + 1 + others)
    else:
        assert seen(1100) == SeenLog(0, 0, 1, hidden_by=GAPS_ID), "what is not known to be the link's is not counted"


@pytest.mark.parametrize("is_transactional", [False, True], ids=["plain", "transactional"])
@pytest.mark.parametrize("gap", [0, 1], ids=["data", "gap"])
@pytest.mark.parametrize("is_fenced", [True, False])
def test_the_fence_is_found_however_much_others_have_written_after_it(
    monkeypatch: pytest.MonkeyPatch, is_transactional: bool, gap: int, is_fenced: bool
) -> None:
    """Where the control is deleted, the log that begins with the link's records is no topic of the target's own."""

    async def nothing(*_: Any) -> dict[Any, Any]:
        return {}

    monkeypatch.setattr(damage, "topic_facts", nothing)
    monkeypatch.setattr(damage, "ended_gaps", nothing)
    monkeypatch.setattr(damage, "MOST_STEPS_BACK", 20)
    forgotten = LinkControl(producer_ids=(7,))
    for own, others in ((1, 50), (2, 31), (70, 130), (130, 22)):
        copied = [batch(at, 7) for at in range(own)] + [batch(own + at, GAPS_ID, is_control=True) for at in range(gap)]
        fence = [batch(own + gap, 7, is_control=True)] * is_fenced
        begin = own + gap + is_fenced
        written = [
            batch(at, 9, is_transactional=is_transactional, is_control=is_transactional and at % 2 == begin % 2 + 1)
            for at in range(begin, begin + others)
        ]
        log: Any = OneLog([*copied, *fence, *written])
        found = asyncio.run(damage._seen_logs(log, "dr", forgotten, {P: log.end}, {"orders": IDS}))[P]
        assert (found.own_until, found.is_fenced) == (own + gap, is_fenced)
        told = damage_of("dr", forgotten, P, IDS, found)
        assert told is not None and told.copied_until == own + gap and f"offset {own + gap}" in told.text
    strangers: Any = OneLog([batch(at, 9) for at in range(50)])
    found = asyncio.run(damage._seen_logs(strangers, "dr", forgotten, {P: strangers.end}, {"orders": IDS}))[P]
    assert damage_of("dr", forgotten, P, IDS, found) == damage.Damage("", 0)


@pytest.mark.parametrize(("now", "left"), [("anew", 0), ("as-it-was", None)])
def test_of_a_translated_log_that_lost_records_nothing_is_left_or_it_is_unknown_how_much(
    monkeypatch: pytest.MonkeyPatch, now: str, left: int | None
) -> None:
    """In a topic that was created again, and in a log that is shorter than the copy."""

    async def contradicted(*_: Any) -> dict[TopicPartition, Exception]:
        return {P: TargetDivergedError("gone")}

    async def read_ids(*_: Any) -> dict[str, TopicIds]:
        return {P.topic: TopicIds("s", now)}

    monkeypatch.setattr(damage, "contradicted", contradicted)
    monkeypatch.setattr(damage, "read_ids", read_ids)
    row = MapRow(RowKey(P, 0), P.topic, ("s", "as-it-was"), 12, -1, (Run(0, 0, 12),))
    mapped = MappedTopics(frozenset({P}), copies={P: row})
    target: Any = None
    of = PromotedLink("dr", target, LinkTopics.of("orders"), True, None, mapped=mapped)
    found = asyncio.run(damage.find_damage(of, LinkControl(), [P], {P: 12}))
    assert found[P].copied_until == left

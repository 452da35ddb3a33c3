"""Which copies of a promoted link its target has lost since, without brokers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.structs import TopicPartition

from tolerant_client.mirror.life import lost_copies as module
from tolerant_client.mirror.life.lost_copies import LostCopies, lost_copies
from tolerant_client.mirror.state.control_record import Controls
from tolerant_client.mirror.state.link_control import GONE, LinkControl, TopicIds
from tolerant_client.mirror.state.map_rows import NO_MAP, MappedTopics
from tolerant_client.mirror.state.offset_map import MapRow, RowKey, Run
from tolerant_client.mirror.state.topic_filter import LinkTopics

P, Q, EMPTY = TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("clicks", 0)
OVER = LinkControl(
    is_promotion_begun=True,
    is_fenced=True,
    topics=LinkTopics.of(".*").to_json(),
    copied_until={P: 20, Q: 5, EMPTY: 0},
)
IDENTICAL = replace(
    OVER, producer_ids=(0,), begun={P: TopicIds("s", "t"), Q: TopicIds("s", "t"), EMPTY: TopicIds("c", "u")}
)
TRANSLATED = replace(OVER, map_id="m")


def rows(topic_id: str) -> MappedTopics:
    copies = {p: MapRow(RowKey(p, 0), p.topic, ("s", topic_id), 5, 0, (Run(0, 0, 5),)) for p in (P, Q)}
    return MappedTopics(frozenset({P, Q, EMPTY}), copies=copies)


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A target with topics of these ids, each with as many partitions as `there` says, and with controls of other links."""
    found = SimpleNamespace(ids={"orders": "t", "clicks": "u"}, there={"orders": [0, 1], "clicks": [0]}, links={})
    found.hidden, found.map_of_others, found.lost_map = {}, NO_MAP, None

    async def visible_topics(cluster: Any, names: list[str]) -> Any:
        return {name: cluster.there[name] for name in names if name in cluster.there}, cluster.hidden

    async def read_ids(_: None, __: Any, names: list[str]) -> dict[str, TopicIds]:
        return {name: TopicIds(target=found.ids[name]) for name in names}

    async def present_ids(cluster: Any, names: list[str]) -> dict[str, str]:
        return {name: cluster.ids[name] for name in names}

    async def read_controls(*_: Any) -> Controls:
        return Controls({"dr": IDENTICAL, **found.links})

    async def mapped_topics(*_: Any, **__: Any) -> MappedTopics:
        return found.map_of_others

    async def within_bound(_: Any, function: Any, *args: Any) -> Any:
        return await function(*args)

    for function in (visible_topics, present_ids, read_ids, read_controls, mapped_topics, within_bound):
        monkeypatch.setattr(module, function.__name__, function)
    return found


def lost(target: Any, control: LinkControl, mapped: MappedTopics = NO_MAP, source: Any = None) -> LostCopies:
    return asyncio.run(lost_copies(source, target, "dr", control, mapped, target.lost_map))


FENCED = replace(TRANSLATED, mapped={p: IDENTICAL.begun[p] for p in (P, Q)})  # whose map was deleted
BOTH = [(IDENTICAL, NO_MAP), (TRANSLATED, rows("t")), (FENCED, NO_MAP)]


@pytest.mark.parametrize(("control", "mapped"), BOTH)
def test_a_copy_whose_topic_was_deleted_is_lost_also_if_it_was_created_again(
    target: Any, control: LinkControl, mapped: MappedTopics
) -> None:
    assert lost(target, control, mapped) == LostCopies() and not LostCopies().texts()
    target.ids = {"orders": "another", "clicks": "another"}
    found = lost(target, control, mapped)
    assert found == LostCopies((), (P, Q)), "clicks was empty"
    (text,) = found.texts()
    assert text.startswith("orders-0 and 1 more partition: deleted and created again on the target, and the link was")
    assert "what was copied is on the source alone" in text
    target.there["orders"] = [0]  # and with fewer partitions
    assert lost(target, control, mapped) == LostCopies((Q,), (P,)), "of which the others are not there"
    del target.there["orders"]
    assert lost(target, control, mapped) == LostCopies((P, Q), ())
    assert lost(target, control, mapped).texts()[0].startswith("orders-0 and 1 more partition: not on the target any")
    del target.there["clicks"]
    assert lost(target, control, mapped) == LostCopies((P, Q), ()), "clicks was empty"
    target.hidden = {"orders": PermissionError()}
    assert lost(target, control, mapped) == LostCopies(), "whether it is there is unknown"


@pytest.mark.parametrize(("control", "mapped"), BOTH)
def test_what_another_link_has_begun_in_a_topic_that_was_created_again_is_no_loss(
    target: Any, control: LinkControl, mapped: MappedTopics
) -> None:
    target.ids["orders"] = "another"
    theirs = replace(IDENTICAL, begun={P: TopicIds("s", "another"), Q: TopicIds("s", "t")})
    target.links = {"x": theirs}
    assert lost(target, control, mapped) == LostCopies((), (Q,))
    target.links, target.map_of_others = {"x": TRANSLATED}, rows("another")
    assert lost(target, control, mapped) == LostCopies()


def test_a_copy_that_was_deleted_before_the_link_was_fenced_is_lost_as_well(target: Any) -> None:
    """The fence has found no end of it."""
    del target.there["orders"]
    for control, mapped in BOTH:
        control = replace(control, copied_until={EMPTY: 0})
        assert lost(target, control, mapped).deleted == (P, Q)
        half = replace(control, is_fenced=False, unfenced=frozenset({P}))
        assert lost(target, half, mapped).deleted == (P, Q), "a promotion that is not finished has ended the link, too"


def test_what_neither_cluster_had_when_the_link_was_promoted_is_no_loss(target: Any) -> None:
    del target.there["orders"]
    assert lost(target, replace(TRANSLATED, mapped={P: GONE}), rows("t")).deleted == (Q,)
    assert lost(target, replace(TRANSLATED, mapped={P: GONE, Q: GONE}), rows("t")) == LostCopies()


def test_what_a_failover_did_not_find_is_no_loss_once_the_source_says_that_it_has_it_no_more(target: Any) -> None:
    del target.there["orders"]

    async def cluster_id() -> str:
        return "A"

    source = SimpleNamespace(there={"orders": [1]}, hidden={}, ids={"orders": "s"}, cluster_id=cluster_id)
    anew = SimpleNamespace(there={"orders": [0, 1]}, hidden={}, ids={"orders": "another"}, cluster_id=cluster_id)
    for control, mapped in BOTH:
        control = replace(control, copied_until={EMPTY: 0}, source_cluster_id="A")
        assert lost(target, control, mapped, source) == LostCopies((Q,), retired=(P,))
        assert lost(target, control, mapped, anew) == LostCopies(retired=(P, Q)), "it has another topic now"
        for other in (
            replace(control, source_cluster_id="B"),
            replace(control, source_cluster_id=None),
            replace(control, copied_until={P: 20}),
            replace(control, copied_until={}),
            replace(control, is_fenced=False, unfenced=frozenset({P})),
        ):
            assert lost(target, other, mapped, source).deleted == (P, Q), other
        gone = control.with_gone([P], is_translated=not control.is_identical)
        assert lost(target, gone, mapped) == LostCopies((Q,)), "which a promotion writes down"
    source.hidden = {"orders": PermissionError()}
    assert lost(target, control, mapped, source).deleted == (P, Q), "whether it has it is unknown"
    source.hidden = {}
    target.there["orders"], target.ids["orders"] = [0, 1], "its producers'"
    for control, mapped in BOTH:
        control = replace(control, copied_until={EMPTY: 0}, source_cluster_id="A")
        assert lost(target, control, mapped, source) == LostCopies((), (Q,), retired=(P,))
        assert lost(target, control, mapped, anew) == LostCopies(retired=(P, Q))


def test_a_copy_that_had_only_filler_before_its_start_was_empty(target: Any) -> None:
    del target.there["orders"]
    for name in ("log_starts", "starts"):
        control = replace(IDENTICAL, copied={P: 20}, **{name: {P: 20, Q: 4}})
        assert lost(target, control).deleted == (Q,)
    position = replace(TRANSLATED, copied_until={P: 20, Q: 5})
    assert lost(target, position, rows("t")._replace(copies={})) == LostCopies(), "its map began there"


def test_what_the_source_has_without_a_record_after_a_copy_does_not_empty_the_copy(target: Any) -> None:
    """A promotion that was run again writes that down."""
    del target.there["orders"]
    assert lost(target, replace(IDENTICAL, empty_until={P: 23, Q: 9})).deleted == (P, Q)


def test_a_copy_whose_topic_was_created_again_before_a_failover_is_lost_though_it_ends_at_0(target: Any) -> None:
    target.ids["orders"] = "another"
    ended = replace(IDENTICAL, copied_until=dict.fromkeys((P, Q, EMPTY), 0), copied={P: 20, Q: 0, EMPTY: 0})
    assert lost(target, ended) == LostCopies((), (P,))


def test_what_is_not_known_is_not_called_lost(target: Any) -> None:
    target.ids["orders"] = "another"
    assert lost(target, replace(IDENTICAL, begun={})) == LostCopies(), "version 0.1 did not write the ids"
    target.ids["orders"] = ""  # brokers before 2.8
    assert lost(target, IDENTICAL) == LostCopies()
    target.ids["orders"] = "another"
    assert lost(target, replace(IDENTICAL, copied_until={})).created_again == (P, Q), "the record had no room for it"
    assert lost(target, replace(IDENTICAL, is_promotion_begun=False, is_fenced=False)) == LostCopies()


def test_where_the_map_is_lost_and_the_control_does_not_say_what_was_copied_it_is_unknown_not_nothing(
    target: Any,
) -> None:
    """An earlier version wrote no ids when it fenced the link."""
    assert lost(target, TRANSLATED) == LostCopies()
    target.lost_map = "deleted"
    found = lost(target, TRANSLATED)
    assert found == LostCopies(unknown=(P, Q)) and "is unknown: its offset map" in found.texts()[0]
    target.there["orders"] = [0]
    assert lost(target, TRANSLATED) == LostCopies((Q,), unknown=(P,))

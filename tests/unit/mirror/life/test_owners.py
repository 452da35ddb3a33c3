"""Whose partitions of a target are: a promotion writes to what is the link's own, and to nothing else."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import kafka.errors as Errors
import pytest
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import LedOffsets
from tolerant_client.cluster.cluster import EARLIEST, Cluster
from tolerant_client.mirror.engine.preflight import Others
from tolerant_client.mirror.life import owners as owners_module
from tolerant_client.mirror.life.owners import Evidence, Owners, find_owners, find_taken
from tolerant_client.mirror.state import carriers
from tolerant_client.mirror.state.carriers import Carried, Written, copied_logs, find_carried, find_written
from tolerant_client.mirror.state.link_control import LinkControl, TopicIds

P, ELSE = TopicPartition("orders", 0), TopicPartition("clicks", 0)
NOW = {"orders": TopicIds("", "now"), "clicks": TopicIds("", "now")}
ALONE = frozenset((P,))
BEGUN = LinkControl(producer_ids=(7,), begun={ELSE: NOW["clicks"]})  # remembers what it has begun: not P
OF_01 = LinkControl(producer_ids=(7,))  # remembers nothing
THEIRS, MATCHED = Others({"orders": "link X copies"}, taken=frozenset(("orders",))), Others({"orders": "X may copy"})


def owners(control: LinkControl, logs: Carried = Carried(), others: Others = Others(), **how: Any) -> Owners:
    how.setdefault("is_translated", False)
    return find_owners(control, [P], Evidence(logs, others, NOW, how.pop("mapped", ())), **how)


@pytest.mark.parametrize("others", [Others(), THEIRS])
def test_what_the_link_has_begun_or_its_log_shows_it_has_written_is_its_own_whatever_others_say(others: Others) -> None:
    for control, logs in (
        (LinkControl(begun={P: TopicIds("s", "now")}), Carried()),
        (LinkControl(begun={P: TopicIds()}), Carried(foreign=ALONE)),  # by brokers without ids
        (LinkControl(adopted={P: 5}), Carried(foreign=ALONE)),  # failback
        (BEGUN, Carried(ALONE)),
        (OF_01, Carried(ALONE)),
    ):
        assert owners(control, logs, others) == Owners(ALONE)


@pytest.mark.parametrize(
    ("control", "logs"), [(BEGUN, Carried()), (BEGUN, Carried(foreign=ALONE)), (OF_01, Carried(hidden=ALONE))]
)
def test_what_another_link_has_begun_is_left_to_it(control: LinkControl, logs: Carried) -> None:
    found = owners(control, logs, THEIRS)
    assert not found.own and found.left == {P: "link X copies"}
    assert found.texts("dr") == ("orders-0 on the target: not link dr's, and nothing was written there: link X copies",)


@pytest.mark.parametrize(
    "control",
    [
        LinkControl(begun={P: TopicIds("", "former")}),
        LinkControl(adopted={P: 5}, adopted_ids={P: TopicIds("", "former")}),
    ],
)
def test_a_topic_that_was_created_again_is_the_links_that_fills_it_now(control: LinkControl) -> None:
    assert owners(control, Carried(foreign=ALONE), THEIRS) == Owners(frozenset(), {P: "link X copies"})
    assert owners(control, Carried(foreign=ALONE)) == owners(control, others=MATCHED) == Owners()


def test_what_another_link_may_begin_proves_nothing_against_a_control_that_remembers_no_beginnings() -> None:
    assert owners(OF_01, others=MATCHED).own == ALONE
    assert not owners(BEGUN, others=MATCHED).own


def test_what_others_wrote_and_the_link_never_began_is_left_to_them() -> None:
    assert owners(BEGUN, Carried(foreign=ALONE)).of_strangers.keys() == ALONE
    assert owners(OF_01, Carried(foreign=ALONE)).of_strangers.keys() == ALONE
    assert owners(BEGUN, Carried(hidden=ALONE)).of_strangers.keys() == ALONE
    assert owners(OF_01, Carried(hidden=ALONE)).own == ALONE, "ends of transactions may hide what it has copied"


def test_an_empty_log_that_the_link_never_began_needs_no_fence() -> None:
    assert owners(BEGUN) == Owners()
    assert owners(OF_01).own == ALONE, "a process of version 0.1 would not say that it begins it"
    assert owners(BEGUN, Carried(unknown={P: "no leader"})).own == ALONE


def test_a_link_without_a_control_owns_only_topics_in_which_something_shows_that_it_wrote() -> None:
    """Its control was deleted, or it never ran there: then a log of others, or an empty one, is none of its own."""
    deleted = LinkControl()
    for logs in (Carried(foreign=ALONE), Carried(hidden=ALONE)):
        assert owners(deleted, logs).of_strangers.keys() == ALONE
    assert owners(deleted) == owners(deleted, others=MATCHED) == Owners()
    assert owners(deleted, Carried(ALONE), THEIRS).own == ALONE
    held = find_owners(
        deleted, [P, ELSE], Evidence(Carried(foreign=frozenset((P, ELSE))), held=ALONE), is_translated=False
    )
    assert held.own == ALONE and held.of_strangers.keys() == {ELSE}
    empty = TopicPartition(P.topic, 1)
    shown = find_owners(deleted, [empty, ELSE], Evidence(Carried(ALONE)), is_translated=False)
    assert shown == Owners(frozenset((empty,))), "a process that sleeps since it began may fill it"


@pytest.mark.parametrize(
    ("known", "found"), [({"": 3, "~1": 5, "~x": 6, "-gap-t-0": 7, "2": 8}, (3, 5)), ({}, ()), (None, (9,))]
)
def test_a_link_without_a_control_has_the_producer_ids_of_all_its_lives(
    monkeypatch: pytest.MonkeyPatch, known: dict[str, int] | None, found: tuple[int, ...]
) -> None:
    """Brokers before 3.0 list none (None): there a start's id counts."""
    listed = None if known is None else {f"tolerant-mirror-dr{suffix}": each for suffix, each in known.items()}
    monkeypatch.setattr(owners_module, "transactional_producers", AsyncMock(return_value=listed))
    monkeypatch.setattr(owners_module, "init_producer_id", AsyncMock(return_value=9))
    assert asyncio.run(owners_module._ids_of(cast(Cluster, None), "dr", LinkControl())) == found


def test_a_topic_that_is_refused_to_us_hides_no_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def headers(_: Any, wanted: Any) -> Any:
        if P in wanted:
            raise Errors.TopicAuthorizationFailedError("Fetch of orders-0 is not allowed to us")
        return dict.fromkeys(wanted, 1)

    monkeypatch.setattr(carriers, "read_headers", headers)
    read, unread = asyncio.run(carriers._read(cast(Cluster, None), {P: 1, ELSE: 2, TopicPartition("zoo", 0): 3}))
    assert read.keys() == {ELSE, TopicPartition("zoo", 0)} and "Fetch of orders-0 is not allowed" in unread[P]


def test_nothing_of_the_link_is_in_a_topic_that_was_made_anew_on_the_target() -> None:
    control = LinkControl(begun={P: TopicIds("s", "former")}, copied={P: 9})
    assert owners(control, Carried(foreign=ALONE)) == owners(control) == Owners()
    for ids, own in (({P: TopicIds("s", "former")}, False), ({P: TopicIds("s", "now")}, True), ({}, True)):
        prepared = LinkControl(adopted={P: 9}, adopted_ids=ids)
        for held in ((), (P,)):  # a mirror of its former life has claimed it
            found = find_owners(
                prepared, [P], Evidence(Carried(foreign=ALONE), ids=NOW, held=held), is_translated=False
            )
            assert found == (Owners(ALONE) if own else Owners())


def test_a_translated_link_leaves_another_links_topic_unless_its_map_names_it() -> None:
    assert owners(LinkControl(), is_translated=True).own == ALONE
    assert owners(LinkControl(), others=THEIRS, is_translated=True).of_links.keys() == ALONE
    assert owners(LinkControl(), others=THEIRS, is_translated=True, mapped=["orders"]).own == ALONE
    unknown = Others({"orders": "whether link X was promoted with it is unknown"}, unknown=frozenset(("orders",)))
    assert owners(LinkControl(), others=unknown, is_translated=True).own == ALONE, "a failover must not wait"


@pytest.mark.parametrize(
    ("control", "mapped", "asked"),
    [
        (LinkControl(begun={P: TopicIds("s", "now")}), (), set()),  # its own, whatever others say
        (LinkControl(begun={P: TopicIds("s", "former")}), (), {"orders"}),
        (LinkControl(adopted={P: 5}), (), set()),
        (BEGUN, (), {"orders"}),
        (OF_01, (), {"orders"}),
        (LinkControl(), ("orders",), set()),
    ],
)
def test_what_another_link_has_is_taken_and_what_it_may_begin_is_not(
    monkeypatch: pytest.MonkeyPatch, control: LinkControl, mapped: tuple[str, ...], asked: set[str]
) -> None:
    async def ids(*_: Any) -> Any:
        return NOW

    async def others(_: Any, link: str, names: Any, *, is_identical: bool) -> Others:
        assert names == asked and is_identical is not mapped_only
        return told

    monkeypatch.setattr(owners_module, "read_ids", ids)
    monkeypatch.setattr(owners_module, "look_for_others", others)
    for told in (THEIRS, MATCHED):
        mapped_only = bool(mapped)
        try:
            find_taken(cast(Cluster, None), "dr", control, [P], mapped, is_translated=mapped_only).send(None)
        except StopIteration as found:
            assert found.value == ({P: "link X copies"} if asked and told is THEIRS else {})


def test_the_last_batches_tell_whose_a_log_is_unless_ends_of_transactions_hide_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An own one, an application's, one of markers down to its start, and an empty one."""
    logs = [[(1, False), (7, False)], [(7, False), (1, False)], [(9, True), (9, True)], []]
    at = [TopicPartition("t", n) for n in range(4)]

    async def led(_: Any, wanted: Any) -> LedOffsets:
        return LedOffsets({p: 0 if when == EARLIEST else len(logs[p.partition]) for p, when in wanted.items()}, {})

    async def headers(_: Any, wanted: Any) -> Any:
        return {
            p: SimpleNamespace(
                producer_id=logs[p.partition][offset][0],
                is_control=logs[p.partition][offset][1],
                is_transactional=False,
                base_offset=offset,
            )
            for p, offset in wanted.items()
        }

    async def partitions() -> dict[str, list[int]]:
        return {"t": [0, 1, 2, 3]}

    monkeypatch.setattr(carriers, "list_led_offsets", led)
    monkeypatch.setattr(carriers, "read_headers", headers)
    monkeypatch.setattr(carriers, "can_describe_producers", lambda _: False)
    target = cast(Cluster, SimpleNamespace(partitions=partitions))
    found = asyncio.run(find_carried(target, (7,), ()))
    assert found == Carried(frozenset(at[:1]), foreign=frozenset(at[1:2]), hidden=frozenset(at[2:3]))
    assert asyncio.run(find_written(target, (7,), at)) == Written(frozenset(at[:2]), markers=frozenset(at[2:3]))
    known = {"a-copy-t-1": 7, "a-copy-t-2": 9, "a-copy-gone-0": 7, "a-copy-x": 1}
    monkeypatch.setattr(carriers, "transactional_producers", AsyncMock(side_effect=[known, {}, None]))
    assert [asyncio.run(copied_logs(target, "a-copy-")) for _ in range(3)] == [{*at[1:3]}, set(), set()]

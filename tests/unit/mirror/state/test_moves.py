"""Which topics were moved where, which are home, and which links undo that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from kafka.structs import TopicPartition

from support.moved_links import moved
from tolerant_client.mirror.life.failback_decision import begin_again, telling_of
from tolerant_client.mirror.state.link_control import LinkControl, MovedTopic, TopicIds
from tolerant_client.mirror.state.moves import (
    at_home,
    known_moves,
    last_moves,
    moved_topics,
    next_move_ms,
    undone,
    unsaid_moves,
)
from tolerant_client.mirror.state.topic_filter import LinkTopics

ORDERS, USERS = TopicPartition("orders", 0), TopicPartition("users", 0)


def test_a_topic_is_home_if_it_was_moved_there_after_its_last_move_away() -> None:
    back, both = moved("orders|users", 2), {"orders", "users"}
    again = moved("orders", 3, primary_since={"orders": MovedTopic(3), "users": MovedTopic(1)})
    of_c: dict[str, Any] = {"source_cluster_id": "c"}
    for into_source, into_target, home in (
        ({"there": moved("orders|users")}, {"back": back}, both),
        ({"there": moved("orders"), "twin": moved("orders|users")}, {"back": back}, both),
        ({"there": moved("orders|users"), "later": moved("orders", 3)}, {"back": back}, {"users"}),
        ({"there": again}, {"back": back}, {"users"}),  # the rest was left out when it was moved again
        ({"there": moved("orders|users", 3)}, {"back": back}, set()),
        ({"there": moved("orders", 2)}, {"back": moved("orders", 2)}, set()),
        ({"there": moved("orders|users")}, {"back": telling_of(back, ["users"])}, {"users"}),
        (
            {"there": moved("orders|users")},
            {"back": telling_of(back, both, {"users": TopicIds("", "new")})},
            {"orders"},
        ),
        # Prepared again, and for other topics: the moves have been.
        ({"there": replace(moved("orders|users"), is_promotion_begun=False)}, {"back": back}, both),
        ({"there": moved("orders")}, {"back": replace(moved("orders", 2), copied_until={})}, {"orders"}),
        ({"there": moved("orders")}, {"second": moved("orders", 2), "third": moved("orders", 4)}, {"orders"}),
        # Of a topic of which the source knows no move, the move from there counts: its copy was lost before the failover.
        ({}, {"back": back}, both),
        # A move from elsewhere takes nothing on from the source, unless it knew of the source's: in a ring of three clusters.
        ({}, {"upstream": moved("orders", 2, **of_c)}, set()),
        ({"there": moved("orders")}, {"upstream": moved("orders", 2, **of_c)}, set()),
        ({"there": moved("orders", 5)}, {"ring": moved("orders", 9, known_moves={"orders": 7}, **of_c)}, {"orders"}),
        ({"there": moved("orders", 8)}, {"ring": moved("orders", 9, known_moves={"orders": 7}, **of_c)}, set()),
        ({"there": moved("orders")}, {"upstream": moved("orders", 9, **of_c), "back": back}, both),
        # A failover that had no control did not learn where its link copied from.
        ({"there": moved("orders")}, {"back": moved("orders", 2, source_cluster_id=None)}, {"orders"}),
        # Version 0.1 did not write when it was.
        ({"there": moved("orders", primary_since={})}, {"back": moved("orders", 2)}, {"orders"}),
        ({"there": moved("orders")}, {"back": moved("orders", primary_since={})}, set()),
    ):
        assert at_home(into_source, into_target, "b").keys() == home


def test_what_was_moved_is_undone_by_a_later_move_of_that_topic_alone() -> None:
    late = frozenset({USERS})
    half = moved("orders", is_fenced=False, unfenced=late)
    assert unsaid_moves(half, ["users"], {}) == ["orders"]
    assert undone(half, {"back": moved("orders|users", 2)}) == {"orders": "back"}
    whole = replace(
        half, is_fenced=True, unfenced=frozenset(), copied_until={ORDERS: 1, USERS: 1}, target_cluster_id="b"
    )
    whole = replace(whole, primary_since={"orders": MovedTopic(1), "users": MovedTopic(3)})
    assert undone(whole, {"back": moved("orders|users", 2)}) == {"orders": "back"}
    # A failover that is finished once a topic was deleted has never moved it.
    never = moved("orders", 2, begun={USERS: TopicIds("s", "t")})
    assert undone(moved("orders|users"), {"back": never}) == {"orders": "back"}
    for control, back in (
        (whole, moved("orders|users", 0)),
        (whole, moved("orders", 2, source_cluster_id="c")),  # the end of a link that has nothing to do with it
        (
            replace(whole, is_promotion_begun=False),
            moved("orders", 2),
        ),  # it copies again: nothing of it is to be undone
        (replace(half, unfenced=frozenset()), moved("orders", 2)),  # crashed: which process still writes is unknown
    ):
        assert undone(control, {"back": back}) == {}


def test_each_topic_has_its_own_moment_and_those_without_room_one_of_their_own() -> None:
    both = {"copied_until": {ORDERS: 1, USERS: 1}, "topics": LinkTopics().to_json()}
    assert moved_topics(moved("orders", 3, **both)) == {"orders": 3}, "users is one that a failover never moved"
    assert moved_topics(moved("orders", 3, unsaid_since_ms=5, **both)) == {"orders": 3, "users": 5}
    assert moved_topics(moved("orders", primary_since={}, **both)) == {"orders": 0, "users": 0}, "version 0.1"
    assert moved_topics(moved("orders", primary_since={}, unsaid_since_ms=5, **both)) == {"orders": 5, "users": 5}
    least = moved("orders", primary_since={}, unsaid_since_ms=5, copied_until={}, begun={ORDERS: TopicIds()})
    assert moved_topics(least) == {"orders": 5}, "the target took no record with more"


def test_what_was_moved_stays_known_when_the_link_begins_again() -> None:
    for control, known in (
        (moved("orders|users", 3), {"orders": 3, "users": 3}),
        (moved("orders", primary_since={}), {"orders": 0}),
        (moved("orders", primary_since={}, unsaid_since_ms=5), {"orders": 5}),
    ):
        again = begin_again(control, "b", LinkTopics.of("users"), {})
        assert moved_topics(again) == known and again.unsaid_since_ms is None


def test_a_move_comes_after_all_that_its_cluster_and_its_links_know() -> None:
    assert next_move_ms([], 100) == next_move_ms([moved("orders")], 100) == 100
    assert next_move_ms([moved("orders"), LinkControl(known_moves={"orders": 200})], 100) == 201
    assert next_move_ms([moved("orders", 300), LinkControl(known_moves={"orders": 200})], 100) == 301
    assert next_move_ms([replace(moved("orders", 300), is_promotion_begun=False)], 100) == 301


def test_a_way_home_over_a_third_cluster_takes_on_what_the_link_to_there_knew() -> None:
    """A-B was promoted, B-C copies on, and C-A is failed over when B and C are lost; nothing was ever moved to C."""
    there = {"A-B": moved("orders", 5)}
    copies = LinkControl(
        producer_ids=(7,),
        source_cluster_id="b",
        topics=LinkTopics.of("orders").to_json(),
        known_moves=known_moves(there, ["orders"], str),
    )
    others = replace(copies, topics=LinkTopics.of("users").to_json())
    for into_c, home in (({"B-C": copies}, {"orders"}), ({"B-C": others}, set()), ({}, set())):
        back = moved("orders", 9, source_cluster_id="c", known_moves=known_moves(into_c, ["orders"], str))
        assert at_home(there, {"C-A": back}, "b").keys() == home


def test_a_link_undoes_the_last_moves_of_its_topics_to_its_source() -> None:
    links = {"a": moved("orders", 5), "b": moved("orders|users", 3), "copies": LinkControl()}
    assert last_moves(links) == {"orders": (5, "a"), "users": (3, "b")}
    assert known_moves(links, ["a.orders", "new"], lambda name: name.removeprefix("a.")) == {"a.orders": 5}
    control = LinkControl(
        source_cluster_id="b", known_moves={"orders": 5, "users": 5}, topics=LinkTopics.of("orders").to_json()
    )
    assert [control.brings_back("orders", "b", at) for at in (0, 5, 6)] == [True, True, False]
    assert control.brings_back("orders", None, 5)
    assert not control.brings_back("orders", "c", 5) and not control.brings_back("users", "b", 5)
    assert not LinkControl(source_cluster_id="b", topics=LinkTopics().to_json()).brings_back("orders", "b", 0)


@example(
    [(to, "orders", 0) for to in "BCA"] + [(to, "users", 0) for to in "CA"]
)  # C-A is prepared again without orders
@given(
    st.lists(st.tuples(st.sampled_from("ABC"), st.sampled_from(["orders", "users"]), st.integers(0, 9)), max_size=20)
)
def test_however_wrong_the_clocks_are_the_last_move_of_a_topic_is_known(moves: list[tuple[str, str, int]]) -> None:
    """Topics go around among three clusters; each link is prepared once its source is the primary, and then promoted."""
    into: dict[str, dict[str, LinkControl]] = {cluster: {} for cluster in "ABC"}
    primary = {"orders": "A", "users": "A"}
    for to, name, clock_ms in moves:
        source, link = primary[name], f"{primary[name]}-{to}"
        if source == to:
            continue
        former = into[to].get(link, LinkControl())
        seen = known_moves(into[source], [name], str)
        prepared = replace(
            begin_again(former, source, LinkTopics.of(name), {}), known_moves={**former.known_moves, **seen}
        )
        into[to][link] = prepared
        move = last_moves(into[source]).get(name)
        assert move is None or prepared.brings_back(name, source, move.since_ms), "its clients come along"
        now = moved(
            name, next_move_ms(into[to].values(), clock_ms), source_cluster_id=source, known_moves=prepared.known_moves
        )
        into[to][link] = replace(
            now, primary_since={**prepared.primary_since, **now.primary_since}, target_cluster_id=to
        )
        primary[name] = to
    for name, here in primary.items():
        for there in "ABC".replace(here, ""):
            both_know = all(name in last_moves(into[cluster]) for cluster in (here, there))
            if both_know:
                assert name in at_home(into[there], into[here], there)
            assert name not in at_home(into[here], into[there], here)

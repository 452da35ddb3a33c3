"""Which topics were moved where, which are home, and which links undo that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from kafka.structs import TopicPartition

from tolerant_client.mirror.life.failback_decision import telling_of
from tolerant_client.mirror.state.link_control import LinkControl, Primary, TopicIds
from tolerant_client.mirror.state.moves import at_home, last_moves, moved_until_ms, next_move_ms, undone
from tolerant_client.mirror.state.topic_filter import LinkTopics

ORDERS, USERS = TopicPartition("orders", 0), TopicPartition("users", 0)


def moved(names: str, at_ms: int = 1, **said: Any) -> LinkControl:
    """The control of a link that has moved these topics then."""
    known: dict[str, Any] = {
        "topics": LinkTopics.of(names).to_json(),
        "copied_until": {TopicPartition(name, 0): 1 for name in names.split("|")},
        "primary_since": dict.fromkeys(names.split("|"), Primary(at_ms, f"{at_ms}")),
        "producer_ids": (1,),
    }
    return LinkControl(**{"is_promotion_begun": True, "is_fenced": True, **known, **said})


def test_a_topic_is_home_if_it_was_moved_there_after_its_last_move_away() -> None:
    back, both = moved("orders|users", 2), {"orders", "users"}
    again = moved("orders", 3, primary_since={"orders": Primary(3), "users": Primary(1)})
    for into_source, into_target, home in (
        ({"there": moved("orders|users")}, {"back": back}, both),
        ({"there": moved("orders"), "twin": moved("orders|users")}, {"back": back}, both),
        ({"there": moved("orders|users"), "later": moved("orders", 3)}, {"back": back}, {"users"}),
        ({"there": again}, {"back": back}, {"users"}),  # the rest was left out when it was moved again
        ({"there": moved("orders|users", 3)}, {"back": back}, set()),
        ({"there": moved("orders", 2)}, {"back": back}, set()),
        ({"there": moved("orders|users")}, {"back": telling_of(back, ["users"])}, {"users"}),
        (
            {"there": moved("orders|users")},
            {"back": telling_of(back, both, {"users": TopicIds("", "new")})},
            {"orders"},
        ),
        # Prepared again, and for other topics: the moves have been.
        ({"there": replace(moved("orders"), is_promotion_begun=False)}, {"back": back}, {"orders"}),
        ({"there": moved("orders")}, {"back": replace(back, is_promotion_begun=False, copied_until={})}, {"orders"}),
        ({"there": moved("orders")}, {"second": moved("orders", 2), "third": moved("orders", 4)}, {"orders"}),
        ({"back": back}, {"there": moved("orders")}, set()),  # a move, which nobody has undone
        # The source tells of no move: another cluster, in a ring of three, or one that has forgotten.
        ({"there": moved("audit")}, {"back": back}, set()),
        ({}, {"back": back}, set()),
        # Version 0.1 did not write when it was.
        ({"there": moved("orders", primary_since={})}, {"back": back}, {"orders"}),
        ({"there": moved("orders")}, {"back": moved("orders", primary_since={})}, set()),
    ):
        assert at_home(into_source, into_target).keys() == home


def test_what_was_moved_is_undone_by_a_later_move_of_that_topic_alone() -> None:
    late = frozenset({USERS})
    half = moved("orders", is_fenced=False, unfenced=late)
    assert undone(half, {"back": moved("orders|users", 2)}) == {"orders": "back"}
    whole = replace(half, is_fenced=True, unfenced=frozenset(), copied_until={ORDERS: 1, USERS: 1})
    whole = replace(whole, primary_since={"orders": Primary(1), "users": Primary(3)})
    assert undone(whole, {"back": moved("orders|users", 2)}) == {"orders": "back"}
    # A failover that is finished once a topic was deleted has never moved it.
    never = replace(half, is_fenced=True, unfenced=frozenset(), begun={USERS: TopicIds("s", "t")})
    assert undone(moved("orders|users"), {"back": replace(never, primary_since={"orders": Primary(2)})}) == {
        "orders": "back"
    }
    for control, back in (
        (whole, moved("orders|users", 0)),
        (
            replace(whole, is_promotion_begun=False),
            moved("orders", 2),
        ),  # it copies again: nothing of it is to be undone
        (replace(half, unfenced=frozenset()), moved("orders", 2)),  # crashed: which process still writes is unknown
    ):
        assert undone(control, {"back": back}) == {}


def test_a_move_comes_after_all_that_its_cluster_and_its_links_know() -> None:
    assert next_move_ms([], 100) == next_move_ms([moved("orders")], 100) == 100
    assert next_move_ms([moved("orders"), LinkControl(undoes_until_ms=200)], 100) == 201
    assert next_move_ms([moved("orders", 300), LinkControl(undoes_until_ms=200)], 100) == 301
    assert next_move_ms([replace(moved("orders", 300), is_promotion_begun=False)], 100) == 301


def test_what_a_link_undoes_begins_with_the_last_move_to_its_source() -> None:
    links = {"a": moved("orders", 5), "b": moved("orders|users", 3), "copies": LinkControl()}
    assert last_moves(links) == {"orders": (5, "a"), "users": (3, "b")}
    assert moved_until_ms(links) == 5
    assert moved_until_ms({"old": moved("orders", primary_since={})}) == 0
    assert moved_until_ms({}) is moved_until_ms({"copies": LinkControl(undoes_until_ms=4)}) is None


def test_a_link_undoes_moves_to_its_own_source_alone() -> None:
    control = LinkControl(source_cluster_id="b", undoes_until_ms=5)
    assert [control.undoes("b", at) for at in (0, 5, 6)] == [True, True, False]
    assert control.undoes(None, 5) and not control.undoes("c", 5)
    assert not LinkControl(source_cluster_id="b").undoes("b", 0)


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
        until_ms = moved_until_ms(into[source])
        into[to][link] = replace(former, source_cluster_id=source, undoes_until_ms=until_ms)
        move = last_moves(into[source]).get(name)
        assert move is None or into[to][link].undoes(source, move.since_ms), "its clients come along"
        now = moved(name, next_move_ms(into[to].values(), clock_ms), source_cluster_id=source, undoes_until_ms=until_ms)
        into[to][link] = replace(now, primary_since={**former.primary_since, **now.primary_since})
        primary[name] = to
    for name, here in primary.items():
        for there in "ABC".replace(here, ""):
            both_know = all(name in last_moves(into[cluster]) for cluster in (here, there))
            assert (name in at_home(into[there], into[here])) == both_know
            assert name not in at_home(into[here], into[there])

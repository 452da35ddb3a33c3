"""Who may write which partition: the fold over the claims log, and many holders whose clocks and requests go wrong."""

from __future__ import annotations

import itertools
import json
import random
import time
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.net.selector import NetworkSelector
from kafka.structs import TopicPartition

from support.claims import holders_of
from tolerant_client.cluster.fetch import FetchedPartition
from tolerant_client.mirror.life.listing import listed
from tolerant_client.mirror.life.mirrors import WAITS, at_work, is_told, untold_reasons
from tolerant_client.mirror.state import claims_topic
from tolerant_client.mirror.state.claimant import Claimant
from tolerant_client.mirror.state.claims import LEASE_MS, MARGIN_MS, RENEW_MS, Claim, ClaimsLog
from tolerant_client.mirror.state.claims_record import (
    COPIER,
    MIRROR,
    WAITING_SHOWN,
    WHOLE_TOPIC,
    ClaimsRecord,
    Holder,
    Waiting,
    claimed_part,
    decode_claims,
    encode_claims,
)
from tolerant_client.mirror.state.claims_topic import Claims, Follower, boot_s, claimed_by
from tolerant_client.mirror.state.control_record import Controls
from tolerant_client.mirror.state.health import utc
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.records.record_batch import Record, encode_batch
from tolerant_client.state_json import LAST_MS

P = [TopicPartition("orders", n) for n in range(4)]


def holder(name: str, run: str = "run-1", **changes: object) -> Holder:
    return Holder(name, "dr", run, "m1", 812, 1_000, **changes)  # type: ignore[arg-type]  # fields by name


class Log:
    """The claims topic; whoever follows reads every record at once.

    `ms` is the clock of all holders, `broker_ms` that of the topic's leader.
    """

    def __init__(self, *claimants: Claimant) -> None:
        self.ms = self.broker_ms = 1_000_000
        self.end = 0
        self.claimants = list(claimants)

    def append(self, record: ClaimsRecord) -> None:
        for claimant in self.claimants:
            claimant.read(record, self.broker_ms, self.end)
        self.end += 1

    def say(self, claimant: Claimant) -> None:
        while claimant.is_due(self.ms / 1000):
            self.append(claimant.record(self.ms / 1000))

    def settle(self) -> None:
        while due := [c for c in self.claimants if c.is_due(self.ms / 1000)]:
            for claimant in due:
                self.append(claimant.record(self.ms / 1000))

    def held(self, claimant: Claimant) -> list[int]:
        return [p.partition for p in P if claimant.holds(p, self.ms / 1000)]


def test_a_throttled_holder_that_fell_silent_is_told_though_it_speaks_again() -> None:
    """What it had sent may still be appended (identical/unread.py)."""
    silent, releasing, later = Claimant(holder("a")), Claimant(holder("b")), Claimant(holder("c", "run-2"))
    unthrottled = Claimant(holder("d"))
    log = Log(silent, releasing, later, unthrottled)
    silent.want(P[:2])
    releasing.want(P[2:3])
    unthrottled.want(P[3:])
    log.settle()
    silent.is_held_up = releasing.is_held_up = True
    assert silent.is_due(log.ms / 1000), "it is said at once"
    log.settle()
    releasing.leave(P)
    log.say(releasing)
    later.want(P)
    while log.held(later) != [0, 1, 2, 3]:
        assert later.log.silent_ms(P[0]) == float("inf") and log.ms < 2_000_000
        log.ms += RENEW_MS
        log.broker_ms += RENEW_MS
        log.say(later)
    told = [later.log.silent_ms(p) for p in P]
    assert told[0] == told[1] >= LEASE_MS and told[0] < float("inf") and told[2:] == [float("inf")] * 2
    log.ms += RENEW_MS
    log.broker_ms += RENEW_MS
    log.say(later)
    assert later.log.silent_ms(P[0]) == told[0] + RENEW_MS
    its_mirror = holder("m", role=MIRROR)
    assert later.log.cut_off_of_run(its_mirror) == set(P[:2])
    silent.leave(P)
    silent.not_said()
    log.say(silent)
    assert later.log.silent_ms(P[0]) == told[0] + RENEW_MS
    assert later.log.cut_off_of_run(its_mirror) == set(P[:2]) and not later.log.cut_off_of_run(later.holder)


def test_what_the_processes_of_a_run_wait_for_is_known_to_its_mirror_while_they_are_heard_of() -> None:
    mirror, copier = Claimant(holder("m", role=MIRROR)), Claimant(holder("a"))
    other = Claimant(holder("b", "run-2"))
    log = Log(mirror, copier, other)
    wait = Waiting("old records come next", 5)
    mirror.waiting, copier.waiting, other.waiting = {P[3]: wait}, {P[0]: wait}, {P[1]: wait}
    copier.want(P[:1])
    other.want(P[1:])
    log.settle()
    assert mirror.log.waits_of_run(mirror.holder) == {P[0]: wait}
    copier.waiting = {}
    log.ms += RENEW_MS
    log.settle()
    assert not mirror.log.waits_of_run(mirror.holder)


def test_a_record_survives_its_encoding() -> None:
    waiting = {
        P[3]: Waiting("the target's broker refuses", 5),
        P[1]: Waiting("too large; raise it", 6, True, "raise it"),
    }
    record = ClaimsRecord(
        holder("a"),
        7,
        frozenset({P[0], P[1], P[3], TopicPartition("a-b", 2)}),
        frozenset({P[2]}),
        waiting,
        30,
        True,
        40,
        50,
        True,
    )
    value = encode_claims(record)
    assert b'"orders":[[0,1],[3,3]]' in value
    assert decode_claims(b"a", value) == record


def test_a_record_of_a_version_that_does_not_tell_what_is_blocked_is_read() -> None:
    record = ClaimsRecord(holder("a"), 7, waiting={P[1]: Waiting("no leader", 5)}, waiting_count=1, is_held_up=True)
    value = (
        encode_claims(record)
        .replace(b',"blocked":[]', b"")
        .replace(b',"remedies":{}', b"")
        .replace(b',"is_held_up":false', b"")
    )
    assert b"blocked" not in value and b"remedies" not in value and decode_claims(b"a", value) == record


@pytest.mark.parametrize(
    "value", [None, b"", b"{}", b"[]", b"null", b'{"version": 2}', b'{"version":1,"link":3}', b"\xff"]
)
def test_what_no_mirror_has_written_says_nothing(value: bytes | None) -> None:
    assert decode_claims(b"a", value) is None


@pytest.mark.parametrize("link", ["a b", "", "a" * 226, "a\n", "../a"])
def test_a_record_of_a_link_whose_name_no_link_can_have_says_nothing(link: str) -> None:
    record = ClaimsRecord(replace(holder("a"), link=link), 7)
    assert decode_claims(b"a", encode_claims(record)) is None


def test_ten_thousand_partitions_stay_small() -> None:
    record = ClaimsRecord(holder("a"), 1, frozenset(TopicPartition(f"t{t}", n) for t in range(10) for n in range(1000)))
    assert len(encode_claims(record)) < 1000


def test_what_nobody_holds_is_granted_to_the_first_that_takes_it() -> None:
    first, second = Claimant(holder("a")), Claimant(holder("b", "run-2"))
    log = Log(first, second)
    first.want(P[:2])
    second.want(P[1:3])
    one, two = first.record(log.ms / 1000), second.record(log.ms / 1000)  # neither has read the other's
    log.append(one)
    log.append(two)
    assert (log.held(first), log.held(second)) == ([0, 1], [2])
    assert second.blocked[P[1]].holder.id == "a"


def test_what_another_process_of_the_run_holds_is_handed_over_when_it_is_released() -> None:
    first, second = Claimant(holder("a")), Claimant(holder("b"))
    log = Log(first, second)
    first.want(P)
    log.settle()
    second.want(P[2:])
    log.settle()
    assert first.asked == set(P[2:]) and log.held(second) == []
    first.leave(P[2:])
    assert log.held(first) == [0, 1]
    log.settle()
    assert (log.held(first), log.held(second)) == ([0, 1], [2, 3])


def test_another_run_is_not_asked_to_hand_over() -> None:
    first, second = Claimant(holder("a")), Claimant(holder("b", "run-2"))
    log = Log(first, second)
    first.want(P)
    log.settle()
    second.want(P)
    log.settle()
    assert not first.asked and set(second.blocked) == set(P)


def test_a_holder_that_is_gone_is_followed_once_its_lease_is_over_in_the_log() -> None:
    first, second = Claimant(holder("a")), Claimant(holder("b", "run-2"))
    log = Log(first, second)
    first.want(P)
    log.settle()
    second.want(P)
    for _ in range(LEASE_MS // RENEW_MS):
        log.say(second)
        assert not log.held(second)
        log.ms += RENEW_MS
    log.say(second)
    log.say(second)
    assert (log.held(first), log.held(second)) == ([], [0, 1, 2, 3])
    log.say(first)  # wakes up, and is denied all
    log.say(first)
    assert log.held(first) == [] and set(first.blocked) == set(P)


def test_a_holder_that_nobody_followed_holds_again_what_it_held() -> None:
    claimant = Claimant(holder("a"))
    log = Log(claimant)
    claimant.want(P)
    log.settle()
    log.ms += LEASE_MS + 1
    assert log.held(claimant) == []
    log.settle()
    assert log.held(claimant) == [0, 1, 2, 3]


def test_a_holder_stops_before_its_lease_is_over_whatever_it_still_has_in_flight() -> None:
    claimant = Claimant(holder("a"))
    log = Log(claimant)
    claimant.want(P)
    log.settle()
    since = log.ms
    log.ms += RENEW_MS
    claimant.record(log.ms / 1000)  # nobody knows whether it arrived
    log.ms = since + LEASE_MS - MARGIN_MS - 1
    assert claimant.holds(P[0], log.ms / 1000)
    log.ms += 1
    assert not claimant.holds(P[0], log.ms / 1000)


def test_a_term_lasts_as_long_as_nobody_else_can_have_held_it() -> None:
    first, second = Claimant(holder("a")), Claimant(holder("b", "run-2"))
    log = Log(first, second)
    first.want(P)
    log.settle()
    term = first.term(P[0], log.ms / 1000)
    for _ in range(3):
        log.ms += RENEW_MS
        log.settle()
    assert term is not None and first.term(P[0], log.ms / 1000) == term
    log.ms += LEASE_MS + 1
    assert first.term(P[0], log.ms / 1000) is None
    log.settle()  # granted to it again: nobody wanted it, but it cannot know
    again = first.term(P[0], log.ms / 1000)
    assert again is not None and again != term
    first.leave(P)
    log.settle()
    first.want(P)
    log.settle()
    assert first.term(P[0], log.ms / 1000) not in (None, term, again)


@pytest.mark.parametrize(
    "value",
    [b'{"version": Infinity}', b"[" * 100_000, b"{}", b"null", b"\xff"],
    ids=["infinite", "deep", "empty", "null", "no text"],
)
def test_what_others_write_into_the_log_is_passed_over(value: bytes) -> None:
    assert decode_claims(b"x", value) is None


def test_a_record_that_names_more_partitions_than_a_cluster_has_is_passed_over() -> None:
    record = encode_claims(ClaimsRecord(holder("a"), 1, names=frozenset(P[:1])))
    assert decode_claims(b"a", record) is not None
    huge = json.dumps({**json.loads(record), "names": {"orders": [[0, 10**12]]}}).encode()
    assert decode_claims(b"a", huge) is None


@pytest.mark.parametrize(
    "change",
    [
        {"since_ms": 10**40},
        {"since_ms": -(10**18)},
        {"since_ms": 2**63 - 1},
        {"pid": 2**63},
        {"pid": "12"},
        {"sequence": 2**63},
        {"sequence": 1.0},
        {"waiting_count": -1},
        {"clock_ms": -1},
        {"read": 1.0},
        {"waiting": {"orders-0": ["why", 10**40]}},
        {"waiting": {"orders-0": ["why", -1]}},
        {"waiting": {"orders-0": "ab"}},
        {"names": {"orders": [[-2, 0]]}},
        {"names": {"orders": [[0, 2**31]]}},
        {"asks": {"\ud800": [[0, 0]]}},
        {"host": "\ud800"},
        {"is_end": 1},
    ],
)
def test_a_record_that_no_mirror_can_have_written_says_nothing(change: dict[str, object]) -> None:
    record = json.loads(encode_claims(ClaimsRecord(holder("a"), 1, names=frozenset(P[:1]))))
    assert decode_claims(b"a", json.dumps({**record, **change}).encode()) is None


def test_the_latest_time_that_a_record_may_have_can_be_told() -> None:
    found = decode_claims(b"a", encode_claims(ClaimsRecord(replace(holder("a"), since_ms=LAST_MS), 1)))
    assert found is not None
    assert "since 9998-12-31 23:59:59" in str(claimed_by(P[0], Claim(P[0], found.holder, LAST_MS, 0)))
    assert utc(found.holder.since_ms) == "9998-12-31 23:59:59 UTC"


def test_what_was_released_is_not_held_by_an_older_record_that_is_read_later() -> None:
    claimant = Claimant(holder("a"))
    log = Log(claimant)
    claimant.want(P)
    taken = claimant.record(log.ms / 1000)
    claimant.leave(P[:1])
    released = claimant.record(log.ms / 1000)
    claimant.want(P[:1])
    log.append(taken)
    assert log.held(claimant) == [1, 2, 3]
    log.append(released)
    assert log.held(claimant) == [1, 2, 3]
    log.settle()
    assert log.held(claimant) == [0, 1, 2, 3]


def test_a_record_that_comes_twice_or_late_says_nothing() -> None:
    log, one = ClaimsLog(), holder("a")
    first = ClaimsRecord(one, 1, names=frozenset(P[:1]))
    assert log.read(first, 0, 1) == {P[0]}
    assert log.read(first, 0, 1) is None
    assert log.read(ClaimsRecord(one, 2), 0, 1) == set()
    assert log.read(first, 0, 1) is None
    assert log.read(ClaimsRecord(holder("b"), 1, names=frozenset(P[:1])), 0, 1) == {P[0]}


@pytest.mark.parametrize("jump_ms", [-86_400_000, -600_000, -5_000, 0, 5_000, 600_000, 86_400_000])
def test_a_clock_of_a_broker_that_jumps_makes_no_lease_shorter_and_none_longer(jump_ms: int) -> None:
    first, second = Claimant(holder("a")), Claimant(holder("b", "run-2"))
    log = Log(first, second)
    first.want(P)
    log.settle()
    second.want(P)
    for _ in range(8):  # while the holder lives
        log.broker_ms += jump_ms
        log.settle()
        assert (log.held(first), log.held(second)) == ([0, 1, 2, 3], [])
        log.ms += RENEW_MS
    died_at = log.ms - RENEW_MS
    while not log.held(second):
        log.broker_ms -= jump_ms
        log.say(second)
        log.ms += 250
        assert log.ms - died_at <= LEASE_MS + 2 * RENEW_MS
    assert log.ms - died_at >= LEASE_MS


def test_records_of_a_version_that_told_no_clock_hold_claims_and_measure_nothing() -> None:
    value = json.loads(encode_claims(ClaimsRecord(holder("old"), 1, frozenset(P))))
    del value["clock_ms"], value["read"]
    old = decode_claims(b"old", json.dumps(value).encode())
    assert old is not None
    log, taker = ClaimsLog(), holder("new", "run-2")
    assert log.read(old, 0, 0) == set(P)
    for n in range(1, 5):
        assert log.read(replace(old, holder=holder("other"), sequence=n, names=frozenset()), 60_000 * n, n) == set()
    assert log.read(ClaimsRecord(taker, 1, frozenset(P), clock_ms=70_000, read=5), 300_000, 5) == set()
    assert log.read(ClaimsRecord(taker, 2, frozenset(P), clock_ms=70_000 + LEASE_MS, read=6), 300_000, 6) == set(P)


def test_silence_is_measured_from_where_the_last_record_had_been_read() -> None:
    log, taker = ClaimsLog(), holder("b", "run-2")
    log.read(ClaimsRecord(taker, 1, clock_ms=0), 0, 0)  # sent before the holder had said anything, whatever came first
    log.read(ClaimsRecord(holder("a"), 1, frozenset(P), clock_ms=0), 0, 1)
    log.read(ClaimsRecord(taker, 2, clock_ms=1_000, read=1), 0, 2)
    assert log.read(ClaimsRecord(taker, 3, frozenset(P), clock_ms=11_000, read=3), 0, 3) == set()
    assert log.read(ClaimsRecord(taker, 4, frozenset(P), clock_ms=20_999, read=4), 0, 4) == set()
    assert log.read(ClaimsRecord(taker, 5, frozenset(P), clock_ms=21_000, read=5), 0, 5) == set(P)


def test_a_clock_that_goes_back_and_a_place_that_was_not_read_measure_nothing() -> None:
    log, taker = ClaimsLog(), holder("b", "run-2")
    log.read(ClaimsRecord(taker, 1, clock_ms=50_000, read=99), 0, 0)
    log.read(ClaimsRecord(holder("a"), 1, frozenset(P), clock_ms=0), 0, 1)
    assert log.read(ClaimsRecord(taker, 2, frozenset(P), clock_ms=60_000, read=2), 0, 2) == set()
    assert log.read(ClaimsRecord(taker, 3, frozenset(P), clock_ms=1_000, read=3), 0, 3) == set()
    assert log.read(ClaimsRecord(taker, 4, frozenset(P), clock_ms=9_000, read=4), 0, 4) == set()
    assert log.read(ClaimsRecord(taker, 5, frozenset(P), clock_ms=11_000, read=5), 0, 5) == set(P)


# -- identical and translated -------------------------------------------------


def parts(link: str) -> list[TopicPartition]:
    return [claimed_part(p, link) for p in P]


@pytest.mark.parametrize("is_identical_first", [True, False])
def test_what_one_link_copies_identically_no_link_copies_translated_at_the_same_time(is_identical_first: bool) -> None:
    names = [P, parts("tr")] if is_identical_first else [parts("tr"), P]
    first, second = Claimant(holder("a")), Claimant(holder("b", "run-2"))
    log = Log(first, second)
    first.want(names[0][:2])
    second.want(names[1])
    one, two = first.record(log.ms / 1000), second.record(log.ms / 1000)  # neither has read the other's
    log.append(one)
    log.append(two)
    log.settle()
    now = log.ms / 1000
    assert [first.holds(name, now) for name in names[0]] == [True, True, False, False]
    assert [second.holds(name, now) for name in names[1]] == [False, False, True, True]
    assert {name: claim.name for name, claim in second.blocked.items()} == dict(zip(names[1][:2], names[0][:2]))
    first.leave(names[0])
    log.settle()
    assert all(second.holds(name, now) for name in names[1])


def test_several_links_with_translated_offsets_share_a_partition_and_an_identical_one_waits_for_all_of_them() -> None:
    links = [Claimant(holder("a")), Claimant(holder("b", "run-2"))]
    other, identical = Claimant(holder("c", "run-3")), Claimant(holder("d", "run-4"))
    log = Log(*links, other, identical)
    for claimant, link in zip(links, ("one", "two")):
        claimant.want(parts(link))
    log.settle()
    other.want(parts("one"))
    identical.want(P)
    log.settle()
    now = log.ms / 1000
    assert all(claimant.holds(claimed_part(p, link), now) for claimant, link in zip(links, ("one", "two")) for p in P)
    assert other.blocked.keys() == set(parts("one")) and identical.blocked.keys() == set(P)
    links[0].leave(parts("one"))
    log.settle()
    assert other.blocked.keys() == set() and log.held(identical) == []
    links[1].leave(parts("two"))
    other.leave(parts("one"))
    log.settle()
    assert log.held(identical) == [0, 1, 2, 3]


def test_a_whole_topic_is_claimed_by_mirrors_of_one_kind() -> None:
    whole = TopicPartition("orders", WHOLE_TOPIC)
    first, second = Claimant(holder("a", role=MIRROR)), Claimant(holder("b", "run-2", role=MIRROR))
    log = Log(first, second)
    first.want([whole])
    log.settle()
    second.want([claimed_part(whole, "tr")])
    log.settle()
    (claim,) = second.blocked.values()
    assert claim.holder.id == "a" and not second.holds(claimed_part(whole, "tr"), log.ms / 1000)
    told = str(claimed_by(claimed_part(whole, "tr"), claim))
    assert (
        "Topic orders of the target is written by a mirror of link dr on m1 (process 812) with identical offsets"
        in told
    )
    assert "a partition with identical offsets has no other writer. Stop that mirror, or leave the topic out" in told


def test_a_reader_that_comes_later_finds_the_same_once_it_knows_the_last_lease() -> None:
    first, second = Claimant(holder("a")), Claimant(holder("b", "run-2"))
    log = Log(first)
    first.want(P[:2])
    second.want(P)
    for _ in range(5):
        log.say(first)
        log.ms += RENEW_MS
    log.claimants.append(second)
    for _ in range(2):
        log.say(first)
        log.settle()
        log.ms += RENEW_MS
    assert (log.held(first), log.held(second)) == ([0, 1], [2, 3])


def test_a_mirror_that_ended_is_not_alive_and_one_that_waits_says_why() -> None:
    log = ClaimsLog()
    main, copier = holder("m", role=MIRROR), holder("c")
    waiting = {P[1]: Waiting("no leader", 900)}
    log.read(ClaimsRecord(main, 1), 5_000, 1)
    log.read(ClaimsRecord(copier, 1, names=frozenset(P), waiting=waiting, waiting_count=1), 6_000, 1)
    (run,) = log.runs(ClaimsLog())
    assert run.is_alive and run.seen_ms == 6_000 and run.waiting == waiting and run.pid == 812
    assert run.copies == frozenset(P)
    assert holders_of(log)[P[2]] == copier
    log.read(ClaimsRecord(main, 2, is_end=True), 7_000, 1)
    (run,) = log.runs(ClaimsLog())
    assert run.is_ended and not run.is_alive and log.has_ended("run-1")


def test_of_two_mirrors_of_a_link_the_one_that_holds_the_partitions_is_at_work_and_the_other_waits() -> None:
    """Whichever has spoken last: an operator ends the one that is named."""
    first, second = Claimant(holder("a", "run-1", role=MIRROR)), Claimant(holder("b", "run-2", role=MIRROR))
    log, reader = Log(first, second), ClaimsLog()
    log.claimants.append(SimpleNamespace(read=reader.read))  # type: ignore[arg-type]
    for claimant in (first, second):
        claimant.want(P)
        log.append(claimant.record(log.ms / 1000))
    before = ClaimsLog()
    (works, waits) = at_work(reader.runs(before))
    assert (works.run, works.holds, waits.run, waits.holds) == ("run-1", True, "run-2", False)
    silent = [replace(works, is_alive=False), waits]
    assert is_told([works, waits]) and is_told([waits]) and is_told([]) and is_told([replace(works, is_ended=True)])
    assert not is_told(silent) and not is_told([replace(works, is_alive=False)])
    (link,) = listed(Controls({"dr": LinkControl()}), [works, waits]).links
    assert link.mirror == works and link.waits == (waits,)
    assert link.state.startswith("runs on m1, process 812, ") and link.state.endswith(
        f"; another process on m1, process 812, {WAITS}"
    )


def test_what_needs_a_person_is_told_first_and_what_the_mirror_says_again_counts_once() -> None:
    waits = {TopicPartition("orders", n): Waiting("no leader", n) for n in range(30)}
    stuck = {TopicPartition("stuck", 0): Waiting("it is no copy", 99, is_blocked=True)}
    found = []
    for name, role in (("m", MIRROR), ("c", COPIER)):
        claimant = Claimant(holder(name, role=role))
        claimant.waiting = {**waits, **stuck}
        found.append(decode_claims(name.encode(), encode_claims(claimant.record(1.0))))
    log = ClaimsLog()
    for offset, record in enumerate(found):
        assert record is not None and record.waiting.keys() >= stuck.keys() and len(record.waiting) == WAITING_SHOWN
        log.read(record, 5_000, offset)
    (run,) = log.runs(ClaimsLog())
    assert run.waiting_count == 31 and len(run.waiting) == WAITING_SHOWN
    (reason,) = untold_reasons([run])
    assert "11 more partitions stand still" in reason.text


def test_the_log_says_which_partitions_copiers_of_a_link_have_claimed_with_identical_offsets() -> None:
    log = ClaimsLog()
    for at, (who, names) in enumerate(
        (
            (holder("mirror", role=MIRROR), {TopicPartition("orders", WHOLE_TOPIC)}),
            (holder("copier"), {P[0], P[1]}),
            (holder("late", run="run-2"), {P[1], P[2], claimed_part(P[3], "dr")}),
            (replace(holder("other"), link="else"), {TopicPartition("clicks", 0)}),
        )
    ):
        log.read(ClaimsRecord(who, 1, frozenset(names)), 1_000, at)
    assert log.copied_by("dr") == set(P[:3])
    log.read(ClaimsRecord(holder("copier"), 2), 1_001, 4)
    assert log.copied_by("dr") == {P[2]} and log.copied_by("none") == frozenset()


def test_a_copier_of_a_run_that_has_ended_releases_all_and_takes_nothing_more() -> None:
    main, copier = Claimant(holder("m", role=MIRROR)), Claimant(holder("c"))
    log = Log(main, copier)
    main.want([TopicPartition("orders", -1)])
    copier.want(P)
    log.settle()
    assert log.held(copier) == [0, 1, 2, 3] and not copier.asked
    main.end()
    log.settle()
    assert copier.asked == set(P)
    copier.leave(P)
    copier.want(P)  # Spark plans one micro-batch more
    log.settle()
    log.ms += LEASE_MS
    log.settle()
    assert not log.held(copier) and P[0] not in holders_of(copier.log)
    log.append(ClaimsRecord(holder("n", role=MIRROR), 1))  # a link of a service that was promoted, and is started again
    log.settle()
    assert log.held(copier) == [0, 1, 2, 3]


@pytest.mark.parametrize("is_mirror_last", [False, True])
def test_of_two_who_speak_of_a_partition_it_is_believed_who_calls_for_a_person(is_mirror_last: bool) -> None:
    waits, stuck = Waiting("no leader", 5), Waiting("the source has no such topic any more", 9, is_blocked=True)
    for by_mirror, by_copier, told in (
        (stuck, waits, stuck),
        (waits, stuck, stuck),
        (waits, Waiting("its own", 7), waits),
    ):
        log = ClaimsLog()
        records = [
            ClaimsRecord(holder("m", role=MIRROR), 1, waiting={P[0]: by_mirror}, waiting_count=1),
            ClaimsRecord(holder("c", role=COPIER), 1, waiting={P[0]: by_copier}, waiting_count=1),
        ]
        for offset, record in enumerate(records if not is_mirror_last else reversed(records)):
            log.read(record, 5_000, offset)
        (run,) = log.runs(ClaimsLog())
        assert run.waiting == {P[0]: told}


def test_alive_is_a_mirror_that_renews_between_two_looks_whatever_the_clocks_say() -> None:
    before, now = ClaimsLog(), ClaimsLog()
    silent, renews, came = holder("a"), holder("b", "run-2"), holder("c", "run-3")
    in_an_hour = 3_600_000 + int(time.time() * 1000)  # the broker's clock is before ours: no age is negative
    for log in (before, now):
        log.read(ClaimsRecord(silent, 7, waiting={P[0]: Waiting("no leader", 900)}, waiting_count=1), in_an_hour, 1)
        log.read(ClaimsRecord(renews, 7), in_an_hour, 1)
    assert not any(run.is_alive for run in now.runs(before)) and not any(run.is_alive for run in now.runs(now))
    now.read(ClaimsRecord(renews, 8), in_an_hour - 60_000, 2)  # a leader whose clock is set back
    now.read(ClaimsRecord(came, 1), in_an_hour - 60_000, 2)
    found = {run.run: run for run in now.runs(before)}
    assert {run: each.is_alive for run, each in found.items()} == {"run-1": False, "run-2": True, "run-3": True}
    assert not found["run-1"].waiting and found["run-1"].waiting_count == 0
    assert not any(run.is_alive for run in before.runs(now))  # the looks exchanged


def test_what_a_holder_said_in_the_past_is_no_sign_of_its_life_in_however_many_pieces_the_log_is_read() -> None:
    net = NetworkSelector()
    target: Any = SimpleNamespace(net=net, guard=lambda may_send: None)
    claims = Claims(target, holder("b", "run-2", role=MIRROR), lambda *_: None, lambda: None)
    claims.want(P)
    claims._is_current = True
    dead = (ClaimsRecord(holder("a"), n, names=frozenset(P)) for n in itertools.count(1))
    offsets = itertools.count()

    def haunt(append_ms: int) -> None:
        claims.claimant.read(next(dead), append_ms, next(offsets))

    def say() -> None:
        claims.claimant.read(claims.claimant.record(boot_s()), 13_000, next(offsets))

    for append_ms in range(1_000, 13_000, RENEW_MS):  # one piece of the log each
        haunt(append_ms)
        assert not claims.rivals()
    say()
    assert set(claims.claimant.blocked) == set(P) and not claims.rivals()
    haunt(13_000 - 600_000)  # the broker's clock is set back, and it lives
    assert set(claims.rivals()) == set(P)
    claims.claimant._until = boot_s()  # it is frozen for longer than its lease
    assert not claims.rivals()
    haunt(13_200)
    say()
    assert not claims.rivals()
    net.close()


@pytest.mark.parametrize(("turn_s", "starts_again"), [(-1.0, False), (-1.0, True), (60.0, False)])
def test_the_event_loop_turns_between_the_claims_of_a_response_and_who_starts_again_reads_none_of_the_former_log(
    turn_s: float, starts_again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start reads an hour of claims, 4 MB at a time, beside copiers that have to renew theirs.

    But whose loop turns seldom must keep up with the renewals of many: those that take no time are read in one turn.
    """
    monkeypatch.setattr(claims_topic, "_TURN_S", turn_s)
    net = NetworkSelector()
    data = b"".join(
        encode_batch(
            [Record(n, 1, b"a", encode_claims(ClaimsRecord(holder("a"), n + 1)))], base_offset=n, log_append_time=1
        )
        for n in range(5)
    )
    read: list[int] = []
    turns: list[int] = []

    async def fetch(*_: Any, **__: Any) -> FetchedPartition:
        return FetchedPartition(TopicPartition("claims", 0), 0, 5, 5, 0, (), memoryview(data))

    topic: Any = SimpleNamespace(cluster=SimpleNamespace(net=net), fetch=fetch)
    log: Any = SimpleNamespace(read=lambda record, *_: read.append(record.sequence))
    follower = Follower(topic, log)
    follower.position = 0

    async def beside() -> None:
        for _ in range(3):
            turns.append(len(read))
            await net.sleep(0)
        if starts_again:
            follower.position = -1

    async def run() -> None:
        net.call_soon(beside)
        assert await follower.follow(0)

    net.run(run)
    net.close()
    assert len(set(turns)) == (3 if turn_s < 0 else 1)
    assert (follower.position, len(read) == 5) == ((-1, False) if starts_again else (5, True))


def test_a_refusal_names_the_topic_of_the_target_whatever_part_of_it_is_claimed() -> None:
    for name in (claimed_part(P[2], "dr"), P[2]):
        told = str(claimed_by(name, Claim(name, holder("a"), 1_000, 0)))
        assert (
            "Partition orders-2 of the target is written by a mirror of link dr on m1 (process 812), since 1970" in told
        )
        assert "and has only one writer. Stop that mirror" in told
    whole = claimed_part(TopicPartition("orders", -1), "dr")
    assert "Topic orders of the target" in str(claimed_by(whole, Claim(whole, holder("a"), 0, 0)))
    told = str(claimed_by(P[2], Claim(claimed_part(P[2], "tr"), holder("a"), 1_000, 0)))
    assert "(process 812) with translated offsets, since" in told and "has no other writer" in told


# -- many holders, whose clocks and requests go wrong -------------------------


@dataclass
class Simulated:
    """A process with a clock of its own, which may stand still with the process; its requests take their time."""

    claimant: Claimant
    offset: float
    rate: float
    position: int = 0
    frozen_until: float = 0.0
    reads_at: float = 0.0
    says_at: float = 0.0

    def now(self, real: float) -> float:
        return self.offset + self.rate * real


@pytest.mark.parametrize("seed", range(30))
def test_no_partition_ever_has_two_writers_and_none_that_dies_keeps_it(seed: int) -> None:
    """But for links with translated offsets, of which each has one; whatever clocks, processes and requests do."""
    chance = random.Random(seed)
    records: list[tuple[ClaimsRecord, int]] = []
    arriving: list[tuple[float, ClaimsRecord]] = []
    processes: list[Simulated] = []
    broker = 1_000_000.0  # its clock at real time 0
    kinds = {"run-1": P, "run-2": P, "run-3": parts("one"), "run-4": parts("two")}
    owned = [0, 0, 0]  # identically, and by either link with translated offsets
    real = 0.0
    names = iter(range(10_000))

    def start(run: str) -> Simulated:
        who = holder(f"h{next(names)}", run)
        return Simulated(
            Claimant(who), chance.uniform(0, 1e6), chance.uniform(0.995, 1.005), says_at=real, reads_at=real
        )

    processes.extend(start(run) for run in ("run-1", *kinds))
    while real < 240:
        real += chance.uniform(0.0, 0.1)
        if chance.random() < 0.01:  # its clock is set, or another broker leads, whose clock is another one
            broker += chance.choice([-600_000, -60_000, -5_000, 5_000, 60_000, 600_000])
        if chance.random() < 0.002:
            # One is killed, another one comes.
            processes[chance.randrange(len(processes))] = start(chance.choice(["run-1", *kinds]))
        for at, record in sorted(arriving, key=lambda item: item[0]):
            if at <= real:
                arriving.remove((at, record))
                records.append((record, int(broker + 1000 * real)))
        for process in processes:
            claimant, now = process.claimant, process.now(real)
            if real < process.frozen_until:
                continue
            if chance.random() < 0.003:
                process.frozen_until = real + chance.choice([0.5, 3, 8, 12, 30])
                continue
            if chance.random() < 0.02:
                claimant.want(chance.sample(kinds[claimant.holder.run], chance.randint(1, 4)))
            if chance.random() < 0.01:
                claimant.leave(chance.sample(kinds[claimant.holder.run], chance.randint(1, 4)))
            if chance.random() < 0.5:
                claimant.leave(claimant.asked)
            if process.says_at <= real and claimant.is_due(now):
                record = claimant.record(now)
                process.says_at = real + chance.choice([0.01, 0.05, 0.5])
                delay = chance.choice([0.001, 0.01, 0.1, 2.0, 9.0, 25.0]) if chance.random() < 0.1 else 0.01
                for _ in range(chance.choice([0, 1, 2]) if chance.random() < 0.2 else 1):
                    arriving.append((real + delay * chance.uniform(0.5, 2), record))
            if process.reads_at <= real:
                process.reads_at = real + (chance.uniform(0, 5) if chance.random() < 0.02 else 0.005)
                for offset, (record, append_ms) in enumerate(records[process.position :], process.position):
                    claimant.read(record, append_ms, offset)
                process.position = len(records)
        for partition in P:
            claims = [partition, claimed_part(partition, "one"), claimed_part(partition, "two")]
            alone, one, two = [[p for p in processes if p.claimant.holds(c, p.now(real))] for c in claims]
            assert max(len(alone), len(one), len(two)) < 2, f"{partition} at {real:.2f} s"
            assert not (alone and (one or two)), f"{partition} at {real:.2f} s"
            owned = [count + len(writers) for count, writers in zip(owned, (alone, one, two))]
    assert owned[0] and any(owned[1:])
    heir = Claimant(holder("heir", "run-9"))  # all the others are killed
    heir.want(P)
    now, end = real, len(records)
    for offset, (record, append_ms) in enumerate(records):
        heir.read(record, append_ms, offset)
    while not all(heir.holds(p, now) for p in P):
        if heir.is_due(now):
            heir.read(heir.record(now), int(broker + chance.uniform(-600_000, 600_000)), end)
            end += 1
        now += 0.25
        assert now - real <= (LEASE_MS + RENEW_MS) / 1000 + 0.5

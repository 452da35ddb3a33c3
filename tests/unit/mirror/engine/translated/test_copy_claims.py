"""Links that begin the same log at once: every order of their steps, with deaths, freezes and starts, leaves each record there once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import kafka.errors as Errors
import pytest
from kafka.structs import TopicPartition

from tolerant_client.mirror.engine.translated.copy_claims import CopyClaims
from tolerant_client.mirror.state.claimant import Claimant
from tolerant_client.mirror.state.claims import Claim
from tolerant_client.mirror.state.claims_record import Holder, claimed_part

P = TopicPartition("orders", 0)
FIRST = claimed_part(P, "")


# -- the laws, in every order of steps ------------------------------------------


class Link(NamedTuple):
    """`at`: what it does next; `row`: its newest transaction, as its map has it; `is_frozen`: no step, but its requests arrive."""

    at: str = "want"
    row: str = ""  # "", "open", "committing" (decided, without marker), "committed"
    is_frozen: bool = False


class State(NamedTuple):
    links: tuple[Link, ...]
    holder: int | None = None  # as the claims log says
    deaths: int = 0


def steps(state: State, *, has_claim: bool, sees_undecided: bool, checks_again: bool = True) -> Iterator[State]:
    """What may happen next.  A link that is frozen or dead loses its claim at any time."""
    links, holder, deaths = state

    def with_link(n: int, link: Link, holder: int | None = holder, deaths: int = deaths) -> State:
        return State((*links[:n], link, *links[n + 1 :]), holder, deaths)

    for n, link in enumerate(links):
        is_ours = holder == n
        if link.row == "committing":  # the coordinator writes the markers, whoever lives
            yield with_link(n, link._replace(row="committed"))
        if link.row == "open" and link.at not in ("check", "commit") or link.row == "open" and link.is_frozen:
            yield with_link(n, link._replace(row=""))  # it aborts after a time, or the next start does
        if is_ours and (link.is_frozen or link.at == "dead"):
            yield with_link(n, link, None)
        if link.at == "dead":
            if (
                link.row != "committing" and not is_ours
            ):  # InitProducerId waits for the end of a transaction, and aborts an open one
                yield with_link(n, Link("done", link.row) if link.row == "committed" else Link())
            continue
        if link.at in ("done", "refused"):
            continue
        if deaths:
            yield with_link(n, link._replace(at="dead", is_frozen=False), deaths=deaths - 1)
            yield with_link(n, link._replace(is_frozen=not link.is_frozen), deaths=deaths - (not link.is_frozen))
        elif link.is_frozen:
            yield with_link(n, link._replace(is_frozen=False))
        if link.is_frozen:
            continue
        others = [other.row for m, other in enumerate(links) if m != n]
        if link.at == "want":
            if not has_claim:
                yield with_link(n, link._replace(at="read"))
            elif holder is None:
                yield with_link(n, link._replace(at="read"), n)
        elif link.at == "read":
            if "committed" in others:
                yield with_link(n, link._replace(at="refused"), None if is_ours else holder)
            elif sees_undecided and {"open", "committing"} & set(others):
                yield with_link(n, link._replace(at="want"), None if is_ours else holder)
            else:
                yield with_link(n, link._replace(at="write"))
        elif link.at == "write":
            yield with_link(n, link._replace(at="check", row="open"))
        elif link.at == "check":
            if is_ours or not has_claim or not checks_again:
                yield with_link(n, link._replace(at="commit"))
            else:  # forgotten: its next takeover aborts it
                yield with_link(n, link._replace(at="want", row=""))
        elif link.at == "commit":
            # The coordinator may have aborted it meanwhile.  The response may be lost: it leaves its claim before the markers are there.
            row = "committing" if link.row == "open" else ""
            yield with_link(
                n, link._replace(at="over" if row else "want", row=row), holder if row or not is_ours else None
            )
            yield with_link(n, link._replace(at="dead", row=row), None if is_ours else holder)
        elif link.at == "over" and link.row == "committed":
            yield with_link(n, link._replace(at="done"), None if is_ours else holder)


def explored(links: int, deaths: int, **laws: bool) -> dict[State, set[State]]:
    start = State((Link(),) * links, None, deaths)
    found: dict[State, set[State]] = {}
    waiting = deque([start])
    while waiting:
        state = waiting.popleft()
        if state not in found:
            found[state] = set(steps(state, **laws))
            waiting.extend(found[state])
    return found


def copies(state: State) -> int:
    return sum(link.row in ("committing", "committed") for link in state.links)


@pytest.mark.parametrize(("links", "deaths"), [(2, 3), (3, 1)])
def test_no_order_of_steps_has_a_record_twice_and_none_waits_for_ever(links: int, deaths: int) -> None:
    found = explored(links, deaths, has_claim=True, sees_undecided=True)
    assert len(found) > 400 and max(map(copies, found)) == 1
    before: dict[State, set[State]] = {}
    for state, after in found.items():
        for one in after:
            before.setdefault(one, set()).add(state)
    ends = {s for s in found if copies(s) == 1 and all(link.at in ("done", "refused") for link in s.links)}
    reach, waiting = set(ends), deque(ends)
    while waiting:
        for state in before.get(waiting.popleft(), set()) - reach:
            reach.add(state)
            waiting.append(state)
    assert reach == found.keys(), "from everywhere one copies, and the others are refused"


@pytest.mark.parametrize("left_out", ["has_claim", "sees_undecided", "checks_again"])
def test_without_any_of_the_laws_there_is_an_order_that_has_it_twice(left_out: str) -> None:
    laws = {"has_claim": True, "sees_undecided": True, "checks_again": True, left_out: False}
    assert max(map(copies, explored(2, 2, **laws))) == 2


# -- the claims of one copy -------------------------------------------------------


class Rig:
    """A link's claims, granted as soon as nobody else names them."""

    def __init__(self) -> None:
        self.log: dict[TopicPartition, Holder] = {}
        self.said: list[tuple[str, TopicPartition]] = []
        self.terms = {claimed_part(P, "dr"): 1}
        log = SimpleNamespace(claimed_by=lambda name, but: self.log.get(name))
        self.claimant = SimpleNamespace(holder=SimpleNamespace(id="us"), log=log)
        link: Any = SimpleNamespace(name="dr", claims=self, tasks=self)
        self.claims = CopyClaims(link, P)

    def want(self, names: list[TopicPartition]) -> None:
        self.said += [("want", name) for name in names]
        self.terms |= {name: 5 for name in names if name not in self.log}

    def leave(self, names: list[TopicPartition]) -> None:
        self.said += [("leave", name) for name in names]
        for name in names:
            self.terms.pop(name, None)

    def holds(self, name: TopicPartition) -> bool:
        return name in self.terms

    def term(self, name: TopicPartition) -> int | None:
        return self.terms.get(name)

    async def until(self, is_so: Any) -> None:
        assert is_so()


def test_the_first_records_need_the_claim_that_all_links_share_in_one_term_and_later_ones_do_not() -> None:
    rig = Rig()
    rig.claims.begin()
    asyncio.run(rig.claims.take_first(lambda: False))
    rig.claims.require()
    rig.terms[FIRST] = 6  # another link may have had it meanwhile
    with pytest.raises(Errors.NotLeaderForPartitionError):
        rig.claims.require()
    rig.claims.leave_first()
    assert rig.claims.is_first and rig.said == [("want", FIRST), ("leave", FIRST)]
    rig.claims.require()  # as for a row that only says where it begins
    asyncio.run(rig.claims.take_first(lambda: False))
    rig.claims.leave_first(has_copied=True)
    assert not rig.claims.is_first
    for _ in range(3):  # transactions without it
        rig.claims.leave_first(has_copied=True)
    rig.claims.require()
    assert len(rig.said) == 4, "a later batch says nothing"
    rig.terms.clear()
    with pytest.raises(Errors.NotLeaderForPartitionError):
        rig.claims.require()


def test_who_waits_for_it_says_for_whom() -> None:
    rig = Rig()
    rig.log[FIRST] = Holder("a", "eu", "run", "m1", 7, 0)
    rig.claims.begin()
    with pytest.raises(
        Errors.OffsetNotAvailableError, match="a mirror of link eu on m1 .* copies its first records there"
    ):
        asyncio.run(rig.claims.take_first(lambda: True))
    rig.claims.leave_first()
    assert rig.said[-1] == ("leave", FIRST) and "link eu" in rig.claims.waits_for
    rig.claims.is_first = False
    assert rig.claims.waits_for == "", "what others do is nothing to it"


def test_the_claim_has_one_holder_and_none_beside_an_identical_copy() -> None:
    first, second, identical = (Claimant(Holder(n, n, n, "m1", 1, 0)) for n in "abc")
    names = (FIRST, FIRST, P)

    def say(claimant: Claimant, offset: int) -> None:
        record = claimant.record(offset)
        for reader in (first, second, identical):
            reader.read(record, offset, offset)

    for offset, (claimant, name) in enumerate(zip((first, second, identical), names)):
        claimant.want([name])
        say(claimant, offset)
    assert [c.holds(name, 3.0) for c, name in zip((first, second, identical), names)] == [True, False, False]
    assert second.log.claimed_by(FIRST, "b") == first.holder and first.log.claimed_by(FIRST, "a") is None
    first.leave([FIRST])
    say(first, 4)
    say(second, 5)
    assert second.holds(FIRST, 5.0) and isinstance(identical.blocked[P], Claim)

"""What of an old source's log is proved to be a copy, what is counted as lost, and what may be deleted."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from kafka.structs import TopicPartition
from msgspec.structs import replace as replace_struct

from support.moved_links import OURS, moved
from tolerant_client.cluster.cluster import EARLIEST, READ_COMMITTED
from tolerant_client.errors import OptionError
from tolerant_client.mirror.batches.divergence import LogSlice
from tolerant_client.mirror.engine.circles import failback_command, had_topics, topics_option
from tolerant_client.mirror.engine.preflight import Others
from tolerant_client.mirror.life import failback, failback_links, shared_log, taken_topics
from tolerant_client.mirror.life.failback_blockers import (
    blockers,
    home_texts,
    left_alone,
    overtaken,
    strangers,
    unmoved_texts,
    untold,
)
from tolerant_client.mirror.life.failback_decision import (
    Decision,
    begin_again,
    name_beside,
    telling_of,
    topics_to_bring_back,
)
from tolerant_client.mirror.life.owners import Evidence
from tolerant_client.mirror.life.shared_log import SharedLog, compare_logs, unshared_logs, with_losses
from tolerant_client.mirror.state.carriers import Carried
from tolerant_client.mirror.state.control_record import Controls, decode_control, encode_control
from tolerant_client.mirror.state.link_control import LinkControl, MovedTopic, TopicIds
from tolerant_client.mirror.state.moves import at_home, copied_topics, unsaid_moves
from tolerant_client.mirror.state.replication_policy import (
    DefaultReplicationPolicy,
    IdentityReplicationPolicy,
    TopicNames,
)
from tolerant_client.mirror.state.topic_filter import LinkTopics, TopicFilter
from tolerant_client.records.record_batch import Record

PLACE = TopicPartition("orders", 0)
CLUSTER: Any = SimpleNamespace(
    file_options="", bootstrap_servers="b:1", manager=SimpleNamespace(config={"security_protocol": "PLAINTEXT"})
)


class Log:
    """A cluster with one partition."""

    def __init__(
        self, start: int, end: int, holes: range = range(0), producer_id: int = OURS, is_control: bool = False
    ) -> None:
        self.start, self.end, self.holes, self.stable = start, end, holes, end
        self.header = SimpleNamespace(producer_id=producer_id, is_control=is_control)
        self.reads: list[int] = []

    async def list_offsets(self, wanted: Any, *, isolation_level: int = 0) -> Any:
        end = self.stable if isolation_level == READ_COMMITTED else self.end
        return {p: self.start if at == EARLIEST else end for p, at in wanted.items()}


def drive(coroutine: Any) -> Any:
    """Runs what waits for nothing."""
    with pytest.raises(StopIteration) as stopped:
        coroutine.send(None)
    return stopped.value.value


@pytest.fixture(autouse=True)
def logs(monkeypatch: pytest.MonkeyPatch) -> None:
    async def read_slices(log: Log, ranges: Any, *, is_committed: bool) -> Any:
        ((p, (start, until)),) = ranges.items()
        assert is_committed
        if start < log.start:
            return {p: LogSlice(start)}  # out of range
        log.reads.append(until - start)
        offsets = [o for o in range(start, min(until, log.end)) if o not in log.holes]
        return {p: LogSlice(until, {o: Record(o, 0, b"k", b"v") for o in offsets})}

    async def read_headers(log: Log, offsets: Any) -> Any:
        return {p: log.header for p, offset in offsets.items() if log.start <= offset < log.end}

    async def first_difference_of_logs(*_: Any, is_committed: bool) -> None:
        assert is_committed
        return None

    for function in (read_slices, read_headers, first_difference_of_logs):
        monkeypatch.setattr(shared_log, function.__name__, function)


def compared(source: Log, target: Log) -> SharedLog:
    found: SharedLog = drive(compare_logs(source, target, PLACE, {OURS}))  # type: ignore[arg-type]
    return found


def test_an_emptied_log_is_proved_by_what_the_link_wrote_before_its_end() -> None:
    """Retention of the old source has taken all; its end may be behind what was copied."""
    target = Log(100, 100)
    assert compared(Log(50, 150), target).is_proved
    for source in (Log(50, 150, producer_id=-1), Log(50, 150, is_control=True)):  # an application's record; the fence
        found = compared(source, target)
        assert not found.is_proved and not found.is_diverged
        (text,) = blockers([found], discards=False)
        assert "orders-0 ends at offset 100" in text and "--discard-diverged" in text
        assert blockers([found], discards=True) == ()


def test_where_the_source_has_nothing_before_an_emptied_logs_end_nothing_can_be_missing() -> None:
    assert compared(Log(100, 150, producer_id=-1), Log(100, 100)).is_proved
    assert compared(Log(0, 150, producer_id=-1), Log(0, 0)).is_proved, "it never had a record"


def test_an_emptied_log_that_ends_behind_the_source_has_diverged() -> None:
    found = compared(Log(0, 90), Log(100, 100))
    assert found.is_diverged and found.shared_until == 90


def test_compacted_logs_that_share_no_record_are_proved_by_what_the_link_wrote() -> None:
    """Nothing contradicts, but nothing shows it either: the target's last records may never have been copied."""
    target = Log(0, 1_000, holes=range(950))
    assert compared(Log(0, 1_100, holes=range(950, 1_000)), target).is_proved
    found = compared(Log(0, 1_100, holes=range(950, 1_000), producer_id=-1), target)
    assert not found.is_proved and not found.is_diverged
    (text,) = blockers([found], discards=False)
    assert "none that the source still has, so" in text and "orders-0 ends at offset 1000" in text
    assert compared(Log(0, 1_100, holes=range(950, 999), producer_id=-1), target).is_proved, "both have the last one"


def test_a_log_of_aborted_records_alone_lacks_nothing_if_the_source_has_no_record_before_its_end() -> None:
    """The fence's marker, or an aborted transaction's, is the last that the copy has: nobody's records follow."""
    target = Log(0, 3, holes=range(3))
    for source in (Log(0, 5, holes=range(3), is_control=True), Log(0, 3, holes=range(3), is_control=True)):
        found = compared(source, target)
        assert found.is_proved and not found.is_diverged and found.shared_until == 3
    for source in (Log(0, 5, holes=range(1, 3), is_control=True), Log(0, 5, holes=range(3), is_control=True)):
        assert not compared(source, Log(0, 3, holes=range(1, 3) if source.holes == range(3) else range(3))).is_proved
    longer = compared(Log(0, 5, holes=range(5), is_control=True), Log(0, 7, holes=range(7)))
    assert longer.is_proved and (longer.shared_until, longer.target_end) == (5, 7)
    (text,) = blockers([longer], discards=False)
    assert "from offset 5 to 7" in text and "no record is lost that was never copied" in text


def test_records_far_before_the_end_show_nothing_of_the_end() -> None:
    found = compared(Log(0, 1_100, producer_id=-1), Log(0, 1_000, holes=range(900, 1_000)))
    assert not found.is_proved


def test_lost_records_are_counted_where_the_target_still_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shared part ends before the target's log starts."""
    target = Log(500, 25_500, holes=range(600, 700))
    log = SharedLog("orders", 0, 90, 25_500, 90)
    found = drive(with_losses(target, log))  # type: ignore[arg-type]
    assert (found.lost_records, found.is_counted) == (24_900, True)
    assert found.lost_offsets == ((500, 600), (700, 25_500))
    assert max(target.reads) == 10_000, "not all of them are in memory at once"
    monkeypatch.setattr(shared_log, "_COUNTED", 20_000)
    found = drive(with_losses(target, log))  # type: ignore[arg-type]
    assert (found.lost_records, found.is_counted) == (19_900, False)
    (text,) = blockers([found], discards=False)
    assert "at least 19,900 committed records" in text


def test_that_nobody_can_see_any_more_whether_records_were_copied_is_said() -> None:
    found = compared(Log(200, 300), Log(100, 150))
    assert found.is_diverged and not found.is_proved
    assert "for 1 of them nothing shows whether it was" in blockers([found], discards=False)[0]


def test_the_marker_of_a_fence_is_no_lost_record_but_the_source_has_no_room_for_it() -> None:
    (text,) = blockers([SharedLog("orders", 0, 90, 91, 95)], discards=False)
    assert "orders-0 from offset 90 to 91. With --discard-diverged" in text and "Read what" not in text
    assert blockers([SharedLog("orders", 0, 90, 91, 95)], discards=True) == ()


def test_the_links_own_former_copies_are_known_by_its_control_or_by_its_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    async def read_ids(*_: Any) -> dict[str, TopicIds]:
        return {name: TopicIds("", "now") for name in ("begun", "anew", "fenced", "theirs")}

    async def read_headers(_: Any, wanted: Any) -> Any:
        return {p: SimpleNamespace(producer_id=OURS if p.topic == "fenced" else 9) for p in wanted}

    monkeypatch.setattr(failback, "read_ids", read_ids)
    monkeypatch.setattr(failback, "read_headers", read_headers)
    former = LinkControl(
        producer_ids=(OURS,),
        begun={TopicPartition("begun", 0): TopicIds("", "now"), TopicPartition("anew", 0): TopicIds("", "old")},
    )
    wanted = [TopicPartition(name, 0) for name in ("begun", "anew", "fenced", "theirs")]
    assert drive(failback._own_copies(Log(0, 10), former, wanted)) == {"begun", "fenced"}  # type: ignore[arg-type]


def test_only_what_a_link_took_from_there_is_deleted() -> None:
    assert strangers((), {"orders"}) == ()
    (text,) = strangers({"users"}, {"orders"})
    assert (
        text.startswith("the target's log of users is not a copy")
        and "delete it yourself, with what only it has" in text
    )
    (text,) = strangers({"orders"}, {"orders"})
    assert "orders on the target is this link's own copy" in text and "by failback in the other direction" in text
    copies = {"orders": "there", "users": "there", "audit": "there"}
    theirs, former = strangers({"orders", "users"}, {"orders"}, copies)
    assert theirs.startswith("users on the target is the copy of link there, which was promoted,")
    assert "exchange source and target" in theirs and "orders on the target is this link's own copy" in former


@pytest.mark.parametrize("discards", [False, True])
def test_what_is_not_deleted_is_not_said_to_be_given_up_with_an_option(discards: bool) -> None:
    log = SharedLog("orders", 0, 500, 505, 577, 5)
    assert blockers([log], discards=discards, undeletable={"orders"}) == ()
    (text,) = blockers([replace(log, is_open=True)], discards=discards, undeletable={"orders"})
    assert "transactions are open" in text, "that is said of every log"


def test_a_link_that_begins_again_has_nothing_of_its_former_logs() -> None:
    former = LinkControl(
        producer_ids=(OURS,), is_promotion_begun=True, begun=BEGUN, log_starts={TopicPartition("own", 0): 40}
    )
    place = TopicPartition("orders", 0)
    now = begin_again(former, "A", LinkTopics.of("orders"), {place: 500}, ids={"orders": NOW, "own": NOW})
    assert (now.log_starts, now.begun, now.generation) == ({}, {}, 1)
    assert now.adopted_ids == now.had == {place: NOW} and decode_control(encode_control(now, 1)) == now


NOW = TopicIds("a", "b")  # of the topics on the target, where they were copied from, and on the source
BEGUN = {TopicPartition("orders", 0): NOW}  # of a control that remembers: nothing of "own"
EVERYTHING = LinkTopics.of(".*").to_json()
OWN = SharedLog("own", 0, 0, 500, 77)


def taken(
    monkeypatch: pytest.MonkeyPatch,
    control: LinkControl | None,
    logs: Carried,
    *shared: SharedLog,
    links: Others = Others(),
) -> tuple[set[str], dict[str, str]]:
    """The topics that forward links have copied, and those that none has; nothing is unknown."""
    found, others, unknown = origins(monkeypatch, control, logs, *shared, links=links)
    assert not unknown
    return found, others


def origins(
    monkeypatch: pytest.MonkeyPatch,
    control: LinkControl | None,
    logs: Carried,
    *shared: SharedLog,
    links: Others = Others(),
) -> tuple[set[str], dict[str, str], dict[str, str]]:
    async def read_ids(*_: Any) -> dict[str, TopicIds]:
        return {"orders": NOW, "own": NOW}

    async def find_evidence(*_: Any, **__: Any) -> Evidence:
        return Evidence(logs, links, {"orders": NOW, "own": NOW})

    monkeypatch.setattr(taken_topics, "read_ids", read_ids)
    monkeypatch.setattr(taken_topics, "find_evidence", find_evidence)
    forward = {} if control is None else {"dr": control}
    found: tuple[set[str], dict[str, str], dict[str, str]] = drive(
        taken_topics.taken_topics(source_of_logs(), None, shared or (OWN,), forward)  # type: ignore[arg-type]
    )
    return found


def source_of_logs() -> Any:
    return SimpleNamespace(wire_topic=str)


PLACE_OF_OWN = frozenset((TopicPartition("own", 0),))
LINK = LinkControl(producer_ids=(OURS,), topics=EVERYTHING, begun=BEGUN)
OF_01 = replace(LINK, begun={})


@pytest.mark.parametrize("control", [LINK, OF_01])
def test_a_topic_that_both_sides_write_by_themselves_is_named_and_is_nobodys_copy(
    monkeypatch: pytest.MonkeyPatch, control: LinkControl
) -> None:
    """The forward link's expression matches it, and its promotion has left it alone."""
    found, others = taken(monkeypatch, control, Carried(foreign=PLACE_OF_OWN))
    assert "own" not in found and others.keys() == {"own"}
    (text,) = left_alone(others)
    assert (
        "the target has records of own, and the source's log was not copied from there: its last records are of" in text
    )
    assert "leave it out of --topics" in text and "--discard-diverged" not in text


def test_what_the_forward_link_has_begun_adopted_or_written_is_its_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    p = TopicPartition("own", 0)
    for control, logs in (
        (replace(LINK, begun={**BEGUN, p: NOW}), Carried(foreign=PLACE_OF_OWN)),
        (replace(LINK, begun={**BEGUN, p: TopicIds("a", "former")}), Carried(PLACE_OF_OWN)),  # and copied again
        (replace(LINK, begun={**BEGUN, p: TopicIds()}), Carried(foreign=PLACE_OF_OWN)),  # brokers without ids
        (replace(LINK, begun={}, adopted={p: 9}, producer_ids=()), Carried()),  # of a second failback
        (LINK, Carried(PLACE_OF_OWN)),
        (OF_01, Carried(hidden=PLACE_OF_OWN)),
    ):
        found, others = taken(monkeypatch, control, logs)
        assert "own" in found and not others
    grown = SharedLog("own", 1, 0, 5, 0)  # a partition of it that was never begun
    found, others = taken(monkeypatch, replace(LINK, begun={p: NOW}), Carried(), OWN, grown)
    assert found == {"own"} and not others


def test_a_copy_of_a_link_whose_failover_did_not_know_the_source_is_known_by_records_of_both_logs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its control was deleted before: an equal name alone shows nothing, since it may have copied from another cluster."""
    fenced = LinkControl(
        is_promotion_begun=True, is_fenced=True, topics=EVERYTHING, copied_until={TopicPartition("own", 0): 9}
    )
    for shares in (True, False):
        monkeypatch.setattr(taken_topics, "shares_records", AsyncMock(return_value=shares))
        found, others = taken(monkeypatch, fenced, Carried())
        assert found == ({"own"} if shares else set()) and not others
    assert not taken(monkeypatch, replace(fenced, copied_until={}), Carried())[0], "another topic of that name"


def test_another_links_failover_without_a_control_refuses_only_what_it_fenced() -> None:
    """It was given an expression that matches all topics of the cluster."""
    told = AsyncMock(return_value={"tolerant-mirror-offsets-x": [0]})
    source: Any = SimpleNamespace(wire_topic=str, topic_of=str, partitions=told)
    fenced = {TopicPartition("own", 0): 9}
    other = LinkControl(is_promotion_begun=True, is_fenced=True, topics=EVERYTHING, copied_until=fenced)
    assert drive(failback._refuse_translated(source, ["orders"], {"x": other})) is None
    with pytest.raises(OptionError, match="Link x copied topic own with translated offsets"):
        drive(failback._refuse_translated(source, ["orders", "own"], {"x": other}))
    # An ordinary promotion of a link whose expression was refused some topics.
    known = replace(other, source_cluster_id="A")
    assert drive(failback._refuse_translated(source, ["orders"], {"x": known})) is None
    live = replace(known, is_promotion_begun=False, is_fenced=False, copied_until={})  # what it copies closes a circle
    assert drive(failback._refuse_translated(source, ["orders"], {"x": live})) is None


def test_a_topic_of_the_target_that_was_created_again_is_not_the_one_that_was_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    control = replace(
        LINK, begun={TopicPartition("own", 0): TopicIds("former", "b")}, copied={TopicPartition("own", 0): 9}
    )
    found, others = taken(monkeypatch, control, Carried())
    assert not found and "created again there after" in others["own"]
    last = {"dr": control, "zz": LINK}  # which matches the topic, and has nothing to do with it
    assert drive(taken_topics.taken_topics(source_of_logs(), None, (OWN,), last))[1] == others  # type: ignore[arg-type]


def test_of_a_topic_that_was_created_again_on_the_source_the_targets_records_are_the_only_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a promotion says: the topic was deleted, and the link's records with it."""
    p = TopicPartition("own", 0)
    control = replace(LINK, begun={**BEGUN, p: TopicIds("a", "former")}, copied={p: 9})
    for carried in (Carried(), Carried(foreign=PLACE_OF_OWN)):
        for log in (OWN, replace(OWN, source_end=0)):
            found, others = taken(monkeypatch, control, carried, log)
            assert "own" not in found
            (text,) = left_alone(others)
            assert "created again on the source after" in text and "on the target are the only ones" in text
    equal = replace(OWN, shared_until=500)
    assert not taken(monkeypatch, control, Carried(foreign=PLACE_OF_OWN), equal)[1], "it may be adopted"


def test_records_that_are_equal_are_proof_enough_to_adopt(monkeypatch: pytest.MonkeyPatch) -> None:
    """MirrorMaker 2 copied them, or the brokers have forgotten the link's producer id, and others have written since."""
    equal = SharedLog("own", 0, 500, 500, 577)
    elsewhere = replace(LINK, topics=LinkTopics.of("orders").to_json())
    for control, may_delete in ((OF_01, True), (LINK, False), (elsewhere, False)):
        found, others = taken(monkeypatch, control, Carried(foreign=PLACE_OF_OWN), equal)
        assert not others and ("own" in found) == may_delete


def test_a_topic_that_is_another_links_on_the_source_is_told_without_advice_for_that_links_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    why = "Topic own of this target is the copy of link lx: delete it on the target"
    links = Others({"own": why}, (), frozenset({"own"}))
    _, others = taken(monkeypatch, LINK, Carried(foreign=PLACE_OF_OWN), links=links)
    assert others == {"own": "on the source it is another link's, not link dr's"}
    unread = Others({"own": "Whether another link copies own is unknown"})
    _, others = taken(monkeypatch, LINK, Carried(foreign=PLACE_OF_OWN), links=unread)
    assert others == {"own": "nothing shows that the link has copied it"}


def test_no_log_is_searched_for_a_topic_of_which_the_source_has_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def find_evidence(*_: Any, **__: Any) -> Evidence:
        raise AssertionError("every log of the cluster would be read")

    async def read_ids(*_: Any) -> dict[str, TopicIds]:
        return {}

    monkeypatch.setattr(taken_topics, "find_evidence", find_evidence)
    monkeypatch.setattr(taken_topics, "read_ids", read_ids)
    source: Any = SimpleNamespace(wire_topic=str)
    logs = [SharedLog("own", 0, 0, 5, 0)]
    assert drive(taken_topics.taken_topics(source, None, logs, {"dr": LINK}))[1].keys() == {"own"}  # type: ignore[arg-type]


def test_a_log_without_records_lacks_nothing_and_of_an_unreadable_one_nothing_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not taken(monkeypatch, LINK, Carried(), SharedLog("own", 0, 0, 0, 77))[1]
    for control in (LINK, OF_01):
        unread = Carried(unknown={TopicPartition("own", 0): "no leader"})
        found, others, unknown = origins(monkeypatch, control, unread)
        assert "own" not in found and not others and unknown == {"own": "no leader"}
        (text,) = untold(unknown)
        assert "own from the target is unknown: no leader. Run this again" in text and "delete" not in text
    never = taken(monkeypatch, LINK, Carried(), SharedLog("own", 0, 0, 5, 0))
    assert never[1] == {"own": "nothing shows that the link has copied it"}
    assert taken(monkeypatch, None, Carried()) == (set(), {}), "without a control on the source nothing is known"


class Grown:
    """A cluster whose topics have so many partitions; `ends` of those that are not empty."""

    def __init__(self, ends: dict[TopicPartition, tuple[int, int]] | None = None, **topics: int) -> None:
        self.topics, self.ends = topics, ends or {}

    async def partitions(self, names: Any) -> dict[str, list[int]]:
        return {name: list(range(self.topics[name])) for name in names if name in self.topics}

    async def list_offsets(self, wanted: Any, *, isolation_level: int = 0) -> Any:
        return {p: self.ends.get(p, (0, 0))[at != EARLIEST] for p, at in wanted.items()}


def test_nothing_after_the_start_of_an_open_transaction_of_the_source_is_taken_for_a_copy() -> None:
    """A committed read ends there, so equal records before it prove nothing of what follows."""
    source = Log(0, 150)
    source.stable = 80
    found = compared(source, Log(0, 100))
    assert (found.shared_until, found.is_diverged, found.to_copy) == (80, True, 70)
    source.stable = 120  # an application's, after the copied part
    found = compared(source, Log(0, 100))
    assert (found.shared_until, found.is_diverged, found.is_proved) == (100, False, True)
    for emptied, until in ((Log(100, 100), 80), (Log(90, 100), 80), (Log(0, 0), 0)):
        source.stable = 80
        assert compared(source, emptied).shared_until == until


def test_what_the_source_has_deleted_after_the_targets_end_is_told_and_not_promised() -> None:
    found = compared(Log(115, 131), Log(100, 100))
    assert (found.shared_until, found.to_copy, found.is_diverged) == (100, 16, False)
    (text,) = overtaken([found])
    assert re.search("with --on-loss continue .*, or delete the target topic, with what only it has", text)
    assert "no longer has offsets 100 to 115 of orders-0 (1 partition)" in text and "--on-loss continue" in text
    whole = compared(Log(115, 131), Log(0, 0))
    assert whole.to_copy == 16 and overtaken([whole]) == (), "a new log begins where the source's does"


@pytest.mark.parametrize("discards", [False, True])
def test_what_another_link_has_on_the_target_is_named_and_neither_compared_nor_deleted(
    monkeypatch: pytest.MonkeyPatch, discards: bool
) -> None:
    async def others(_: Any, link: str, names: Any, *, is_identical: bool, own: LinkControl) -> Others:
        assert (link, names, is_identical) == ("oops", ["heartbeats", "orders", "users"], True)
        assert own.adopted.keys() == {PLACE, users, beats} and not (own.begun or own.producer_ids or own.is_over)
        refused = {name: f"Link back copies into topic {name}" for name in ("heartbeats", "orders")}
        return Others(refused, (), frozenset(refused))

    async def compare(*arguments: Any) -> SharedLog:
        asked.append(arguments[2])
        return SharedLog("users", 0, 90, 95, 90, 5)

    async def nothing(*_: Any, **__: Any) -> Any:
        return ()

    async def told(value: Any) -> Any:
        return value

    def links_of(former: LinkControl) -> failback_links.Links:
        return failback_links.Links("oops", "B-id", former, None, {}, {})

    asked: list[TopicPartition] = []

    async def own_copies(_: Any, __: Any, partitions: list[TopicPartition]) -> set[str]:
        assert partitions == [users], "another link may have taken over the others"
        return set()

    users, beats = TopicPartition("users", 0), TopicPartition("heartbeats", 0)
    former = LinkControl(producer_ids=(OURS,), is_promotion_begun=True, is_fenced=True, begun={PLACE: NOW})
    view = SimpleNamespace(on_source=dict.fromkeys(("orders", "users", "heartbeats"), [0]), require_seen=lambda _: None)
    known = vars(CLUSTER)
    source: Any = SimpleNamespace(**known, connect=nothing, wire_topic=str)
    target: Any = SimpleNamespace(**known, require_record_batches=nothing)
    responses: dict[str, Any] = {
        "refuse_one_cluster": None,
        "see_topics": view,
        "read_links": links_of(former),
        "refuse_circle": (),
        "_unled": {},
        "read_ids": {},
        "_refuse_translated": None,
        "require_not_forgotten": None,
        "shared_partitions": [beats, PLACE, users],
        "taken_topics": ({"users"}, {}, {}),
        "unshared_logs": [],
    }
    for name, value in responses.items():
        monkeypatch.setattr(failback, name, lambda *_, value=value: told(value))
    monkeypatch.setattr(failback, "with_losses", lambda _, log: told(log))
    monkeypatch.setattr(failback, "look_for_others", others)
    monkeypatch.setattr(failback, "_own_copies", own_copies)
    monkeypatch.setattr(failback, "is_heartbeats", lambda _, name: name == "heartbeats")
    monkeypatch.setattr(failback, "compare_logs", compare)
    report = drive(failback.failback(source, target, "oops", "orders|users", discards=discards))
    assert report.exit_code == 3 and not report.is_done and not report.deleted_topics and asked == [users]
    assert report.blockers[0] == "Link back copies into topic orders" and len(report.blockers) == 2 - discards
    responses["read_links"] = links_of(replace(former, is_hidden=True))
    monkeypatch.setattr(failback, "read_links", lambda *_: told(responses["read_links"]))
    with pytest.raises(OptionError, match="Whether another link copies the same topics is unknown: we may not read"):
        failback.failback(source, target, "oops", "orders|users", discards=discards).send(None)
    for live in (LinkControl(producer_ids=(OURS,)), LinkControl(map_id="m"), replace(former, is_promotion_begun=False)):
        responses["read_links"] = links_of(live)
        with pytest.raises(OptionError, match="copies into this target already and was not promoted"):
            failback.failback(source, target, "oops", "orders|users", discards=discards).send(None)


def test_what_the_target_took_into_partitions_that_the_source_never_got_is_told_as_not_copied() -> None:
    """The topic grew right before the old source went: deleting it would give those records up unseen."""
    grown = TopicPartition("orders", 2)
    target = Grown({grown: (3, 9), TopicPartition("only", 0): (0, 5)}, orders=4, clicks=1, only=1)
    source = Grown(orders=2, clicks=1)
    found = drive(unshared_logs(source, target, ["clicks", "orders", "only"]))  # type: ignore[arg-type]
    assert found == [SharedLog("orders", 2, 3, 9, 0)] and found[0].is_diverged and found[0].to_copy == 0
    (text,) = blockers([replace(found[0], lost_records=6)], discards=False)
    assert "deleted on the target, with what groups have committed of them there, and copied again" in text
    assert "6 committed records in all: orders-2 from offset 3 to 9. Read what you need" in text
    assert drive(unshared_logs(target, target, ["orders"])) == []  # type: ignore[arg-type]


def chosen(link: str, forward: dict[str, LinkControl], into_target: dict[str, LinkControl] = {}) -> LinkTopics:
    return topics_to_bring_back(CLUSTER, CLUSTER, link, forward, into_target, at_home(forward, into_target, None))


def test_topics_that_nobody_names_are_those_of_the_last_move_and_never_guessed() -> None:
    there, other = moved("orders|audit", 3), moved("users")
    translated = moved("clicks", producer_ids=(), map_id="m")
    undone, of_other = moved("orders", 2), moved("users", 2)
    with pytest.raises(OptionError, match="Give --topics.* tells of no link from this target"):
        chosen("back", {})
    for link, forward, into_target, topics in (
        ("back", {"there": there}, {}, "orders|audit"),
        ("back", {"there": there, "clicks": translated}, {}, "orders|audit"),
        ("back", {"clicks": translated}, {}, "clicks"),  # which is refused with the reason
        ("there", {"there": there, "other": other}, {}, "orders|audit"),
        ("there", {"there": there, "other": other}, {"there": undone}, "orders|audit"),
        ("back", {"there": there, "other": other}, {"back": undone}, "orders|audit"),
        ("back", {"there": there, "twin": there}, {}, "orders|audit"),
        ("there", {"there": moved("orders"), "again": there, "other": other}, {"there": undone}, "orders|audit"),
        ("back", {"there": moved("orders"), "other": other}, {"there": undone}, "users"),
        ("there", {"there": replace(other, is_promotion_begun=False), "other": there}, {}, "users"),  # a circle
        # Of a way home in parts only what is not home yet.
        ("back", {"there": moved("orders|a.b|c")}, {"there": undone}, r"a\.b,c"),
        ("there", {"there": moved("orders|a.b|c")}, {"there": undone}, r"a\.b,c"),
        # The rest of the link of that name was left out when this link was made anew last.
        ("there", {"there": moved("orders|audit"), "two": moved("orders", 3)}, {"there": undone}, "orders"),
        # An expression takes what is home by another link, too.
        ("there", {"there": moved("orders|audit", topics=EVERYTHING), "other": other}, {"x": of_other}, "audit,orders"),
        ("back", {"there": moved("orders|audit", 3), "other": other}, {"x": undone}, None),
    ):
        if topics is not None:
            assert str(chosen(link, forward, into_target)) == topics
            continue
        with pytest.raises(OptionError, match="Links other, there have copied different topics"):
            chosen(link, forward, into_target)
    with pytest.raises(OptionError, match="Links other, there have copied different topics .* nothing tells") as told:
        chosen("back", {"there": there, "other": other, "clicks": translated})
    assert "for what link there has copied: tolerant-kafka failback" in str(told.value)
    assert "--link back --topics 'orders|audit'" in str(told.value) and "clicks" not in str(told.value)
    with pytest.raises(OptionError, match="link there has copied: [^;]* --topics audit; .*--topics users"):
        chosen("back", {"there": moved("orders|audit"), "users": other}, {"x": undone})


@pytest.mark.parametrize("link", ["there", "back", "another"])
def test_what_is_home_is_not_brought_back_again(link: str) -> None:
    """Whatever the link is called that is to bring it: the one that was promoted first, the one that has undone that, or a new one."""
    forward, into_target = {"there": moved("orders|audit")}, {"back": moved("orders|audit", 2)}
    assert at_home(forward, into_target, None) == {"orders": "back", "audit": "back"}
    assert str(chosen(link, forward, into_target)) == "audit,orders", "which are then refused"
    text = home_texts(at_home(forward, into_target, None), link, ["audit", "orders"], into_target, forward, typed, "b")[
        "audit"
    ]
    assert re.search("Topic audit .* copy of link back, which was promoted: .* is its primary", text)
    assert "tolerant-kafka failback with source and target exchanged" in text
    assert re.search("if the target was lost since, .* do not exchange them, but delete the topic on the target", text)
    how = "run this again" if link == "back" else r"run back of audit,orders"
    assert re.search(f"verify first\\), and {how}: it is copied back whole$", text), (
        "by the link that clients follow there"
    )


def typed(link: str, names: Collection[str]) -> str:
    return f"{link} of {','.join(names)}"


@pytest.mark.parametrize(
    "link, brought, source",
    [(n, ["audit"], "b") for n in ("there", "back", "another")] + [("another", ["audit", "orders"], "c")],
)
def test_what_is_copied_back_apart_from_what_came_home_with_it_takes_its_clients_along(
    link: str, brought: list[str], source: str
) -> None:
    """So is what a link from a third cluster has brought home, whose name a link from this source cannot have."""
    forward, into_target = {"there": moved("orders|audit")}, {"back": moved("orders|audit", 2)}
    (text,) = home_texts({"audit": "back"}, link, brought, into_target, forward, typed, source).values()
    assert re.search(
        "run this again: it is copied back whole. Its clients with standby= stay .* link back has led them", text
    )
    assert "back of" not in text, "its name is needed for the rest"


@pytest.mark.parametrize("later_ms, is_over, is_elsewhere", [(3, False, True), (2, False, False), (3, True, False)])
def test_the_target_is_not_called_the_primary_of_what_was_moved_on_from_it(
    later_ms: int, is_over: bool, is_elsewhere: bool
) -> None:
    """In a ring: a to b, b to c, and the link from c copies into a, from which another link to b is to begin."""
    knows = LinkControl(topics=LinkTopics.of("orders").to_json(), producer_ids=(1,), known_moves={"orders": later_ms})
    feeder = {"feeder": replace(knows, is_promotion_begun=is_over)}
    (text,) = home_texts({"orders": "ab"}, "ab-2", ["orders"], {"ab": moved("orders", 2)}, feeder, typed, "b").values()
    assert ("from which link feeder copies it into this source" in text) == is_elsewhere
    assert ("the target is its primary" in text) != is_elsewhere


@pytest.mark.parametrize("late", [(), ("users",)])
def test_what_the_promotion_of_a_link_back_has_not_moved_yet_is_not_home(late: tuple[str, ...]) -> None:
    unfenced = frozenset(TopicPartition(name, 0) for name in late)
    ids = dict.fromkeys([PLACE, TopicPartition("users", 0)], NOW)
    since = {"orders": MovedTopic(2)} if late else {}
    half = moved("orders|users", is_fenced=False, unfenced=unfenced, begun=ids, copied_until={}, primary_since=since)
    forward = {"there": moved("orders|users")}
    home = {"orders"} if late else set()
    assert at_home(forward, {"back": half}, None).keys() == home
    assert str(chosen("another", forward, {"back": half})) == ("users" if late else "orders|users")
    told = unmoved_texts("another", ["audit", "orders", "users"], {"back": half}, CLUSTER)
    assert told.keys() == {"orders", "users"} - home and not unmoved_texts("back", ["users"], {"back": half}, CLUSTER)
    what, command = ("left partitions without a leader", "failover") if late else ("begun and not finished", "promote")
    assert re.search(
        f"users of this target is the copy of link back, .*{what}.* run again: tolerant-kafka {command}", told["users"]
    )
    assert "is its primary" not in told["users"] and "which was promoted" not in told["users"]
    whole = replace(half, is_fenced=True, unfenced=frozenset(), copied_until=dict.fromkeys(ids, 1))
    assert not unmoved_texts("another", ["users"], {"back": whole}, CLUSTER)


def test_a_link_that_was_promoted_before_it_ever_ran_is_undone_like_any() -> None:
    """Beside another one that was promoted: by the way back of its topics, though that had others' topics to choose from."""
    unrun = {"unrun": moved("orders", producer_ids=()), "other": moved("users")}
    assert str(chosen("back", unrun, {"back": replace(moved("orders", 0), is_promotion_begun=False)})) == "orders"
    with pytest.raises(OptionError, match="Links other, unrun have copied different topics"):
        chosen("new", unrun)


def test_a_link_of_which_nothing_is_left_does_not_choose_by_its_name() -> None:
    forward = {"there": moved("a|b|c"), "later": moved("a|b|c", 3)}
    back = {"back": moved("a|b|c", 2), "there": moved("c", 4)}
    assert {str(chosen(link, forward, back)) for link in ("there", "back", "another")} == {"a,b"}


class Having:
    """A cluster that has these topics."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def by_own_names(self) -> Having:
        return self

    async def partitions(self, names: Any) -> dict[str, list[int]]:
        return {name: [0] for name in self.names if name in names}


def to_undo(
    source: Any, target: Any, forward: dict[str, LinkControl], into_target: Mapping[str, LinkControl] = {}
) -> dict[str, list[str]]:
    links = failback_links.Links("back", "b", LinkControl(), None, forward, into_target)
    found = drive(failback_links.left_to_undo(source, target, links))
    return {link: copied_topics(control) for link, control in found.items()}


def test_a_link_whose_topics_the_source_has_no_more_is_not_to_be_undone() -> None:
    source = target = Having("orders")
    forward = {"there": moved("orders|audit"), "retired": moved("users"), "live": LinkControl()}
    assert to_undo(source, target, forward) == {"there": ["orders"], "live": []}
    assert to_undo(source, target, {"retired": moved("users")}) == {"retired": ["users"]}, "which is told"


@pytest.mark.parametrize(
    "said, left",
    [
        ({}, ["away"]),
        ({"source_cluster_id": "c"}, ["away", "home"]),
        ({"is_fenced": True, "is_promotion_begun": True}, ["away", "home"]),
        ({"producer_ids": ()}, ["away"]),  # prepared, and not started yet
        ({"producer_ids": (), "map_id": "m"}, ["away", "home"]),
    ],
)
def test_what_a_live_link_copies_back_already_is_not_to_be_undone(said: dict[str, Any], left: list[str]) -> None:
    """An active/active pair of which each side has been away once."""
    clusters = Having("a.orders", "b.orders")
    live = LinkControl(topics=LinkTopics.of("a[.]orders").to_json(), producer_ids=(1,), source_cluster_id="b")
    forward = {"home": moved("a.orders"), "away": moved("b.orders")}
    assert sorted(to_undo(clusters, clusters, forward, {"live": replace(live, **said)})) == left


@pytest.mark.parametrize("deleted", [(), ("orders",)])
def test_the_command_for_a_link_of_another_name_says_what_becomes_of_the_clients(deleted: tuple[str, ...]) -> None:
    """One of the topics that came home with the other was deleted, and is to be copied back alone."""
    former = moved("audit|orders", 2)
    left = telling_of(former, {"audit", "orders"}.difference(deleted))
    links = failback_links.Links(
        "back", "b", former, Controls({"there": moved("audit|orders|new")}, ()), {}, {"back": left}
    )
    wanted = deleted or ("new",)
    with pytest.raises(OptionError, match=f"was promoted with audit.*--link back-2 --topics {wanted[0]}$") as told:
        failback._require_all_said(CLUSTER, CLUSTER, links, LinkTopics.of(wanted[0]), wanted)
    assert ("to which link back has led them: start them again" in str(told.value)) == bool(deleted)


def test_the_flow_of_a_link_back_is_named_where_a_file_has_named_its_topics() -> None:
    """Aliases may have hyphens, too."""
    names = TopicNames(IdentityReplicationPolicy(), "eu-west")
    of_file = LinkTopics(TopicFilter(("orders",)), names=names, target_alias="us-east-1")
    forward = {"eu-west-us-east-1": LinkControl(topics=of_file.to_json()), "typed": moved("audit")}
    links = failback_links.Links("us-east-1-eu-west", "b", LinkControl(), None, forward, {})
    assert [links.flow(of) for of in (["orders"], ["audit", "orders"])] == ["us-east-1->eu-west"] * 2
    assert links.flow(["audit"]) == links._replace(link="back").flow(["orders"]) == ""


def test_a_link_that_was_promoted_with_other_topics_than_those_wanted_keeps_its_control() -> None:
    names = TopicNames(IdentityReplicationPolicy(), "b")
    former = moved("orders|b.heartbeats", topics=LinkTopics(TopicFilter((".*",)), names).to_json())
    undone = moved("orders", 2)
    for control, brought, into_source, lost in (
        (former, ["users"], {}, ["orders"]),
        (former, ["users"], {"x": moved("orders", 0)}, ["orders"]),
        (moved("users|orders"), ["users"], {"x": moved("users", 2)}, ["orders"]),
        (former, ["users", "orders"], {}, []),
        (former, ["users"], {"x": undone}, []),
        (replace(former, copied_until={}), ["users"], {}, []),  # deleted since
        (replace(former, is_promotion_begun=False), ["users"], {}, []),
    ):
        assert unsaid_moves(control, brought, into_source) == lost
    for control, name in (
        (former, "back-3"),
        (moved("users"), "back-2"),  # of an earlier time
        (moved("users", source_cluster_id="c"), "back-3"),
        (moved("users", is_fenced=False), "back-3"),
        (moved("users", is_promotion_begun=False), "back-3"),
    ):
        assert name_beside("back", ["users"], {"back": former, "back-2": control}, {}) == name


def test_the_names_of_a_file_are_not_those_of_the_other_direction() -> None:
    of_file = LinkTopics(
        TopicFilter(("a.*",), ("ax",)),
        TopicNames(IdentityReplicationPolicy(), "P"),
        "Q",
        also=(TopicFilter(("b",)),),
    )
    found = chosen("back", {"P-Q": moved("ab", topics=of_file.to_json())})
    assert (found.names, found.target_alias) == (None, "")
    names = ("ab", "ax", "b", "heartbeats", "P.heartbeats", "a.heartbeats", "c")
    assert list(filter(found.takes, names)) == ["ab", "b"]
    assert topics_option(found, ["ab", "b"]) == "ab,b"
    back = replace_struct(of_file, names=TopicNames(IdentityReplicationPolicy(), "Q"), target_alias="P")
    for start in (LinkTopics.of("ab,b"), back):
        assert start.joined(found).takes("ab")
    renamed = replace_struct(of_file, names=TopicNames(DefaultReplicationPolicy(), "P"))
    assert chosen("back", {"P-Q": moved("P.ab", topics=renamed.to_json())}) == renamed, "which is refused"


def test_a_failover_of_an_unknown_source_says_nothing_of_a_cluster_without_its_topics() -> None:
    unknown, elsewhere = moved("orders|users", source_cluster_id=None), moved("users", source_cluster_id=None)
    forward = {"unknown": unknown, "elsewhere": elsewhere, "known": moved("users")}
    assert to_undo(Having("orders", "users"), Having("orders"), forward).keys() == {"unknown", "known"}


def test_a_link_back_says_which_moves_it_undoes_and_keeps_what_it_knew_of_other_topics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else its clients would not come home if it is promoted before it has started, and what it had brought would not be home."""
    changes: list[Any] = []

    async def update(_: Any, __: str, change: Any) -> None:
        changes.append(change)

    async def unused(*_: Any) -> int:
        return 0

    monkeypatch.setattr(failback, "update_control", update)
    monkeypatch.setattr(failback, "_unused_generation", unused)
    former = moved("orders", 3, known_moves={"orders": 2, "users": 1})
    links = failback_links.Links("back", "b", former, None, {}, {})
    found = Decision((), (), {}, ())
    drive(failback._begin(CLUSTER, links, LinkTopics.of("users"), found, {}, {"users": 5}))
    assert changes[0](former).known_moves == {"orders": 2, "users": 5}


def test_what_was_paused_before_the_promotion_is_told() -> None:
    control = replace(moved("orders"), paused_partitions=frozenset({PLACE}))
    (text,) = failback._pauses(CLUSTER, "dr", control, [PLACE])
    assert "paused partition orders-0" in text and "resume --target b:1 --link dr --topic orders --partition 0" in text
    assert failback._pauses(CLUSTER, "dr", control, [TopicPartition("orders", 1)]) == ()


def test_a_command_names_what_a_link_of_a_file_has_copied() -> None:
    cluster: Any = SimpleNamespace(**vars(CLUSTER))
    ends = {TopicPartition("a.b", 0): 1, TopicPartition("c", 1): 1}
    known = LinkControl(topics=LinkTopics(TopicFilter((".*",), ("x",))).to_json(), copied_until=ends)
    command = "tolerant-kafka failback --source b:1 --target b:1 --link back"
    assert failback_command("back", cluster, cluster, had_topics(known)) == rf"{command} --topics 'a\.b,c'"
    assert had_topics(replace(known, copied_until={})) == had_topics(LinkControl()) == ""
    assert failback_command("back", cluster, cluster, "") == command
    cluster.file_options = "--config f --flow B->A"
    assert failback_command("back", cluster, cluster, "a") == "tolerant-kafka failback --config f --flow B->A"

"""watch.py: the samples that a watch makes from what clusters and tasks report; no broker."""

from __future__ import annotations

import functools
import io
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from kafka.structs import TopicPartition
from rich.console import Console

from tolerant_client.cluster.admin.offsets import LedOffsets
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import ClusterUnreachableError, LoginRefusedError, OptionError, TolerantClientError
from tolerant_client.mirror.batches.losses import LedgerRow
from tolerant_client.mirror.engine.copy_metrics import Copied, Span
from tolerant_client.mirror.life.lens import MOST_AGES, SourceEnds
from tolerant_client.mirror.state.claims_record import Waiting
from tolerant_client.mirror.state.health import (
    DELETED_ON_SOURCE,
    DELETED_ON_TARGET,
    PARTITION_DELETED_ON_SOURCE,
    Health,
    Reason,
)
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.open_transactions import Held, OpenTransaction
from tolerant_client.ops.monitoring import watch as module
from tolerant_client.ops.monitoring.bars import Terminal
from tolerant_client.ops.monitoring.board import Board
from tolerant_client.ops.monitoring.health import health_of
from tolerant_client.ops.monitoring.link_clusters import LinkClusters
from tolerant_client.ops.monitoring.watch import LinkWatch
from tolerant_client.ops.service.link_state import DutyState, GroupState, LeftOut, Phase, TaskReport
from tolerant_client.ops.service.mirror_settings import MirrorSettings

FIRST, SECOND, NEW = TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("new", 0)
PROPERTIES = {"bootstrap.servers": "127.0.0.1:1"}
Ends = Mapping[TopicPartition, int]


class Clusters:
    """Clusters that return what the test sets; None for sizes: the question fails."""

    def __init__(self) -> None:
        self.ends: dict[str, Ends | Exception] = {"source": {FIRST: 10, SECOND: 10}, "target": {FIRST: 4, SECOND: 10}}
        self.rows: list[LedgerRow] = []
        self.asked: list[tuple[str, Any]] = []
        self.times: dict[TopicPartition, int] = {}
        self.sizes: dict[TopicPartition, float] | None = {}
        self.ordered: LinkControl | Exception = LinkControl()
        self.without_leader: dict[str, dict[TopicPartition, str]] = {}
        self.stable: dict[TopicPartition, int] = {}  # where that is not the end
        self.open: list[Held] = []
        self.others: set[TopicPartition] | None = set()  # logs that differ; None: the question fails
        self.closed = 0
        self.gone: dict[str, Mapping[TopicPartition, str]] = {}  # of those without a leader

    def _ends(self, name: str) -> dict[TopicPartition, int]:
        found = self.ends[name]
        if isinstance(found, Exception):
            raise found
        return dict(found)

    def source_ends(self, partitions: Any) -> SourceEnds:
        ends = self._ends("source")
        return SourceEnds(ends, {**ends, **self.stable}, self.without_leader.get("source", {}))

    def target_ends(self, partitions: Any) -> LedOffsets:
        return LedOffsets(self._ends("target"), self.without_leader.get("target", {}))

    def not_on_source(self, partitions: Any) -> dict[TopicPartition, str]:
        return {p: why for p, why in self.gone.get("source", {}).items() if p in partitions}

    def not_on_target(self, partitions: Any) -> set[TopicPartition]:
        return self.gone.get("target", {}).keys() & set(partitions)

    def held(self, spans: Any) -> list[Held]:
        self.asked.append(("held", spans))
        return self.open

    def unproved(self, partitions: Any, control: LinkControl, is_translated: bool) -> set[TopicPartition]:
        self.asked.append(("unproved", (partitions, is_translated)))
        if self.others is None:
            raise ClusterUnreachableError("away")
        return self.others & set(partitions)

    def ledger(self) -> list[LedgerRow]:
        return list(self.rows)

    def control(self) -> LinkControl:
        if isinstance(self.ordered, Exception):
            raise self.ordered
        return self.ordered

    def oldest_ms(self, positions: Any) -> dict[TopicPartition, int]:
        self.asked.append(("oldest_ms", positions))
        return {p: time_ms for p, time_ms in self.times.items() if p in positions}

    def bytes_per_offset(self, ends: Any) -> dict[TopicPartition, float]:
        self.asked.append(("bytes_per_offset", list(ends)))
        if self.sizes is None:
            raise ClusterUnreachableError("away")
        return self.sizes

    def close(self) -> None:
        self.closed += 1


def link(**options: Any) -> MirrorSettings:
    return MirrorSettings(PROPERTIES, PROPERTIES, "orders", "A-B", **options)


class Watch(LinkWatch):
    """A watch without a thread: the test takes the samples."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, settings: MirrorSettings | None = None, **options: Any) -> None:
        self.board = Board()
        self.clusters = Clusters()
        self.seconds = 100.0
        options = {"is_shown": False, "board": self.board, **options}
        super().__init__(settings or link(), {FIRST: 10, SECOND: 10}, **options)
        monkeypatch.setattr(module.time, "monotonic", lambda: self.seconds)

    def after(self, seconds: float, **ends: Ends | Exception) -> Any:
        """Takes a sample that much later."""
        self.seconds += seconds
        self.clusters.ends.update(ends)
        self.look(self.clusters)  # type: ignore[arg-type]
        return self.state

    def end(self) -> None:
        self.look_last(self.clusters)  # type: ignore[arg-type]


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(monkeypatch)


def report(time_ms: int, records: int = 0, **fields: Any) -> TaskReport:
    return TaskReport(time_ms, records=records, **fields)


def test_look_gives_the_board_ends_lag_and_rates(watch: Watch) -> None:
    watch.after(0)
    found = watch.after(4, source={FIRST: 30, SECOND: 10}, target={FIRST: 24, SECOND: 10})
    assert (found.partitions[FIRST].lag_offsets, found.partitions[SECOND].lag_offsets) == (6, 0)
    assert found.topics["orders"].offsets_per_s == 20 / 4
    assert watch.board.states() == [found]
    assert watch.copied == 20


def test_rates_are_those_of_the_last_seconds_and_never_negative(watch: Watch) -> None:
    watch.after(0)
    for step in range(1, 31):
        found = watch.after(1, target={FIRST: 4 + 100 * min(step, 15), SECOND: 10})
    assert found.topics["orders"].offsets_per_s == 0  # nothing came for 15 s
    assert watch.after(1, target={FIRST: 0, SECOND: 10}).topics["orders"].offsets_per_s == 0


def test_cluster_that_is_away_keeps_its_numbers_and_is_named(watch: Watch) -> None:
    watch.after(0)
    found = watch.after(1, source=ClusterUnreachableError("refused"))
    assert found.unreachable == {"source": "refused"}
    assert found.partitions[FIRST].lag_offsets == 6
    assert watch.after(1, source={FIRST: 12, SECOND: 10}).unreachable == {}


def test_cluster_that_refuses_our_login_needs_a_person_and_says_so_on_the_terminal(watch: Watch) -> None:
    said: list[str] = []
    watch._say = said.append
    why = "The source at a:1 refuses the login of user u"
    for _ in range(2):
        found = watch.after(1, source=LoginRefusedError(why, "source"))
        watch._away._since["source"] -= 10_000
    assert (found.unreachable, found.refused) == ({"source": why}, {"source"})
    assert health_of(found, found.time_ms)[1][0] == Reason(Health.BLOCKED, why)
    watch.after(1, source={FIRST: 12, SECOND: 10})
    assert said == [
        f"blocked: the source cluster refuses our login: {why}",
        "over: the source cluster refuses our login",
    ]


def test_what_is_refused_to_a_link_is_blocked_on_the_page_and_in_metrics_with_its_lag(watch: Watch) -> None:
    why = {NEW: "Link X copies into topic new of this target"}
    watch.tell(TaskReport(blocked=why))  # of the planner: no task has it, and none has ended yet
    found = watch.after(1, source={FIRST: 10, SECOND: 10, NEW: 9}, target={FIRST: 10, SECOND: 10, NEW: 2})
    new = found.topics["new"]
    assert (new.blocked, new.lag_offsets, found.every.blocked) == (1, 7, 1)
    found = watch.after(1, source={FIRST: 10, SECOND: 10, NEW: 9}, target={FIRST: 10, SECOND: 10, NEW: 8})
    assert (found.phase, watch.copied) == (Phase.STARTING, 0)  # that it moves is another link's doing
    watch.tell(report(1, 1, acked={FIRST: 10}, blocked=why))
    assert NEW in watch.state.partitions
    watch.tell(report(2, 1, acked={FIRST: 10}))  # it was taken out, or is free and nobody has begun it
    assert NEW not in watch.state.partitions
    watch.tell(report(3, 1, acked={FIRST: 10}, blocked=why))
    watch.tell(report(4, 1, acked={FIRST: 10, NEW: 9}))
    assert (NEW in watch.state.partitions, watch.state.every.blocked) == (True, 0)


@pytest.mark.parametrize("offsets", ["identical", "translated"])
def test_the_lag_of_a_blocked_partition_is_unknown_while_its_logs_differ(
    monkeypatch: pytest.MonkeyPatch, offsets: str
) -> None:
    watch, acked = Watch(monkeypatch, link(offsets=offsets)), {FIRST: 4, SECOND: 10}

    def asked() -> list[Any]:
        return [what for name, what in watch.clusters.asked if name == "unproved"]

    watch.tell(report(1, acked=acked))
    assert (watch.after(0).partitions[FIRST].lag_offsets, asked()) == (6, []), "nothing is blocked"
    watch.tell(report(2, acked=acked, blocked=dict.fromkeys((FIRST, SECOND), "the source was created again")))
    watch.clusters.others = None
    assert watch.after(1).partitions[FIRST].lag_offsets is None, "nobody has told yet"
    watch.clusters.others = {FIRST}
    found = watch.after(5)
    assert (found.partitions[FIRST].lag_offsets, found.partitions[SECOND].lag_offsets) == (None, 0)
    assert (found.every.lag_offsets, found.still) == (0, {}) and found.partitions[FIRST].target_end == 4
    assert asked() == [([FIRST, SECOND], offsets == "translated")] * 2, "once more after it failed"
    watch.after(1)
    assert len(asked()) == 2
    watch.after(30)
    assert len(asked()) == 3
    watch.tell(report(3, acked=acked))
    assert watch.after(1).partitions[FIRST].lag_offsets == 6, "the mirror has resumed"


def test_a_link_that_is_failed_over_while_partitions_stand_still_is_shown_without_its_source(
    monkeypatch: pytest.MonkeyPatch, watch: Watch
) -> None:
    now_ms = module._now_ms()
    monkeypatch.setattr(module, "_now_ms", lambda: now_ms + int(1000 * watch.seconds))
    watch.tell(report(1, acked={FIRST: 4, SECOND: 10}))
    watch.after(0)
    assert watch.after(40).waiting.keys() == {FIRST}
    watch.clusters.ordered = LinkControl(is_promotion_begun=True, is_fenced=True)
    watch.after(10, source=ClusterUnreachableError("gone for good"))
    found = watch.after(10)
    assert (found.waiting, health_of(found, found.time_ms)[0]) == ({}, Health.PROMOTED)


def test_what_somebody_deleted_on_the_target_waits_in_the_words_of_status_and_what_nobody_has_made_is_unknown(
    watch: Watch,
) -> None:
    watch.tell(report(1, acked={FIRST: 4, SECOND: 10}))
    assert (
        watch.after(0, source={FIRST: 10, SECOND: 10}, target={FIRST: 10, SECOND: 10}).partitions[FIRST].lag_offsets
        == 0
    )
    watch.tell(report(2, acked={FIRST: 4, SECOND: 10}, blocked={NEW: "refused"}))
    watch.clusters.without_leader["target"] = dict.fromkeys((FIRST, NEW), "the target has no such topic (any more)")
    watch.clusters.gone["target"] = dict.fromkeys((FIRST, NEW), "")
    found = watch.after(1, target={SECOND: 10})
    assert found.waiting.keys() == {FIRST} and found.leaderless == {}
    assert found.topics["orders"].waiting == 1
    assert found.partitions[FIRST].lag_offsets is None, "nothing of it is copied any more"
    (reason,) = [one for one in health_of(found, found.time_ms)[1] if one.health is Health.WAITING]
    assert reason.text.startswith("orders-0 since ") and reason.text.endswith(f": {DELETED_ON_TARGET}")
    since = found.waiting[FIRST]
    assert watch.after(1).waiting[FIRST] == since
    watch.clusters.without_leader.clear()
    assert watch.after(1, target={FIRST: 0, SECOND: 10}).waiting == {}


@pytest.mark.parametrize("offsets", ["identical", "translated"])
@pytest.mark.parametrize("why", [DELETED_ON_SOURCE, PARTITION_DELETED_ON_SOURCE])
def test_what_the_source_deleted_is_blocked_with_its_remedy_and_leaves_once_the_copy_is_deleted_too(
    monkeypatch: pytest.MonkeyPatch, offsets: str, why: str
) -> None:
    watch = Watch(monkeypatch, link(offsets=offsets))
    now_ms, acked = module._now_ms(), {FIRST: 10, SECOND: 10, NEW: 3}
    watch.tell(report(now_ms, acked=acked))
    watch.after(0, source={FIRST: 10, SECOND: 10, NEW: 3}, target={FIRST: 10, SECOND: 10, NEW: 3})
    watch.clusters.without_leader["source"] = {NEW: "the source has no such topic (any more)"}
    watch.clusters.gone["source"] = {NEW: why}
    found = watch.after(1, source={FIRST: 10, SECOND: 10})
    health, (reason, *_) = health_of(found, found.time_ms)
    assert (health, reason.text, found.leaderless) == (Health.BLOCKED, f"new-0: {why}", {})
    assert found.topics["new"].blocked == 1
    watch.clusters.ordered = LinkControl(paused=frozenset({"new"}))
    found = watch.after(5)
    assert (health_of(found, found.time_ms)[0], found.leaderless) == (Health.PAUSED, {}), "an operator has seen to it"
    watch.clusters.ordered = LinkControl()
    watch.after(5)

    watch.clusters.without_leader["target"] = {NEW: "the target has no such topic (any more)"}
    watch.clusters.gone["target"] = {NEW: ""}
    watch.tell(report(now_ms + 1, acked=acked, blocked={NEW: why}))  # the planner has not seen it yet
    assert health_of(watch.after(1, target={FIRST: 10, SECOND: 10}), now_ms)[0] is Health.HEALTHY
    watch.tell(report(now_ms + 2, acked=acked, waiting={NEW: Waiting("no leader on the source", 1)}))
    for found in (watch.state, watch.after(1), watch.after(20)):
        assert health_of(found, found.time_ms)[0] is Health.HEALTHY
        assert found.leaderless == {} and "new" not in found.topics

    watch.tell(report(now_ms + 3, acked=acked))
    watch.clusters.without_leader["source"], watch.clusters.gone["source"] = {}, {}
    watch.after(20, source={FIRST: 10, SECOND: 10, NEW: 1})
    assert watch.after(1).partitions[NEW].source_end == 1
    assert (NEW in watch.state.waiting) is (offsets == "identical")  # a mirror fills it again


@pytest.mark.parametrize("offsets", ["identical", "translated"])
def test_a_topic_of_translated_offsets_that_the_target_has_no_more_is_filled_again_by_nobody(
    monkeypatch: pytest.MonkeyPatch, offsets: str
) -> None:
    watch = Watch(monkeypatch, link(offsets=offsets))
    watch.tell(report(1, acked={FIRST: 4, SECOND: 10}))
    watch.after(0)
    watch.clusters.without_leader["target"] = {FIRST: "the target has no such topic"}
    watch.clusters.gone["target"] = {FIRST: ""}
    found = watch.after(1, target={SECOND: 10})
    assert (found.waiting.keys() == {FIRST}) is (offsets == "identical")
    assert bool(found.leaderless) is (offsets == "translated")


def test_partition_without_a_leader_keeps_what_was_known_of_it(watch: Watch) -> None:
    watch.after(0)
    found = watch.after(1, source={FIRST: 11}, target={FIRST: 5})
    assert (found.partitions[SECOND].source_end, found.partitions[SECOND].target_end, found.unreachable) == (10, 10, {})


def test_topics_that_tasks_copy_and_the_start_did_not_know_are_watched(watch: Watch) -> None:
    watch.tell(report(1, 7, acked={NEW: 7}, copied={NEW: Copied(7, 70)}))
    found = watch.after(1, source={FIRST: 10, SECOND: 10, NEW: 9}, target={FIRST: 4, SECOND: 10, NEW: 7})
    assert found.partitions[NEW].lag_offsets == 2
    assert watch.copied == 7 and watch.behind == [FIRST]


def test_age_is_asked_for_lagging_partitions_only_and_once_for_an_offset(watch: Watch) -> None:
    now_ms = module._now_ms()
    watch.clusters.times = {FIRST: now_ms - 5_000}
    age = watch.after(1).partitions[FIRST].lag_seconds(now_ms)
    assert age == 5.0 and watch.state.partitions[SECOND].lag_seconds(now_ms) == 0
    watch.after(1)
    assert [asked for asked in watch.clusters.asked if asked[0] == "oldest_ms"] == [("oldest_ms", {FIRST: 4})]
    watch.clusters.times = {}
    found = watch.after(1, target={FIRST: 6, SECOND: 10})
    assert watch.clusters.asked[-1] == ("oldest_ms", {FIRST: 6})
    assert found.partitions[FIRST].lag_seconds(now_ms) is None  # the old answer is not of this offset


def test_so_many_lagging_partitions_are_asked_for_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(monkeypatch)
    many = [TopicPartition("wide", index) for index in range(150)]
    watch.tell(report(1, acked=dict.fromkeys(many, 0)))
    for _ in range(3):
        watch.after(1, source=dict.fromkeys(many, 9), target=dict.fromkeys(many, 0))
    rounds = [set(asked) for name, asked in watch.clusters.asked if name == "oldest_ms"]
    assert {len(r) for r in rounds} == {MOST_AGES}
    assert set().union(*rounds) >= set(many)


def test_what_stands_still_is_known_after_one_turn_however_much_moves(watch: Watch) -> None:
    many = [TopicPartition("wide", index) for index in range(300)]
    stuck = many[170]
    watch.tell(report(1, acked=dict.fromkeys(many, 0)))
    watch.clusters.times = dict.fromkeys(many, 5)
    for number in range(1, 30):
        target = {p: 0 if p == stuck else number for p in many}
        watch.after(1, source=dict.fromkeys(many, 1_000), target=target)
    wide = watch.state.topics["wide"]
    assert watch.state.partitions[stuck].oldest_ms == 5
    assert wide.behind == 300 and 1 <= wide.aged <= MOST_AGES + 1


def test_size_of_offsets_is_what_was_copied_or_else_asked_for(watch: Watch) -> None:
    watch.after(1)
    assert watch.clusters.asked[-1] == ("bytes_per_offset", [FIRST])
    number = len(watch.clusters.asked)
    watch.tell(report(1, 200, copied={FIRST: Copied(200, 5_000)}))
    found = watch.after(61)
    assert found.partitions[FIRST].lag_bytes == 6 * 25
    assert "bytes_per_offset" not in [name for name, _ in watch.clusters.asked[number:]]


def test_question_for_sizes_that_failed_is_asked_again_soon_and_one_that_was_answered_in_a_minute(watch: Watch) -> None:
    watch.clusters.sizes = None
    counted = []
    for seconds, answer in ((1, None), (1, None), (5, {}), (30, {}), (31, {FIRST: 7.0}), (1, {})):
        watch.clusters.sizes = answer
        watch.after(seconds)
        counted.append([name for name, _ in watch.clusters.asked].count("bytes_per_offset"))
    assert counted == [1, 1, 2, 2, 3, 3]
    assert watch.state.partitions[FIRST].lag_bytes == 6 * 7


def test_translated_offsets_are_as_far_as_tasks_say(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(monkeypatch, link(offsets="translated"))
    assert watch.after(1, target={FIRST: 99, SECOND: 99}).partitions[FIRST].lag_offsets is None
    watch.tell(report(1, acked={FIRST: 8}))
    found = watch.after(1)
    assert (found.partitions[FIRST].lag_offsets, found.partitions[FIRST].target_end) == (2, 99)
    assert watch.behind == [FIRST, SECOND]


def test_a_query_that_starts_again_does_not_count_from_zero(watch: Watch) -> None:
    for time_ms, records in ((1, 50), (2, 80), (2, 80), (3, 5), (4, 9)):
        watch.tell(report(time_ms, records, recoveries={"lost": records}, copied={FIRST: Copied(records, records)}))
    assert watch.state.report.records == 89
    assert watch.state.report.recoveries == {"lost": 89}
    assert watch.state.report.copied[FIRST].records == 89


def test_sums_that_grow_at_the_time_of_the_last_micro_batch_count_and_what_it_copied_counts_once(watch: Watch) -> None:
    """The copy during Spark's start reports after Spark's last micro-batch (head_start.py)."""
    latest = {SECOND: Copied(3, 30)}
    watch.tell(report(7, 3, latest=latest))
    watch.tell_phase(Phase.STOPPED)
    watch.tell(report(7, 63, losses={FIRST: 1}, acked={FIRST: 60}, latest=latest))
    told = watch.state.report
    assert (told.records, told.losses, told.acked) == (63, {FIRST: 1}, {FIRST: 60})
    assert watch.state.recent == latest and watch.state.phase is Phase.STOPPED


def test_recent_is_what_was_copied_in_the_last_minute(watch: Watch) -> None:
    for time_ms, latency in ((1_000, 900), (30_000, 20), (70_000, 40)):
        watch.tell(report(time_ms, time_ms, latest={FIRST: Copied(1, 1, Span(), Span().seen(latency))}))
    assert watch.state.recent[FIRST].latency == Span(2, 60, 20, 40, 40)


def test_first_report_says_that_the_query_runs_and_restarts_are_counted(watch: Watch) -> None:
    assert watch.state.phase is Phase.STARTING
    watch.tell(TaskReport())
    assert watch.state.phase is Phase.STARTING
    watch.tell(report(1))
    assert watch.state.phase is Phase.RUNNING
    watch.tell_phase(Phase.RESTARTING, "why")
    watch.tell_phase(Phase.RESTARTING, "why again")
    watch.tell(report(2))
    assert (watch.state.phase, watch.state.restarts) == (Phase.RUNNING, 2)


def test_a_log_that_grows_says_that_the_query_runs(watch: Watch) -> None:
    watch.after(0)
    assert watch.after(1).phase is Phase.STARTING
    assert watch.after(1, target={FIRST: 5, SECOND: 10}).phase is Phase.RUNNING


def test_duties_and_groups_are_part_of_the_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(monkeypatch, duties={"heartbeats": 1.0, "sync of ACLs": 600.0})
    assert watch.state.duties == {"heartbeats": DutyState(0, "", 1.0), "sync of ACLs": DutyState(0, "", 600.0)}
    watch.sample.tell_duty("sync of ACLs", "refused")
    for latency in (10, 30):
        watch.sample.tell_groups([GroupState("billing", "orders", 0, 5, Span().seen(latency))])
    found = watch.after(1)
    told = found.duties["sync of ACLs"]
    assert (told.problem, told.interval_s) == ("refused", 600.0) and told.time_ms >= found.started_ms
    assert found.groups is not None and found.groups[0].latency == Span(2, 40, 10, 30, 30)


def test_what_the_operator_orders_is_read_at_times_and_kept_while_it_cannot_be(watch: Watch) -> None:
    watch.after(0)
    watch.clusters.ordered = LinkControl(paused=frozenset(("clicks", "orders")), bytes_per_s=1_000)
    assert watch.after(1).control == LinkControl()
    assert watch.after(2).control == watch.clusters.ordered
    before, watch.clusters.ordered = watch.clusters.ordered, ClusterUnreachableError("away")
    found = watch.after(3)
    assert (found.control, found.control_problem) == (before, "away")
    watch.clusters.ordered = before
    assert watch.after(3).control_problem == ""


def test_control_that_cannot_be_read_is_told_on_the_terminal_once(
    watch: Watch, capsys: pytest.CaptureFixture[str]
) -> None:
    watch.after(0)
    watch.clusters.ordered = OptionError("A record is none of ours")
    for _ in range(3):
        watch.after(3)
    said = "tolerant-kafka: unknown: whether an operator has paused, limited or promoted the link is unknown: A record is none of ours"
    assert capsys.readouterr().err.replace("\n", " ").count(said) == 1


def test_a_control_that_was_deleted_under_the_mirror_makes_its_orders_unknown(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    clusters = LinkClusters(PROPERTIES, PROPERTIES, "A-B", None)
    clusters._control.value = ordered = LinkControl(topics="orders", bytes_per_s=5)
    monkeypatch.setattr(clusters, "_ask", lambda *_: ordered)
    assert clusters.control() == ordered
    clusters._control._was_written = True
    with pytest.raises(OptionError) as caught:
        clusters.control()
    clusters.close()
    watch.clusters.ordered = ordered
    watch.after(0)
    watch.clusters.ordered = caught.value
    found = watch.after(3)
    health, reasons = health_of(found, found.time_ms)
    (text,) = [reason.text for reason in reasons if "tolerant-mirror-control" in reason.text]
    assert found.control == ordered and health is Health.UNKNOWN and "Stop that mirror and start it again" in text


def test_orders_and_losses_are_read_from_the_target_also_while_the_source_is_away(watch: Watch) -> None:
    watch.after(0)
    watch.clusters.ordered = LinkControl(is_promotion_begun=True)
    watch.clusters.rows = [loss(1, 5)]
    found = watch.after(11, source=ClusterUnreachableError("refused"))
    assert found.control.is_promotion_begun and found.ledger == (loss(1, 5),)
    found = watch.after(1, source={FIRST: 30, SECOND: 10}, target={FIRST: 31, SECOND: 11})
    assert found.topics["orders"].lag_offsets is None, (
        "the target's logs end with the fence's markers and others' records"
    )


def test_partitions_without_a_leader_are_counted(watch: Watch) -> None:
    watch.clusters.without_leader = {"source": {FIRST: "no leader", SECOND: "no leader"}}
    assert watch.after(1).leaderless == {"source": LeftOut(2, "orders-0: no leader")}
    watch.clusters.without_leader = {}
    assert watch.after(1).leaderless == {}


def loss(time_ms: int, start: int) -> LedgerRow:
    return LedgerRow(time_ms, "A-B", "orders", 0, start, start + 1, "retention", "")


def test_ledger_is_read_at_times_and_losses_since_the_start_are_told_at_the_end(watch: Watch) -> None:
    old, new, last = loss(1, 1), loss(1, 5), loss(1, 7)
    watch.clusters.rows = [old]
    watch.after(0)
    watch.clusters.rows = [old, new]
    assert watch.after(5).ledger == (old,)
    assert watch.after(6).ledger == (old, new)
    assert watch.losses == [new]
    watch.clusters.rows = [old, new, last]
    watch.end()
    assert watch.losses == [new, last]


def test_a_loss_that_was_found_before_the_first_look_is_one_of_this_mirror(watch: Watch) -> None:
    watch.clusters.rows = [loss(1, 1), early := loss(watch.state.started_ms + 1, 5)]
    watch.after(0)
    watch.end()
    assert watch.losses == [early]


def test_a_loss_that_a_killed_mirror_has_written_down_is_told_by_the_one_that_goes_on_behind_it(watch: Watch) -> None:
    other = loss(1, 9)._replace(partition=1)
    watch.clusters.rows = [loss(1, 1), killed := loss(1, 5), other]
    watch.after(0)
    watch.tell(report(1, 8, losses={FIRST: 1}))
    watch.end()
    assert watch.losses == [killed]
    watch.clusters.rows = [loss(1, 1), killed, new := loss(watch.state.started_ms + 1, 5)]
    watch.end()
    assert watch.losses == [new], "its own rows are all that is told of a partition that has some"


# -- life cycle ---------------------------------------------------------------


class Hanging(Clusters):
    """Clusters that do not respond until the test allows it."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = threading.Event()

    def _ends(self, name: str) -> dict[TopicPartition, int]:
        self.answers.wait(30)
        return super()._ends(name)


def living(monkeypatch: pytest.MonkeyPatch, clusters: Clusters | Exception, **options: Any) -> LinkWatch:
    """A watch with its thread, and these clusters."""

    def made(*_: Any) -> Any:
        if isinstance(clusters, Exception):
            raise clusters
        return clusters

    monkeypatch.setattr(module, "LinkClusters", made)
    return LinkWatch(link(), {FIRST: 10, SECOND: 10}, **{"is_shown": False, **options})


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_clusters_that_answer_nothing_delay_neither_start_nor_stop_and_what_tasks_told_is_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "END_S", 0.3)
    hanging = Hanging()
    began = time.monotonic()
    with living(monkeypatch, hanging, board=Board()) as watch:
        assert time.monotonic() - began < 0.5
        copied = {FIRST: Copied(6, 60), SECOND: Copied(2, 20)}
        watch.tell(report(1, 8, acked={FIRST: 10, SECOND: 10}, copied=copied))
        stopped = time.monotonic()
    assert time.monotonic() - stopped < module.END_S + 1
    assert (watch.copied, watch.behind) == (8, [])
    assert "the clusters did not tell how far the copies are: they did not respond in time" in capsys.readouterr().err
    hanging.answers.set()
    until(lambda: hanging.closed)  # the thread that was left to itself


def test_what_the_clusters_did_not_tell_at_the_end_names_its_partition(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clusters = Clusters()
    clusters.without_leader = {"target": {SECOND: "the target has no such topic (any more)"}}
    with living(monkeypatch, clusters) as watch:
        clusters.rows = [loss(watch.state.started_ms, 4)]
    assert watch.losses == clusters.rows, "the ledger is read all the same, though no task has reported a loss"
    said = "how far the copies are: orders-1: the target has no such topic"
    assert said in capsys.readouterr().err.replace("\n", " ")


def test_real_clusters_that_are_away_delay_neither_start_nor_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cluster, "connect", functools.partialmethod(Cluster.connect, timeout_ms=2_500))
    began = time.monotonic()
    with LinkWatch(link(once=True), {FIRST: 10}, is_shown=False, board=Board()) as watch:
        assert time.monotonic() - began < 2
    assert time.monotonic() - began < 2 + module.END_S + 1
    watch._thread.join()  # its clients draw from the random numbers that other tests count


def test_losses_that_tasks_found_and_the_ledger_did_not_tell_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    clusters = Clusters()
    with pytest.raises(TolerantClientError, match="did not tell what its ledger says was lost: away"):
        with living(monkeypatch, clusters) as watch:
            watch.tell(report(1, 8, losses={FIRST: 1}))
            clusters.ends["target"] = ClusterUnreachableError("away")


def test_last_look_sees_what_the_last_one_before_it_did_not(monkeypatch: pytest.MonkeyPatch) -> None:
    clusters = Clusters()
    with living(monkeypatch, clusters) as watch:
        until(lambda: watch.copied == 0 and watch.behind == [FIRST])
        clusters.ends["target"] = {FIRST: 10, SECOND: 10}
    assert (watch.copied, watch.behind, clusters.closed) == (6, [], 1)


def test_what_the_logs_gained_before_a_late_first_sample_counts_though_no_task_has_reported_it() -> None:
    """A blocked partition gains nothing, whatever another link writes there."""
    clusters: Any = Clusters()
    clusters.ends["target"] = {FIRST: 9, SECOND: 10}
    watch = LinkWatch(link(), {FIRST: 10, SECOND: 10}, {FIRST: 2, SECOND: 0}, is_shown=False)
    watch.tell(report(1, 1, acked={FIRST: 3}, copied={FIRST: Copied(1, 10)}, blocked={SECOND: "refused"}))
    watch.look(clusters)
    assert watch.copied == 7


def test_what_nobody_thought_of_is_shown_and_the_watch_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clusters, board = Clusters(), Board()
    clusters.ends["target"] = KeyError("x")
    with living(monkeypatch, clusters, board=board) as watch:
        until(lambda: watch.state.blind)
        assert board.states()[0].blind == "KeyError: 'x'"
        time.sleep(0.6)  # it has looked once more
        clusters.ends["target"] = {FIRST: 5}
        until(lambda: not watch.state.blind)
        assert board.states()[0].partitions[FIRST].target_end == 5
    assert len([record for record in caplog.records if "cannot check" in record.message]) == 1


def test_clients_that_cannot_be_made_are_shown_and_end_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    board = Board()
    with living(monkeypatch, ClusterUnreachableError("no token"), board=board):
        until(lambda: board.states() and board.states()[0].blind)
        assert "no token" in board.states()[0].blind


@pytest.mark.parametrize(
    ("error", "phase", "problem"),
    [(None, Phase.STOPPED, ""), (TolerantClientError("diverged"), Phase.FAILED, "diverged")],
)
def test_however_a_mirror_ends_the_board_is_told(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None, phase: Phase, problem: str
) -> None:
    board = Board()
    try:
        with living(monkeypatch, Clusters(), board=board):
            if error is not None:
                raise error
    except TolerantClientError:
        pass
    (found,) = board.states()
    assert (found.phase, found.problem) == (phase, problem)


@pytest.mark.parametrize("gone", [BrokenPipeError(), ValueError("I/O operation on closed file")])
def test_terminal_that_is_gone_ends_nothing(monkeypatch: pytest.MonkeyPatch, gone: Exception) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise gone

    console = Terminal(file=Gone(), force_terminal=True)
    with living(monkeypatch, Clusters(), is_shown=True, console=console) as watch:
        watch.tell(report(1, blocked={FIRST: "too large"}))
        watch.tell(report(2, blocked={SECOND: "too large"}))
    assert watch.standing.blocked == {SECOND: "too large"}


def test_terminal_shows_topics_rates_pauses_and_clusters_that_are_away(monkeypatch: pytest.MonkeyPatch) -> None:
    text = io.StringIO()
    console = Console(file=text, width=120, force_terminal=True)
    watch = Watch(monkeypatch, is_shown=True, console=console)
    watch.after(0)
    watch.tell(report(1, blocked={FIRST: "too large"}))
    for ends in ({FIRST: 8, SECOND: 10}, ClusterUnreachableError("refused")):
        watch.after(2, target=ends)
        watch._bars.progress.refresh()
    watch._bars.stop()
    shown = text.getvalue()
    for words in (
        "orders",
        "18/20",
        "2 offsets/s",
        "1 blocked",
        "no response from the target",
        "blocked: orders-0: too large",
    ):
        assert words in shown, words


def test_terminal_shows_many_topics_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    text = io.StringIO()
    watch = Watch(monkeypatch, is_shown=True, console=Console(file=text, width=120, force_terminal=True))
    watch.after(1)
    many = {TopicPartition(f"t{n}", 0): n for n in range(21)}
    watch.tell(report(1, acked=many))
    watch._bars.start()
    watch.after(1, source={**many, FIRST: 10, SECOND: 10}, target={**dict.fromkeys(many, 0), FIRST: 10, SECOND: 10})
    assert [task.description for task in watch._bars.progress.tasks] == ["22 topics"]
    watch._bars.progress.refresh()
    watch._bars.stop()
    assert "20/230" in text.getvalue() and "210 behind" in text.getvalue()


# -- what does not move -------------------------------------------------------


def test_what_stands_still_is_told_on_the_terminal_though_nothing_is_shown(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now_ms = module._now_ms()
    watch.tell(report(1, acked={FIRST: 4}))
    for seconds in (0, 10, 24):
        monkeypatch.setattr(module, "_now_ms", lambda: now_ms + seconds * 1000)
        assert watch.after(1).still == {}
    monkeypatch.setattr(module, "_now_ms", lambda: now_ms + 26_000)
    assert watch.after(1).still == {FIRST: now_ms}
    assert watch.after(1).waiting[FIRST].reason == "it is at offset 4, and no task has said why"
    without_spark = replace(watch.after(1), has_spark=False).waiting[FIRST].reason
    assert without_spark == "it is at offset 4, and its copier has not said why"
    limited = replace(watch.after(1), control=LinkControl(bytes_per_s=50)).waiting[FIRST].reason
    assert limited.endswith("why; the link is limited to 50 bytes a second (tolerant-kafka throttle changes that)")
    assert capsys.readouterr().err.count("waiting: orders-0 since") == 1
    assert watch.after(1, target={FIRST: 5, SECOND: 10}).still == {}


@pytest.mark.parametrize("has_spark", [False, True])
def test_what_spark_has_not_begun_is_told_after_two_minutes(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], has_spark: bool
) -> None:
    watch.sample.change(lambda state: replace(state, has_spark=has_spark))
    now_ms = module._now_ms()
    for seconds in (0, 30, 110, 130, 140):
        assert not capsys.readouterr().err
        monkeypatch.setattr(module, "_now_ms", lambda: now_ms + seconds * 1000)
        assert (FIRST in watch.after(1).still) == (seconds > 25)
        if seconds == 130:
            said = capsys.readouterr().err
            why = (
                "no task has begun yet: Spark is still starting them"
                if has_spark
                else "its copier has reported nothing"
            )
            assert said.count("waiting: orders-0 since") == 1 and why in said and ("Spark" in said) == has_spark


def test_why_it_stands_is_what_the_task_says_and_told_once(watch: Watch, capsys: pytest.CaptureFixture[str]) -> None:
    watch.after(0)
    for time_ms in (1, 2):
        watch.tell(report(time_ms, waiting={FIRST: Waiting("append answered NotEnoughReplicasError", 5)}))
    assert capsys.readouterr().err == "tolerant-kafka: waiting: orders-0: append answered NotEnoughReplicasError\n"
    watch.tell(report(3, acked={FIRST: 4}))  # a new task
    assert capsys.readouterr().err == ""
    watch.tell(report(4, acked={FIRST: 10}))
    assert capsys.readouterr().err == "tolerant-kafka: copying again: orders-0\n"


def test_lag_counts_to_the_high_watermark_and_says_whose_transaction_holds_it(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now_ms = module._now_ms()
    watch.clusters.stable = {FIRST: 4}
    one = OpenTransaction(FIRST, 7, 0, 4, now_ms - 60_000, 6)
    watch.clusters.open = [Held(FIRST, 4, 6, one, None, "kafka-transactions.sh abort")]
    found = watch.after(0)
    assert (found.topics["orders"].lag_offsets, found.topics["orders"].uncommitted, found.held) == (6, 6, ())
    monkeypatch.setattr(module, "_now_ms", lambda: now_ms + 6_000)
    found = watch.after(6)
    assert found.held == tuple(watch.clusters.open) and ("held", {FIRST: (4, 10)}) in watch.clusters.asked
    text = capsys.readouterr().err
    assert "orders-0: 6 offsets from 4 on wait for an open transaction (producer id 7" in text
    monkeypatch.setattr(module, "_now_ms", lambda: now_ms + 60_000)
    assert watch.after(60).still == {} and capsys.readouterr().err == ""  # it is not the mirror that stands
    watch.clusters.stable = {}
    assert watch.after(1).held == ()
    over = "tolerant-kafka: over: the open transaction that held up orders-0\n"
    assert capsys.readouterr().err == over and watch.after(1).held == () and capsys.readouterr().err == ""


def test_groups_that_were_moved_before_stay_with_where_they_were_left(watch: Watch) -> None:
    watch.sample.tell_groups([GroupState("billing", "orders", 0, 5, note="not all that it has read is copied yet")])
    watch.sample.tell_groups([GroupState("search", "orders", 0, 7)])
    assert [(g.group, g.offset, g.note) for g in watch.state.groups or ()] == [("billing", 5, ""), ("search", 7, "")]


@pytest.mark.parametrize("name", ["source", "target"])
@pytest.mark.parametrize("is_once", [False, True])
def test_a_cluster_that_is_away_is_told_once_and_once_when_it_responds_again_whoever_looks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, is_once: bool
) -> None:
    """Neither a page nor bars are shown."""
    watch = Watch(monkeypatch, link(once=is_once), board=None)
    now_ms = watch.state.started_ms
    monkeypatch.setattr(module, "_now_ms", lambda: now_ms)
    watch.tell(report(now_ms))
    watch.sample.tell_phase(Phase.RUNNING)
    before, away = watch.clusters.ends[name], ClusterUnreachableError("no response for 5 s")
    for _ in range(8):  # a source is asked again once the copy stands
        watch.after(5)
        now_ms += 5_000
    capsys.readouterr()
    for _ in range(4):
        watch.after(5, **{name: away})
        now_ms += 5_000
    told = capsys.readouterr().err.splitlines()
    assert told == [f"tolerant-kafka: unknown: the {name} cluster does not respond: no response for 5 s"]
    watch.after(5, **{name: before})
    assert capsys.readouterr().err == f"tolerant-kafka: over: the {name} cluster does not respond\n"


@pytest.mark.parametrize("is_once", [True, False])
def test_partitions_that_nobody_can_look_at_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_once: bool
) -> None:
    """A task whose Fetch waits for a frozen broker reports nothing."""
    watch = Watch(monkeypatch, link(once=is_once), board=None)
    now_ms = watch.state.started_ms
    monkeypatch.setattr(module, "_now_ms", lambda: now_ms)
    watch.clusters.without_leader = {"target": {FIRST: "it has no leader"}}
    for _ in range(3):
        watch.after(5)
        now_ms += 5_000
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith("tolerant-kafka: unknown: the target has partitions that cannot be checked: ")
    assert told.endswith("it has no leader")


def test_a_mirror_without_spark_does_not_say_that_spark_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    text = io.StringIO()
    with living(monkeypatch, Clusters(), is_shown=True, console=Console(file=text, force_terminal=True, width=120)):
        pass
    assert "Starting the mirror" in text.getvalue() and "Spark" not in text.getvalue()

"""watch.py and look.py: what a watch makes of what clusters and tasks tell; no broker."""

from __future__ import annotations

import io
import itertools
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from kafka.structs import TopicPartition
from rich.console import Console

from spark_integration.mirroring import watch as module
from spark_integration.mirroring.link_state import GroupState, Phase, TaskReport
from spark_integration.mirroring.watch import LinkWatch
from spark_integration.monitoring import look
from spark_integration.monitoring.board import Board
from tolerant_client.errors import ClusterUnreachableError
from tolerant_client.mirror.losses import LedgerRow
from tolerant_client.mirror.measures import Copied, Span
from tolerant_client.record_batch import Record, encode_batch

FIRST, SECOND, NEW = TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("new", 0)
PROPERTIES = {"bootstrap.servers": "127.0.0.1:1"}
Ends = Mapping[TopicPartition, int]


class Watch(LinkWatch):
    """A watch whose clusters say what the test wants, and whose thread sleeps: the test looks itself."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self.board = Board()
        self.ends: dict[str, Ends | Exception] = {"source": {FIRST: 10, SECOND: 10}, "target": {FIRST: 4, SECOND: 10}}
        self.rows: list[LedgerRow] = []
        self.asked: list[tuple[str, Any]] = []
        self.times: dict[TopicPartition, int] = {}
        self.sizes: dict[TopicPartition, float] | None = {}  # None: the question fails
        self.seconds = 100.0
        options = {"is_once": False, "is_shown": False, "board": self.board, **options}
        super().__init__(PROPERTIES, PROPERTIES, {FIRST: 10, SECOND: 10}, "A-B", **options)
        monkeypatch.setattr(self, "_run", lambda: None)
        self._thread = module.threading.Thread(target=lambda: None)
        monkeypatch.setattr(module.time, "monotonic", lambda: self.seconds)

    def _read(self, cluster: Any) -> dict[TopicPartition, int]:
        found = self.ends[cluster.name]
        if isinstance(found, Exception):
            raise found
        return dict(found)

    def _read_surely(self) -> dict[TopicPartition, int]:
        return self._read(self._target)

    def _read_ledger(self) -> list[LedgerRow]:
        return list(self.rows)

    def _quietly(self, read: Any, *arguments: Any) -> Any:
        if read == self._read_ledger:
            return super()._quietly(read)
        self.asked.append((arguments[0].__name__, arguments[2]))
        return dict(self.times) if arguments[0] is look.written_ms else self.sizes

    def after(self, seconds: float, **ends: Ends | Exception) -> Any:
        """Looks so much later."""
        self.seconds += seconds
        self.ends.update(ends)
        self._look()
        return self.state


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Any:
    with Watch(monkeypatch) as made:
        yield made


def report(time_ms: int, records: int = 0, **fields: Any) -> TaskReport:
    return TaskReport(time_ms, records=records, **fields)


def test_look_gives_the_board_ends_lag_and_rates(watch: Watch) -> None:
    watch.after(0)
    found = watch.after(4, source={FIRST: 30, SECOND: 10}, target={FIRST: 24, SECOND: 10})
    assert (found.partitions[FIRST].lag_offsets, found.partitions[SECOND].lag_offsets) == (6, 0)
    assert found.topics["orders"].records_per_s == 20 / 4
    assert watch.board.states() == [found]
    assert watch.copied == 20


def test_rates_are_those_of_the_last_seconds_and_never_negative(watch: Watch) -> None:
    watch.after(0)
    for step in range(1, 31):
        found = watch.after(1, target={FIRST: 4 + 100 * min(step, 15), SECOND: 10})
    assert found.topics["orders"].records_per_s == 0  # nothing came for 15 s
    assert watch.after(1, target={FIRST: 0, SECOND: 10}).topics["orders"].records_per_s == 0


def test_cluster_that_is_away_keeps_its_numbers_and_is_named(watch: Watch) -> None:
    watch.after(0)
    found = watch.after(1, source=ClusterUnreachableError("refused"))
    assert found.unreachable == {"source": "refused"}
    assert found.partitions[FIRST].lag_offsets == 6
    assert watch.after(1, source={FIRST: 12, SECOND: 10}).unreachable == {}


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
    watch.times = {FIRST: now_ms - 5_000}
    age = watch.after(1).partitions[FIRST].lag_seconds(now_ms)
    assert age == 5.0 and watch.state.partitions[SECOND].lag_seconds(now_ms) == 0
    watch.after(1)
    assert [asked for asked in watch.asked if asked[0] == "written_ms"] == [("written_ms", {FIRST: 4})]
    watch.times = {}
    found = watch.after(1, target={FIRST: 6, SECOND: 10})
    assert watch.asked[-1] == ("written_ms", {FIRST: 6})
    assert found.partitions[FIRST].lag_seconds(now_ms) is None  # the old answer is not of this offset


def test_so_many_lagging_partitions_are_asked_for_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    with Watch(monkeypatch) as watch:
        many = [TopicPartition("wide", index) for index in range(150)]
        watch.tell(report(1, acked=dict.fromkeys(many, 0)))
        for _ in range(3):
            watch.after(1, source=dict.fromkeys(many, 9), target=dict.fromkeys(many, 0))
        rounds = [set(asked) for name, asked in watch.asked if name == "written_ms"]
        assert {len(r) for r in rounds} == {look.MOST_AGES}
        assert set().union(*rounds) >= set(many)


def test_size_of_offsets_is_what_was_copied_or_else_asked_for(watch: Watch) -> None:
    watch.after(1)
    assert watch.asked[-1] == ("bytes_per_offset", [FIRST])
    number = len(watch.asked)
    watch.tell(report(1, 200, copied={FIRST: Copied(200, 5_000)}))
    found = watch.after(61)
    assert found.partitions[FIRST].lag_bytes == 6 * 25
    assert "bytes_per_offset" not in [name for name, _ in watch.asked[number:]]


def test_question_for_sizes_that_failed_is_asked_again_soon_and_one_that_was_answered_in_a_minute(watch: Watch) -> None:
    watch.sizes = None
    counted = []
    for seconds, answer in ((1, None), (1, None), (5, {}), (30, {}), (31, {FIRST: 7.0}), (1, {})):
        watch.sizes = answer
        watch.after(seconds)
        counted.append([name for name, _ in watch.asked].count("bytes_per_offset"))
    assert counted == [1, 1, 2, 2, 3, 3]
    assert watch.state.partitions[FIRST].lag_bytes == 6 * 7


def test_translated_offsets_are_as_far_as_tasks_say(monkeypatch: pytest.MonkeyPatch) -> None:
    with Watch(monkeypatch, offsets="translated") as watch:
        assert watch.after(1, target={FIRST: 99, SECOND: 99}).partitions[FIRST].lag_offsets is None
        watch.tell(report(1, acked={FIRST: 8}))
        found = watch.after(1)
        assert (found.partitions[FIRST].lag_offsets, found.partitions[FIRST].target_end) == (2, 99)


def test_a_query_that_starts_again_does_not_count_from_zero(watch: Watch) -> None:
    for time_ms, records in ((1, 50), (2, 80), (2, 80), (3, 5), (4, 9)):
        watch.tell(report(time_ms, records, recoveries={"lost": records}, copied={FIRST: Copied(records, records)}))
    assert watch.state.report.records == 89
    assert watch.state.report.recoveries == {"lost": 89}
    assert watch.state.report.copied[FIRST].records == 89


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


def test_duties_groups_and_orders_are_part_of_the_sample(watch: Watch) -> None:
    watch.tell_duty("sync_topic_acls", "refused")
    watch.tell_duty("emit_heartbeat")
    watch.tell_control(["orders-1", "clicks"], 1_000, True)
    for latency in (10, 30):
        watch.tell_groups([GroupState("billing", "orders", 0, 5, Span().seen(latency))])
    found = watch.after(1)
    assert found.duties == {"sync_topic_acls": "refused", "emit_heartbeat": ""}
    assert (found.held, found.throttle_bytes, found.is_promoted) == (("clicks", "orders-1"), 1_000, True)
    assert found.groups[0].latency == Span(2, 40, 10, 30, 30)


def test_ledger_is_read_at_times_and_losses_since_the_start_are_told_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = (LedgerRow(1, "A-B", "orders", 0, start, start + 1, "retention", "") for start in (1, 5))
    made = Watch(monkeypatch)
    made.rows = [old]
    with made as watch:
        watch.after(0)
        watch.rows = [old, new]
        assert watch.after(5).ledger == (old,)
        assert watch.after(6).ledger == (old, new)
    assert made.losses == [new]


def test_terminal_shows_topics_rates_pauses_and_clusters_that_are_away(monkeypatch: pytest.MonkeyPatch) -> None:
    text = io.StringIO()
    console = Console(file=text, width=120, force_terminal=True)
    with Watch(monkeypatch, is_shown=True, console=console) as watch:
        watch.after(0)
        watch.tell(report(1, paused={FIRST: "too large"}))
        watch.after(2, target={FIRST: 8, SECOND: 10})
        watch._bars.show(watch.state, watch._goals)
        watch._bars.progress.refresh()
        watch.after(1, target=ClusterUnreachableError("refused"))
        watch._bars.show(watch.state, watch._goals)
        watch._bars.progress.refresh()
        watch.ends["target"] = {FIRST: 8, SECOND: 10}
    shown = text.getvalue()
    for words in ("orders", "18/20", "2 rec/s", "1 paused", "no answer from the target", "paused: orders-0: too large"):
        assert words in shown, words


def test_terminal_shows_many_topics_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    text = io.StringIO()
    with Watch(monkeypatch, is_shown=True, console=Console(file=text, width=120, force_terminal=True)) as watch:
        watch._bars.show(watch.state, watch._goals)
        many = {TopicPartition(f"t{n}", 0): n for n in range(21)}
        watch.tell(report(1, acked=many))
        watch.after(1, source={**many, FIRST: 10, SECOND: 10}, target={**dict.fromkeys(many, 0), FIRST: 10, SECOND: 10})
        watch._bars.show(watch.state, watch._goals)
        assert [task.description for task in watch._bars.progress.tasks] == ["22 topics"]
        watch._bars.progress.refresh()
    assert "20/230" in text.getvalue() and "210 behind" in text.getvalue()


# -- what is asked of a cluster -----------------------------------------------


class Cluster:
    """A source with two brokers; `led` are the partitions that have a leader."""

    def __init__(self, led: Mapping[TopicPartition, int], batches: Mapping[TopicPartition, bytes]) -> None:
        self.led, self.batches = led, batches
        self.fetched: list[list[TopicPartition]] = []
        self.refreshed = 0

    async def connect(self) -> None: ...
    async def track(self, topics: Any) -> None: ...
    def known_leader(self, partition: TopicPartition) -> int | None:
        return self.led.get(partition)

    async def refresh(self) -> None:
        self.refreshed += 1

    async def by_leader(self, partitions: Any) -> dict[int, list[TopicPartition]]:
        keyed = sorted(partitions, key=lambda p: self.led[p])
        return {node: list(group) for node, group in itertools.groupby(keyed, key=lambda p: self.led[p])}

    async def fetch(self, node: int, positions: Mapping[TopicPartition, int], **limits: int) -> list[Any]:
        assert limits["max_bytes"] <= 1 << 20 and limits["max_wait_ms"] == 0
        self.fetched.append(list(positions))
        return [
            SimpleNamespace(partition=p, error_code=0, records=memoryview(self.batches.get(p, b""))) for p in positions
        ]


def done(coroutine: Any) -> Any:
    with pytest.raises(StopIteration) as stopped:
        coroutine.send(None)
    return stopped.value.value


def test_times_are_those_of_the_first_record_and_partitions_without_a_leader_are_left_out() -> None:
    batch = encode_batch([Record(0, 5_000, b"k", b"v"), Record(1, 9_000, b"k", b"v")])
    timeless = encode_batch([Record(0, -1, b"k", b"v")])
    cluster = Cluster({FIRST: 1, NEW: 2}, {FIRST: batch, NEW: timeless})
    assert done(look.written_ms(cluster, {FIRST: 4, SECOND: 4, NEW: 4})) == {FIRST: 5_000}  # type: ignore[arg-type]
    assert cluster.fetched == [[FIRST], [NEW]] and cluster.refreshed == 1


def test_no_more_than_the_limit_is_fetched() -> None:
    many = {TopicPartition("wide", index): 1 for index in range(500)}
    cluster = Cluster(many, {})
    assert done(look.written_ms(cluster, many)) == {}  # type: ignore[arg-type]
    assert [len(asked) for asked in cluster.fetched] == [look.MOST_AGES]

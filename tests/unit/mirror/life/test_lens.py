"""lens.py: what is asked of a cluster, and how much of it; no broker."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import kafka.errors as Errors
import pytest
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin import ask_nodes as ask_nodes_module
from tolerant_client.cluster.admin.offsets import LedOffsets, LogOffsets
from tolerant_client.errors import ClusterUnreachableError
from tolerant_client.mirror.life import fence, lens
from tolerant_client.mirror.life.lens import PartitionLag
from tolerant_client.mirror.state.link_control import LinkControl, TopicIds
from tolerant_client.mirror.state.replication_policy import IdentityReplicationPolicy, TopicNames
from tolerant_client.mirror.state.topic_filter import LinkTopics, TopicFilter
from tolerant_client.records.record_batch import Record, encode_batch

FIRST, SECOND, NEW = TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("new", 0)


class FakeCluster:
    """A source with two brokers; `led` are the partitions that have a leader."""

    def __init__(self, led: Mapping[TopicPartition, int], batches: Mapping[TopicPartition, bytes]) -> None:
        self.led, self.batches = led, batches
        self.fetched: list[list[TopicPartition]] = []
        self.refreshed = 0
        self.wanted = 0  # refreshes that nobody waits for
        metadata = SimpleNamespace(
            partitions_for_topic=lambda topic: {"orders": {0, 1}}.get(topic), request_update=self._request_update
        )
        self.manager = SimpleNamespace(cluster=metadata)

    patience_ms = 5_000

    def _request_update(self) -> None:
        self.wanted += 1

    async def connect(self, timeout_ms: int) -> None: ...
    def wire_topic(self, topic: str) -> str:
        return topic

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
    cluster = FakeCluster({FIRST: 1, NEW: 2}, {FIRST: batch, NEW: timeless})
    assert done(lens.oldest_ms(cluster, {FIRST: 4, SECOND: 4, NEW: 4})) == {FIRST: 5_000}  # type: ignore[arg-type]
    assert cluster.fetched == [[FIRST], [NEW]] and cluster.refreshed == 1


@pytest.mark.parametrize("has_broker", [True, False])
@pytest.mark.parametrize("told", [{}, {FIRST: 7}], ids=["nobody", "somebody"])
def test_a_cluster_is_away_where_no_leader_has_told_anything_and_no_other_broker_responds(
    told: dict[TopicPartition, int], has_broker: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_out = {SECOND: "node 1 of the source, which leads it, does not respond: refused"}

    async def led(*_: Any, **__: Any) -> LedOffsets:
        return LedOffsets(told, left_out)

    async def require_broker() -> None:
        if not has_broker:
            raise ClusterUnreachableError("away")

    cluster = FakeCluster({}, {})
    cluster.require_broker = require_broker  # type: ignore[attr-defined]

    async def led_logs(*_: Any) -> tuple[dict[TopicPartition, LogOffsets], dict[TopicPartition, str]]:
        return {p: LogOffsets(0, end, end) for p, end in told.items()}, left_out

    monkeypatch.setattr(lens, "list_led_offsets", led)
    monkeypatch.setattr(lens, "list_led_log_offsets", led_logs)
    lag: Any = lens.look_led(cluster, cluster, "dr", [FIRST, SECOND], False, LinkControl(), None)  # type: ignore[arg-type]
    ends: Any = lens.log_ends(cluster, [FIRST, SECOND])  # type: ignore[arg-type]
    if told or has_broker:
        assert done(ends) == LedOffsets(told, left_out)
        assert cluster.wanted == bool(told), "a silent leader may have been replaced by the next check"
        assert done(lag)[1].keys() >= left_out.keys()
    else:
        for course in (ends, lag):
            with pytest.raises(ClusterUnreachableError):
                course.send(None)


def test_what_a_former_leader_denies_is_told_as_the_new_metadata_tells_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that was deleted a moment ago: its leader says UnknownTopicOrPartition, and the Metadata that we have is older."""

    class Deleted(FakeCluster):
        name, net = "target", SimpleNamespace(sleep=AsyncMock())

        async def connect(self, timeout_ms: int = 0) -> None: ...
        async def refresh(self) -> None:
            self.led = {FIRST: 1}

        def why_leaderless(self, partition: TopicPartition) -> str:
            return "the target has no such topic (any more)"

        async def offsets_at(
            self, node_id: int, members: Any, timestamps: Any, level: int
        ) -> dict[TopicPartition, Any]:
            gone = Errors.UnknownTopicOrPartitionError("new-0")
            return {p: gone if p == NEW else 7 for p in members}

    async def ask_nodes(cluster: Any, by_node: Any, ask: Any, within_s: float) -> dict[TopicPartition, Any]:
        return {p: told for node, members in by_node.items() for p, told in (await ask(node, members)).items()}

    monkeypatch.setattr(ask_nodes_module, "ask_nodes", ask_nodes)
    found = asyncio.run(lens.log_ends(Deleted({FIRST: 1, NEW: 1}, {}), [FIRST, NEW]))  # type: ignore[arg-type]
    assert found == LedOffsets({FIRST: 7}, {NEW: "the target has no such topic (any more)"})


def test_no_more_than_the_limit_is_fetched() -> None:
    many = {TopicPartition("wide", index): 1 for index in range(500)}
    cluster = FakeCluster(many, {})
    assert done(lens.oldest_ms(cluster, many)) == {}  # type: ignore[arg-type]
    assert [len(asked) for asked in cluster.fetched] == [lens.MOST_AGES]


def test_what_is_left_to_copy_begins_where_the_sources_log_does() -> None:
    """A log start that is half done has filler up to there, and an empty log nothing."""
    for position in (0, 1_056_770, 6_000_000):
        lag = PartitionLag(TopicPartition("orders", 0), position, 6_000_100, 6_000_100, 6_000_000)
        assert (lag.lag_offsets, lag.copyable) == (100, 100)


class Logs:
    """A target whose logs end at these offsets; `markers` are those of the link's own producer id."""

    name, patience_ms = "target", 5_000

    def __init__(self, ends: Mapping[TopicPartition, int]) -> None:
        self.ends = ends

    async def list_offsets(self, wanted: Any) -> dict[TopicPartition, int]:
        return {p: self.ends[p] for p in wanted}


@pytest.mark.parametrize(
    ("control", "positions"),
    [
        (LinkControl(), {FIRST: 120, SECOND: 8}),
        (LinkControl(topics="", source_cluster_id="A", adopted={FIRST: 90}), {FIRST: 90, SECOND: 0}),  # prepared only
        (
            LinkControl(is_promotion_begun=True, is_fenced=True, copied_until={FIRST: 100, SECOND: 7}),
            {FIRST: 100, SECOND: 7},
        ),
        (LinkControl(is_promotion_begun=True, is_fenced=True), {}),  # of version 0.1
        (LinkControl(is_promotion_begun=True, producer_ids=(7,)), {FIRST: 120, SECOND: 7}),  # killed after its fence
        (
            LinkControl(is_promotion_begun=True, copied_until={FIRST: 100}, unfenced=frozenset({SECOND})),
            {FIRST: 100, SECOND: 8},
        ),
        (LinkControl(is_promotion_begun=True, unfenced=frozenset({SECOND}), producer_ids=(7,)), {SECOND: 7}),
    ],
)
def test_a_promoted_link_had_copied_up_to_where_its_fence_said(
    control: LinkControl, positions: dict[TopicPartition, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Markers of a fence, and what others have written since, are no copies; an unknown end is neither 0 nor the log's."""

    async def read_headers(_: Any, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, Any]:
        return {
            p: SimpleNamespace(
                is_control=(p, offset) == (SECOND, 7), producer_id=7, base_offset=offset, next_offset=offset + 1
            )
            for p, offset in wanted.items()
        }

    monkeypatch.setattr(fence, "read_headers", read_headers)
    target: Any = Logs({FIRST: 120, SECOND: 8})
    assert done(lens.positions(target, "dr", [FIRST, SECOND], False, control)) == positions

    async def led(_: Any, wanted: Any, **__: Any) -> LedOffsets:
        return LedOffsets({p: target.ends[p] for p in wanted}, {})

    monkeypatch.setattr(lens, "list_led_offsets", led)
    lags, left_out = done(lens.look_led(None, target, "dr", [FIRST, SECOND], False, control, None))
    assert {e.partition: e.position for e in lags} == positions
    assert left_out == {p: lens.END_UNKNOWN for p in (FIRST, SECOND) if p not in positions}


def test_a_promoted_link_with_translated_offsets_had_copied_nothing_of_what_its_fence_does_not_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its topics match others' topics that both clusters have."""

    async def led(_: Any, wanted: Any, **__: Any) -> LedOffsets:
        return LedOffsets(dict.fromkeys(wanted, 1), {})

    async def respond(value: Any) -> Any:
        return value

    control = LinkControl(is_promotion_begun=True, is_fenced=True, copied_until={FIRST: 100})
    monkeypatch.setattr(lens, "list_led_offsets", led)
    monkeypatch.setattr(lens, "copied_until", lambda *_: respond({FIRST: 100, SECOND: 0}))
    target: Any = Logs({})
    lags, left_out = done(lens.look_led(None, target, "dr", [FIRST, SECOND], True, control, None))
    assert {e.partition: e.position for e in lags} == {FIRST: 100} and left_out == {SECOND: lens.NEVER_HAD}


def test_a_map_that_is_lost_is_not_asked_for_again() -> None:
    """Each of the looks at it waits several times before it believes that it is lost."""
    target: Any = None
    assert done(lens.look_led(None, target, "dr", [FIRST], True, LinkControl(), "deleted")) == (
        [],
        {FIRST: lens.MAP_LOST},
    )


def test_what_one_broker_of_the_source_does_not_tell_is_unknown_and_delays_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def led(_: Any, wanted: Any, patience_ms: int) -> Any:
        assert patience_ms == 7
        return {FIRST: LogOffsets(0, 10, 10)}, {SECOND: "it has no leader on the source"}

    monkeypatch.setattr(lens, "list_led_log_offsets", led)
    clusters: Any = Logs({FIRST: 8, SECOND: 5})
    clusters.manager = SimpleNamespace(cluster=Mock())
    first, second = done(lens.look(clusters, clusters, "dr", [FIRST, SECOND], False, LinkControl(), patience_ms=7))
    assert (first.lag_offsets, first.untold) == (2, None)
    assert (second.position, second.lag_offsets, second.untold) == (5, None, "it has no leader on the source")


def test_what_the_source_has_deleted_counts_as_left_from_where_the_copy_was_to_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A copy that was not begun would begin at the source's log start; heartbeats are no data."""
    names = ("copied", "begun", "filled", "dated", "unbegun", "A.heartbeats")
    wanted = {TopicPartition(name, 0): position for name, position in zip(names, (100, 0, 30, 0, 0, 100))}
    copied, begun, filled, dated, unbegun, beats = wanted

    async def respond(value: Any) -> Any:
        return value

    control = LinkControl(
        is_promotion_begun=True,
        is_fenced=True,
        topics=LinkTopics(TopicFilter((".*",)), TopicNames(IdentityReplicationPolicy(), "A")).to_json(),
        begun=dict.fromkeys((copied, begun, filled, dated, beats), TopicIds()),
        log_starts={filled: 150},
        starts={dated: 60},
        copied_until=wanted,
    )
    logs = dict.fromkeys(wanted, LogOffsets(150, 160, 160))
    monkeypatch.setattr(lens, "list_led_log_offsets", lambda *_: respond((logs, {})))
    monkeypatch.setattr(lens, "copied_until", lambda *_: respond(wanted))
    monkeypatch.setattr(lens, "last_rows", lambda *_: respond({begun: None}))
    clusters: Any = Logs(wanted)
    for is_translated in (False, True):
        lags = done(lens.look(clusters, clusters, "dr", [*wanted], is_translated, control))
        of = {e.partition: (e.deleted, e.left_offsets) for e in lags}
        assert of[copied] == ((100, 150), 60) and of[begun] == ((0, 150), 160)
        assert of[filled] == of[unbegun] == of[beats] == (None, 10)
        assert of[dated] == ((None, 10) if is_translated else ((60, 150), 100))
    assert PartitionLag(copied, 100, 160, None, 150, begun_at=0).deleted is None
    assert PartitionLag(copied, 100, 160, 160, 150).left_offsets == 10

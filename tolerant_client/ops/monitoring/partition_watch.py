"""What a watch keeps about a link's partitions between samples: lag, age, size, rate, and what does not move.

Law: how much is copied of a blocked partition whose logs differ is unknown, as in `status`: its position is one in another log.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import LedOffsets
from tolerant_client.mirror.life.lens import MOST_AGES, SourceEnds, open_spans
from tolerant_client.mirror.state.health import STILL_AFTER_S
from tolerant_client.mirror.state.open_transactions import Held
from tolerant_client.ops.monitoring.estimates import Ages, Rates, Standstill, sizes_by_topic
from tolerant_client.ops.monitoring.link_clusters import LinkClusters, quietly
from tolerant_client.ops.service.link_state import LinkState, PartitionState

_HELD_INTERVAL_S = 10.0
_HELD_AFTER_MS = 5_000  # most transactions have ended by then
_MOST_HELD = 50  # partitions for which the open transactions are asked
_SIZES_INTERVAL_S = 60.0
_UNPROVED_INTERVAL_S = 30.0
_AGAIN_S = 5.0  # after a question failed

States = Mapping[TopicPartition, PartitionState]
Offsets = Mapping[TopicPartition, int]


class Deletions(NamedTuple):
    """Partitions that a cluster lacks, in LinkState's fields."""

    deleted: Mapping[TopicPartition, int]
    left_behind: Mapping[TopicPartition, str]
    absent: frozenset[TopicPartition]


def deletions(
    clusters: LinkClusters,
    state: LinkState,
    target: LedOffsets | None,
    source: SourceEnds | None,
    *,
    is_identical: bool,
    now_ms: int,
) -> Deletions:
    """Which partitions the clusters lack, by what they have just said; what a cluster did not say stays as it was.

    A translated copy that the target lacks is not filled again, so it does not wait.
    """
    before = Deletions(state.deleted, state.left_behind, state.absent)
    if target is None:
        return before
    on_target = clusters.not_on_target(target.left_out)
    gone = before.left_behind if source is None else clusters.not_on_source(source.left_out)
    on_source = gone.keys() | before.absent if source is None else gone.keys()
    unasked = before.absent - target.left_out.keys() - target.offsets.keys()
    absent = frozenset(on_source & on_target | unasked)
    begun = {p for p in (on_source | on_target) - absent if state.has_begun(p) and p not in state.report.blocked}
    waiting = on_target & begun if is_identical else set()
    deleted = {p: before.deleted.get(p, now_ms) for p in waiting}
    left_behind = {p: why for p, why in gone.items() if p in begun and p in target.offsets}
    return Deletions(deleted, left_behind, absent)


class PartitionWatch:
    """Takes the observations of each sample; `now` is monotonic seconds."""

    def __init__(self, *, is_identical: bool) -> None:
        self._is_identical = is_identical
        self._rates = Rates()
        self._ages = Ages()
        self._sizes: Mapping[TopicPartition, float] = {}
        self._held = Standstill()
        self._still = Standstill()
        self._unproved: Collection[TopicPartition] = ()
        self._blocked: Collection[TopicPartition] = ()
        self._held_at = self._sizes_at = self._unproved_at = float("-inf")

    def states(
        self,
        clusters: LinkClusters,
        state: LinkState,
        source: SourceEnds | None,
        target_ends: Offsets,
        left_out: Collection[TopicPartition],
        now: float,
        *,
        may_ask: bool,
    ) -> dict[TopicPartition, PartitionState]:
        """The partitions of `state` as of now; with `may_ask` the clusters are asked for ages, sizes, and blocked logs that differ.

        A promoted link has no lag here: others write to the target's logs, and maybe back to the source's (left_behind.py).
        """
        ends, stable = (source.ends, source.stable) if source is not None else ({}, {})
        positions = dict(target_ends if self._is_identical else state.report.acked)
        if state.control.is_promotion_begun:
            positions = {}
        if may_ask:
            self._compare(clusters, state, state.report.blocked.keys() & positions.keys(), now)
        positions = {p: at for p, at in positions.items() if p not in self._unproved}
        rates = self._rates.of(now, positions)
        topics = sizes_by_topic(state.report.copied)
        states = {
            p: PartitionState(
                p,
                positions.get(p),
                stable.get(p, known.stable_end),
                ends.get(p, known.source_end),
                bytes_per_offset=topics.get(p.topic) or self._sizes.get(p),
                target_end=target_ends.get(p),
                offsets_per_s=rates.get(p, 0.0),
            )
            for p, known in state.partitions.items()
        }
        if may_ask:
            turn = self._ages.turn({p: known for p, known in states.items() if p not in left_out}, MOST_AGES)
            if turn:
                self._ages.told(turn, quietly(clusters.oldest_ms, turn) or {})
            self._read_sizes(clusters, states, now)
        for p, known in states.items():
            oldest_ms = self._ages.oldest_ms(p, known.position)
            if oldest_ms is not None:
                states[p] = replace(known, oldest_ms=oldest_ms)
        return states

    def _compare(
        self, clusters: LinkClusters, state: LinkState, blocked: Collection[TopicPartition], now: float
    ) -> None:
        """Asks which blocked partitions' logs differ, at once if others are blocked than before."""
        is_due = bool(blocked) and now - self._unproved_at >= _UNPROVED_INTERVAL_S
        self._unproved = [p for p in self._unproved if p in blocked]
        if is_due or not set(blocked) <= set(self._blocked):
            found = quietly(clusters.unproved, sorted(blocked), state.control, not self._is_identical)
            self._unproved = blocked if found is None else found
            self._unproved_at = now if found is not None else now - _UNPROVED_INTERVAL_S + _AGAIN_S
        self._blocked = blocked

    def _read_sizes(self, clusters: LinkClusters, states: States, now: float) -> None:
        """Asks for the bytes per offset of partitions that are behind and whose topic has too few copied records to tell."""
        wanted = {
            p: known.source_end
            for p, known in states.items()
            if known.source_end is not None and known.lag_offsets and known.bytes_per_offset is None
        }
        if wanted and now - self._sizes_at >= _SIZES_INTERVAL_S:
            sizes = quietly(clusters.bytes_per_offset, wanted)
            self._sizes = sizes or {}
            self._sizes_at = now if sizes is not None else now - _SIZES_INTERVAL_S + _AGAIN_S

    def still(
        self, states: States, goals: Offsets, left_out: Collection[TopicPartition], now_ms: int
    ) -> dict[TopicPartition, int]:
        """The partitions that have not moved for STILL_AFTER_S although there is something to copy, and since when."""
        waiting = {
            p: known.position
            for p, known in states.items()
            if p not in left_out and known.position is not None and (known.copyable or known.position < goals.get(p, 0))
        }
        return self._still.of(now_ms, waiting, 1000 * STILL_AFTER_S)

    def held(
        self,
        clusters: LinkClusters,
        states: States,
        former: Collection[Held],
        now: float,
        now_ms: int,
        *,
        may_ask: bool,
    ) -> tuple[Held, ...]:
        """The transactions that hold back last stable offsets of the source which have not moved for _HELD_AFTER_MS."""
        spans = open_spans(states.values())
        long = self._held.of(now_ms, {p: stable for p, (stable, _) in spans.items()}, _HELD_AFTER_MS)
        found = tuple(one for one in former if one.partition in long and spans[one.partition][0] == one.from_offset)
        if long and may_ask and now - self._held_at >= _HELD_INTERVAL_S:
            self._held_at = now
            oldest = sorted(long, key=lambda p: (long[p], p))[:_MOST_HELD]
            found = tuple(quietly(clusters.held, {p: spans[p] for p in oldest}) or found)
        return found

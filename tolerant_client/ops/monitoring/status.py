"""The content of the status page as JSON; `status.html` draws it, other programs may read it.

Laws:
- Texts are data: the page sets them as text, never as markup.
- The size of the response is bounded: topics by `most`; partitions, pauses, ledger rows and groups by
  MOST_ROWS.  Of partitions, those with the least lag are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from typing import Any

from kafka.structs import TopicPartition

from tolerant_client.mirror.engine.copy_metrics import Span
from tolerant_client.mirror.state.health import Health
from tolerant_client.ops.monitoring.board import Board, Point
from tolerant_client.ops.monitoring.health import health_of
from tolerant_client.ops.service.link_state import DutyState, LinkState, PartitionState, TopicState, greatest

DEFAULT_TOPICS = 50
MOST_TOPICS = 1_000
MOST_ROWS = 200
_SPARK_POINTS = 40
_TOTALS = (
    *("partitions", "lag_offsets", "lag_bytes", "lag_seconds", "behind", "aged"),
    *("paused", "blocked", "waiting", "uncommitted", "offsets_per_s", "bytes_per_s"),
)
_CHARTED = 5  # topics with their own chart of the last hour


def state_json(
    board: Board, now_ms: int, *, most: int = DEFAULT_TOPICS, matching: str = "", link: str = "", focus: str = ""
) -> dict[str, Any]:
    """A summary of all links, and the full state of the chosen one (or the first).

    Topics are those whose name contains `matching`, the greatest lag first; `focus` is a topic to show in full.
    Times are ms since 1970, rates per second; null is unknown.
    """
    states = board.states()
    chosen = next((state for state in states if state.link == link), states[0] if states else None)
    return {
        "now_ms": now_ms,
        "version": version("tolerant-client"),
        "links": [_in_short(state, now_ms) for state in states],
        "link": None if chosen is None else _in_full(board, chosen, now_ms, min(most, MOST_TOPICS), matching, focus),
    }


def _in_short(state: LinkState, now_ms: int) -> dict[str, Any]:
    health, reasons = health_of(state, now_ms)
    return {
        "link": state.link,
        "source": state.source,
        "target": state.target,
        "offsets": state.offsets,
        "phase": state.phase,
        "addresses": state.addresses,
        "health": health,
        "level": health.level,
        "reasons": [reason._asdict() for reason in reasons],
        "started_ms": state.started_ms,
        "looked_ms": state.time_ms or None,
        "query": state.query,
    }


def _in_full(board: Board, state: LinkState, now_ms: int, most: int, matching: str, focus: str) -> dict[str, Any]:
    report = state.report
    found = [row for row in state.most(len(state.topics)) if matching.lower() in row.topic.lower()]
    charted = [focus] if focus in state.topics else [row.topic for row in found[:_CHARTED]]
    shown = found[:most]
    return {
        **_in_short(state, now_ms),
        "restarts": state.restarts,
        "problem": state.problem,
        "reported_ms": report.time_ms or None,
        "control": _control(state),
        "totals": {
            "topics": len(state.topics),
            **{name: getattr(state.every, name) for name in _TOTALS},
            "records": report.records,
            "bytes": report.bytes,
            "filled": report.filled,
            "latency_ms": _span(state.every.latency),
        },
        "topics_found": len(found),
        "topics": [{**_topic(row), "past": _lags(board.past(state.link, row.topic, _SPARK_POINTS))} for row in shown],
        "past": _past(board.past(state.link)),
        "topics_past": {topic: _past(board.past(state.link, topic)) for topic in charted},
        "focus": focus if focus in state.topics else "",
        "focus_partitions": state.topics[focus].partitions if focus in state.topics else 0,
        "partitions": _first(_partition(state, *row) for row in _most_behind(state, focus)),
        "faults": {**report.recoveries, "read again": report.troubles},
        "standing": _first(_standing(state)),
        "standing_count": len(state.blocked.keys() | state.waiting.keys()) + len(state.held),
        "ledger": None if state.ledger is None else _first(row._asdict() for row in reversed(state.ledger)),
        "ledger_count": None if state.ledger is None else len(state.ledger),
        "lost_offsets": None if state.ledger is None else sum(state.lost.values()),
        "groups": _groups(state),
        "duties": [_duty(name, duty) for name, duty in sorted(state.duties.items())],
    }


def _standing(state: LinkState) -> Iterator[dict[str, Any]]:
    """What does not move: first blocked partitions, then waiting ones, the longest wait first, then open transactions."""
    for p, reason in sorted(state.blocked.items()):
        yield {**p._asdict(), "health": Health.BLOCKED, "since_ms": None, "reason": reason}
    for p, wait in sorted(state.waiting.items(), key=lambda item: (item[1].since_ms, item[0])):
        yield {**p._asdict(), "health": Health.WAITING, "since_ms": wait.since_ms, "reason": wait.reason}
    for held in state.held:
        yield {**held.partition._asdict(), "health": Health.WAITING, "since_ms": held.since_ms, "reason": str(held)}


def _control(state: LinkState) -> dict[str, Any]:
    control = state.control
    return {
        "is_promotion_begun": control.is_promotion_begun,
        "is_promoted": control.is_promoted,
        "is_fenced": control.is_fenced,
        "is_handed_back": control.is_handed_back,
        "throttle_bytes": state.throttle_bytes,
        "throttle_from": state.throttle_from,
        "paused": _first(control.paused_words),
        "paused_count": len(control.paused_words),
    }


def _duty(name: str, duty: DutyState) -> dict[str, Any]:
    return {"duty": name, "problem": duty.problem, "ended_ms": duty.time_ms or None, "interval_s": duty.interval_s}


def _topic(row: TopicState) -> dict[str, Any]:
    return {**row._asdict(), "age": _span(row.age), "latency": _span(row.latency)}


def _span(span: Span) -> dict[str, float] | None:
    if not span.number:
        return None
    return {"mean": span.mean, "least": span.least, "greatest": span.greatest, "last": span.last}


def _most_behind(state: LinkState, topic: str) -> list[tuple[TopicPartition, PartitionState]]:
    """The topic's partitions in their order; of more than MOST_ROWS, those blocked or waiting, then the greatest lags."""
    rows = [(partition, known) for partition, known in state.partitions.items() if partition.topic == topic]
    standing = state.blocked.keys() | state.waiting.keys()
    worst = sorted(rows, key=lambda row: (row[0] not in standing, -(row[1].lag_offsets or 0), row[0]))
    return sorted(worst[:MOST_ROWS], key=lambda row: row[0])


def _partition(state: LinkState, partition: TopicPartition, known: PartitionState) -> dict[str, Any]:
    return {
        "partition": partition.partition,
        "source_end": known.source_end,
        "target_end": known.target_end,
        "lag_offsets": known.lag_offsets,
        "lag_seconds": known.lag_seconds(state.time_ms),
        "uncommitted": known.open_offsets,
        "is_paused": state.control.pauses(partition),
        "reason": state.reason_of(partition),
    }


def _groups(state: LinkState) -> list[dict[str, Any]] | None:
    """One row per group: its number of offsets on the target, its greatest latency, what holds it back; None: unknown."""
    if state.groups is None:
        return None
    by_group: dict[str, list[Any]] = {}
    for row in state.groups:
        by_group.setdefault(row.group, []).append(row)
    return _first(
        {
            "group": group,
            "partitions": len(rows),
            "latency_ms": greatest(row.latency.last for row in rows if row.latency.number),
            "note": next((row.note for row in rows if row.note), ""),
        }
        for group, rows in sorted(by_group.items())
    )


def _past(points: list[Point]) -> dict[str, list[float | None]]:
    return {name: [_known(value) for value in values] for name, values in zip(Point._fields, zip(*points))}


def _lags(points: list[Point]) -> list[float | None]:
    return [_known(point.lag_offsets) for point in points]


def _known(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 3)


def _first(rows: Iterable[Any]) -> list[Any]:
    return [row for row, _ in zip(rows, range(MOST_ROWS))]

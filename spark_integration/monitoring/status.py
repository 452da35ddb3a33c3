"""What the status page shows, as JSON; `status.html` draws it, other programs may read it.

Laws:
- Texts are data: the page sets them as text, never as markup.
- The answer's size is bounded, whatever a link has: topics by `most`, paused partitions, ledger rows and groups by MOST_ROWS.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

from spark_integration.mirroring.link_state import LinkState, TopicState, greatest, total
from spark_integration.monitoring.board import Board, Point
from tolerant_client.mirror.measures import Span

DEFAULT_TOPICS = 50
MOST_TOPICS = 1_000
MOST_ROWS = 200
_SPARK_POINTS = 40
_CHARTED = 5  # topics with an hour of their own


def state_json(
    board: Board, now_ms: int, *, most: int = DEFAULT_TOPICS, matching: str = "", link: str = "", focus: str = ""
) -> dict[str, Any]:
    """All links in short; of the chosen one (or the first) all that is known.

    Topics are those whose name contains `matching`, the ones most behind first; `focus` is one to tell the past hour of.
    Times are ms since 1970, rates per second; null is what is not known.
    """
    states = board.states()
    chosen = next((state for state in states if state.link == link), states[0] if states else None)
    return {
        "now_ms": now_ms,
        "version": version("tolerant-client"),
        "links": [_in_short(state) for state in states],
        "link": None if chosen is None else _in_full(board, chosen, min(most, MOST_TOPICS), matching, focus),
    }


def _in_short(state: LinkState) -> dict[str, Any]:
    level, reasons = state.health
    return {
        "link": state.link,
        "source": state.source,
        "target": state.target,
        "offsets": state.offsets,
        "phase": state.phase,
        "health": level,
        "reasons": reasons,
        "started_ms": state.started_ms,
        "looked_ms": state.time_ms,
        "query": state.query,
    }


def _in_full(board: Board, state: LinkState, most: int, matching: str, focus: str) -> dict[str, Any]:
    report = state.report
    rows = list(state.topics.values())
    found = [row for row in state.most(len(rows)) if matching.lower() in row.topic.lower()]
    latency = Span()
    for row in rows:
        latency = latency.plus(row.latency)
    charted = [focus] if focus in state.topics else [row.topic for row in found[:_CHARTED]]
    shown = found[:most]
    return {
        **_in_short(state),
        "restarts": state.restarts,
        "problem": state.problem,
        "reported_ms": report.time_ms or None,
        "throttle_bytes": state.throttle_bytes,
        "is_promoted": state.is_promoted,
        "held": state.held,
        "totals": {
            "topics": len(rows),
            "partitions": len(state.partitions),
            "lag_offsets": total(row.lag_offsets for row in rows),
            "lag_bytes": total(row.lag_bytes for row in rows),
            "lag_seconds": greatest(row.lag_seconds for row in rows),
            "records_per_s": sum(row.records_per_s for row in rows),
            "bytes_per_s": total(row.bytes_per_s for row in rows),
            "records": report.records,
            "bytes": report.bytes,
            "filled": report.filled,
            "latency_ms": _span(latency),
        },
        "topics_found": len(found),
        "topics": [{**_topic(row), "past": _lags(board.past(state.link, row.topic, _SPARK_POINTS))} for row in shown],
        "past": _past(board.past(state.link)),
        "topics_past": {topic: _past(board.past(state.link, topic)) for topic in charted},
        "focus": focus if focus in state.topics else "",
        "partitions": _partitions(state, focus),
        "faults": {**report.recoveries, "read again": report.troubles},
        "paused": _first(
            {"topic": p.topic, "partition": p.partition, "reason": reason} for p, reason in sorted(state.paused.items())
        ),
        "paused_count": len(state.paused),
        "ledger": _first(row._asdict() for row in reversed(state.ledger)),
        "ledger_count": len(state.ledger),
        "lost_offsets": sum(state.lost.values()),
        "groups": _groups(state),
        "duties": [{"duty": duty, "problem": problem} for duty, problem in sorted(state.duties.items())],
    }


def _topic(row: TopicState) -> dict[str, Any]:
    return {**row._asdict(), "age": _span(row.age), "latency": _span(row.latency)}


def _span(span: Span) -> dict[str, float] | None:
    if not span.number:
        return None
    return {"mean": span.mean, "least": span.least, "greatest": span.greatest, "last": span.last}


def _partitions(state: LinkState, focus: str) -> list[dict[str, Any]]:
    return _first(
        {
            "partition": partition.partition,
            "source_end": known.source_end,
            "target_end": known.target_end,
            "lag_offsets": known.lag_offsets,
            "lag_seconds": known.lag_seconds(state.time_ms),
            "paused": state.paused.get(partition),
        }
        for partition, known in sorted(state.partitions.items())
        if partition.topic == focus
    )


def _groups(state: LinkState) -> list[dict[str, Any]]:
    """One row a group: how many of its offsets are on the target, the slowest of them, what holds it back."""
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

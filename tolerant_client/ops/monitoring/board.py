"""The board to which this process's links write their state, and from which metrics and the status page read it.

Laws:
- A sample is immutable; the board's lock is held only to exchange one, never while one is made or shown.
- Memory is bounded: the newest sample of each link, and one hour of lag and throughput, in steps of 2 s for
  the last 5 minutes and of 30 s before that; at most MOST_TRACES topics of a link have such an hour.
"""

from __future__ import annotations

import math
import threading
from array import array
from collections.abc import Iterable
from typing import NamedTuple

from tolerant_client.ops.service.link_state import LinkState, TopicState

MOST_TRACES = 1_000  # topics of a link whose history is kept
_STEP_MS, _STEPS = 2_000, 150
_COARSE_MS, _COARSE_STEPS = 30_000, 120
_WIDTH = 6


class Point(NamedTuple):
    """The values that are drawn over time; NaN is unknown."""

    time_ms: float
    lag_offsets: float
    lag_seconds: float
    offsets_per_s: float
    bytes_per_s: float
    latency_ms: float


class Trace:
    """An hour of points: one each 2 s for the last 5 minutes, before that the greatest (rates: the mean) of each 30 s."""

    def __init__(self) -> None:
        self._fine = array("d")
        self._coarse = array("d")
        self._bucket: list[Point] = []

    def add(self, point: Point) -> None:
        """Adds a point unless the last one is less than 2 s old."""
        if self._fine and point.time_ms - self._fine[-_WIDTH] < _STEP_MS:
            return
        _append(self._fine, point, _STEPS)
        if self._bucket and point.time_ms - self._bucket[0].time_ms >= _COARSE_MS:
            _append(self._coarse, thinned(self._bucket), _COARSE_STEPS)
            self._bucket = []
        self._bucket.append(point)

    def points(self, most: int | None = None) -> list[Point]:
        """The points, oldest first, thinned to at most `most`."""
        fine = _points(self._fine)
        since = fine[0].time_ms if fine else math.inf
        points = [*(p for p in _points(self._coarse) if p.time_ms < since), *fine]
        if most is None or len(points) <= most:
            return points
        size = math.ceil(len(points) / most)
        return [thinned(points[first : first + size]) for first in range(0, len(points), size)]


class Board:
    """The newest sample of every link, and its history."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._states: dict[str, LinkState] = {}
        self._traces: dict[str, dict[str, Trace]] = {}

    def tell(self, state: LinkState) -> None:
        """Stores a link's newest sample; any thread may call this."""
        rows = {"": state.every, **state.topics} if state.time_ms else {}
        points = {topic: _point(state.time_ms, row) for topic, row in rows.items()}
        with self._lock:
            self._states[state.link] = state
            traces = self._traces.setdefault(state.link, {})
            for topic in [topic for topic in traces if topic and topic not in state.topics]:
                del traces[topic]
            for topic, point in points.items():
                trace = traces.get(topic)
                if trace is None:
                    if len(traces) > MOST_TRACES:
                        continue
                    trace = traces[topic] = Trace()
                trace.add(point)

    def states(self) -> list[LinkState]:
        """The newest samples, sorted by link name."""
        with self._lock:
            return [self._states[link] for link in sorted(self._states)]

    def past(self, link: str, topic: str = "", most: int | None = None) -> list[Point]:
        """Lag and throughput of a link, or of one of its topics, oldest first; empty if none are kept."""
        with self._lock:
            trace = self._traces.get(link, {}).get(topic)
            return [] if trace is None else trace.points(most)


def thinned(points: list[Point]) -> Point:
    """One point for many: the last time, the greatest lag and latency, the mean rates."""
    known = [[value for value in values if not math.isnan(value)] for values in zip(*points)]
    most = [max(values, default=math.nan) for values in known]
    mean = [sum(values) / len(values) if values else math.nan for values in known]
    return Point(points[-1].time_ms, most[1], most[2], mean[3], mean[4], most[5])


def _point(time_ms: int, row: TopicState) -> Point:
    return Point(
        time_ms,
        _known(row.lag_offsets),
        _known(row.lag_seconds),
        row.offsets_per_s,
        _known(row.bytes_per_s),
        _known(row.latency.greatest if row.latency.number else None),
    )


def _known(value: float | None) -> float:
    return math.nan if value is None else value


def _append(values: array[float], point: Iterable[float], most: int) -> None:
    values.extend(point)
    if len(values) > most * _WIDTH:
        del values[:_WIDTH]


def _points(values: array[float]) -> list[Point]:
    return [Point(*values[first : first + _WIDTH]) for first in range(0, len(values), _WIDTH)]

"""Filters of a query as bounds on what is fetched: pure.

Laws:
- Bounds never exclude a row that passes the filters; Spark evaluates the filters again.
- What is no comparison of topic, partition, offset or timestamp with a constant bounds nothing.
- Offsets and times are half-open; times in ms since the epoch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any, Final

from kafka.structs import TopicPartition
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from spark_integration.reading.offsets import OffsetRange

_FOREVER: Final = 2**63 - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class Bounds:
    """Where rows can be; None for a set means anywhere."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    from_partition: int = 0
    until_partition: int = _FOREVER
    from_offset: int = 0
    until_offset: int = _FOREVER
    from_ms: int = -_FOREVER
    until_ms: int = _FOREVER

    def holds(self, partition: TopicPartition) -> bool:
        """Whether rows can be in this partition."""
        return (
            (self.topics is None or partition.topic in self.topics)
            and (self.partitions is None or partition.partition in self.partitions)
            and self.from_partition <= partition.partition < self.until_partition
        )

    def clip(self, wanted: OffsetRange) -> OffsetRange:
        """What is left of a range; perhaps nothing."""
        start = max(wanted.from_offset, self.from_offset)
        return replace(wanted, from_offset=start, until_offset=max(start, min(wanted.until_offset, self.until_offset)))


def bounds_of(filters: Iterable[Filter]) -> Bounds:
    """The bounds that all of `filters` together set."""
    bounds = Bounds()
    for one in filters:
        # Not, which inherits from no comparison, and nested columns bound nothing.
        if isinstance(one, (EqualTo, In, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)):
            if len(one.attribute) == 1:
                bounds = _narrow(bounds, one.attribute[0], one)
    return bounds


def _narrow(bounds: Bounds, column: str, one: Any) -> Bounds:
    if column in ("topic", "partition") and isinstance(one, (EqualTo, In)):
        values = frozenset(one.value if isinstance(one, In) else [one.value])
        if column == "topic":
            return replace(bounds, topics=values if bounds.topics is None else bounds.topics & values)
        return replace(bounds, partitions=values if bounds.partitions is None else bounds.partitions & values)
    if column in ("partition", "offset"):
        first, until = _whole(one)
    elif column == "timestamp":
        first, until = _times(one)
        column = "ms"
    else:
        return bounds
    lower, upper = f"from_{column}", f"until_{column}"
    return replace(
        bounds,
        **{lower: max(getattr(bounds, lower), first), upper: min(getattr(bounds, upper), until)},
    )


def _whole(one: Any) -> tuple[int, int]:
    """The values of a whole number, half-open."""
    values = one.value if isinstance(one, In) else [one.value]
    if not values or not all(isinstance(value, int) for value in values):
        return -_FOREVER, _FOREVER
    return _interval(one, min(values), max(values) + 1, max(values), min(values) + 1)


def _times(one: Any) -> tuple[int, int]:
    """Milliseconds, half-open: a record's time is whole ms, a filter's may be finer."""
    values = one.value if isinstance(one, In) else [one.value]
    if not values or not all(isinstance(value, datetime) for value in values):
        return -_FOREVER, _FOREVER
    micros = [(_aware(value) - _EPOCH) // timedelta(microseconds=1) for value in values]
    low, high = min(micros), max(micros)
    return _interval(one, -(-low // 1000), high // 1000 + 1, -(-high // 1000), low // 1000 + 1)


def _interval(one: Any, at_least: int, at_most: int, below: int, above: int) -> tuple[int, int]:
    """`at_least` and `above` are first values, `at_most` and `below` ends."""
    if isinstance(one, GreaterThanOrEqual):
        return at_least, _FOREVER
    if isinstance(one, GreaterThan):
        return above, _FOREVER
    if isinstance(one, LessThanOrEqual):
        return -_FOREVER, at_most
    if isinstance(one, LessThan):
        return -_FOREVER, below
    return at_least, at_most


def _aware(value: datetime) -> datetime:
    return value if value.tzinfo is not None else value.replace(tzinfo=timezone.utc)

"""What all administrative requests share: which ones the brokers know, their error codes, and requests for many items.

Law: each request is built and read in the module of its noun, in this package.  Most are sent once, so the caller decides
how long to repeat them (Cluster.insist).  Topics have the names that the cluster's `names` give them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster

AT_ONCE = 200  # topics, groups or transactional ids per request

_T = TypeVar("_T")


def speaks(cluster: Cluster, request: Any) -> bool:
    """Whether the brokers know a request; only once connected."""
    return cluster.highest_version(request) >= 0


def raise_for(error_code: int, what: str) -> None:
    """Raises kafka-python's error for a code other than 0."""
    if error_code:
        raise Errors.for_code(error_code)(what)


def is_retriable(error: Exception) -> bool:
    """Whether the same request may succeed later."""
    return isinstance(error, Errors.KafkaError) and bool(error.retriable)


def chunks(items: Iterable[_T], size: int = AT_ONCE) -> Iterator[Sequence[_T]]:
    """Chunks of `items`, each of as many as a request takes."""
    whole = list(items)
    for start in range(0, len(whole), size):
        yield whole[start : start + size]


def by_topic(cluster: Cluster, partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Partition numbers by the brokers' names of their topics."""
    found: dict[str, list[int]] = {}
    for topic, number in partitions:
        found.setdefault(cluster.wire_topic(topic), []).append(number)
    return found

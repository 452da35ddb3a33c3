"""Clients of both clusters of a link on one event loop, from Java client properties; the source's client uses the target's topic names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.mirror.state.replication_policy import TopicNames
from tolerant_client.security.kafka_config import kafka_python_config


def connected(
    source: Mapping[str, str],
    target: Mapping[str, str],
    names: TopicNames | None = None,
    patience_ms: int = 60_000,
    file_options: str = "",
) -> tuple[Cluster, Cluster]:
    """The clients of source and target; the caller closes them, the target first."""
    said: dict[str, Any] = {"patience_ms": patience_ms, "file_options": file_options}
    first = Cluster(kafka_python_config(source), name="source", names=names, **said)
    try:
        return first, Cluster(kafka_python_config(target), first.net, name="target", **said)
    except BaseException:
        first.close()
        raise


@contextmanager
def both(
    source: Mapping[str, str],
    target: Mapping[str, str],
    names: TopicNames | None = None,
    patience_ms: int = 60_000,
    file_options: str = "",
) -> Iterator[tuple[Cluster, Cluster]]:
    """The clients of source and target, closed at the end of the block."""
    origin, there = connected(source, target, names, patience_ms, file_options)
    with origin, there:
        yield origin, there

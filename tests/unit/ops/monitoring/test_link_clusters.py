"""link_clusters.py: what takes records waits for no quota, and nothing else waits for it; no broker."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from typing import Any

import pytest
from kafka.errors import KafkaTimeoutError
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.ops.monitoring import link_clusters as module
from tolerant_client.ops.monitoring.link_clusters import LinkClusters

FIRST = TopicPartition("orders", 0)
PROPERTIES = {"bootstrap.servers": "127.0.0.1:1"}


@pytest.fixture
def clusters() -> Iterator[LinkClusters]:
    made = LinkClusters(PROPERTIES, PROPERTIES, "A-B", None)
    yield made
    made.close()


@pytest.mark.parametrize("name", ["oldest_ms", "unproved"])
def test_under_a_quota_records_are_given_up_and_not_asked_for_again_until_it_is_over(
    clusters: LinkClusters, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    asked: list[Cluster] = []
    words: list[str] = [""]

    async def held_up(source: Cluster, *_: Any) -> Any:
        asked.append(source)
        words[0] = "; node 1 of the source throttles us"
        if len(asked) == 1:
            await source.net.sleep(30.0)
        return None

    def at(seconds: float) -> None:
        monkeypatch.setattr(module.time, "monotonic", lambda: seconds)

    monkeypatch.setattr(module.lens, "oldest_ms", held_up)
    monkeypatch.setattr(module, "compare_ends", held_up)
    began = time.monotonic()
    monkeypatch.setattr(clusters._source, "quota_words", lambda: words[0])
    ask = {
        "oldest_ms": functools.partial(clusters.oldest_ms, {FIRST: 1}),
        "unproved": functools.partial(clusters.unproved, [FIRST], LinkControl(), False),
    }[name]
    for _ in range(2):
        with pytest.raises(KafkaTimeoutError, match="quota"):
            ask()
    assert asked == [clusters._source] and time.monotonic() - began < 5
    words[0] = ""
    at(began + 20)
    with pytest.raises(KafkaTimeoutError, match="quota"):
        ask()
    at(began + 40)
    assert not ask() and len(asked) == 2

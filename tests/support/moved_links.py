"""The controls of links that have moved topics."""

from __future__ import annotations

from typing import Any

from kafka.structs import TopicPartition

from tolerant_client.mirror.state.link_control import LinkControl, MovedTopic
from tolerant_client.mirror.state.topic_filter import LinkTopics

OURS = 4000  # such a link's producer id


def moved(names: str, at_ms: int = 1, **said: Any) -> LinkControl:
    """The control of a link that has moved these topics then, from cluster b."""
    topics = names.split("|")
    known: dict[str, Any] = {
        "topics": LinkTopics.of(names).to_json(),
        "copied_until": {TopicPartition(name, 0): 1 for name in topics},
        "primary_since": dict.fromkeys(topics, MovedTopic(at_ms, f"{at_ms}")),
        "producer_ids": (OURS,),
        "source_cluster_id": "b",
    }
    return LinkControl(**{"is_promotion_begun": True, "is_fenced": True, **known, **said})

"""Gives a consumer the subscription of another one, and its place where no group remembers it.

Laws:
- The other consumer may have stopped anywhere (a fork took its threads away), so
  its locks are not taken and nothing of it is changed.
- A member of a group joins anew: which partitions it gets, and where it begins, is
  the group's to say.  Without a group, and with a manual assignment, positions,
  resets that were asked for and pauses are taken over.
"""

from __future__ import annotations

import time
from collections.abc import Set
from typing import Any

import kafka
import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.stock.stock_names import SubscriptionType


def resubscribe(consumer: Any, other: Any) -> None:
    """Subscribes or assigns a new consumer as the SubscriptionState `other` was.

    Raises KafkaTimeoutError where the partitions of a consumer without a group are
    not in the metadata after `request_timeout_ms`.
    """
    is_groupless = consumer.config["group_id"] is None
    if other.subscription_type == SubscriptionType.USER_ASSIGNED:
        kafka.KafkaConsumer.assign(consumer, list(other.assignment))
        _take_place(consumer._subscription, other)
    elif other.subscription_type != SubscriptionType.NONE:
        if other.subscribed_pattern is not None:
            wanted = {"pattern": other.subscribed_pattern}
        else:
            wanted = {"topics": sorted(other.subscription)}
        kafka.KafkaConsumer.subscribe(consumer, listener=other.rebalance_listener, **wanted)
        if is_groupless:
            _wait_for(consumer, set(other.assignment))
            _take_place(consumer._subscription, other)


def _wait_for(consumer: Any, partitions: Set[TopicPartition]) -> None:
    """Waits until metadata gave the consumer these partitions: each update that lacks some drops their positions."""
    deadline = time.monotonic() + consumer.config["request_timeout_ms"] / 1000
    manager = consumer._manager
    while missing := partitions - set(consumer._subscription.assignment):
        left = deadline - time.monotonic()
        if left <= 0:
            raise Errors.KafkaTimeoutError(
                f"no metadata of {sorted(missing)} within {consumer.config['request_timeout_ms']} ms"
            )
        manager._net.run(manager.wait_for, manager.cluster.request_update(), 1000 * left)


def _take_place(subscription: Any, other: Any) -> None:
    for partition, state in list(other.assignment.items()):
        if state.position is not None:
            subscription.seek(partition, state.position)
        elif state.reset_strategy is not None:
            subscription.request_offset_reset(partition, state.reset_strategy)
        if state.paused:
            subscription.pause(partition)

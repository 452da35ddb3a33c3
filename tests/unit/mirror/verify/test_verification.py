"""What verify decides to compare, without brokers."""

from __future__ import annotations

from typing import Any

from kafka.structs import TopicPartition

from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.topic_filter import LinkTopics
from tolerant_client.mirror.verify.verification import Verification


def test_only_what_a_failover_without_a_control_fenced_was_copied_with_translated_offsets() -> None:
    """It was given expressions that match topics of others, too, whose offsets are identical."""
    ours, theirs = TopicPartition("orders", 0), TopicPartition("clicks", 0)
    nowhere: Any = None
    verification = Verification(nowhere, nowhere, ".*")
    verification._pending = {ours, theirs}
    found = LinkControl(
        is_promoted=True, is_fenced=True, topics=LinkTopics.of(".*").to_json(), copied_until={theirs: 5}
    )
    verification._leave_out_translated("x", found, ())
    assert verification._pending == {ours} and verification._errors.keys() == {theirs}

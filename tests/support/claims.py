"""Who holds what, as a claims log says it."""

from __future__ import annotations

from kafka.structs import TopicPartition

from tolerant_client.mirror.state.claims import ClaimsLog
from tolerant_client.mirror.state.claims_record import WHOLE_TOPIC, Holder


def holders_of(log: ClaimsLog) -> dict[TopicPartition, Holder]:
    """By partition; of a holder that died, until others have measured its silence."""
    holders = {seen.record.holder for seen in log._seen.values() if log._counts(seen)}
    return {name: holder for holder in holders for name in log.terms_of(holder) if name.partition != WHOLE_TOPIC}

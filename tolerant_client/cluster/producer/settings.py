"""How a batch producer produces, as one immutable value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ProducerSettings:
    """How to produce; bytes, ms and numbers, with the meaning of the Java producer's properties.

    `max_in_flight` counts batches of a partition (at most 5 with idempotence),
    `max_requests` requests to one broker.
    """

    acks: int = -1
    is_idempotent: bool = True
    max_in_flight: int = 5
    max_requests: int = 16
    max_request_bytes: int = 8 << 20
    max_record_bytes: int | None = None
    max_bytes_in_flight: int = 32 << 20
    request_timeout_ms: int = 30_000
    delivery_timeout_ms: int = 120_000
    max_block_ms: int = 60_000
    retries: int = 2**31 - 1

"""The drop-in for kafka-python's consumer: same arguments, same records, and Arrow.

    from tolerant_client import KafkaConsumer
    consumer = KafkaConsumer("topic", bootstrap_servers="broker:9092")
    table = consumer.poll_arrow(timeout_ms=1000)

Laws:
- All changes are in the fetcher and the coordinator; this class only has them built.
- kafka-python's own consumers in the same process stay as they are.
- Whoever replaces or wraps poll() (a subclass, a tracing agent) sees records, never Arrow.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

import kafka
import pyarrow as pa

from tolerant_client.records.arrow import SCHEMA, SCHEMA_WITH_HEADERS
from tolerant_client.stock.clients import Recovering
from tolerant_client.stock.coordinator import TolerantCoordinator
from tolerant_client.stock.fetcher import TolerantFetcher

_stock_poll: Any = inspect.unwrap(kafka.KafkaConsumer.poll)


class KafkaConsumer(Recovering, kafka.KafkaConsumer):  # type: ignore[misc]  # kafka-python is untyped
    """kafka.KafkaConsumer that recovers from lost, late, duplicate and misnumbered responses, decodes in bulk,
    and checks an OffsetOutOfRange before it believes it.

    Besides kafka-python's options it takes those that clients.py lists;
    `recovery_counters` says what happened so far.

    In a forked child the first call rebuilds it: in a group as a new member,
    else at the positions it had; a loop over it that the parent began raises.
    With a `group_instance_id` calls raise IllegalStateError there.
    """

    _stock = kafka.KafkaConsumer
    _replaced = {"Fetcher": TolerantFetcher, "ConsumerCoordinator": TolerantCoordinator}

    def poll_arrow(
        self, timeout_ms: float = 0, max_records: int | None = None, include_headers: bool = False
    ) -> pa.Table:
        """Like poll(), but returns an Arrow table of tolerant_client.records.arrow.SCHEMA, or SCHEMA_WITH_HEADERS.

        Keys and values are bytes: deserializers are not applied.  Waits at most `timeout_ms` for the
        first record and returns what is buffered: at most `max_records`, by default about
        `fetch_max_bytes` of records (`max_poll_records` is for poll()).  An empty table has the
        schema too.  Positions, group, callbacks and auto-commit work as with poll(), and the two
        can be mixed; an iterator in progress is abandoned after the record it yielded last.

        Raises what poll() raises, and RecordBatchError for a timestamp beyond microseconds.
        """
        return poll_arrow(self, timeout_ms, max_records, include_headers)


def poll_arrow(
    consumer: Any, timeout_ms: float = 0, max_records: int | None = None, include_headers: bool = False
) -> pa.Table:
    """KafkaConsumer.poll_arrow for any kafka-python consumer whose fetcher is a TolerantFetcher."""
    consumer._iterator = None
    schema = SCHEMA_WITH_HEADERS if include_headers else SCHEMA
    most = sys.maxsize if max_records is None else max_records
    table: pa.Table = consumer._fetcher.table(schema, lambda: _stock_poll(consumer, timeout_ms, most))
    return table

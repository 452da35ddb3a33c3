"""Checks whether the source really has no records where its responses show none.

Laws:
A. An empty response proves nothing.  A broker leaves a partition empty when others have filled the response (KIP-74),
   when it throttles, and while remote storage is slow (KIP-405).  Only a fetch of this partition alone shows the truth.
B. These fetches keep to the link's rate like all others: they wait until nothing is owed, and their size is then owed.
   With a rate they go out one at a time, since the size of a response is known only once it has arrived (throttle.py).
C. A waiting check asks its caller again whether the result is still wanted: an ordinary fetch may have brought the
   records meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import READ_COMMITTED, Cluster
from tolerant_client.cluster.partition_fetch import is_local
from tolerant_client.mirror.engine.throttle import TokenBucket

_RESPONSES = 2  # empty ones that prove it
_BYTES = 1  # a broker sends the first batch whole, whatever the limit (KIP-74); the batch is dropped
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 0.25  # so records of an ordinary fetch soon end the wait


class EmptinessChecks:
    """The checks of one link, under the rate of its `bucket`; `clock` returns the bucket's seconds."""

    def __init__(self, source: Cluster, bucket: TokenBucket, clock: Callable[[], float]) -> None:
        self._source = source
        self._bucket = bucket
        self._clock = clock
        self._checked: set[TopicPartition] = set()
        self._in_flight = 0

    async def has_no_records(
        self, partition: TopicPartition, position: int, stable: int, is_wanted: Callable[[], bool]
    ) -> bool:
        """Whether the source's log has no records in [position, stable); False where this could not be determined.

        Also False while another check of the partition runs, and once `is_wanted` returns False.
        """
        if partition in self._checked:
            return False
        self._checked.add(partition)
        try:
            for _ in range(_RESPONSES):
                if not await self._may_fetch(is_wanted):
                    return False
                self._in_flight += 1
                try:
                    is_empty = await self._is_empty(partition, position, stable)
                finally:
                    self._in_flight -= 1
                if not is_empty:
                    return False
        except Errors.KafkaError:
            return False
        finally:
            self._checked.discard(partition)
        return is_wanted()

    async def _may_fetch(self, is_wanted: Callable[[], bool]) -> bool:
        """Waits until the rate allows a fetch; False once the result is no longer wanted."""
        while is_wanted():
            wait_s = self._bucket.wait_s(self._clock())
            if wait_s <= 0 and not (self._bucket.has_rate and self._in_flight):
                return True
            await self._source.net.sleep(min(max(wait_s, _SHORTEST_PAUSE_S), _LONGEST_PAUSE_S))
        return False

    async def _is_empty(self, partition: TopicPartition, position: int, stable: int) -> bool:
        """Whether one fetch of the partition alone returns nothing, though its log reaches `stable`.  Raises KafkaError."""
        source = self._source
        leader = await source.leader(partition)
        session = await source.session(leader, isolation_level=READ_COMMITTED)
        if not await is_local(source, partition, position):
            return False
        session.seek(partition, position)
        request = session.request(max_wait_ms=100, max_bytes=_BYTES, partition_max_bytes=_BYTES)
        response = await source.send_fetch(leader, request)
        self._bucket.take(sum(len(part.records) for part in response.partitions), self._clock())
        if response.error_code or response.throttle_time_ms or len(response.partitions) != 1:
            return False
        (part,) = response.partitions
        if part.error_code or len(part.records) or part.last_stable_offset < stable:
            return False
        return 0 <= part.log_start_offset <= position

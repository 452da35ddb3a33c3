"""Reads ranges of partitions from two clusters at the same time and compares them.

Laws:
- Each side is read once, as far ahead of the other as its share of the memory allows: at most
  `max_bytes` are held, whatever the number of slices (and one batch, if it is larger than its share).
- A side that lacks tombstones is read again, up to the last of them (superseded.py says why).
- A slice in trouble delays no other one: it leaves its place to those that wait, and ends
  with its own error after `patience_ms` without progress.
- A difference counts only if it is found again after both brokers were asked again.  If a log
  starts later meanwhile (retention), the deleted range is reported as not compared.
- OFFSET_OUT_OF_RANGE and "no records" are believed only if ListOffsets, or repetition, agrees.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import EARLIEST, LATEST, Cluster
from tolerant_client.cluster.fetch import FetchedPartition
from tolerant_client.cluster.partition_fetch import is_local
from tolerant_client.cluster.patience import BELIEVED_AFTER
from tolerant_client.cluster.tasks import Tasks
from tolerant_client.errors import TolerantClientError
from tolerant_client.mirror.batches.divergence import first_size
from tolerant_client.mirror.verify.log_columns import NO_BATCHES, read_batches
from tolerant_client.mirror.verify.log_comparison import LogComparison
from tolerant_client.mirror.verify.outcome import Difference, NotCompared
from tolerant_client.mirror.verify.slices import Running, Slice, SliceResult

SOURCE, TARGET = LogComparison.SOURCE, LogComparison.TARGET
MAX_BYTES: Final = 128 << 20

_SHARES: Final = 4  # of a slice: waiting batches and a fetch in flight, for each side
_LEAST_BYTES: Final = 1 << 20  # of a fetch of one partition
_MOST_BYTES: Final = 8 << 20
_LARGEST_BATCH: Final = 120 << 20
_MAX_WAIT_MS: Final = 100
_BACKOFF: Final = 0.02
_PARKED_AFTER: Final = 3.0  # seconds of trouble, when others wait
_REPORT_EVERY: Final = 1.0
_OUT_OF_RANGE: Final = 1


class SlicesComparison:
    """Compares slices of one pair of clusters, which must share one event loop.  Call `run` once, on that loop.

    `progress` is called about once a second with the results so far, also of unfinished slices.
    """

    def __init__(
        self,
        source: Cluster,
        target: Cluster,
        slices: Sequence[Slice],
        *,
        max_bytes: int = MAX_BYTES,
        patience_ms: int = 60_000,
        progress: Callable[[Sequence[SliceResult]], None] = lambda results: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clusters = (source, target)
        self._patience = patience_ms / 1000
        self._progress = progress
        self._clock = clock
        self._limit = min(_MOST_BYTES, max(_LEAST_BYTES, max_bytes // (_SHARES * max(1, len(slices)))))
        self._places = max(1, max_bytes // (_SHARES * self._limit))
        self._slices = slices
        self._waiting = deque(Running(wanted, self._limit) for wanted in slices)
        self._open: dict[TopicPartition, Running] = {}
        self._done: dict[Slice, SliceResult] = {}
        self._asked: set[tuple[int, Any]] = set()  # (side, node) with a fetch in flight
        self._responses: deque[tuple[int, Mapping[TopicPartition, int], list[FetchedPartition] | Exception]] = deque()
        self._tasks = Tasks(source)

    async def run(self) -> list[SliceResult]:
        """The results in the order of the slices.

        Raises ClusterUnreachableError if a cluster cannot be reached at all.
        """
        for cluster in self._clusters:
            await cluster.connect()
            await cluster.track({wanted.topic for wanted in self._slices})
        reported_at = self._clock()
        while self._waiting or self._open:
            self._fill_places()
            self._ask()
            await self._tasks.wait(self._pause())
            if self._tasks.failure is not None:
                raise self._tasks.failure
            while self._responses:
                self._take(*self._responses.popleft())
            if self._clock() - reported_at > _REPORT_EVERY:
                self._progress([*self._done.values(), *(running.result() for running in self._open.values())])
                reported_at = self._clock()
        return [self._done[wanted] for wanted in self._slices]

    # -- who is read ----------------------------------------------------------

    def _fill_places(self) -> None:
        for running in [r for r in self._open.values() if self._waiting and self._is_stuck(r)]:
            running.log.start_over()  # batches that wait for the other side are fetched again later
            del self._open[running.partition]
            self._waiting.append(running)
        for _ in range(len(self._waiting)):
            if len(self._open) >= self._places:
                return
            running = self._waiting.popleft()
            if running.partition in self._open:
                self._waiting.append(running)  # one fetch cannot name a partition twice
            elif running.log.is_done:
                self._finish(running)
            else:
                self._open[running.partition] = running

    def _is_stuck(self, running: Running) -> bool:
        since = min(side.trouble_since for side in running.sides)
        is_busy = running.is_checking or any(side.is_asked for side in running.sides)
        return not is_busy and self._clock() - since > _PARKED_AFTER

    def _ask(self) -> None:
        """Sends a fetch to every node that has none in flight and leads wanted partitions."""
        now = self._clock()
        for number, cluster in enumerate(self._clusters):
            by_node: dict[Any, list[Running]] = {}
            for running in list(self._open.values()):
                side = running.sides[number]
                if not self._wants(running, number):
                    continue
                side.wanting_since = min(side.wanting_since, now)
                if now < side.not_before:
                    continue
                node = cluster.known_leader(running.partition)
                if node is None:
                    self._doubt(running, number, "it has no leader")
                else:
                    by_node.setdefault(node, []).append(running)
            for node, members in by_node.items():
                if (number, node) not in self._asked:
                    self._send(number, node, members)

    def _wants(self, running: Running, number: int) -> bool:
        side, log = running.sides[number], running.log
        return (
            not side.is_asked
            and not running.is_checking
            and log.position(number) < running.goal(number)
            and log.held_bytes(number) < self._limit
        )

    def _send(self, number: int, node: Any, members: list[Running]) -> None:
        # The one that waits longest comes first: only the first batch of a response may be larger than the limit.
        members.sort(key=lambda running: running.sides[number].wanting_since)
        if alone := next((running for running in members if running.sides[number].is_hungry), None):
            members = [alone]
        positions = {running.partition: running.log.position(number) for running in members}
        for running in members:
            running.sides[number].is_asked = True
        self._asked.add((number, node))
        limit = members[0].sides[number].limit if len(members) == 1 else self._limit

        async def fetch() -> None:
            found: list[FetchedPartition] | Exception
            try:
                found = await self._clusters[number].fetch(
                    node,
                    positions,
                    max_wait_ms=_MAX_WAIT_MS,
                    max_bytes=max(limit, min(self._limit * len(positions), 2 * _MOST_BYTES)),
                    partition_max_bytes=limit,
                    isolation_level=1,
                )
            except (Errors.KafkaError, ValueError) as error:
                found = error
            self._asked.discard((number, node))
            self._responses.append((number, positions, found))
            self._tasks.notify()

        self._tasks.spawn(fetch)

    def _pause(self) -> float:
        """Seconds until something is due without a response."""
        now = self._clock()
        due = [
            running.sides[n].not_before - now
            for running in self._open.values()
            for n in (SOURCE, TARGET)
            if self._wants(running, n) and running.sides[n].not_before > now
        ]
        return max(0.001, min([_REPORT_EVERY, *due]))

    # -- responses ------------------------------------------------------------

    def _take(
        self, number: int, positions: Mapping[TopicPartition, int], found: list[FetchedPartition] | Exception
    ) -> None:
        parts = {} if isinstance(found, Exception) else {part.partition: part for part in found}
        for partition, position in positions.items():
            running = self._open.get(partition)
            if running is None:
                continue
            running.sides[number].is_asked = False
            if running.log.position(number) != position:
                continue  # it has started over meanwhile
            part = parts.get(partition)
            if isinstance(found, Exception):
                self._doubt(running, number, f"{type(found).__name__}: {found}", found)
            elif part is not None:
                self._take_part(running, number, position, part, is_alone=len(positions) == 1)
            # Else it is not in the response: a broker under a quota leaves partitions out.

    def _take_part(
        self, running: Running, number: int, position: int, part: FetchedPartition, *, is_alone: bool
    ) -> None:
        side = running.sides[number]
        if part.error_code == _OUT_OF_RANGE:
            self._check(running, self._out_of_range, number, position)
        elif part.error_code:
            error = Errors.for_code(part.error_code)
            self._doubt(running, number, error.__name__, error())
        elif not len(part.records):
            if part.last_stable_offset > position:
                if side.doubted("no records", self._clock()) >= BELIEVED_AFTER:
                    if is_alone:
                        self._check(running, self._nothing, number, min(part.last_stable_offset, running.goal(number)))
                    # Other partitions may have used the limit: believe only a response for it alone.
                    side.is_hungry = True
            else:
                stable = part.last_stable_offset
                self._doubt(running, number, f"no records at offset {position}: its last stable offset is {stable}")
        elif first_size(part.records) > len(part.records):  # the limit was too small
            # Other partitions used the limit: fetch it alone next time, or with a higher limit if it was alone.
            side.is_hungry = True
            if is_alone and side.limit < _LARGEST_BATCH:
                side.limit = min(2 * side.limit, _LARGEST_BATCH)
            elif is_alone:
                self._doubt(running, number, f"its batch at offset {position} has more than {_LARGEST_BATCH} bytes")
        else:
            # Copied if other partitions are in the response, so that waiting batches do not keep the others' bytes.
            records = part.records if is_alone else memoryview(bytes(part.records))
            try:
                batches = read_batches(records, position, part.aborted)
            except TolerantClientError as error:
                self._doubt(running, number, f"{type(error).__name__}: {error}", error)
            else:
                running.log.add(number, *batches)
                side.moved()
                self._compare(running)

    def _compare(self, running: Running) -> None:
        """Compares; records that cannot be read though their checksum is right are fetched again, and in the end fail the slice."""
        log = running.log
        try:
            log.compare()
        except TolerantClientError as error:
            is_believed = running.failure.hear(f"{log.compared_until}: {error}")
            log.start_over()
            if is_believed:
                self._finish(running, str(error))
        else:
            self._after_comparing(running)

    def _after_comparing(self, running: Running) -> None:
        log = running.log
        if log.difference is not None:
            self._check(running, self._confirm)
        elif log.is_done:
            self._finish(running)
        elif log.is_looking_back:
            if not self._is_reading(running):
                log.end_look_back()
                for side in running.sides:
                    side.moved()
                self._after_comparing(running)
        elif log.must_look_back:
            self._check(running, self._look_back)
        elif log.is_compared and not (running.has_goals_behind and self._is_reading(running)):
            self._check(running, self._read_to_ends)

    def _is_reading(self, running: Running) -> bool:
        return any(running.log.position(number) < running.goal(number) for number in (SOURCE, TARGET))

    def _doubt(self, running: Running, number: int, why: str, error: Exception | None = None) -> None:
        """Tries again later, or ends the slice: after BELIEVED_AFTER errors that are not retriable, or when patience is over."""
        side, now = running.sides[number], self._clock()
        times = side.doubted(why, now)
        is_lasting = times >= BELIEVED_AFTER and error is not None and not getattr(error, "retriable", False)
        waited = now - min(side.wanting_since, side.trouble_since)
        if is_lasting or (waited > self._patience and times > 1):
            name = self._clusters[number].name
            self._finish(running, f"the {name} could not be read from offset {running.log.position(number)} on: {why}")
        elif error is None or getattr(error, "invalid_metadata", True):
            self._clusters[number].manager.cluster.request_update()

    def _finish(self, running: Running, error: str | None = None) -> None:
        self._open.pop(running.partition, None)
        self._done[running.slice] = running.result(error)

    # -- checks with more requests ------------------------------------------

    def _check(self, running: Running, question: Callable[..., Any], *args: Any) -> None:
        """Runs a check of one slice while the others continue."""
        if running.is_checking:
            return
        running.is_checking = True

        async def ask() -> None:
            try:
                await question(running, *args)
            except (Errors.KafkaError, ValueError) as error:
                self._finish(running, f"{type(error).__name__}: {error}")
            running.is_checking = False
            if self._open.get(running.partition) is running:
                self._after_comparing(running)
            self._tasks.notify()

        self._tasks.spawn(ask)

    async def _bounds(self, running: Running, number: int, which: int, isolation_level: int = 0) -> int:
        found = await self._clusters[number].list_offsets({running.partition: which}, isolation_level=isolation_level)
        return found[running.partition]

    async def _out_of_range(self, running: Running, number: int, position: int) -> None:
        start = await self._bounds(running, number, EARLIEST)
        end = await self._bounds(running, number, LATEST)
        name, log = self._clusters[number].name, running.log
        if start <= position <= end or position != log.position(number):
            self._doubt(running, number, f"offset {position} is out of range by Fetch, but not by ListOffsets")
        elif log.compared_until < position:
            # First compare what this side has; the other side must still be read up to here.
            running.sides[number].not_before = self._clock() + _BACKOFF
        elif position < start:
            self._skip(running, number, start)
        elif running.sides[number].doubted(f"ends at {end}", self._clock()) >= BELIEVED_AFTER:
            log.difference = Difference(end, f"the {name} log was truncated to {end}")
            self._finish(running)

    async def _nothing(self, running: Running, number: int, until: int) -> None:
        """The broker knows later offsets but returned no records: there are none, unless they are in remote storage (KIP-405)."""
        log = running.log
        if not await is_local(self._clusters[number], running.partition, log.position(number)):
            self._doubt(running, number, f"offset {log.position(number)} is in remote storage and cannot be fetched")
            return
        log.add(number, NO_BATCHES, until)
        running.sides[number].moved()
        self._compare(running)

    async def _confirm(self, running: Running) -> None:
        """A difference counts if both brokers, asked again, show it again."""
        log = running.log
        found = log.difference
        starts = [await self._bounds(running, number, EARLIEST) for number in (SOURCE, TARGET)]
        late = SOURCE if starts[SOURCE] > starts[TARGET] else TARGET
        if found is not None and starts[late] > found.offset:
            log.difference = None
            self._skip(running, late, starts[late])
            return
        if found != running.suspect:
            running.suspect = found
            log.start_over()
        elif not log.go_behind():
            self._finish(running)
            return
        for side in running.sides:
            side.moved()

    def _gone(self, number: int, from_offset: int, start: int, why: str = "") -> NotCompared:
        """Offsets that the log of one side has lost meanwhile; those that the source has lost do not matter."""
        reason = f"{why}the {self._clusters[number].name} log starts at {start} now"
        return NotCompared(from_offset, start, reason, matters=number == TARGET)

    def _skip(self, running: Running, number: int, start: int) -> None:
        """Resumes at `start`; one side no longer has the offsets before."""
        log = running.log
        log.unproved.forget(start)
        until = min(start, running.slice.until_offset)
        if until > log.compared_until:
            running.not_compared.append(self._gone(number, log.compared_until, start)._replace(until_offset=until))
        log.start_over(until)
        for side in running.sides:
            side.moved()
        if log.is_done:
            self._finish(running)

    async def _read_to_ends(self, running: Running) -> None:
        """After the comparison reads on to the logs' ends: records after the range may supersede those that a cleaner removed."""
        log = running.log
        if not running.has_goals_behind:
            running.has_goals_behind = True
            running.goals = [await self._bounds(running, number, LATEST, 1) for number in (SOURCE, TARGET)]
        if self._is_reading(running):
            return
        starts = [await self._bounds(running, number, EARLIEST) for number in (SOURCE, TARGET)]
        late = SOURCE if starts[SOURCE] >= starts[TARGET] else TARGET
        if count := log.unproved.forget(starts[late]):
            why = f"{count} records that one side no longer has lacked a proof, and "
            running.not_compared.append(self._gone(late, running.slice.from_offset, starts[late], why))
        if log.unproved.tombstones:
            await self._look_back(running)
            return
        log.fail_without_proof()
        self._finish(running)

    async def _look_back(self, running: Running) -> None:
        """Reads a side again that lacks tombstones: older records of their keys there make these a difference."""
        running.log.look_back([await self._bounds(running, number, EARLIEST) for number in (SOURCE, TARGET)])
        for side in running.sides:
            side.moved()

"""kafka-python's Fetcher with vectorised decoding, fetching ahead, Arrow, and a check of each OffsetOutOfRange.

Laws:
- Positions, pausing, seeking, rebalances, metrics and errors stay kafka-python's;
  only which records it gets and when the next fetch is sent differ.
- What is asked for, and when, says `fetch_plan`.
- What a call took and did not return it did not take: if poll(), poll_arrow() or the fill of an iterator ends by an
  exception, of whatever kind, the positions that it moved are put back, unless somebody else has set them meanwhile, and
  nothing counts as given out.  Of a fill, a partition's records count once the iterator comes to the first of them.
  An interrupt strikes where a Python function begins, or a C function or a loop's turn ends.  So what must not be parted
  calls no Python function, and no generator is the context manager of it: if an interrupt strikes in its `__exit__`, the
  garbage collector ends it, at any time.
- A fill gives an iterator records of as many partitions as poll() would; a fetch
  that follows what this fill has handed out waits for the next fill.
- An OffsetOutOfRange is believed only when `out_of_range` has checked it (incident 2), a truncation
  when two responses tell it, a corrupt batch when it was fetched three times: bytes are corrupted in
  transit more often than in a log.
- A partition that is resumed is given out, or fetched, whatever is buffered of others.
- A position is not believed in another topic of the same name (`topic_identity`).  A truncation is told.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import kafka.errors as Errors
import pyarrow as pa
from kafka.protocol.consumer import IsolationLevel, OffsetResetStrategy
from kafka.structs import OffsetAndMetadata, TopicPartition

from tolerant_client.stock.consumer_records import PartitionRecords
from tolerant_client.stock.fetch_plan import PlannedFetches
from tolerant_client.stock.moving import Destination, Move
from tolerant_client.stock.out_of_range import report, report_truncations
from tolerant_client.stock.stock_names import Future
from tolerant_client.tracker.events import CorruptRecords
from tolerant_client.tracker.rules.apis import FETCH_BY_ID_VERSION

log = logging.getLogger(__name__)

_CORRUPT_AFTER = 3  # fetches of the same offset

_UNKNOWN_IDS = (Errors.UnknownTopicIdError.errno, Errors.InconsistentTopicIdError.errno)
_UNKNOWN = (*_UNKNOWN_IDS, Errors.UnknownTopicOrPartitionError.errno)


class TolerantFetcher(PlannedFetches):
    """For kafka.KafkaConsumer, in place of its Fetcher; same arguments."""

    PartitionRecords = PartitionRecords

    def __init__(self, client: Any, subscriptions: Any, **configs: Any) -> None:
        super().__init__(client, subscriptions, **configs)
        self._corrupt: dict[TopicPartition, tuple[int, int]] = {}  # offset, and how often it was found corrupt
        self._taking = threading.Lock()
        self._too_early: list[Any] = []  # fetches that follow what this fill has handed out: the next one may use them
        self._call = _Call()
        self._move: Move | None = None
        # Until where records of the present cluster were given out; of a fill, until its end.  Else 0: some are about to be.
        self._given_out: dict[TopicPartition, int] = {}

    # -- giving out -----------------------------------------------------------

    def fetch_records(
        self, max_records: int | None = None, update_offsets: bool = True, timeout_ms: float | None = None
    ) -> tuple[dict[TopicPartition, list[Any]], bool]:
        """Like kafka-python's, but with records at hand the next fetch is sent without waiting for the event loop.

        Raises IllegalStateError when another thread is in it; of two that enter at the same moment, one may wait.
        """
        if self._taking.locked():
            raise Errors.IllegalStateError(
                "KafkaConsumer is not safe for multi-threaded access: two threads poll this one;"
                " give each thread its own consumer, or use a lock"
            )
        self._call.moved.clear()
        try:
            with self._taking:
                return self._fetch_records(max_records, update_offsets, timeout_ms)
        except BaseException:
            self._put_back()
            raise

    def _fetch_records(
        self, max_records: int | None, update_offsets: bool, timeout_ms: float | None
    ) -> tuple[dict[TopicPartition, list[Any]], bool]:
        self._handed_out.clear()
        records, is_more_buffered = self.fetched_records(max_records, update_offsets=update_offsets)
        if not records:
            if not is_more_buffered:
                self.send_fetches()
            awaited = self._awaited()
            if not awaited:
                return records, True
            with suppress(Errors.KafkaTimeoutError):
                self._net.run(self._until_one_is_done, awaited, timeout_ms)
            records, _ = self.fetched_records(max_records, update_offsets=update_offsets)
        if records:
            self._ask_ahead()
        return records, False

    def _awaited(self) -> list[Any]:
        """What may bring records: fetches, and a reset of positions, after which a fetch can be sent."""
        resets = [self._reset_task] if self._reset_task is not None and not self._reset_task.is_done else []
        return [*self._fetch_futures, *resets]

    async def _until_one_is_done(self, futures: list[Any], timeout_ms: float | None) -> None:
        """Returns at once if one is done already; raises KafkaTimeoutError after `timeout_ms`."""
        done = Future()
        for future in futures:
            future.add_both(lambda _: done.is_done or done.success(None))
        await self._manager.wait_for(done, timeout_ms)

    def _ask_ahead(self) -> None:
        """Has the next fetch sent, if there is one; the records at hand are given out either way."""
        if self._completed_fetches or self._is_fetch_due:
            return
        if self._is_fetch_wanted():
            self._is_fetch_due = True
            self._manager.call_soon(self._send_fetches_async)

    def fetched_records(self, max_records: int | None = None, update_offsets: bool = True) -> Any:
        """Like kafka-python's, which forgets a resumed partition while another one is in its slot."""
        self.settle_move()
        self._topic_ids.apply()
        self._make_room_for_resumed()
        try:
            records, _ = super().fetched_records(max_records, update_offsets=update_offsets)
        finally:
            self._completed_fetches.extendleft(reversed(self._too_early))
            self._too_early.clear()
        if not update_offsets:
            records = {tp: _Fill(own, partial(self._comes_to, tp, own[-1].offset + 1)) for tp, own in records.items()}
        return records, bool(self._completed_fetches)

    def _comes_to(self, tp: TopicPartition, until: int) -> None:
        """Notes that an iterator begins to give out a partition's records, before it moves the position."""
        if self._subscriptions.is_fetchable(tp):  # else it passes over them
            self._given_out[tp] = max(self._given_out.get(tp, 0), until)

    def _make_room_for_resumed(self) -> None:
        """Frees the slot of the partition that is given out, in turn: only then kafka-python takes a resumed one up again."""
        part, parked = self._next_partition_records, self._paused_partition_records
        if part:
            if all(self._subscriptions.is_paused(tp) for tp in parked):
                return
            parked[part.topic_partition] = part
        self._next_partition_records = None

    def table(self, schema: pa.Schema, poll: Callable[[], dict[TopicPartition, list[Any]]]) -> pa.Table:
        """What `poll` gives out, as one table: within it records are Arrow batches, whose size fetch_max_bytes bounds."""
        call = self._call
        call.moved.clear()
        call.budget = _ArrowBudget(schema, self.config["fetch_max_bytes"])
        try:
            return pa.Table.from_batches([batch for batches in poll().values() for batch in batches], schema)
        except BaseException:
            self._put_back()
            raise
        finally:
            call.budget = None

    def _put_back(self) -> None:
        """Puts back the positions that the last fetch_records() has moved, and what counts as given out: nobody gets its records.

        What is buffered for other positions is fetched again, as after a seek.  It is no seek, though: such a position
        would belong to the present topic (`topic_identity`).
        """
        moved = self._call.moved
        while moved:
            tp, given_before, state, before, after = moved.pop()
            if state._position is after:  # else a seek, a reset or a validation has set it
                state._position = before
            if given_before is None:
                self._given_out.pop(tp, None)
            else:
                self._given_out[tp] = given_before

    def _append(self, drained: Any, part: Any, max_records: int, update_offsets: bool) -> int:
        tp, moved = part.topic_partition, self._call.moved
        state = self._subscriptions.assignment.get(tp)
        before = None if state is None else state._position
        given_before = self._given_out.get(tp)
        if update_offsets and given_before is None:
            self._given_out[tp] = 0  # before the position moves (`_unread_positions`)
        try:
            return self._give_out(drained, part, max_records, update_offsets)
        except Errors.CorruptRecordError:
            # What was decoded is given out, and the part is drained: the next fetch starts at this position again.
            if self._is_corruption_believed(tp):
                raise
            return 0
        except BaseException:
            part.drain()  # an interrupt may have left it between two records
            raise
        finally:
            if tp in drained and state is not None:
                moved.append((tp, given_before, state, before, state._position))
                if update_offsets:
                    self._given_out[tp] = max(given_before or 0, part.next_fetch_offset)
            elif given_before is None:
                self._given_out.pop(tp, None)

    def _is_corruption_believed(self, tp: TopicPartition) -> bool:
        offset = self._subscriptions.position(tp).offset
        known, times = self._corrupt.get(tp, (offset, 0))
        times = times + 1 if known == offset else 1
        self._corrupt[tp] = offset, times
        is_believed = times >= _CORRUPT_AFTER
        report(self._manager, CorruptRecords("Fetch", -1, tp.topic, tp.partition, offset, is_believed))
        return is_believed

    def _give_out(self, drained: Any, part: Any, max_records: int, update_offsets: bool) -> int:
        budget = self._call.budget
        tp = part.topic_partition
        if tp in self._topic_ids:
            part.drain()  # it may be of another topic than the position
        if budget is None or not part or not self._is_next(part):
            count: int = super()._append(drained, part, max_records, update_offsets)
            if count and not update_offsets:
                self._handed_out.add(tp)
                if part:  # with an error after its records, which counts only when the iterator has come there
                    return max_records
            return count
        if budget.left <= 0:
            return max_records  # ends kafka-python's loop: the table is large enough
        state = self._subscriptions.assignment[tp]
        batches, size = part.take_arrow(max_records, budget.left, budget.schema)
        budget.left -= size
        if batches:
            drained[tp].extend(batches)
        if state.highwater is not None and self._sensors:
            self._sensors.records_fetch_lag.record(state.highwater - part.next_fetch_offset)
        state.position = OffsetAndMetadata(part.next_fetch_offset, "", part.leader_epoch)
        return sum(batch.num_rows for batch in batches)

    def _is_next(self, part: Any) -> bool:
        tp = part.topic_partition
        if not self._subscriptions.is_fetchable(tp):
            return False
        return bool(self._subscriptions.position(tp).offset == part.next_fetch_offset)

    # -- a move (moving.py) ---------------------------------------------------

    def moved(self, move: Move) -> None:
        """Fetches nothing before the move is settled; on the event loop, when the client has left the former cluster."""
        self._move = move
        move.unread_positions = self._unread_positions()
        move.may_have_read = {*self._given_out.copy(), *self._subscriptions.assignment.copy()}
        self._session_handlers.clear()
        self._asked.clear()
        self._doubts.clear()
        self._topic_ids.clear()

    def inherits(self, parent: TolerantFetcher) -> Move | None:
        """In a forked child: knows of the move that the parent process has made to this cluster, and returns it."""
        if parent._move is not None:
            self._move, self._given_out = parent._move, parent._given_out
        return self._move

    def _unread_positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Positions from which nothing has been given out, also if the polling thread is about to."""
        positions = {tp: state.position for tp, state in list(self._subscriptions.assignment.items())}
        return {
            tp: OffsetAndMetadata(position.offset, "", -1)
            for tp, position in positions.items()
            if position is not None and tp not in self._given_out
        }

    def settle_move(self) -> None:
        """Settles a move that is not settled yet; in the polling thread."""
        if self._move is not None:
            self._move.settle()

    def sought(self, tp: TopicPartition, offset: int) -> int:
        """Where a seek to `offset` goes (moving.py)."""
        return offset if self._move is None or tp in self._given_out else self._move.sought(tp, offset)

    def settle(self, to: Destination) -> dict[TopicPartition, int]:
        """Drops what was fetched from the former cluster, and takes no position after the copies; in the polling thread.

        Returns until where this client has read there.
        """
        for buffered in (self._completed_fetches, self._paused_completed_fetches, self._paused_partition_records):
            buffered.clear()
        for known in (self._too_early, self._handed_out, self._corrupt, self._readable_ends):
            known.clear()
        self._next_partition_records = self._next_in_line_exception_metadata = None
        self._cached_list_offsets_exception = self._cached_log_truncation = None
        read, self._given_out = self._given_out, {}
        for tp, state in list(self._subscriptions.assignment.items()):
            state.highwater = None
            if state.position is not None:
                read[tp] = max(read.get(tp, 0), state.position.offset)
                self._place(to, tp, state)
        return read

    def _place(self, to: Destination, tp: TopicPartition, state: Any) -> None:
        offset = state.position.offset
        place = to.place(tp, offset)
        if place is not None:
            self._subscriptions.seek(tp, place)
        elif to.is_copied(tp.topic):
            log.warning("No record of %s-%s is known to be copied: position %s becomes the first record", *tp, offset)
            self._subscriptions.request_offset_reset(tp, OffsetResetStrategy.EARLIEST)
        else:
            log.warning("%s-%s was not copied: its position %s is reset", *tp, offset)
            if self._subscriptions.has_default_offset_reset_policy():
                self._subscriptions.request_offset_reset(tp)
            else:
                state._position = None  # poll() raises NoOffsetForPartitionError, unless one was committed there

    @property
    def is_of_former_cluster(self) -> bool:
        """Whether positions are still those on the cluster that the client has left."""
        return self._move is not None and not self._move.is_settled

    def _to_fetch(self) -> Iterator[tuple[Any, TopicPartition, int, int]]:
        return iter(()) if self.is_of_former_cluster else super()._to_fetch()

    def maybe_validate_positions(self) -> None:
        """Like kafka-python's; a position of the former cluster has nothing to do with the leader epochs of the next one."""
        if not self.is_of_former_cluster:
            super().maybe_validate_positions()

    async def _send_offset_for_leader_epoch_request(self, node_id: Any, positions: Any) -> Any:
        if self.is_of_former_cluster:
            raise Errors.StaleMetadata("the client has moved to another cluster")
        return await super()._send_offset_for_leader_epoch_request(node_id, positions)

    # -- refusals (incident 2) ------------------------------------------------

    def _parse_fetched_data(self, completed_fetch: Any) -> Any:
        if completed_fetch.topic_partition in self._handed_out:
            self._too_early.append(completed_fetch)
            return None
        tp, offset = completed_fetch.topic_partition, completed_fetch.fetched_offset
        if completed_fetch.partition_data.error_code in _UNKNOWN:
            self._topic_ids.refused(tp, offset, completed_fetch.partition_data.error_code in _UNKNOWN_IDS)
        if completed_fetch.partition_data.error_code == Errors.OffsetOutOfRangeError.errno:
            if not self._doubts.is_believed(completed_fetch) and self._is_refused_here(tp, offset):
                self._doubts.look_into(completed_fetch)
                return None
        if completed_fetch.partition_data.error_code == Errors.NoError.errno:
            self._readable_ends[tp] = self._readable_end(completed_fetch.partition_data)
            is_by_id = completed_fetch.response_version >= FETCH_BY_ID_VERSION
            if is_by_id or completed_fetch.partition_data.records:
                self._topic_ids.fetched(tp, offset, is_by_id)
        if completed_fetch.partition_data.records is None:  # the protocol allows it, kafka-python does not
            completed_fetch.partition_data.records = b""
        return super()._parse_fetched_data(completed_fetch)

    def _readable_end(self, data: Any) -> int:
        is_stable_known = self._isolation_level == IsolationLevel.READ_COMMITTED and data.last_stable_offset >= 0
        return int(data.last_stable_offset if is_stable_known else data.high_watermark)

    def _is_refused_here(self, tp: TopicPartition, offset: int) -> bool:
        """True for a refusal by the leader at the current position; kafka-python handles the others itself."""
        if not self._subscriptions.is_fetchable(tp):
            return False
        state = self._subscriptions.assignment[tp]
        return bool(state.position.offset == offset and state.preferred_read_replica() is None)

    def _handle_offset_for_leader_epoch_response(self, response: Any, requested_positions: Any) -> Any:
        """Like kafka-python's, which believes one response, and only logs a truncation if there is an auto_offset_reset."""
        self._doubts.repeat_truncations(response, requested_positions)
        states = [(tp, self._subscriptions.assignment.get(tp), at) for tp, at in requested_positions.items()]
        checked = [(tp, state, at) for tp, state, at in states if state is not None and state.position == at]
        truncations = super()._handle_offset_for_leader_epoch_response(response, requested_positions)
        report_truncations(self._manager, checked, truncations)
        return truncations

    def close(self) -> None:
        """Drops what is buffered."""
        super().close()
        self._doubts.clear()
        self._topic_ids.clear()


@dataclass
class _ArrowBudget:
    """The schema of one poll_arrow's records, and how many bytes of them may still be given out."""

    schema: pa.Schema
    left: int


class _Call(threading.local):
    """What belongs to the call of one thread.

    `budget` is set within poll_arrow().  `moved` has, of each partition whose records the call has taken, and in that order:
    until where records were given out before, the state, and the position before and after.
    """

    def __init__(self) -> None:
        self.budget: _ArrowBudget | None = None
        self.moved: list[tuple[TopicPartition, int | None, Any, Any, Any]] = []


class _Fill(list[Any]):
    """A partition's records for an iterator; says when that begins to give them out."""

    def __init__(self, records: list[Any], begins: Callable[[], None]) -> None:
        super().__init__(records)
        self._begins = begins

    def __iter__(self) -> Iterator[Any]:
        self._begins()
        return super().__iter__()

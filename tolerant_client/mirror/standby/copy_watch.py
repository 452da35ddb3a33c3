"""Tells a producer with `acks="mirrored"` how far the standby has its records.

Laws:
- One ListOffsets request for each leader asks for all partitions of which anything is held, PAUSES apart; none is sent while
  nothing is held.  No work is done for each record.
- A high watermark counts when it has passed a record, and no promotion had begun by then: afterwards others write to the standby.
- What the mirror has left out, with the operator's consent, is in the ledger before the filler that takes its place: it is read after
  the watermark, if it has grown.
- If it is seen after that record for the first time, what it has passed is compared: after an unclean election the standby may have
  other records there.
- While the standby does not respond nothing ends; HeldBatches ends what waits too long.
- A record of a topic that the link does not copy ends at once.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import list_led_offsets
from tolerant_client.cluster.cluster import LATEST, Cluster
from tolerant_client.cluster.event_loop import Future
from tolerant_client.cluster.patience import Backoff
from tolerant_client.errors import text_of
from tolerant_client.mirror.batches.losses import LedgerRow
from tolerant_client.mirror.standby.copied_records import find_copies
from tolerant_client.mirror.state.ledger import Ledger, ledger_topic
from tolerant_client.stock.moved_batches import Sought, records_of

if TYPE_CHECKING:
    from tolerant_client.mirror.state.control_topic import ControlWatch
    from tolerant_client.stock.held_batches import HeldBatch, HeldBatches

log = logging.getLogger(__name__)

PAUSES: Final = Backoff(0.005, 0.1)  # while the watermarks stand still
_PATIENCE_MS: Final = 5_000
_SILENT_S: Final = 1.0
_LEFT_OUT: Final = "the mirror has left out offsets {} to {} ({})"
_OTHERS: Final = "the standby has other records at its offset"


class CopyWatch:
    """What the target of a link has of what a producer holds.

    `cluster` is that target, on whose event loop this is, and `standby` (kafka-python's keys) connects to it once more.
    """

    def __init__(self, cluster: Cluster, control: ControlWatch, standby: Mapping[str, Any]) -> None:
        self._cluster = cluster
        self._control = control
        self._standby = standby
        self._net = cluster.net
        self._ledger, self._ledger_end = Ledger(cluster, control.link), 0
        self._lost: Mapping[TopicPartition, Sequence[LedgerRow]] = {}
        self._seen: dict[TopicPartition, int] = {}
        self._woken = Future()
        self._told: set[str] = set()

    def close(self) -> None:
        """Ends its connections."""
        self._cluster.close()

    def wake(self) -> None:
        """Has it ask at once; from any thread."""
        with contextlib.suppress(RuntimeError):  # its event loop has ended
            self._net.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if not self._woken.is_done:
            self._woken.success(None)

    async def run(self, held: HeldBatches) -> None:
        """Tells `held`, until its connections are closed."""
        looks = 0
        while not self._cluster.manager.closed:
            if not (waiting := held.waiting()):
                self._woken, looks = Future(), 0
                if not held.waiting():  # else it was woken before
                    await self._woken
                continue
            try:
                passed = await self._look(held, waiting)
            except Errors.KafkaError as error:
                passed = False
                self._tell(error)
            looks = 0 if passed else looks + 1
            await self._net.sleep(PAUSES.pause_s(looks))

    async def _look(self, held: HeldBatches, waiting: Mapping[TopicPartition, int]) -> bool:
        """Whether anything has been passed."""
        ends, left_out = await list_led_offsets(
            self._cluster, dict.fromkeys(waiting, LATEST), looks=1, within_s=_SILENT_S
        )
        for why in left_out.values():
            self._tell(why)
        if left_out:
            await self._cluster.refresh()
        passed = {partition: end for partition, end in ends.items() if end > waiting[partition]}
        if passed or waiting.keys() - self._seen.keys():
            control = await self._control.refresh()
            if control.is_over or control.is_unwritten:
                return False
            for partition in waiting:
                if not control.writes(partition.topic):
                    held.refuse(partition, f"the link does not copy {partition.topic}")
                    passed.pop(partition, None)
        for partition, row in (await self._left_out(held, passed)).items():
            held.passed({partition: row.from_offset})
            held.refuse(partition, _LEFT_OUT.format(row.from_offset, row.until_offset, row.reason), row.until_offset)
            del passed[partition]
        unsure = [partition for partition, end in passed.items() if self._seen.get(partition, end) > waiting[partition]]
        for partition, same in (await self._compared(held, unsure, passed)).items():
            if not same:
                del passed[partition]
        self._seen.update(ends)
        if passed:
            held.passed(passed)
        return bool(passed)

    async def _left_out(self, held: HeldBatches, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, LedgerRow]:
        """The first loss among what is held of each partition below its end."""
        if not ends:
            return {}
        topic = ledger_topic(self._cluster)
        if (end := await topic.end() if await topic.exists() else 0) != self._ledger_end:
            self._lost = await self._ledger.rows(refresh=True)
            self._ledger_end = end
        found = {}
        for partition in ends.keys() & self._lost.keys():
            for one in held.up_to(partition, ends[partition]):
                rows = [
                    row
                    for row in self._lost[partition]
                    if row.from_offset < one.end and one.base_offset < row.until_offset
                ]
                if rows:
                    found[partition] = min(rows, key=lambda row: row.from_offset)
                    break
        return found

    async def _compared(
        self, held: HeldBatches, partitions: list[TopicPartition], ends: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, bool]:
        """Whether the standby has what is held of these at its offsets; ends what it has not."""
        asked = {partition: held.up_to(partition, ends[partition]) for partition in partitions}
        sought = {
            partition: Sought(
                [records_of(one.batch) for one in batches], batches[0].base_offset, _appended_since_ms(batches)
            )
            for partition, batches in asked.items()
            if batches
        }
        if not sought:
            return {}
        found = dict[TopicPartition, Sequence[int] | Exception]()
        await find_copies(self._net, self._standby, sought, ends, found.__setitem__)
        same = {}
        for partition, offsets in found.items():
            if isinstance(offsets, Exception):
                self._tell(offsets)
            elif not (is_same := offsets == [one.base_offset for one in asked[partition]]):
                held.refuse(partition, _OTHERS)
            same[partition] = not isinstance(offsets, Exception) and is_same
        return same

    def _tell(self, why: object) -> None:
        reason = text_of(why) if isinstance(why, Exception) else str(why)
        if reason not in self._told:
            self._told.add(reason)
            log.warning("What the standby has is not known yet: %s", reason)


def _appended_since_ms(batches: Sequence[HeldBatch]) -> int | None:
    """Where brokers give times their content alone counts: their place is known."""
    return 0 if any(one.log_append_time_ms >= 0 for one in batches) else None

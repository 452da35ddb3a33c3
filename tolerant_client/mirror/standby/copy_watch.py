"""Tells a producer with `acks="mirrored"` how far the standby has its records.

Laws:
- One ListOffsets request for each leader asks for all partitions of which anything is held, PAUSES apart; none is sent while
  nothing is held.
- What a high watermark has passed is read and compared: other records may be there, or filler for what the mirror has left out
  with the operator's consent.  Nothing counts once a promotion has begun: what becomes of the rest is decided at the move.
- A link that copies from another cluster acknowledges nothing.
- While the standby does not respond nothing ends; HeldBatches ends what waits too long.
- A record of a topic that the link does not copy ends at once.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence, Set
from typing import TYPE_CHECKING, Final

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import list_led_offsets
from tolerant_client.cluster.cluster import LATEST, Cluster
from tolerant_client.cluster.event_loop import Future
from tolerant_client.cluster.patience import Backoff
from tolerant_client.errors import text_of
from tolerant_client.mirror.standby.copied_records import find_copies_in
from tolerant_client.stock.held_batches import SOMETHING_ELSE, sought_at

if TYPE_CHECKING:
    from tolerant_client.mirror.state.control_topic import ControlWatch
    from tolerant_client.mirror.state.link_control import LinkControl
    from tolerant_client.stock.held_batches import HeldBatches

log = logging.getLogger(__name__)

PAUSES: Final = Backoff(0.005, 0.1)  # while the watermarks stand still
_SILENT_S: Final = 1.0
_MOST: Final = 500  # batches of a partition that one look compares


class CopyWatch:
    """What the target of a link has of what a producer holds.

    `cluster` is that target, on whose event loop this is.  `check` raises OptionError for a control that cannot be followed.
    """

    def __init__(self, cluster: Cluster, control: ControlWatch, check: Callable[[LinkControl], None]) -> None:
        self._cluster = cluster
        self._control = control
        self._check = check
        self._net = cluster.net
        self._written: set[TopicPartition] = set()  # of the link
        self._woken = Future()
        self._told: set[str] = set()

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

    async def _look(self, held: HeldBatches, waiting: Set[TopicPartition]) -> bool:
        """Whether anything has been passed."""
        ends, left_out = await list_led_offsets(
            self._cluster, dict.fromkeys(waiting, LATEST), looks=1, within_s=_SILENT_S
        )
        for why in left_out.values():
            self._tell(why)
        if left_out:
            await self._cluster.refresh()
        passed = {p: batches[:_MOST] for p, end in ends.items() if (batches := held.up_to(p, end))}
        if passed or waiting - self._written:
            control = await self._control.refresh()
            if control.is_over or control.is_unwritten:
                return False
            self._check(control)
            self._written = {partition for partition in waiting if control.writes(partition.topic)}
            for partition in waiting - self._written:
                why = f"the link does not copy {partition.topic}"
                held.end([(one, why) for one in held.up_to(partition)])
                passed.pop(partition, None)

        def tell(partition: TopicPartition, offsets: Sequence[int] | Exception) -> None:
            if isinstance(offsets, Exception):
                self._tell(offsets)
            else:
                there = set(offsets)
                held.end([(one, None if one.base_offset in there else SOMETHING_ELSE) for one in passed[partition]])

        if passed:
            sought = {partition: sought_at(batches) for partition, batches in passed.items()}
            await find_copies_in(self._cluster, sought, ends, tell)
        return bool(passed)

    def _tell(self, why: object) -> None:
        reason = text_of(why) if isinstance(why, Exception) else str(why)
        if reason not in self._told and not self._cluster.manager.closed:
            self._told.add(reason)
            log.warning("What the standby has is not known yet: %s", reason)

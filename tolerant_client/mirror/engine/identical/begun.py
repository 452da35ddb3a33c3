"""What the control must record of a link before its engine appends: which logs it begins, how far it has copied them, and
every producer id that it has.

Laws:
A. What is recorded of a log was derived from what was read of it.  If the control by now names another log as begun, or
   another offset to begin at, than when the log was read, nothing of that partition is written: a process that slept knows
   an older topic.  If the control no longer names the log (its topic was deleted), nobody has begun another: it is recorded
   again.
B. A record is written under the claim under which the log was read.  The claim is checked whenever the record is built, also
   each time that another writer's record comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeVar

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.transactions import fresh_producer_id
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import OptionError
from tolerant_client.mirror.batches.appendable import AppendState
from tolerant_client.mirror.engine.partition_locks import PartitionLocks
from tolerant_client.mirror.engine.strategy import NO_CLAIM
from tolerant_client.mirror.state.control_record import CONTROL_TOPIC
from tolerant_client.mirror.state.control_topic import ControlWatch
from tolerant_client.mirror.state.link_control import LinkControl, Positions, TopicIds

T = TypeVar("T")

_OUTDATED = "another process has begun it since its log was read"

_CONTROL = (TopicPartition(CONTROL_TOPIC, 0),)


@dataclass(eq=False)
class _Change:
    """What the control should record of `partitions`; `known` is what it recorded when that was derived.

    `refused` are the partitions of which nothing is written, and why (laws A and B).
    """

    known: LinkControl
    begun: Mapping[TopicPartition, TopicIds]
    copied: Positions
    log_starts: Positions
    partitions: set[TopicPartition]
    refused: dict[TopicPartition, str] = field(default_factory=dict)

    def is_outdated(self, now: LinkControl, partition: TopicPartition) -> bool:
        """Whether somebody has since begun another log of a partition, or has it begin elsewhere."""
        if now.generation > self.known.generation:
            return True
        if partition in self.begun and partition not in now.begun and partition not in now.log_starts:
            return False
        was = self.known.begun.get(partition)
        start_was = self.known.log_starts.get(partition)
        return now.begun.get(partition) not in (was, self.begun.get(partition, was)) or (
            partition in self.log_starts
            and now.log_starts.get(partition) not in (start_was, self.log_starts[partition])
        )

    def applied(self, now: LinkControl) -> LinkControl:
        """The control with this change, without what is refused."""

        def kept(said: Mapping[TopicPartition, T]) -> dict[TopicPartition, T]:
            return {p: value for p, value in said.items() if p in self.partitions and p not in self.refused}

        return copied_so_far(now, kept(self.begun), kept(self.copied), kept(self.log_starts))


class Begun:
    """Writes to the control of `control.link`; on the event loop of `target`.

    `is_ours` says whether the claim under which a partition's log was read is still held.
    """

    def __init__(self, target: Cluster, control: ControlWatch, is_ours: Callable[[TopicPartition], bool]) -> None:
        self._target = target
        self._control = control
        self._is_ours = is_ours
        self._unwritten: list[_Change] = []
        self._locks = PartitionLocks()

    async def write(
        self,
        partitions: Mapping[TopicPartition, TopicIds],
        copied: Positions = MappingProxyType({}),
        log_starts: Positions = MappingProxyType({}),
        *,
        known: LinkControl,
    ) -> Mapping[TopicPartition, str]:
        """Returns once the control records that the link has begun these logs, of these topics, and copied them so far.

        Logs in `log_starts` will be filled up to those offsets; `known` is the control from before the logs were read.
        Returns why nothing was written of some partitions: others may have begun them meanwhile, or the record would be too
        large.  Their logs must be read again.
        Without the right to write the control nothing is remembered: a start has warned of it, and an emptied log is not
        believed later.  Raises KafkaError; then none of it is written later either.
        """
        new = {p for p, ids in partitions.items() if known.begun.get(p) != ids}
        # What is known of a former log is dropped with it (copied_so_far), so it is written even if it is the same.
        copied = {p: at for p, at in copied.items() if p in new or known.copied.get(p) != at}
        log_starts = {p: at for p, at in log_starts.items() if p in new or known.log_starts.get(p) != at}
        change = _Change(known, partitions, copied, log_starts, {*new, *copied, *log_starts})
        if not change.partitions:
            return {}
        self._unwritten.append(change)
        try:
            async with self._locks.held(_CONTROL):  # changes at the same time become one record
                if change in self._unwritten:
                    await self._write_all()
        except Errors.MessageSizeTooLargeError as error:
            return dict.fromkeys(change.partitions, unwritable(error))
        finally:
            if change in self._unwritten:
                self._unwritten.remove(change)
        return change.refused

    async def _write_all(self) -> None:
        changes = list(self._unwritten)

        def changed(now: LinkControl) -> LinkControl:
            for change in changes:
                change.refused = {p: _OUTDATED for p in change.partitions if change.is_outdated(now, p)}
                change.refused |= {p: NO_CLAIM for p in change.partitions if not self._is_ours(p)}
                now = change.applied(now)
            return now

        try:
            await self._control.update(changed)
        except (Errors.TopicAuthorizationFailedError, Errors.ClusterAuthorizationFailedError, OptionError):
            pass
        self._unwritten = [change for change in self._unwritten if change not in changes]

    async def identified(self, state: AppendState) -> AppendState:
        """A state with a new producer id, which the target does not know yet and the control records.  Raises KafkaError."""
        fresh = await fresh_producer_id(self._target)
        await self._control.update(lambda now: replace(now, producer_ids=(fresh, *now.producer_ids)))
        return state._replace(producer_id=fresh)


def unwritable(error: Errors.MessageSizeTooLargeError) -> str:
    """The reason for a partition of which the control would have to hold more than fits into a record."""
    return f"the control could not be written: {error}"


def copied_so_far(
    now: LinkControl,
    begun: Mapping[TopicPartition, TopicIds],
    copied: Positions,
    log_starts: Positions = MappingProxyType({}),
) -> LinkControl:
    """The control with these logs begun and copied; positions of a former log do not apply to a new one.  Pure."""
    is_same = {p: now.begun.get(p) == ids for p, ids in begun.items()}

    def kept(positions: Positions) -> Positions:
        return {p: offset for p, offset in positions.items() if is_same.get(p, True)}

    return replace(
        now,
        begun={**now.begun, **begun},
        copied={**kept(now.copied), **copied},
        log_starts={**kept(now.log_starts), **log_starts},
    )

"""The source offset up to which the target already had a partition when the link took it over from another mirror.

Law: an empty log was created again since.  What was recorded of it is forgotten for good, before anything is copied there:
once the log has records, nothing distinguishes it from the log that was taken over.
"""

from __future__ import annotations

from dataclasses import replace

from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import list_led_offsets
from tolerant_client.cluster.cluster import LATEST, Cluster
from tolerant_client.mirror.engine.partition_locks import PartitionLocks
from tolerant_client.mirror.state.control_record import CONTROL_TOPIC
from tolerant_client.mirror.state.control_topic import ControlWatch
from tolerant_client.mirror.state.link_control import LinkControl, Positions

_CONTROL = (TopicPartition(CONTROL_TOPIC, 0),)


class Adopted:
    """The adopted offsets in the link's control; on the event loop of `target`."""

    def __init__(self, target: Cluster, control: ControlWatch) -> None:
        self._target = target
        self._control = control
        self._locks = PartitionLocks()

    async def until(self, partition: TopicPartition, end: int) -> int:
        """The source offset before which a target log that ends at `end` has everything; 0 if nobody had copied there.

        Raises OptionError and KafkaError if the offset of an empty log cannot be forgotten.
        """
        if not end and partition in self._control.value.adopted:
            async with self._locks.held(_CONTROL):
                if partition in self._control.value.adopted:  # no other task has forgotten it while we waited
                    await self._forget(partition)
        return self._control.value.adopted_of(partition, end)

    async def limit(self, partition: TopicPartition, until: int, start: int) -> None:
        """Has the control record that only what lies before `until` was there when the link took over.

        From there on the source's log is now a different one.  Where an operator has it begin is not after `start`, where it begins
        again.  Raises OptionError and KafkaError.
        """
        known = self._control.value
        if known.adopted.get(partition, 0) <= until and known.starts.get(partition, 0) <= start:
            return

        def limited(positions: Positions, most: int) -> Positions:
            kept = {p: offset for p, offset in positions.items() if p != partition}
            return {**kept, partition: most} if most else kept

        def change(now: LinkControl) -> LinkControl:
            if now.generation != known.generation:
                return now
            if now.adopted.get(partition, 0) > until:
                now = replace(now, adopted=limited(now.adopted, until))
            if now.starts.get(partition, 0) > start:
                now = replace(now, starts=limited(now.starts, start))
            return now

        await self._control.update(change)
        await self._control.refresh()

    async def _forget(self, partition: TopicPartition) -> None:
        """Forgets this partition, and all empty ones of its topic: one record if the topic was created again."""
        known = self._control.value
        others = [p for p in known.adopted if p.topic == partition.topic and p != partition]
        ends = (await list_led_offsets(self._target, dict.fromkeys(others, LATEST))).offsets if others else {}
        gone = {partition, *(p for p, end in ends.items() if end == 0)}

        def change(now: LinkControl) -> LinkControl:
            if now.generation != known.generation:
                return now  # a later generation of the link has adopted anew what is there now
            return replace(now, adopted={p: offset for p, offset in now.adopted.items() if p not in gone})

        await self._control.update(change)
        await self._control.refresh()

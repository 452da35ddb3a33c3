"""Brings partitions back to copying: reads where they resume from both logs, and adds them to the flow (M4).

Partitions with the same two leaders are read together, so a broker that hangs holds up only its own.  placement.py decides
what that means; this module has the I/O before and after it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import kafka.errors as Errors
from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from tolerant_client.errors import (
    LinkPromotedError,
    OrdersHiddenError,
    PartitionRefusedError,
    TargetDivergedError,
)
from tolerant_client.mirror.batches.appendable import NO_PRODUCER, AppendRules, AppendState
from tolerant_client.mirror.batches.gaps import Gap
from tolerant_client.mirror.batches.losses import Loss
from tolerant_client.mirror.engine.identical.begun import Begun, unwritable
from tolerant_client.mirror.engine.identical.facts import TargetFacts
from tolerant_client.mirror.engine.identical.flow import Flow, refresh_quietly
from tolerant_client.mirror.engine.identical.given_times import rewritten_offsets, times_rewritten
from tolerant_client.mirror.engine.identical.log_start import start_log_at
from tolerant_client.mirror.engine.identical.loss_handler import LossHandler
from tolerant_client.mirror.engine.identical.partition import PartitionCopy
from tolerant_client.mirror.engine.identical.placement import placed
from tolerant_client.mirror.engine.identical.probes import probe_logs
from tolerant_client.mirror.engine.identical.queued_partition import Phase
from tolerant_client.mirror.engine.identical.resume_point import Found, LogStart, read_append_states
from tolerant_client.mirror.engine.strategy import NO_CLAIM
from tolerant_client.mirror.engine.troubles import read_refusal, times_would_change
from tolerant_client.mirror.logs.reading import require_readable
from tolerant_client.mirror.state.control_record import CONTROL_TOPIC
from tolerant_client.mirror.state.link_control import TopicIds
from tolerant_client.mirror.state.mm2_positions import KnownPositions
from tolerant_client.mirror.state.topics import read_ids


class SyncLoop:
    """Reads where the partitions in `flow.to_sync` resume, for the link's `producer_id`."""

    def __init__(
        self,
        flow: Flow,
        producer_id: int,
        facts: TargetFacts,
        begun: Begun,
        losses: LossHandler,
    ) -> None:
        self._flow = flow
        self._source = flow.source
        self._target = flow.target
        self._control = flow.control
        self._clock = flow.clock
        self._producer_id = producer_id
        self._ledger = flow.link.ledger
        self._facts = facts
        self._begun = begun
        self._losses = losses
        self._open_gaps = flow.open_gaps
        self._mm2 = KnownPositions(flow.target)
        self._being_read: set[TopicPartition] = set()  # a partition is read by one group at a time

    async def run(self) -> None:
        """Reads logs until no partition wants it."""
        flow = self._flow
        while flow.to_sync:
            now = self._clock()
            times = {p: flow.partitions[p].not_before for p in flow.to_sync - self._being_read}
            due = [p for p, not_before in times.items() if not_before <= now]
            if not due:
                await flow.sync_wanted(max(0.001, min(times.values(), default=now + 1.0) - now))
                continue
            flow.to_sync.difference_update(due)
            try:
                groups = await self._by_leaders(due)
            except OrdersHiddenError as error:
                self._stop(due, error)
                continue
            except KafkaError as error:
                flow.not_read(due, f"the leaders could not be found: {error}")
                continue
            for group in groups:
                self._being_read.update(group)
                flow.tasks.spawn(self._sync_group, group)

    async def _sync_group(self, due: list[TopicPartition]) -> None:
        flow = self._flow
        try:
            await self._try_sync(due)
        finally:
            self._being_read.difference_update(due)
            flow.sync_wanted.notify()
        flow.tasks.notify()

    async def _try_sync(self, due: list[TopicPartition]) -> None:
        flow = self._flow
        try:
            await self.sync(due)
        except LinkPromotedError:
            flow.link.obey()
        except OrdersHiddenError as error:
            self._stop(due, error)
        except Errors.TopicAuthorizationFailedError as error:
            # Only its text says which topic is refused: halve until one is left.
            topics = sorted({p.topic for p in due})
            if len(topics) == 1:
                self._may_not_read(due, error)
                return
            for half in topics[: len(topics) // 2], topics[len(topics) // 2 :]:
                # What this reading has put back is read by run(): twice, it would be placed with batches in flight.
                if members := [p for p in due if p.topic in half and p not in flow.to_sync]:
                    await self._try_sync(members)
        except KafkaError as error:
            flow.not_read(due, f"where it resumes is unknown: {error}")

    def _may_not_read(self, partitions: list[TopicPartition], error: Errors.TopicAuthorizationFailedError) -> None:
        """Stops partitions of one topic whose logs we may not read, once that is found again."""
        what = str(error.args[0]) if error.args else type(error).__name__
        for copy in self._flow.copies(partitions):
            if copy.phase not in (Phase.STOPPED, Phase.COPYING):
                copy.phase = Phase.SYNCING
                source_topic = self._source.wire_topic(copy.partition.topic)
                copy.doubt(read_refusal(copy.partition, source_topic, what), self._clock())
                self._flow.after_trouble(copy)

    def _stop(self, partitions: list[TopicPartition], error: OrdersHiddenError) -> None:
        for copy in self._flow.copies(partitions):
            self._flow.stop(copy.partition, error)

    async def sync(self, due: list[TopicPartition]) -> None:
        """Reads where partitions resume, and adds those to the flow that can."""
        flow = self._flow
        copies = {copy.partition: copy for copy in flow.copies(due)}
        for copy in copies.values():
            copy.term, copy.read_at = flow.claims.term(copy.partition), self._clock()  # before anything is read
            copy.unread.took_over(flow.claims.silent_s(copy.partition), copy.read_at)
        due = [p for p in await self._readable(due, copies) if p in copies]
        if not due or not (places := await self._read(due, copies)):
            return
        # Promotion is recorded before the log is fenced: a process that read the log after the fence finds the promotion here.
        await self._control.refresh()
        flow.link.obey()
        joining = []
        for partition, found in places.items():
            copy = copies[partition]
            if not flow.has(copy) or copy.phase is Phase.STOPPED or flow.pause_if_said(copy):
                continue  # a process that took it over since reads for itself
            copy.phase = Phase.SYNCING
            if not flow.is_claimed(copy):
                copy.trouble(NO_CLAIM, self._clock())
                flow.after_trouble(copy)
                continue
            rules, is_first = self._facts.rules(copy), not copy.is_placed
            first = placed(copy, found, rules, self._control.link, self._clock(), int(time.time() * 1000))
            if isinstance(first, LogStart):
                flow.tasks.spawn(self._start_log, copy, first, rules)
            elif first is not None:
                flow.tasks.spawn(self._losses.settle, copy, first, rules)
            elif copy.phase is Phase.COPYING:
                if is_first:
                    self._compare_first_epoch(copy)
                joining.append(partition)
            elif copy.phase is Phase.PAUSED:
                flow.want_sync(copy)
            else:
                flow.after_trouble(copy)
        await flow.reader.try_join(joining)

    def _compare_first_epoch(self, copy: PartitionCopy) -> None:
        """Has the first batch of a log that was only begun compared with the source's leader epoch at its start (accept.py)."""
        control = self._control.value
        begun = control.begun.get(copy.partition, TopicIds())
        asked = control.asked_start(copy.partition, begun.source)
        if asked is not None and asked[1] == copy.acked:
            copy.leader_epoch, _ = asked

    # -- which can be read ----------------------------------------------------

    async def _by_leaders(self, due: list[TopicPartition]) -> list[list[TopicPartition]]:
        """Partitions that can be read now, grouped by their leaders on both clusters."""
        if not self._control.is_read:
            await self._control.refresh()
        copies = self._flow.copies(self._flow.claimed(due))
        groups: dict[tuple[int | None, int | None], list[TopicPartition]] = {}
        wanted = [copy.partition for copy in copies if not self._flow.pause_if_said(copy)]
        for partition in await self._led(await self._present(wanted)):
            leaders = self._source.known_leader(partition), self._target.known_leader(partition)
            groups.setdefault(leaders, []).append(partition)
        return list(groups.values())

    async def _present(self, due: list[TopicPartition]) -> list[TopicPartition]:
        """Those that the target has; a request to a broker for the log of a missing one would hold up all."""
        there = await self._target.partitions({p.topic for p in due})
        present = [p for p in due if p.partition in there.get(p.topic, ())]
        for partition in set(due).difference(present):
            self._facts.forget(partition.topic)
            copy = self._flow.partitions.get(partition)
            if copy is not None and copy.phase is not Phase.STOPPED:
                copy.phase = Phase.SYNCING
                copy.absent(self._clock())
                self._flow.after_trouble(copy)
        return present

    async def _led(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Those with a leader on both clusters: waiting for the election of one would hold up all."""
        leaderless: dict[TopicPartition, str] = {}
        for cluster in (self._source, self._target):
            await cluster.track({p.topic for p in partitions})
            without = [p for p in partitions if cluster.known_leader(p) is None]
            if without:
                self._flow.tasks.spawn(refresh_quietly, cluster)
            leaderless.update({p: cluster.why_leaderless(p) for p in without})
        for partition, why in leaderless.items():
            self._flow.not_read([partition], why)
        return [p for p in partitions if p not in leaderless]

    async def _readable(
        self, due: list[TopicPartition], copies: Mapping[TopicPartition, PartitionCopy]
    ) -> list[TopicPartition]:
        """Those whose topic facts are known, whose topics keep times, and that have no open gap transaction."""
        flow, facts = self._flow, self._facts
        await facts.read(copies.values())
        flow.not_read([p for p in due if not facts.has(p.topic)], "the target topic does not exist")
        due = self._with_times_kept([p for p in due if facts.has(p.topic)])
        unknown = await self._open_gaps.end(due)
        for partition, why in unknown.items():
            flow.not_read([partition], why)
        return [p for p in due if p not in unknown]

    def _with_times_kept(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Those whose topics keep record timestamps; the others wait until somebody corrects the configuration."""
        kept = []
        for partition in partitions:
            copy = self._flow.partitions.get(partition)
            if not self._facts.rewrites_times(partition.topic):
                kept.append(partition)
            elif copy is not None and copy.phase is not Phase.STOPPED and not copy.retimed:
                copy.phase, copy.has_doubtful_facts = Phase.SYNCING, True
                copy.doubt(times_would_change(str(copy)), self._clock())
                self._flow.after_trouble(copy)
            else:
                kept.append(partition)  # its log shows what was rewritten
        return kept

    # -- where they resume ----------------------------------------------------

    async def _read(
        self, due: list[TopicPartition], copies: Mapping[TopicPartition, PartitionCopy]
    ) -> dict[TopicPartition, Found | None]:
        """What was read of each, None if it could not be read; without partitions that a cluster does not know."""
        copied = {p: (copies[p].former_epoch, copies[p].acked) for p in due if copies[p].former_epoch >= 0}
        untold = await self._flow.witnesses.look(self._target, due)  # before both logs are compared
        for partition, why in untold.items():
            self._flow.not_read([partition], why)
        due = [p for p in due if p not in untold]
        ids = await read_ids(self._source, self._target, {p.topic for p in due})
        self._flow.not_read([p for p in due if p.topic not in ids], "one of the clusters has no such topic")
        due = [p for p in due if p.topic in ids]
        if not due:
            return {}
        remembered = self._control.value
        # Another process of the run may have copied further since.
        copied_to = {p: max(c.acked, remembered.copied.get(p, 0)) for p, c in copies.items() if c.is_placed}
        filled = {p: c.log_start for p, c in copies.items() if c.log_start}
        control = replace(
            remembered, copied={**remembered.copied, **copied_to}, log_starts={**remembered.log_starts, **filled}
        )
        places = await read_append_states(
            self._source, self._target, due, self._producer_id, self._ledger, copied, control, ids, self._mm2
        )
        await require_readable(self._target, [p for p in due if p not in places])
        unprobed = {
            p: found.log_end
            for p, found in places.items()
            if isinstance(found, AppendState) and not copies[p].is_placed and not ids[p.topic].source
        }
        rows = partial(self._ledger.rows, refresh=True)
        places |= await probe_logs(self._source, self._target, unprobed, control.adopted, rows)
        starts = {p: found.start for p, found in places.items() if isinstance(found, LogStart)}
        unwritten = dict(
            await self._begun.write(
                {p: ids[p.topic] for p, found in places.items() if isinstance(found, (AppendState, LogStart))},
                log_starts=starts,
                known=remembered,
            )
        )
        for partition in [p for p in places if p not in unwritten]:
            try:
                places[partition] = await self._identified(copies[partition], places[partition])
            except Errors.MessageSizeTooLargeError as error:
                unwritten[partition] = unwritable(error)
        for partition, why in unwritten.items():
            self._flow.not_read([partition], why)
        return {p: places.get(p) for p in due if p not in unwritten}

    async def _identified(self, copy: PartitionCopy, found: Found) -> Found:
        """A state with a producer id of the link, if it has none yet."""
        if isinstance(found, AppendState) and found.producer_id == NO_PRODUCER:
            return await self._begun.identified(found)
        if isinstance(found, Loss) and found.state.producer_id == NO_PRODUCER:
            return found._replace(state=await self._begun.identified(found.state))
        if isinstance(found, AppendState) and copy.retimed:
            return await self._with_times_read(copy, found)
        return found

    async def _with_times_read(self, copy: PartitionCopy, state: AppendState) -> AppendState | TargetDivergedError:
        """The state, unless the log shows that the target's brokers overwrote record timestamps."""
        in_log = [span for span in copy.retimed if span[0] < state.log_end]
        if (given := await rewritten_offsets(self._target, copy.partition, in_log)) is not None:
            return times_rewritten(str(copy), *given)
        copy.retimed.clear()
        return state

    async def _start_log(self, copy: PartitionCopy, found: LogStart, rules: AppendRules) -> None:
        """Makes an empty log begin at the found offset; then it is read again."""
        flow = self._flow
        copy.in_flight += 1
        try:
            await flow.require_writable(copy.partition)
            if copy.partition not in self._control.value.log_starts:
                raise PartitionRefusedError(
                    f"{copy} is to begin at offset {found.start}, and the control does not record it: an unfinished start would"
                    f" be taken for a loss later; grant the mirror Write on the target's topic {CONTROL_TOPIC}"
                )
            copy.log_start = found.start
            await start_log_at(
                self._target,
                copy.partition,
                found.state,
                found.start,
                {self._producer_id, *self._control.value.producer_ids},
                is_compacted=rules.is_compacted,
                max_batch_bytes=rules.max_batch_bytes,
                may_send=partial(flow.require_ours, copy.partition),
            )
        except KafkaError as error:
            copy.unread.lost(self._target.held_up.told_until())
            copy.not_filled(Gap(found.state.log_end, found.start), error, self._clock())
        copy.in_flight -= 1
        copy.adopted_at = self._clock()
        if not flow.has(copy):
            flow.settled(copy)
        elif copy.phase is Phase.SYNCING:
            flow.want_sync(copy)
        else:
            flow.after_trouble(copy)

"""Applies the operator's policy to a loss: stop, pause, or record it and resume after it (M7)."""

from __future__ import annotations

import time

import kafka.errors as Errors
from kafka.errors import KafkaError

from tolerant_client.mirror.batches.appendable import AppendRules
from tolerant_client.mirror.batches.losses import Loss, LossPolicy, LossReason
from tolerant_client.mirror.engine.identical.begun import Begun
from tolerant_client.mirror.engine.identical.flow import Flow
from tolerant_client.mirror.engine.identical.partition import PartitionCopy
from tolerant_client.mirror.engine.identical.queued_partition import Phase
from tolerant_client.mirror.engine.limits import PAUSE_S
from tolerant_client.mirror.engine.strategy import NO_CLAIM
from tolerant_client.mirror.state.topics import read_ids


class LossHandler:
    """Settles the losses of the partitions in a flow."""

    def __init__(self, flow: Flow, begun: Begun) -> None:
        self._flow = flow
        self._begun = begun

    async def settle(self, copy: PartitionCopy, loss: Loss, rules: AppendRules) -> None:
        """Applies the policy to a loss, once it was found often enough."""
        flow, now = self._flow, self._flow.clock()
        policy = flow.link.policy.on(copy.partition.topic, loss.row.reason)
        if not copy.is_believed(str(loss.error), now):
            pass
        elif policy is LossPolicy.FAIL:
            copy.stop(loss.error)
        elif policy is LossPolicy.PAUSE:
            copy.pause(loss.error, now + PAUSE_S)
            flow.want_sync(copy)
        elif await self._written(copy, loss):
            if loss.row.reason == LossReason.OVERSIZED:
                copy.left_out.add(loss.row.from_offset)
                copy.too_large = None
            if loss.resume_at > loss.state.log_end:
                copy.resume(loss.state, rules, flow.clock())
                items = copy.leave_out(loss.resume_at, int(time.time() * 1000))
                flow.appender.enqueue([(copy, item) for item in items])
                await flow.reader.try_join([copy.partition])
            else:
                copy.trouble("a loss was recorded", now)  # with its row in the ledger both logs mean something else
        if flow.has(copy) and copy.phase not in (Phase.COPYING, Phase.PAUSED):
            flow.after_trouble(copy)
        flow.tasks.notify()

    async def _written(self, copy: PartitionCopy, loss: Loss) -> bool:
        """Records a loss in the ledger; True if the partition is still ours afterwards."""
        flow = self._flow
        try:
            if not flow.is_ours(copy.partition):
                raise Errors.NotLeaderForPartitionError(NO_CLAIM)
            await flow.link.ledger.write([loss.row])
            if loss.row.reason == LossReason.RECREATION:  # from now on the link copies the new topic
                ids = await read_ids(flow.source, flow.target, {copy.partition.topic})
                if copy.partition.topic not in ids:
                    raise Errors.UnknownTopicOrPartitionError(f"topic {copy.partition.topic} of one of the clusters")
                copied = {copy.partition: loss.state.log_end}
                begun = {copy.partition: ids[copy.partition.topic]}
                if why := await self._begun.write(begun, copied, known=flow.control.value):
                    copy.trouble(why[copy.partition], flow.clock())
                    return False
        except KafkaError as error:
            copy.trouble(f"the loss could not be recorded: {error}", flow.clock())
            return False
        copy.losses += 1
        return flow.has(copy) and copy.phase is Phase.SYNCING

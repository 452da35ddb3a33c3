"""Makes what the operator says of a link take effect while it is copied, and has its control remember how far that was."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.transactions import init_producer_id
from tolerant_client.errors import LinkPausedError, LinkPromotedError
from tolerant_client.mirror.engine.identical.begun import Begun
from tolerant_client.mirror.engine.identical.flow import Flow
from tolerant_client.mirror.engine.identical.partition import PartitionCopy, Phase
from tolerant_client.mirror.engine.identical.resting import RestingLogs
from tolerant_client.mirror.engine.throttle import TokenBucket
from tolerant_client.mirror.state.claims import Waiting
from tolerant_client.mirror.state.link_control import link_options

_CONTROL_S = 1.0  # between two reads of what the operator says
_RESTS_S = 10.0  # since the last append, before it is written down how far a partition was copied
_REMEMBER_S = 60.0  # between two such records
_KEEP_ID_S = 86_400.0  # coordinators forget a transactional.id that is not used for a week; promotion needs ours


class ControlFollower:
    """Follows `flow.control`.  `bytes_per_s` is the rate unless the operator gives another; either is divided by `shares`.

    `waiting` says what the claims log is to be told of partitions that do not move.
    """

    def __init__(
        self,
        flow: Flow,
        begun: Begun,
        bucket: TokenBucket,
        bytes_per_s: int | None,
        shares: int,
        waiting: Callable[[], dict[TopicPartition, Waiting]],
    ) -> None:
        self._flow = flow
        self._begun = begun
        self._bucket = bucket
        self._bytes_per_s = bytes_per_s
        self._shares = shares
        self._waiting = waiting
        self._resting = RestingLogs(flow.target, flow.clock, flow.tasks.spawn, flow.after_trouble)
        self._net = flow.source.net
        self._is_following = False
        self._next_id_use = flow.clock() + _KEEP_ID_S
        self._next_remembered = flow.clock() + _REMEMBER_S

    def start(self) -> None:
        """Follows the control for as long as there is anything to copy."""
        if not self._is_following:
            self._is_following = True
            self._flow.tasks.spawn(self._follow)

    async def _follow(self) -> None:
        """Reads once a second what the operator says."""
        flow = self._flow
        try:
            while flow.partitions:
                await self._net.sleep(_CONTROL_S)
                flow.claims.claimant.waiting = self._waiting()
                self._resting.look([copy for copy in flow.partitions.values() if flow.is_claimed(copy)])
                flow.drop_expired()
                try:
                    await flow.control.refresh()
                    if flow.clock() > self._next_id_use:
                        self._next_id_use = flow.clock() + _KEEP_ID_S
                        await init_producer_id(flow.target, flow.control.value.producer_name(flow.control.link))
                except KafkaError:
                    continue  # what was said before holds
                self.obey()
                if flow.clock() > self._next_remembered:
                    self._next_remembered = flow.clock() + _REMEMBER_S
                    flow.tasks.spawn(self.remember, self.copied(flow.partitions, _RESTS_S))
        finally:
            self._is_following = False

    def obey(self) -> None:
        """Makes what the operator said last take effect."""
        flow, control = self._flow, self._flow.control.value
        rate = control.rate(self._bytes_per_s)
        self._bucket.set_rate(None if rate is None else rate / self._shares, flow.clock())
        try:
            control.require_not_promoted(flow.control.link)
        except LinkPromotedError as error:
            flow.stop_all(error)
            return
        for copy in list(flow.partitions.values()):
            if not control.pauses(copy.partition):
                if copy.phase is Phase.PAUSED and isinstance(copy.error, LinkPausedError):
                    flow.want_sync(copy)
            elif copy.phase is Phase.COPYING:
                copy.trouble("its operator has paused it", flow.clock())
                flow.after_trouble(copy)

    def pause_if_said(self, copy: PartitionCopy) -> bool:
        """Leaves a partition alone that the operator has paused; False for another one."""
        flow = self._flow
        if not flow.control.value.pauses(copy.partition):
            return False
        if copy.phase is not Phase.STOPPED:
            resume = f"tolerant-kafka resume {link_options(flow.control.link, flow.target)}"
            copy.pause(LinkPausedError(f"{copy} is paused by an operator; {resume} lets it go on"), flow.clock())
        return True

    def copied(self, partitions: Iterable[TopicPartition], after_s: float) -> dict[TopicPartition, int]:
        """How far those were copied that are claimed and have rested so long."""
        flow, now = self._flow, self._flow.clock()
        return {c.partition: c.acked for c in flow.copies(partitions) if c.rests(after_s, now) and flow.is_claimed(c)}

    async def remember(self, ends: Mapping[TopicPartition, int]) -> None:
        """Has the control say how far was copied: the log may be empty, and its producer forgotten, by the next read."""
        try:
            await self._begun.write({}, ends)
        except KafkaError:
            pass  # the next time it rests

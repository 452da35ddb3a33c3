"""Finds gap transactions that an earlier writer left open, and ends them before anything else is appended.

The coordinator of such a transaction aborts it after its timeout, and the marker takes an offset wherever the log then ends:
inside the gap that does no harm (law B of fill.py), after it the offset belongs to a record of the source.  Until then the
transaction blocks read_committed consumers.  A partition's log does not show a transaction that has written nothing yet, so
the coordinators are asked (KIP-664, Kafka 3.0); where they cannot tell, every partition's transactional id is taken over.

A request that an earlier writer has left unread at a broker may open one later.  Who fills with transactions fences it
(law A of fill.py); who fills with markers does so with `fence`.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.ask_nodes import SilentError, ask_nodes
from tolerant_client.cluster.admin.coordinators import TRANSACTION, Coordinators, find_coordinators
from tolerant_client.cluster.admin.transactions import CoordinatorView, can_list_transactions, describe_transactions
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.event_loop import Future
from tolerant_client.errors import PartitionRefusedError, text_of
from tolerant_client.mirror.engine.identical.gap_producer import GapProducer, gap_transactional_id
from tolerant_client.records.record_batch import BatchHeader

_OPEN = {"Ongoing", "PrepareAbort", "PrepareCommit", "PrepareEpochFence"}  # TransactionState.java
# Not by us: if we have no right to it now we had none then.
_NEVER_USED = (Errors.TransactionalIdNotFoundError, Errors.TransactionalIdAuthorizationFailedError)
_ANSWERED_IN_S = 5.0  # a coordinator; one that hangs holds up only its own partitions
_AT_ONCE = 200


class OpenGaps:
    """The open gap transactions of one link; on the loop of `target`.

    `may_write` raises LinkPromotedError if the link may no longer write, and KafkaError if the partition is not claimed;
    it is called only if there is something to end.
    """

    def __init__(
        self,
        target: Cluster,
        link: str,
        may_write: Callable[[TopicPartition], Awaitable[None]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._target = target
        self._link = link
        self._may_write = may_write
        self._clock = clock
        self._coordinators = Coordinators(target)
        # Takeovers that a hanging coordinator has not finished: the next call waits for the same ones.
        self._ending: dict[str, Future] = {}
        self._unfenced: set[TopicPartition] = set()  # somebody has had their transactional.ids

    async def end(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, str]:
        """Ends the open transactions in these partitions; returns those of which it is unknown whether there is one, and why.

        Raises what `may_write` does, and KafkaError.
        """
        target = self._target
        names = {gap_transactional_id(self._link, partition): partition for partition in partitions}
        if not names:
            return {}
        await target.connect()
        if can_list_transactions(target):
            views, unknown = await _described(target, names)
            found = [name for name, view in views.items() if view is not None and view.state in _OPEN]
            self._unfenced.difference_update(partitions)
            self._unfenced.update(names[name] for name, view in views.items() if view is not None)
        else:
            found, unknown = list(names), {}
        for name in names.keys() - found:
            self._ending.pop(name, None)
        ending = {
            name: self._ending.pop(name, None) or target.net.call_soon_with_future(self._end, name, names[name])
            for name in found[:_AT_ONCE]
        }
        deadline = time.monotonic() + _ANSWERED_IN_S
        for name, future in ending.items():
            with suppress(Errors.KafkaError):  # its error is raised below
                await target.manager.wait_for(future, 1000 * max(0.0, deadline - time.monotonic()))
            if not future.is_done:
                self._ending[name] = future
                unknown[name] = _silent(name, self._coordinators.known(TRANSACTION, name))
        for future in [future for future in ending.values() if future.is_done]:
            await future
        # The rest is ended by the next calls.
        return {
            names[name]: why
            for name, why in {**unknown, **dict.fromkeys(found[_AT_ONCE:], "gaps are being ended")}.items()
        }

    async def fence(self, partition: TopicPartition) -> bool:
        """Fences who has had the transactional.id of a partition before its log was read, if anybody has; whether that was so.

        Raises what `may_write` does, and KafkaError.
        """
        if partition not in self._unfenced:
            return False
        await self._end(gap_transactional_id(self._link, partition), partition)
        return True

    async def _end(self, name: str, partition: TopicPartition) -> None:
        await self._may_write(partition)
        try:
            await GapProducer(self._target, self._coordinators, name, partition, self._clock).begin()
        except PartitionRefusedError as error:
            if not isinstance(error.__cause__, Errors.TransactionalIdAuthorizationFailedError):
                raise
        self._unfenced.discard(partition)


async def _described(target: Cluster, names: Iterable[str]) -> tuple[dict[str, CoordinatorView | None], dict[str, str]]:
    """What coordinators tell of transactional ids, None of one that was never used; and why others are unknown."""
    found: dict[str, CoordinatorView | None] = {}
    unknown: dict[str, str] = {}
    by_node: dict[int, list[str]] = {}
    for key, node in (await find_coordinators(target, TRANSACTION, names)).items():
        if isinstance(node, int):
            by_node.setdefault(node, []).append(key)
        elif isinstance(node, _NEVER_USED):
            found[key] = None
        else:
            unknown[key] = f"the coordinator of {key} was not found: {text_of(node)}"
    told = await _views(target, by_node)
    for node_id, keys in by_node.items():
        for key in keys:
            view = told[key]
            if isinstance(view, CoordinatorView):
                found[key] = view
            elif isinstance(view, _NEVER_USED):
                found[key] = None
            elif isinstance(view, SilentError):
                unknown[key] = _silent(key, node_id)
            else:
                unknown[key] = f"the coordinator of its gap transactions does not tell of them: {text_of(view)}"
    return found, unknown


async def ended_gap(target: Cluster, link: str, partition: TopicPartition, marker: BatchHeader | None) -> bool | None:
    """Whether a batch is the marker of a gap transaction of the link; None if that is unknown (ended_gaps)."""
    return False if marker is None else (await ended_gaps(target, link, {partition: marker})).get(partition)


async def ended_gaps(
    target: Cluster, link: str, batches: Mapping[TopicPartition, BatchHeader]
) -> dict[TopicPartition, bool]:
    """Whether the batch of a partition is the marker of a gap transaction of the link, by their coordinators' descriptions.

    Without those whose coordinator does not tell now.  A coordinator writes its marker into any topic that has the name by then.
    """
    names = {gap_transactional_id(link, p): p for p, header in batches.items() if header.is_control}
    if not names or not can_list_transactions(target):
        return dict.fromkeys(batches, False)
    try:
        found, _ = await _described(target, names)
    except Errors.KafkaError:
        found = {}
    told = {names[name]: -1 if view is None else view.producer_id for name, view in found.items()}
    others = dict.fromkeys(batches.keys() - names.values(), False)
    return others | {p: producer_id == batches[p].producer_id for p, producer_id in told.items()}


async def _views(target: Cluster, by_node: Mapping[int, Collection[str]]) -> dict[str, CoordinatorView | Exception]:
    async def ask(node_id: int, keys: Collection[str]) -> dict[str, CoordinatorView | Exception]:
        return await describe_transactions(target, keys, node_id)

    return await ask_nodes(target, by_node, ask, _ANSWERED_IN_S)


def _silent(transactional_id: str, node_id: int | None) -> str:
    where = "" if node_id is None else f" at broker {node_id}"
    return f"the coordinator of transactional id {transactional_id}{where} does not respond"

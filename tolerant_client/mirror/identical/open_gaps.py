"""Gap transactions that an earlier writer left open: found, and ended before anything else is appended.

The coordinator of such a transaction aborts it after its timeout, and the marker takes an offset wherever the log ends by
then: inside the gap nobody is hurt (law B of fill.py), behind it the offset belongs to a record of the source.  Until then
it holds back who reads committed.  A partition's log does not show a transaction that has written nothing yet, so the
coordinators are asked (KIP-664, Kafka 3.0); where they do not tell, every partition's is taken over.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Any

import kafka.errors as Errors
from kafka.future import Future
from kafka.protocol.admin import DescribeTransactionsRequest
from kafka.protocol.metadata import FindCoordinatorRequest
from kafka.structs import TopicPartition

from tolerant_client.errors import OptionError
from tolerant_client.mirror.identical.gap_producer import GapProducer, gap_transactional_id
from tolerant_client.producer_transaction import TRANSACTION, Coordinators
from tolerant_client.raw import RawCluster

_OPEN = {"Ongoing", "PrepareAbort", "PrepareCommit", "PrepareEpochFence"}  # TransactionState.java
_NEVER_USED = {  # by us: who has no right now had none then
    Errors.TransactionalIdNotFoundError.errno,
    Errors.TransactionalIdAuthorizationFailedError.errno,
}
_ANSWERED_IN_S = 5.0  # by a coordinator; one that hangs holds up its own partitions alone
_AT_ONCE = 200


async def end_open_gaps(
    target: RawCluster,
    link: str,
    partitions: Collection[TopicPartition],
    may_write: Callable[[TopicPartition], Awaitable[None]],
    clock: Callable[[], float] = time.monotonic,
) -> dict[TopicPartition, str]:
    """Ends the link's open gap transactions in these partitions; says of which, and why, nobody knows whether there is one.

    `may_write` raises LinkPromotedError where the link may write no more, and KafkaError where the partition is not claimed;
    it is asked only if there is something to end.
    Raises that, and KafkaError.
    """
    names = {gap_transactional_id(link, partition): partition for partition in partitions}
    if not names:
        return {}
    await target.connect()
    if DescribeTransactionsRequest.API_KEY in target.manager.broker_version_data.api_versions:
        found, unknown = await _described(target, names)
    else:
        found, unknown = list(names), {}
    coordinators = Coordinators(target)

    async def end(name: str) -> None:
        await may_write(names[name])
        try:
            await GapProducer(target, coordinators, name, names[name], clock).begin()
        except OptionError as error:
            if not isinstance(error.__cause__, Errors.TransactionalIdAuthorizationFailedError):
                raise

    for future in [target.net.call_soon_with_future(end, name) for name in found[:_AT_ONCE]]:
        await future
    # What is left is looked for again at the next look.
    return {names[name]: why for name, why in {**unknown, **dict.fromkeys(found[_AT_ONCE:], "gaps are being ended")}.items()}


async def _described(target: RawCluster, names: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """The transactional ids with an open transaction, and why it is not known of others."""
    unknown: dict[str, str] = {}
    by_node: dict[int, list[str]] = {}
    answer = await target.send(FindCoordinatorRequest(key_type=TRANSACTION, coordinator_keys=list(names), min_version=4))
    for told in answer.coordinators:
        if told.error_code in _NEVER_USED:
            continue
        if told.error_code:
            unknown[told.key] = f"the coordinator of {told.key} was not found: {Errors.for_code(told.error_code).__name__}"
        else:
            by_node.setdefault(told.node_id, []).append(told.key)

    async def ask(node_id: int, keys: list[str]) -> Any:
        return await target.send(DescribeTransactionsRequest(transactional_ids=keys), node_id)

    asked = {node_id: target.net.call_soon_with_future(ask, node_id, keys) for node_id, keys in by_node.items()}
    found: list[str] = []
    for node_id, future in asked.items():
        try:
            states = (await _in_time(target, future, f"node {node_id}")).transaction_states
        except Errors.KafkaError as error:
            why = f"the coordinator of its gap transactions does not answer: {type(error).__name__}: {error}"
            unknown.update(dict.fromkeys(by_node[node_id], why))
            continue
        for state in states:
            if state.error_code and state.error_code not in _NEVER_USED:
                name = Errors.for_code(state.error_code).__name__
                unknown[state.transactional_id] = f"the coordinator of its gap transactions answers {name}"
            elif not state.error_code and state.transaction_state in _OPEN:
                found.append(state.transactional_id)
    return found, unknown


async def _in_time(target: RawCluster, future: Any, who: str) -> Any:
    """What a future brings; raises RequestTimedOutError where that takes too long."""
    done = Future()

    def finish(*_: object) -> None:
        if not done.is_done:
            done.success(None)

    timer = target.net.call_later(_ANSWERED_IN_S, finish)
    future.add_both(finish)
    await done
    target.net.cancel(timer)
    if not future.is_done:
        raise Errors.RequestTimedOutError(f"{who} has not answered for {_ANSWERED_IN_S:.0f} s")
    return await future

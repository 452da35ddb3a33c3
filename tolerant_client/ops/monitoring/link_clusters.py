"""Both clusters of a link as its watch asks them: each question once, with little patience.

A caller gets the response, or an error of AWAY within seconds, even if one broker hangs; the next sample asks again.
While a quota throttles what takes records (KIP-219), no records are asked for: nothing waits for them, and the mirror has the quota.
Only one thread at a time may call.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

from kafka.errors import KafkaError, KafkaTimeoutError
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import LedOffsets
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.patience import QUOTA_S
from tolerant_client.errors import LoginRefusedError, OptionError, StoppedError, text_of
from tolerant_client.mirror.batches.losses import LedgerRow
from tolerant_client.mirror.life import lens
from tolerant_client.mirror.life.comparison import compare_ends
from tolerant_client.mirror.state.control_topic import FORGOTTEN, ControlWatch
from tolerant_client.mirror.state.health import deleted_on_source
from tolerant_client.mirror.state.ledger import Ledger, read_ledger
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.open_transactions import Held, find_held
from tolerant_client.mirror.state.replication_policy import TopicNames
from tolerant_client.ops.service.clusters import connected
from tolerant_client.ops.service.link_state import LeftOut

_T = TypeVar("_T")
AWAY = (KafkaError, OSError, ValueError)  # ValueError: a response that repeatedly cannot be decoded
_BOUND_MS = 12_000  # enough for two requests to a broker that hangs
_PATIENCE_MS = 5_000  # if a cluster is unavailable for a moment, no progress is shown; nothing else suffers


class LinkClusters:
    """Clients of source and target, from Java client properties; nothing is connected before the first question."""

    def __init__(
        self, source: Mapping[str, str], target: Mapping[str, str], link: str, names: TopicNames | None
    ) -> None:
        self._source, self._target = connected(source, target, names, _PATIENCE_MS)
        self._throttled_at = float("-inf")
        self._link = link
        self._control = ControlWatch(self._target, link)

    def close(self) -> None:
        self._target.close()
        self._source.close()

    def source_ends(self, partitions: Collection[TopicPartition]) -> lens.SourceEnds:
        """The source's log ends and last stable offsets; leaves out partitions without a leader that responds."""
        return self._ask(self._source, lens.source_ends, self._source, partitions)

    def target_ends(self, partitions: Collection[TopicPartition]) -> LedOffsets:
        """The target's log ends; leaves out partitions without a leader that responds."""
        return self._ask(self._target, lens.log_ends, self._target, partitions)

    def not_on_source(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
        """The partitions that the source does not have, according to its last metadata, in the words of their health."""
        source = self._source
        return {p: deleted_on_source(has_topic=not source.lacks(p.topic)) for p in partitions if source.lacks(*p)}

    def not_on_target(self, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        """The partitions that the target does not have, according to its last metadata."""
        return {p for p in partitions if self._target.lacks(*p)}

    def held(self, spans: Mapping[TopicPartition, tuple[int, int]]) -> list[Held]:
        """The open transactions that hold back these source partitions, given by last stable offset and high watermark."""
        return self._ask(self._source, find_held, self._source, spans)

    def unproved(
        self, partitions: Collection[TopicPartition], control: LinkControl, is_translated: bool
    ) -> Collection[TopicPartition]:
        """Those of these partitions of which it is unknown how much is copied: their logs differ, as `status` finds it, or tell nothing."""
        asked = self._source, self._target, partitions, Ledger(self._target, self._link), control, is_translated
        found = self._read(compare_ends, *asked)
        return () if found is None else found.unproved

    def ledger(self) -> list[LedgerRow]:
        """The link's losses, oldest first."""
        return [row for row in self._ask(self._target, read_ledger, self._target) if row.link == self._link]

    def control(self) -> LinkControl:
        """The operator's orders; raises OrdersHiddenError if we may not read them, OptionError if they are gone."""
        found = self._ask(self._source, self._control.refresh)
        if self._control.is_forgotten:
            raise OptionError(FORGOTTEN)
        if found.is_over:
            self._control = ControlWatch(self._target, self._link)  # a later life of the link is not promoted
        return found

    def oldest_ms(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The timestamps of the records at these offsets of the source; unknown ones are absent."""
        return self._read(lens.oldest_ms, self._source, positions)

    def bytes_per_offset(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, float]:
        """The mean bytes per offset on the source's disks; unknown ones are absent."""
        return self._ask(self._source, lens.bytes_per_offset, self._source, ends)

    def _ask(self, cluster: Cluster, function: Callable[..., Awaitable[_T]], *args: Any) -> _T:
        async def bounded() -> _T:
            asked = cluster.net.call_soon_with_future(function, *args)
            try:
                response: _T = await cluster.heard(asked, _BOUND_MS)
            except KafkaTimeoutError as error:
                raise cluster.unreachable(_BOUND_MS, error, "asking its brokers") from error
            return response

        return cluster.run(bounded)

    def _read(self, function: Callable[..., Awaitable[_T]], *args: Any) -> _T:
        """The response to what takes records; raises KafkaTimeoutError once a quota holds that up."""
        until = time.monotonic() + _BOUND_MS / 1000

        def is_in_vain() -> bool:
            now = time.monotonic()
            if self._source.quota_words() or self._target.quota_words():
                self._throttled_at = now
            return now > until or now - self._throttled_at <= QUOTA_S

        if is_in_vain():  # what was given up before goes on when the throttle ends
            raise KafkaTimeoutError("a quota throttles us")
        try:
            return self._source.run(function, *args, is_stopping=is_in_vain)
        except StoppedError as error:
            raise KafkaTimeoutError("a quota throttles us, or a broker hangs") from error


def asked_of(away: dict[str, Exception], name: str, ask: Callable[..., _T], *arguments: object) -> _T | None:
    """The response of a cluster; without one, returns None and `away` says why."""
    try:
        return ask(*arguments)
    except AWAY as error:
        away[name] = error
        return None


def not_responding(away: Mapping[str, Exception]) -> tuple[dict[str, str], frozenset[str]]:
    """Why clusters do not respond, in LinkState's fields: `unreachable` and `refused`.  Pure."""
    refused = frozenset(name for name, error in away.items() if isinstance(error, LoginRefusedError))
    return {name: text_of(error) for name, error in away.items()}, refused


def leave_out(
    leaderless: dict[str, LeftOut], name: str, why: Mapping[TopicPartition, str], told: Collection[TopicPartition]
) -> set[TopicPartition]:
    """Records which partitions of a cluster cannot be checked, except those `told` as blocked; returns all of them."""
    if dark := why.keys() - set(told):
        first = min(dark)
        leaderless[name] = LeftOut(len(dark), f"{first.topic}-{first.partition}: {why[first]}")
    return set(why)


def quietly(ask: Callable[..., _T], *arguments: object) -> _T | None:
    """The response; None after an error: the next sample shows whether the cluster is unavailable."""
    try:
        return ask(*arguments)
    except AWAY:
        return None

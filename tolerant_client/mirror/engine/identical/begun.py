"""What the control must know of a link before its engine appends: which logs it begins, how far it has copied them, and every
producer id that it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.transactions import fresh_producer_id
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import OptionError
from tolerant_client.mirror.batches.appendable import AppendState
from tolerant_client.mirror.engine.partition_locks import PartitionLocks
from tolerant_client.mirror.state.control_record import CONTROL_TOPIC
from tolerant_client.mirror.state.control_topic import ControlWatch, update_control
from tolerant_client.mirror.state.link_control import LinkControl, Positions, TopicIds

_CONTROL = (TopicPartition(CONTROL_TOPIC, 0),)


class _Unwritten(NamedTuple):
    """What the control does not say yet, as copied_so_far takes it."""

    begun: dict[TopicPartition, TopicIds]
    copied: dict[TopicPartition, int]
    log_starts: dict[TopicPartition, int]


class Begun:
    """Writes to the control of `control.link`; on the event loop of `target`."""

    def __init__(self, target: Cluster, control: ControlWatch) -> None:
        self._target = target
        self._control = control
        self._unwritten = _Unwritten({}, {}, {})
        self._locks = PartitionLocks()

    async def write(
        self,
        partitions: Mapping[TopicPartition, TopicIds],
        copied: Positions = MappingProxyType({}),
        log_starts: Positions = MappingProxyType({}),
    ) -> None:
        """Returns once the control says that the link has begun these logs, of these topics, and copied them up to there.

        Those of `log_starts` are to be filled up to there.
        Without the right to write there nothing is remembered: a start has warned of it, and a log that is emptied is not
        believed later.  Raises KafkaError.
        """
        known, unwritten = self._control.value, self._unwritten
        new = unwritten.begun  # what is known of a former log goes with it (copied_so_far), even where it is the same
        new.update({p: ids for p, ids in partitions.items() if known.begun.get(p) != ids})
        unwritten.copied.update({p: at for p, at in copied.items() if p in new or known.copied.get(p) != at})
        unwritten.log_starts.update(
            {p: at for p, at in log_starts.items() if p in new or known.log_starts.get(p) != at}
        )
        if any(unwritten):
            async with self._locks.held(_CONTROL):  # what is begun at the same time is one record
                await self._write_all()

    async def _write_all(self) -> None:
        unwritten, self._unwritten = self._unwritten, _Unwritten({}, {}, {})
        if not any(unwritten):
            return
        try:
            await update_control(self._target, self._control.link, lambda now: copied_so_far(now, *unwritten))
        except (Errors.TopicAuthorizationFailedError, Errors.ClusterAuthorizationFailedError, OptionError):
            pass
        except Errors.KafkaError:
            (begun, copied, log_starts), later = unwritten, self._unwritten
            self._unwritten = _Unwritten(
                {**begun, **later.begun}, {**copied, **later.copied}, {**log_starts, **later.log_starts}
            )
            raise

    async def identified(self, state: AppendState) -> AppendState:
        """A state with a producer id that the target does not know yet; from now on one of the link's.  Raises KafkaError."""
        fresh = await fresh_producer_id(self._target)
        await update_control(
            self._target, self._control.link, lambda now: replace(now, producer_ids=(fresh, *now.producer_ids))
        )
        return state._replace(producer_id=fresh)


def copied_so_far(
    now: LinkControl,
    begun: Mapping[TopicPartition, TopicIds],
    copied: Positions,
    log_starts: Positions = MappingProxyType({}),
) -> LinkControl:
    """With these logs begun and copied; how far another log was copied says nothing of the one that is begun.  Pure."""
    is_same = {p: now.begun.get(p) == ids for p, ids in begun.items()}

    def kept(positions: Positions) -> Positions:
        return {p: offset for p, offset in positions.items() if is_same.get(p, True)}

    return replace(
        now,
        begun={**now.begun, **begun},
        copied={**kept(now.copied), **copied},
        log_starts={**kept(now.log_starts), **log_starts},
    )

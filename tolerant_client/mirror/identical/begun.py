"""What the control must know of a link before its engine appends: which logs it begins, how far it has copied them, and every
producer id that it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.errors import OptionError
from tolerant_client.mirror.identical.partition import AppendState
from tolerant_client.mirror.link.control import CONTROL_TOPIC, ControlWatch, LinkControl, Positions, TopicIds, update_control
from tolerant_client.mirror.producers import fresh_producer_id
from tolerant_client.mirror.turns import Turns
from tolerant_client.raw import RawCluster

_CONTROL = (TopicPartition(CONTROL_TOPIC, 0),)


class Begun:
    """Writes to the control of `control.link`; on the event loop of `target`."""

    def __init__(self, target: RawCluster, control: ControlWatch) -> None:
        self._target = target
        self._control = control
        self._unwritten: dict[TopicPartition, TopicIds] = {}
        self._uncopied: dict[TopicPartition, int] = {}
        self._turns = Turns()

    async def write(self, partitions: Mapping[TopicPartition, TopicIds], copied: Positions = MappingProxyType({})) -> None:
        """Returns once the control says that the link has begun these logs, of these topics, and copied them up to there.

        Without the right to write there nothing is remembered: a start has warned of it, and a log that is emptied is not
        believed later.  Raises KafkaError.
        """
        known = self._control.value
        self._unwritten |= {p: ids for p, ids in partitions.items() if known.begun.get(p) != ids}
        self._uncopied |= {p: offset for p, offset in copied.items() if known.copied.get(p) != offset}
        if not self._unwritten and not self._uncopied:
            return
        await self._turns.take(_CONTROL)  # what is begun at the same time is one record
        new, self._unwritten = self._unwritten, {}
        ends, self._uncopied = self._uncopied, {}
        try:
            if new or ends:
                await update_control(self._target, self._control.link, lambda now: copied_so_far(now, new, ends))
        except (Errors.TopicAuthorizationFailedError, Errors.ClusterAuthorizationFailedError, OptionError):
            pass
        except Errors.KafkaError:
            self._unwritten = {**new, **self._unwritten}
            self._uncopied = {**ends, **self._uncopied}
            raise
        finally:
            self._turns.leave(_CONTROL)

    async def identified(self, state: AppendState) -> AppendState:
        """A state with a producer id that the target does not know yet; from now on one of the link's.  Raises KafkaError."""
        fresh = await fresh_producer_id(self._target)
        await update_control(
            self._target, self._control.link, lambda now: replace(now, producer_ids=(fresh, *now.producer_ids))
        )
        return state._replace(producer_id=fresh)


def copied_so_far(now: LinkControl, begun: Mapping[TopicPartition, TopicIds], copied: Positions) -> LinkControl:
    """With these logs begun and copied; how far another log was copied says nothing of the one that is begun.  Pure."""
    kept = {p: offset for p, offset in now.copied.items() if now.begun.get(p) == begun.get(p, now.begun.get(p))}
    return replace(now, begun={**now.begun, **begun}, copied={**kept, **copied})

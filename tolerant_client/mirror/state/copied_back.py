"""Which partitions a link has copied back to the source: its logs are then no longer what another link copied from it."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import NamedTuple

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.mirror.state.control_record import CONTROL_TOPIC
from tolerant_client.mirror.state.control_topic import read_controls
from tolerant_client.mirror.state.link_control import Positions
from tolerant_client.mirror.state.map_topic import was_never_started


class CopiedBack(NamedTuple):
    """Why a partition is no longer what another link copied; not `is_known`: it may still be.

    `until` is where the last link back has ended; None if it goes on, or nothing says.
    """

    why: str
    until: int | None = None
    is_known: bool = True

    @property
    def no_copy(self) -> str:
        """A sentence that says so."""
        return f"the target {'is no longer' if self.is_known else 'may no longer be'} the source's copy: {self.why}"


async def copied_back(
    source: Cluster, target: Cluster, partitions: Collection[TopicPartition], ours: Positions
) -> dict[TopicPartition, CopiedBack]:
    """Which of these partitions, by their names on the target, a link has copied back to the source, or may have; and why.

    Not a link back with the same offsets that has not begun them: it writes that down first.  Nor one that was promoted before our own
    copies, which end at `ours`: all that it wrote is before them (A-B-A-B).
    """
    wire = {p: TopicPartition(source.wire_topic(p.topic), p.partition) for p in partitions}
    try:
        links = (await read_controls(source, frozenset(p.topic for p in wire.values()))).links
    except Errors.TopicAuthorizationFailedError:
        hidden = f"we may not read {CONTROL_TOPIC} of the source, so a link may have copied back"
        return dict.fromkeys(wire, CopiedBack(hidden, is_known=False))
    here = await target.cluster_id()
    found: dict[TopicPartition, CopiedBack] = {}
    for name, control in links.items():
        if here is None or not control.may_copy_from(here) or not control.topics:
            continue
        if await was_never_started(source, name, control):
            continue
        said = {*control.begun, *control.copied, *control.copied_until, *control.adopted, *control.unfenced}
        # Version 0.1 did not write what it begins.
        is_told = control.is_identical and bool(control.begun or control.is_fenced and control.copied_until)
        for p, at in wire.items():
            end = control.copied_until.get(at)
            is_over = control.is_fenced and control.is_identical and end is not None and end <= ours.get(p, end)
            if control.writes(at.topic) and not is_over and (at in said or not is_told):
                until = end if control.is_fenced and control.is_identical else None
                one = CopiedBack(f"link {name} has copied back to it", until)
                found[p] = max(found.get(p, one), one, key=_end)
    return found


def _end(back: CopiedBack) -> float:
    return math.inf if back.until is None else back.until

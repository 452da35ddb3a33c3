"""What became of the partitions of a link that its target lacks.  Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kafka.structs import TopicPartition

from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.map_topic import NO_MAP, MappedTopics


class Lacking(NamedTuple):
    """Partitions that a target lacks, sorted; each is in one of the three.

    The target had those that are `gone` with translated offsets, and nothing fills them again.  It had, or was to have, those that are
    `deleted` with identical offsets: a mirror makes them again.  No mirror has made those that are `unmade`.
    """

    gone: list[TopicPartition]
    deleted: list[TopicPartition]
    unmade: list[TopicPartition]


def sort_lacking(lacking: Iterable[TopicPartition], control: LinkControl, mapped: MappedTopics = NO_MAP) -> Lacking:
    """What became of these partitions, which the target lacks, by the link's control and its map.  Pure.

    A log that a link with translated offsets took over, and has copied nothing to, it begins again.
    """
    wanted = sorted(set(lacking))
    gone = [p for p in wanted if p in mapped.copies and mapped.copies[p].is_kept]
    deleted = [p for p in wanted if p not in gone and (p in control.begun or p in control.copied)]
    return Lacking(gone, deleted, [p for p in wanted if p not in gone and p not in deleted])

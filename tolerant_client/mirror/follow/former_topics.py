"""Which offset maps tell of topics, or logs, that are there no more: a name does not identify a topic (KIP-516).

Laws:
- Where both clusters tell topic ids (since 2.8), these decide.  The target's alone, where no source is asked.
- A log that ends before what was copied, or whose leader epoch does (since 2.1), was cut, or is another topic's.  So was a target's
  where others have written in place of the last copy (own_copies.py).
- Without ids the last record that was copied, on both clusters, decides.  Where one of them has it no more (retention, compaction),
  nothing does: then it is said that this is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import NamedTuple

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import list_led_offsets
from tolerant_client.cluster.admin.topics import still_missing, topic_ids, visible_topics
from tolerant_client.cluster.cluster import LATEST, Cluster
from tolerant_client.mirror.engine.translated.own_copies import replaced
from tolerant_client.mirror.engine.translated.target_checks import is_same_record
from tolerant_client.mirror.logs.reading import read_slices, source_truncations
from tolerant_client.mirror.state.offset_map import OffsetMap, is_another

_RECORD_BYTES = 16 << 10  # a larger batch is sent whole
_OTHER_LOG = "it was cut, or its topic was created again"


class FormerTopics(NamedTuple):
    """Why maps are not of the topics, or logs, that the clusters have now; and why of others nobody can tell."""

    known: Mapping[TopicPartition, str]
    doubts: Mapping[TopicPartition, str]


async def find_former(source: Cluster | None, target: Cluster, link: str, maps: Iterable[OffsetMap]) -> FormerTopics:
    """Which of these maps, which were just read, are of topics or logs that are there no more: no group may be moved by them.

    Without a source only the target is asked.  Topics that we may not describe are not compared.
    """
    known = {found.partition: found for found in maps}
    there, hidden = await visible_topics(target, sorted({found.target.topic for found in known.values()}))
    absent = {found.target.topic for found in known.values()} - there.keys() - hidden.keys()
    absent = await still_missing(target, absent)
    now = await topic_ids(target, there)
    on_source = {} if source is None else (await visible_topics(source, sorted({p.topic for p in known})))[0]
    origin = {} if source is None else await topic_ids(source, on_source)
    former, unproved = dict[TopicPartition, str](), set[TopicPartition]()
    for partition, found in known.items():
        of_source, of_target = found.ids
        if found.target.topic in absent:
            what = f"topic {found.target.topic} was deleted on the target"
        elif is_another(of_target, str(now.get(found.target.topic, ""))):
            what = f"topic {found.target.topic} was deleted and created again on the target"
        elif is_another(of_source, str(origin.get(partition.topic, ""))):
            what = f"topic {partition.topic} was deleted and created again on the source"
        else:
            has_ids = of_target and found.target.topic in now
            if not (has_ids and (source is None or (of_source and partition.topic in origin))):
                unproved.add(partition)
            continue
        former[partition] = f"{what} since link {link} copied it, and the offset map tells only of the former one"
    rest = {p: found for p, found in known.items() if p not in former}
    seen = {p: f for p, f in rest.items() if f.target.topic in there and (source is None or p.topic in on_source)}
    former |= await _find_cut(source, target, link, seen)
    asked = {p: found for p, found in seen.items() if p in unproved and p not in former}
    others, same = ({}, set[TopicPartition]()) if source is None else await _compare_last(source, target, link, asked)
    told = "its last record on both clusters" if source is not None else "the topic id of the target"
    doubt = (
        f"whether it was created again since link {link} copied it is unknown: neither topic ids, which brokers before 2.8 do not tell,"
        f" nor {told} shows it"
    )
    return FormerTopics({**former, **others}, dict.fromkeys(unproved - former.keys() - others.keys() - same, doubt))


async def _find_cut(
    source: Cluster | None, target: Cluster, link: str, maps: Mapping[TopicPartition, OffsetMap]
) -> dict[TopicPartition, str]:
    """The maps of logs that end, or whose leader epoch ends, before what they have."""
    cut = dict[TopicPartition, str]()
    ends = (await list_led_offsets(target, dict.fromkeys((found.target for found in maps.values()), LATEST))).offsets
    for p, found in maps.items():
        if (end := ends.get(found.target)) is not None and end < found.target_until:
            cut[p] = (
                f"link {link} had copied to {_name(found.target)} up to offset {found.target_until:,}, and the target has its log"
                f" only up to {end:,}"
            )
    last = {f.target: f.runs[-1].target_until - 1 for f in maps.values() if ends.get(f.target, 0) > f.target_until + 1}
    lost = await replaced(target, last)
    for p, found in maps.items():
        if found.target in lost:
            cut[p] = (
                f"link {link} had copied to {_name(found.target)} up to offset {found.target_until:,}, and others wrote in its place"
            )
    if source is not None:
        there = (await list_led_offsets(source, dict.fromkeys(maps, LATEST))).offsets
        epochs = {p: (maps[p].epoch, maps[p].position) for p in there}
        told = {p: end for p, end in there.items() if end < maps[p].position} | await source_truncations(source, epochs)
        for p, end in told.items():
            cut[p] = (
                f"link {link} had copied {_name(p)} up to offset {maps[p].position:,}, and the source has what was copied only up to {end:,}"
            )
    return {p: f"{text}: {_OTHER_LOG}, and the offset map tells only of the former one" for p, text in cut.items()}


async def _compare_last(
    source: Cluster, target: Cluster, link: str, maps: Mapping[TopicPartition, OffsetMap]
) -> tuple[dict[TopicPartition, str], set[TopicPartition]]:
    """The maps whose last copied record is another one by now on either cluster, and those where it is the same."""
    last = {p: (found.runs[-1].source_until - 1, found.runs[-1].target_until - 1) for p, found in maps.items()}
    led = (await list_led_offsets(source, dict.fromkeys(maps, LATEST))).offsets
    led_there = (await list_led_offsets(target, dict.fromkeys((maps[p].target for p in led), LATEST))).offsets
    asked = [p for p in led if maps[p].target in led_there]
    read = partial(read_slices, is_committed=False, first_bytes=_RECORD_BYTES)
    try:
        originals = await read(source, {p: (last[p][0], last[p][0] + 1) for p in asked})
        copies = await read(target, {maps[p].target: (last[p][1], last[p][1] + 1) for p in asked})
    except Errors.TopicAuthorizationFailedError:
        return {}, set()
    others, same = dict[TopicPartition, str](), set[TopicPartition]()
    for p in asked:
        at, at_target = last[p]
        here, there = originals[p], copies[maps[p].target]
        original, copied = here.records.get(at), there.records.get(at_target)
        if original is not None and copied is not None and there.is_stamped(at_target):
            copied = copied._replace(timestamp=original.timestamp)
        if here.is_vacant(at) or there.is_vacant(at_target) or not is_same_record(original, copied):
            others[p] = (
                f"{_name(p)} on the source has at offset {at:,} another record than {_name(maps[p].target)} on the target at"
                f" {at_target:,}, where link {link} had copied it: a log was cut, or a topic was created again, and the offset map"
                " tells only of the former one"
            )
        elif original is not None and copied is not None:
            same.add(p)
    return others, same


def _name(partition: TopicPartition) -> str:
    return f"{partition.topic}-{partition.partition}"

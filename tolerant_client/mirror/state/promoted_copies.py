"""Topics of a target that are the promoted copy of a link: no other link may copy the same source into them.

Laws:
- What is not known is not decided.  A part of an offset map without a leader names nothing now; that is no word of what it names.
- A promoted link with translated offsets keeps its copies if its control is deleted: its map says that it is over (Law E of
  offset_map.py), and of which topics.  So whoever plans what to copy asks maps that no control names, too; a copier that begins, which
  has a plan, does not.  Which source they are of is unknown then: it counts as the same one.
- Of a map only the newest rows of the topics in question are read, from its end on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import list_led_offsets
from tolerant_client.cluster.admin.topics import topic_ids
from tolerant_client.cluster.cluster import LATEST, Cluster
from tolerant_client.mirror.state.known_maps import KnownMaps
from tolerant_client.mirror.state.link_control import LinkControl, TopicIds
from tolerant_client.mirror.state.map_rows import MappedTopics, mapped_topics, read_each_map
from tolerant_client.mirror.state.map_topic import map_partition, mapped_links

_MAP_S = 10.0  # how long all maps are read, at the same time: a failover must not wait for them


class PromotedCopies(NamedTuple):
    """The topics that are another link's promoted copy, `of` which link; and why it is `unknown` whether others are refused."""

    of: Mapping[str, str]
    unknown: Mapping[str, str]


async def promoted_copies(
    target: Cluster,
    link: str,
    own: LinkControl,
    links: Mapping[str, LinkControl],
    names: Collection[str],
    *,
    is_identical: bool,
    asks_unnamed: bool = False,
    known: KnownMaps | None = None,
) -> PromotedCopies:
    """Which of these topics are still another link's promoted copy, as their ids show, and neither begun nor adopted (failback) by
    the link; `links` are the target's, `own` is the control of the link itself.  `asks_unnamed`: also of links without a control.
    Of others' maps what is `known` is not read again.

    A link with translated offsets would append the same records once more.  It may copy another source there, and resumes what its
    map names.  One with identical offsets compares its log with a translated copy.  Raises KafkaError.
    """
    rest = set(names) - {p.topic for p in (*own.begun, *own.adopted)}
    copies: dict[str, str] = {}
    unknown: dict[str, str] = {}
    there: dict[str, list[int]] = {}
    others = {
        name: control for name, control in links.items() if control.is_promotion_begun and not control.is_handed_back
    }
    if rest and not is_identical:
        there = await target.partitions(rest)
        unnamed = await mapped_links(target) if asks_unnamed else ()
        others |= {name: LinkControl() for name in unnamed if name not in links}
    if not is_identical and (ours := own.source_cluster_id) is not None:
        others = {name: of for name, of in others.items() if name not in links or of.may_copy_from(ours)}
    others.pop(link, None)
    of_maps = {
        name: (control, theirs)
        for name, control in others.items()
        if not (control.is_identical or is_identical)
        and (theirs := _copied(control, rest, there, is_named=name in links))
    }
    maps = await read_each_map(target, of_maps, within_s=_MAP_S, known=known)
    for other, control in others.items():
        begun = {p: of.target for p, of in control.begun.items() if control.producer_ids and p.topic in rest}
        if not control.producer_ids and (
            control.is_identical or control.had
        ):  # what it was to continue: it has not run since
            moved = {name: TopicIds(target=of.topic_id) for name, of in control.primary_since.items()}
            adopted = {
                p: control.had.get(p, moved.get(p.topic, TopicIds())) for p in control.adopted if p.topic in rest
            }
            begun = {p: of.target for p, of in adopted.items()}
        if (mapped := maps.get(other)) is not None:
            is_named = other in links
            if is_named or mapped.last >= 0:
                begun |= {p: row.ids[1] for p, row in mapped.copies.items()}
            promoted = f"of link {other}, which was promoted," if is_named else f"that link {other} was promoted with"
            untold_topics = {p.topic for p in of_maps[other][1] if map_partition(other, p) in mapped.unread}
            for name in untold_topics - {p.topic for p in begun}:
                unknown[name] = f"whether topic {name} is the copy {promoted} {_unread(mapped, other)}"
        if begun:
            ids = await topic_ids(target, {p.topic for p in begun})
            same = {p.topic for p, topic_id in begun.items() if topic_id and topic_id == str(ids.get(p.topic))}
            if not is_identical:  # it compares no logs: without ids (before 2.8) a log with records is the copy
                untold = [p for p, topic_id in begun.items() if not (topic_id and p.topic in ids)]
                ends = (await list_led_offsets(target, dict.fromkeys(untold, LATEST))).offsets if untold else {}
                same |= {p.topic for p in untold if ends.get(p)}
            copies |= dict.fromkeys(same, other)
    if (copies or unknown) and not is_identical:
        asked = [TopicPartition(name, n) for name in {*copies, *unknown} for n in there.get(name, ())]
        mapped = await mapped_topics(target, link, own, of=asked, within_s=_MAP_S)
        copies = {name: other for name, other in copies.items() if name not in mapped.names}
        unknown = {name: why for name, why in unknown.items() if name not in mapped.names}
        if mapped.unread:
            unread = _unread(mapped, link)
            unknown |= {
                name: f"whether link {link} began topic {name} before link {other} was promoted with it {unread}"
                for name, other in copies.items()
            }
    return PromotedCopies({name: other for name, other in copies.items() if name not in unknown}, unknown)


async def unnamed_copies(
    target: Cluster, links: Collection[str], partitions: Collection[TopicPartition], ids: Mapping[str, TopicIds]
) -> dict[str, set[TopicPartition]]:
    """Which of these partitions, whose topics have these `ids`, have records of links that only have a map: {link: partitions}.

    Their controls, which say of which topics, are not among `links`: they were deleted.
    """
    unnamed = {name: (LinkControl(), partitions) for name in await mapped_links(target) if name not in links}
    maps = await read_each_map(target, unnamed, within_s=_MAP_S)
    return {
        name: {p for p, row in mapped.copies.items() if p in partitions and ids.get(p.topic) == TopicIds(*row.ids)}
        for name, mapped in maps.items()
    }


def _copied(
    control: LinkControl, names: Collection[str], there: Mapping[str, Collection[int]], *, is_named: bool
) -> set[TopicPartition]:
    """The partitions of these topics that a promoted link may have copied; `there` are those on the target."""
    if control.is_fenced and control.copied_until:
        return {p for p, end in control.copied_until.items() if end and p.topic in names}
    theirs = filter(control.writes, names) if is_named else names
    return {TopicPartition(name, n) for name in theirs for n in there.get(name, ())}


def _unread(mapped: MappedTopics, link: str) -> str:
    (topic, number), why = next(iter(mapped.unread.items()))
    return f"is unknown: {topic}-{number}, a part of the offset map of link {link}, cannot be read ({why})"

"""Who owns the partitions of a target that a link's topics match: a promotion writes only to the link's own.

Laws (one writer for each partition, to the last record):
- A link owns the partitions that its control says it has begun, as long as the topic is the same one, and those whose logs have
  its records, whatever anybody else says.  When a mirror starts, the same facts decide where it may copy (look_for_others).
- Partitions of another link, and those that only others have written to, are theirs: a fence there would stop them for good.
  They are named and not promoted.
- No process of the link can still write to a partition that it has not begun: each writes that to the control before its first
  record, and finds the promotion there.  So an empty log needs no fence.
- A control with producer ids and without `begun` (of version 0.1, or of a mirror that may not write there any more) proves
  nothing: then the link owns every partition that is not shown to be another's.
- A control without producer ids is that of a link that never ran there (a wrong name, or source and target exchanged), or it was
  deleted.  Then the link owns only topics of which something shows that it wrote there: a log has batches of the producer id that
  a coordinator has for its transactional id, or a mirror of it has claimed a partition in the last hour.  A coordinator forgets
  an id after seven days without use, and a mirror uses it only when it starts: so claims count, too.
- A topic with records of which nobody says that the source has it, and which the link's offset map does not name, is not what the link
  has copied, unless the map is lost or not read whole.  It is named where the source was not asked or there is no control, and
  fenced all the same.
- A start that was refused a log, since another link has copied it, has claimed its topic all the same.  So a translated link does
  not own a log that has records, of which its map has none and that of another link of the same source has some.  It is named,
  with the link that copies it, and fenced all the same; a link that has copied nothing else is not promoted: its name is wrong.
- A fence with translated offsets writes to no log.  Another link's partitions are left all the same: both links may use the same
  transactional id.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import list_led_offsets
from tolerant_client.cluster.admin.transactions import init_producer_id, transactional_producers
from tolerant_client.cluster.cluster import EARLIEST, LATEST, Cluster
from tolerant_client.mirror.engine.preflight import Others, look_for_others
from tolerant_client.mirror.engine.translated.copied_before import other_copies
from tolerant_client.mirror.life.mirrors import look_at_claims
from tolerant_client.mirror.logs.reading import read_headers
from tolerant_client.mirror.state.carriers import Carried, find_carried
from tolerant_client.mirror.state.health import by_reason, names
from tolerant_client.mirror.state.link_control import LinkControl, TopicIds
from tolerant_client.mirror.state.map_rows import MappedTopics
from tolerant_client.mirror.state.map_topic import map_partition
from tolerant_client.mirror.state.offset_map import MapRow, is_another
from tolerant_client.mirror.state.topics import read_ids

_MAPS_S = 10.0  # how long others' maps are read, at the same time: a failover must not wait for them
_OTHERS_WROTE = (
    "its last records are of others, or of a producer id of the link that nobody knows any more, and nothing shows that the link"
    " has copied it"
)
_NOT_MAPPED = "the offset map of the link does not name it, so its records are of others"


class Owners(NamedTuple):
    """Which partitions are the link's `own`, whatever their state; and why others are another link's or strangers'."""

    own: frozenset[TopicPartition] = frozenset()
    of_links: Mapping[TopicPartition, str] = {}
    of_strangers: Mapping[TopicPartition, str] = {}

    @property
    def left(self) -> Mapping[TopicPartition, str]:
        """The partitions that a promotion leaves as they are, and why."""
        return {**self.of_links, **self.of_strangers}

    def texts(self, link: str) -> tuple[str, ...]:
        """A sentence for each reason why partitions are left."""
        return tuple(
            f"{names(sorted(members))} on the target: not link {link}'s, and nothing was written there: {why}"
            for why, members in by_reason(self.left).items()
        )


class Evidence(NamedTuple):
    """What shows who owns a partition, besides the link's control; `mapped` are topics that its offset map names.

    `producer_ids` are the link's, also where its control names none; `held` are the partitions that its mirrors have claimed, which
    are read only then; None if they could not be read.  `was_seen`: so was a mirror of it, as claims of translated copies show, too.  `elsewhere` are the links that have copied partitions of which its map has nothing.
    """

    logs: Carried = Carried()
    others: Others = Others()
    ids: Mapping[str, TopicIds] = {}
    mapped: Collection[str] = ()
    producer_ids: tuple[int, ...] = ()
    held: Collection[TopicPartition] | None = frozenset()
    elsewhere: Mapping[TopicPartition, str] = {}
    was_seen: bool = False


async def find_evidence(
    target: Cluster,
    link: str,
    control: LinkControl,
    partitions: Iterable[TopicPartition],
    mapped: Collection[str],
    *,
    is_translated: bool,
) -> Evidence:
    """Reads the evidence for these partitions, which the link's topics match.  Raises KafkaError."""
    wanted = list(partitions)
    ids, claimed = await _claimed(target, control, wanted, is_translated=is_translated)
    own: tuple[int, ...] = () if is_translated else control.producer_ids
    held: frozenset[TopicPartition] | None = frozenset()
    was_seen = False
    if not (own or is_translated):
        claims = await look_at_claims(target)
        own, held = await _ids_of(target, link, control), None if claims is None else claims.copied_by(link)
        was_seen = claims is not None and any(run.link == link and run.has_copied for run in claims.runs(claims))
    only = None if control.producer_ids else frozenset(wanted)
    logs = await find_carried(target, own, claimed, only) if own or held else Carried()
    if not control.begun and (behind := logs.foreign.intersection(wanted)):  # others may have written after its copy
        first = await read_headers(target, await target.list_offsets(dict.fromkeys(behind, EARLIEST)))
        copied = {p for p, header in first.items() if header.producer_id in own}
        logs = logs._replace(partitions=logs.partitions | copied, foreign=logs.foreign - copied)
    unclaimed = {p.topic for p in wanted} - {p.topic for p in claimed}
    others = await look_for_others(target, link, unclaimed, is_identical=not is_translated) if unclaimed else Others()
    return Evidence(logs, others, ids, mapped, own, held, was_seen=was_seen)


async def _ids_of(target: Cluster, link: str, control: LinkControl) -> tuple[int, ...]:
    """The producer ids of a link whose control names none: those of its transactional ids, in every life of it.

    Brokers before 3.0 list none; there it is the id that a start of the mirror would get, a new one if it never ran.
    """
    name = f"tolerant-mirror-{link}"
    if (found := await transactional_producers(target, name)) is None:
        return (await init_producer_id(target, control.producer_name(link)),)
    lives = {of: each for of, each in found.items() if of == name or of.removeprefix(f"{name}~").isdecimal()}
    return tuple(sorted(set(lives.values())))


async def copied_elsewhere(
    target: Cluster, link: str, partitions: Iterable[TopicPartition], mapped: MappedTopics
) -> dict[TopicPartition, str]:
    """Which links with translated offsets have copied those of these partitions of which the map of `link` has nothing.

    Nor has it anything of a topic that was created again on the target.  What cannot be read now decides nothing.  Raises KafkaError.
    """
    wanted = [p for p in partitions if map_partition(link, p) not in mapped.unread]
    ids = await read_ids(None, target, {p.topic for p in wanted})

    def is_of_another_topic(p: TopicPartition, row: MapRow) -> bool:
        return is_another(row.ids[1], ids.get(p.topic, TopicIds()).target)

    uncopied = [p for p in wanted if p not in mapped.copies or is_of_another_topic(p, mapped.copies[p])]
    ends = (await list_led_offsets(target, dict.fromkeys(uncopied, LATEST))).offsets
    starts = (await list_led_offsets(target, dict.fromkeys((p for p, end in ends.items() if end), EARLIEST))).offsets
    return {
        p: copy.link
        for p, copies in (await other_copies(target, link, list(starts), None, _MAPS_S) if starts else {}).items()
        for copy in copies
        if copy.row is not None and copy.row.target_until > starts[p] and not is_of_another_topic(p, copy.row)
    }


async def find_taken(
    target: Cluster,
    link: str,
    control: LinkControl,
    partitions: Iterable[TopicPartition],
    mapped: Collection[str],
    *,
    is_translated: bool,
) -> dict[TopicPartition, str]:
    """Which of these partitions another link has, so that the link's mirror is refused them, and why.  Raises KafkaError.

    Reads the controls, and no log.
    """
    wanted = list(partitions)
    _, claimed = await _claimed(target, control, wanted, is_translated=is_translated)
    unclaimed = {p.topic for p in wanted} - {p.topic for p in claimed} - set(mapped)
    others = await look_for_others(target, link, unclaimed, is_identical=not is_translated) if unclaimed else Others()
    return {p: others.refused[p.topic] for p in wanted if p.topic in others.taken}


def find_owners(
    control: LinkControl, partitions: Iterable[TopicPartition], evidence: Evidence, *, is_translated: bool
) -> Owners:
    """Who owns these partitions, by what the link's control says now; a partition of nobody is in none of the three.  Pure."""
    logs, others, ids, mapped = evidence[:4]
    held = evidence.held or frozenset()
    remembers = bool(control.begun)
    shown = {p.topic for p in (*logs.partitions, *held)}
    refused = others.refused if remembers else {name: others.refused[name] for name in others.taken}
    own: set[TopicPartition] = set()
    of_links: dict[TopicPartition, str] = {}
    of_strangers: dict[TopicPartition, str] = {}
    for p in partitions:
        is_unsaid = not remembers and (bool(control.producer_ids) or p.topic in shown)
        if is_translated:
            is_theirs = p.topic in refused and p.topic not in mapped
            if is_theirs:
                of_links[p] = refused[p.topic]
            elif p in evidence.elsewhere:
                of_strangers[p] = (
                    f"link {evidence.elsewhere[p]} has copied it, and the offset map of this link names nothing of the topic that is there now"
                )
            elif p in logs.foreign:
                of_strangers[p] = _NOT_MAPPED
            else:
                own.add(p)
        elif _is_claimed(control, p, ids) or p in logs.partitions or p in held and p not in control.had:
            own.add(p)
        elif p in control.had and p.topic not in others.taken:
            continue  # its topic was deleted, and the link's records with it
        elif p.topic in refused:
            of_links[p] = refused[p.topic]
        elif p in logs.foreign or p in logs.hidden and not is_unsaid:
            of_strangers[p] = _OTHERS_WROTE
        elif p in logs.unknown or is_unsaid:
            own.add(p)
    return Owners(frozenset(own), of_links, of_strangers)


async def _claimed(
    target: Cluster, control: LinkControl, partitions: Collection[TopicPartition], *, is_translated: bool
) -> tuple[Mapping[str, TopicIds], list[TopicPartition]]:
    """The ids of their topics on the target, and which of these partitions the control says that the link owns."""
    if is_translated:
        return {}, [p for p in partitions if p in control.adopted]
    ids = await read_ids(None, target, {p.topic for p in partitions})
    return ids, [p for p in partitions if _is_claimed(control, p, ids)]


def _is_claimed(control: LinkControl, partition: TopicPartition, ids: Mapping[str, TopicIds]) -> bool:
    """Whether the control says that the link owns this very log, not a former one of the same name.  Pure."""
    if partition in control.had:
        return not control.was_created_again(partition, ids.get(partition.topic, TopicIds()))
    return partition in control.adopted or partition in control.copied or partition in control.log_starts

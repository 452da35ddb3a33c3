"""Whether a target log already has what a link with translated offsets is about to append: then it would be there twice.

Laws:
- A link checks this whenever it begins a log that has records, whatever the controls say: they may have been deleted.  It begins until
  the target has a record that it has copied of the source's present log; a row of its map without one, or of a former log, does not
  say what others have appended since (resumption, target_checks.py).
- Another link's offset map names the topics by their ids (KIP-516).  One that has copied the topic that the source has now into the
  topic that the target has now, further than where ours is to begin, has copied the same records, as long as any of its copies is
  left.  A topic with another id has others, as has another cluster.  Ids that a broker does not give (before 2.8) prove no
  difference, and the error says so.
- Copies of a link whose map was deleted are named, and refused to nobody: to delete it is the way to copy all again.
- A copy with identical offsets has no map.  It has the source's records at their own offsets, up to where one of the two logs
  went on by itself, in batches without transactions: what a link with translated offsets has copied, whose map was deleted to
  copy it again, is in transactions.
- Where a link has copied from our target to our source, the target's log is the original.  The source's controls name that link, and its
  map which offsets of the source are its copies.  An original is not called a copy, and nobody is told to delete it.
- MirrorMaker 2 has no map: where its own positions say that it has copied what ours is to begin with, and the logs show it
  (copied_by_mm2.py), ours begins once it has taken over.
- Of links that begin a log at the same time one after the other asks (copy_claims.py).
- What cannot be read is unknown, and nothing is appended before it is known; nor is it where what would be a copy of ours is in a
  transaction that is not over.  A map that takes longer to read than a partition waits
  is read on meanwhile, once for all of them (known_maps.py).
- A plan does not say otherwise than the mirror does: where a copy begins, both have from one function (resumption), and what that
  decides by is read for all who foresee it in one place (foresight.py).
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Mapping
from itertools import takewhile
from typing import NamedTuple

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.transactions import transactional_producers
from tolerant_client.cluster.cluster import EARLIEST, LATEST, READ_COMMITTED, Cluster
from tolerant_client.errors import TargetDivergedError
from tolerant_client.mirror.batches.divergence import COMPARED_OFFSETS
from tolerant_client.mirror.engine.circles import leave_out_translated, links_back, links_into
from tolerant_client.mirror.engine.copied_by_mm2 import (
    Mm2Copy,
    copies_of_mm2,
    find_copy_of_mm2,
    renamed_beside,
    take_over_command,
)
from tolerant_client.mirror.engine.translated.foresight import Foreseen
from tolerant_client.mirror.logs.reading import read_headers, read_slices
from tolerant_client.mirror.state.carriers import find_written
from tolerant_client.mirror.state.control_topic import ControlsWatch, read_controls
from tolerant_client.mirror.state.health import names
from tolerant_client.mirror.state.known_maps import KnownMaps
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.map_rows import NO_MAP, read_each_map
from tolerant_client.mirror.state.map_topic import copier_id, map_partition, map_topic, mapped_links
from tolerant_client.mirror.state.mm2_positions import KnownPositions
from tolerant_client.mirror.state.offset_map import MapRow, is_another

# So many equal records in a row, timestamps and all, are a copy, also where both logs went on differently.
_NO_CHANCE = 2
_IDS = copier_id("").removesuffix("-copy-")  # how the transactional ids of all links begin
_LARGEST_PIECE = 64_000  # offsets, after pieces without a record on both sides


class OtherCopy(NamedTuple):
    """What the map of another link says of a partition: its newest row if it has copied there, or why that is `unread`.

    With a row and `unread`, that row may be committed yet.
    """

    link: str
    row: MapRow | None
    is_over: bool
    unread: str = ""


class Origin(NamedTuple):
    """A link that has a partition from our target on our source, or may have; its map's newest row, or why that is `unread`."""

    link: str
    is_identical: bool
    row: MapRow | None = None
    unread: str = ""


async def origins(
    source: Cluster,
    target: Cluster,
    partitions: Collection[TopicPartition],
    known: KnownMaps,
    within_s: float | None,
    into_source: ControlsWatch | None = None,
) -> dict[TopicPartition, tuple[Origin, ...]]:
    """The links that have copied these partitions from our target to our source, as far as is known.  Raises KafkaError."""
    found: dict[TopicPartition, tuple[Origin, ...]] = {}
    for link, control in links_back(await links_into(source, watch=into_source), await target.cluster_id()):
        theirs = [p for p in partitions if control.writes(source.wire_topic(p.topic))]
        mapped = NO_MAP
        if theirs and source.names is None:  # of renamed topics the map back would be of other ones
            mapped = (await read_each_map(source, {link: (control, theirs)}, within_s=within_s, known=known))[link]
        for p in theirs:
            unread = mapped.unread.get(map_partition(link, p), "")
            found[p] = (*found.get(p, ()), Origin(link, control.is_identical, mapped.copies.get(p), unread))
    return found


async def other_copies(
    target: Cluster,
    link: str,
    partitions: Collection[TopicPartition],
    known: KnownMaps | None,
    within_s: float | None,
    controls: ControlsWatch | None = None,
) -> dict[TopicPartition, tuple[OtherCopy, ...]]:
    """What the maps of other links that may have the same source say of these partitions.  Raises KafkaError.

    Without `known` maps, less is read, and transactions that are not over are left out.
    """
    topics = {p.topic for p in partitions}
    links = (await (read_controls(target, topics) if controls is None else controls.read(topics))).links
    ours = links.get(link, LinkControl()).source_cluster_id
    theirs = {name: links[name].source_cluster_id if name in links else None for name in await mapped_links(target)}
    names = [name for name, source in theirs.items() if name != link and (None in (source, ours) or source == ours)]
    asked = {name: (LinkControl(), partitions) for name in names}
    maps = await read_each_map(target, asked, within_s=within_s, known=known)
    found: dict[TopicPartition, tuple[OtherCopy, ...]] = {}
    for partition in partitions:
        for other, mapped in maps.items():
            row, unread = mapped.copies.get(partition), mapped.unread.get(map_partition(other, partition), "")
            is_over = mapped.last >= links.get(other, LinkControl()).generation
            told = [(row, unread)] if row is not None or unread else []
            if (undecided := mapped.undecided.get(partition)) is not None:
                told.append((undecided, "up to the end of a transaction that is not over"))
            found[partition] = (*found.get(partition, ()), *(OtherCopy(other, row, is_over, why) for row, why in told))
    return found


def require_no_copy(
    link: str, partition: TopicPartition, ids: tuple[str, str], begin: int, start: int, others: Collection[OtherCopy]
) -> None:
    """Raises TargetDivergedError if the map of another link has what is to be copied from `begin` on, and it may be in the target's
    log, which starts at `start`; and a retriable error if it may have it.  `ids` are those that the topics have now.  Pure.
    """
    where = f"{partition.topic}-{partition.partition}"
    for other, row, is_over, unread in sorted(others, key=lambda copy: bool(copy.unread)):  # what is known first
        if row is not None and (
            row.position <= begin or row.target_until <= start or any(is_another(*pair) for pair in zip(row.ids, ids))
        ):
            continue
        if row is None or unread:
            part = map_partition(other, partition)
            raise Errors.OffsetNotAvailableError(
                f"Whether link {other} has copied {where} before is unknown yet: {part.topic}-{part.partition}, a part of its offset map,"
                f" is not read ({unread})"
            )
        is_known = all((*row.ids, *ids))
        topic = f"this very topic of the source (id {ids[0]})" if is_known else "a topic of this name"
        unsure = "" if is_known else "; whether of this source is unknown, since brokers before 2.8 tell no topic ids"
        go_on = (
            f"That link was promoted with it: leave the topic out of link {link}"
            if is_over
            else f"Mirror it with --link {other} (in a file under that alias), which resumes after it"
        )
        raise TargetDivergedError(
            f"The target log {where} has what link {other} has copied of {topic}, up to its offset {row.position}, as"
            f" {map_topic(other)} of the target says: link {link} would append it once more{unsure}"
        ).advising(
            f"{go_on}. If all of it is to be there again, delete {map_topic(other)} on the target, which ends that link; to have it once, delete"
            " the topic on the target: it is then copied anew"
        )


def require_no_original(
    link: str, partition: TopicPartition, ids: tuple[str, str], begin: int, start: int, known: Collection[Origin]
) -> None:
    """Raises TargetDivergedError if the target's log, which starts at `start`, has originals of what the source has from `begin` on, by
    the maps of links that have copied them there; and a retriable error if it may have them.  Pure.
    """
    for origin in known:
        row = origin.row
        if origin.unread:
            part = map_partition(origin.link, partition)
            raise Errors.OffsetNotAvailableError(
                f"Whether link {origin.link} has copied {partition.topic}-{partition.partition} from this target to this source is unknown"
                f" yet: {part.topic}-{part.partition} of the source is not read ({origin.unread})"
            )
        if row is None or row.target_until <= begin or row.position <= start:
            continue
        if not any(is_another(*pair) for pair in zip(row.ids, reversed(ids))):
            raise _original(link, partition, origin)


def _original(link: str, partition: TopicPartition, origin: Origin) -> TargetDivergedError:
    """The error for a target log of which the source's is a copy."""
    remedy = (
        "To copy back what the target lacks, run tolerant-kafka failback with this source and this target, and with a --link that has"
        " copied nothing there: it compares both logs, and names what only the target has"
        if origin.is_identical
        else leave_out_translated(origin.link)
    )
    return TargetDivergedError(
        f"The target log {partition.topic}-{partition.partition} is the original: link {origin.link} has copied it from this target to"
        f" this source, and link {link} would append all of it once more"
    ).advising(remedy)


async def require_not_there(
    source: Cluster,
    target: Cluster,
    link: str,
    partition: TopicPartition,
    ids: tuple[str, str],
    begin: int,
    others: Collection[OtherCopy],
    known: Collection[Origin],
    of_mm2: Collection[Mm2Copy],
    *,
    begins_again: bool,
) -> None:
    """Raises TargetDivergedError if the target's log already has what the source has from `begin` on; and KafkaError.

    `begins_again`: the link has copied, or taken over, a former log of the source.
    """
    start = (await target.list_offsets({partition: EARLIEST}))[partition]
    require_no_copy(link, partition, ids, begin, start, others)
    require_no_original(link, partition, ids, begin, start, known)
    await require_no_copy_of_mm2(source, target, link, partition, begin, of_mm2, begins_again=begins_again)
    await require_no_identical_copy(source, target, link, partition, begin, start, known)


async def require_no_copy_of_mm2(
    source: Cluster,
    target: Cluster,
    link: str,
    partition: TopicPartition,
    begin: int,
    of_mm2: Collection[Mm2Copy],
    *,
    begins_again: bool,
) -> None:
    """Raises TargetDivergedError if the target's log has what MirrorMaker 2 has copied of the source from `begin` on; and KafkaError."""
    copy = await find_copy_of_mm2(source, target, partition, begin, of_mm2)
    if copy is not None:
        remedy = (
            f"Stop MirrorMaker 2, and run {take_over_command(link, target)}: the link then begins after it. If nobody needs the target's, also"
            " not what only it has, delete the topic there: it is then copied anew."
        )
        if begins_again:  # take-over sets a position in the log that the link had, which is no place in this one
            remedy = (
                "Stop MirrorMaker 2. The source has been restored, or made anew, since the link began, and take-over does not help there. If"
                " nobody needs the target's, also not what only it has, delete the topic there and mirror it under another link name: it is then"
                " copied anew."
            )
        if renamed := await renamed_beside(source, target, partition, copy):
            remedy = (
                f"If MirrorMaker 2 has copied it to {renamed} instead, and the log has other records that are equal, copy it into a topic of"
                f" another name (in a file: a replication policy): take-over would leave out what is not here. Otherwise: {remedy}"
            )
        raise TargetDivergedError(
            f"The target log {partition.topic}-{partition.partition} has what MirrorMaker 2 has copied up to the source's offset"
            f" {copy.until}, as {copy.topic} of the target says: link {link} would append it once more"
        ).advising(
            f"{remedy} If all of it is to be there again, delete {copy.topic} there: MirrorMaker 2 would begin anew, too"
        )


async def require_no_identical_copy(
    source: Cluster,
    target: Cluster,
    link: str,
    partition: TopicPartition,
    begin: int,
    start: int,
    known: Collection[Origin] = (),
) -> None:
    """Raises TargetDivergedError if the target's log, which starts at `start`, has the source's records from `begin` on at their own
    offsets; and KafkaError.
    """
    stable = (await source.list_offsets({partition: LATEST}, isolation_level=READ_COMMITTED))[partition]
    until = min(stable, (await target.list_offsets({partition: LATEST}))[partition])
    at, piece = max(begin, start), COMPARED_OFFSETS
    while at < until:
        span = {partition: (at, min(at + piece, until))}
        original = (await read_slices(source, span, is_committed=True))[partition]
        copied = (await read_slices(target, span, is_committed=False))[partition]
        if both := sorted(original.records.keys() & copied.records.keys()):
            equal = list(takewhile(lambda offset: original.records[offset] == copied.records[offset], both))
            if len(equal) < (1 if known else min(len(both), _NO_CHANCE)):
                return
            header = (await read_headers(target, {partition: both[0]})).get(partition)
            if header is not None and header.is_transactional:
                return
            if known:
                raise _original(link, partition, next(iter(known)))
            raise TargetDivergedError(
                f"The target log {partition.topic}-{partition.partition} has the source's records from offset {both[0]} on at their own"
                f" offsets: one of the two is a copy with identical offsets, and link {link} would append all of it once more"
            ).advising(
                "If the target's is the copy, continue with the link that made it and --offsets identical (in a file tolerant.offsets ="
                " identical), or, if another mirror made it, with tolerant-kafka take-over. Leave the topic out if that link was promoted."
                " If the source's is the copy, run tolerant-kafka failback. If nobody needs the target's, also not what only it has,"
                " delete the topic there: it is then copied anew"
            )
        if min(original.until, copied.until) <= at:
            raise Errors.OffsetNotAvailableError(
                f"{partition.topic}-{partition.partition} cannot be compared from {at} on"
            )
        at, piece = min(original.until, copied.until), min(4 * piece, _LARGEST_PIECE)


async def find_copied(
    source: Cluster, target: Cluster, link: str, foreseen: Mapping[TopicPartition, Foreseen]
) -> dict[TopicPartition, Errors.KafkaError]:
    """Which of these partitions a mirror of the link would not begin once policy has accepted their losses, and why.

    Raises KafkaError.
    """
    begins = {p: found.begin for p, found in foreseen.items() if found.begin is not None}
    maps = KnownMaps(time.monotonic)
    others = await other_copies(target, link, begins, maps, None) if begins else {}
    known = await origins(source, target, begins, maps, None) if begins else {}
    of_mm2 = await copies_of_mm2(source, KnownPositions(target), begins) if begins else {}
    refused: dict[TopicPartition, Errors.KafkaError] = {}
    for p, begin in begins.items():
        ids, again = foreseen[p].ids, foreseen[p].begins_again
        try:
            told = others.get(p, ()), known.get(p, ()), of_mm2.get(p, ())
            await require_not_there(source, target, link, p, ids, begin, *told, begins_again=again)
        except Errors.KafkaError as error:
            refused[p] = error
    return refused


async def warn_of_unmapped(target: Cluster, link: str, foreseen: Mapping[TopicPartition, Foreseen]) -> list[str]:
    """Warnings that logs which a mirror of the link would begin have copies of links without an offset map: nothing refuses them.

    Coordinators name the producers (copied_logs).  Raises KafkaError.
    """
    begun = {f"{p.topic}-{p.partition}": p for p, found in foreseen.items() if found.begin is not None}
    found = await transactional_producers(target, _IDS) if begun else {}
    if found is None:
        return [
            f"whether a link whose offset map and control were deleted, this one or another, has copied into {names(sorted(begun.values()))} is"
            f" unknown: before Kafka 3.0 nothing tells it. If one has, link {link} appends all of that again"
        ]
    known = {link, *(await mapped_links(target) if found else ())}
    by_link: dict[str, dict[TopicPartition, int]] = {}
    for name, producer_id in found.items():
        for at in re.finditer("-copy-", name):
            other, p = name[len(_IDS) : at.start()], begun.get(name[at.end() :])
            if p is not None and other not in known:
                by_link.setdefault(other, {})[p] = producer_id
    written = {o: (await find_written(target, set(ids.values()), ids)).own for o, ids in sorted(by_link.items())}
    return [
        f"{names(sorted(copied))} of the target {'has' if len(copied) == 1 else 'have'} copies of link {other}, whose offset map was"
        f" deleted: if it has copied this source, link {link} appends all of them again"
        for other, copied in written.items()
        if copied
    ]

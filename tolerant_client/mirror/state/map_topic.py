"""The compacted topic on the target with a link's offset map: its name, whether it is there, and what that says of the link.

Laws:
- The rows of a source partition are in one partition of the map, which only its name decides (`map_partition`), so
  MAP_PARTITIONS never changes.
- A link has one map, whose topic id is in its control (`map_id`), and has translated offsets from then on (require_kind).  If that
  topic is gone, or another has its name, what was copied is unknown, never nothing, and no start creates the map again.  If its
  control is gone, too, the logs say that it has copied.
  The id is checked after the rows were read: the id of a deleted topic does not come back.
- Cleaning never moves the start of a log: a part of the map that starts after offset 0 was trimmed, by a cleanup.policy with delete or
  by DeleteRecords.  Which rows it had is unknown, so the map is lost then, too.
- Its rows are read and written by map_rows.py, and copy_transaction.py while the link copies.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import crc32c
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import list_led_offsets
from tolerant_client.cluster.admin.topics import topic_ids
from tolerant_client.cluster.cluster import EARLIEST, Cluster
from tolerant_client.cluster.patience import BELIEVED_AFTER
from tolerant_client.errors import OptionError, TargetDivergedError
from tolerant_client.mirror.state.carriers import copied_logs
from tolerant_client.mirror.state.control_record import CONTROL_TOPIC
from tolerant_client.mirror.state.health import names
from tolerant_client.mirror.state.link_control import LinkControl, LinkKindError, TopicIds
from tolerant_client.mirror.state.plan import CLEANUP_POLICY
from tolerant_client.mirror.state.state_topic import COMPACTED, StateTopic
from tolerant_client.mirror.state.topics import describe_topics

MAP_PARTITIONS: Final = 8
_LOOK_AGAIN_S: Final = 0.5
_COPY_AGAIN: Final = (
    "mirror under another link name; if no record may be there twice, first delete the topics that it has copied"
)


def map_topic(link: str) -> str:
    """The name of a link's map topic."""
    return f"tolerant-mirror-offsets-{link}"


def map_partition(link: str, partition: TopicPartition) -> TopicPartition:
    """The partition of the map with the rows of a source partition."""
    number = crc32c.crc32c(f"{partition.topic}-{partition.partition}".encode()) % MAP_PARTITIONS
    return TopicPartition(map_topic(link), number)


def copier_id(link: str, partition: TopicPartition | None = None) -> str:
    """The transactional.id with which a partition and its rows of the map are written, or what those of the link begin with."""
    return f"tolerant-mirror-{link}-copy-" + ("" if partition is None else f"{partition.topic}-{partition.partition}")


def map_of(target: Cluster, link: str) -> StateTopic:
    """A link's map topic, as durable as its control."""
    return StateTopic(target, map_topic(link), COMPACTED, "the offset map", partitions=MAP_PARTITIONS, insync_of_two=1)


async def ensure_map_topic(target: Cluster, link: str, control: LinkControl) -> str:
    """Creates the topic if a link has none yet, and returns its id, "" from brokers before 2.8.

    Raises TargetDivergedError if the link's map is lost, OptionError for a topic that would lose rows or cannot hold them.
    """
    await require_same_map(target, link, control)
    await map_of(target, link).ensure()
    await require_map_topic(target, link, control)
    return await _map_id(target, link)


async def lost_map(
    target: Cluster, link: str, control: LinkControl, parts: Collection[TopicPartition] | None = None
) -> str | None:
    """Why the offset map of a link is lost; None if it is there, as far as is known, or the link has none.

    `parts` are the partitions of the map that are asked whether they were trimmed: all, unless given.
    """
    if control.map_id is None:
        if not (copied := sorted(await _copied_untold(target, link, control))):
            return None
        what = f"was deleted, as its control was, and the log of {names(copied)} has its copies"
        over = "If it was promoted, or its source is gone, run tolerant-kafka failover with --topics"  # others may write there
        return _lost(link, what, f"{over}. Otherwise, to copy all again, {_COPY_AGAIN}")
    looks = 0
    while not await map_of(target, link).exists():  # a broker that has just started may not know the topic yet
        if (looks := looks + 1) == BELIEVED_AFTER:
            return _lost(link, "was deleted")
        await target.net.sleep(_LOOK_AGAIN_S)
    now = TopicIds(target=await _map_id(target, link))
    if not TopicIds(target=control.map_id).is_of_target(now):
        return _lost(link, "was deleted and created again")
    asked = [TopicPartition(map_topic(link), n) for n in range(MAP_PARTITIONS)] if parts is None else parts
    starts = (await list_led_offsets(target, dict.fromkeys(asked, EARLIEST), looks=1)).offsets
    if not (trimmed := {p: start for p, start in starts.items() if start}):
        return None
    where = ", ".join(f"partition {p.partition} now starts at offset {start}" for p, start in sorted(trimmed.items()))
    return _lost(
        link,
        f"has lost rows ({where}: a {CLEANUP_POLICY} other than compact, or DeleteRecords, has deleted what was before)",
        f"Setting {CLEANUP_POLICY} right brings no row back. To copy all again, delete that topic, and {_COPY_AGAIN}",
    )


async def _copied_untold(target: Cluster, link: str, control: LinkControl) -> frozenset[TopicPartition]:
    """The logs with copies of a link that has translated offsets, where neither its control nor a map tells of a start."""
    is_told = control.is_prepared or control.is_hidden or not control.tells_no_start
    has_none = not (is_told or await map_of(target, link).exists())
    return await copied_logs(target, copier_id(link)) if has_none else frozenset()


def _lost(link: str, what: str, remedy: str = f"To copy all again, {_COPY_AGAIN}") -> str:
    return (
        f"Topic {map_topic(link)} of the target, the offset map of link {link}, {what}: how far the link has copied is"
        f" unknown, and it copies nothing twice. {remedy}"
    )


async def require_same_map(
    target: Cluster, link: str, control: LinkControl, parts: Collection[TopicPartition] | None = None
) -> None:
    """Raises TargetDivergedError if the link's map is lost (lost_map)."""
    if (why := await lost_map(target, link, control, parts)) is not None:
        raise TargetDivergedError(why)


async def _map_id(target: Cluster, link: str) -> str:
    return str((await topic_ids(target, [map_topic(link)])).get(map_topic(link), ""))


async def require_map_topic(target: Cluster, link: str, control: LinkControl) -> None:
    """Raises OptionError unless the link has a map on the target that keeps its rows; TargetDivergedError if it is lost."""
    await require_same_map(target, link, control)
    name = map_topic(link)
    found = (await describe_topics(target, [name])).get(name)
    if found is None and control.is_identical:
        raise OptionError(
            f"Link {link} copies with identical offsets: every record has the same offset on both clusters, so nothing needs translating"
        )
    if found is None:
        raise OptionError(
            f"The target has no topic {name}: link {link!r} has not been mirrored to it with translated offsets;"
            " check --link and --target"
        )
    policy = found.config.get(CLEANUP_POLICY, found.effective.get(CLEANUP_POLICY, "delete"))
    if policy != "compact" or found.partitions < MAP_PARTITIONS:
        raise OptionError(
            f"Topic {name} of the target has {found.partitions} partitions and {CLEANUP_POLICY}={policy}; the offset map"
            f" needs {MAP_PARTITIONS} and compact: nothing else may delete its rows"
        )


async def mapped_links(target: Cluster) -> frozenset[str]:
    """The links that have an offset map on the target, as far as we may describe it."""
    start = map_topic("")
    return frozenset(name.removeprefix(start) for name in await target.partitions() if name.startswith(start))


async def has_map(target: Cluster, link: str, control: LinkControl) -> bool:
    """Whether the link has translated offsets: a map beside the control of an identical link is of a former one of this name."""
    if control.is_identical or control.map_id is not None:
        return not control.is_identical
    return await map_of(target, link).exists() or bool(await _copied_untold(target, link, control))


async def require_kind(target: Cluster, link: str, control: LinkControl, *, is_translated: bool) -> None:
    """Raises LinkKindError if a link that is to copy has begun with offsets of the other kind, as its control or its map says.

    The map alone says it of a link whose control was lost: one that was only prepared may have the name of a former link.
    """
    control.require_kind(link, is_translated=is_translated)
    # Version 0.1 wrote no map_id; what take-over prepares for a link that was over has a generation.
    has_begun = control.producer_ids or control.map_id is not None or control.generation
    is_unknown = not (has_begun or control.is_over or control.is_hidden)
    if not is_translated and is_unknown and await map_of(target, link).exists():
        raise LinkKindError(
            f"The target has {map_topic(link)}, the offset map of a link {link} with translated offsets, and {CONTROL_TOPIC}"
            " does not say that this link has identical ones: start it with --offsets translated (in a file tolerant.offsets ="
            " translated), give this link another name (--link, in a file another alias), or, if nobody needs the former one,"
            " delete its map"
        )


async def was_never_started(target: Cluster, link: str, control: LinkControl) -> bool:
    """Whether failback or take-over prepared the link, and no mirror of it has started since: it has copied nothing yet."""
    return control.is_prepared and not await has_map(target, link, control)

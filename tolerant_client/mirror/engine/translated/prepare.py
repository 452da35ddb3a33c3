"""Prepares a link with translated offsets: checks both clusters, creates the missing topics and the link's map."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import OptionError
from tolerant_client.mirror.engine.preflight import ends_at, offsets_at, write_down
from tolerant_client.mirror.engine.prepare import check_link, make_topics
from tolerant_client.mirror.state.map_topic import ensure_map_topic, read_maps
from tolerant_client.mirror.state.topic_filter import LinkTopics


@dataclass(frozen=True)
class PreparedTranslatedLink:
    """Topics that were created on the target, and the last stable offsets of the source's partitions.

    `waiting` says of others why they cannot be copied now.
    """

    created: tuple[str, ...]
    ends: Mapping[TopicPartition, int]
    warnings: tuple[str, ...] = ()
    waiting: Mapping[TopicPartition, str] = field(default_factory=dict)


async def prepare_translated_link(
    source: Cluster,
    target: Cluster,
    topics: LinkTopics | str,
    link: str,
    *,
    from_ms: int | None = None,
    until_ms: int | None = None,
    goes_on: bool = False,
    claim: Callable[[Collection[str]], None] = lambda topics: None,
) -> PreparedTranslatedLink:
    """Checks both clusters, then creates the missing target topics and the link's map topic.

    Names are the target's; the source must be a Cluster with the names of `topics`.  `from_ms`, `until_ms`, `goes_on`
    and `claim` are prepare_link's: partitions that nothing was copied of begin at the first record of that time.
    Raises OptionError, UnsupportedSourceError, LinkPromotedError or ClusterUnreachableError before anything is written.
    """
    planned, control = await check_link(
        source, target, topics, link, goes_on=goes_on, has_start=from_ms is not None, is_identical=False
    )
    control.require_not_identical(link)
    claim([topic.name for topic in planned.topics.copied])
    await ensure_map_topic(target, link)
    starts: dict[TopicPartition, int] = {}
    if from_ms is not None:
        begun = await read_maps(target, link, planned.ends)
        if old := [p for p in planned.ends if p in begun and p not in control.starts]:
            raise OptionError(
                f"{old[0].topic}-{old[0].partition} was copied by link {link} before: only what nothing was copied of can begin at"
                " a time; leave --from out, or use another link"
            )
        starts = await offsets_at(source, [p for p in planned.ends if p not in control.starts], from_ms)
    warning = await write_down(source, target, link, LinkTopics.of(topics), None, starts)
    made = await make_topics(target, planned)
    if not goes_on:
        made.require_all()
    ends = made.ends if until_ms is None else await ends_at(source, made.ends, until_ms)
    warnings = made.warnings if warning is None else (*made.warnings, warning)
    return PreparedTranslatedLink(tuple(t.name for t in made.topics.create), ends, warnings, made.waiting)

"""Hand-back: MirrorMaker 2 resumes copying where our link has stopped.

Laws:
- Only a link that has copied is handed back, only partitions that are copies, and none to before MirrorMaker 2's own position.
- Only one of the two copies at a time: nothing is written while MirrorMaker 2 runs, and our own mirror refuses to copy a link that
  was handed back until it is taken over again.
- The control is written first, then MirrorMaker 2's positions one by one.  If killed, another run writes those that are left.
  MirrorMaker 2 must not be started before all are written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import LATEST, Cluster
from tolerant_client.errors import OptionError, TolerantClientError
from tolerant_client.mirror.life.mirrors import require_not_forgotten
from tolerant_client.mirror.life.shared_log import shared_partitions
from tolerant_client.mirror.life.takeover import is_contradicted, read_bounds
from tolerant_client.mirror.state.control_record import CONTROL_TOPIC
from tolerant_client.mirror.state.control_topic import half_done, read_control, update_control
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.map_rows import copied_until, last_rows
from tolerant_client.mirror.state.map_topic import require_same_map
from tolerant_client.mirror.state.mm2_positions import (
    Mm2Position,
    read_positions_of_mm2,
    whether_mm2_runs,
    write_position,
)
from tolerant_client.mirror.state.plan import select_topics
from tolerant_client.mirror.state.topic_filter import LinkTopics

_OBEYED_S = 2.0  # by then a running mirror has read the control


class HandedPartition(NamedTuple):
    """A partition (the source's name): where MirrorMaker 2 would have resumed, and where it will now; source offsets."""

    topic: str
    partition: int
    before: int
    after: int


@dataclass(frozen=True)
class HandBackReport:
    """The positions of MirrorMaker 2 that were changed (or would be), and whether it can be started (`is_done`)."""

    link: str
    is_dry_run: bool
    is_done: bool
    partitions: tuple[HandedPartition, ...]
    blockers: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        return 3 if self.blockers else 0

    def to_json(self) -> dict[str, Any]:
        rows = [{"topic": p.topic, "partition": p.partition, "from": p.before, "to": p.after} for p in self.partitions]
        return {**asdict(self), "partitions": rows, "exit_code": self.exit_code}


def decide_positions(
    copied: Mapping[TopicPartition, int], known: Mapping[TopicPartition, Mm2Position]
) -> tuple[list[HandedPartition], list[str]]:
    """What to write for MirrorMaker 2 if our link has copied up to `copied` (the source's names), and what blocks that.  Pure."""
    behind = [p for p, offset in sorted(copied.items()) if p in known and known[p].offset < offset]
    changed = [HandedPartition(p.topic, p.partition, known[p].offset, copied[p]) for p in behind]
    blockers: list[str] = []
    if strange := sorted(p for p, offset in copied.items() if p not in known and offset > 0):
        blockers.append(
            f"MirrorMaker 2 has no position of {strange[0].topic}-{strange[0].partition} ({len(strange)} partitions): it"
            " would copy it again from its beginning; leave these topics out of its file"
        )
    if further := sorted(p for p, offset in copied.items() if p in known and known[p].offset > offset):
        first = further[0]
        blockers.append(
            f"MirrorMaker 2's own position of {first.topic}-{first.partition} is {known[first].offset}, and our link has copied only"
            f" up to {copied[first]} ({len(further)} partitions). Either it has run since, and would copy those records again:"
            " start it as it is, or stop it and take over again. Or the source was truncated or its topic created again since"
            " (see tolerant-kafka status), and it would skip the records that are there now: leave these topics out of its file"
        )
    return changed, blockers


def require_ran(control: LinkControl, link: str, source_cluster_id: str | None, *, is_translated: bool) -> None:
    """Raises OptionError if nothing shows that the link copied from this source, or if it was promoted.  Pure."""
    if control.topics is None or not (is_translated or control.is_identical):
        raise OptionError(
            f"{CONTROL_TOPIC} does not say that link {link} has copied into this target, so there is nothing to hand back."
            " Start MirrorMaker 2 as it is; or, if you mean another link, check --config and --flow"
        )
    if control.source_cluster_id != source_cluster_id:
        raise OptionError(
            f"Link {link} copied from cluster {control.source_cluster_id}, and the source of the file is {source_cluster_id}:"
            " their offsets differ; give the file that the mirror runs with"
        )
    if control.is_promotion_begun:
        raise OptionError(
            f"Link {link} was promoted: its target belongs to its own producers, and MirrorMaker 2 would write among them"
        )


async def hand_back(
    source: Cluster,
    target: Cluster,
    link: str,
    topics: LinkTopics,
    source_alias: str,
    *,
    offsets: str = "identical",
    is_dry_run: bool = False,
) -> HandBackReport:
    """Makes MirrorMaker 2, which must not run, resume where our link has stopped; the link copies nothing any more.

    Only partitions that MirrorMaker 2 has a position of: the others it would copy from their first record.  If something blocks
    it, nothing is written.  Raises OptionError for a link that has not copied; TolerantClientError for one that still copies, or
    if it fails after the control is written: another run resumes; KafkaError.
    """
    await source.connect()
    is_translated = offsets == "translated"
    control = await read_control(target, link)
    await require_not_forgotten(target, link, control)
    require_ran(control, link, await source.cluster_id(), is_translated=is_translated)
    assert control.topics is not None
    copied_topics = LinkTopics.from_json(control.topics)
    names = [name for name in select_topics(topics, await source.partitions()) if copied_topics.writes(name)]
    partitions = await shared_partitions(source, target, names)
    known = await read_positions_of_mm2(target, source_alias)
    strange: list[str] = []
    if is_translated:
        await require_same_map(target, link, control)
        copied = await _translated_until(target, link, partitions)
    else:
        copied, strange = await _identical_until(source, target, partitions)
    changed, wrong = decide_positions(_wire(source, copied), known)
    wrong = [*await whether_mm2_runs(target, source_alias), *strange, *wrong]
    if wrong or is_dry_run:
        return HandBackReport(link, is_dry_run, False, tuple(changed), tuple(wrong))
    with half_done("handing back"):
        if not control.is_handed_back:
            await update_control(target, link, lambda now: replace(now, is_handed_back=True))
            await target.net.sleep(_OBEYED_S)
        if is_translated:
            again = await _translated_until(target, link, partitions)
        else:
            again = await target.list_offsets(dict.fromkeys(copied, LATEST))
        if again != copied:
            raise TolerantClientError(
                f"The mirror of link {link} still ran: it stops now, and no position of MirrorMaker 2 has been written yet. Wait"
                " until its process has ended, and run this again"
            )
        for partition in changed:
            place = known[TopicPartition(partition.topic, partition.partition)]
            await write_position(target, source_alias, place, partition.after)
    return HandBackReport(link, False, True, tuple(changed))


def _wire(source: Cluster, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    return {TopicPartition(source.wire_topic(p.topic), p.partition): offset for p, offset in offsets.items()}


async def _translated_until(
    target: Cluster, link: str, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    """How far the link has copied each partition, without those of which it has copied nothing.

    Raises OptionError if it has copied nothing at all.
    """
    rows = {p: row for p, row in (await last_rows(target, link, partitions)).items() if row.is_kept}
    if not rows:
        raise OptionError(
            f"Link {link} has copied nothing into this target: there is nothing to hand back. Start MirrorMaker 2 as it is"
        )
    return await copied_until(target, link, rows)


async def _identical_until(
    source: Cluster, target: Cluster, partitions: Sequence[TopicPartition]
) -> tuple[dict[TopicPartition, int], list[str]]:
    """The end offsets of the target's logs that are copies, and what is wrong with the others."""
    bounds = await read_bounds(source, target, partitions)
    ends = {p: found.target.high_watermark for p, found in bounds.items()}
    others = [p for p, found in bounds.items() if await is_contradicted(source, target, p, found)]
    if not others:
        return ends, []
    return {p: end for p, end in ends.items() if p not in others}, [
        f"the log of {others[0].topic}-{others[0].partition} on the target is no copy of the source's ({len(others)}"
        " partitions), so its end is not how far it is copied. See tolerant-kafka status for what is wrong, or leave these"
        " topics out of the file"
    ]

"""What promotion and failover report: values for programs, sentences for people.  Pure.

Times are ms since 1970, offsets half-open, those of the source.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kafka.structs import TopicPartition

from tolerant_client.mirror.batches.divergence import Range
from tolerant_client.mirror.batches.losses import LedgerRow
from tolerant_client.mirror.follow.groups import GroupsReport
from tolerant_client.mirror.state.carriers import Carried
from tolerant_client.mirror.state.health import by_reason, counted, few, names


@dataclass(frozen=True)
class PromotedPartition:
    """Where the copy of a partition ends, None if unknown; `lag` counts the source's offsets that the target lacks.

    These have `left_records` committed records, `left_unread` offsets more of which nobody knows what they have, and those of
    `left_deleted`, which the source has deleted before they were copied.  Nothing is counted without a source, of heartbeats, and
    while something blocks the promotion.
    """

    topic: str
    partition: int
    copied_until: int | None
    lag: int | None
    last_copied_ms: int | None  # timestamp of the last record that was copied
    fence_marker: int | None = None
    fence_records: tuple[int, ...] = ()
    is_heartbeats: bool = False
    left_records: int | None = None  # None: not counted
    left_unread: int | None = None
    left_deleted: Range | None = None


@dataclass(frozen=True)
class GroupPlace:
    """The committed offset of a group on the target; `left_to_read` offsets of the copy follow it."""

    group: str
    topic: str
    partition: int
    offset: int
    left_to_read: int


@dataclass(frozen=True)
class PromotionReport:
    """What promotion or failover has done, or would do; `is_done` once no process of the link can write any more.

    `is_begun`: no process of it can write to `partitions` any more, except to those that the blockers name.  `damaged` says
    which copied data the target has lost, `not_promoted` what was asked for and is not the link's, `unknown_left` of what nobody
    can say how much was left behind, one sentence each.
    """

    action: str
    link: str
    is_dry_run: bool
    is_done: bool
    partitions: tuple[PromotedPartition, ...]
    blockers: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    groups: GroupsReport | None = None
    group_places: tuple[GroupPlace, ...] = ()
    losses: tuple[LedgerRow, ...] = ()
    is_begun: bool = False
    damaged: tuple[str, ...] = ()
    not_promoted: tuple[str, ...] = ()
    unknown_left: tuple[str, ...] = ()

    @property
    def copies_end(self) -> dict[TopicPartition, int]:
        """Where the copies end, as far as that is known."""
        known = ((TopicPartition(p.topic, p.partition), p.copied_until) for p in self.partitions)
        return {p: at for p, at in known if at is not None}

    @property
    def left_behind(self) -> str:
        """What the copies lack, and who has it; "" if they lack nothing of data, or the blockers say it."""
        return "" if self.blockers else left_text(self.partitions, is_left=self.is_done or not self.is_dry_run)

    @property
    def exit_code(self) -> int:
        """0 if all is well, 3 if an operator has to check the report."""
        are_groups_left = self.groups is not None and (
            bool(self.groups.behind) or any(left.is_failure for left in self.groups.left)
        )
        is_left = bool(self.blockers or self.damaged or self.not_promoted or self.left_behind or self.unknown_left)
        return 3 if is_left or are_groups_left else 0

    def to_json(self) -> dict[str, Any]:
        found = asdict(self)
        found["losses"] = [row._asdict() for row in self.losses]
        if self.groups is not None:
            found["groups"] = groups_json(self.groups)
        return {**found, "exit_code": self.exit_code}


def groups_json(report: GroupsReport) -> dict[str, Any]:
    """One round of moved group offsets as JSON, without the groups' commit metadata."""

    def place(position: Any) -> dict[str, Any]:
        return {
            "group": position.group,
            **position.partition._asdict(),
            "source": position.upstream,
            "target": position.offset,
        }

    return {
        "moved": [{**place(m.position), "before": m.before} for m in report.moved],
        "unchanged": report.unchanged,
        "behind": [place(p) for p in report.behind],
        "left": [left._asdict() for left in report.left],
    }


def left_text(partitions: Iterable[PromotedPartition], *, is_left: bool = True) -> str:
    """What the copies of these partitions lack of data, or would, and who has it; "" if that is nothing, or was not counted."""
    data = [p for p in partitions if not p.is_heartbeats]
    found = []
    if records := {TopicPartition(p.topic, p.partition): p.left_records for p in data if p.left_records}:
        found.append(_not_copied(records, "committed record", is_left))
    if unread := {TopicPartition(p.topic, p.partition): p.left_unread for p in data if p.left_unread}:
        found.append(
            f"{_not_copied(unread, 'offset', is_left)}, and how many committed records they have is unknown (they could not be read"
            " in time, or their transactions are open)"
        )
    deleted = {TopicPartition(p.topic, p.partition): p.left_deleted for p in data if p.left_deleted}
    there = [f"{'; '.join(found)}: only the source has what is there"] if found else []
    return "; ".join(there + few(_deleted_texts(deleted, "were" if is_left else "would be")))


def _not_copied(counts: Mapping[TopicPartition, int], noun: str, is_left: bool) -> str:
    number = sum(counts.values())
    verb = ("was" if number == 1 else "were") if is_left else "would be"
    return f"{counted(number, noun)} of {names(sorted(counts))} {verb} not copied"


def _deleted_texts(spans: Mapping[TopicPartition, Range], verb: str) -> list[str]:
    """A sentence for each partition whose source has deleted these offsets before they were copied."""
    return [
        f"offsets {start:,} to {until:,} of {names([p])} {verb} not copied, and the source has deleted them: nobody has what was"
        " there, and how many committed records that was is unknown"
        for p, (start, until) in sorted(spans.items())
    ]


def gone_warnings(gone: Iterable[TopicPartition]) -> list[str]:
    """A warning about partitions of the link that the source does not have."""
    if not (known := sorted(gone)):
        return []
    return [
        f"the source has no such topic, or partition of it (any more): {names(known)}; the link writes it, so the target's copy is promoted and"
        " fenced, too, and how much of it was not copied is unknown"
    ]


def unmade_texts(
    unmade: Mapping[TopicPartition, str], made: Collection[TopicPartition], left: Collection[TopicPartition]
) -> list[str]:
    """Partitions that only the source had, and why the link did not create them.

    Leaves out those that it has `made` by now, and those of topics that are named already as `left`.
    """
    told = {p.topic for p in left}
    reasons = by_reason({p: why for p, why in unmade.items() if p.topic not in told and p not in made})
    return [f"{names(of)}: only on the source, so not promoted: {why}" for why, of in reasons.items()]


def carried_warnings(carried: Carried, gone: Collection[TopicPartition] = ()) -> list[str]:
    """Partitions whose logs have records of the link though the control does not name them; and those where that is unknown.

    `gone` are partitions that the control names and the source does not have.
    """
    found = []
    if unwritten := sorted(carried.partitions - frozenset(gone)):
        found.append(
            f"{names(unwritten)} carry records of the link, though they are not among the topics that its mirror"
            " wrote in the control last: they are promoted and fenced, too"
        )
    return found + few(
        f"whether {names(members)} carry records of the link is unknown, so they are not fenced: {why}"
        for why, members in by_reason(carried.unknown).items()
    )


def failover_warnings(partitions: Iterable[PromotedPartition], options: str) -> tuple[str, ...]:
    """What nobody can know while the source is gone; `options` name both clusters of the link."""
    times = [p.last_copied_ms for p in partitions if p.last_copied_ms is not None]
    newest = f"; the newest record that was copied is of {_text_of(max(times))}" if times else ""
    return (
        f"what the source had after the offsets above is unknown{newest}. When the source is back, tolerant-kafka status"
        f" {options} says how much of it was not copied. Run tolerant-kafka promote {options} then, too: it writes down at which of these"
        " offsets the source has no record (markers, aborted records), so that they do not count as left behind once it has deleted them",
        "transactions that were open on the source when it was lost are not on the target: none of their records was copied",
    )


def _text_of(time_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(time_ms / 1000)) + f".{time_ms % 1000:03d} UTC"

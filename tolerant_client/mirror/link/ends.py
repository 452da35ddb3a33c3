"""How far the two clusters of a link are, and whether what the target has is a copy of what the source has.

Offsets are the source's, half-open.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.errors import OptionError, TolerantClientError, text_of
from tolerant_client.mirror.identical.state import Found, read_append_states
from tolerant_client.mirror.led_offsets import list_led_offsets, stable_ends
from tolerant_client.mirror.ledger import Ledger
from tolerant_client.mirror.link.control import LinkControl
from tolerant_client.mirror.losses import Loss
from tolerant_client.mirror.translated.map_topic import copied_until, map_topic
from tolerant_client.raw import LATEST, READ_COMMITTED, RawCluster


class Ends(NamedTuple):
    """A partition of a link: offsets before `copied` are on the target.

    The source's committed part ends at `stable` (the last stable offset), its log at `end` (the high watermark); both None
    where the source is not asked.
    """

    partition: TopicPartition
    copied: int
    stable: int | None
    end: int | None

    @property
    def lag(self) -> int:
        """What of the source's log is not on the target, offsets after an open transaction included."""
        return 0 if self.stable is None else max(0, max(self.stable, self.end or 0) - self.copied)

    @property
    def copyable(self) -> int:
        """Of the lag what a mirror can copy now: that before the last stable offset."""
        return 0 if self.stable is None else max(0, self.stable - self.copied)

    @property
    def ahead(self) -> int:
        """What the target has and the source's log has no room for: it is no copy, or the source has lost it."""
        return 0 if self.end is None else max(0, self.copied - self.end)

    @property
    def open_offsets(self) -> int:
        """What lies after the first record of a transaction that is open: no mirror copies it before that has ended."""
        return 0 if self.stable is None or self.end is None else max(0, self.end - self.stable)

    def __str__(self) -> str:
        return f"{self.partition.topic}-{self.partition.partition}"


async def has_map(target: RawCluster, link: str, control: LinkControl) -> bool:
    """Whether the link has translated offsets.

    Only a link with identical ones writes producer ids down: beside them a map is what a former link of this name left.
    """
    return not control.producer_ids and map_topic(link) in await target.partitions([map_topic(link)])


def require_no_copies_of_identical(control: LinkControl, link: str) -> None:
    """Raises OptionError where a link that is to have translated offsets has copied with identical ones.  Pure."""
    if control.producer_ids:
        raise OptionError(
            f"Link {link} has copied into this target with identical offsets: give the one with translated offsets a name of"
            " its own with --link"
        )


async def look(
    source: RawCluster | None, target: RawCluster, link: str, partitions: Iterable[TopicPartition], is_translated: bool
) -> list[Ends]:
    """How far both sides are.  The target is asked before the source, so a lag is never told too small; the source's high
    watermark before its last stable offset, so that what is appended between does not look like an open transaction.
    """
    wanted = list(partitions)
    if is_translated:
        copied = await copied_until(target, link, wanted)
    else:
        copied = await target.list_offsets(dict.fromkeys(wanted, LATEST))
    if source is None:
        return [Ends(p, copied[p], None, None) for p in wanted]
    end = await source.list_offsets(dict.fromkeys(wanted, LATEST))
    stable = await source.list_offsets(dict.fromkeys(wanted, LATEST), isolation_level=READ_COMMITTED)
    return [Ends(p, copied[p], stable[p], end[p]) for p in wanted]


async def look_led(
    source: RawCluster, target: RawCluster, link: str, partitions: Iterable[TopicPartition], is_translated: bool
) -> tuple[list[Ends], dict[TopicPartition, str]]:
    """As look, but no partition waits for a broker of another one: also why each of the others could not be looked at."""
    wanted = list(partitions)
    left_out: dict[TopicPartition, str] = {}
    if is_translated:
        copied = await copied_until(target, link, wanted)
    else:
        copied, left_out = await list_led_offsets(target, dict.fromkeys(wanted, LATEST))
    end, without_end = await list_led_offsets(source, dict.fromkeys(copied, LATEST))
    stable, without_stable = await stable_ends(source, end)
    left_out = {**left_out, **without_end, **without_stable}
    return [Ends(p, copied[p], stable[p], end[p]) for p in wanted if p in stable], left_out


class Comparison(NamedTuple):
    """Partitions whose logs differ, and how; and those that could not be compared this time.

    What the ledger says already is no difference.
    """

    differing: Mapping[TopicPartition, str]
    unread: tuple[TopicPartition, ...] = ()


def is_comparable(control: LinkControl, is_translated: bool) -> bool:
    """Whether a link has logs to compare: not with translated offsets, before anybody has copied, or once promoted."""
    return not is_translated and not control.is_promoted and bool(control.producer_ids)


async def compare_ends(
    source: RawCluster,
    target: RawCluster,
    partitions: Collection[TopicPartition],
    ledger: Ledger,
    control: LinkControl,
    is_translated: bool,
) -> Comparison | None:
    """What stops partitions of a link, as its mirror would find it; None where nothing is comparable (is_comparable).

    The target's logs are read up to their high watermarks: a mirror that appends meanwhile is in nobody's way.  Topics
    that we may not read are not compared, and the others are.
    """
    if not is_comparable(control, is_translated):
        return None

    async def read(some: Collection[TopicPartition]) -> dict[TopicPartition, Found]:
        try:
            return await read_append_states(
                source, target, some, control.producer_ids[-1], ledger, control=control, at_high_watermark=True
            )
        except Errors.TopicAuthorizationFailedError:  # which of them, the error's text alone says
            topics = sorted({p.topic for p in some})
            first = topics[: len(topics) // 2]
            halves = [p for p in some if p.topic in first], [p for p in some if p.topic not in first]
            return {p: state for half in halves if first for p, state in (await read(half)).items()}

    states = await read(partitions)
    errors = {p: state.error if isinstance(state, Loss) else state for p, state in states.items()}
    differing = {
        p: text_of(error)
        for p, error in errors.items()
        if isinstance(error, TolerantClientError)
    }
    return Comparison(differing, tuple(p for p in partitions if p not in states))

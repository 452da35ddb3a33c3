"""Foresees where the mirror of a link with translated offsets resumes, and what stops it there: for status, plan, promote and failover.

Laws:
- The mirror (place.py) decides by the same functions (target_checks.py), and asks the source's leaders the same question.
- One request of each kind for each broker, not for each partition; no records are read, only the headers of the last copy's batch and of
  the one behind its marker where the log goes on (own_copies.py).  Records may show the mirror that the log is
  another one from an earlier offset on than leader epochs say, or where no epoch says so (a restored source).
- Links with identical offsets have no row that says of which leader epoch their copy is: for them the records are compared, by whoever
  asks (identical/evidence.py); only a mirror at work knows the epoch, and asks for its end as well.  Where nothing is copied yet there
  are no records to compare: the control has the epoch at the start that an operator has set.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import list_led_offsets
from tolerant_client.cluster.admin.transactions import transactional_producers
from tolerant_client.cluster.cluster import EARLIEST, LATEST, Cluster
from tolerant_client.errors import TolerantClientError
from tolerant_client.mirror.engine.translated.own_copies import committed_copy, followed, replaced
from tolerant_client.mirror.engine.translated.target_checks import (
    Resumption,
    asked_epochs,
    check_target,
    cut_at,
    lost_rows,
    overwritten,
    resumption,
    taken_over,
)
from tolerant_client.mirror.logs.reading import source_truncations
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.map_rows import LastRow, last_rows, last_told
from tolerant_client.mirror.state.map_topic import copier_id
from tolerant_client.mirror.state.offset_map import MapRow, is_another
from tolerant_client.mirror.state.topics import read_ids


class Foreseen(NamedTuple):
    """What was read of a partition: its topic ids, and where its mirror resumes, or why it does not for what the target has lost.

    `is_comparable`: the target's log has records, and both logs' leaders have responded.
    """

    ids: tuple[str, str]
    found: Resumption | TolerantClientError
    is_comparable: bool

    @property
    def error(self) -> TolerantClientError | None:
        """What stops the mirror first."""
        if isinstance(self.found, TolerantClientError):
            return self.found
        return next((error for _, error in self.found.losses), None)

    @property
    def begin(self) -> int | None:
        """The offset from which on the mirror copies into a log that has records, and none of ours of the source's present log."""
        if not self.is_comparable or isinstance(self.found, TolerantClientError) or self.found.has_copied:
            return None
        return self.found.position

    @property
    def begins_again(self) -> bool:
        """Whether the source's log is no longer the one that was copied, or taken over."""
        return isinstance(self.found, Resumption) and self.found.begins_again


async def foresee(
    source: Cluster | None,
    target: Cluster,
    link: str,
    control: LinkControl,
    partitions: Collection[TopicPartition],
    fresh: Collection[TopicPartition] = (),
) -> dict[TopicPartition, Foreseen]:
    """What is foreseen of those of these partitions that the link has begun, and of `fresh` ones.  Raises KafkaError.

    Without a source, or where its leader does not respond, the target alone is checked.
    """
    # Before the rows: of a mirror at work, what they say is never behind a log start that was read earlier.
    starts = {} if source is None else (await list_led_offsets(source, dict.fromkeys(partitions, EARLIEST))).offsets
    rows = await last_rows(target, link, partitions)
    wanted = [p for p in partitions if p in rows or p in control.adopted or p in fresh]
    ids = await read_ids(source, target, {p.topic for p in wanted})
    wanted = [p for p in wanted if p.topic in ids]
    target_ends = (await list_led_offsets(target, dict.fromkeys(wanted, LATEST))).offsets
    source_ends = {} if source is None else (await list_led_offsets(source, dict.fromkeys(wanted, LATEST))).offsets
    foreseen: dict[TopicPartition, Foreseen] = {}
    taken: dict[TopicPartition, MapRow | None] = {}
    ends = {p: target_ends.get(p, max(1, rows[p].target_until if p in rows else 0)) for p in wanted}
    for p, target_end in ends.items():
        try:
            if p in rows:
                check_target(rows[p], link, p, ids[p.topic], target_end)
        except TolerantClientError as error:
            foreseen[p] = Foreseen(ids[p.topic], error, False)
        else:
            taken[p] = taken_over(rows.get(p), p, ids[p.topic], target_end, control.adopted_of(p, target_end))
    copied = {p: rows[p] for p in taken if p in rows and rows[p].has_copied}
    # Beyond the marker of the last copy.
    last = {p: row.target_until - 1 for p, row in copied.items() if target_ends.get(p, 0) > row.target_until + 1}
    last = {p: offset for p, offset in last.items() if not is_another(rows[p].ids[0], ids[p.topic].source)}
    for p in await replaced(target, last):
        del taken[p]
        foreseen[p] = Foreseen(ids[p.topic], overwritten(rows[p], link), False)
    there = {p: rows[p] for p in last if p in taken}
    for p, copy in (await _untold_copies(target, link, there, target_ends)).items():
        del taken[p]
        foreseen[p] = Foreseen(ids[p.topic], lost_rows(rows[p], link, p, copy), False)
    source_ids = {p: ids[p.topic].source for p in taken}
    uncopied = [p for p, row in taken.items() if p in source_ends and not (row is not None and row.has_copied)]
    begins = {p: begin for p in uncopied if (begin := control.asked_start(p, source_ids[p])) is not None}
    start_cuts = {} if source is None else await source_truncations(source, begins)
    asked = asked_epochs(taken, source_ids)
    told = {} if source is None else await source_truncations(source, {p: asked[p] for p in asked if p in source_ends})
    for p, row in taken.items():
        least = control.start_of(p, source_ids[p], source_ends.get(p), start_cuts.get(p)) or 0
        start, end = starts.get(p, 0), source_ends.get(p, max(row.position if row is not None else 0, least))
        adopted = control.adopted_of(p, ends[p])
        cut = cut_at(row, told.get(p), start, end, adopted) if row is not None and p in asked else None
        found = resumption(rows.get(p), row, ids[p.topic], start, end, least, cut)
        is_comparable = target_ends.get(p, 0) > 0 and p in starts and p in source_ends
        foreseen[p] = Foreseen(ids[p.topic], found, is_comparable)
    return foreseen


async def _untold_copies(
    target: Cluster, link: str, rows: Mapping[TopicPartition, MapRow], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Committed copies of which the map, whose newest rows are these, does not tell: it has lost rows."""

    async def untold(seen: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Without those of which the map tells by now, or is about to: a mirror is at work."""
        told = await last_told(target, link, seen) if seen else {}
        return {p: what for p, what in seen.items() if told.get(p) == LastRow(rows[p])}

    producers = await untold(await followed(target, rows) if rows else {})
    # Others may have written in place of the last copy, and behind it.
    known = await transactional_producers(target, copier_id(link)) if producers else None
    own = {p: of for p, of in producers.items() if (known or {}).get(copier_id(link, p)) == of}
    found = {p: await committed_copy(target, p, rows[p].target_until, ends[p], of) for p, of in own.items()}
    return await untold({p: copy for p, copy in found.items() if copy is not None})


async def contradicted(
    source: Cluster | None, target: Cluster, link: str, control: LinkControl, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, TolerantClientError]:
    """What stops partitions that the link has begun: their map is no longer true, or the source has lost records.

    A topic was created again, a log is shorter than the copy, an election cut the source's, or retention took what was not copied.
    """
    return stopped(await foresee(source, target, link, control, partitions))


def stopped(foreseen: Mapping[TopicPartition, Foreseen]) -> dict[TopicPartition, TolerantClientError]:
    """What stops the mirror first of each partition that it stops.  Pure."""
    return {p: error for p, one in foreseen.items() if (error := one.error) is not None}

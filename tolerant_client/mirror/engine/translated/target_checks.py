"""Where a partition with translated offsets resumes, and what prevents that.  Pure: no I/O, no clock.

The newest committed row of the offset map is the position; both logs must still be those that the row describes.  If the link
took over from another mirror after that row, or has no row yet, the position is where it took over.

The mirror (place.py) and all who foresee what stops it (status, plan, promote, failover: foresight.py) decide by these functions.

Law: whether the source's log was cut below what was copied, and where, is the leader epochs' to say (asked_epochs, cut_at).  Its end
tells it only until the log has grown past what was copied, and never where.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kafka.structs import TopicPartition

from tolerant_client.errors import DataLossError, TargetDivergedError, TolerantClientError
from tolerant_client.mirror.batches.losses import GOES_ON, LossReason
from tolerant_client.mirror.state.offset_map import MapRow, RowKey, Run, begun_again, is_another
from tolerant_client.mirror.state.topics import TopicFacts
from tolerant_client.records.record_batch import Record

_ANOTHER_LINK = "mirror it alone under another link name to copy it again"
# While both topics are the same, the map refuses that to another link (copied_before.py).
_COPY_AGAIN = (
    "to copy it again, delete the topic on the target, also what others wrote there, or else the link's offset map, and mirror it under"
    " another link name"
)
_GO_ON = f"resume after the loss with {GOES_ON}"
_COPY_REST = f"{_GO_ON}, or mirror it under another link name to copy what is left"


class TopicPair(NamedTuple):
    """The topic ids of source and target ("" where unknown), and what else a copier needs to know of the target's topic."""

    ids: tuple[str, str]
    target: TopicFacts


class LostOffsets(NamedTuple):
    """Source offsets [from_offset, until_offset) that can no longer be copied as they were."""

    reason: LossReason
    from_offset: int
    until_offset: int

    def is_part_of(self, other: LostOffsets) -> bool:
        """Whether it is `other`, or what is left of it: a log that was cut grows again."""
        is_within = other.from_offset <= self.from_offset and self.until_offset <= other.until_offset
        return self.reason is other.reason and is_within


def check_target(row: MapRow, link: str, target: TopicPartition, ids: tuple[str, str], log_end: int) -> None:
    """Raises TargetDivergedError if the target's log cannot have what the map records."""
    if not row.is_kept or row.is_former(ids):
        return  # nothing was ever copied, or nothing is left of it
    copied = f"{row.key.partition.topic}-{row.key.partition.partition}"
    if row.target_topic != target.topic:
        raise TargetDivergedError(
            f"{copied} of link {link} was copied to topic {row.target_topic}, not to {target.topic}"
        ).advising(_ANOTHER_LINK)
    if is_another(row.ids[1], ids[1]):
        raise TargetDivergedError(
            f"Target topic {target.topic} was deleted and created again after {copied} was copied"
        ).advising(_ANOTHER_LINK)
    if log_end < row.target_until:
        raise TargetDivergedError(
            f"The target log of {target.topic}-{target.partition} ends at offset {log_end}, but records were copied up to"
            f" {row.target_until}: it has lost them (unclean election)"
        ).advising(_COPY_AGAIN)


def is_same_record(original: Record | None, copied: Record | None) -> bool:
    """Whether a record of the source is the copied one, if both still exist; True if one of them is gone."""
    return original is None or copied is None or copied == original._replace(offset=copied.offset)


def overwritten(row: MapRow, link: str) -> TargetDivergedError:
    """The error for a record at the end of the map's newest run that another producer wrote.

    It reveals an election that removed records, even though others have made the log longer since.
    """
    return _lost_copy(
        row, link, "another record than the one of", "copied there: it has lost", ", and others wrote in its place"
    )


def uncommitted(row: MapRow, link: str) -> TargetDivergedError:
    """As `overwritten`, where what is there was aborted, or lacks its marker: a later copy of our own, or the copy itself, cut before it."""
    return _lost_copy(row, link, "nothing that is committed, but had the copy of", "committed there: it has lost", "")


def _lost_copy(row: MapRow, link: str, there: str, copied: str, then: str) -> TargetDivergedError:
    name, last = f"{row.key.partition.topic}-{row.key.partition.partition}", row.runs[-1]
    return TargetDivergedError(
        f"The target log of {row.target_topic}-{row.key.partition.partition} has at offset {last.target_until - 1} {there} {name}, offset"
        f" {last.source_until - 1}, that link {link} {copied} what was copied (unclean election, or a power failure){then}"
    ).advising(_COPY_AGAIN)


def lost_rows(row: MapRow | None, link: str, target: TopicPartition, copy: int | None) -> TargetDivergedError:
    """The error for a log with copies of the link of which its map, whose newest row is `row`, does not tell (own_copies.py)."""
    where = f"{target.topic}-{target.partition}"
    found = "" if copy is None else f" at offset {copy}"
    told = "has no row of it" if row is None else f"tells of copies up to offset {row.target_until} only"
    return TargetDivergedError(
        f"The target log of {where} has what link {link} has copied{found}, and the link's offset map {told}: it has lost rows"
        " (unclean election, or a power failure). How far the link has copied is unknown, and it copies nothing twice"
    ).advising(_COPY_AGAIN)


def not_before(row: MapRow, source_id: str, start: int) -> MapRow:
    """The row, moved to the start that an operator may have set since, if nothing was copied of the topic with this id."""
    if row.has_copied or row.is_adopted or is_another(row.ids[0], source_id):
        return row
    return row._replace(position=max(row.position, start))


def asked_epochs(
    rows: Mapping[TopicPartition, MapRow | None], source_ids: Mapping[TopicPartition, str]
) -> dict[TopicPartition, tuple[int, int]]:
    """What to ask the source's leaders of these partitions (source_truncations): the leader epoch of each row, and its position."""
    return {
        p: (row.epoch, row.position)
        for p, row in rows.items()
        if row is not None and not is_another(row.ids[0], source_ids[p])
    }


def cut_at(row: MapRow, told: int | None, start: int, end: int, adopted: int) -> int | None:
    """The offset from which on the source's log [start, end) is not the one that was copied; None if nothing says so.

    `told` is where its leader says that the row's epoch ends, if that is before its position (asked_epochs), `adopted` until where
    another mirror had copied it.
    """
    if told is None and row.position <= end:
        return None
    cut = end if told is None else min(told, end)
    # No record that follows was copied.
    return min(cut, max(start, row.runs[-1].source_until, adopted)) if row.has_copied else cut


class Resumption(NamedTuple):
    """Where a link resumes once policy has accepted its `losses`, which come one after the other.

    `row` is the newest one, or the one to write where its log begins again; `is_begun`: the map has this position in the source's
    present log.  `adopted_until` limits what still counts as adopted.
    """

    position: int
    row: MapRow | None
    is_begun: bool = False
    adopted_until: int | None = None
    losses: tuple[tuple[LostOffsets, TolerantClientError], ...] = ()

    @property
    def has_copied(self) -> bool:
        """Whether the target has a record of ours of the source's present log: only then nobody is asked who else has copied it."""
        return self.is_begun and self.row is not None and self.row.has_copied

    @property
    def begins_again(self) -> bool:
        """Whether the log was made anew, or was cut, since it was copied or taken over."""
        return self.adopted_until is not None


def resumption(
    known: MapRow | None,
    row: MapRow | None,
    ids: tuple[str, str],
    start: int,
    end: int,
    least: int,
    cut_at: int | None = None,
    dirty_from: int | None = None,
) -> Resumption:
    """Where a link resumes in the source's log [start, end): the mirror, and who foresees it, decide it here alone.

    `known` is the newest row of the map, `row` what it is with what was taken over (taken_over), `least` where an operator has the copy
    begin.  From `cut_at` on the source's log is another one; from `dirty_from` on it may have records that another leader had removed.
    """
    if row is None:
        return Resumption(max(start, least), None)
    if row.is_former(ids):
        position = max(start, least)
        return Resumption(position, begun_again(row, ids, position, position), adopted_until=0)
    moved = not_before(row, ids[0], least)
    losses = tuple(find_losses(moved, ids[0], start, end, cut_at))
    if not losses:
        return Resumption(max(start, moved.position if dirty_from is None else dirty_from), row, row == known)
    (reason, cut, _), _ = losses[0]
    if reason is LossReason.RETENTION:
        return Resumption(max(start, moved.position), row, losses=losses)
    is_anew = is_another(row.ids[0], ids[0])
    position = max(start, least if is_anew else cut)
    began = begun_again(moved, ids, position if is_anew else cut, position)
    return Resumption(position, began, False, 0 if is_anew else position, losses)


def find_losses(
    row: MapRow, source_id: str, start: int, end: int, cut_at: int | None = None
) -> list[tuple[LostOffsets, TolerantClientError]]:
    """What the source, whose log spans [start, end), has lost of what was copied or was to be copied, one loss after the other.

    `row` is the newest (taken_over, not_before).  `cut_at` is the offset from which on it is a different log than was copied, if
    known.  In a topic that was created again nothing is lost: only what its former log had after the position is unknown.
    """
    partition, position = row.key.partition, row.position
    name = f"{partition.topic}-{partition.partition}"
    if is_another(row.ids[0], source_id):
        is_copied = row.has_copied or row.is_adopted
        what = f"after it was copied up to {position}, and what it had beyond"
        what = what if is_copied else "before anything of it was copied, and what it had"
        error = DataLossError(f"The source topic of {name} was deleted and created again {what} is not known").advising(
            _COPY_REST
        )
        at = position if is_copied else 0
        return [(LostOffsets(LossReason.RECREATION, at, at), error)]
    if position <= end and cut_at is None:
        return _overtaken(partition, position, start)
    cut = end if cut_at is None else cut_at
    reached = "it was copied up to" if row.has_copied else "nothing of it was copied yet, and its copy was to begin at"
    text = (
        f"The source log of {name} ends at offset {cut}, but up to {position} it was copied when the link took over: it has"
        " lost records (unclean election), or was created again"
        if row.is_adopted
        else f"The source log of {name} was cut at offset {cut}, but {reached} {position}: it has lost records (unclean election, or a"
        " restored copy)"
    )
    lost = LostOffsets(LossReason.TRUNCATION, cut, position), DataLossError(text).advising(_GO_ON)
    return [lost, *_overtaken(partition, cut, start)]


def _overtaken(partition: TopicPartition, position: int, start: int) -> list[tuple[LostOffsets, TolerantClientError]]:
    """What retention removed from a source, whose log now starts at `start`, before it was copied."""
    if position >= start:
        return []
    error = DataLossError(
        f"The source of {partition.topic}-{partition.partition} no longer has offsets {position} to {start}: retention"
        f" overtook the mirror"
    ).advising(_COPY_REST)
    return [(LostOffsets(LossReason.RETENTION, position, start), error)]


def taken_over(
    row: MapRow | None, partition: TopicPartition, ids: tuple[str, str], target_end: int, adopted: int
) -> MapRow | None:
    """The newest row, moved on to where the link took over from another mirror, which had copied what is before `adopted`.

    Without a row it is the first one of such a partition.  The leader epoch at `adopted` is unknown; the row's own epoch may end
    before it without a loss.  What the link has read of a log that it took over says nothing of another log in its place.
    """
    if row is not None and row.is_adopted and (target_end < row.target_until or is_another(row.ids[1], ids[1])):
        row = None
    if not adopted:
        return row
    begun = Run(adopted, target_end, 0)
    if row is None:
        return MapRow(RowKey(partition, 0), partition.topic, ids, adopted, -1, (begun,))
    if not (row.is_kept or row.is_adopted):
        row = row._replace(runs=(begun._replace(source=min(adopted, row.position)),))
    return row if adopted <= row.position else row._replace(position=adopted, epoch=-1)

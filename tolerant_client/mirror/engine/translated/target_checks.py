"""Where a partition with translated offsets goes on, and what keeps it from that.  Pure: no I/O, no clock.

The newest committed row of the offset map is the position; both logs must still be those that it speaks of.  Where the
link took over from another mirror behind that row, the position is where it took over.
"""

from __future__ import annotations

from typing import NamedTuple

from kafka.structs import TopicPartition

from tolerant_client.errors import DataLossError, TargetDivergedError, TolerantClientError
from tolerant_client.mirror.batches.losses import LossReason
from tolerant_client.mirror.state.offset_map import MapRow, is_another
from tolerant_client.records.record_batch import Record

_GO_ON = "let policy go on behind the loss (--on-loss), or mirror it under another link name to copy what is left"


class TopicPair(NamedTuple):
    """The topic ids of source and target ("" where unknown), and the target's max.message.bytes."""

    ids: tuple[str, str]
    max_message_bytes: int


class LostOffsets(NamedTuple):
    """Source offsets [from_offset, until_offset) that cannot be copied as they were."""

    reason: LossReason
    from_offset: int
    until_offset: int

    def is_part_of(self, other: LostOffsets) -> bool:
        """Whether it is `other`, or what is left of it: a log that was cut grows again."""
        is_within = other.from_offset <= self.from_offset and self.until_offset <= other.until_offset
        return self.reason is other.reason and is_within


def check_target(row: MapRow, link: str, target: TopicPartition, ids: tuple[str, str], log_end: int) -> None:
    """Raises TargetDivergedError where the target's log cannot hold what the map says."""
    if not row.target_until:
        return  # nothing was ever copied
    copied = f"{row.key.partition.topic}-{row.key.partition.partition}"
    remedy = "mirror it under another link name to copy it anew"
    if row.target_topic != target.topic:
        raise TargetDivergedError(
            f"{copied} of link {link} was copied to topic {row.target_topic}, not to {target.topic}; {remedy}"
        )
    if is_another(row.ids[1], ids[1]):
        raise TargetDivergedError(
            f"Target topic {target.topic} was deleted and created again after {copied} was copied; {remedy}"
        )
    if log_end < row.target_until:
        raise TargetDivergedError(
            f"The target log of {target.topic}-{target.partition} ends at offset {log_end}, but records were copied up to"
            f" {row.target_until}: it has lost them (unclean election); {remedy}"
        )


def is_same_record(original: Record | None, copied: Record | None) -> bool:
    """Whether a record of the source is the one that was copied, as far as both are still there: None shows nothing."""
    return original is None or copied is None or copied == original._replace(offset=copied.offset)


def overwritten(row: MapRow, link: str, offsets: tuple[int, int]) -> TargetDivergedError:
    """What is told of another record at the end of the map's newest run, `offsets` on both sides, that another producer wrote.

    So an election is seen that took records back, though others have made the log longer since.
    """
    name = f"{row.key.partition.topic}-{row.key.partition.partition}"
    return TargetDivergedError(
        f"The target log of {row.target_topic}-{row.key.partition.partition} has at offset {offsets[1]} another record than"
        f" the one of {name}, offset {offsets[0]}, that link {link} copied there: it has lost what was copied (unclean"
        " election), and others wrote in its place; mirror it under another link name to copy it anew"
    )


def find_losses(
    row: MapRow, ids: tuple[str, str], start: int, end: int, cut_at: int | None
) -> list[tuple[LostOffsets, TolerantClientError]]:
    """What the source, whose log spans [start, end), no longer has of what was, or was to be, copied; one loss behind the other.

    `cut_at` is from where on it is another log than the one that the row speaks of, where that is known.  Of a topic that was
    made anew nothing is lost: only what its former one had behind the position is not known.
    """
    name, position = f"{row.key.partition.topic}-{row.key.partition.partition}", row.position
    if is_another(row.ids[0], ids[0]):
        what = f"after it was copied up to {position}, and what it had beyond"
        return [made_anew(row.key.partition, position, what)]
    if position <= end and cut_at is None:
        return overtaken(row.key.partition, position, start)
    cut = end if cut_at is None else cut_at
    error = DataLossError(
        f"The source log of {name} was cut at offset {cut}, but it was copied up to {position}: it has lost records"
        f" (unclean election, or a restored copy); {_GO_ON}"
    )
    return [(LostOffsets(LossReason.TRUNCATION, cut, position), error), *overtaken(row.key.partition, cut, start)]


def made_anew(partition: TopicPartition, position: int, what: str) -> tuple[LostOffsets, TolerantClientError]:
    """The loss of a source topic that was made anew: no offset of the new one is lost, and `what` the former had is not known."""
    error = DataLossError(
        f"The source topic of {partition.topic}-{partition.partition} was deleted and created again {what} is not known;"
        f" {_GO_ON}"
    )
    return LostOffsets(LossReason.RECREATION, position, position), error


def never_copied(partition: TopicPartition) -> tuple[LostOffsets, TolerantClientError]:
    """The loss of a topic that was made anew before the link had copied anything of it."""
    return made_anew(partition, 0, "before anything of it was copied, and what it had")


def find_adopted_losses(
    partition: TopicPartition, adopted: int, start: int, end: int
) -> list[tuple[LostOffsets, TolerantClientError]]:
    """As find_losses, where the link has copied nothing itself: before `adopted` another mirror has copied all."""
    if adopted > end:
        error = DataLossError(
            f"The source log of {partition.topic}-{partition.partition} ends at offset {end}, but up to {adopted} it was"
            f" copied when the link took over: it has lost records (unclean election), or was made anew; {_GO_ON}"
        )
        return [(LostOffsets(LossReason.TRUNCATION, end, adopted), error)]
    return overtaken(partition, adopted, start)


def overtaken(partition: TopicPartition, position: int, start: int) -> list[tuple[LostOffsets, TolerantClientError]]:
    """What retention took of a source, whose log starts at `start` now, before it was copied."""
    if position >= start:
        return []
    error = DataLossError(
        f"The source of {partition.topic}-{partition.partition} no longer has offsets {position} to {start}: retention"
        f" overtook the mirror; {_GO_ON}"
    )
    return [(LostOffsets(LossReason.RETENTION, position, start), error)]


def taken_over(row: MapRow, position: int) -> MapRow:
    """The newest row of a partition of which another mirror has copied more since, up to `position`.

    In which leader epoch that lies is not known; the row's own may end before it without a loss.
    """
    return row if position <= row.position else row._replace(position=position, epoch=-1)

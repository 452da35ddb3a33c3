"""How `tolerant-kafka mirror` reports a copy that has ended.  Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kafka.structs import TopicPartition

from spark_integration.cli.exits import LOOK
from tolerant_client.mirror.batches.losses import LedgerRow
from tolerant_client.mirror.state.health import counted, names
from tolerant_client.mirror.state.open_transactions import Held

_UNSETTLED = (
    "unsettled: {}: the target's brokers had not responded to the last batches there when the mirror ended, as under a quota: they may"
    " still append these. The next mirror waits until the claims of this one end"
)


def unsettled_warnings(partitions: Collection[TopicPartition]) -> list[str]:
    """The sentence about these partitions that were not released, however the mirror ends."""
    return [_UNSETTLED.format(names(partitions))] if partitions else []


@dataclass(frozen=True)
class MirrorReport:
    """What a mirror has copied, and what needs an operator's attention.

    `offsets` include those of markers and fillers, and of other writers.  With `is_least` more may have been copied.  A copy
    with the same offsets `counts_offsets`, as `plan` and `verify` do: only who decodes its batches knows how many records they have.
    Of a copy up to the ends at its start, `waiting` are partitions that could not be copied to them, with the reason, `behind`
    others that did not reach them, `held` what open transactions hold back, and `ended` partitions whose open transactions
    have ended since, `kept` partitions whose target's log goes on after the end of their source's, and why they wait.  `unsettled` are partitions that the mirror's processes had not released when it ended.
    """

    topics: Sequence[str]
    records: int
    offsets: int
    seconds: float
    is_least: bool = False
    counts_offsets: bool = False
    losses: Sequence[LedgerRow] = ()
    paused: Mapping[TopicPartition, str] = field(default_factory=dict)
    blocked: Mapping[TopicPartition, str] = field(default_factory=dict)
    waiting: Mapping[TopicPartition, str] = field(default_factory=dict)
    behind: Sequence[TopicPartition] = ()
    held: Sequence[Held] = ()
    ended: Sequence[TopicPartition] = ()
    kept: Mapping[TopicPartition, str] = field(default_factory=dict)
    unsettled: Collection[TopicPartition] = ()

    @property
    def exit_code(self) -> int:
        stands = self.losses or self.paused or self.blocked or self.waiting or self.kept
        return LOOK if stands or self.behind or self.held or self.ended or self.unsettled else 0

    @property
    def warnings(self) -> list[str]:
        """A sentence about each partition that did not reach its end."""
        again = "start the mirror again"
        return [
            *(f"not copied: {_name(p)}: {why}; {again}" for p, why in sorted(self.waiting.items())),
            *(
                f"behind: {_name(p)} did not reach the end that its source had at the start; {again}"
                for p in self.behind
            ),
            *(f"waiting: copied up to the last stable offset; {one}" for one in self.held),
            *(
                f"behind: {_name(p)} had an open transaction at the start, which has ended since; {again}"
                for p in self.ended
            ),
            *(
                f"not copied: {_name(p)}: {why}: what the source has before that offset is not on the target; tolerant-kafka status"
                " names what was lost"
                for p, why in sorted(self.kept.items())
            ),
            *unsettled_warnings(self.unsettled),
        ]

    def __str__(self) -> str:
        what = counted(self.offsets, "offset") if self.counts_offsets else counted(self.records, "record")
        of = f"of {counted(len(self.topics), 'topic')}"
        if self.is_least and not (self.offsets if self.counts_offsets else self.records):
            return f"no record {of} is known to have been copied in {self.seconds:.1f} s"
        return f"{'at least ' if self.is_least else ''}{what} {of} copied in {self.seconds:.1f} s"

    def to_json(self) -> dict[str, Any]:
        return {
            "records": self.records,
            "offsets": self.offsets,
            "seconds": round(self.seconds, 3),
            "topics": self.topics,
            "losses": [row._asdict() for row in self.losses],
            "paused": _with_reasons(self.paused),
            "blocked": _with_reasons(self.blocked),
            "waiting": _with_reasons({**self.waiting, **self.kept}),
            "exit_code": self.exit_code,
            "open_transactions": [one.to_json() for one in self.held],
            "unsettled": [p._asdict() for p in self.unsettled],
        }


def _name(partition: TopicPartition) -> str:
    return f"{partition.topic}-{partition.partition}"


def _with_reasons(found: Mapping[TopicPartition, str]) -> list[dict[str, Any]]:
    return [{**partition._asdict(), "reason": reason} for partition, reason in sorted(found.items())]

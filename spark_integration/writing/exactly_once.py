"""exactlyOnce=true: which transaction a task writes in, and what a repeated task finds; pure.

How: each task writes its rows in one transaction, which also commits an offset of a consumer group that belongs
to the sink and the task: the number of the micro-batch plus one, and beside it how many rows there were and a
digest of them.  The group's name is the transactional.id.  A task begins its transaction first, which ends or
fences every earlier attempt, and only then reads the offset: what it finds is final.

Guaranteed, for consumers with isolation.level=read_committed:
- A task that Spark runs again, in the same run or after a restart of the driver from the same checkpoint, is
  written once; so is one that two executors run at the same time (speculation), or that a lost executor goes on with.
- A repeated task whose rows are not those that were committed raises RepeatDiffersError and writes nothing: a query
  that is not deterministic (a random number, the time, an order that matters) is told so instead of losing or
  doubling rows.  The order of the rows within a task does not matter.

Not guaranteed:
- The micro-batch as a whole is not atomic: tasks commit one after the other.  After a driver was killed between two
  commits, the rest follows with the restart.
- A micro-batch that is repeated with *another number of tasks* (the code or an option was changed between two runs):
  tasks that are there in both runs compare their rows, and a task of the former run that is not there any more makes
  the commit of the micro-batch fail; but what other tasks wrote until then is written.  Keep the number of tasks
  while a micro-batch is unfinished, or let it finish first.
- A topic or deadLetterTopic that is changed in the middle of a micro-batch changes nothing about what was committed: it
  is found beside the former one, unless the principal may not read that one any more.
- Brokers forget the offsets of a group after offsets.retention.minutes (7 days): a query that stood still for longer
  in the middle of a micro-batch writes that one again.
- A task that takes longer than transaction.timeout.ms (15 minutes here, the most that brokers allow by default) is
  fenced by the broker and fails, without having written anything.  Consumers with read_committed see nothing that
  lies behind an open transaction, so a killed query holds them up until it is started again, or for that time.

With ACLs the principal needs, beside Write on the topics: Write on the transactional ids and Read on the groups that
begin with tolerant-sink-, and Read on the topics (an offset is committed beside one of their partitions).

A batch write has a sink of its own, unless exactlyOnceId names one: then the same write, repeated as a whole,
writes nothing again.  One name belongs to one query or one batch write; another one that uses it is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_integration.writing.columns import WriteRows
from tolerant_client.errors import OptionError, RepeatDiffersError
from tolerant_client.producer_transaction import CommittedOffset

GROUP_PREFIX: Final = "tolerant-sink-"

_UInt64s = npt.NDArray[np.uint64]
_MASK: Final = 2**64 - 1
_NULL: Final = 2**63  # no length of a value
# SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators).
_STEP: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX_1: Final = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2: Final = np.uint64(0x94D049BB133111EB)


class Written(NamedTuple):
    """How many rows a task wrote, and the sum of their hashes: their order does not matter."""

    rows: int
    digest: int


@dataclass(frozen=True)
class TaskPlace:
    """Which part of which write a task is; `owner` is the query's id, empty for a batch write."""

    sink: str
    owner: str
    batch: int
    task: int

    @property
    def transactional_id(self) -> str:
        """Also the group whose offset says what was committed."""
        return f"{GROUP_PREFIX}{self.sink}-{self.task}"

    @property
    def siblings(self) -> str:
        """What the groups of all tasks of the sink begin with."""
        return f"{GROUP_PREFIX}{self.sink}-"

    def sibling(self, group: str) -> TaskPlace | None:
        """The task that a group belongs to, None if it is none of this sink's."""
        number = group.removeprefix(self.siblings)
        return replace(self, task=int(number)) if number.isdecimal() and group.startswith(self.siblings) else None

    def committed(self, written: Written) -> CommittedOffset:
        """What is committed with the rows."""
        metadata = {"query": self.owner, "rows": written.rows, "digest": f"{written.digest:016x}"}
        return CommittedOffset(self.batch + 1, json.dumps(metadata))

    def find(self, committed: Mapping[Any, CommittedOffset]) -> Written | None:
        """What an earlier attempt of this task committed, None if it is still to be written.

        `committed` are the offsets of the group, by the partition that they stand beside.
        Raises OptionError when the sink belongs to somebody else, or has gone on since.
        """
        if not committed:
            return None
        newest = max(committed.values(), key=lambda offset: offset.offset)
        try:
            metadata = json.loads(newest.metadata)
            owner, written = metadata["query"], Written(int(metadata["rows"]), int(metadata["digest"], 16))
        except (ValueError, KeyError, TypeError):
            raise OptionError(
                f"The group {self.transactional_id!r} has an offset that no sink has written;"
                " choose another exactlyOnceId"
            ) from None
        if owner != self.owner:
            raise OptionError(
                f"exactlyOnceId {self.sink!r} belongs to {_who(owner)}, and this is {_who(self.owner)}: its rows"
                " would be taken for written; choose another exactlyOnceId"
            )
        if newest.offset > self.batch + 1:
            raise OptionError(
                f"The sink {self.sink!r} has committed micro-batch {newest.offset - 1} of this query, and now comes"
                f" {self.batch}: the checkpoint is older than the sink; choose another exactlyOnceId to write it again"
            )
        return written if newest.offset == self.batch + 1 else None

    def check_absent(self, committed: Mapping[Any, CommittedOffset], tasks: int) -> None:
        """Raises RepeatDiffersError if this task was committed: the repeated write has only `tasks` tasks."""
        if self.find(committed) is not None:
            raise RepeatDiffersError(
                f"Micro-batch {self.batch} was committed by task {self.task} of an earlier run, and this run has {tasks}"
                " tasks: rows may be written twice. Start the query again as it was, or delete the group"
                f" {self.transactional_id!r} to go on"
            )

    def check_repeat(self, found: Written, now: Written) -> None:
        """Raises RepeatDiffersError unless the task was given the rows that were committed."""
        if found != now:
            raise RepeatDiffersError(
                f"Task {self.task} of micro-batch {self.batch} was committed with {found.rows} rows (digest"
                f" {found.digest:016x}) and is repeated with {now.rows} (digest {now.digest:016x}): the query is not"
                " deterministic, or it was started again with other code or another number of tasks. Nothing was written"
                " by this task; choose another exactlyOnceId to write the micro-batch again"
            )


def _who(owner: str) -> str:
    return f"query {owner}" if owner else "a batch write"


class RowDigest:
    """The rows so far."""

    def __init__(self) -> None:
        self._rows = 0
        self._sum = 0

    def add(self, rows: WriteRows) -> None:
        """Adds the rows of one Arrow batch, whatever their order."""
        count = len(rows.values)
        hashes = np.zeros(count, np.uint64)
        if isinstance(rows.topics, str):
            hashes += np.uint64(crc32c.crc32c(rows.topics.encode()))
        else:
            hashes = _mixed(hashes, _of_bytes(rows.topics))
        for column in (rows.keys, rows.values):
            hashes = _mixed(hashes, np.full(count, _NULL, np.uint64) if column is None else _of_bytes(column))
        if rows.partitions is not None:
            numbers = rows.partitions.fill_null(-1).to_numpy(zero_copy_only=False)
            hashes = _mixed(hashes, numbers.astype(np.int64).view(np.uint64))
        if rows.headers is not None:
            texts = [repr(headers).encode() for headers in rows.headers.to_pylist()]
            hashes = _mixed(hashes, _of_bytes(pa.array(texts, pa.binary())))
        self._rows += count
        self._sum = (self._sum + int(np.add.reduce(hashes, dtype=np.uint64))) & _MASK

    def result(self) -> Written:
        return Written(self._rows, self._sum)


def _of_bytes(column: pa.Array) -> _UInt64s:
    """CRC-32C and length of each value."""
    column = column.cast(pa.large_binary())
    values = column.fill_null(b"").to_pylist()
    hashes: _UInt64s = np.fromiter(map(crc32c.crc32c, values), np.uint64, len(values))
    offsets = np.frombuffer(column.buffers()[1], np.int64)[column.offset : column.offset + len(column) + 1]
    hashes += np.diff(offsets).astype(np.uint64) << np.uint64(32)
    if column.null_count:
        hashes[column.is_null().to_numpy(zero_copy_only=False)] = _NULL
    return hashes


def _mixed(hashes: _UInt64s, column: _UInt64s) -> _UInt64s:
    with np.errstate(over="ignore"):
        mixed = (hashes ^ column) + _STEP
        mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX_1
        mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX_2
        return mixed ^ (mixed >> np.uint64(31))

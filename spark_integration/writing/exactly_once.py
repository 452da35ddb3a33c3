"""exactlyOnce=true: one decision for a whole micro-batch, however many tasks wrote it; pure.

How: each task writes its rows in its own transaction, flushes it and leaves it open.  Once Spark has
chosen one attempt of each task, the driver commits a decision: an offset of a consumer group that belongs to the sink.
The offset is the number of the micro-batch plus one; its metadata names the chosen transactions, the number of rows and
a digest of them.  Then the driver commits those transactions, and aborts what other attempts left open.  settlement.py
does the I/O.

Laws:
A. One decision per micro-batch.  It is committed in a transaction of the sink's only decider id, which begins before the
   former decision is read: of two drivers that decide at once, the brokers fence one, and it reads the other's decision.
B. A decided transaction is committed, never aborted: a driver that finds its micro-batch decided commits what that
   decision names, and aborts what its own tasks wrote.  The oldest transaction, which brokers would abort first, is
   committed before the others.  If the brokers have aborted it, no other is committed: then nothing of the decision is
   committed, and its rows are decided anew.
   Once all are committed, a note beside the decision says so, and a repeat commits nothing any more.  The note is
   mandatory and is committed like a decision: if it cannot be, the micro-batch fails, to be repeated.  The results of
   committing the transactions count only for a driver that is still the decider afterwards: if another one came between,
   the note may exist, and the ids may be in use again.  Without the note, a transaction whose id the brokers have
   forgotten may have been committed or aborted: neither is assumed.
C. An undecided transaction is aborted only by its own run, or after a decision that names its run as
   superseded; a superseded run decides nothing any more.  Its rows may count as written all the same: the same
   micro-batch with the same rows is a repeat, whoever decided it.
D. A transactional id names at most one transaction of a micro-batch, and belongs to one attempt of a task at a time: no
   attempt can fence another one, nor a transaction that the driver has chosen.  A later micro-batch of the same run
   reuses the id, after the note of law B, if a task of the same executor writes it: transaction_names.py.
E. A decision is made only while a reserve is left of its transactions' timeout: a minute, or a third
   of a transaction.timeout.ms below three minutes.  Half of the reserve is the timeout of the decider's own transaction;
   the rest is for committing the tasks' transactions, which is retried.  Each worker's clock is compared with the
   driver's for this.

Guaranteed, for consumers with isolation.level=read_committed:
- A micro-batch is written once, however many tasks Spark gives to it and to its repeat: with a shuffle, adaptive
  execution, other code, other options (but the same topic), speculation, with lost tasks, workers or executors, and with
  a driver that is killed at any point and started again from the same checkpoint.
- If a micro-batch is repeated with other rows than those that were decided, RepeatDiffersError is raised and the decided
  rows stay: this happens to a query that is not deterministic (a random number, the time), or whose source has fewer
  records since: the log cleaner removed some of a compacted topic, or failOnDataLoss=false passed over a loss.  Or its checkpoint was
  restored without the offsets of that micro-batch, which Spark has planned again.  The order of the rows, and which task has
  them, do not matter.

Costs and limits:
- Rows become visible when the micro-batch is committed: what the first task wrote waits for the last one.  Consumers with
  read_committed see nothing after an open transaction, so a killed query blocks them until it
  commits a micro-batch again, or for transaction.timeout.ms.
- A micro-batch fails, with nothing committed, if it takes longer than transaction.timeout.ms (15 minutes here, the most
  that brokers allow by default) less the reserve of law E: make it smaller with maxOffsetsPerTrigger, or raise
  transaction.max.timeout.ms on the brokers and kafka.transaction.timeout.ms here.
- From the decision to the last commit of a transaction there are some round trips.  If the driver dies or hangs within
  them (or the brokers are unavailable, or its clock is behind a worker's by more than the reserve), and nobody commits
  the transactions within transaction.timeout.ms, the brokers abort decided transactions, the oldest first.  If the
  oldest was not committed, none is, and the restart writes the micro-batch again; if it was, and another one was not,
  DataLossError reports it, and nothing more is written.  If the restart comes only after transactional.id.expiration.ms
  (7 days), OutcomeUnknownError says where to check.
- Decisions stay on their cluster: a mirror copies none of them (offsets that number micro-batches are not positions), and
  cannot know which transactions were open.  A query whose sink moves to the copy uses a new exactlyOnceId there; the
  micro-batch that was in flight may be written there again, in addition to what was copied of it, possibly a part.  That
  one is at least once; no other is repeated.
- A decision is stored beside every topic that was written to: brokers forget it when all of these are deleted.
- A killed attempt that begins a transaction only after its run has ended leaves it open for transaction.timeout.ms; so do
  tasks of a query's micro-batch if none of them has sent the driver a message, until the query commits again.
- Ids are reused within one run of the query and one executor (law D): each start of the query, and each executor that
  it gets later (with dynamic allocation after every pause), leaves about as many ids as it had tasks in a micro-batch,
  and each attempt that fails or is killed leaves one.  Brokers keep each for transactional.id.expiration.ms.
- Brokers forget the offsets of a group after offsets.retention.minutes (7 days): a query that was stopped for longer
  between a decision and the checkpoint's commit writes that micro-batch again.

With ACLs the principal needs, besides Write on the topics: Write on the transactional ids and Read on the groups that
begin with tolerant-sink-, and Read on the topics (an offset is committed beside one of their partitions).  The driver
connects to the brokers, too.

A batch write has its own sink, unless exactlyOnceId names one: then the same write, repeated as a whole,
commits nothing again, but writes its rows into transactions that it aborts.  A name belongs to one query or one batch
write; any other that uses it is refused.  Within foreachBatch a named write belongs to the query, and its micro-batches
count; not so with Spark Connect, which does not tell tasks their micro-batch there.  Give names only where they are
needed: brokers keep two groups of each name for a week (offsets.retention.minutes), and each of its transactional ids
for a week after it was used last (transactional.id.expiration.ms).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, NamedTuple

import crc32c
import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_integration.writing.columns import WriteRows
from tolerant_client.cluster.admin.groups import CommittedOffset
from tolerant_client.cluster.producer.transaction import PreparedTransaction
from tolerant_client.cluster.refused_rights import DECISION_GROUPS
from tolerant_client.errors import OptionError, RepeatDiffersError
from tolerant_client.state_json import Whole, decoded

_PIECE: Final = 4000  # characters, below the brokers' offset.metadata.max.bytes, 4096
_PIECES: Final = 1000  # the most that a decision may have: some 50,000 transactions
_SUPERSEDED: Final = 20  # runs that a decision remembers
_RESERVE_MS: Final = 60_000
_ID: Final = re.compile(r"([0-9a-f]+)/[0-9a-f-]+")

_Epoch = Annotated[int, msgspec.Meta(ge=0, le=2**15 - 1)]  # int16
_UInt64s = npt.NDArray[np.uint64]
_MASK: Final = 2**64 - 1
_NULL: Final = 2**63  # not the length of any value
# SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators).
_STEP: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX_1: Final = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2: Final = np.uint64(0x94D049BB133111EB)


class Written(NamedTuple):
    """The number of rows, and the sum of their hashes, which does not depend on their order or tasks."""

    rows: int
    digest: int

    @classmethod
    def total(cls, parts: Iterable[Written]) -> Written:
        parts = list(parts)
        return cls(sum(part.rows for part in parts), sum(part.digest for part in parts) & _MASK)


@dataclass(frozen=True)
class Decision:
    """The decision for a micro-batch, or a batch write: the transactions that contain its rows."""

    owner: str
    run: str
    batch: int
    written: Written
    transactions: tuple[PreparedTransaction, ...] = ()
    superseded: tuple[str, ...] = ()


class _Document(msgspec.Struct):
    """A decision as it is committed; transactional ids are without the sink's prefix."""

    query: str
    run: str
    rows: Whole
    digest: str
    superseded: tuple[str, ...]
    transactions: tuple[tuple[str, Whole, _Epoch], ...]


@dataclass(frozen=True)
class SinkBatch:
    """One run's write of one micro-batch; `owner` is the query's id, empty for a batch write, whose batch is 0.

    `is_named`: others may use the sink, too, or may have used it before.
    """

    sink: str
    owner: str
    run: str
    batch: int
    is_named: bool = True

    @property
    def decider(self) -> str:
        """The transactional id with which decisions are committed."""
        return f"{self.prefix}decider"

    @property
    def prefix(self) -> str:
        return f"{DECISION_GROUPS}{self.sink}/"

    @property
    def former_prefix(self) -> str:
        """The prefix of the groups of former versions, which committed task by task, with one group per task."""
        return f"{DECISION_GROUPS}{self.sink}-"

    def group(self, piece: int) -> str:
        """The group whose offset holds a piece of the decision; what does not fit into the first goes into more groups."""
        return f"{self.prefix}{piece}"

    @property
    def ended_group(self) -> str:
        """The group whose offset is the note that a decision was carried out."""
        return f"{self.prefix}ended"

    @property
    def what(self) -> str:
        """The write's name in errors."""
        return f"{f'Micro-batch {self.batch}' if self.owner else 'The batch write'} of the sink {self.sink!r}"

    def done(self, batch: int) -> str:
        """The remedy for a micro-batch that is committed although its checkpoint does not know it."""
        resumes = (
            f"the query resumes with commits/{batch} added to its checkpoint; that skips what offsets/{batch} names beyond the"
            " committed rows, if the checkpoint was restored, and whatever else its foreachBatch writes"
        )
        return resumes if self.owner else "the write is done"

    def run_of(self, transactional_id: str) -> str | None:
        """The run of a task's transactional id; None for an id that is not of this sink's tasks."""
        found = _ID.fullmatch(transactional_id.removeprefix(self.prefix))
        return found[1] if found and transactional_id.startswith(self.prefix) else None

    # -- what is committed -------------------------------------------------------

    def pieces(self, decision: Decision) -> list[CommittedOffset]:
        """The offsets to commit for the groups from 0 on.  Raises OptionError for too many transactions."""
        said = _Document(
            decision.owner,
            decision.run,
            decision.written.rows,
            f"{decision.written.digest:016x}",
            decision.superseded,
            tuple((t[0].removeprefix(self.prefix), *t[1:]) for t in decision.transactions),
        )
        value = msgspec.json.encode(said).decode()
        parts = [value[at : at + _PIECE] for at in range(0, len(value), _PIECE)]
        if len(parts) > _PIECES:
            raise OptionError(
                f"{self.what} has {len(said.transactions)} tasks, more than a decision can name; write it with fewer partitions"
                " (coalesce)"
            )
        return [
            CommittedOffset(decision.batch + 1, f"{len(parts)}:{part}" if not number else part)
            for number, part in enumerate(parts)
        ]

    def piece_count(self, committed: Mapping[Any, CommittedOffset]) -> int:
        """How many groups hold the decision, according to group 0's offsets; 0 if nothing was decided."""
        if not committed:
            return 0
        digits = _newest(committed).metadata.partition(":")[0]
        if not digits.isdecimal() or len(digits) > len(str(_PIECES)) or not 0 < int(digits) <= _PIECES:
            raise self._strange()
        return int(digits)

    def read(self, pieces: Sequence[Mapping[Any, CommittedOffset]]) -> Decision:
        """The decision in the groups' pieces; each piece is given by the partition beside which it is stored."""
        try:
            newest = [_newest(piece) for piece in pieces]
            (offset,) = {piece.offset for piece in newest}
            found = decoded("".join(piece.metadata for piece in newest).partition(":")[2], _Document)
            transactions = (PreparedTransaction(self.prefix + name, *of) for name, *of in found.transactions)
            written = Written(found.rows, int(found.digest, 16))
            return Decision(found.query, found.run, offset - 1, written, tuple(transactions), found.superseded)
        except ValueError:
            raise self._strange() from None

    def ended_note(self, decision: Decision) -> CommittedOffset:
        """The offset to commit for `ended_group`, once every transaction of the decision is committed."""
        return CommittedOffset(decision.batch + 1, decision.run)

    def _strange(self) -> OptionError:
        return OptionError(
            f"The group {self.group(0)!r} has an offset that no sink has written; choose another exactlyOnceId"
        )

    # -- what follows from it ----------------------------------------------------

    def is_repeat(self, found: Decision | None, now: Written) -> bool:
        """Whether this micro-batch was decided before, by any run, with these rows.

        Raises OptionError if the sink belongs to another query, is ahead of the checkpoint or was taken over by a later
        run, and RepeatDiffersError if other rows were decided.
        """
        if found is None:
            return False
        if found.owner != self.owner:
            raise OptionError(
                f"exactlyOnceId {self.sink!r} belongs to {_who(found.owner)}, and this is {_who(self.owner)}: its rows"
                " could be mistaken for rows already written; choose another exactlyOnceId"
            )
        if (found.batch, found.written) == (self.batch, now):
            return True
        self.check_in_charge(found)
        if found.batch > self.batch:
            raise OptionError(
                f"The sink {self.sink!r} has committed micro-batch {found.batch} of this query, and now gets"
                f" {self.batch}: another driver of the query is ahead (stop it, and start this one again), or the checkpoint is older than"
                " the sink. Only if no other driver runs, another exactlyOnceId writes the micro-batches after the checkpoint again"
            )
        if found.batch == self.batch:
            cause = (
                "its checkpoint was restored, or lost its last file, and Spark has planned the micro-batch again, up to later offsets;"
                " the query is not deterministic, it was started again with other code or another topic, its source has fewer records"
                " since (its topic is compacted, or lost some with failOnDataLoss=false), or two writes of its foreachBatch"
                " have one exactlyOnceId"
            )
            other = (
                "it has other rows or another topic now, its query is not deterministic, or it is another batch of foreachBatch with"
                " Spark Connect, or from a thread that is not an InheritableThread, where each needs its own exactlyOnceId"
            )
            raise RepeatDiffersError(
                f"{self.what} was committed with {found.written.rows} rows (digest {found.written.digest:016x}) and is"
                f" repeated with {now.rows} (digest {now.digest:016x}):"
                f" {cause if self.owner else other}. What was committed stands, and nothing was written again. If it"
                f" is to stay as it is, {self.done(found.batch)}; another exactlyOnceId writes all of it a second time"
            )
        return False

    def check_in_charge(self, found: Decision) -> None:
        """Raises OptionError if another run has taken over (law C): this one decides nothing any more."""
        if self.run in found.superseded:
            raise OptionError(
                f"{self.what}: {'another run of the same query' if self.owner else 'the same write, started again,'}"
                " has taken over; its decision stands, and this one decides nothing more. Stop one of the two"
            )

    def decide(
        self,
        found: Decision | None,
        written: Written,
        transactions: Iterable[PreparedTransaction],
        left_open: Iterable[str],
    ) -> Decision:
        """The decision to commit; it supersedes the runs that have ids in `left_open` or decided before."""
        runs = dict.fromkeys(found.superseded + (found.run,) if found is not None else ())
        runs |= dict.fromkeys(run for name in left_open if (run := self.run_of(name)) is not None)
        runs.pop(self.run, None)
        last = tuple(runs)[-_SUPERSEDED:]
        return Decision(self.owner, self.run, self.batch, written, tuple(transactions), last)

    def check_former(self, group: str, committed: Mapping[Any, CommittedOffset]) -> None:
        """Raises OptionError if a former version committed a task of this micro-batch, or of a later one."""
        if committed and _newest(committed).offset > self.batch:
            raise OptionError(
                f"{self.what} was committed, at least in part, by a version of"
                f" tolerant-client that commits task by task (group {group!r}), and this one cannot tell which rows."
                " Nothing was written. Let that version finish the micro-batch and stop it after the next one has"
                " begun, or choose another exactlyOnceId to write the micro-batch again"
            )


def reserve_ms(timeout_ms: int) -> int:
    """The part of transaction.timeout.ms that must be left for a decision to be made (law E)."""
    return min(_RESERVE_MS, timeout_ms // 3)


def _newest(committed: Mapping[Any, CommittedOffset]) -> CommittedOffset:
    return max(committed.values(), key=lambda offset: offset.offset)


def _who(owner: str) -> str:
    return f"query {owner}" if owner else "a batch write"


class RowDigest:
    """Accumulates the number and the hashes of rows."""

    def __init__(self) -> None:
        self._rows = 0
        self._sum = 0

    def add(self, rows: WriteRows) -> None:
        """Adds the rows of one Arrow batch; their order does not matter."""
        count = len(rows.values)
        hashes = np.zeros(count, np.uint64)
        is_one = isinstance(rows.topics, str)
        topics = _of_bytes(pa.array([rows.topics])).repeat(count) if is_one else _of_bytes(rows.topics)
        hashes = _mixed(hashes, topics)
        for column in (rows.keys, rows.values):
            hashes = _mixed(hashes, np.full(count, _NULL, np.uint64) if column is None else _of_bytes(column))
        # A column of nulls counts like a missing column.
        numbers = np.full(count, -1) if rows.partitions is None else rows.partitions.fill_null(-1).to_numpy(False)
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

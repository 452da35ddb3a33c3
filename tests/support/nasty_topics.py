"""Topics as nasty as Kafka allows, planned from a seed: nasty_topic(seed) is always the same plan.

A plan is a model too: it knows which records a consumer of either isolation level
has to find, so a reader is compared with what was written and not only with
another reader.  Two things only the broker knows: the timestamps of a
LogAppendTime topic, and which superseded records the cleaner has removed.

No I/O and no clock here; nasty_writer.py puts plans onto a broker.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from kafka.structs import TopicPartition

from tolerant_client.records.codecs import CODEC_NAMES
from tolerant_client.records.record_batch import Record
from tolerant_client.records.record_cursor import Headers

T0 = 1_700_000_000_000
YEAR_MS = 365 * 86_400_000
FILLER = "tolerant.filler"
LARGE = 100_000  # bytes of a value
MANY = 1000  # records of a batch

# The pool is small because a Produce request may hold transactional batches of one producer only.  Small ids are what
# the target's own coordinators give out.
_PRODUCER_IDS = (0, 1, 2, 3, 1000, 1001, 1 << 40, (1 << 61) + 7)
_BATCH_BYTES = 900_000  # of records in a batch; max.message.bytes is 1 MB by default


class Append(NamedTuple):
    """One record batch; a producer id of -1 is a plain one."""

    offset: int
    records: tuple[Record, ...]
    codec: int
    producer_id: int = -1
    epoch: int = -1
    sequence: int = -1
    is_transactional: bool = False

    @property
    def next_offset(self) -> int:
        return self.offset + len(self.records)

    def __str__(self) -> str:
        size = sum(len(r.key or b"") + len(r.value or b"") for r in self.records)
        who = f" of {self.producer_id}/{self.epoch}" if self.producer_id >= 0 else ""
        kind = " in a transaction" if self.is_transactional else ""
        return f"{self.offset}: {len(self.records)} records, {size} bytes, {CODEC_NAMES[self.codec]}{who}{kind}"


class Marker(NamedTuple):
    """The end of a producer's transaction."""

    offset: int
    producer_id: int
    epoch: int
    is_commit: bool

    @property
    def next_offset(self) -> int:
        return self.offset + 1

    def __str__(self) -> str:
        return f"{self.offset}: {'commit' if self.is_commit else 'abort'} of {self.producer_id}/{self.epoch}"


Step = Append | Marker


class Kind(str, Enum):
    PLAIN = "plain"
    IDEMPOTENT = "idempotent"
    TRANSACTIONAL = "transactional"
    COMPACTED = "compacted"
    CHANGELOG = "changelog"  # transactional and compacted, as Kafka Streams has them
    STAMPED = "stamped"  # LogAppendTime

    @property
    def is_keyed(self) -> bool:
        return self in (Kind.COMPACTED, Kind.CHANGELOG)

    @property
    def has_transactions(self) -> bool:
        return self in (Kind.TRANSACTIONAL, Kind.CHANGELOG)


@dataclass(frozen=True)
class NastyPartition:
    """What is appended to one partition, in its order.

    After `cleanings` many steps the cleaner is awaited: the step before has rolled the segment.
    `start` is where DeleteRecords puts the log's start in the end.
    """

    steps: tuple[Step, ...] = ()
    cleanings: tuple[int, ...] = ()
    start: int = 0

    @property
    def log_end(self) -> int:
        return self.steps[-1].next_offset if self.steps else 0

    @property
    def last_stable_offset(self) -> int:
        return max(self.start, self.stable_after(len(self.steps)))

    def stable_after(self, count: int) -> int:
        """The last stable offset after `count` steps, before anything is deleted."""
        steps = self.steps[:count]
        open_since: dict[int, int] = {}
        for step in steps:
            if isinstance(step, Marker):
                open_since.pop(step.producer_id, None)
            elif step.is_transactional:
                open_since.setdefault(step.producer_id, step.offset)
        end = steps[-1].next_offset if steps else 0
        return min(open_since.values(), default=end)

    def committed(self) -> dict[int, Record]:
        """What a read_committed consumer finds while no cleaner has run."""
        found: list[Record] = []
        pending: dict[int, list[Record]] = {}
        for step in self.steps:
            if isinstance(step, Marker):
                records = pending.pop(step.producer_id, [])
                found += records if step.is_commit else []
            elif step.is_transactional:
                pending.setdefault(step.producer_id, []).extend(step.records)
            else:
                found += step.records
        stable = self.last_stable_offset
        return {r.offset: r for r in sorted(found, key=lambda r: r.offset) if self.start <= r.offset < stable}

    def uncommitted(self) -> dict[int, Record]:
        """What a read_uncommitted consumer finds while no cleaner has run."""
        appended = (step for step in self.steps if isinstance(step, Append))
        return {r.offset: r for step in appended for r in step.records if r.offset >= self.start}


@dataclass(frozen=True)
class NastyTopic:
    """`config_later` is set once everything is written and cleaned."""

    seed: int
    kind: Kind
    partitions: tuple[NastyPartition, ...]
    config: Mapping[str, str] = field(default_factory=dict)
    config_later: Mapping[str, str] = field(default_factory=dict)
    prefix: str = "nasty"

    @property
    def name(self) -> str:
        return f"{self.prefix}-{self.seed:06d}-{self.kind.value}"

    @property
    def is_compacted(self) -> bool:
        return "compact" in {**self.config, **self.config_later}.get("cleanup.policy", "")

    @property
    def by_partition(self) -> dict[TopicPartition, NastyPartition]:
        return {TopicPartition(self.name, n): log for n, log in enumerate(self.partitions)}

    def describe(self) -> str:
        """Every step, a line each."""
        lines = [f"{self.name}: {dict(self.config)}, then {dict(self.config_later)}"]
        for n, log in enumerate(self.partitions):
            lines.append(f"  partition {n}: start {log.start}, stable {log.last_stable_offset}, end {log.log_end}")
            for count, step in enumerate(log.steps):
                lines += ["    cleaner"] if count in log.cleanings else []
                lines.append(f"    {step}")
        return "\n".join(lines)


def nasty_topic(seed: int, prefix: str = "nasty") -> NastyTopic:
    """The topic of a seed."""
    return _topic(seed, prefix, 0)


def growing_topic(seed: int, prefix: str, steps: int) -> NastyTopic:
    """A topic with so many steps in each partition, to be written while it is mirrored: no records are deleted."""
    return _topic(seed, prefix, steps)


def _topic(seed: int, prefix: str, steps: int) -> NastyTopic:
    rng = random.Random(seed)
    kind = rng.choices(list(Kind), (4, 2, 8, 3, 4, 2))[0]
    config: dict[str, str] = {"message.timestamp.after.max.ms": str(2**63 - 1)}
    later: dict[str, str] = {}
    if kind.is_keyed:
        config |= {
            "cleanup.policy": rng.choice(["compact", "compact", "compact,delete"]),
            "min.cleanable.dirty.ratio": "0",
            "delete.retention.ms": rng.choice(["0", "0", "86400000"]),
            "segment.ms": "3600000",
        }
    if kind is Kind.STAMPED:
        config["message.timestamp.type"] = "LogAppendTime"
    if rng.random() < 0.1:
        config["compression.type"] = rng.choice(CODEC_NAMES[1:]).replace("none", "uncompressed")
    policy = config.get("cleanup.policy", "delete")
    always_keyed = kind.is_keyed or rng.random() < 0.3
    count = rng.choice((1, 1, 2, 3))
    if steps:
        return NastyTopic(
            seed, kind, tuple(_growing_log(rng, kind, always_keyed, steps) for _ in range(count)), config, {}, prefix
        )
    logs = tuple(_log(rng, kind, always_keyed, "delete" in policy) for _ in range(count))
    if kind is not Kind.STAMPED and policy == "delete" and always_keyed and any(log.start for log in logs):
        later["cleanup.policy"] = "compact"  # a log that the target cannot delete the start of
    return NastyTopic(seed, kind, logs, config, later, prefix)


def _log(rng: random.Random, kind: Kind, always_keyed: bool, may_delete: bool) -> NastyPartition:
    if rng.random() < 0.1:
        return NastyPartition()
    writer = _LogWriter(rng, kind, always_keyed)
    steps = rng.choices((1, 4, 12, 40), (1, 3, 4, 2))[0]
    cleanings = []
    for _ in range(rng.choice((1, 2, 2, 3)) if kind.is_keyed else 0):
        writer.write(steps)
        writer.roll()
        cleanings.append(len(writer.steps))
    writer.write(steps if not cleanings else rng.choice((0, 2, steps)))
    if rng.random() < 0.06:
        writer.write_run_of_small_batches(rng.choice((150, 400)))
    writer.end()
    log = NastyPartition(tuple(writer.steps), tuple(cleanings))
    if not may_delete or rng.random() > 0.3:
        return log
    start = rng.choice((1, rng.randint(0, log.log_end), rng.choice(log.steps).next_offset, log.log_end))
    return NastyPartition(log.steps, log.cleanings, start)


def _growing_log(rng: random.Random, kind: Kind, always_keyed: bool, steps: int) -> NastyPartition:
    writer = _LogWriter(rng, kind, always_keyed)
    while len(writer.steps) < steps:
        writer.write(rng.choice((5, 20, 60)))
        if kind.is_keyed:
            writer.roll()
        if rng.random() < 0.1:
            writer.write_run_of_small_batches(50)
    writer.end()
    return NastyPartition(tuple(writer.steps))


class _Producer:
    """Whoever appends; `bumps` is how transactions v2 (KIP-890) ends a transaction: with a marker of the next epoch."""

    def __init__(self, producer_id: int, bumps: bool) -> None:
        self.producer_id = producer_id
        self.bumps = bumps
        self.epoch = 0
        self.sequence = 0
        self.is_open = False


class _LogWriter:
    """Draws the steps of one partition."""

    def __init__(self, rng: random.Random, kind: Kind, always_keyed: bool) -> None:
        self.rng = rng
        self.kind = kind
        self.steps: list[Step] = []
        self.offset = 0
        self.rolls = 0
        ids = rng.sample(_PRODUCER_IDS, rng.randint(1, 4))
        self.producers = [_Producer(i, rng.random() < 0.3) for i in ids]
        self.codecs = rng.choice(((0,), (0, 1, 2, 3, 4), (0, 1, 2, 3, 4), (1,), (2,), (3,), (4,)))
        self.clock = rng.choice(("steady", "steady", "equal", "backwards", "scattered", "none"))
        if kind.is_keyed and self.clock == "none":
            self.clock = "scattered"  # a segment without timestamps is not rolled by one
        self.always_keyed = always_keyed
        self.keys = rng.choice((2, 5, 20, 1000))
        self.likes_long_transactions = rng.random() < 0.3
        self.sizes = rng.choice(("tiny", "various", "various", "large"))
        self.resembles_filler = rng.random() < 0.1  # as the copy of a copy does

    def write(self, steps: int) -> None:
        for _ in range(steps):
            if not self.kind.has_transactions:
                self.append(None if self.kind is not Kind.IDEMPOTENT and self.rng.random() < 0.7 else self.one())
            elif self.rng.random() < 0.12:
                self.append(None)
            else:
                self.write_transactional(self.one())

    def write_transactional(self, producer: _Producer) -> None:
        if producer.is_open and self.rng.random() < (0.07 if self.likes_long_transactions else 0.45):
            self.end_transaction(producer)
        elif not producer.is_open and self.rng.random() < 0.1:
            self.end_transaction(producer)  # nothing in it
        else:
            self.append(producer, is_transactional=True)

    def write_run_of_small_batches(self, count: int) -> None:
        for _ in range(count):
            self.append(None, records=1)

    def roll(self) -> None:
        """A batch so much later than all before that the broker begins a segment with it."""
        self.rolls += 1
        record = self.record(f"roll-{self.rolls}".encode())._replace(timestamp=T0 + 10 * self.rolls * YEAR_MS)
        self.put(Append(self.offset, (record,), 0))

    def end(self) -> None:
        """Ends what is open, mostly."""
        for producer in self.producers:
            if producer.is_open and self.rng.random() < 0.75:
                self.end_transaction(producer)

    def one(self) -> _Producer:
        return self.rng.choice(self.producers)

    def end_transaction(self, producer: _Producer) -> None:
        if producer.bumps:
            producer.epoch += 1
            producer.sequence = 0
        self.put(Marker(self.offset, producer.producer_id, producer.epoch, self.rng.random() < 0.6))
        producer.is_open = False

    def append(self, producer: _Producer | None, is_transactional: bool = False, records: int = 0) -> None:
        count = (
            records
            or self.rng.choices((1, self.rng.randint(2, 10), self.rng.randint(11, 60), 1500), (40, 35, 12, 0.6))[0]
        )
        batch: list[Record] = []
        size = 0
        for n in range(count):
            record = self.record(None)._replace(offset=self.offset + n)
            size += len(record.value or b"") + len(record.key or b"") + 20
            if size > _BATCH_BYTES and batch:
                break
            batch.append(record)
        codec = self.rng.choice(self.codecs)
        if producer is None:
            self.put(Append(self.offset, tuple(batch), codec))
            return
        step = Append(
            self.offset, tuple(batch), codec, producer.producer_id, producer.epoch, producer.sequence, is_transactional
        )
        producer.sequence += len(batch)
        producer.is_open = producer.is_open or is_transactional
        self.put(step)

    def put(self, step: Step) -> None:
        self.steps.append(step)
        self.offset = step.next_offset

    # -- one record -----------------------------------------------------------

    def record(self, key: bytes | None) -> Record:
        rng = self.rng
        if key is None and self.resembles_filler and rng.random() < 0.1:
            key = FILLER.encode() if self.always_keyed else None
            return Record(
                self.offset, self.timestamp(), key, None, ((FILLER, rng.choice((None, b"7", b"%d" % 10**6))),)
            )
        if key is None and (self.always_keyed or rng.random() < 0.6):
            key = b"key-%d" % int(self.keys * rng.random() ** 2) if rng.random() < 0.95 else b""
        return Record(self.offset, self.timestamp(), key, self.value(), self.headers())

    def value(self) -> bytes | None:
        rng = self.rng
        what = rng.random()
        if what < 0.12:
            return None
        if what < 0.2:
            return b""
        if self.sizes == "tiny":
            return b"%d" % rng.randrange(1000)
        if self.sizes == "large" and what > 0.99:
            size = rng.randint(LARGE, 2 * LARGE)
            return rng.randbytes(size) if what > 0.995 else b"large " * (size // 6)
        size = rng.choice((10, 50, 200, 200, 1500))
        return rng.randbytes(size) if what > 0.6 else b"value-%d " % rng.randrange(1000) * (size // 8)

    def headers(self) -> Headers:
        rng = self.rng
        if rng.random() < 0.85:
            return ()
        return tuple(rng.choice(_HEADERS) for _ in range(rng.choice((1, 1, 2, 5, 20))))

    def timestamp(self) -> int:
        n, rng = self.offset, self.rng
        if self.clock == "equal":
            return T0
        if self.clock == "backwards":
            return T0 - 10 * n
        if self.clock == "none":
            return -1 if rng.random() < 0.8 else T0 + n
        if self.clock == "scattered":
            return T0 + rng.randint(-3 * YEAR_MS, 3 * YEAR_MS)
        return T0 + 10 * n + rng.randrange(10)


_HEADERS: tuple[tuple[str, bytes | None], ...] = (
    ("trace", b"00-4bf92f3577b34da6a3ce929d0e0e4736"),
    ("null", None),
    ("empty", b""),
    ("twice", b"1"),
    ("twice", b"2"),
    ("", b"a header without a name"),
    ("na\u00efve-\u952e", "\u20ac \U0001f600".encode()),
    ("binary", bytes(range(256))),
    ("tolerant.fill", b"not quite a filler"),
)


# -- what a plan has in it ----------------------------------------------------


def features(topic: NastyTopic) -> set[str]:
    """Every nasty thing that is really in a plan, found by looking at its steps."""
    found = {topic.kind.value, f"{len(topic.partitions)} partitions", topic.config.get("cleanup.policy", "delete")}
    found |= {"topic codec"} if "compression.type" in topic.config else set()
    found |= {"compacted later"} if topic.config_later else set()
    for log in topic.partitions:
        found |= set(_log_features(log)) | set(_key_features(topic, log))
    return found


def _log_features(log: NastyPartition) -> Iterator[str]:
    if not log.steps:
        yield "empty partition"
        return
    batches = [step for step in log.steps if isinstance(step, Append)]
    yield from _record_features(batches)
    yield from _transaction_features(log)
    if len({b.codec for b in batches}) > 2:
        yield "mixed codecs"
    yield from (CODEC_NAMES[b.codec] for b in batches)
    if any(len(b.records) >= MANY for b in batches):
        yield "batch of a thousand"
    if sum(len(b.records) == 1 for b in batches) > 100:
        yield "hundred batches of one"
    if any(b.producer_id >= 0 and not b.is_transactional for b in batches):
        yield "idempotent batches"
    if log.start == log.log_end:
        yield "all deleted"
    elif log.start:
        yield "late start"
        if any(b.offset < log.start < b.next_offset for b in batches):
            yield "start within a batch"


def _record_features(batches: list[Append]) -> Iterator[str]:
    last = None
    for record in (r for b in batches for r in b.records):
        yield "null key" if record.key is None else "empty key" if not record.key else "key"
        yield "null value" if record.value is None else "empty value" if not record.value else "value"
        if [name for name, _ in record.headers] == [FILLER]:
            yield "resembles filler"
        if record.key is None and not record.value and not record.headers:
            yield "record of nothing"
        if len(record.value or b"") >= LARGE:
            yield "large value"
        names = [name for name, _ in record.headers]
        if len(set(names)) < len(names):
            yield "duplicate headers"
        yield from ("null header" for _, value in record.headers if value is None)
        yield from ("empty header" for _, value in record.headers if value == b"")
        yield from ("non-ASCII header" for name in names if not name.isascii())
        if record.timestamp == -1:
            yield "no timestamp"
        elif last is not None:
            apart = record.timestamp - last
            yield (
                "equal timestamps"
                if not apart
                else "backwards"
                if apart < 0
                else "far apart"
                if apart > YEAR_MS
                else "later"
            )
        last = record.timestamp


def _transaction_features(log: NastyPartition) -> Iterator[str]:
    opened: dict[int, int] = {}
    for n, step in enumerate(log.steps):
        if isinstance(step, Append):
            if step.is_transactional:
                opened.setdefault(step.producer_id, n)
                if len(opened) > 1:
                    yield "interleaved transactions"
            elif opened:
                yield "plain records between transactional ones"
            continue
        since = opened.pop(step.producer_id, None)
        if since is None:
            yield "empty transaction"
        else:
            yield "commit" if step.is_commit else "abort"
            if n - since > 10:
                yield "long transaction"
            if any(since < c <= n for c in log.cleanings):
                yield "transaction across a cleaning"
        if step.epoch:
            yield "epoch bumped"
    if opened:
        yield "open transaction"
        if log.last_stable_offset > log.start:
            yield "stable records before an open transaction"


def _key_features(topic: NastyTopic, log: NastyPartition) -> Iterator[str]:
    if not topic.kind.is_keyed or not log.cleanings:
        return
    cleaned = [s for s in log.steps[: log.cleanings[-1] - 1] if isinstance(s, Append)]
    keys = [record.key for batch in cleaned for record in batch.records]
    if len(set(keys)) < len(keys):
        yield "holes"
    if any(record.value is None for batch in cleaned for record in batch.records):
        yield "tombstones"

"""What an operator has said of a link, and what the link must remember: a compacted topic on the target.

Topic `tolerant-mirror-control`, one partition.  A record's key is the link, its value JSON:

    {"version": 1, "time_ms": 1763775000000, "knew": [13, 1763775000000],
     "paused": ["orders"], "paused_partitions": [["clicks", 3]], "bytes_per_s": null, "is_promoted": false,
     "is_fenced": false, "unfenced": [["clicks", 3]], "is_handed_back": false, "generation": 0,
     "source_cluster_id": "...", "topics": "what LinkTopics.to_json writes", "producer_ids": [4000],
     "adopted": {"orders": {"0": 1200}}, "starts": {"clicks": {"3": 500}},
     "begun": {"orders": [["source's topic id", "target's topic id", [[0, 12], [13, 16]]]]},
     "copied": {"orders": {"0": 1200}}}

Laws:
- A record says everything; fields that we do not know are kept as they are.
- The record that knew most counts (`rank`): `knew` is the offset behind the record that it changes, and of two that change the
  same one the first counts.  So no writer takes back what it did not know, also one that died before it could look; its
  record has until the topic is compacted to be followed by another one, since the cleaner keeps the last one of a key.
- It is read as a whole or not at all.  After one with a field that no mirror writes its link is not started, paused or
  promoted, until a readable one lies after it (repair.py writes it); a copier that runs goes on under what it has read, until its next sync.
- A record without a value takes the link away, for whoever looks from then on: as after the topic was compacted.
- Writers look whether theirs counts, and change what does (update_control): two at once both have their way.
- A `knew` beside another time than `time_ms` was kept by a version that does not know it: that record knew all before it.
- The engine obeys within about a second, and looks before it writes anything that it has just derived from the log.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import LinkPromotedError, OptionError, text_of
from tolerant_client.mirror.state.health import names as names_of
from tolerant_client.mirror.state.own_topic import append_own, create_own_topic, end_of, has_topic, read_own
from tolerant_client.mirror.state.topic_filter import OWN_TOPICS, LinkTopics
from tolerant_client.records.record_batch import Record
from tolerant_client.state_json import (
    document,
    elements,
    flag,
    members,
    named_partition,
    partition_number,
    partition_range,
    require_few,
    shallow,
    text,
    whole,
)
from tolerant_client.stock.stock_names import Future

CONTROL_TOPIC = f"{OWN_TOPICS}control"
HIDDEN = f"we may not read topic {CONTROL_TOPIC} of the target: grant us Describe and Read on it"
UNKNOWN_ORDERS = "whether an operator has paused, limited or promoted the link is unknown"
WHOLE_LINK = ""
NO_LIMIT = 0

_VERSION = 1
_SHOWN = 200  # letters of what others wrote
_HIDDEN_FOR_S = 60.0  # a topic that we may not see is looked for again after that

Positions = Mapping[TopicPartition, int]


class TopicIds(NamedTuple):
    """The ids of a topic on both clusters (KIP-516); "" from brokers before 2.8."""

    source: str
    target: str

    def is_of_source(self, now: TopicIds) -> bool:
        """Whether the source's topic is still the same, as far as that is told."""
        return not (self.source and now.source and self.source != now.source)

    def is_of_target(self, now: TopicIds) -> bool:
        """Whether the target's topic is still the same, as far as that is told."""
        return not (self.target and now.target and self.target != now.target)


@dataclass(frozen=True)
class LinkControl:
    """What holds for a link; the default is that of a link nobody has said anything of.

    `paused` has WHOLE_LINK and topics, `paused_partitions` what is paused of other topics.  `bytes_per_s` is what
    the operator says of the whole link: a rate, NO_LIMIT, or None, and then the rate that its mirror was started with holds.
    `unfenced` are what a failover left for later, where it has fenced the others.
    `is_handed_back`: MirrorMaker 2 copies into the target again.  `generation` counts the lives of a link: each has a
    producer id of its own.  `adopted` are source offsets before which the target was found to have all, whoever wrote it;
    `starts` where empty target logs are to begin, though the source's begin before.  `begun` has the partitions whose target
    logs this link has begun, or has found to be the source's, and which topics that were.  `copied` says up to which offset the
    link had copied them when it last came to rest, or where it began them: an empty log of theirs is believed to be a copy up
    to that offset alone.  `log_starts` are where logs were to begin that were filled up to there: a log that ends no later is
    the link's filler, and may have to be deleted still.  `is_hidden`: we may not read the control, so nothing of it is known; it is in no record.
    """

    paused: frozenset[str] = frozenset()
    bytes_per_s: int | None = None
    is_promoted: bool = False
    is_fenced: bool = False
    generation: int = 0
    source_cluster_id: str | None = None
    topics: str | None = None
    producer_ids: tuple[int, ...] = ()
    adopted: Positions = field(default_factory=dict)
    starts: Positions = field(default_factory=dict)
    others: Mapping[str, Any] = field(default_factory=dict)
    is_handed_back: bool = False
    unfenced: frozenset[TopicPartition] = frozenset()
    begun: Mapping[TopicPartition, TopicIds] = field(default_factory=dict)
    copied: Positions = field(default_factory=dict)
    log_starts: Positions = field(default_factory=dict)
    paused_partitions: frozenset[TopicPartition] = frozenset()
    is_hidden: bool = False

    def pauses(self, partition: TopicPartition) -> bool:
        return WHOLE_LINK in self.paused or partition.topic in self.paused or partition in self.paused_partitions

    @property
    def paused_words(self) -> list[str]:
        """What is paused, in words: a topic may be called as a partition of another one."""
        if WHOLE_LINK in self.paused:
            return ["the whole link"]
        topics = [f"topic {topic}" for topic in sorted(self.paused)]
        return topics + [f"partition {topic}-{index}" for topic, index in sorted(self.paused_partitions)]

    def rate(self, default: int | None) -> int | None:
        """Bytes a second that the link may copy, None without a limit; `default` is what its mirror was started with."""
        return default if self.bytes_per_s is None else self.bytes_per_s or None

    def producer_name(self, link: str) -> str:
        """What init_producer_id takes: a later life of a link is not fenced with the former one."""
        return f"{link}~{self.generation}" if self.generation else link

    def require_not_promoted(self, link: str) -> None:
        """Raises LinkPromotedError for a link that may not write any more."""
        if self.is_handed_back:
            raise LinkPromotedError(
                f"Link {link} was handed back to MirrorMaker 2, and copies nothing any more. To go on behind what MirrorMaker 2"
                " has copied, stop it and run tolerant-kafka take-over"
            )
        given = f"--target TARGET --link {shlex.quote(link)}"
        if found := unfinished(self, given, f"--source SOURCE {given}"):
            raise LinkPromotedError(
                f"Link {link} is being promoted, and nothing is copied into its target any more; where no promotion runs now:"
                f" {found[0]}"
            )
        if self.is_promoted or self.is_fenced:
            raise LinkPromotedError(
                f"Link {link} was promoted: its target belongs to its own producers, and nothing is copied into it any more."
                " To copy back, run tolerant-kafka failback with source and target exchanged"
            )


def encode_control(control: LinkControl, time_ms: int, knew: int = 0) -> bytes:
    """The value of a record; `knew` is the offset behind the record of the link that it changes."""
    known = {
        "version": _VERSION,
        "time_ms": time_ms,
        "knew": [knew, time_ms],
        "paused": sorted(control.paused),
        "paused_partitions": sorted(control.paused_partitions),
        "bytes_per_s": control.bytes_per_s,
        "is_promoted": control.is_promoted,
        "is_fenced": control.is_fenced,
        "unfenced": sorted(control.unfenced),
        "is_handed_back": control.is_handed_back,
        "generation": control.generation,
        "source_cluster_id": control.source_cluster_id,
        "topics": control.topics,
        "producer_ids": list(control.producer_ids),
        "adopted": _nested(control.adopted),
        "starts": _nested(control.starts),
        "begun": _by_ids(control.begun),
        "copied": _nested(control.copied),
        "log_starts": _nested(control.log_starts),
    }
    return json.dumps({**control.others, **known}).encode()


def decode_control(value: bytes) -> LinkControl:
    """What a record says; raises OptionError for one that no mirror of this version has written."""
    try:
        found = document(value)
        if whole(found["version"]) > _VERSION:
            raise OptionError(f"{CONTROL_TOPIC} was written by a newer tolerant-client; install that version here, too")
        rate, cluster_id, topics = (found.get(name) for name in ("bytes_per_s", "source_cluster_id", "topics"))
        names = frozenset(map(text, elements(found.get("paused", []))))
        return LinkControl(
            paused=names,
            bytes_per_s=None if rate is None else whole(rate),
            is_promoted=flag(found.get("is_promoted", False)),
            is_fenced=flag(found.get("is_fenced", False)),
            generation=whole(found.get("generation", 0)),
            source_cluster_id=None if cluster_id is None else text(cluster_id),
            topics=None if topics is None else _topics(text(topics)),
            producer_ids=tuple(map(whole, elements(found.get("producer_ids", [])))),
            adopted=_flat(found.get("adopted", {})),
            starts=_flat(found.get("starts", {})),
            others={name: shallow(each) for name, each in found.items() if name not in _KNOWN},
            is_handed_back=flag(found.get("is_handed_back", False)),
            unfenced=_pairs(found.get("unfenced", [])),
            begun=_begun(found.get("begun", {})),
            copied=_flat(found.get("copied", {})),
            log_starts=_flat(found.get("log_starts", {})),
            # Without the field it is of a version that called a partition by one name, too.
            paused_partitions=_pairs(found["paused_partitions"]) if "paused_partitions" in found else _named(names),
        )
    except OptionError:
        raise
    except (ValueError, KeyError) as error:
        raise OptionError(f"A record of {CONTROL_TOPIC} is none of ours ({error})") from error


def is_newer(value: bytes) -> bool:
    """Whether a record that cannot be read says that a newer version wrote it.  Pure."""
    try:
        return whole(document(value)["version"]) > _VERSION
    except (ValueError, KeyError):
        return False


def _topics(written: str) -> str:
    try:
        LinkTopics.from_json(written)
    except OptionError as error:
        raise ValueError(text_of(error)) from error
    return written


def _named(names: Iterable[str]) -> frozenset[TopicPartition]:
    """The partitions that are called so: "clicks-3"."""
    found = set()
    for topic, _, digits in (name.rpartition("-") for name in names):
        with suppress(ValueError):
            found.add(TopicPartition(topic, named_partition(digits)))
    return frozenset(partition for partition in found if partition.topic)


def _pairs(found: Any) -> frozenset[TopicPartition]:
    pairs = [elements(pair, 2) for pair in elements(found)]
    require_few([range(len(pairs))])
    return frozenset(TopicPartition(text(topic), partition_number(n)) for topic, n in pairs)


def _nested(positions: Positions) -> dict[str, dict[str, int]]:
    nested: dict[str, dict[str, int]] = {}
    for (topic, index), offset in sorted(positions.items()):
        nested.setdefault(topic, {})[str(index)] = offset
    return nested


def _flat(nested: Any) -> Positions:
    by_topic = {text(topic): members(found) for topic, found in members(nested).items()}
    require_few(range(len(found)) for found in by_topic.values())
    return {
        TopicPartition(topic, named_partition(n)): whole(offset)
        for topic, found in by_topic.items()
        for n, offset in found.items()
    }


def _by_ids(begun: Mapping[TopicPartition, TopicIds]) -> dict[str, list[Any]]:
    """Partitions of each topic and pair of ids as half-open runs: a topic has thousands."""
    runs: dict[tuple[str, TopicIds], list[list[int]]] = {}
    for (topic, index), ids in sorted(begun.items()):
        of = runs.setdefault((topic, ids), [])
        if of and of[-1][1] == index:
            of[-1][1] = index + 1
        else:
            of.append([index, index + 1])
    nested: dict[str, list[Any]] = {}
    for (topic, ids), spans in runs.items():
        nested.setdefault(topic, []).append([*ids, spans])
    return nested


def _begun(nested: Any) -> dict[TopicPartition, TopicIds]:
    found: list[tuple[str, TopicIds, range]] = []
    for topic, entries in members(nested).items():
        for source, target, spans in (elements(entry, 3) for entry in elements(entries)):
            ids = TopicIds(text(source), text(target))
            found += [(text(topic), ids, partition_range(*elements(span, 2))) for span in elements(spans)]
    require_few(span for _, _, span in found)
    return {TopicPartition(topic, n): ids for topic, ids, span in found for n in span}


_KNOWN = frozenset(json.loads(encode_control(LinkControl(), 0)))  # fields of a record


# -- what operators change ----------------------------------------------------


def link_options(link: str, target: Cluster, source: Cluster | None = None) -> str:
    """What an operator types behind a command to name a link: "--target b:9092 --link dr", and its source if that is given."""
    words = []
    for option, cluster in (("source", source), ("target", target)):
        if cluster is not None:
            servers = cluster.bootstrap_servers
            words.append(f"--{option} {servers if isinstance(servers, str) else ','.join(servers)}")
            if cluster.manager.config["security_protocol"] != "PLAINTEXT":
                words.append(f"--{option}-properties FILE")
    return " ".join([*words, f"--link {shlex.quote(link)}"])


def unfinished(control: LinkControl, of_target: str, of_both: str) -> list[str]:
    """A promotion that died before everything was fenced; pure.  The options mean the link (link_options)."""
    if not control.is_promoted or control.is_fenced:
        return []
    if control.unfenced:
        what = names_of(sorted(control.unfenced))
        return [
            f"its failover left what had no leader, and a process of it may still write there: {what}; when it has one, or was"
            f" deleted, run again tolerant-kafka failover {of_target}"
        ]
    return [
        "its promotion was begun and not finished, so a process of it may still write to the target: before anybody else writes"
        f" there, run again tolerant-kafka promote {of_both} or, without the source, tolerant-kafka failover {of_target}"
    ]


def paused(control: LinkControl, topics: Iterable[str], partitions: Iterable[TopicPartition] = ()) -> LinkControl:
    """With topics (WHOLE_LINK among them) and partitions paused, too.  Pure."""
    return replace(
        control, paused=control.paused | set(topics), paused_partitions=control.paused_partitions | set(partitions)
    )


def resumed(control: LinkControl, topics: Collection[str], partitions: Iterable[TopicPartition] = ()) -> LinkControl:
    """Without pauses of what is named; a topic ends those of its partitions, too, WHOLE_LINK all.  Pure.

    Raises OptionError for what stays paused because something larger is.
    """
    if WHOLE_LINK in topics:
        return replace(control, paused=frozenset(), paused_partitions=frozenset())
    gone = set(partitions)
    whole = "the whole link" if WHOLE_LINK in control.paused else ""
    larger = {
        f"{p.topic}-{p.partition}": whole or f"topic {p.topic}" for p in gone if whole or p.topic in control.paused
    }
    if larger := {**larger, **(dict.fromkeys(topics, whole) if whole else {})}:
        name, what = min(larger.items())
        raise OptionError(f"{name} cannot be resumed alone: {what} is paused; resume that, and pause the rest again")
    kept = frozenset(p for p in control.paused_partitions if p not in gone and p.topic not in topics)
    return replace(control, paused=control.paused - set(topics), paused_partitions=kept)


# -- the topic ----------------------------------------------------------------


class ControlWatch:
    """The control of one link as a running engine follows it: `value` is what was read last.

    On the event loop of `target`.  A look costs two small requests where nothing is new.
    """

    def __init__(self, target: Cluster, link: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.value = LinkControl()
        self.is_read = False
        self.link = link
        self._target = target
        self._clock = clock
        self.position = 0
        self.newest: Record | None = None  # the record that counts
        self._hidden_until = float("-inf")
        self._reading: Future | None = None
        self._waiting: Future | None = None  # for a look that has not begun yet

    async def refresh(self) -> LinkControl:
        """What holds now: read after this was called; calls at the same time share a look.

        Raises OptionError for a record that is none of ours, and KafkaError.
        """
        if self._waiting is not None:
            await self._waiting
            return self.value
        waiting = self._waiting = Future()
        while self._reading is not None:
            await self._reading  # it began before we were called
        self._waiting = None
        reading = self._reading = Future()
        try:
            await self._read()
        except BaseException as error:
            waiting.failure(error)
            raise
        finally:
            self._reading = None
            reading.success(None)
        waiting.success(None)
        return self.value

    @property
    def is_hidden(self) -> bool:
        """Whether the last look was not allowed: then nothing is known, and `value` says what was seen before."""
        return self._clock() < self._hidden_until

    async def require_not_promoted(self) -> None:
        """Looks, and raises LinkPromotedError for a link that may not write any more."""
        (await self.refresh()).require_not_promoted(self.link)

    async def _read(self) -> None:
        if self.is_hidden:
            return
        try:
            if await has_topic(self._target, CONTROL_TOPIC):  # what it said last still holds
                await self._follow()
        except Errors.TopicAuthorizationFailedError:
            self._hidden_until = self._clock() + _HIDDEN_FOR_S
        self.is_read = True

    async def _follow(self) -> None:
        end = await end_of(self._target, CONTROL_TOPIC)
        if end < self.position:
            self.position, self.newest = 0, None  # made anew
        if end > self.position:
            newest = newest_of(self.link, await _records(self._target, self.position, end), self.newest)
            if newest is not None and newest is not self.newest:
                self.value = self._as_of_our_life(_decoded(newest.value or b"", self.link, self._target))
            self.position, self.newest = end, newest

    def _as_of_our_life(self, control: LinkControl) -> LinkControl:
        """A process that slept through a promotion and the link's next life is of the life that was promoted."""
        is_later = self.is_read and control.generation != self.value.generation
        return (
            replace(control, is_promoted=True, is_fenced=True, generation=self.value.generation)
            if is_later
            else control
        )


def _decoded(value: bytes, link: str, target: Cluster) -> LinkControl:
    """What the record of a link says; raises OptionError with the way out."""
    try:
        return decode_control(value)
    except OptionError as error:
        if is_newer(value):
            raise
        raise OptionError(
            f"{text_of(error)}, under the name of link {link}: take away the right to write there from whoever wrote it, and"
            f" run tolerant-kafka repair {link_options(link, target)}"
        ) from error


async def read_control(target: Cluster, link: str) -> LinkControl:
    """What holds for a link; the default where nothing was ever said, and where we may not look.  Raises OptionError."""
    watch = ControlWatch(target, link)
    control = await watch.refresh()
    return replace(control, is_hidden=True) if watch.is_hidden else control


class Unreadable(NamedTuple):
    """A record that cannot be read, and why.

    `copies_from` is the cluster that it says a link copies from that was not promoted: such a record may be of a mirror, of
    a newer version for one.  None for others; they are of no mirror that copies.
    """

    key: str
    why: str
    copies_from: str | None

    def __str__(self) -> str:
        return f"the record with key {self.key[:_SHOWN]!r} in {CONTROL_TOPIC} cannot be read ({self.why[:_SHOWN]})"


class Controls(NamedTuple):
    """What a control topic says of its links, of `begun` a part, and the newest records of keys that cannot be read."""

    links: Mapping[str, LinkControl]
    unreadable: tuple[Unreadable, ...] = ()


async def read_controls(cluster: Cluster, begun_of: Collection[str] = ()) -> Controls:
    """Of every link whose target this cluster is; where a link's newest record cannot be read, its former one, too.

    Of `begun` no more than the topics `begun_of`: of all links it is much.
    """
    return controls_of(await read_records(cluster), begun_of)


async def read_records(cluster: Cluster) -> list[Record]:
    """All records of the control topic; none where there is no such topic."""
    topic = cluster.topic_of(CONTROL_TOPIC)  # a source calls its topics as the link does
    if not await has_topic(cluster, topic):
        return []
    return await _records(cluster, 0, await end_of(cluster, topic), topic)


def controls_of(records: Iterable[Record], begun_of: Collection[str] = ()) -> Controls:
    """What the records of a control topic say, in their order.  Pure."""
    by_key: dict[str, list[Record]] = {}
    for record in records:
        key = (record.key or b"").decode(errors="backslashreplace")
        if record.value is None:
            by_key.pop(key, None)
        else:
            by_key.setdefault(key, []).append(record)
    links: dict[str, LinkControl] = {}
    unreadable: list[Unreadable] = []
    for key, of_key in by_key.items():
        if readable := [record for record in of_key if why_unreadable(record) is None]:
            control = decode_control(max(readable, key=rank).value or b"")
            links[key] = replace(control, begun={p: ids for p, ids in control.begun.items() if p.topic in begun_of})
        if why := why_unreadable(of_key[-1]):
            unreadable.append(Unreadable(key, why, _copies_from(of_key[-1].value or b"")))
    return Controls(links, tuple(unreadable))


def why_unreadable(record: Record) -> str | None:
    """Why a record is none of ours, or of a newer version; None where it can be read.  Pure."""
    try:
        decode_control(record.value or b"")
    except OptionError as error:
        return text_of(error)
    return None


def _copies_from(value: bytes) -> str | None:
    try:
        found = document(value)
        is_over = found.get("is_promoted") is True or found.get("is_handed_back") is True
        return None if is_over else text(found["source_cluster_id"])
    except (ValueError, KeyError):
        return None


async def update_control(target: Cluster, link: str, change: Callable[[LinkControl], LinkControl]) -> LinkControl:
    """Makes a change to what holds, and returns what holds then; nothing is written where that is the same.

    Once it returns all in-sync replicas have it.  Raises OptionError where the topic cannot be made, its newest record
    is none of ours, or what is wanted could not be read again, and KafkaError.
    """
    watch = ControlWatch(target, link)
    current = await watch.refresh()
    if watch.is_hidden:  # what we wrote would take the place of what we may not see
        raise Errors.TopicAuthorizationFailedError(f"{CONTROL_TOPIC} of the {target.name} may not be read")
    wanted = change(current)
    if wanted == current:
        return current
    if not await has_topic(target, CONTROL_TOPIC):
        # A failover must not wait for the second of two brokers.
        await create_own_topic(target, CONTROL_TOPIC, {"cleanup.policy": "compact"}, insync_of_two=1)
    position, newest = watch.position, watch.newest
    while True:
        knew = 0 if newest is None else newest.offset + 1
        value = _readable(link, wanted, knew)  # written twice, if an answer is lost, it says the same
        offset = await target.insist(
            "writing the link's control", lambda: append_own(target, CONTROL_TOPIC, link, value)
        )
        newest = newest_of(link, await _records(target, position, offset + 1), newest)
        if newest is None or newest.value == value:
            return wanted
        # Whoever wrote between our look and our record goes before us: our change is made to that.
        wanted, position = change(_decoded(newest.value or b"", link, target)), offset + 1


def _readable(link: str, wanted: LinkControl, knew: int) -> bytes:
    """The value of a record that is written now.  One that could not be read again would stop every mirror of the target."""
    value = encode_control(wanted, int(time.time() * 1000), knew)
    if why := why_unreadable(Record(0, 0, link.encode(), value)):
        raise OptionError(
            f"Nothing is written down of link {link}, since {CONTROL_TOPIC} could not be read after it: what it would say has a"
            f" name that is not UTF-8, a number above 2^63-1, or more than a cluster has ({why.partition(';')[0]})"
        )
    return value


def newest_of(link: str, records: Iterable[Record], newest: Record | None = None) -> Record | None:
    """The record of a link that counts: one of these, or the one that counted before them.  Pure.

    What cannot be read counts only while nothing readable lies after it: any record that can be read clears it.  Before one
    without a value nothing counts.
    """
    of_link = [] if newest is None else [newest]
    for record in records:
        if record.key == link.encode():
            of_link = [] if record.value is None else [*of_link, record]
    readable = [record for record in of_link if why_unreadable(record) is None]
    if of_link and (not readable or readable[-1] is not of_link[-1]):
        return of_link[-1]
    return max(readable, key=rank, default=None)


def rank(record: Record) -> tuple[int, int]:
    """The larger one counts, of records with the same key.  Pure."""
    try:
        said = json.loads(record.value or b"")
        knew, time_ms = said["knew"]
        is_said = type(knew) is int and 0 <= knew <= record.offset and time_ms == said["time_ms"]
    except (ValueError, KeyError, TypeError, RecursionError):
        is_said = False
    return (knew if is_said else record.offset), -record.offset


async def _records(cluster: Cluster, start: int, end: int, topic: str = CONTROL_TOPIC) -> list[Record]:
    return await read_own(cluster, topic, start, end, "the controls of links")

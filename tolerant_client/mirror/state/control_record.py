"""Records of the topic `tolerant-mirror-control`: how they say what holds for a link, and which of a link's counts; pure.

A record's key is the link, its value JSON:

    {"version": 1, "time_ms": 1763775000000, "knew": [13, 1763775000000],
     "paused": ["orders"], "paused_partitions": [["clicks", 3]], "bytes_per_s": null, "is_promoted": false,
     "is_fenced": false, "unfenced": [["clicks", 3]], "is_handed_back": false, "generation": 0,
     "source_cluster_id": "...", "topics": "what LinkTopics.to_json writes", "producer_ids": [4000],
     "adopted": {"orders": {"0": 1200}}, "starts": {"clicks": {"3": 500}},
     "begun": {"orders": [["source's topic id", "target's topic id", [[0, 12], [13, 16]]]]},
     "copied": {"orders": {"0": 1200}}}

Laws:
- A record says everything; fields that we do not know are kept as they are.
- The record that knew most counts (`rank`): `knew` is the offset after the record that it changes, and of two that change the
  same one the first counts.  So no writer takes back what it did not know, also one that died before it could look; its
  record has until the topic is compacted to be followed by another one, since the cleaner keeps the last one of a key.
- It is read as a whole or not at all.  After one with a field that no mirror writes its link is not started, paused or
  promoted, until a readable one lies after it (repair.py writes it); a copier that runs goes on under what it has read, until its next sync.
- A record without a value takes the link away, for whoever looks from then on: as after the topic was compacted.
- A `knew` beside another time than `time_ms` was kept by a version that does not know it: that record knew all before it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from kafka.structs import TopicPartition

from tolerant_client.errors import OptionError, text_of
from tolerant_client.mirror.state.link_control import LinkControl, Positions, TopicIds
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

CONTROL_TOPIC = f"{OWN_TOPICS}control"

_VERSION = 1
_SHOWN = 200  # letters of what others wrote


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


# -- which records count -------------------------------------------------------


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

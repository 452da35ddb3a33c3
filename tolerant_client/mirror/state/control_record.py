"""Records of the topic `tolerant-mirror-control`: their format, and which of a link's records counts; pure.

A record's key is the link, its value JSON:

    {"version": 1, "time_ms": 1763775000000, "knew": [13, 1763775000000],
     "paused": ["orders"], "paused_partitions": [["clicks", 3]], "bytes_per_s": null, "is_promoted": false,
     "is_fenced": false, "unfenced": [["clicks", 3]], "is_handed_back": false, "generation": 0,
     "source_cluster_id": "...", "topics": "what LinkTopics.to_json writes", "producer_ids": [4000],
     "adopted": {"orders": {"0": 1200}}, "starts": {"clicks": {"3": 500}}, "start_epochs": {"clicks": {"3": 7}},
     "starts_of": {"clicks": [["source's topic id", "", [[3, 4]]]]},
     "begun": {"orders": [["source's topic id", "target's topic id", [[0, 12], [13, 16]]]]},
     "copied": {"orders": {"0": 1200}}, "copied_until": {"orders": {"0": 1200}},
     "empty_until": {"orders": {"0": 1201}}, "map_id": null, "promotion": null, "maybe_begun": [["old", 0]],
     "mapped": {"clicks": [["source's topic id", "target's topic id", [[0, 4]]]]}, "primary_since":
     {"orders": [1763775000000, "target's topic id"]}, "unsaid_since_ms": null, "target_cluster_id": "...",
     "known_moves": {"orders": 1763774000000},
     "adopted_ids": {"orders": [["source's topic id", "target's topic id", [[0, 1]]]]}}

Laws:
- A record is complete in itself; fields that we do not know are kept as they are.
- The record that knew most counts (`rank`): `knew` is the offset after the record that it changes, and of two that change the
  same record the first counts.  So no writer undoes a change that it did not know, not even one that died before it could check.
  But the cleaner keeps the last record of a key: another one must follow that writer's record before the topic is compacted.
- A record is read as a whole or not at all.  After one with a field that no mirror writes, its link is not started, paused or
  promoted until a readable record follows (repair.py writes it); a running copier obeys what it has read, until its next sync.
- A record without a value deletes the link for every later reader, as if the topic had been compacted.
- A key that no link can have as its name is no link's: whatever its record says, it is skipped.
- If the time in `knew` is not `time_ms`, a version that does not know the field has kept it: that record knew all before it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from kafka.structs import TopicPartition

from tolerant_client.errors import OptionError, text_of
from tolerant_client.mirror.state.link_control import LinkControl, Positions, TopicIds
from tolerant_client.mirror.state.link_name import is_link_name
from tolerant_client.mirror.state.topic_filter import OWN_TOPICS, LinkTopics, TopicFilter
from tolerant_client.records.record_batch import Record
from tolerant_client.state_json import (
    MOST_INDEX,
    PartitionNumber,
    Whole,
    converted,
    decoded,
    named_partition,
    require_few,
    shallow,
)

CONTROL_TOPIC = f"{OWN_TOPICS}control"

_VERSION = 1
_Until = Annotated[int, msgspec.Meta(ge=0, le=MOST_INDEX + 1)]
_SHOWN = 200  # characters of others' text that errors show


class _Version(msgspec.Struct):
    version: Whole


class _Knew(msgspec.Struct):
    knew: tuple[Whole, Whole]
    time_ms: Whole


class _SourceCluster(msgspec.Struct):
    source_cluster_id: str
    is_promoted: Any = False
    is_handed_back: Any = False


def encode_control(control: LinkControl, time_ms: int, knew: int = 0) -> bytes:
    """The value of a record; `knew` is the offset after the link's record that it changes.

    Raises ValueError for a text that cannot be encoded.
    """
    names = (field.name for field in fields(control) if field.name not in _IN_NO_RECORD)
    said = {_NAMES.get(name, name): getattr(control, name) for name in names}
    nested = {name: write(said[name]) for name, (_, write) in _NESTED.items()}
    head = {"version": _VERSION, "time_ms": time_ms, "knew": [knew, time_ms]}
    return msgspec.json.encode({**control.others, **said, **nested, **head}, order="deterministic")


def decode_control(value: bytes) -> LinkControl:
    """The control in a record; raises OptionError for one that no mirror of this version has written."""
    if is_newer(value):
        raise OptionError(f"{CONTROL_TOPIC} was written by a newer tolerant-client; install that version here, too")
    try:
        found = decoded(value, dict[str, Any])
        converted(found, _Version)
        nested = {name: read(found[name]) for name, (read, _) in _NESTED.items() if name in found}
        plain = {_FIELDS.get(name, name): each for name, each in found.items() if name in _KNOWN and name not in nested}
        control = converted(plain, LinkControl)
        if control.topics is not None:
            LinkTopics.from_json(control.topics)
        if "paused_partitions" not in nested:  # an earlier version also paused partitions by name in `paused`
            nested["paused_partitions"] = _named(control.paused)
        begun = nested.get("begun", {})  # an earlier version did not write starts_of
        starts_of = {p: TopicIds(begun[p].source) for p in nested.get("starts", ()) if p in begun and begun[p].source}
        nested["starts_of"] = {**starts_of, **nested.get("starts_of", {})}
        # An earlier failover without a control wrote where copies end alone.
        if control.is_fenced and control.topics is None:
            fenced = sorted({re.escape(p.topic) for p in nested.get("copied_until", {})})
            control = replace(control, topics=LinkTopics(TopicFilter(tuple(fenced))).to_json() if fenced else None)
        return replace(control, **nested, others={n: shallow(each) for n, each in found.items() if n not in _KNOWN})
    except ValueError as error:
        raise OptionError(f"A record of {CONTROL_TOPIC} is not ours ({text_of(error)})") from error


def is_newer(value: bytes) -> bool:
    """Whether an unreadable record says that a newer version wrote it.  Pure."""
    try:
        return decoded(value, _Version).version > _VERSION
    except ValueError:
        return False


def _named(names: Iterable[str]) -> frozenset[TopicPartition]:
    """The partitions that these names mean, such as "clicks-3"."""
    found = set()
    for topic, _, digits in (name.rpartition("-") for name in names):
        with suppress(ValueError):
            found.add(TopicPartition(topic, named_partition(digits)))
    return frozenset(partition for partition in found if partition.topic)


def _pairs(found: Any) -> frozenset[TopicPartition]:
    pairs = converted(found, list[tuple[str, PartitionNumber]])
    require_few([range(len(pairs))])
    return frozenset(TopicPartition(*pair) for pair in pairs)


def _nested(positions: Positions) -> dict[str, dict[str, int]]:
    nested: dict[str, dict[str, int]] = {}
    for (topic, index), offset in positions.items():
        nested.setdefault(topic, {})[str(index)] = offset
    return nested


def _flat(nested: Any) -> Positions:
    by_topic = converted(nested, dict[str, dict[PartitionNumber, Whole]], str_keys=True)
    require_few(range(len(found)) for found in by_topic.values())
    return {
        TopicPartition(topic, index): offset for topic, found in by_topic.items() for index, offset in found.items()
    }


def _by_ids(begun: Mapping[TopicPartition, TopicIds]) -> dict[str, list[Any]]:
    """The partitions of each topic and pair of ids as half-open runs, since a topic may have thousands."""
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
    by_topic = converted(nested, dict[str, list[tuple[str, str, list[tuple[PartitionNumber, _Until]]]]])
    found = [
        (topic, TopicIds(source, target), range(*span))
        for topic, entries in by_topic.items()
        for source, target, spans in entries
        for span in spans
    ]
    require_few(span for _, _, span in found)
    return {TopicPartition(topic, n): ids for topic, ids, span in found for n in span}


# How to read and write the fields whose form in a record is not that of LinkControl.
_NESTED: Final[Mapping[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]]] = {
    "paused_partitions": (_pairs, list),
    "unfenced": (_pairs, list),
    "maybe_begun": (_pairs, list),
    **dict.fromkeys(("begun", "starts_of", "mapped", "adopted_ids"), (_begun, _by_ids)),
    **dict.fromkeys(
        ("adopted", "starts", "start_epochs", "copied", "log_starts", "copied_until", "empty_until"), (_flat, _nested)
    ),
}
_IN_NO_RECORD: Final = ("others", "is_hidden")
_NAMES: Final = {"is_promotion_begun": "is_promoted", "written_ms": "time_ms"}  # in a record, as version 0.1 calls them
_FIELDS: Final = {name: attribute for attribute, name in _NAMES.items()}
_KNOWN: Final = frozenset(decoded(encode_control(LinkControl(), 0), dict[str, Any]))  # fields of a record


# -- which records count -------------------------------------------------------


def newest_of(link: str, records: Iterable[Record], newest: Record | None = None) -> Record | None:
    """The record of a link that counts: one of these, or `newest`, which counted before them.  Pure.

    An unreadable record counts only until a readable one follows it.  Records before one without a value do not count.
    """
    of_link = [] if newest is None else [newest]
    for record in records:
        if record.key == link.encode():
            of_link = [] if record.value is None else [*of_link, record]
    return of_link[-1] if of_link and why_unreadable(of_link[-1]) else counting_of(of_link)


def counting_of(of_link: Collection[Record]) -> Record | None:
    """The readable record of a link with the largest rank, also before one that cannot be read.  Pure.

    A copier writes thousands before the topic is compacted, and a whole one takes ms to decode: only the first candidates are.
    """
    return next((record for record in sorted(of_link, key=rank, reverse=True) if not why_unreadable(record)), None)


def rank(record: Record) -> tuple[int, int]:
    """Of records with the same key, the one with the larger rank counts.  Pure."""
    try:
        found = decoded(record.value, _Knew)
        knew, time_ms = found.knew
        is_said = knew <= record.offset and time_ms == found.time_ms
    except ValueError:
        is_said, knew = False, 0
    return (knew if is_said else record.offset), -record.offset


class Unreadable(NamedTuple):
    """A record that cannot be read, and why.

    `copies_from` is the source cluster that it names, unless it says that its link is over: a mirror may have written such a
    record, for example one of a newer version.  None means that no mirror which copies wrote it.
    """

    key: str
    why: str
    copies_from: str | None

    def __str__(self) -> str:
        return f"the record with key {self.key[:_SHOWN]!r} in {CONTROL_TOPIC} cannot be read ({self.why[:_SHOWN]})"


class Controls(NamedTuple):
    """The controls of a topic's links, with a part of `begun`; and unreadable records that are the newest of their keys."""

    links: Mapping[str, LinkControl]
    unreadable: tuple[Unreadable, ...] = ()


def by_link(records: Iterable[Record]) -> dict[str, list[Record]]:
    """The records of each link since it was last deleted, of those of a control topic in the order of the log.  Pure."""
    found: dict[str, list[Record]] = {}
    for record in records:
        key = (record.key or b"").decode(errors="backslashreplace")
        if not is_link_name(key):
            continue
        if record.value is None:
            found.pop(key, None)
        else:
            found.setdefault(key, []).append(record)
    return found


def telling(records: Iterable[Record]) -> list[Record]:
    """Of the records of a control topic, those that controls_of needs, also once others follow: two of a link.  Pure."""
    found: list[Record] = []
    for of_link in by_link(records).values():
        counting = counting_of(of_link)
        found += [record for record in of_link if record is counting or record is of_link[-1]]
    return found


def controls_of(records: Iterable[Record], begun_of: Collection[str] | None = ()) -> Controls:
    """The controls in the records of a control topic, in the order of the log.  Pure."""
    links: dict[str, LinkControl] = {}
    unreadable: list[Unreadable] = []
    for key, of_key in by_link(records).items():
        if (counting := counting_of(of_key)) is not None:
            control = decode_control(counting.value or b"")
            begun = {p: ids for p, ids in control.begun.items() if begun_of is None or p.topic in begun_of}
            links[key] = replace(control, begun=begun)
        if why := why_unreadable(of_key[-1]):
            unreadable.append(Unreadable(key, why, _copies_from(of_key[-1].value or b"")))
    return Controls(links, tuple(unreadable))


def why_unreadable(record: Record) -> str | None:
    """Why a record cannot be read: it is not ours, or of a newer version; None if it can.  Pure."""
    try:
        decode_control(record.value or b"")
    except OptionError as error:
        return text_of(error)
    return None


def _copies_from(value: bytes) -> str | None:
    try:
        found = decoded(value, _SourceCluster)
        is_over = found.is_promoted is True or found.is_handed_back is True
        return None if is_over else found.source_cluster_id
    except ValueError:
        return None

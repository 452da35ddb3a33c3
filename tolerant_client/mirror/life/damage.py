"""Finds copies that a target has lost, or never had, without a source to compare with: a failover reports them.

Laws:
- The control says what the link had on the target: which logs, of topics with which ids, how far it had copied them, and where
  they were to begin.  We compare that with what is there now, and with the producers of the last batches.
- Records that others wrote last are no copy, unless the link had found them to be one (`copied`, `adopted`): nobody can compare
  them any more.
- Where the link's own part ends with the marker of its fence, it was promoted before, and its control lost that: the copy ends before
  the marker, which stands at an offset where the source may have a record.  However much others wrote after it, it is searched
  for in a log that begins with the link's records: it is never the target's own.
- A log that does not begin at offset 0 may have begun with the link's records: unless the control says what the link has begun, it
  is unknown whether it had a copy.
- Data shows who wrote last, and so do the markers of the link's own gap transactions, however many: the link fills gaps only
  after records that it found to be a copy.  If markers of other transactions hide the last writer, it is reported as unknown.
- A damaged or unknown partition counts as copied only up to where the link's own part ends; with translated offsets nothing is left
  in a topic that was created again, and how much of a log that has become shorter is unknown.
- Filler before a log's start is deleted after the fence, and only if the topic is the one that the link began and the headers of
  all batches to delete have the link's producer ids (log_start.py, law D).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.topics import delete_records
from tolerant_client.cluster.cluster import EARLIEST, Cluster
from tolerant_client.errors import text_of
from tolerant_client.mirror.engine.identical.difference import is_all_filler
from tolerant_client.mirror.engine.identical.log_start import others_before
from tolerant_client.mirror.engine.identical.logs import Logs
from tolerant_client.mirror.engine.identical.open_gaps import ended_gaps
from tolerant_client.mirror.engine.identical.other_writers import last_of_others
from tolerant_client.mirror.engine.identical.places import MOST_STEPS_BACK, ends_of_link, step_back
from tolerant_client.mirror.engine.translated.foresight import contradicted
from tolerant_client.mirror.life.fence import before_markers
from tolerant_client.mirror.life.lens import PartitionLag
from tolerant_client.mirror.life.promotion_view import PromotedLink
from tolerant_client.mirror.logs.reading import read_headers, read_slices
from tolerant_client.mirror.state.link_control import LinkControl, TopicIds
from tolerant_client.mirror.state.link_topics import is_heartbeats
from tolerant_client.mirror.state.offset_map import is_another
from tolerant_client.mirror.state.topics import read_ids, topic_facts
from tolerant_client.records.record_batch import BatchHeader


class SeenLog(NamedTuple):
    """A log of the target without the records of a fence; `foreign` is the producer id of a stranger that wrote last.

    The link's own part ends at `own_until`, with its fence if others have written after a fence.  `is_filler`: the last record is
    filler that can be deleted.  `hidden_by` is the producer id of the transactions whose markers hide who wrote last.
    """

    start: int
    end: int
    own_until: int
    foreign: int | None = None
    is_filler: bool = False
    hidden_by: int | None = None
    is_fenced: bool = False


class Damage(NamedTuple):
    """What is wrong with a partition, "" if nothing was ever copied; source offsets before `copied_until` (None: unknown) are on the
    target.

    The log may begin with nothing but filler up to `filler_until`.
    """

    text: str
    copied_until: int | None
    filler_until: int | None = None


def damage_of(link: str, control: LinkControl, partition: TopicPartition, now: TopicIds, log: SeenLog) -> Damage | None:
    """What a partition with identical offsets has lost, or never had; `now` are its topic's present ids.  Pure."""
    name = f"{partition.topic}-{partition.partition}"
    begun, copied = control.begun.get(partition), control.copied.get(partition)
    if (anew := _created_again(link, control, partition, now)) is not None:
        return anew
    start = control.log_starts.get(partition, 0)
    if 0 < log.end < start or log.end == start > log.start and log.is_filler:
        text = f"nothing of {name} was copied: its log was to begin at offset {start}, and ends at {log.end}"
        return Damage(text, 0, log.end)
    if copied is not None and log.end < copied:
        text = f"the target's log of {name} ends at offset {log.end}, and link {link} had copied it up to {copied}"
        return Damage(f"{text}: it has lost records (unclean election)", min(log.own_until, log.end))
    if log.is_fenced:
        text = f"link {link} was promoted before with {name}: its copy ends with the link's fence at offset {log.own_until}"
        return Damage(f"{text}, and others have written to the target after that", log.own_until)
    # A control without `begun` does not exclude that the hidden writer is the link.
    is_others = log.foreign is not None or log.hidden_by is not None and bool(control.begun)
    if is_others and begun is None and copied is None and not log.own_until:
        if control.begun or not log.start:
            return Damage("", 0)  # the target's own topic, which the link's topics match
        text = f"how far link {link} had copied {name} is unknown: its log on the target begins at offset {log.start} with what others"
        return Damage(f"{text} wrote, and the control says nothing of it (any more); it counts as not copied", 0)
    if log.foreign is not None:
        text = f"others have written to {name} on the target from offset {log.own_until} on (producer id {log.foreign})"
        return Damage(f"{text}: nothing shows that this is the source's", log.own_until)
    if log.hidden_by is not None:
        text = (
            f"who wrote last to {name} on the target is unknown: before offset {log.end} are more transaction markers"
        )
        text = f"{text} (producer id {log.hidden_by}) than we read, and no coordinator says that they are the link's"
        return Damage(text, log.own_until)
    return None


def _created_again(link: str, control: LinkControl, partition: TopicPartition, now: TopicIds) -> Damage | None:
    if not control.was_created_again(partition, now):
        return None
    text = f"topic {partition.topic} was deleted and created again on the target: nothing is left there of what link {link}"
    had = "had copied" if partition in control.begun else "was to continue"
    known = control.copied.get(partition, control.adopted.get(partition))
    return Damage(f"{text} {had} of {partition.topic}-{partition.partition}{_up_to(known)}", 0)


def _up_to(copied: int | None) -> str:
    return f", up to offset {copied}" if copied else ""


async def find_damage(
    of: PromotedLink, control: LinkControl, there: Iterable[TopicPartition], copied: Mapping[TopicPartition, int]
) -> dict[TopicPartition, Damage]:
    """The damaged ones of the link's partitions; those that are `there` have logs that end at `copied` before the fence.

    With translated offsets: those whose map is no longer true.
    """
    damaged = _missing_partitions(of, control, there)
    damaged |= {p: Damage(text, control.adopted.get(p, 0)) for p, text in of.unlike.items() if p in copied}
    if of.is_translated:
        found = await contradicted(None, of.target, of.name, control, list(copied))
        ids = await read_ids(None, of.target, {p.topic for p in found})
        anew = {
            p
            for p, row in of.mapped.copies.items()
            if p in found and is_another(row.ids[1], ids.get(p.topic, TopicIds()).target)
        }
        damaged |= {p: Damage(text_of(error), 0 if p in anew else None) for p, error in found.items()}
        return dict(sorted(damaged.items()))
    led = {p: end for p, end in copied.items() if p not in damaged and not is_heartbeats(of.topics, p.topic)}
    ids = await read_ids(None, of.target, {p.topic for p in led})
    damaged |= _all_created_again(of.name, control, led, ids)
    if control.producer_ids:
        logs = await _seen_logs(of.target, of.name, control, led, ids)
        lost = {p: damage_of(of.name, control, p, ids.get(p.topic, TopicIds()), log) for p, log in logs.items()}
        damaged |= {p: damage for p, damage in lost.items() if damage is not None}
    return dict(sorted(damaged.items()))


async def created_again(
    of: PromotedLink, control: LinkControl, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, Damage]:
    """The damage of those of these partitions whose topics are other ones now than those that the link had."""
    ids = await read_ids(None, of.target, {p.topic for p in partitions}) if partitions else {}
    return _all_created_again(of.name, control, partitions, ids)


def _all_created_again(
    link: str, control: LinkControl, partitions: Iterable[TopicPartition], ids: Mapping[str, TopicIds]
) -> dict[TopicPartition, Damage]:
    """As created_again, with the ids that the topics have now.  Pure."""
    found = {p: _created_again(link, control, p, ids.get(p.topic, TopicIds())) for p in partitions}
    return {p: damage for p, damage in found.items() if damage is not None}


def _missing_partitions(
    of: PromotedLink, control: LinkControl, there: Iterable[TopicPartition]
) -> dict[TopicPartition, Damage]:
    """The copied partitions that the target lacks of topics that it has.  Pure."""
    known, present = _had(of, control), set(there)
    topics = {p.topic for p in present}
    return {
        p: Damage(f"{p.topic}-{p.partition} {_missing(of.name, p.topic, control)}{_up_to(known[p])}", 0)
        for p in known.keys() - present
        if p.topic in topics
    }


def _had(of: PromotedLink, control: LinkControl) -> dict[TopicPartition, int | None]:
    """The partitions that the link has copied to the target, and up to where, as far as that is known.  Pure."""
    said: dict[TopicPartition, int | None] = dict.fromkeys(control.begun)
    said |= {**({} if of.is_translated else control.adopted), **control.copied}
    known = {p: at for p, at in said.items() if of.topics.writes(p.topic)}
    return known | {p: row.position for p, row in of.mapped.copies.items() if row.is_kept}


def _missing(link: str, topic: str, control: LinkControl) -> str:
    """Pure."""
    is_adopted = any(p.topic == topic for p in control.adopted) and not any(p.topic == topic for p in control.begun)
    return f"is not on the target any more, and link {link} {'was to continue' if is_adopted else 'has copied'} it"


def unchecked(of: PromotedLink, control: LinkControl) -> tuple[str, ...]:
    """A sentence that nothing could be, or was to be, checked, if the control has no producer of a copy with identical offsets.  Pure."""
    if of.is_translated or control.producer_ids:
        return ()
    if not control.tells_no_start:
        return (
            f"no mirror of link {of.name} has started since failback or take-over prepared it, so it has copied nothing to the target",
        )
    return (
        f"whether the target has all that link {of.name} had copied could not be checked: the control on the target says nothing"
        " (any more) of what it copied; if it had other topics than those above, they are neither fenced nor named",
    )


def missing_topics(of: PromotedLink, control: LinkControl, there: Iterable[TopicPartition]) -> list[str]:
    """A sentence for each topic that the link has copied and the target does not have.  Pure."""
    missing = sorted({p.topic for p in _had(of, control)} - {p.topic for p in there})
    return [
        f"topic {name} {_missing(of.name, name, control)} (no loss if it was deleted on the source, too)"
        for name in missing
    ]


def as_damaged(ends: Iterable[PartitionLag], damaged: Mapping[TopicPartition, Damage]) -> list[PartitionLag]:
    """With the position where the copy ends, for each damaged partition; None where that is unknown.  Pure."""

    def left(e: PartitionLag) -> int | None:
        until = damaged[e.partition].copied_until
        return None if until is None else min(e.position or 0, until)

    return [replace(e, position=left(e)) if e.partition in damaged else e for e in ends]


async def _seen_logs(
    target: Cluster, link: str, control: LinkControl, ends: Mapping[TopicPartition, int], ids: Mapping[str, TopicIds]
) -> dict[TopicPartition, SeenLog]:
    own = frozenset(control.producer_ids)
    starts = await target.list_offsets(dict.fromkeys(ends, EARLIEST))
    adopted = {p: offset for p, offset in control.adopted.items() if offset <= ends.get(p, 0)}
    logs = {p: Logs(0, 0, starts[p], end, adopted.get(p, 0)) for p, end in ends.items()}
    last = await read_headers(target, {p: log.target_end - 1 for p, log in logs.items() if log.is_written})
    last = {p: header for p, header in last.items() if header.next_offset == ends[p]}
    known = {p: end for p, end in control.copied.items() if control.has_begun(p, ids)}
    others = await last_of_others(target, logs, last, own, known)
    hidden = {p: header for p, header in others.items() if header.is_control}
    gaps = await ended_gaps(target, link, hidden)
    others = {p: header for p, header in others.items() if not gaps.get(p)}
    least = {p: log.written_from for p, log in logs.items()}
    ours = await step_back(target, others, least, lambda header: header.producer_id not in own, MOST_STEPS_BACK)
    until = {p: _own_until(h, own, min(known.get(p, 0), ends[p]), logs[p].adopted) for p, h in ours.items()}
    by_link = {p: until[p] for p, header in ours.items() if header.producer_id in own}
    unreached = {p: (least[p], h.base_offset) for p, h in ours.items() if p not in by_link and h.base_offset > least[p]}
    by_link |= {p: max(end, until[p]) for p, end in (await ends_of_link(target, unreached, own)).items()}
    until |= by_link
    unfenced = await before_markers(target, by_link, own, adopted)
    begin = {p: end for p, end in ends.items() if p in last and end <= control.log_starts.get(p, 0)}
    ends_with = await read_slices(target, {p: (end - 1, end) for p, end in begin.items()}, is_committed=False)
    facts = await topic_facts(target, {p.topic for p in begin})
    return {
        p: SeenLog(
            log.target_start,
            log.target_end,
            unfenced.get(p, until.get(p, log.target_end)),
            others[p].producer_id if p in others and p not in hidden else None,
            p in begin
            and is_all_filler(ends_with.get(p))
            and (fact := facts.get(p.topic)) is not None
            and fact.can_delete_records,
            others[p].producer_id if p in others and p in hidden else None,
            p in unfenced and unfenced[p] < until[p],
        )
        for p, log in logs.items()
    }


def _own_until(header: BatchHeader, own: Collection[int], copied: int, adopted: int) -> int:
    return header.next_offset if header.producer_id in own else max(copied, adopted)


async def delete_filler(
    target: Cluster, control: LinkControl, damaged: Mapping[TopicPartition, Damage]
) -> dict[TopicPartition, Damage]:
    """Deletes filler before a log's start, once the link is fenced.  Returns the damage with what was done, or how to do it."""
    told = dict(damaged)
    for partition, damage in damaged.items():
        if (until := damage.filler_until) is None:
            continue
        try:
            why = await _delete(target, control, partition, until)
        except Errors.KafkaError as error:
            why = text_of(error)
        if why is None:
            text = f"its filler was deleted, and the log now begins at offset {until}"
        else:
            text = f"its records are still there ({why}); if nobody needs them: {_command(target, partition, until)}"
        told[partition] = damage._replace(text=f"{damage.text}; {text}")
    return told


async def _delete(target: Cluster, control: LinkControl, partition: TopicPartition, until: int) -> str | None:
    """Deletes the records before an offset if all are the link's filler; else returns why not."""
    begun = control.begun.get(partition)
    if (refusal := await others_before(target, partition, until, until, set(control.producer_ids))) is not None:
        return text_of(refusal)
    now = (await read_ids(None, target, {partition.topic})).get(partition.topic, TopicIds())
    if begun is None or not begun.target or begun.target != now.target:
        return "nothing shows that this is the topic that the link has begun"
    code = await delete_records(target, partition, until)
    return None if code == 0 else Errors.for_code(code).__name__


def _command(target: Cluster, partition: TopicPartition, until: int) -> str:
    servers = target.bootstrap_servers
    spec = {"partitions": [{**partition._asdict(), "offset": until}], "version": 1}
    where = servers if isinstance(servers, str) else ",".join(servers)
    return f"kafka-delete-records.sh --bootstrap-server {where} --offset-json-file FILE, with FILE: {json.dumps(spec)}"

"""Whether the target of a link has a copy of the source: finds what its mirror would stop at before the mirror does."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import Untold
from tolerant_client.cluster.admin.transactions import known_producer_id
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import TargetDivergedError, TolerantClientError, text_of
from tolerant_client.mirror.batches.losses import Loss
from tolerant_client.mirror.engine.identical.difference import EmptiedLogError, OpenTransaction
from tolerant_client.mirror.engine.identical.resume_point import Found, read_append_states
from tolerant_client.mirror.engine.translated.foresight import Foreseen, foresee, stopped
from tolerant_client.mirror.life.mirrors import copied_now, within_bound
from tolerant_client.mirror.logs.reading import require_readable
from tolerant_client.mirror.state.ledger import Ledger
from tolerant_client.mirror.state.link_control import LinkControl

PAUSED_AND_BLOCKED = "paused, and blocked once it is resumed"
_EMPTIED = (
    "its log on the target is empty, and how far the running mirror has copied it is not recorded yet: the mirror does so within a"
    " minute after the last record"
)
_UNSETTLED = (
    "the running mirror resumes after them, pauses the partition or reports it as blocked, as its --on-loss says"
)


class Comparison(NamedTuple):
    """Partitions whose logs differ, and how; those that were `unread` this time; and why others were `refused`.

    A loss that is in the ledger is no difference.  `opened` says which open transaction the comparison of others waits for, `emptied`
    are empty logs that a running mirror continues (copied_now), `unsettled` losses that it has not acted upon yet, by its --on-loss.
    Of those that differ, `lost` are the ones of whose copies with translated offsets the target has lost records, `counted` those
    of which the map still says how much is copied (is_counted).
    """

    differing: Mapping[TopicPartition, str]
    unread: tuple[TopicPartition, ...] = ()
    refused: Mapping[TopicPartition, str] = MappingProxyType({})
    opened: Mapping[TopicPartition, str] = MappingProxyType({})
    emptied: Mapping[TopicPartition, str] = MappingProxyType({})
    unsettled: Mapping[TopicPartition, str] = MappingProxyType({})
    lost: frozenset[TopicPartition] = frozenset()
    counted: frozenset[TopicPartition] = frozenset()

    @property
    def unlike(self) -> Collection[TopicPartition]:
        """Those that differ so that how much of them is copied is unknown, also where the mirror may still settle that."""
        return (self.differing.keys() | self.unsettled.keys()) - self.counted

    @property
    def unproved(self) -> Collection[TopicPartition]:
        """Those that are `unlike`, or were not compared."""
        return {*self.unlike, *self.unread, *self.refused, *self.opened}


def split(
    found: Comparison | None, wanted: Collection[TopicPartition]
) -> tuple[Comparison | None, dict[TopicPartition, str]]:
    """The comparison of the wanted partitions, and for the others a sentence on what differs or was not compared.  Pure."""
    if found is None:
        return None, {}
    differing, unread, refused, opened, emptied, unsettled, lost, counted = found
    untold = dict.fromkeys(unread, "they could not be read this time")
    why = {
        p: f"{p.topic}-{p.partition} could not be compared: {text}"
        for p, text in {**refused, **opened, **emptied, **unsettled, **untold}.items()
    }
    beside = {p: text for p, text in {**why, **differing}.items() if p not in wanted}

    def chosen(part: Mapping[TopicPartition, str]) -> dict[TopicPartition, str]:
        return {p: text for p, text in part.items() if p in wanted}

    untried = tuple(p for p in unread if p in wanted)
    told = Comparison(
        chosen(differing), untried, chosen(refused), chosen(opened), chosen(emptied), chosen(unsettled), lost, counted
    )
    return told, beside


def without_paused(
    stopped: Mapping[TopicPartition, str], control: LinkControl
) -> tuple[dict[TopicPartition, str], list[str]]:
    """What stops partitions that an operator has not paused, and sentences on the others, which no mirror touches now.  Pure."""
    return {p: text for p, text in stopped.items() if not control.pauses(p)}, [
        f"{PAUSED_AND_BLOCKED}: {text}" for p, text in stopped.items() if control.pauses(p)
    ]


def is_counted(one: Foreseen) -> bool:
    """Whether the map says how much of the source's present log is copied.  Pure.

    Not if the source's log was created again, or cut, since: what is copied is another one's, whatever the numbers are.
    What retention has deleted before it was copied changes nothing of that.
    """
    return not isinstance(one.found, TolerantClientError) and not (one.found.losses and one.begins_again)


def is_comparable(control: LinkControl, is_translated: bool) -> bool:
    """Whether a link has logs to compare: not with translated offsets, before the first copy, or once promoted."""
    return not is_translated and not control.is_promotion_begun and bool(control.producer_ids)


async def with_own_id(target: Cluster, link: str, control: LinkControl) -> LinkControl:
    """The control of a link with identical offsets, also one that was deleted, with the producer id that its mirror would have.

    Without it the link's own fence looks like another producer's marker, and nothing is compared.  The target's coordinator is
    asked, which knows it for some days (transactional.id.expiration.ms).
    """
    if control.producer_ids or control.is_prepared:
        return control
    own_id = await within_bound(target, known_producer_id, target, control.producer_name(link))
    return control if own_id is None else replace(control, producer_ids=(own_id,))


async def compare_ends(
    source: Cluster,
    target: Cluster,
    partitions: Collection[TopicPartition],
    ledger: Ledger,
    control: LinkControl,
    is_translated: bool,
) -> Comparison | None:
    """Finds what stops partitions of a link, as its mirror would; None where nothing is comparable (is_comparable).

    With translated offsets it checks the map: its rows must be of the topics' present ids, and of no more than the logs have.
    Reads the target's logs up to their high watermarks, so a mirror may append meanwhile.  Topics that we may not read are
    refused, the others compared.  Raises what read_both does.
    """
    if is_translated and not control.is_promotion_begun:
        foreseen = await foresee(source, target, ledger.link, control, partitions)
        stops = stopped(foreseen)
        lost = frozenset(p for p, error in stops.items() if isinstance(error, TargetDivergedError))
        counted = frozenset(p for p in stops if is_counted(foreseen[p]))
        return Comparison({p: text_of(error) for p, error in stops.items()}, lost=lost, counted=counted)
    if not is_translated:
        control = await with_own_id(target, ledger.link, control)
    if not is_comparable(control, is_translated):
        return None
    states, refused = await read_both(source, target, partitions, control.producer_ids[-1], ledger, control)
    held = await left_to_mirror(target, ledger.link, control, states)
    errors = {p: state.error if isinstance(state, Loss) else state for p, state in states.items()}
    differing = {
        p: text_of(error) for p, error in errors.items() if isinstance(error, TolerantClientError) and p not in held
    }
    unsettled = {p: f"{state.error.finding}; {_UNSETTLED}" for p in held if isinstance(state := states[p], Loss)}
    opened = {p: str(state) for p, state in states.items() if isinstance(state, OpenTransaction)}
    unread = tuple(p for p in partitions if p not in refused and not is_read(states.get(p)))
    return Comparison(differing, unread, refused, opened, dict.fromkeys(held - unsettled.keys(), _EMPTIED), unsettled)


async def left_to_mirror(
    target: Cluster, link: str, control: LinkControl, states: Mapping[TopicPartition, Found]
) -> frozenset[TopicPartition]:
    """Those of these partitions that a running mirror of the link judges: it has emptied logs, and losses, and reports no block.

    It knows how far it has copied an emptied log; the control says so only once that rests, and before, an end proves nothing to
    others.  What it does about a loss, its --on-loss says, which others do not know; of one that is paused it does nothing.
    """
    paused = {p for p in states if control.pauses(p)}
    losses = {p for p, state in states.items() if isinstance(state, Loss)} - paused
    open_to_it = losses | {p for p, state in states.items() if isinstance(state, EmptiedLogError)}
    return (await copied_now(target, link)).intersection(open_to_it) if open_to_it else frozenset()


def is_read(state: Found | None) -> bool:
    """Whether a log was compared this time: not without a state, nor if its leader said why it cannot be read (Untold)."""
    return state is not None and not isinstance(state, Untold)


async def read_both(
    source: Cluster,
    target: Cluster,
    partitions: Collection[TopicPartition],
    producer_id: int,
    ledger: Ledger,
    control: LinkControl,
) -> tuple[dict[TopicPartition, Found], dict[TopicPartition, str]]:
    """As read_append_states, up to the high watermarks; also which partitions we may not read, and why, without losing the others.

    Raises TopicAuthorizationFailedError if we may not read the ledger.
    """
    try:
        states = await read_append_states(
            source, target, partitions, producer_id, ledger, control=control, at_high_watermark=True
        )
        for cluster in (target, source):
            await require_readable(cluster, [p for p in partitions if not is_read(states.get(p))])
        return states, {}
    except (
        Errors.TopicAuthorizationFailedError
    ) as error:  # only its text says which topic: halve the topics until one is left
        await ledger.rows()
        topics = sorted({p.topic for p in partitions})
        if len(topics) == 1:
            why = f"{error.args[0]}; comparing takes Read and Describe on the topic on both clusters"
            return {}, dict.fromkeys(partitions, why)
    states = {}
    refused: dict[TopicPartition, str] = {}
    for half in topics[: len(topics) // 2], topics[len(topics) // 2 :]:
        members = [p for p in partitions if p.topic in half]
        more, without = await read_both(source, target, members, producer_id, ledger, control)
        states.update(more)
        refused.update(without)
    return states, refused

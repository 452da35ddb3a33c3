"""Why a link cannot be promoted now.  Pure; offsets are half-open, those of the source."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from kafka.structs import TopicPartition

from tolerant_client.mirror.life.comparison import Comparison
from tolerant_client.mirror.life.lens import PartitionLag
from tolerant_client.mirror.state.health import TRANSLATED_COPY_DELETED, by_reason, counted, counted_are, few
from tolerant_client.mirror.state.health import names as names_of
from tolerant_client.mirror.state.lacking import Lacking
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.link_topics import some
from tolerant_client.mirror.state.open_transactions import Held

_SENTENCES = 5  # differences that have a sentence each


def named(partitions: Iterable[TopicPartition]) -> str:
    """Names the first few partitions and counts the others."""
    return some(f"{p.topic}-{p.partition}" for p in partitions)


class Blocker(NamedTuple):
    """Why a link cannot be promoted now; waiting does not remove one that `lasts`.

    Who waits tells each cause once (news).  These are `causes`, or the text where there are none: a text with numbers, or with the
    partitions of this moment, is another one with each look.
    """

    text: str
    lasts: bool = False
    causes: Collection[str] = ()


def news(found: Iterable[Blocker], told: set[str]) -> list[str]:
    """The texts of the blockers with a cause that was not `told` yet; from then on it was."""
    new = [(blocker.text, {*blocker.causes} or {blocker.text}) for blocker in found]
    texts = [text for text, causes in new if causes - told]
    told.update(*(causes for _, causes in new))
    return texts


def blockers(
    lags: Iterable[PartitionLag],
    before: Mapping[TopicPartition, PartitionLag],
    control: LinkControl = LinkControl(),
    compared: Comparison | None = None,
    held: Iterable[Held] = (),
    of_target: str = "--target TARGET",
    of_both: str = "--source SOURCE --target TARGET",
    topics: str = "",
) -> list[Blocker]:
    """Why a link cannot be promoted now; pure.

    `before` is what an earlier look saw, `compared` the comparison of the logs or None if there was none, `held` the open
    transactions.  `of_target` and `of_both` are the options that name the link in commands (link_options), `topics`
    those that give its topics where its control does not.
    """
    known = list(lags)
    logs = compared or Comparison({})
    differing, unsettled = logs.differing, logs.unsettled
    found = [Blocker(text, lasts=True) for text in list(differing.values())[:_SENTENCES]]
    if len(differing) > _SENTENCES:
        more = f"{len(differing) - _SENTENCES} more partitions differ; all of them: tolerant-kafka status {of_both}{topics}"
        found.append(Blocker(more, lasts=True))
    found += _of_each_reason(logs.refused, _uncompared, lasts=True)
    found += _of_each_reason({**logs.opened, **logs.emptied}, _uncompared)
    found += [Blocker(text, causes=[f"loss: {p}"]) for p, text in list(unsettled.items())[:_SENTENCES]]
    if more_unsettled := list(unsettled)[_SENTENCES:]:
        text = f"losses in {named(more_unsettled)} wait for the mirror, too"
        found.append(Blocker(text, causes=[f"loss: {p}" for p in more_unsettled]))
    if logs.unread:
        text = f"partitions could not be compared with the source's this time: {named(logs.unread)}; try again"
        found.append(Blocker(text, causes=["unread"]))
    if compared is None and (filled := [e for e in known if e.position]):
        text = (
            f"whether {some(map(str, filled))} is a copy of the source's log is unknown: the control on the target does not say (any"
            " more) what the link has copied, so nothing was compared. Start its mirror, which compares them and writes it down, then"
            " run this again; or, if the mirror says that the link was promoted before, run tolerant-kafka failover"
            f" {of_target}{topics}. Which records differ says tolerant-kafka verify {of_both}{topics}"
        )
        found.append(Blocker(text, lasts=True))
    lagging = [e for e in known if e.copyable and e.partition not in differing]
    if paused := [e for e in lagging if control.pauses(e.partition)]:
        what = some(f"{e} {e.copyable:,}" for e in paused)
        count = sum(e.copyable for e in paused)
        resume = control.resume_command((e.partition for e in paused), of_target)
        text = f"{counted_are(count, 'offset')} not copied, since an operator has paused them: {what}; resume them: {resume}"
        found.append(Blocker(text, lasts=True))
    if waiting := [e for e in lagging if not control.pauses(e.partition)]:
        what = some(f"{e} {e.copyable:,}" for e in waiting)
        count = sum(e.copyable for e in waiting)
        text = f"{counted_are(count, 'offset')} not copied yet: {what}{control.limit_words()}"
        found.append(Blocker(text, causes=["not copied yet"]))
    found += _of_each_reason(
        {e.partition: e.untold for e in known if e.untold},
        lambda which, why: (
            f"how much of {which} is not copied is unknown: {why}; run this again once the source tells it, or, if its broker is gone for"
            f" good, tolerant-kafka failover {of_target}{topics}, which does not ask the source"
        ),
    )
    if opened := [e for e in known if e.open_offsets]:
        what = some(map(str, held), "; ") or some(f"{e} from offset {e.stable_end} on" for e in opened)
        text = f"transactions are open on the source, nothing after their first records is copied: {what}"
        found.append(Blocker(text, causes=[f"open: {e}" for e in opened]))
    ends = {p: e.source_end for p, e in before.items() if e.source_end is not None}
    if grown := [e for e in known if e.source_end is not None and e.source_end != ends.get(e.partition, e.source_end)]:
        text = f"producers still write to the source: {some(map(str, grown))}; have them pause (clients with standby= stay open)"
        found.append(Blocker(text, causes=[f"written: {e.partition.topic}" for e in grown]))
    return found


def _of_each_reason(
    told: Mapping[TopicPartition, str], text: Callable[[str, str], str], *, lasts: bool = False
) -> Iterator[Blocker]:
    """A blocker for all partitions of one reason, in a `text` of their names and it, and one for the reasons after the first few."""
    reasons = by_reason(told)
    causes = {why: text("", why) for why in reasons}
    for why, of in list(reasons.items())[:_SENTENCES]:
        yield Blocker(text(names_of(of), why), lasts, [causes[why]])
    if more := list(reasons)[_SENTENCES:]:
        members = sorted(p for why in more for p in reasons[why])
        yield Blocker(text(names_of(members), counted(len(more), "more reason")), lasts, [causes[why] for why in more])


def _uncompared(which: str, why: str) -> str:
    return f"{which} could not be compared: {why}"


def lacking_blockers(lacking: Lacking) -> list[Blocker]:
    """Blockers for partitions that the target lacks.  Pure."""
    gone, deleted, unmade = lacking
    found = []
    if gone:
        found.append(Blocker(f"{named(gone)}: {TRANSLATED_COPY_DELETED}", lasts=True))
    if deleted:
        text = f"{named(deleted)}: not on the target any more; start the mirror again, which creates and fills them"
        found.append(Blocker(text, causes=[f"deleted: {p.topic}" for p in deleted]))
    if unmade:
        text = f"{named(unmade)}: not on the target yet; let the mirror run until it has created them"
        found.append(Blocker(text, causes=[f"unmade: {p.topic}" for p in unmade]))
    return found


def copied_besides(ends: Iterable[PartitionLag]) -> list[Blocker]:
    """A blocker for partitions that a mirror still copies though the file does not name them (any more).  Pure."""
    if not (late := [e.partition for e in ends if e.copyable]):
        return []
    text = f"a mirror still copies {named(late)}, which the file does not name (any more)"
    text += ": restart it with this file, then run this again; or wait until it has copied them"
    return [Blocker(text, causes=[f"besides: {p.topic}" for p in late])]


def not_fenced(
    leaderless: Mapping[TopicPartition, str], led: Iterable[TopicPartition], control: LinkControl
) -> list[str]:
    """Sentences about partitions that cannot be written to now, and why, and of `led` ones that a process may write to as well.  Pure.

    Nobody is told to delete the topic: its other partitions may be the only copy, and applications may write there.
    """
    if not leaderless:
        return []
    found = few(
        f"{named(of)} cannot be fenced, so a process of the link may still write there ({why}); start a broker that has it,"
        " then run this again"
        for why, of in by_reason(leaderless).items()
    )
    if control.is_promotion_begun and not control.unfenced and (rest := sorted(led)):
        found.append(
            f"an earlier promotion of the link was interrupted, so processes of it may still write to {named(rest)}, too"
        )
    return found

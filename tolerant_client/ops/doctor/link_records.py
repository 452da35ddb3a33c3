"""What a link has recorded on its target, and what is blocked: ledger, control, copies that are gone.  Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

from kafka.structs import TopicPartition

from tolerant_client.mirror.batches.losses import LedgerRow
from tolerant_client.mirror.life.lost_copies import LOST_UNKNOWN, LostCopies
from tolerant_client.mirror.life.mirrors import mirror_reasons, standing
from tolerant_client.mirror.state.carriers import START_UNTOLD
from tolerant_client.mirror.state.claims import Run
from tolerant_client.mirror.state.health import DELETE_COPY, DELETED_ON_SOURCE, Health, by_reason, counted, names, utc
from tolerant_client.mirror.state.ledger import UNREADABLE
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.ops.doctor.finding import Severity, Told, check, size, some
from tolerant_client.ops.doctor.link_checks import LinkOptions


@check("ledger", cluster="link")
def ledger_findings(link: str, rows: Iterable[LedgerRow]) -> Iterator[Told]:
    """Losses that the link has accepted, by topic and reason."""
    lost: Counter[tuple[str, str]] = Counter()
    newest: dict[tuple[str, str], int] = {}
    unreadable = 0
    for row in rows:
        key = (row.topic, str(row.reason))
        if row.reason == UNREADABLE:
            unreadable += 1
        elif row.link == link:
            lost[key] += row.until_offset - row.from_offset
            newest[key] = max(row.time_ms, newest.get(key, 0))
    for (topic, reason), offsets in sorted(lost.items()):
        what = (
            f"{counted(offsets, 'offset')} not on the target" if offsets else "its log on the source became another one"
        )
        yield Told(
            Severity.WARNING,
            f"topic {topic}",
            f"{what} ({reason}), recorded at {utc(newest[topic, reason])}",
            "Read the ledger (tolerant-mirror-ledger) for the ranges; what is lost on the source stays lost",
        )
    if unreadable:
        yield Told(
            Severity.WARNING,
            "tolerant-mirror-ledger",
            f"{unreadable} of its records are not ledger rows: somebody else writes to it",
            "Revoke their right to write to it",
        )


@check("control", cluster="link")
def refusal_findings(link: str, why: str) -> Iterator[Told]:
    """Why nothing else is said of the link: the target does not know it, or hides it from us, or it copies another source."""
    evidence, _, remedy = why.rpartition(": " if ": " in why else "; ")
    if ". Or " in remedy:  # a link that is known has its remedy within
        evidence, _, remedy = why.removeprefix(f"Link {link}: ").partition(". Or ")
        remedy = f"do what it says, or {remedy}"
    yield Told(Severity.ERROR, f"link {link}", evidence, f"{remedy[0].upper()}{remedy[1:]}")


@check("control", cluster="link")
def control_findings(
    link: str,
    control: LinkControl,
    options: LinkOptions,
    lost_map: str | None,
    forgotten: str | None,
    lost: LostCopies | None = LostCopies(),
    *,
    has_copied: bool = False,
    is_told: bool = True,
) -> Iterator[Told]:
    """An operator's orders to leave something out, and what of the link's own is gone.

    `lost_map` says that the link's offset map is lost, so it cannot copy; `forgotten` that its mirror runs without a control; `lost` are
    copies that a promoted link has no more, None if that is unknown.  `has_copied`: something else than the control shows that it has; without `is_told` nothing
    tells whether its offsets were translated.
    """
    if forgotten is not None:
        evidence, _, remedy = forgotten.rpartition(". ")
        yield Told(Severity.ERROR, f"link {link}", evidence, remedy)
    elif has_copied and control.is_unwritten and lost_map is None:
        topics = "" if options.of_file else " --topics REGEX"
        start = "Start its mirror" if is_told else f"{START_UNTOLD[0].upper()}{START_UNTOLD[1:]}"
        start += f", or, if it was promoted or its source is gone, tolerant-kafka failover {options.of_target}{topics}"
        evidence = "its control is gone: nothing says what the link has begun, nor what was ordered"
        yield Told(Severity.ERROR, f"link {link}", evidence, start)
    for text in (LOST_UNKNOWN,) if lost is None else lost.texts():
        yield Told(
            Severity.ERROR, f"link {link}", text, "Copy it again under another link name, as far as the source has it"
        )
    if lost_map is not None and not control.is_over:
        evidence, _, remedy = lost_map.partition(". ")
        yield Told(Severity.ERROR, f"link {link}", evidence, remedy)
    resume = f"tolerant-kafka resume {options.of_target}"
    if control.is_half_promoted:
        again = f"Run it again: tolerant-kafka promote {options.of_both}, or failover {options.of_target}"
        yield Told(
            Severity.WARNING, f"link {link}", "its promotion has begun and has not ended: nothing is copied", again
        )
    if control.is_promoted:
        back = "None if that is intended; the guide to the failover drill says how to copy the other way"
        yield Told(Severity.WARNING, f"link {link}", "it is promoted: nothing is copied any more", back)
    if paused := control.paused_words:
        yield Told(Severity.WARNING, f"link {link}", f"paused: {some(paused)}", resume)
    if control.bytes_per_s:
        yield Told(
            Severity.INFO,
            f"link {link}",
            f"it copies at most {size(control.bytes_per_s)}/s",
            f"tolerant-kafka throttle off {options.of_target}  # if it has to be faster",
        )


@check("control", cluster="link")
def blocked_findings(
    link: str,
    mirrors: Collection[Run] | None,
    control: LinkControl,
    left_behind: Mapping[TopicPartition, str],
    stopped: Mapping[TopicPartition, str],
) -> Iterator[Told]:
    """What is blocked until a person acts, in the words of `status`, and that no mirror of the link runs.

    The source lacks `left_behind`; the logs of `stopped` differ, or another link has them; mirrors tell more, None if they are unknown.

    A reason is never split: without a remedy of its own, as an earlier version's mirror tells it, all of it is the evidence.
    """
    if control.is_over:
        return
    waits = {p: wait for p, wait in standing(mirrors or (), left_behind, control).items() if wait.is_blocked}
    seen = {**stopped, **left_behind}
    told = {p: why for p, why in seen.items() if not control.pauses(p)} | {p: wait.reason for p, wait in waits.items()}
    remedies = {**{wait.reason: wait.remedy for wait in waits.values()}, DELETED_ON_SOURCE: DELETE_COPY}
    for reason, partitions in by_reason(told).items():
        evidence, remedy = reason, "Do what it says; status names all partitions"
        if known := remedies.get(reason):
            evidence, remedy = reason.removesuffix(known).rstrip(";. "), known[:1].upper() + known[1:]
        which = names(partitions)
        yield Told(
            Severity.ERROR,
            f"link {link}",
            f"blocked: {evidence if which in evidence else f'{which}: {evidence}'}",
            remedy,
        )
    for idle in mirror_reasons(link, mirrors) if mirrors is not None and not control.tells_no_start else ():
        if idle.health is Health.UNKNOWN:  # one that waits for its partitions does run
            yield Told(Severity.WARNING, f"link {link}", idle.text, "Start the mirror, if it is to run now")

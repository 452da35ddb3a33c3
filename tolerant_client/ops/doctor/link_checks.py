"""What keeps one cluster's topics from being copied to the other: topics, sizes, retention, ledger, control.  Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tolerant_client.errors import OptionError
from tolerant_client.mirror.batches.losses import GOES_ON, LedgerRow
from tolerant_client.mirror.engine.planned_link import partitions_of
from tolerant_client.mirror.life.lens import PartitionLag
from tolerant_client.mirror.state.health import (
    DELETED_ON_TARGET,
    TRANSLATED_COPY_DELETED,
    counted,
)
from tolerant_client.mirror.state.lacking import sort_lacking
from tolerant_client.mirror.state.link_control import WHOLE_LINK, LinkControl
from tolerant_client.mirror.state.map_rows import NO_MAP, MappedTopics
from tolerant_client.mirror.state.plan import LOG_APPEND_TIME, MAX_MESSAGE_BYTES, TIMESTAMP_TYPE, TopicSpec, plan_topics
from tolerant_client.ops.doctor.access import create_command
from tolerant_client.ops.doctor.facts import ClusterFacts
from tolerant_client.ops.doctor.finding import Severity, Told, check, duration, size, some

_REQUEST_MAX = "socket.request.max.bytes"
_DAY_MS, _HOUR_MS = 86_400_000, 3_600_000
_PROGRESS_S = 3.0  # shorter observations prove no standstill
_SOON_MS = 60_000  # a mirror that catches up within this time is not in danger
_BYTES_FULL, _BYTES_NEAR = 0.9, 0.5  # of retention.bytes


class LinkOptions(NamedTuple):
    """The options by which other commands name this link: those that need only its target, those that need both, a file's."""

    of_target: str = "--target TARGET"
    of_both: str = "--source SOURCE --target TARGET"
    of_file: str = ""


@check("topics", cluster="link")
def topic_findings(
    source: Mapping[str, TopicSpec],
    target: Mapping[str, TopicSpec],
    brokers: int,
    control: LinkControl,
    mapped: MappedTopics = NO_MAP,
) -> Iterator[Told]:
    """Judges each topic by a mirror's own plan; names are the target's.  No mirror creates what a link that is over lacks."""
    absent = () if control.is_over else partitions_of(spec for name, spec in source.items() if name not in target)
    lacking = sort_lacking(absent, control, mapped)
    gone, deleted, unmade = ({p.topic for p in of} for of in lacking)
    if gone:
        evidence, _, remedy = TRANSLATED_COPY_DELETED.rpartition("; ")
        yield Told(Severity.ERROR, f"topic {some(sorted(gone))}", evidence, remedy.capitalize())
    if deleted := deleted - gone:
        yield Told(
            Severity.WARNING, f"topic {some(sorted(deleted))}", DELETED_ON_TARGET, "Start the mirror, if none runs"
        )
    if missing := sorted(unmade - gone - deleted):
        evidence = "not on the target yet: a mirror creates what is missing"
        yield Told(Severity.INFO, f"topic {some(missing)}", evidence, "None needed")
    for name, wanted in sorted(source.items()):
        present = target.get(name)
        if present is None:
            continue
        if present.value(TIMESTAMP_TYPE, "") == LOG_APPEND_TIME:
            yield Told(
                Severity.ERROR,
                f"topic {name}",
                f"{TIMESTAMP_TYPE}={LOG_APPEND_TIME} on the target would change every record's timestamp: a mirror refuses it",
                f"Set {TIMESTAMP_TYPE}=CreateTime on the target",
            )
            continue
        has_more = present.partitions > wanted.partitions
        if has_more and not any(p.topic == name and p.partition >= wanted.partitions for p in control.begun):
            yield Told(
                Severity.INFO,
                f"topic {name}",
                f"it has {counted(present.partitions, 'partition')} on the target and {wanted.partitions} on the source: nothing is copied"
                " into the others, and a producer that moves to the target puts keys into other partitions",
                "Give both the same number, if keys matter",
            )
        yield from _warnings(name, wanted, present, brokers)


@check("topics", cluster="link")
def creation_findings(
    target: ClusterFacts, missing: Collection[str], warnings: Iterable[str], refusal: str, who: str
) -> Iterator[Told]:
    """How the target's brokers respond to a request to create the missing topics, with validateOnly."""
    if refusal:
        is_right = "authoriz" in refusal.lower()
        yield Told(
            Severity.ERROR,
            f"topic {some(sorted(missing))}",
            f"the brokers would not create it: {refusal}",
            create_command(target, who, sorted(missing))
            if is_right
            else "Create it yourself as the brokers allow, or exclude it",
            check="rights" if is_right else "",
            cluster="target",
        )
    for warning in warnings:
        yield Told(Severity.INFO, f"topic {some(sorted(missing))}", warning, "Create it yourself if that matters")


def _warnings(name: str, wanted: TopicSpec, present: TopicSpec, brokers: int) -> Iterator[Told]:
    try:
        plan = plan_topics({name: wanted}, {name: present}, brokers)
    except OptionError as error:
        yield Told(Severity.ERROR, f"topic {name}", str(error), "Correct the topic on the target, or exclude it")
        return
    for warning in plan.warnings:
        evidence, _, remedy = warning.rpartition("; ")
        if not evidence:
            evidence, remedy = warning, "give the target's topic the source's setting"
        is_size = MAX_MESSAGE_BYTES in warning
        yield Told(
            Severity.WARNING,
            f"topic {name}",
            evidence,
            remedy[:1].upper() + remedy[1:],
            check="sizes" if is_size else "",
        )


@check("sizes")
def size_findings(facts: ClusterFacts, specs: Mapping[str, TopicSpec]) -> Iterator[Told]:
    """Topics that accept records which a request to their brokers cannot hold."""
    limit = facts.broker_setting(_REQUEST_MAX)
    if limit is None:
        return
    above = sorted(name for name, spec in specs.items() if spec.max_message_bytes > int(limit))
    if above:
        largest = max(specs[name].max_message_bytes for name in above)
        yield Told(
            Severity.WARNING,
            f"topic {some(above)}",
            f"{MAX_MESSAGE_BYTES} is up to {size(largest)}, but the brokers close connections with requests above"
            f" {_REQUEST_MAX}={limit}",
            f"Raise {_REQUEST_MAX}, or lower {MAX_MESSAGE_BYTES}",
        )


# -- retention ----------------------------------------------------------------


@dataclass(frozen=True)
class Backlog:
    """A partition's uncopied part, before and after the observation; `oldest_ms` is the latest timestamp in its first batch."""

    before: PartitionLag
    now: PartitionLag

    @property
    def position(self) -> int:
        """The position; 0 if nothing was copied."""
        return self.now.position or 0

    @property
    def source_start(self) -> int:
        return self.now.source_start or 0

    @property
    def source_end(self) -> int:
        """The last stable offset: no mirror can copy what comes after it."""
        return self.now.stable_end or 0

    @property
    def copied(self) -> int:
        """How many offsets were copied during the observation."""
        return self.position - (self.before.position or 0)

    @property
    def appended(self) -> int:
        return self.source_end - (self.before.stable_end or 0)

    @property
    def has_stood(self) -> bool:
        """Whether it had a lag at the start of the observation, and has not moved since."""
        return self.now.copyable > self.appended and not self.copied

    def __str__(self) -> str:
        return str(self.now)

    def ready_in_ms(self, seconds: float) -> float | None:
        """In how many ms it will have caught up at the rate of these seconds; None for never."""
        lag, gained = self.now.copyable, self.copied - self.appended
        return 0.0 if not lag else None if gained <= 0 or seconds <= 0 else lag / (gained / seconds) * 1000


@dataclass(frozen=True)
class Retention:
    """How long the source keeps a topic's records: ms, and bytes per partition; None is unlimited."""

    ms: int | None
    bytes: int | None

    @classmethod
    def of(cls, config: Mapping[str, str]) -> Retention | None:
        """The retention in these settings; None if the brokers did not tell."""
        if "cleanup.policy" not in config:
            return None
        is_deleted = "delete" in config["cleanup.policy"].split(",")

        def limit(name: str) -> int | None:
            value = int(config.get(name, "-1"))
            return value if is_deleted and value >= 0 else None

        return cls(limit("retention.ms"), limit("retention.bytes"))


@check("topics", cluster="link")
def ahead_findings(backlogs: Iterable[Backlog], options: LinkOptions) -> Iterator[Told]:
    """Target logs that end after the source's: the source's was truncated, or somebody else writes to the target."""
    ahead: dict[str, list[Backlog]] = {}
    for backlog in backlogs:
        if backlog.position > backlog.source_end:
            ahead.setdefault(backlog.now.partition.topic, []).append(backlog)
    for topic, found in sorted(ahead.items()):
        worst = max(found, key=lambda b: b.position - b.source_end)
        yield Told(
            Severity.ERROR,
            f"topic {topic}",
            f"{counted(len(found), 'partition')} longer on the target than on the source: {worst} goes up to offset"
            f" {worst.position} there, and up to {worst.source_end} on the source",
            f"tolerant-kafka verify {options.of_both}  # tells which records differ: the source has lost some (unclean"
            " election, recreated topic), or others write to the target; then use --offsets translated, or another topic",
        )


@check("retention", cluster="link")
def retention_findings(
    backlogs: Iterable[Backlog],
    retentions: Mapping[str, Retention],
    ledger: Iterable[LedgerRow],
    now_ms: int,
    seconds: float,
) -> Iterator[Told]:
    """What the source deleted before it was copied, or soon will; the worst partition of each topic.

    A copy that has not begun loses nothing: it begins at the source's log start.
    """
    known = list(ledger)
    by_topic: dict[str, list[Backlog]] = {}
    for backlog in backlogs:
        if backlog.position > 0:
            by_topic.setdefault(backlog.now.partition.topic, []).append(backlog)
    for topic, found in sorted(by_topic.items()):
        lost = [b for b in found if b.position < b.source_start and not _is_written_down(b, known)]
        if lost:
            worst = max(lost, key=lambda b: b.source_start - b.position)
            yield Told(
                Severity.ERROR,
                f"topic {topic}",
                f"{counted(len(lost), 'partition')} lost records before they were copied: {worst} offsets {worst.position} to"
                f" {worst.source_start} are gone from the source",
                f"The mirror stops there; with {GOES_ON} it records the loss in its ledger and continues",
            )
        limits = retentions.get(topic)
        if limits is not None:
            yield from _in_danger(topic, [b for b in found if b.now.copyable], limits, now_ms, seconds)


def _is_written_down(backlog: Backlog, ledger: Sequence[LedgerRow]) -> bool:
    rows = [row for row in ledger if (row.topic, row.partition) == tuple(backlog.now.partition)]
    return any(row.from_offset <= backlog.position and row.until_offset >= backlog.source_start for row in rows)


def _in_danger(topic: str, backlogs: list[Backlog], limits: Retention, now_ms: int, seconds: float) -> Iterator[Told]:
    judged = [(left, b) for b in backlogs if (left := _left_ms(b, limits, now_ms)) is not None]
    dangers = [(left, b) for left, b in judged if _is_in_danger(left, b.ready_in_ms(seconds), limits)]
    if dangers:
        left, worst = min(dangers, key=lambda one: one[0])
        ready_ms = worst.ready_in_ms(seconds)
        speed = "nothing was copied during the examination" if not worst.copied else (
            "it falls behind" if ready_ms is None else f"at this rate all is copied in {duration(ready_ms)}"
        )  # fmt: skip
        when = f"may be deleted in {duration(left)}" if left > 0 else f"were due for deletion {duration(left)} ago"
        is_late = ready_ms is None and left < _HOUR_MS
        yield Told(
            Severity.ERROR if is_late else Severity.WARNING,
            f"topic {topic}",
            f"the oldest of {worst.now.copyable} uncopied offsets of {worst} {when} (retention.ms={limits.ms}); {speed};"
            f" {counted(len(dangers), 'partition')} in danger",
            "Raise retention.ms on the source until the mirror has caught up, and start, or speed up, the mirror",
        )
    if limits.bytes:
        shares = [(share, b) for b in backlogs if (share := _byte_share(b, limits.bytes)) >= _BYTES_NEAR]
        if shares:
            share, worst = max(shares, key=lambda one: one[0])
            is_full = share >= _BYTES_FULL
            yield Told(
                Severity.ERROR if is_full else Severity.WARNING,
                f"topic {topic}",
                f"about {size(share * limits.bytes)} of {worst} are not copied yet, {share:.0%} of"
                f" retention.bytes={limits.bytes}: the source deletes the oldest records when that size is reached",
                "Raise retention.bytes on the source until the mirror has caught up, and start, or speed up, the mirror",
            )


def _left_ms(backlog: Backlog, limits: Retention, now_ms: int) -> float | None:
    """The ms until the oldest uncopied records may be deleted, or longer: a segment stays as long as its newest record."""
    oldest_ms = backlog.now.oldest_ms
    if limits.ms is None or oldest_ms is None or oldest_ms < 0:
        return None
    return oldest_ms + limits.ms - now_ms


def _is_in_danger(left_ms: float, ready_ms: float | None, limits: Retention) -> bool:
    if ready_ms is not None and (ready_ms < _SOON_MS or ready_ms < left_ms):
        return False
    return left_ms < min(_DAY_MS, (limits.ms or 0) / 2)


def _byte_share(backlog: Backlog, limit: int) -> float:
    return (backlog.now.bytes_per_offset or 0.0) * backlog.now.copyable / limit


@check("retention", cluster="link")
def progress_findings(
    link: str, backlogs: Sequence[Backlog], control: LinkControl | None, seconds: float
) -> Iterator[Told]:
    """Whether the link copies at all, and which partitions do not move; those that an operator paused are left out."""
    if seconds < _PROGRESS_S or (control is not None and (control.is_promotion_begun or WHOLE_LINK in control.paused)):
        return
    standing = [b for b in backlogs if b.has_stood and not (control is not None and control.pauses(b.now.partition))]
    if not standing or not any(b.position > 0 for b in backlogs):  # the second: the link was never started
        return
    lag = sum(b.now.copyable for b in standing)
    others = ", while others move" if any(b.copied for b in backlogs) else ""
    yield Told(
        Severity.WARNING,
        f"link {link}",
        f"{lag} offsets of {some([str(b) for b in standing])} wait, and none was copied in {seconds:.0f} s{others}",
        "Check the mirror's log: a partition may be paused by policy (--on-loss, --on-oversized), or stopped"
        if others
        else "Start the mirror, or check its log",
    )


def renamed(specs: Mapping[str, TopicSpec], names: Mapping[str, str]) -> dict[str, TopicSpec]:
    """The source's topics by their names on the target."""
    return {names.get(name, name): replace(spec, name=names.get(name, name)) for name, spec in specs.items()}

"""How a link is doing, seen from both clusters, its control, its ledger and the claims log; its processes are not asked.

How it is measured:
- lag in offsets: the source's high watermark less what the target has (its log end, or the offset map's).  What of it comes
  after the last stable offset waits for open transactions, and is told beside it, with their names.
- lag in seconds: the age of the first record that is not copied yet; 0 where nothing waits.
- lag in bytes: those offsets times what an offset of the partition takes on the source's disks on average
  (DescribeLogDirs); None where that may not be asked.
- whether it moves: two looks, `look_s` apart.
- whether a mirror runs, and what it says of partitions that stand still: its records in the claims log.  It runs if it has
  written one between two looks, a lease apart where it does not before: our clock and the brokers' are never compared.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.log_dirs import describe_log_dirs, tells_log_dirs
from tolerant_client.cluster.cluster import EARLIEST, Cluster
from tolerant_client.mirror.batches.divergence import read_headers
from tolerant_client.mirror.batches.losses import LedgerRow
from tolerant_client.mirror.engine.lag import Comparison, Ends, compare_ends, is_comparable, look_led
from tolerant_client.mirror.state.claims import CLAIMS_TOPIC, LEASE_MS, ClaimsLog, Run, Waiting
from tolerant_client.mirror.state.claims_topic import read_claims
from tolerant_client.mirror.state.control_topic import HIDDEN, UNKNOWN_ORDERS, read_control
from tolerant_client.mirror.state.health import (
    Health,
    Reason,
    by_reason,
    few,
    sorted_by_weight,
    utc,
    waiting_reasons,
    worst,
)
from tolerant_client.mirror.state.health import names as names_of
from tolerant_client.mirror.state.ledger import LEDGER_TOPIC, Ledger
from tolerant_client.mirror.state.link_control import LinkControl, link_options, unfinished
from tolerant_client.mirror.state.link_topics import NOT_ON_SOURCE, link_topics, see_topics, some, unread_map
from tolerant_client.mirror.state.map_topic import has_map, mapped_topics
from tolerant_client.mirror.state.open_transactions import Held, find_held, is_held_long
from tolerant_client.mirror.state.plan import select_topics
from tolerant_client.mirror.state.topic_filter import LinkTopics

_T = TypeVar("_T")
_BOUND_S = 10.0  # for each question that a broker which hangs could hold up
_LOOK_AGAIN_S = 1.0


@dataclass(frozen=True)
class TopicStatus:
    """A topic by its name on the target; offsets are sums over its partitions, as are bytes; seconds are the worst's.

    `lag_s` and `lag_bytes` are None where they are not known.  `unknown` are partitions with a broker that does not tell,
    or whose topic the source does not have: they are in no sum.
    """

    topic: str
    partitions: int
    source_end: int
    copied: int
    lag: int
    lag_s: float | None
    lag_bytes: int | None
    open_offsets: int  # of the lag, what comes after the first record of transactions that are open on the source
    paused: tuple[int, ...] = ()  # partitions
    lost: int = 0  # offsets in the ledger
    unknown: tuple[int, ...] = ()  # partitions


@dataclass(frozen=True)
class LinkStatus:
    """A link at `time_ms`; `reasons` say why it is not just healthy, the worst first (health.py)."""

    link: str
    time_ms: int
    is_translated: bool
    is_promoted: bool
    bytes_per_s: int | None
    copied_per_s: float
    topics: tuple[TopicStatus, ...]
    reasons: tuple[Reason, ...]
    losses: tuple[LedgerRow, ...] = ()
    open_transactions: tuple[Held, ...] = ()
    is_handed_back: bool = False
    mirrors: tuple[Run, ...] = ()  # that were seen in the last hour, the newest at the end

    @property
    def health(self) -> Health:
        """What is wrong; else what holds."""
        if self.reasons:
            return worst(self.reasons)
        if self.is_handed_back:
            return Health.HANDED_BACK
        return Health.PROMOTED if self.is_promoted else Health.HEALTHY

    @property
    def findings(self) -> tuple[str, ...]:
        """What an operator has to look at, one sentence each."""
        return tuple(reason.text for reason in self.reasons if reason.health.code)

    @property
    def exit_code(self) -> int:
        return self.health.exit_code

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(replace(self, mirrors=())),
            "mirrors": [mirror_json(run) for run in self.mirrors],
            "reasons": [reason._asdict() for reason in self.reasons],
            "losses": [row._asdict() for row in self.losses],
            "open_transactions": [held.to_json() for held in self.open_transactions],
            "findings": self.findings,
            "health": self.health,
            "exit_code": self.exit_code,
        }


async def read_status(
    source: Cluster, target: Cluster, link: str, topics: LinkTopics | None = None, *, look_s: float = 2.0
) -> LinkStatus:
    """The status of a link; `topics` are what it has written down of itself where they are not given.

    A broker that does not respond holds it up for some seconds, and its partitions are told as unknown.
    Raises OptionError where nobody says what it copies, and KafkaError.
    """
    claims, looked = await look_at_claims(target), time.monotonic()
    control = await read_control(target, link)
    chosen = link_topics(control, link, topics)
    rested = control.is_promoted or control.is_handed_back
    mapped = await mapped_topics(target, link, control, within_s=_BOUND_S)
    view = await see_topics(source, target, chosen, control, mapped)
    if not (view.on_source or view.hidden or view.gone and not rested):
        select_topics(chosen, await source.partitions())  # says what is wrong with them
    wanted = [TopicPartition(t, n) for t, numbers in sorted(view.on_source.items()) for n in numbers]
    present = [p for p in wanted if p.partition in view.on_target.get(p.topic, ())]
    missing = sorted(set(wanted) - set(present))
    is_translated = await has_map(target, link, control)
    (first, _), began = await look_led(source, target, link, present, is_translated), time.monotonic()
    await source.net.sleep(look_s)
    second, unseen = await look_led(source, target, link, present, is_translated)
    if not rested:
        unseen.update({TopicPartition(t, n): NOT_ON_SOURCE for t, numbers in view.gone.items() for n in numbers})
        unseen.update(view.hidden)
    seconds = time.monotonic() - began
    ledger = Ledger(target, link)
    rows, unread = await read_rows(target, ledger)
    seen = [e.partition for e in second]
    compared = None
    if rows is not None:
        compared = await _within(target, compare_ends, source, target, seen, ledger, control, is_translated)
    behind = {e.partition: e for e in second if e.lag}
    ages = await _within(source, _ages, source, {p: e.copied for p, e in behind.items()}) if behind else {}
    sizes = await _within(source, _bytes_per_offset, source, second) if behind else {}
    statuses = _by_topic(second, control, ages or {}, sizes, rows or {}, unseen)
    held, held_ms = await find_held(source, held_spans(first, second)), int(time.time() * 1000)
    mirrors = await seen_mirrors(target, link, claims, looked)
    is_unfinished = control.is_promoted and not control.is_fenced
    reasons = [
        Reason(Health.BLOCKED, text)
        for text in unfinished(control, link_options(link, target), link_options(link, target, source))
    ]
    if control.is_hidden:
        reasons.append(Reason(Health.UNKNOWN, f"{UNKNOWN_ORDERS}: {HIDDEN}"))
    if not rested:
        differing = compared.differing if compared is not None else {}
        reasons += [Reason(Health.BLOCKED, text) for text in differing.values()]
        reasons += _unseen_reasons(unseen)
        if view.unread:
            reasons.append(Reason(Health.UNKNOWN, unread_map(view.unread, link)))
        reasons += unread
        if is_comparable(control, is_translated):
            reasons += uncompared_reasons(compared)
        reasons += [Reason(Health.WAITING, str(one)) for one in held if is_held_long(one, held_ms)]
        waiting = standing(mirrors or (), differing, control)
        reasons += waiting_reasons(waiting)
        reasons += untold_reasons(mirrors or ())
        told = differing.keys() | waiting.keys()
        reasons += still((e for e in first if e.partition not in told), second, control, seconds)
        reasons += mirror_reasons(link, mirrors)
        reasons += _paused_reasons(control)
        if missing:
            number = f"{len(missing)} partition{'s are' if len(missing) > 1 else ' is'} not"
            text = f"{names_of(missing)}: not on the target yet ({number}): no mirror has made it"
            reasons.append(Reason(Health.WAITING, text))
    return LinkStatus(
        link,
        int(time.time() * 1000),
        is_translated,
        control.is_promoted and not is_unfinished,
        control.bytes_per_s,
        moved_per_s(first, second, seconds),
        tuple(statuses),
        sorted_by_weight(reasons),
        tuple(row for found in (rows or {}).values() for row in found),
        () if rested else tuple(held),
        control.is_handed_back,
        tuple(mirrors or ()),
    )


async def _within(cluster: Cluster, function: Callable[..., Awaitable[_T]], *args: Any) -> _T | None:
    """What a question gets; None where a broker that does not respond holds it up for _BOUND_S."""
    try:
        found: _T = await cluster.manager.wait_for(cluster.net.call_soon_with_future(function, *args), _BOUND_S * 1000)
    except Errors.KafkaTimeoutError:
        return None
    return found


async def read_rows(
    target: Cluster, ledger: Ledger
) -> tuple[Mapping[TopicPartition, Iterable[LedgerRow]] | None, list[Reason]]:
    """What the ledger says of a link; None, and why, where it cannot be read now, or may not be."""
    why = "could not be read in time"
    try:
        if (rows := await _within(target, ledger.rows)) is not None:
            return rows, []
    except Errors.TopicAuthorizationFailedError:
        why = f"may not be read: grant us Read and Describe on topic {LEDGER_TOPIC} of it"
    return None, [Reason(Health.UNKNOWN, f"what was lost is unknown: the ledger on the target {why}")]


async def look_at_claims(target: Cluster) -> ClaimsLog | None:
    """None where we may not read who writes there, or a broker that hangs does not tell."""
    try:
        return await _within(target, read_claims, target)
    except Errors.TopicAuthorizationFailedError:
        return None


async def seen_mirrors(target: Cluster, link: str, before: ClaimsLog | None, began: float) -> list[Run] | None:
    """The mirrors of a link that were seen lately; None where that is not known.

    `before` is the look of `began` (monotonic): a mirror that has renewed since is alive, whatever the clocks say, and one
    that does not within a lease of ours holds nothing any more.
    """
    if before is None:
        return None
    while (now := await look_at_claims(target)) is not None:
        found = [run for run in now.runs(before) if run.link == link]
        is_told = any(run.is_alive for run in found) or all(run.is_ended for run in found)
        if is_told or time.monotonic() - began >= LEASE_MS / 1000:
            return found
        await target.net.sleep(_LOOK_AGAIN_S)
    return None


def standing(
    mirrors: Iterable[Run], blocked: Collection[TopicPartition], control: LinkControl
) -> dict[TopicPartition, Waiting]:
    """What the mirrors that run say to stand still, but for what is told as blocked or paused.  Pure."""
    waits = {p: why for run in mirrors if run.is_alive for p, why in run.waiting.items()}
    return {p: why for p, why in waits.items() if p not in blocked and not control.pauses(p)}


def untold_reasons(mirrors: Iterable[Run]) -> list[Reason]:
    """Of a mirror with more partitions that stand still than it names: how many those are.  Pure."""
    untold = sum(run.waiting_count - len(run.waiting) for run in mirrors if run.is_alive)
    text = f"{untold:,} more partitions stand still, which the mirror does not name: those that it names come first"
    return [Reason(Health.WAITING, text)] if untold > 0 else []


def mirror_reasons(link: str, mirrors: Iterable[Run] | None) -> list[Reason]:
    """What is to be said of a link whose mirror nobody has seen at work; None: it could not be looked for.  Pure."""
    if mirrors is None:
        return [
            Reason(Health.UNKNOWN, f"whether a mirror of link {link} runs is unknown: {CLAIMS_TOPIC} could not be read")
        ]
    known = list(mirrors)
    if any(run.is_alive for run in known):
        return []
    if not known:
        return [Reason(Health.UNKNOWN, f"no mirror of link {link} has been seen in the last hour: start it")]
    last = known[-1]
    what = "ended at" if last.is_ended else "was last seen at"
    text = (
        f"no mirror of link {link} runs: the last one, on {last.host} (process {last.pid}), {what} {utc(last.seen_ms)}"
    )
    return [Reason(Health.UNKNOWN, text)]


def mirror_json(run: Run) -> dict[str, Any]:
    """A mirror as it was seen; times in ms since 1970."""
    shown = ("run", "host", "pid", "since_ms", "seen_ms", "is_alive", "is_ended")
    return {name: getattr(run, name) for name in shown}


def moved_per_s(first: Iterable[Ends], second: Iterable[Ends], seconds: float) -> float:
    """How fast partitions that were seen twice were copied, offsets a second.  Pure."""
    before = {e.partition: e.copied for e in first}
    return sum(e.copied - before[e.partition] for e in second if e.partition in before) / seconds


def held_spans(first: Iterable[Ends], second: Iterable[Ends]) -> dict[TopicPartition, tuple[int, int]]:
    """What open transactions held back in both looks, at the same last stable offset.  Pure."""
    before = {e.partition: e.stable for e in first if e.open_offsets}
    return {
        e.partition: (e.stable, e.end)
        for e in second
        if e.open_offsets and e.stable is not None and e.end is not None and before.get(e.partition) == e.stable
    }


def _unseen_reasons(unseen: Mapping[TopicPartition, str]) -> list[Reason]:
    texts = few(f"unknown is how far {names_of(of)} are: {why}" for why, of in by_reason(unseen).items())
    return [Reason(Health.UNKNOWN, text) for text in texts]


def uncompared_reasons(compared: Comparison | None) -> list[Reason]:
    """Of a link that has logs to compare, what was not; None: all of it took too long.  Pure."""
    if compared is None:
        text = "whether both logs are alike is unknown: they, or the ledger, could not be read in time"
        return [Reason(Health.UNKNOWN, text)]
    untold = {**compared.refused, **compared.opened}
    texts = few(f"{names_of(of)} could not be compared: {why}" for why, of in by_reason(untold).items())
    if compared.unread:
        texts.append(f"{names_of(sorted(compared.unread))} could not be compared with the source's log this time")
    return [Reason(Health.UNKNOWN, text) for text in texts]


def _paused_reasons(control: LinkControl) -> list[Reason]:
    paused = control.paused_words
    return [Reason(Health.PAUSED, f"an operator has paused {some(paused)}")] if paused else []


def still(first: Iterable[Ends], second: Iterable[Ends], control: LinkControl, seconds: float) -> list[Reason]:
    """What stands still though there is something that can be copied; pure."""
    before = {e.partition: e for e in first if e.copyable}
    found = [
        e
        for e in second
        if e.partition in before
        and e.copyable
        and before[e.partition].copied == e.copied
        and not control.pauses(e.partition)
    ]
    if not found:
        return []
    top = max(found, key=lambda e: e.copyable)
    others = f"; {len(found) - 1} more partitions stand still, too" if len(found) > 1 else ""
    return [
        Reason(
            Health.WAITING,
            f"{top} has not moved for {seconds:.0f} s: it is at offset {top.copied:,}, and {top.copyable:,} offsets could be"
            f" copied{others}",
        )
    ]


def _by_topic(
    ends: Iterable[Ends],
    control: LinkControl,
    ages: Mapping[TopicPartition, float],
    sizes: Mapping[TopicPartition, float] | None,
    rows: Mapping[TopicPartition, Iterable[LedgerRow]],
    unseen: Iterable[TopicPartition] = (),
) -> list[TopicStatus]:
    topics: dict[str, list[Ends]] = {}
    unknown: dict[str, list[int]] = {}
    for e in ends:
        topics.setdefault(e.partition.topic, []).append(e)
    for topic, index in unseen:
        topics.setdefault(topic, [])
        unknown.setdefault(topic, []).append(index)
    found = []
    for topic, of_topic in sorted(topics.items()):
        waiting = [e for e in of_topic if e.lag]
        are_sized = sizes is not None and all(e.partition in sizes for e in waiting)
        found.append(
            TopicStatus(
                topic,
                len(of_topic) + len(unknown.get(topic, ())),
                sum(e.end or 0 for e in of_topic),
                sum(e.copied for e in of_topic),
                sum(e.lag for e in of_topic),
                max((ages[e.partition] for e in waiting), default=0.0)
                if all(e.partition in ages for e in waiting)
                else None,
                int(sum(e.lag * sizes[e.partition] for e in waiting)) if are_sized and sizes is not None else None,
                sum(e.open_offsets for e in of_topic),
                tuple(sorted(e.partition.partition for e in of_topic if control.pauses(e.partition))),
                sum(r.until_offset - r.from_offset for e in of_topic for r in rows.get(e.partition, ())),
                tuple(sorted(unknown.get(topic, ()))),
            )
        )
    return found


async def _ages(source: Cluster, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, float]:
    """Seconds since the record at each offset was written, by its time; absent where it has none."""
    now_ms = time.time() * 1000
    headers = await read_headers(source, positions)
    return {p: max(0.0, (now_ms - h.base_timestamp) / 1000) for p, h in headers.items() if h.base_timestamp >= 0}


async def _bytes_per_offset(source: Cluster, ends: Iterable[Ends]) -> dict[TopicPartition, float] | None:
    wanted = {e.partition: e for e in ends}
    sizes = await log_sizes(source, wanted)
    if sizes is None:
        return None
    starts = await source.list_offsets(dict.fromkeys(wanted, EARLIEST))
    spans = {p: (e.end or 0) - starts[p] for p, e in wanted.items()}
    return {p: sizes[p] / spans[p] for p in wanted if p in sizes and spans[p] > 0}


async def log_sizes(cluster: Cluster, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int] | None:
    """What each partition takes on the disks of its fullest replica, bytes; None where that may not be asked (KIP-113)."""
    await cluster.connect()
    if not tells_log_dirs(cluster):
        return None
    wanted = list(partitions)
    sizes: dict[TopicPartition, int] = {}

    async def ask() -> None:
        for broker in cluster.manager.cluster.brokers():
            for one in await describe_log_dirs(cluster, broker.node_id, wanted):
                for partition, size in one.sizes.items():
                    sizes[partition] = max(sizes.get(partition, 0), size)

    try:
        await cluster.insist("asking what logs take", ask)
    except Errors.ClusterAuthorizationFailedError:
        return None
    return sizes

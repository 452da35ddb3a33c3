"""Which mirrors of a link were seen at work, by their records in the claims log; nothing asks their processes.

A mirror runs if it writes a record between two looks, which are at most a lease apart: our clock and the brokers' are never
compared.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Any, TypeVar

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import OptionError
from tolerant_client.mirror.state.claims import LEASE_MS, RENEW_MS, ClaimsLog, Run
from tolerant_client.mirror.state.claims_record import CLAIMS_TOPIC, Waiting
from tolerant_client.mirror.state.claims_topic import read_claims
from tolerant_client.mirror.state.control_topic import FORGOTTEN, read_control
from tolerant_client.mirror.state.health import Health, Reason, counted, utc
from tolerant_client.mirror.state.link_control import LinkControl, link_options

_T = TypeVar("_T")
BOUND_S = 10.0  # for each request that a hanging broker could delay
LOOK_AGAIN_S = 1.0
RENEWED_S = (RENEW_MS + 1_500) / 1000  # within this time a running mirror has renewed its record
LEASE_S = LEASE_MS / 1000
WAITS = "which holds no partition: it waits until they are free, and copies nothing"


async def within_bound(cluster: Cluster, function: Callable[..., Awaitable[_T]], *args: Any) -> _T | None:
    """The result of a function; None if a broker does not respond to it within BOUND_S."""
    try:
        found: _T = await cluster.heard(cluster.net.call_soon_with_future(function, *args), BOUND_S * 1000)
    except Errors.KafkaTimeoutError:
        return None
    return found


async def look_at_claims(target: Cluster) -> ClaimsLog | None:
    """Reads the claims log; None if we may not read it, or a broker hangs."""
    try:
        return await within_bound(target, read_claims, target)
    except Errors.TopicAuthorizationFailedError:
        return None


async def seen_mirrors(
    target: Cluster, link: str, before: ClaimsLog | None, began: float, within_s: float = LEASE_S
) -> list[Run] | None:
    """The mirrors of a link that were seen lately; None if that is unknown.

    `before` is the claims log as read at `began` (monotonic seconds).  A mirror that has renewed since then is alive, whatever the
    clocks say; one that does not renew within a lease by our clock holds no claim any more.
    """
    if before is None:
        return None
    while (now := await look_at_claims(target)) is not None:
        found = [run for run in now.runs(before) if run.link == link]
        if is_told(found) or time.monotonic() - began >= within_s:
            return found
        await target.net.sleep(LOOK_AGAIN_S)
    return None


async def copied_now(target: Cluster, link: str) -> frozenset[TopicPartition]:
    """The partitions that running mirrors of a link copy with identical offsets, and do not report as blocked; takes some seconds.

    None of a mirror that has more waiting than it can name: these may be blocked.
    """
    before, began = await look_at_claims(target), time.monotonic()
    runs = [run for run in await seen_mirrors(target, link, before, began, RENEWED_S) or () if run.is_alive]
    blocked = {p for run in runs for p, why in run.waiting.items() if why.is_blocked}
    telling = [run for run in runs if run.waiting_count <= len(run.waiting)]
    return frozenset(p for run in telling for p in run.copies if p not in blocked)


def is_told(mirrors: Iterable[Run]) -> bool:
    """Whether it is known which mirror of a link is at work; one that only waits does not say whether the holder is alive.  Pure."""
    known = [run for run in mirrors if not run.is_ended]
    return not known or any(run.is_alive for run in [run for run in known if run.holds] or known)


def at_work(mirrors: Iterable[Run]) -> list[Run]:
    """The mirrors that are alive: first those that hold partitions, then those that wait for them.  Pure."""
    return sorted((run for run in mirrors if run.is_alive), key=lambda run: not run.holds)


def is_forgotten(control: LinkControl | None, run: Run) -> bool:
    """Whether a mirror runs that has begun to copy, though the link's control, read after that was seen, says nothing.  Pure.

    A mirror writes the control before it copies: one that starts for the first time has not been forgotten.
    """
    return run.is_alive and run.has_copied and (control is None or control.is_unwritten)


async def why_forgotten(target: Cluster, link: str, control: LinkControl, mirrors: Iterable[Run] | None) -> str | None:
    """What to say of a link whose control says nothing though a mirror of it copies; None for any other link."""
    run = next((run for run in mirrors or () if is_forgotten(control, run)), None)
    if run is None or not is_forgotten(await read_control(target, link), run):
        return None
    which = link_options(link, target) + ("" if target.file_options else " --topics REGEX")
    return (
        f"A mirror of link {link} runs on {run.host} (process {run.pid}), and {FORGOTTEN}; if its source is gone, run"
        f" tolerant-kafka failover {which}"
    )


async def look_for_forgotten(target: Cluster, link: str, control: LinkControl, within_s: float = LEASE_S) -> str | None:
    """As why_forgotten; if the control says nothing, it looks for mirrors, which takes some seconds."""
    if not control.is_unwritten:
        return None
    claims, looked = await look_at_claims(target), time.monotonic()
    return await why_forgotten(target, link, control, await seen_mirrors(target, link, claims, looked, within_s))


async def require_not_forgotten(target: Cluster, link: str, control: LinkControl) -> None:
    """Raises OptionError if the control of a link says nothing though a mirror of it copies."""
    if (why := await look_for_forgotten(target, link, control)) is not None:
        raise OptionError(why)


def standing(
    mirrors: Iterable[Run], blocked: Collection[TopicPartition], control: LinkControl
) -> dict[TopicPartition, Waiting]:
    """Partitions that running mirrors report as waiting, without those reported as blocked or paused.  Pure."""
    waits = {p: why for run in mirrors if run.is_alive for p, why in run.waiting.items()}
    return {p: why for p, why in waits.items() if p not in blocked and not control.pauses(p)}


def untold_reasons(mirrors: Iterable[Run]) -> list[Reason]:
    """How many more partitions wait than the mirrors name.  Pure."""
    untold = sum(run.waiting_count - len(run.waiting) for run in mirrors if run.is_alive)
    text = f"{counted(untold, 'more partition')} {'stands' if untold == 1 else 'stand'} still than the mirror names"
    return [Reason(Health.WAITING, text)] if untold > 0 else []


def mirror_reasons(link: str, mirrors: Iterable[Run] | None) -> list[Reason]:
    """A reason if no mirror of the link was seen at work, holding partitions, or if that is unknown (None).  Pure."""
    if mirrors is None:
        return [
            Reason(Health.UNKNOWN, f"whether a mirror of link {link} runs is unknown: {CLAIMS_TOPIC} could not be read")
        ]
    known = list(mirrors)
    if alive := at_work(known):
        first = alive[0]
        text = f"no mirror of link {link} copies: one runs on {first.host} (process {first.pid}), {WAITS}"
        return [] if first.holds else [Reason(Health.WAITING, text)]
    if not known:
        return [Reason(Health.UNKNOWN, f"no mirror of link {link} has been seen in the last hour: start it")]
    last = known[-1]
    one = f"the last one, on {last.host} (process {last.pid}),"
    if last.is_ended:
        return [Reason(Health.UNKNOWN, f"no mirror of link {link} runs: {one} ended at {utc(last.seen_ms)}")]
    text = (
        f"no mirror of link {link} is seen at work: {one} was last seen at {utc(last.seen_ms)}. If that process still runs, it"
        f" cannot say so: grant its user Read and Write on topic {CLAIMS_TOPIC} of the target; otherwise start a mirror"
    )
    return [Reason(Health.UNKNOWN, text)]


def mirror_json(run: Run) -> dict[str, Any]:
    """A mirror as it was seen, as JSON; times in ms since 1970."""
    shown = ("run", "host", "pid", "since_ms", "seen_ms", "is_alive", "is_ended", "holds")
    return {name: getattr(run, name) for name in shown}

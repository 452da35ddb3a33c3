"""Which mirrors of a link were seen at work: by their records in the claims log; their processes are not asked.

A mirror runs if it has written a record between two looks, a lease apart where it does not before: our clock and the brokers'
are never compared.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Any, TypeVar

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import OptionError
from tolerant_client.mirror.state.claims import CLAIMS_TOPIC, LEASE_MS, ClaimsLog, Run, Waiting
from tolerant_client.mirror.state.claims_topic import read_claims
from tolerant_client.mirror.state.control_record import CONTROL_TOPIC
from tolerant_client.mirror.state.health import Health, Reason, utc
from tolerant_client.mirror.state.link_control import LinkControl

_T = TypeVar("_T")
BOUND_S = 10.0  # for each question that a broker which hangs could hold up
LOOK_AGAIN_S = 1.0


async def within_bound(cluster: Cluster, function: Callable[..., Awaitable[_T]], *args: Any) -> _T | None:
    """What a question gets; None where a broker that does not respond holds it up for BOUND_S."""
    try:
        found: _T = await cluster.manager.wait_for(cluster.net.call_soon_with_future(function, *args), BOUND_S * 1000)
    except Errors.KafkaTimeoutError:
        return None
    return found


async def look_at_claims(target: Cluster) -> ClaimsLog | None:
    """None where we may not read who writes there, or a broker that hangs does not tell."""
    try:
        return await within_bound(target, read_claims, target)
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
        await target.net.sleep(LOOK_AGAIN_S)
    return None


def forgotten(link: str, mirrors: Iterable[Run] | None) -> str | None:
    """What is to be said of a link of which the control says nothing, though a mirror of it runs; None where none does.  Pure."""
    run = next((run for run in mirrors or () if run.is_alive), None)
    if run is None:
        return None
    return (
        f"A mirror of link {link} runs on {run.host} (process {run.pid}), and {CONTROL_TOPIC} of the target says nothing of the link"
        " (any more): the topic was deleted since it started, or it may not write there, so what it copies and what was ordered"
        " is unknown, and it is told nothing. Stop that mirror, and start it again with Create, Read and Write on that topic;"
        " where its source is gone, give tolerant-kafka failover --topics"
    )


async def require_not_forgotten(target: Cluster, link: str, control: LinkControl) -> None:
    """Raises OptionError where the control of a link says nothing, though a mirror of it was seen to run; takes some seconds then."""
    if control.topics is None and not control.is_hidden:
        claims, looked = await look_at_claims(target), time.monotonic()
        if (why := forgotten(link, await seen_mirrors(target, link, claims, looked))) is not None:
            raise OptionError(why)


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

"""Lists the links of a target, and whether a mirror of each was seen at work.

Laws:
- Controls, mirrors that were seen to copy, and offset maps together say which links there are: what one of them names is listed.
- Where the controls do not name all of these, they were lost, and a link with identical offsets may have left nothing else that names
  it: then which links there are is unknown, and that is said together with those that are known.
- Of a link that a command names its copies tell, too, also where nothing else names it any more (naming.py).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from msgspec.structs import asdict

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.mirror.life.mirrors import (
    LEASE_S,
    LOOK_AGAIN_S,
    RENEWED_S,
    WAITS,
    at_work,
    is_forgotten,
    is_told,
    look_at_claims,
    mirror_json,
)
from tolerant_client.mirror.state.carriers import START_UNTOLD, can_tell_copies
from tolerant_client.mirror.state.claims import Run
from tolerant_client.mirror.state.control_record import CONTROL_TOPIC, Controls
from tolerant_client.mirror.state.control_topic import control_topic, read_controls
from tolerant_client.mirror.state.health import utc
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.link_topics import some
from tolerant_client.mirror.state.map_topic import lost_map, mapped_links
from tolerant_client.mirror.state.topic_filter import LinkTopics

Found = Literal["known", "unreadable", "gone", "starting"]


class ListedLink(NamedTuple):
    """A link of a target; `control` is None if its record cannot be read or is gone, `is_seen` False if the claims cannot be read.

    `found` says of the control whether it is known, unreadable, or gone: it says nothing of what the link copies, though a mirror of it
    has copied, or the target has its offset map; while its mirror is starting, it may not be written yet.  `has_map`: the target has a
    map of this name.  `waits` are mirrors beside `mirror` that are alive and hold no partition.
    """

    link: str
    control: LinkControl | None
    mirror: Run | None
    is_seen: bool
    has_map: bool
    found: Found = "known"
    waits: tuple[Run, ...] = ()
    # Whether its copies are there, and neither a control nor a map; None: nothing tells that.
    is_lost: bool | None = False

    @property
    def offsets(self) -> str | None:
        """Which offsets its copies have, identical or translated; None if nothing shows it: it has not copied yet."""
        if self.control is not None and self.control.is_identical:  # a map beside it is of a former link of this name
            return "identical"
        is_said = self.control is not None and self.control.map_id is not None
        return "translated" if is_said or self.has_map or self.is_lost else None

    @property
    def offsets_words(self) -> str:
        """Its offsets, as text."""
        if self.offsets or self._given_topics is None:
            return self.offsets or "unknown"
        if self.control is not None and (self.control.adopted or self.control.generation):
            return "none copied since failback or take-over prepared it"
        return "not copied yet"

    @property
    def topics(self) -> str:
        """The topics that its mirror was started with, as text."""
        given = self._given_topics
        return "unknown" if given is None else str(given)

    @property
    def _given_topics(self) -> LinkTopics | None:
        written = None if self.control is None else self.control.topics
        return None if written is None else LinkTopics.from_json(written)

    @property
    def state(self) -> str:
        """What its operator has ordered, and whether a mirror of it runs, as text."""
        control = self.control
        if self.found == "gone":
            start = START_UNTOLD if self.is_lost is None else "start its mirror"
            remedy = f"{start}, or, if it was promoted or its source is gone, run tolerant-kafka failover with --topics"
            if self.mirror is not None and self.mirror.is_alive:
                remedy = "stop its mirror and start it again"
            gone = "its control is gone"
            if self.is_lost:
                gone = "its control and its offset map are gone, so how far it has copied is unknown, and its mirror does not start again"
                remedy = "run tolerant-kafka status with --topics; or, if it was promoted or its source is gone, failover with --topics"
            return f"{gone}, {remedy}; {self._mirror_words}"
        if self.found == "starting":
            return f"its control is not written yet; {self._mirror_words}"
        if control is None:
            return "unreadable: run tolerant-kafka repair"
        said = [
            word
            for word, holds in (
                ("promoted", control.is_promoted),
                ("promotion not finished", control.is_half_promoted),
                ("handed back", control.is_handed_back),
                (f"paused: {', '.join(control.paused_words)}", bool(control.paused_words)),
            )
            if holds
        ]
        return "; ".join([*said, self._mirror_words])

    @property
    def _mirror_words(self) -> str:
        run = self.mirror
        if not self.is_seen:
            return "whether a mirror runs is unknown"
        if run is None:
            return "no mirror was seen in the last hour"
        where = f"on {run.host}, process {run.pid}"
        if run.is_alive:
            others = [f"; another process on {one.host}, process {one.pid}, {WAITS}" for one in self.waits]
            return f"runs {where}, since {utc(run.since_ms)}" + "".join(others)
        return f"{'ended' if run.is_ended else 'last seen'} {where}, at {utc(run.seen_ms)}"

    def to_json(self) -> dict[str, Any]:
        control = self.control
        given = self._given_topics
        filters = None if given is None else [asdict(one) for one in (given.filter, *given.also)]
        return {
            "link": self.link,
            "control": self.found,
            "is_readable": control is not None,
            "offsets": self.offsets,
            "source_cluster_id": None if control is None else control.source_cluster_id,
            "topics": filters,  # the link copies a topic that matches one: regular expressions over the whole source name
            "is_promotion_begun": None if control is None else control.is_promotion_begun,
            "is_promoted": None if control is None else control.is_promoted,
            "is_handed_back": None if control is None else control.is_handed_back,
            "paused": None if control is None else control.paused_words,
            "mirror": None if self.mirror is None else mirror_json(self.mirror),
            "is_mirror_known": self.is_seen,
            "waiting_mirrors": [mirror_json(run) for run in self.waits],
        }


@dataclass(frozen=True)
class Listing:
    """The links of a target that are known, ordered by name; `unknown` says why it may have more, None if these are all."""

    links: tuple[ListedLink, ...]
    unknown: str | None = None

    @property
    def exit_code(self) -> int:
        """3 if it is unknown which links there are, or what one of them is."""
        return 3 if self.unknown is not None or any(link.found in ("unreadable", "gone") for link in self.links) else 0

    def to_json(self) -> dict[str, Any]:
        links = [link.to_json() for link in self.links]
        return {"links": links, "unknown": self.unknown, "exit_code": self.exit_code}


def listed(
    controls: Controls,
    runs: Iterable[Run] | None,
    maps: AbstractSet[str] = frozenset(),
    *,
    has_controls: bool = True,
    lost: Mapping[str, bool | None] = MappingProxyType({}),
) -> Listing:
    """The links of a target; `runs` are in the order of the log, None if they are unknown.  Pure.

    `maps` are the links that have an offset map on the target, which `has_controls` if there is a topic of controls; `lost` says of
    those that have neither whether their copies are there (ListedLink).
    """
    by_link: dict[str, list[Run]] = {}
    for run in runs or ():
        by_link.setdefault(run.link, []).append(run)
    # Of several that are alive, the newest that holds partitions.
    newest = {
        link: max(reversed(known), key=lambda run: (run.is_alive, run.is_alive and run.holds))
        for link, known in by_link.items()
    }
    unreadable = {record.key for record in controls.unreadable}
    at_work_now = {link for link, run in newest.items() if run.is_alive}
    have_copied = maps | {link for link, is_lost in lost.items() if is_lost}
    have_copied |= {link for link, known in by_link.items() if any(run.has_copied for run in known)}
    unnamed = {link for link in have_copied if (control := controls.links.get(link)) is None or control.is_unwritten}
    found: dict[str, Found] = {
        **dict.fromkeys(controls.links, "known"),
        **{link: "starting" if link in at_work_now else "gone" for link in unnamed},
        **{link: "gone" for link, run in newest.items() if is_forgotten(controls.links.get(link), run)},
        **dict.fromkeys(unreadable, "unreadable"),
    }
    links = [
        ListedLink(
            link,
            None if link in unreadable else controls.links.get(link),
            newest.get(link),
            is_seen=runs is not None,
            has_map=link in maps,
            found=of_control,
            is_lost=lost.get(link, False),
            waits=tuple(run for run in at_work(by_link.get(link, ())) if not run.holds and run is not newest[link]),
        )
        for link, of_control in sorted(found.items())
    ]
    gone = [link.link for link in links if link.found == "gone"]
    return Listing(tuple(links), _why_unknown(gone, has_controls=has_controls))


def _why_unknown(gone: Sequence[str], *, has_controls: bool) -> str | None:
    """Why a target may have more links than are known, of which the control is `gone`; None if it has no more.  Pure."""
    if not has_controls:
        never = "" if gone else "nothing was ever mirrored to it, "
        return (
            f"This cluster has no topic {CONTROL_TOPIC}, so which links it has is unknown: {never}the topic was deleted, or we may not"
            " describe it"
        )
    if not gone:
        return None
    return (
        f"{CONTROL_TOPIC} says nothing of link {some(gone)}, so it was deleted, or records of it were: this cluster may have more"
        " links, since one with identical offsets that has not started again has left nothing that names it"
    )


def in_doubt(runs: Iterable[Run]) -> bool:
    """Whether a mirror that only waits is alive, and the one for which it waits was not seen yet.  Pure."""
    known = list(runs)
    of_link = {one.link: [run for run in known if run.link == one.link] for one in known if one.is_alive}
    return not all(map(is_told, of_link.values()))


async def list_links(target: Cluster, named: str | None = None) -> Listing:
    """The links of a target, also the one that is `named` if nothing but its copies tells of it.

    Waits some seconds until each running mirror has renewed its record.  Raises KafkaError.
    """
    before, began = await look_at_claims(target), time.monotonic()
    runs: list[Run] | None = None
    while before is not None and (now := await look_at_claims(target)) is not None:
        runs = now.runs(before)
        waited_s = time.monotonic() - began
        if all(run.is_alive or run.is_ended for run in runs) or waited_s >= (LEASE_S if in_doubt(runs) else RENEWED_S):
            break
        runs = None
        await target.net.sleep(LOOK_AGAIN_S)
    maps = await mapped_links(target)
    controls = await read_controls(target)  # after the mirrors were seen, which is_forgotten needs, and their maps
    untold = {run.link for run in runs or ()}.union(() if named is None else [named]) - maps
    lost = dict[str, bool | None]()
    for link in untold:
        if (control := controls.links.get(link, LinkControl())).is_unwritten:
            is_lost = await lost_map(target, link, control) is not None
            lost[link] = is_lost or (False if await can_tell_copies(target) else None)
    return listed(controls, runs, maps, has_controls=await control_topic(target).exists(), lost=lost)

"""Which topics promotions have moved to a cluster, and which cluster is the primary of a topic: the one of its last move.  Pure.

Laws:
- A promotion writes when it has moved each topic (LinkControl.primary_since), at a moment after every move that its target knows, and
  after those that its source knew when the link was started, or prepared, there.  So the moves of a topic to and fro are in one order
  on both clusters, however their operators' clocks differ; between clusters that know nothing of each other the clocks decide.
- A move stays known when its link begins again, and tells of the topic with that id alone.
- What is undone, what is home, and which link leads clients back are questions of that order, and of nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.link_topics import is_heartbeats
from tolerant_client.mirror.state.topic_filter import LinkTopics


class Move(NamedTuple):
    """When a promotion of a link has moved a topic (ms since 1970)."""

    since_ms: int
    link: str


def copied_topics(control: LinkControl) -> list[str]:
    """What a promoted link has copied, as far as its control says it, but for heartbeats, which are no data."""
    names = {p.topic for p in (*control.copied_until, *control.begun)}
    topics = None if control.topics is None else LinkTopics.from_json(control.topics)
    return sorted(name for name in names if topics is None or not is_heartbeats(topics, name))


def moved_topics(control: LinkControl) -> dict[str, int]:
    """The topics that promotions of this link have moved to its target, and when."""
    said = {name: control.moved_ms(name) for name in control.primary_since or copied_topics(control)}
    return {name: since_ms for name, since_ms in said.items() if since_ms is not None}


def last_moves(links: Mapping[str, LinkControl]) -> dict[str, Move]:
    """The last move of each topic to the cluster of these links."""
    found: dict[str, Move] = {}
    for link, control in sorted(links.items()):
        for name, since_ms in moved_topics(control).items():
            found[name] = max(found.get(name, Move(-1, "")), Move(since_ms, link))
    return found


def undone(control: LinkControl, back: Mapping[str, LinkControl]) -> dict[str, str]:
    """The topics that this link's promotion has moved, and links `back` into its source after that; and which one."""
    later = last_moves(back)
    return {
        name: later[name].link
        for name, since_ms in moved_topics(control).items()
        if control.has_moved(name) and name in later and later[name].since_ms > since_ms
    }


def forgotten(former: LinkControl, brought: Collection[str], into_source: Mapping[str, LinkControl]) -> list[str]:
    """What the link was promoted with and is not `brought` back, unless links into the source have undone that.

    If the link is prepared again, nothing says so any more.  `former` is its control with the topics that the target still has.
    """
    if not former.is_promotion_begun:
        return []
    past = undone(former, into_source)
    return [name for name in copied_topics(former) if name not in past and name not in brought]


def at_home(into_source: Mapping[str, LinkControl], into_target: Mapping[str, LinkControl]) -> dict[str, str]:
    """The topics of which the target is the primary, and the link that has brought each: they were on the source, and moved after that.

    If the source tells of no move, nothing shows that it was not the primary since.
    """
    there, here = last_moves(into_source), last_moves(into_target)
    return {name: move.link for name, move in here.items() if name in there and move.since_ms > there[name].since_ms}


def moved_until_ms(links: Mapping[str, LinkControl]) -> int | None:
    """When the last topic was moved to the cluster of these links; None if none was."""
    return max((move.since_ms for move in last_moves(links).values()), default=None)


def next_move_ms(links: Collection[LinkControl], now_ms: int) -> int:
    """The moment of a move to the cluster of these links: now, but after all that they know of."""
    known = [control.undoes_until_ms or 0 for control in links]
    known += [since_ms for control in links for since_ms in moved_topics(control).values()]
    return max(now_ms, max(known, default=0) + 1)

"""Which topics promotions have moved to a cluster, and when: so which cluster is the primary of each; pure.

Laws:
- A promotion writes when it has moved each topic (LinkControl.primary_since): after every move that its target knows of, and after the
  topic's last move to its source that the link's mirror, failback, or `promote` has seen there (`known_moves`).  So the moves of a topic
  to and fro are in one order, whatever the clocks say.  Where the controls could not be read, or for a failover of a link that had no
  mirror since its source's own promotion (one that runs learns of it within 30 s), the clocks decide, and a move from a third cluster is not
  known to go on from there.
- Version 0.1 wrote no moments: of what a failover by it had left for later, all topics count as moved once it is finished.
- A link also knows of the moves that a link which copies the topic into its source knows of: a way home may go over a third cluster.
- A move counts until a later one, also once its link begins again, and, on failback's target, while the topic has that id.
- A move takes a topic on from a cluster if its link copies from there, or may do so (a failover without a control does not know its
  source), or knew of the topic's last move to there.  A later move that does neither, such as the promotion of a link upstream that
  nobody needs any more, takes nothing away from that cluster.
- What is undone, what is home, and which link leads clients back are questions of that order, and of nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.link_topics import is_heartbeats
from tolerant_client.mirror.state.topic_filter import LinkTopics


class Move(NamedTuple):
    """When a promotion of a link has moved a topic (ms since 1970)."""

    since_ms: int
    link: str


def copied_topics(control: LinkControl) -> list[str]:
    """The topics that a link has copied or begun, as far as its control says it, without heartbeats, which are no data."""
    names = {p.topic for p in (*control.copied_until, *control.begun)}
    topics = None if control.topics is None else LinkTopics.from_json(control.topics)
    return sorted(name for name in names if topics is None or not is_heartbeats(topics, name))


def moved_topics(control: LinkControl) -> dict[str, int]:
    """The topics that promotions of this link have moved to its target, also before it began again, and when."""
    said = {name: control.moved_ms(name) for name in (*control.primary_since, *copied_topics(control))}
    return {name: since_ms for name, since_ms in said.items() if since_ms is not None}


def last_moves(
    links: Mapping[str, LinkControl], counts: Callable[[LinkControl, str, int], bool] | None = None
) -> dict[str, Move]:
    """The last move of each topic to the cluster of these links; if only some moves are to count, `counts` tells which."""
    found: dict[str, Move] = {}
    for link, control in links.items():
        for name, since_ms in moved_topics(control).items():
            if counts is None or counts(control, name, since_ms):
                found[name] = max(found.get(name, Move(-1, "")), Move(since_ms, link))
    return found


def taken_on(
    links: Mapping[str, LinkControl], moved_there: Mapping[str, int | None], cluster_id: str | None
) -> dict[str, str]:
    """The link that has last moved each topic on from the cluster with this id, if one of these links has.

    `moved_there`: when each topic was last moved to that cluster (None: never).
    """

    def counts(control: LinkControl, name: str, moved_ms: int) -> bool:
        if name not in moved_there:
            return False
        there_ms = moved_there[name]
        if there_ms is not None and moved_ms <= there_ms:
            return False
        knew = there_ms is not None and control.known_moves.get(name, -1) >= there_ms
        return knew or cluster_id is None or control.may_copy_from(cluster_id)

    return {name: move.link for name, move in last_moves(links, counts).items()}


def undone(control: LinkControl, into_source: Mapping[str, LinkControl]) -> dict[str, str]:
    """The topics that this link's promotion has moved, and a link `into_source`, its source, has taken on since; and which one."""
    moved_there = {name: since_ms for name, since_ms in moved_topics(control).items() if control.has_moved(name)}
    return taken_on(into_source, moved_there, control.target_cluster_id)


def unsaid_moves(former: LinkControl, brought: Collection[str], into_source: Mapping[str, LinkControl]) -> list[str]:
    """What the link was promoted with and is not `brought` back, unless links into the source have undone that.

    If the link is prepared again, nothing says so any more.  `former` is its control with the topics that the target still has.
    """
    if not former.is_promotion_begun:
        return []
    past = undone(former, into_source)
    return [name for name in copied_topics(former) if name not in past and name not in brought]


def at_home(
    into_source: Mapping[str, LinkControl], into_target: Mapping[str, LinkControl], source_id: str | None
) -> dict[str, str]:
    """The topics of which the target is the primary, and the link that has brought each from the source, the cluster with this id."""
    there = last_moves(into_source)
    moved_there = {name: there[name].since_ms if name in there else None for name in last_moves(into_target)}
    return taken_on(into_target, moved_there, source_id)


def known_moves(
    links: Mapping[str, LinkControl], topics: Iterable[str], wire_topic: Callable[[str], str]
) -> dict[str, int]:
    """When these topics were last moved to the cluster of these links, where the name of each is its `wire_topic`.

    Or to another cluster, whose moves a link that copies the topic from there knows of.
    """
    moves = {name: move.since_ms for name, move in last_moves(links).items()}
    for control in links.values():
        for name, since_ms in control.known_moves.items():
            if control.is_identical and control.writes(name):  # one that was only prepared has copied nothing there
                moves[name] = max(moves.get(name, -1), since_ms)
    return {name: moves[there] for name in topics if (there := wire_topic(name)) in moves}


def next_move_ms(links: Collection[LinkControl], now_ms: int) -> int:
    """The moment of a move to the cluster of these links: now, but after all that they know of."""
    known = [
        since_ms for control in links for since_ms in (*control.known_moves.values(), *moved_topics(control).values())
    ]
    return max(now_ms, max(known, default=0) + 1)

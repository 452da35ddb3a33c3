"""Tells a client that a promotion has moved when the way back is promoted, so that it goes home.

Laws:
- A link's control has the last moves of its topics to its source that its mirror, failback or promotion has seen (LinkControl.known_moves).  A client
  follows, into the cluster that it has left, a link from the cluster where it is that knew of the client's own move.  So nobody has to
  name the way back, and an older one says nothing, whatever was lost or renamed since: moves are in one order (moves.py).  So links
  lead nobody in a circle, and need no other proof that they are the client's.
- The way back must copy all topics of the client that L had copied, or all that L had copied while the client has none (which is being
  made, or has not written yet): of links that copy a part each, none is followed, with a warning.
- A promoted link back has brought home only what the cluster there still has: a topic that was deleted since, or another one of its name, which
  another link may be filling, is none that it leads to.  So that cluster is asked once the link is promoted, and leads nobody before it tells
  (a topic that it hides counts as there).  A client without topics may need any of them, but is not held by what was deleted, or created
  again, at home by whoever works there: only by what another link back is to bring, or if nothing is there.
- A topic counts only if it is at home where the client is: heartbeats are not, which no link copies back, nor is a topic that was deleted
  there, also if one of its name was created since: the control has the id of the one that was copied (brokers before 2.8 give none: there
  the name alone decides).  But a client of nothing else stays with a topic that was created again.  So that cluster is asked, but only for
  topics that a link back lacks: what it says last counts, also once it is lost, and while it has said nothing (it is silent, hides the
  topic, or its broker has just started and knows none), all topics do.
- A record of a link back that cannot be read tells nothing: the one before it counts, as for everybody who looks at all links.
- Who learns late of a promotion may learn at once of those that followed: it goes where the last one has led, and nowhere in between.
  So the cluster that it would leave is asked for FIRST_WORD_S, for PROMPT_S only where no other promotion can have followed yet.
- The cluster that the client has left is asked what its group has committed there, once all that move together have gone, and again
  after _COMMITS_PAUSE_S, since members that begin wait for it.
- A client that is made RECENT_S after a promotion, by the clocks of both, does not ask where its group was before: an operator may have
  set, or deleted, what it has committed where it begins, or created the topic again.
- The cluster that the client has left may be lost for good: it is asked again for as long as the client lives, PAUSE apart, and nobody
  is warned of its silence.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.groups import fetch_offsets
from tolerant_client.cluster.admin.topics import visible_topics
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.patience import Backoff
from tolerant_client.errors import OptionError, text_of
from tolerant_client.mirror.standby.link_watch import WAIT_MS, LinkWatch
from tolerant_client.mirror.state.control_record import CONTROL_TOPIC, by_link, controls_of, counting_of
from tolerant_client.mirror.state.control_topic import ControlFollower
from tolerant_client.mirror.state.link_control import LinkControl, TopicIds
from tolerant_client.mirror.state.link_topics import is_heartbeats
from tolerant_client.mirror.state.moves import moved_topics
from tolerant_client.mirror.state.topic_filter import LinkTopics
from tolerant_client.mirror.state.topics import read_ids
from tolerant_client.records.record_batch import Record
from tolerant_client.stock.group_commits import OWNERS_S
from tolerant_client.stock.moved_member import READS_ON_S
from tolerant_client.stock.moving import Destination

log = logging.getLogger(__name__)

PAUSE: Final = Backoff(0.1, 10.0)
_COMMITS_PAUSE_S: Final = 0.1
RECENT_S: Final = 120.0  # since a promotion
_TELLS_MS: Final = 1_000  # for which the cluster where the client is may take to connect, and to tell its topics


class Led(NamedTuple):
    """Where a promotion leads clients: that of `link`, whose control is given, from the cluster `left` to the one `here`.

    `left_at`: where the logs of `here` ended when clients left it, if they come back.
    """

    link: str
    control: LinkControl
    here: Mapping[str, Any]
    left: Mapping[str, Any]
    left_at: Mapping[TopicPartition, int] = {}

    def is_recent(self, now_s: float) -> bool:
        """Whether members of a group that it moves, or that are started again for it, may still be on their way; since the epoch."""
        return self.control.is_younger(RECENT_S, now_s)


class LinksBack(ControlFollower):
    """The `links` into `cluster` that bring back a part, at least, of what the promotion with the control `left` has moved."""

    def __init__(self, cluster: Cluster, left: LinkControl) -> None:
        super().__init__(cluster)
        self._moved_to = left.target_cluster_id
        self._moved = {name: moved_ms for name, moved_ms in moved_topics(left).items() if left.has_moved(name)}
        self.links: dict[str, LinkControl] = {}
        self._counting: dict[str, Record] = {}  # of each link

    def _take(self, records: list[Record], is_other: bool) -> None:
        if is_other:
            self.links, self._counting = {}, {}
        keys = {record.key for record in records}
        again = [record for record in self._counting.values() if record.key in keys]
        found = {link: counting_of(of_link) for link, of_link in by_link([*again, *records]).items()}
        news = {link: record for link, record in found.items() if record is not None}
        self._counting = {link: r for link, r in self._counting.items() if r.key not in keys} | news
        links = {**self.links, **controls_of(news.values(), None).links}
        self.links = {link: c for link, c in links.items() if link in self._counting and self.brought(c)}

    def brought(self, control: LinkControl) -> set[str]:
        """Which topics a link copies back, or has brought home."""
        home = moved_topics(control) if control.is_promoted else None
        return {
            name
            for name, moved_ms in self._moved.items()
            if control.brings_back(name, self._moved_to, moved_ms) and (home is None or home.get(name, -1) > moved_ms)
        }


class WayBack(LinkWatch):
    """The link into the cluster that `led` has led the client from (each cluster in kafka-python's keys) which undoes that promotion.

    `topics` says those of the client, none before it is made; called in the watch's thread.  `link` is the way back, as soon as there
    is one.
    """

    pause = PAUSE

    def __init__(self, led: Led, topics: Callable[[], set[str]]) -> None:
        super().__init__(led.left, led.link, name="cluster that the client has left")
        self._led, self._left_by, self._left, self._topics = led, led.link, led.control, topics
        self._names = None if led.control.topics is None else LinkTopics.from_json(led.control.topics)
        self._here = Cluster(led.here, self._net, name="cluster where the client is", patience_ms=_TELLS_MS)
        self._clusters.append(self._here)
        self._gone: set[str] = set()  # as that has told last, and which of them were created again there
        self._anew: set[str] = set()
        self.group_commits: Mapping[TopicPartition, int] | None = None  # asked by destination()
        self._back = LinksBack(self.cluster, led.control)

    def destination(self, group: str | None) -> Destination:
        """What a client needs to know where it is led, after `start`; what its group has committed on the cluster that it has left is asked."""
        if group is not None:
            self._net.call_soon_with_future(self._find_commits, group)
        here, left_at, left = self._led.here, self._led.left_at, self._left

        def was_created_again(partition: TopicPartition, topic_id: str) -> bool:
            return left.was_created_again(partition, TopicIds(target=topic_id))

        return Destination(here, left.copied_until, left.writes, left_at, lambda: self.group_commits, was_created_again)

    async def _find_commits(self, group: str) -> None:
        ends = time.monotonic() + OWNERS_S
        await self._net.sleep(READS_ON_S)
        while time.monotonic() < ends and not self.is_closed:
            try:
                found, failures = await fetch_offsets(self.cluster, [group])
                for error in failures.values():
                    raise error
                self.group_commits = {tp: committed.offset for tp, committed in found[group].items()}
                return
            except Exception as error:  # the cluster may be lost, or tell nobody
                log.debug("What group %s had committed on the %s: %s", group, self.cluster.name, text_of(error))
            await self._net.sleep(_COMMITS_PAUSE_S)

    @property
    def unknown(self) -> str:
        """What to say while the cluster tells nothing."""
        return f"Whether there is a way back of link {self._left_by} is unknown"

    async def control(self) -> LinkControl:
        """The present control of the way back, an unwritten one if there is none yet; raises as LinkWatch does."""
        await self.cluster.connect(self._patience_ms)
        await self._back.follow()
        if not (links := self._back.links):
            return LinkControl()
        gone: set[str] = set()
        while (link := await self._whole(links, needed := self._needed(gone))) is None:
            if not (more := await self._gone_from_here(needed) - gone):
                raise OptionError(
                    f"Links {', '.join(sorted(links))} copy back parts of what link {self._left_by} had copied, as far as it is still"
                    f" there, and none all that the client needs ({', '.join(sorted(needed))}): it does not follow them. Prepare one link back for all of these, or"
                    " use a client without standby for each cluster"
                )
            gone |= more
        self.link = link
        return self.require_followed(links[link])

    def _needed(self, gone: set[str]) -> set[str]:
        """The topics that a link back has to copy: the client's, or all of the link while it has none, but for those that do not count."""

        def counts(topic: str) -> bool:
            return not (self._names is not None and is_heartbeats(self._names, topic)) and self._left.writes(topic)

        own = set(filter(counts, self._topics()))
        return own - gone or own & self._anew or set(filter(counts, {p.topic for p in self._left.copied_until})) - gone

    async def _whole(self, links: Mapping[str, LinkControl], needed: set[str]) -> str | None:
        """The first link that copies all of these topics, or has brought them home; raises KafkaError while that is unknown."""
        brings = {link: self._back.brought(control) & needed for link, control in links.items()}
        promoted = {link: control for link, control in links.items() if control.is_promoted and brings[link]}
        if promoted:
            there = await _topics_at(self.cluster, needed)
            home = {link: brings[link] - _lost(control, brings[link], there) for link, control in promoted.items()}
            if needed.isdisjoint(self._topics()) and not needed.isdisjoint(there):
                # A client without topics: what nobody is to bring home was retired, or created again, there.
                is_home = set().union(*home.values())
                coming = set().union(*(brings[link] for link in links.keys() - promoted.keys()))
                for link, control in promoted.items():
                    moved = {p.topic for p in control.copied_until}
                    home[link] = brings[link] & (is_home | moved - coming)
            brings |= home
        return next((link for link in sorted(links) if brings[link] == needed), None)

    async def _gone_from_here(self, topics: set[str]) -> set[str]:
        """Those of these topics that the cluster where the client is has no more, as far as it tells at once, or has told."""
        try:
            await self._here.connect(_TELLS_MS)
            there = await self._here.heard(self._net.call_soon_with_future(_topics_at, self._here, topics), _TELLS_MS)
        except Exception as error:  # it may be the lost one now
            log.debug("Which topics the %s still has is unknown: %s", self._here.name, text_of(error))
        else:
            lost = _lost(self._left, topics, there)
            self._gone, self._anew = (self._gone - topics) | lost, (self._anew - topics) | lost & there.keys()
        return self._gone & topics

    async def _changed(self) -> None:
        await self._back.changed(WAIT_MS)

    def _tell(self, error: Exception) -> None:
        if isinstance(error, OptionError | Errors.AuthorizationError):
            super()._tell(error)
        else:
            log.debug("%s: %s", self.unknown, text_of(error))


async def _topics_at(cluster: Cluster, topics: set[str]) -> dict[str, TopicIds]:
    """Those of these topics that a cluster has, or hides, with their ids as far as it tells them; raises KafkaError if it tells nothing."""
    there, hidden = await visible_topics(cluster, {*topics, CONTROL_TOPIC})
    if CONTROL_TOPIC not in there:
        raise Errors.KafkaError(f"the {cluster.name} knows no topic yet")
    ids = await read_ids(None, cluster, topics & there.keys())
    return {**dict.fromkeys([*there, *hidden], TopicIds()), **ids}


def _lost(control: LinkControl, topics: set[str], there: Mapping[str, TopicIds]) -> set[str]:
    """Those of these copies of a link that are not there, or are another topic of that name, as far as ids are known."""
    begun = [p for p in control.begun if p.topic in there]
    same = {p.topic for p in begun if not control.was_created_again(p, there[p.topic])}
    return topics - (there.keys() - {p.topic for p in begun} | same)


def led_on(led: Led, topics: Callable[[], set[str]], within_s: float) -> tuple[Led, WayBack]:
    """Where the promotions after this one have led, as far as each cluster tells within a time; with the watch for the next one."""
    while True:
        back = WayBack(led, topics)
        try:
            control = back.start().result(within_s)
        except Exception:  # it is asked again, and says what is wrong
            return led, back
        if not control.is_promoted:
            return led, back
        back.close()
        led = Led(back.link, control, here=led.left, left=led.here, left_at=led.control.copied_until)

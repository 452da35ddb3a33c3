"""Tells a client that a promotion has moved when the way back is promoted, so that it goes home.

Laws:
- A link's control says which promotions had led to its source before it was started (LinkControl.undoes).  A client that link L's
  promotion has moved follows, into the cluster that it has left, the link that undoes this promotion of L or a later one.
  So nobody has to name the way back, and the promotion of a way back that is older says nothing.
- The way back must copy all topics that L copied for the client: of links that copy a part each, none is followed, with a warning.
- The cluster that the client has left may be lost for good: it is asked again for as long as the client lives, PAUSE apart, and nobody
  is warned of its silence.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

import kafka.errors as Errors

from tolerant_client.cluster.patience import Backoff
from tolerant_client.errors import OptionError, text_of
from tolerant_client.mirror.standby.link_watch import WAIT_MS, LinkWatch
from tolerant_client.mirror.state.control_record import controls_of
from tolerant_client.mirror.state.control_topic import control_topic
from tolerant_client.mirror.state.link_control import LinkControl

log = logging.getLogger(__name__)

PAUSE: Final = Backoff(0.1, 10.0)


class WayBack(LinkWatch):
    """The link into the cluster that `home` (kafka-python's keys) connects to which undoes the promotion of `left_by`.

    `left` is the control of that link.  `link` is the way back, as soon as there is one.
    """

    pause = PAUSE

    def __init__(self, home: Mapping[str, Any], left_by: str, left: LinkControl) -> None:
        super().__init__(home, left_by, name="cluster that the client has left")
        self._left_by, self._left = left_by, left
        self._links: dict[str, LinkControl] = {}
        self._position, self._topic_id = 0, ""

    @property
    def unknown(self) -> str:
        """What to say while the cluster tells nothing."""
        return f"Whether there is a way back of link {self._left_by} is unknown"

    async def control(self) -> LinkControl:
        """The present control of the way back, an unwritten one if there is none yet; raises as LinkWatch does."""
        await self.cluster.connect(self._patience_ms)
        await self._read()
        if not self._links:
            return LinkControl()
        needed = set() if self.follower is None else self.follower.needs(self._left)
        for link, control in sorted(self._links.items()):
            if all(map(control.writes, needed)):
                self.link = link
                return self.require_followed(control)
        raise OptionError(
            f"Links {', '.join(sorted(self._links))} copy back parts of what link {self._left_by} had copied, and none all topics of the"
            f" client ({', '.join(sorted(needed))}): it does not follow them. Prepare one link back for all topics, or make a new client"
        )

    async def _read(self) -> None:
        topic = control_topic(self.cluster)
        if not await topic.exists():
            self._links, self._topic_id = {}, ""
            return
        end = await topic.end()
        if (end, topic.id) == (self._position, self._topic_id):
            return
        found = controls_of(await topic.records(0, end), None).links
        self._links = {
            link: control
            for link, control in found.items()
            if self._left.generation <= control.undoes.get(self._left_by, -1)
        }
        self._position, self._topic_id = end, topic.id

    async def _changed(self) -> None:
        if self._topic_id:
            await control_topic(self.cluster).fetch(self._position, max_wait_ms=WAIT_MS)
        else:
            await self.cluster.net.sleep(WAIT_MS / 1000)

    def _tell(self, error: Exception) -> None:
        if isinstance(error, OptionError | Errors.AuthorizationError):
            super()._tell(error)
        else:
            log.debug("%s: %s", self.unknown, text_of(error))

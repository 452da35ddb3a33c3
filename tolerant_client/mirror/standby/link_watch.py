"""Tells a client when the link to its standby is promoted; on the client's event loop.

Laws:
- Only the control of the link decides (control_topic.py), never the client: neither silence of the source nor its own errors move it.
- A link is promoted once it is fenced, too: until then a process of it may still write to the standby.
- A client has no life that a promotion ends, as an engine has: only the newest control counts.  One of a later generation that is
  not promoted tells of a link that copies again, and the client stays.
- Whoever moves must know where the copies end, else it could pass over records.  A control that does not tell is followed by nobody
  in place; a client that is made then begins at the standby, where its group's offsets are.
- While the standby does not respond, refuses us or hides the control, nothing is known and nothing happens; it is asked again, and the
  log says each reason once.
- A link that failback has prepared, and that has not run yet, is one to follow: failback is for identical offsets only.
- It ends with its client, also with one that was never closed.
- One request waits at the standby, for at most WAIT_MS: it costs next to nothing, and tells of a promotion at once.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.patience import Backoff
from tolerant_client.errors import OptionError, text_of
from tolerant_client.mirror.state.control_topic import ControlWatch, control_topic
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.topic_filter import LinkTopics

log = logging.getLogger(__name__)

WAIT_MS: Final = 10_000
_PAUSE: Final = Backoff(0.1, 1.0)
_SOME_TOPIC: Final = "orders"
_NUMBERS: Final = re.compile(r"\d+")


class NewestControl(ControlWatch):
    """What the newest record says, whatever generation was read before."""

    def _as_of_our_life(self, control: LinkControl) -> LinkControl:
        return control


class LinkWatch:
    """The link `link` into the cluster that `standby` (kafka-python's keys) connects to; `net` is the client's event loop."""

    def __init__(self, standby: Mapping[str, Any], link: str, net: Any = None, *, patience_ms: int = 5_000) -> None:
        self.cluster = Cluster(standby, net, name="standby", patience_ms=patience_ms)
        self._control = NewestControl(self.cluster, link)
        self._link = link
        self._patience_ms = patience_ms

    async def control(self) -> LinkControl:
        """The present control; raises OptionError for a link that clients cannot follow, KafkaError if the standby does not respond."""
        await self.cluster.connect(self._patience_ms)
        control = await self._control.refresh()
        if control.is_unwritten:
            raise OptionError(f"The standby knows no link {self._link}: check link, or start its mirror first")
        if control.map_id is not None:
            raise OptionError(
                f"Link {self._link} has translated offsets, and a client cannot keep its positions there: follow a link with identical ones"
            )
        if control.is_promotion_begun and not control.is_identical:
            raise OptionError(
                f"Link {self._link} was promoted and has never run with identical offsets, so nothing tells where a client's"
                " positions are there: follow another link"
            )
        if control.topics is not None and LinkTopics.from_json(control.topics).to_target(_SOME_TOPIC) != _SOME_TOPIC:
            raise OptionError(
                f"Link {self._link} gives topics other names on the standby: a client can follow a link that keeps their names only"
            )
        return control

    @property
    def unknown(self) -> str:
        """What to say while the standby tells nothing."""
        return f"Whether link {self._link} is promoted is unknown"

    async def promoted(self, is_wanted: Callable[[], bool] = lambda: True) -> LinkControl | None:
        """The control of the link once it is promoted and fenced, however long that takes; None after close(), or if not wanted.

        Raises OptionError for a promoted link whose control does not tell where its copies end.
        """
        failures, told = 0, set[str]()
        while is_wanted() and not self.is_closed:
            try:
                control = await self.control()
                if control.is_promoted:
                    break
                await self._changed()
                failures, told = 0, set()
            except Exception as error:
                failures += 1
                reason = _NUMBERS.sub("", text_of(error))
                if reason not in told and not self.is_closed:
                    told.add(reason)
                    log.warning("%s: %s", self.unknown, text_of(error))
                await self.cluster.net.sleep(_PAUSE.pause_s(failures))
        else:
            return None
        if not control.copied_until and (control.begun or control.copied):
            raise OptionError(
                f"Link {self._link} is promoted, and its control does not tell where its copies end: the client stays where it is. Make a"
                " new one, which begins at the standby"
            )
        return control

    async def _changed(self) -> None:
        """Waits until the control topic has a new record, or WAIT_MS are over."""
        await control_topic(self.cluster).fetch(self._control.position, max_wait_ms=WAIT_MS)

    @property
    def is_closed(self) -> bool:
        """Whether it has been closed."""
        return bool(self.cluster.manager.closed)

    def close(self) -> None:
        """Closes the connections to the standby, which ends `promoted`."""
        self.cluster.close()

"""What a client does when the link that it follows is promoted: it moves, or stays where the last promotion has led already."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

import kafka.errors as Errors

from tolerant_client.errors import OptionError
from tolerant_client.mirror.standby.copied_records import find_copies
from tolerant_client.mirror.standby.link_watch import FIRST_WORD_S, PROMPT_S
from tolerant_client.mirror.standby.way_back import Led, led_on
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.stock.moving import Mover

log = logging.getLogger(__name__)


class Follower:
    """What a client makes of the controls of the link that leads `to` another cluster; it does not keep the client alive.

    `moved_by`: the control of the promotion that has led the client to where it is.  The link that is followed undoes that promotion
    (way_back.py), so no other proof is needed that it is the client's.
    """

    def __init__(
        self, mover: Mover, own: Mapping[str, Any], to: Mapping[str, Any], moved_by: LinkControl | None = None
    ) -> None:
        self._mover = mover
        self._own, self._to = own, to
        self._moved_by = moved_by
        self._told: set[str] = set()  # topics outside the link

    @property
    def is_wanted(self) -> bool:
        """Whether the client is still there, and not closed."""
        return self._mover.is_wanted

    def heard(self, link: str, control: LinkControl) -> None:
        """Raises OptionError for a link that does not copy from the client's cluster; warns of topics that it does not copy."""
        if self._mover.is_moving:
            raise Errors.KafkaError(f"link {link} is considered once the client has left for where it moves to")
        if self._moved_by is None and not self._is_of_own_cluster(link, control):
            return
        if outside := {topic for topic in self._mover.topics() - self._told if not control.writes(topic)}:
            self._told |= outside
            log.warning(
                "Link %s does not copy %s: at its promotion positions there are reset (auto_offset_reset), and records go to topics of"
                " the standby's own. Use a client of their own for them",
                link,
                ", ".join(sorted(outside)),
            )

    def _is_of_own_cluster(self, link: str, control: LinkControl) -> bool:
        """Whether the link copies from the client's cluster, as far as that is known; raises OptionError if it does not."""
        copies_from, own = control.source_cluster_id, self._mover.cluster_id
        if copies_from is None:
            raise OptionError(
                f"Link {link} does not say from which cluster it copies: the client does not follow a link that may copy from"
                " another one. Start the link's mirror again, which writes the id, or make a new client after the promotion"
            )
        if own is None:  # with api_version kafka-python asks no broker before it has to: the next control is compared
            if control.is_promoted:
                log.warning("The client has not reached its own cluster: it begins at the target of link %s", link)
            return False
        if copies_from != own:
            raise OptionError(
                f"Link {link} copies from cluster {copies_from}, and the client's cluster is {own}: give the link that copies from"
                " that one, or the bootstrap_servers of the link's source. If the source was made anew: a client that is made after the"
                " link's promotion begins at the standby"
            )
        return True

    def needs(self, control: LinkControl) -> set[str]:
        """The topics of the link that the client will read on the standby: a producer reads what may have been copied."""
        return {topic for topic in self._mover.topics() if control.writes(topic)}

    @property
    def group(self) -> str | None:
        """The group of a consumer."""
        return self._mover.group

    def promoted(self, link: str, control: LinkControl, *, is_new: bool) -> None:
        """Has the client go where the last promotion has led, and follow the way back from there.

        `is_new`: hardly any has followed this one, so the cluster that may be lost is not waited for long.
        """
        left_at = {} if self._moved_by is None else self._moved_by.copied_until
        led = Led(link, control, here=self._to, left=self._own, left_at=left_at)
        led, back = led_on(led, self._mover.topics, PROMPT_S if is_new else FIRST_WORD_S)
        if led.here is self._to:
            find = partial(find_copies, led.here, led.control.copied_until)
            self._mover.begin(back.destination(self._mover.group), find)
        elif self._mover.hold_no_longer(partial(find_copies, led.here, None)):
            log.warning(
                'Link %s copies nothing any more, and its promotion was undone: acks="mirrored" is "all" from now on',
                link,
            )
        if (client := self._mover.client) is None:
            back.close()
        else:
            client._follow(back, Follower(self._mover, led.here, led.left, led.control))

"""What a running link learns of the moves of its topics to its source, where a promotion may come after the start of the link."""

from __future__ import annotations

import logging
from collections.abc import Collection

import kafka.errors as Errors

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import text_of
from tolerant_client.mirror.engine.circles import links_into
from tolerant_client.mirror.state.control_record import Controls
from tolerant_client.mirror.state.control_topic import ControlsWatch, update_control
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.moves import known_moves

_log = logging.getLogger(__name__)


class MovesWatch:
    """Follows the controls of the source of a link with identical offsets; on the event loop of both clusters.

    `generation` is the link's (LinkControl): the control of a later one is no longer that of this mirror.
    """

    def __init__(self, source: Cluster, target: Cluster, link: str, generation: int = 0) -> None:
        self._source, self._target = source, target
        self._link, self._generation = link, generation
        self._into_source = ControlsWatch(source.by_own_names())
        self._written: tuple[Controls, Collection[str]] | None = None  # what was last read, and for which topics

    async def write(self, topics: Collection[str]) -> None:
        """Writes into the link's control when these topics (names on the target) were last moved to its source, if that is news.

        Nothing if we may not read the source's controls, nor for a link that is over, or whose control was deleted; a warning where
        the target takes no control of that size.  Raises OptionError for a control that is not ours, and KafkaError.
        """
        controls = await links_into(self._source, None, self._into_source)
        if controls is None or self._written == (controls, topics):
            return
        moves = known_moves(controls.links, topics, self._source.wire_topic)

        def learned(now: LinkControl) -> LinkControl:
            is_ours = now.generation == self._generation and not (now.is_over or now.is_unwritten)
            return now.knowing(moves) if is_ours else now

        try:
            if moves:
                await update_control(self._target, self._link, learned)
        except Errors.MessageSizeTooLargeError as error:
            _log.warning("link %s does not note the promotions to its source: %s", self._link, text_of(error))
        self._written = controls, topics

"""What a running link learns of the moves of its topics to its source: a promotion there may come after its start."""

from __future__ import annotations

from collections.abc import Collection

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.mirror.engine.circles import links_into
from tolerant_client.mirror.state.control_topic import ControlsWatch, ControlWatch
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.moves import known_moves


class MovesWatch:
    """Follows the controls of the source of a link with identical offsets; on the event loop of both clusters."""

    def __init__(self, source: Cluster, target: Cluster, link: str) -> None:
        self._source = source
        self._into_source = ControlsWatch(source.by_own_names())
        self._control = ControlWatch(target, link)

    async def write(self, topics: Collection[str]) -> None:
        """Writes into the link's control when these topics (names on the target) were last moved to its source, if that is news.

        Nothing if we may not read the source's controls, nor for a link that is over, or whose control was deleted.  Raises
        OrdersHiddenError, OptionError for a control that is not ours, and KafkaError.
        """
        if (controls := await links_into(self._source, None, self._into_source)) is None:
            return
        moves = known_moves(controls.links, topics, self._source.wire_topic)

        def learned(now: LinkControl) -> LinkControl:
            return now if now.is_over or now.is_unwritten else now.knowing(moves)

        await self._control.update(learned)

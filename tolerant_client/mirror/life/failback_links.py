"""What the controls of both clusters say of a link back and of those that it undoes, as failback reads them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from tolerant_client.cluster.admin.topics import visible_topics
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.mirror.engine.circles import links_back, links_into
from tolerant_client.mirror.engine.preflight import require_same_source
from tolerant_client.mirror.life.failback_decision import is_live, telling_of
from tolerant_client.mirror.state.control_record import Controls
from tolerant_client.mirror.state.control_topic import read_control_and_others
from tolerant_client.mirror.state.link_control import LinkControl, require_finished
from tolerant_client.mirror.state.link_name import Aliases, flow_back
from tolerant_client.mirror.state.moves import at_home, copied_topics
from tolerant_client.mirror.state.topic_filter import LinkTopics
from tolerant_client.mirror.state.topics import read_ids


class Links(NamedTuple):
    """What the controls say: of the `link` to prepare (`former`), of all links `into_source`, and of those `into_target`.

    `read_into_source` is what links_into has read, None if we may not read it; `forward` are those of them that have copied from our
    target to our source, or may have.  Promoted links `into_target` have only topics that nobody has deleted, or made anew, since.
    """

    link: str
    source_cluster_id: str | None
    former: LinkControl
    read_into_source: Controls | None
    forward: Mapping[str, LinkControl]
    into_target: Mapping[str, LinkControl]

    @property
    def into_source(self) -> Mapping[str, LinkControl]:
        """The links into the source, as far as we may read them."""
        return {} if self.read_into_source is None else self.read_into_source.links

    @property
    def home(self) -> dict[str, str]:
        return at_home(self.into_source, self.into_target, self.source_cluster_id)

    def flow(self, names: Collection[str]) -> str:
        """The flow that is the link in a file, if a file names a forward link of these topics; else ""."""
        of_file = {
            name: Aliases(topics.names.source_alias, topics.target_alias)
            for name, c in self.forward.items()
            if c.topics and (topics := LinkTopics.from_json(c.topics)).names and any(map(c.writes, names))
        }
        return flow_back(self.link, of_file)


async def read_links(source: Cluster, target: Cluster, link: str) -> Links:
    """Reads the controls of both clusters; raises OptionError for a link of another source, or that is promoted by half."""
    cluster_id = await source.cluster_id()
    former, into_target = await read_control_and_others(target, link)
    require_same_source(former, link, cluster_id)
    require_finished(former, link, target, source)
    read = await links_into(source, None)
    forward = dict(links_back(read, await target.cluster_id()))
    return Links(link, cluster_id, former, read, forward, await _still_there(target, into_target))


async def _still_there(target: Cluster, controls: Mapping[str, LinkControl]) -> dict[str, LinkControl]:
    """The controls of the target, which tell of moves and copies of topics that nobody has deleted, or made anew, since."""
    names = {name for c in controls.values() for name in (*c.primary_since, *copied_topics(c))}
    there = await target.partitions(names)
    ids = await read_ids(None, target, there)
    return {link: telling_of(control, there, ids) for link, control in controls.items()}


async def left_to_undo(source: Cluster, target: Cluster, links: Links) -> Mapping[str, LinkControl]:
    """The forward links, of promoted ones what the source still has, that may be of this target.

    Without those of which the source has nothing any more that no other link copies back already, or is prepared for, unless no other
    is left; nor those of an unknown source whose topics the target does not have: it was another cluster.
    """
    forward = {
        link: control
        for link, control in links.forward.items()
        if not control.is_of_unknown_source or await target.partitions(copied_topics(control))
    }
    names = {link: copied_topics(c) for link, c in forward.items() if c.is_promotion_begun}
    there, hidden = await visible_topics(source.by_own_names(), {topic for of in names.values() for topic in of})
    others = (c for link, c in links.into_target.items() if link != links.link and c.map_id is None)
    back = [c for c in others if (is_live(c) or c.is_prepared) and c.may_copy_from(links.source_cluster_id)]
    wanted = {name for name in (*there, *hidden) if not any(c.writes(name) for c in back)}
    left = {link: telling_of(c, wanted) if link in names else c for link, c in forward.items()}
    return {link: c for link, c in left.items() if not names.get(link) or copied_topics(c)} or forward

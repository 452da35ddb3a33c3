"""Names a link if no name is given, and finds which link of a target is meant; says so of a name that no link of it has.

The default name belongs to one pair of clusters: it has the source's cluster id, so that two sources of one target never share
a link.  Links that older versions named `default` keep that name.
"""

from __future__ import annotations

from collections.abc import Mapping

import kafka.errors as Errors

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import OptionError
from tolerant_client.mirror.life.listing import list_links
from tolerant_client.mirror.state.control_record import CONTROL_TOPIC
from tolerant_client.mirror.state.control_topic import read_controls
from tolerant_client.mirror.state.link_control import LinkControl, link_options

FORMER_DEFAULT = "default"
_ID_CHARS = 8


def default_name(cluster_id: str | None, controls: Mapping[str, LinkControl]) -> str:
    """The name of a link from this source if none is given.  Pure.

    Brokers before 0.10.1 have no cluster id: their links are called `default`, and a second one needs --link.
    """
    former = controls.get(FORMER_DEFAULT)
    if cluster_id is None or former is not None and former.source_cluster_id == cluster_id:
        return FORMER_DEFAULT
    return f"mirror-{cluster_id[:_ID_CHARS]}"


def chosen_name(controls: Mapping[str, LinkControl], cluster_id: str | None, target: str) -> str | None:
    """The link that is meant if none is named: the one of this source, or of the target; None if there is none.  Pure.

    Links that are not over come first, and of these the one with the default name.  Raises OptionError if several are left;
    `target` are the options that name the clusters.
    """
    known = {name: c for name, c in controls.items() if c.topics is not None}
    if cluster_id is not None:
        known = {name: c for name, c in known.items() if c.source_cluster_id == cluster_id}
    live = [name for name, c in known.items() if not c.is_over]
    names = sorted(live or known)
    if (own := default_name(cluster_id, controls)) in names:
        return own
    if len(names) > 1:
        told = "; ".join(f"{name} (from cluster {known[name].source_cluster_id})" for name in names)
        raise OptionError(f"The target has {len(names)} links: {told}. Choose one: {target} --link {names[0]}")
    return names[0] if names else None


async def name_link(source: Cluster | None, target: Cluster, *, is_start: bool = False) -> str:
    """The name of the link between two clusters, or of a target, if none is given; raises OptionError if several may be meant.

    A mirror that starts without a name never joins a link with a given name: it would add its topics to that link.
    """
    cluster_id = None if source is None else await source.cluster_id()
    try:
        controls = (await read_controls(target)).links
    except Errors.TopicAuthorizationFailedError:
        controls = {}
    given = link_options("", target, source).removesuffix(" --link ''")
    own = default_name(cluster_id, controls)
    return own if is_start else chosen_name(controls, cluster_id, given) or own


async def unknown_link(
    target: Cluster, link: str, remedy: str = "give --topics", *, has_topics: bool = False
) -> str | None:
    """What to say of a name of which the target's control tells no topics, as `list` says it, or with the links that there are.

    None if it tells them, or may not tell; and where a command `has_topics`, if there is such a link.
    """
    try:
        controls = await read_controls(target)
    except Errors.TopicAuthorizationFailedError:
        return None
    is_told = link in controls.links and not controls.links[link].is_unwritten
    if is_told or any(record.key == link for record in controls.unreadable):
        return None
    links = {one.link: one for one in (await list_links(target, link)).links}
    if link in links:
        return None if has_topics else f"Link {link}: {links[link].state}. Or {remedy}"
    there = f"the links of this target are {', '.join(links)}" if links else "this target has no link"
    return (
        f"Link {link} was never started on this target, or its record in {CONTROL_TOPIC} was deleted; {there}: check --target and --link,"
        f" or {remedy}"
    )

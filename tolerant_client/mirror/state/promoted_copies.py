"""Topics of a target that are the promoted copy of a link with identical offsets: no other link may copy the same source into them."""

from __future__ import annotations

from collections.abc import Mapping

from tolerant_client.cluster.admin.offsets import list_led_offsets
from tolerant_client.cluster.admin.topics import topic_ids
from tolerant_client.cluster.cluster import LATEST, Cluster
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.map_topic import mapped_topics


async def promoted_copies(
    target: Cluster, link: str, own: LinkControl, links: Mapping[str, LinkControl], *, is_identical: bool
) -> dict[str, str]:
    """The topics that are still another link's promoted copy, as their ids show, and that the link neither began nor adopted
    (failback), with the other's name; `links` are the target's, `own` is the control of the link itself.

    A link with translated offsets would append the same records once more.  It may copy another source there, and resumes what its
    map names.  Raises KafkaError.
    """
    ours = {p.topic for p in (*own.begun, *own.adopted)}
    copies: dict[str, str] = {}
    for other, control in links.items():
        is_copy = control.is_promoted and not control.is_handed_back and control.producer_ids and other != link
        is_same = own.source_cluster_id is None or control.may_copy_from(own.source_cluster_id)
        if is_copy and control.begun and (is_identical or is_same):
            ids = await topic_ids(target, {p.topic for p in control.begun})
            begun = {p.topic for p, of in control.begun.items() if of.target and of.target == str(ids.get(p.topic))}
            if not is_identical:  # it compares no logs: without ids (before 2.8) a log with records is the copy
                untold = [p for p, of in control.begun.items() if not (of.target and p.topic in ids)]
                ends = (await list_led_offsets(target, dict.fromkeys(untold, LATEST))).offsets if untold else {}
                begun |= {p.topic for p in untold if ends.get(p)}
            copies |= dict.fromkeys(begun - ours, other)
    if copies and not is_identical:
        mapped = (await mapped_topics(target, link, own)).names
        copies = {name: other for name, other in copies.items() if name not in mapped}
    return copies

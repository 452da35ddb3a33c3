"""The logs that a link is to continue which was prepared and has not run (`adopted`): whether they end there, when it is promoted.

Laws:
- None of them is fenced before it was seen to end where the link is to continue.  One without a leader then is left for later, and so
  is all of the link if none of them has shown that its offsets are the source's.
- What was deleted, or created again, since the link was prepared has nothing to continue: damage.py names it, and nothing is fenced there.
- Where the first command sees another end it refuses: it may be the wrong link.  Once others are fenced there is no way back: then what has
  another end is damaged, and its copy ends where the link was to continue.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import list_led_offsets
from tolerant_client.cluster.cluster import LATEST
from tolerant_client.errors import OptionError
from tolerant_client.mirror.life.fence import before_markers
from tolerant_client.mirror.life.promotion_view import PromotedLink
from tolerant_client.mirror.state.health import names
from tolerant_client.mirror.state.link_control import LinkControl, TopicIds
from tolerant_client.mirror.state.topics import read_ids


async def with_continued(
    of: PromotedLink, control: LinkControl, partitions: Collection[TopicPartition], *, patience_ms: int
) -> PromotedLink:
    """With what was seen of the logs that the link is to continue; one that has run is as it was.

    All of its `partitions` count as unseen if none of these logs has a leader.  Raises OptionError before the promotion has begun if one
    does not end there.
    """
    adopted = {p: at for p, at in control.adopted.items() if p in control.unfenced or not control.unfenced}
    if of.is_translated or control.producer_ids or not adopted:
        return of
    there = await of.target.partitions({p.topic for p in adopted})
    ids = await read_ids(None, of.target, there)
    adopted = {
        p: at
        for p, at in adopted.items()
        if p.topic in there and not control.was_created_again(p, ids.get(p.topic, TopicIds()))
    }
    ends, left_out = await list_led_offsets(of.target, dict.fromkeys(adopted, LATEST), patience_ms=patience_ms)
    # A fence that was interrupted may have left its marker.
    found = await before_markers(of.target, ends, of.evidence.producer_ids, adopted)
    unlike = {p: end for p, end in found.items() if end != adopted[p]}
    unseen = {p: why for p, why in sorted(left_out.items()) if p.partition in there.get(p.topic, ())}
    if control.is_prepared and unlike:
        raise OptionError(never_started(of.name, unlike, control))
    if control.is_prepared and unseen and not ends:
        unseen = {**dict.fromkeys(partitions, min(unseen.items())[1]), **unseen}
    return replace(of, unseen=unseen, unlike={p: _unlike(of.name, p, adopted[p], end) for p, end in unlike.items()})


def never_started(link: str, unlike: Mapping[TopicPartition, int], control: LinkControl) -> str:
    """Why a link that was only prepared is not promoted: these logs end elsewhere than where it is to continue.  Pure."""
    first = min(unlike)
    return (
        f"No mirror of link {link} has started since take-over or failback prepared it, so nothing of it writes to the target, and it has"
        f" copied nothing. Its copies would be fenced at wrong offsets: it is to continue {names(sorted(unlike))} at offset"
        f" {control.adopted[first]:,} of the source, and the target's log ends at {unlike[first]:,}. Start its mirror, and run this again;"
        " if the source is gone for good, applications may use the target as it is, and the link must never be started"
    )


def _unlike(link: str, partition: TopicPartition, adopted: int, end: int) -> str:
    what = "others have written there since" if end > adopted else "it has lost records (unclean election)"
    return (
        f"the target's log of {partition.topic}-{partition.partition} ends at offset {end}, and link {link}, which has not run since"
        f" take-over or failback prepared it, was to continue it at {adopted}: {what}"
    )

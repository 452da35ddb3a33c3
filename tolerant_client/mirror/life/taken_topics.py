"""Which topics of failback's target forward links have copied to its source, and which are others of the same name."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.mirror.life.owners import Evidence, find_evidence, find_owners
from tolerant_client.mirror.life.shared_log import SharedLog, shares_records
from tolerant_client.mirror.state.link_control import LinkControl, TopicIds
from tolerant_client.mirror.state.link_topics import is_heartbeats
from tolerant_client.mirror.state.topic_filter import LinkTopics
from tolerant_client.mirror.state.topics import read_ids

_NEVER_BEGUN = "nothing shows that the link has copied it"
_CREATED_AGAIN = "it was deleted and created again there after the link had copied it"
_ONLY_ONES = (
    "it was deleted and created again on the source after the link had copied it, so its records on the target are the only"
    " ones"
)


async def taken_topics(
    source: Cluster, target: Cluster, logs: Collection[SharedLog], forward: Mapping[str, LinkControl]
) -> tuple[set[str], dict[str, str], dict[str, str]]:
    """The topics that forward links have copied; those with records on the target that none has copied; and unknown ones, and why.

    Decided as for a promotion of the forward link (owners.py): of a topic that was created again since then, on either side, the
    control proves nothing.  A topic whose logs are proved equal may be in none of the three.  Without a forward link nothing is
    known of any topic.
    """
    written = {TopicPartition(log.topic, log.partition) for log in logs if log.target_end}
    filled = {TopicPartition(log.topic, log.partition) for log in logs if log.source_end}  # an empty log shows nothing
    ids = await read_ids(target, source, {p.topic for p in written}) if forward else {}
    equal = {log.topic for log in logs if log.is_proved and not log.is_diverged and log.shared_until}
    taken: set[str] = set()
    others: dict[str, str] = {}
    # By the word of the link that began it, which counts more than another link's.
    created_again: set[str] = set()
    unread: dict[str, str] = {}
    for name, control in forward.items():
        assert control.topics is not None
        if control.is_of_unknown_source:
            own = [log for log in logs if control.writes(source.wire_topic(log.topic))]
            taken |= {log.topic for log in own if await shares_records(source, target, log)}
            continue
        topics = LinkTopics.from_json(control.topics)
        taken |= {p.topic for p in written if is_heartbeats(topics, source.wire_topic(p.topic))}
        again = {p for p, of in control.begun.items() if not of.is_of_source(ids.get(p.topic, TopicIds()))}
        # On the source: the link's records went with the topic.
        emptied = {p for p in control.begun if p not in again and not control.has_begun(p, ids)}
        known = {*control.begun, *control.adopted, *control.copied, *control.log_starts} - again - emptied
        taken |= {p.topic for p in known}
        if not control.begun:  # of version 0.1, which does not say what it has copied; equal records do
            taken |= equal
        rest = {p for p in written if p.topic not in taken and p.topic not in equal}
        if not (rest and control.producer_ids):
            continue
        asked = (filled & rest) - again
        evidence = Evidence()
        if asked:
            evidence = await find_evidence(source, name, control, asked, (), is_translated=False)
        owners, unknown = find_owners(control, asked, evidence, is_translated=False), evidence.logs.unknown
        taken |= {p.topic for p in owners.own if p not in unknown}
        # The sentences of `of_links` are for a mirror that copies to our source: their advice is about the wrong cluster.
        of_links = {
            p: f"on the source it is another link's, not link {name}'s"
            if p.topic in evidence.others.taken
            else _NEVER_BEGUN
            for p in owners.of_links
        }
        reasons = {
            **dict.fromkeys(rest, _NEVER_BEGUN),
            **dict.fromkeys(emptied & rest, _ONLY_ONES),
            **owners.of_strangers,
            **of_links,
        }
        others |= {p.topic: why for p, why in sorted(reasons.items())}
        created_again |= {p.topic for p in again & rest}
        unread |= {p.topic: unknown[p] for p in sorted(rest) if p in unknown}
    others |= dict.fromkeys(created_again, _CREATED_AGAIN)
    return (
        taken,
        {name: why for name, why in others.items() if name not in taken and name not in unread},
        {name: why for name, why in unread.items() if name not in taken},
    )

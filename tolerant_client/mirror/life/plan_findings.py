"""What a plan warns of, and refuses, as sentences.  Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from kafka.structs import TopicPartition

from tolerant_client.mirror.state.health import DELETED_ON_SOURCE, PARTITION_DELETED_ON_SOURCE, with_pause
from tolerant_client.mirror.state.lacking import Lacking
from tolerant_client.mirror.state.link_topics import NOT_ON_SOURCE, some
from tolerant_client.mirror.state.plan import TopicSpec

_MIN_INSYNC = "min.insync.replicas"
_UNCLEAN = "unclean.leader.election.enable"


def gone_warnings(gone: Iterable[str]) -> list[str]:
    """Warnings about topics of the link that the target has and the source does not."""
    return [
        f"{NOT_ON_SOURCE}, and the link writes it on the target: {name}; nothing more is copied into it"
        for name in gone
    ]


def gone_refusals(gone: Mapping[str, list[int]], on_source: Collection[str], which: str) -> list[str]:
    """Refusals for copied topics, and partitions of topics, that the source no longer has; the options `which` name the link."""
    fewer = [TopicPartition(name, n) for name, numbers in gone.items() if name in on_source for n in numbers]
    told = with_pause(dict.fromkeys(fewer, PARTITION_DELETED_ON_SOURCE), which)
    return [
        f"{name}: {DELETED_ON_SOURCE}"
        if name not in on_source
        else f"{some(f'{name}-{n}' for n in numbers)}: {told[TopicPartition(name, numbers[0])]}"
        for name, numbers in sorted(gone.items())
    ]


def made_again_warnings(lacking: Lacking) -> list[str]:
    """Warnings about topics to create that the link had begun to copy: somebody has deleted them."""
    return [
        f"topic {name} is not on the target any more, though the link had begun to copy it: it is created again and filled"
        " from where the source's logs begin now"
        for name in sorted({p.topic for p in lacking.deleted})
    ]


def durability(source: Iterable[TopicSpec], target: Mapping[str, TopicSpec]) -> list[str]:
    """Topics whose records are less durable on the target than on the source."""
    found = []
    for wanted in source:
        present = target.get(wanted.name)
        if present is None:
            continue
        if present.replication_factor < wanted.replication_factor:
            found.append(
                f"topic {wanted.name} has {present.replication_factor} replicas on the target and {wanted.replication_factor} on"
                " the source; reassign its partitions to more brokers"
            )
        ours, theirs = (int(spec.value(_MIN_INSYNC, "1")) for spec in (present, wanted))
        if ours < min(theirs, present.replication_factor):
            found.append(
                f"topic {wanted.name} acknowledges records that {ours} replicas have on the target, and {theirs} on the source; set"
                f" {_MIN_INSYNC}={min(theirs, present.replication_factor)} on the target"
            )
        if present.value(_UNCLEAN, "false") == "true":
            found.append(f"topic {wanted.name} may lose acknowledged records on the target: set {_UNCLEAN}=false there")
    return found

"""What a link will do, decided before anything is written.  Pure: no I/O."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tolerant_client.errors import OptionError

TIMESTAMP_TYPE = "message.timestamp.type"
LOG_APPEND_TIME = "LogAppendTime"

# What belongs to the brokers of one cluster, not to the topic.
_NOT_COPIED = frozenset({"leader.replication.throttled.replicas", "follower.replication.throttled.replicas"})


@dataclass(frozen=True)
class TopicSpec:
    """A topic as an administrator describes it; `config` holds only what was set for this topic."""

    name: str
    partitions: int
    replication_factor: int
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TopicsPlan:
    """Topics to create on the target, and those that are there already."""

    create: tuple[TopicSpec, ...]
    existing: tuple[TopicSpec, ...]


def select_topics(pattern: str, available: Mapping[str, object]) -> list[str]:
    """Topics whose whole name matches the regular expression, sorted.

    Raises OptionError for a bad expression and when nothing matches.
    """
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise OptionError(f"--topics {pattern!r} is not a regular expression ({error}); quote it and escape special signs") from error
    selected = sorted(name for name in available if expression.fullmatch(name))
    if not selected:
        near = difflib.get_close_matches(pattern, list(available), n=3, cutoff=0.5)
        hint = f"; did you mean {' or '.join(near)}?" if near else f"; the source has {len(available)} topics"
        raise OptionError(f"No topic of the source matches {pattern!r}{hint}")
    return selected


def plan_topics(source: Mapping[str, TopicSpec], target: Mapping[str, TopicSpec], target_brokers: int) -> TopicsPlan:
    """Compares the chosen source topics with those of the same name on the target.

    A missing topic is created with the source's partition count and
    configuration; its replication factor is the source's, or the number of
    target brokers where that is less.  Raises OptionError for a target topic
    that cannot hold the copy.
    """
    create, existing = [], []
    for name, wanted in source.items():
        if wanted.config.get(TIMESTAMP_TYPE) == LOG_APPEND_TIME:
            raise OptionError(
                f"Topic {name} of the source has {TIMESTAMP_TYPE}={LOG_APPEND_TIME}; such topics are not mirrored yet, exclude it"
            )
        present = target.get(name)
        if present is None:
            create.append(_as_created(wanted, target_brokers))
            continue
        if present.partitions < wanted.partitions:
            raise OptionError(
                f"Topic {name} has {present.partitions} partitions on the target and {wanted.partitions} on the source;"
                f" add partitions to it, or delete it and let the mirror create it"
            )
        if present.config.get(TIMESTAMP_TYPE) == LOG_APPEND_TIME:
            raise OptionError(
                f"Topic {name} of the target has {TIMESTAMP_TYPE}={LOG_APPEND_TIME}, which would rewrite timestamps;"
                f" set it to CreateTime"
            )
        existing.append(wanted)
    return TopicsPlan(tuple(create), tuple(existing))


def _as_created(wanted: TopicSpec, target_brokers: int) -> TopicSpec:
    replicas = min(wanted.replication_factor, target_brokers)
    config = {key: value for key, value in wanted.config.items() if key not in _NOT_COPIED}
    if int(config.get("min.insync.replicas", "1")) > replicas:
        config["min.insync.replicas"] = str(replicas)  # more than there are would refuse every append
    config.setdefault(TIMESTAMP_TYPE, "CreateTime")  # the target's brokers may have another default
    return TopicSpec(wanted.name, wanted.partitions, replicas, config)

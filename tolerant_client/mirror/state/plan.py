"""Plans the topics of a link before anything is written.  Pure: no I/O."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from msgspec import structs

from tolerant_client.errors import OptionError
from tolerant_client.mirror.state.health import counted
from tolerant_client.mirror.state.topic_filter import LinkTopics, TopicCreation, TopicFilter

TIMESTAMP_TYPE = "message.timestamp.type"
LOG_APPEND_TIME = "LogAppendTime"
CLEANUP_POLICY = "cleanup.policy"
MAX_MESSAGE_BYTES = "max.message.bytes"
COMPRESSION_TYPE = "compression.type"
RETENTION_MS = "retention.ms"
RETENTION_BYTES = "retention.bytes"
TIMESTAMP_BEFORE = "message.timestamp.before.max.ms"
TIMESTAMP_AFTER = "message.timestamp.after.max.ms"

DEFAULT_MAX_MESSAGE_BYTES = 1_048_588  # ServerLogConfigs.java, since Kafka 2.x; 1,000,012 before
_OFFERED = 3  # names, where no topic matches
_LONG_MAX = 2**63 - 1
# A KRaft controller refuses an operation of more than 10,000 (QuorumController.java, MAX_RECORDS_PER_USER_OP).
_CONTROLLER_RECORDS = 2_500

# Settings of the brokers of one cluster, not of the topic.
NOT_COPIED = frozenset(
    {
        "leader.replication.throttled.replicas",
        "follower.replication.throttled.replicas",
        # Tiers (KIP-405): a cluster without them refuses the topic.
        "remote.storage.enable",
        "local.retention.ms",
        "local.retention.bytes",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
        # Gone in Kafka 4.0 (KIP-724, KIP-1030 and KIP-937); none of them changes what a record is.
        "message.format.version",
        "message.downconversion.enable",
        "message.timestamp.difference.max.ms",
    }
)
_UNKNOWN_NAME = re.compile(r"Unknown topic config name: ([\w.\-]+)")
_TOO_SMALL = re.compile(r"Invalid value (\S+) for configuration ([\w.\-]+): Value must be at least (\d+)")


@dataclass(frozen=True)
class TopicSpec:
    """A topic as an administrator describes it.

    `config` has only what was set for this topic; `effective` every value in force,
    wherever it comes from, and is empty if the brokers cannot tell.
    """

    name: str
    partitions: int
    replication_factor: int
    config: Mapping[str, str] = field(default_factory=dict)
    effective: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.value(CLEANUP_POLICY, "").split(",")

    @property
    def max_message_bytes(self) -> int:
        return int(self.value(MAX_MESSAGE_BYTES, str(DEFAULT_MAX_MESSAGE_BYTES)))

    def value(self, name: str, default: str) -> str:
        """The value in force."""
        return self.config.get(name, self.effective.get(name, default))


@dataclass(frozen=True)
class TopicsPlan:
    """Topics to create on the target, those to give more partitions, and those that can stay as they are.

    `grow` and `existing` have the source's partition counts.  `refused` says by topic why it cannot be copied, or only in part;
    a topic that is refused altogether is in none of the others.
    """

    create: tuple[TopicSpec, ...]
    existing: tuple[TopicSpec, ...]
    grow: tuple[TopicSpec, ...] = ()
    warnings: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)

    @property
    def copied(self) -> tuple[TopicSpec, ...]:
        """Every topic that is copied, with the source's partition count."""
        return (*self.create, *self.existing, *self.grow)


def select_topics(topics: LinkTopics | str, available: Mapping[str, object], cluster: str = "source") -> list[str]:
    """The topics that the link takes (or a regular expression matches), sorted, by their names on the target.

    `cluster` is what has these topics.  Raises OptionError for a bad expression, and if a link that does not wait for topics takes none.
    """
    topics = LinkTopics.of(topics)
    offered = {name: topics.to_source(name) for name in available}
    selected = sorted(name for name, original in offered.items() if topics.takes(original))
    if not selected and not topics.waits_for_topics:
        everything = structs.replace(topics, filter=TopicFilter(exclude=("__.*",)))
        others = sorted(original for original in offered.values() if everything.takes(original))
        near = difflib.get_close_matches(", ".join(topics.filter.include), others, n=3, cutoff=0.6)
        hint = f"did you mean {' or '.join(near)}?" if near else _offer(others, cluster)
        raise OptionError(f"No topic of the {cluster} matches '{topics.filter}'; {hint}")
    return selected


def _offer(names: Sequence[str], cluster: str) -> str:
    """What to say of the topics that a cluster has, where a regular expression matches none of them."""
    if not names:
        return f"the {cluster} has no topics but internal ones, which are not copied"
    more = f" and {counted(len(names) - _OFFERED, 'more topic')}" if len(names) > _OFFERED else ""
    return (
        f"the {cluster} has {', '.join(names[:_OFFERED])}{more} (internal ones are left out): give a regular expression for whole"
        " names, or create the topic first"
    )


def plan_topics(
    source: Mapping[str, TopicSpec],
    target: Mapping[str, TopicSpec],
    target_brokers: int,
    creation: TopicCreation = TopicCreation(),
) -> TopicsPlan:
    """Compares the chosen source topics with those of the same name on the target.

    A missing topic is created with the source's partition count and
    configuration, as `creation` says; its replication factor is at most the
    number of target brokers.  A target topic with fewer partitions
    gets more.  A target topic that cannot hold the copy is refused.
    """
    excluded = TopicFilter(creation.config_exclude)
    create: list[TopicSpec] = []
    existing: list[TopicSpec] = []
    grow: list[TopicSpec] = []
    warnings: list[str] = []
    refused: dict[str, str] = {}
    for name, wanted in source.items():
        present = target.get(name)
        if present is None:
            create.append(_as_created(wanted, target_brokers, creation, excluded))
            warnings += _creation_warnings(wanted)
            if (creation.replication_factor or 0) > target_brokers:
                warnings.append(
                    f"topic {name} is created with {counted(target_brokers, 'replica')}, one on each of the target's brokers, not"
                    f" {creation.replication_factor}"
                )
            continue
        if present.value(TIMESTAMP_TYPE, "") == LOG_APPEND_TIME:
            refused[name] = (
                f"Topic {name} of the target has {TIMESTAMP_TYPE}={LOG_APPEND_TIME}, which would rewrite timestamps;"
                " set it to CreateTime"
            )
            continue
        (existing if present.partitions >= wanted.partitions else grow).append(wanted)
        warnings += _existing_warnings(wanted, present)
    return TopicsPlan(tuple(create), tuple(existing), tuple(grow), tuple(warnings), refused)


def fit_config(topic: TopicSpec, refusal: str) -> tuple[TopicSpec, str]:
    """The topic without the setting that the target's brokers refused with this message, and a warning about it.

    Raises OptionError for a refusal that only the user can settle.
    """
    if (unknown := _UNKNOWN_NAME.search(refusal)) and unknown[1] in topic.config:
        name = unknown[1]
        return replace(topic, config={k: v for k, v in topic.config.items() if k != name}), (
            f"topic {topic.name} is created without {name}={topic.config[name]}, which the target's brokers do not know"
        )
    if (small := _TOO_SMALL.search(refusal)) and topic.config.get(small[2]) not in (None, small[3]):
        _, name, least = small.groups()
        return replace(topic, config={**topic.config, name: least}), (
            f"topic {topic.name} is created with {name}={least}, the least that the target's brokers take"
            f" (the source has {topic.config[name]})"
        )
    raise OptionError(f"The target refuses to create topic {topic.name}: {refusal}; create it yourself, or exclude it")


def in_operations(topics: Iterable[TopicSpec]) -> Iterator[list[TopicSpec]]:
    """Groups topics by what a controller takes in one operation: a record for each topic, partition and setting.

    Pure.  A topic is not divided.
    """
    some: list[TopicSpec] = []
    records = 0
    for topic in topics:
        size = 1 + topic.partitions + len(topic.config)
        if some and records + size > _CONTROLLER_RECORDS:
            yield some
            some, records = [], 0
        some.append(topic)
        records += size
    if some:
        yield some


def _as_created(wanted: TopicSpec, target_brokers: int, creation: TopicCreation, excluded: TopicFilter) -> TopicSpec:
    factor = wanted.replication_factor if creation.replication_factor is None else creation.replication_factor
    replicas = min(factor, target_brokers)  # -1: the target brokers' default (KIP-464)
    defaults = dict(wanted.effective) if creation.use_defaults_from == "source" else {}
    # The target's brokers may have other defaults.
    if CLEANUP_POLICY in wanted.effective:
        defaults[CLEANUP_POLICY] = wanted.effective[CLEANUP_POLICY]
    if MAX_MESSAGE_BYTES in wanted.effective:
        defaults[MAX_MESSAGE_BYTES] = str(max(wanted.max_message_bytes, DEFAULT_MAX_MESSAGE_BYTES))
    config = {
        key: value
        for key, value in {**defaults, **wanted.config}.items()
        if key not in NOT_COPIED and not excluded.matches(key)
    }
    most = target_brokers if replicas < 0 else replicas
    if int(config.get("min.insync.replicas", "1")) > most:
        config["min.insync.replicas"] = str(most)  # brokers before 3.7 refuse all writes if it is more than there are
    config[TIMESTAMP_TYPE] = "CreateTime"  # the source's append times are copied as such
    # The source has taken the records already, maybe long ago.  A 4.x broker refuses timestamps an hour ahead (KIP-1030).
    config[TIMESTAMP_BEFORE] = config[TIMESTAMP_AFTER] = str(_LONG_MAX)
    return TopicSpec(wanted.name, wanted.partitions, replicas, config)


def _creation_warnings(wanted: TopicSpec) -> Iterator[str]:
    if not wanted.effective:
        yield (
            f"the source's brokers cannot tell the configuration of topic {wanted.name}: it is created with the target's"
            f" defaults; create it yourself first if it is compacted or has its own retention"
        )
    if wanted.config.get("remote.storage.enable") == "true":
        yield f"topic {wanted.name} is created without tiered storage: the target keeps all of its retention on local disks"


def _existing_warnings(wanted: TopicSpec, present: TopicSpec) -> Iterator[str]:
    name = wanted.name
    if present.partitions < wanted.partitions:
        yield (
            f"topic {name} has {counted(present.partitions, 'partition')} on the target and {wanted.partitions} on the source: the"
            f" missing ones are added on the target"
        )
    if wanted.effective and present.is_compacted and not wanted.is_compacted:
        yield (
            f"topic {name} is compacted on the target only: it will lose records that the source keeps; set"
            f" {CLEANUP_POLICY}={wanted.value(CLEANUP_POLICY, 'delete')} on the target"
        )
    if wanted.is_compacted and not present.is_compacted:
        yield (
            f"topic {name} is compacted on the source only: the target deletes by age and size records that the source keeps"
            f" for ever; set {CLEANUP_POLICY}={wanted.value(CLEANUP_POLICY, 'compact')} on the target"
        )
    if present.max_message_bytes < wanted.max_message_bytes:
        yield (
            f"topic {name} takes batches of {present.max_message_bytes} bytes on the target and {wanted.max_message_bytes} on"
            f" the source: larger ones are split, a larger record stops the copy; raise {MAX_MESSAGE_BYTES} on the target"
        )
    limits = {limit: _milliseconds(present, limit) for limit in (TIMESTAMP_BEFORE, TIMESTAMP_AFTER)}
    # A record ages until it is copied: only a limit for the future may be as low as the source's.
    if limits[TIMESTAMP_BEFORE] < _LONG_MAX:
        yield _timestamp_warning(name, TIMESTAMP_BEFORE, limits[TIMESTAMP_BEFORE], "older")
    if limits[TIMESTAMP_AFTER] < _milliseconds(wanted, TIMESTAMP_AFTER):
        yield _timestamp_warning(name, TIMESTAMP_AFTER, limits[TIMESTAMP_AFTER], "further ahead")
    if RETENTION_MS in kept_less(wanted, present):
        yield (
            f"topic {name} keeps records {present.value(RETENTION_MS, '')} ms on the target and"
            f" {wanted.value(RETENTION_MS, '')} ms on the source"
        )


def _timestamp_warning(name: str, limit: str, value: int, which: str) -> str:
    return (
        f"topic {name} of the target refuses records whose timestamp is {which} than {value} ms; set"
        f" {limit}={_LONG_MAX} on the target"
    )


def _milliseconds(topic: TopicSpec, limit: str) -> int:
    return int(topic.value(limit, str(_LONG_MAX)))


def kept_less(wanted: TopicSpec, present: TopicSpec) -> list[str]:
    """The settings by which the target deletes records that the source keeps.  Pure."""
    found = [
        limit for limit in (RETENTION_MS, RETENTION_BYTES) if _retention(present, limit) < _retention(wanted, limit)
    ]
    return found + [CLEANUP_POLICY] * (wanted.is_compacted and not present.is_compacted)


def _retention(topic: TopicSpec, limit: str) -> int:
    most = int(topic.value(limit, "-1"))
    return _LONG_MAX if most < 0 else most

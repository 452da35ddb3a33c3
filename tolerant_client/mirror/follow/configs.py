"""Carries over the settings of the source's topics to the target's while the link runs.

As MirrorSourceConnector.syncTopicConfigs: a value that was set for a topic (or dynamically for its brokers) is set on the
target; a default of the source is cleared on the target (`use_defaults_from` "target") or set to the source's default
("source"); values from the brokers' files are left alone; `exclude` has regular expressions for names (TopicFilter).
Laws:
- Only differences are written, and all of them are in the report; a value that the target refuses does not stop others.
- Settings that the mirror needs are kept, whatever the source has: CreateTime and no limits for timestamps (`_KEPT`), a
  max.message.bytes for the largest batch that there ever was, a min.insync.replicas that the replicas can meet.
- cleanup.policy is the source's value in force, wherever it comes from: another one would delete other records.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import kafka.errors as Errors

from tolerant_client.cluster.admin.asking import chunks, is_retriable
from tolerant_client.cluster.admin.configs import (
    DEFAULT,
    OF_BROKERS_FILE,
    OF_TOPIC,
    Setting,
    alter_configs,
    changes_configs,
    describe_configs,
    tells_configs,
)
from tolerant_client.cluster.admin.topics import replication_factors
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import OptionError
from tolerant_client.mirror.follow.skipped import Left
from tolerant_client.mirror.state.plan import (
    CLEANUP_POLICY,
    DEFAULT_MAX_MESSAGE_BYTES,
    MAX_MESSAGE_BYTES,
    NOT_COPIED,
    TIMESTAMP_AFTER,
    TIMESTAMP_BEFORE,
    TIMESTAMP_TYPE,
)
from tolerant_client.mirror.state.topic_filter import CONFIG_PROPERTIES_EXCLUDE, LinkTopics, TopicFilter

MIN_INSYNC = "min.insync.replicas"

_GONE = Errors.UnknownTopicOrPartitionError
_KEPT = NOT_COPIED | {TIMESTAMP_TYPE, TIMESTAMP_BEFORE, TIMESTAMP_AFTER}


class ConfigChange(NamedTuple):
    """A changed setting of a topic of the target; `after` is None if it is cleared, back to the brokers' default."""

    topic: str
    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True)
class ConfigsReport:
    """One round: what was changed (or would be), and what was left.

    `left` reasons: "unknown" (to the brokers of one side), "kept" (the mirror needs the target's value), "refused".
    """

    changed: tuple[ConfigChange, ...]
    left: tuple[Left, ...]


def decide_changes(
    topic: str,
    source: Mapping[str, Setting],
    target: Mapping[str, Setting],
    replicas: int,
    *,
    exclude: TopicFilter = TopicFilter(()),
    use_defaults_from: str = "target",
) -> tuple[list[ConfigChange], list[Left]]:
    """The settings to change of a topic (the target's name) that has `replicas` replicas there.  Pure."""
    changes: list[ConfigChange] = []
    left: list[Left] = []
    for name, setting in sorted(source.items()):
        if name in _KEPT or setting.is_sensitive or setting.is_read_only or exclude.matches(name):
            continue
        present = target.get(name)
        if present is None:
            if setting.origin == OF_TOPIC:
                why = f"the target's brokers do not know it; the source has {setting.value}"
                left.append(Left(f"{topic} {name}", "unknown", why))
            continue
        wanted, why = _wanted(name, setting, present, replicas, use_defaults_from)
        if why:
            left.append(Left(f"{topic} {name}", "kept", why))
        elif wanted is None:
            if present.origin == OF_TOPIC:
                changes.append(ConfigChange(topic, name, present.value, None))
        elif present.value != wanted or (present.origin != OF_TOPIC and setting.origin == OF_TOPIC):
            changes.append(ConfigChange(topic, name, present.value, wanted))
    return changes, left


def _wanted(
    name: str, setting: Setting, present: Setting, replicas: int, use_defaults_from: str
) -> tuple[str | None, str]:
    """The value to set (None: to clear), or why the target's is kept."""
    if name == CLEANUP_POLICY:
        return setting.value, ""
    if name == MAX_MESSAGE_BYTES:
        limit = int(setting.value)
        if setting.origin != OF_TOPIC:
            limit = max(limit, DEFAULT_MAX_MESSAGE_BYTES)
        if limit < int(present.value):
            is_telling = setting.origin == OF_TOPIC
            why = f"the source takes {limit} now, but may have larger batches from before: {present.value} stays"
            return present.value, why if is_telling else ""
        return str(limit), ""
    if setting.origin == OF_BROKERS_FILE:
        return present.value, ""
    if setting.origin == DEFAULT and use_defaults_from != "source":
        return None, ""
    if name == MIN_INSYNC:
        return str(min(int(setting.value), replicas)), ""
    return setting.value, ""


async def sync_configs(
    source: Cluster,
    target: Cluster,
    topics: LinkTopics,
    *,
    exclude: Iterable[str] = CONFIG_PROPERTIES_EXCLUDE,
    use_defaults_from: str = "target",
    is_dry_run: bool = False,
    leave_out: Collection[str] = (),
) -> ConfigsReport:
    """One round over the topics that both clusters have, without those of the target to `leave_out`.

    With `is_dry_run` the target's brokers only check the changes.

    Raises OptionError for a wrong `exclude` or `use_defaults_from`, ClusterUnreachableError.
    """
    if use_defaults_from not in ("source", "target"):
        raise OptionError(f"use.defaults.from is {use_defaults_from!r}: give source or target")
    excluded = TopicFilter(tuple(exclude))
    await source.connect()
    if not tells_configs(source):
        why = "its brokers do not describe topic settings; Kafka 0.11 or newer do"
        return ConfigsReport((), (Left(source.name, "unknown", why),))
    of_source = {name: source.wire_topic(name) for name in await source.partitions()}
    names = {name: topics.to_target(wire) for name, wire in of_source.items() if topics.takes(wire)}
    replicas = await target.insist("reading the topics", lambda: replication_factors(target))
    names = {name: copied for name, copied in names.items() if copied in replicas and copied not in leave_out}
    left: list[Left] = []
    originals = await _describe(source, names, left)
    copies = await _describe(target, names.values(), left)
    changes: list[ConfigChange] = []
    for name, copied in names.items():
        if name in originals and copied in copies:
            more, stay = decide_changes(
                copied,
                originals[name],
                copies[copied],
                replicas[copied],
                exclude=excluded,
                use_defaults_from=use_defaults_from,
            )
            changes += more
            left += stay
    if changes and not changes_configs(target):
        why = f"{len(changes)} settings differ, but the target's brokers cannot change single ones; Kafka 2.3 or newer can"
        return ConfigsReport((), (*left, Left("topic settings", "refused", why)))
    changed, refused = await _alter(target, changes, is_dry_run)
    return ConfigsReport(tuple(changed), (*left, *refused))


async def _describe(cluster: Cluster, topics: Iterable[str], left: list[Left]) -> dict[str, dict[str, Setting]]:
    """The settings of topics; absent are deleted topics, and those that we may not describe, which are added to `left`."""
    found: dict[str, dict[str, Setting]] = {}

    async def ask(names: Collection[str]) -> None:
        for name, told in (await describe_configs(cluster, names)).items():
            if not isinstance(told, Exception):
                found[name] = told
            elif not isinstance(told, _GONE):
                if is_retriable(told):
                    raise told
                why = f"the {cluster.name} does not tell its settings ({type(told).__name__}); grant DescribeConfigs on it"
                left.append(Left(cluster.wire_topic(name), "refused", why))

    for chunk in chunks(topics):
        await cluster.insist("describing topic configurations", partial(ask, chunk))
    return found


class _Refusal(NamedTuple):
    """Why the target refuses changes of a topic; `is_whole`: it would refuse any change."""

    why: str
    is_whole: bool


async def _alter(
    target: Cluster, changes: Iterable[ConfigChange], is_dry_run: bool
) -> tuple[list[ConfigChange], list[Left]]:
    """The changes that were made, and those that the target refuses.

    Brokers make all changes of a topic or none: if they refuse, each change is requested alone.
    """
    by_topic: dict[str, list[ConfigChange]] = {}
    for change in changes:
        by_topic.setdefault(change.topic, []).append(change)
    changed: list[ConfigChange] = []
    left: list[Left] = []
    for some in chunks(by_topic):
        chunk = {topic: by_topic[topic] for topic in some}
        refused = await _ask(target, chunk, is_dry_run)
        for topic, wanted in chunk.items():
            refusal = refused.get(topic)
            if refusal is None:
                changed += wanted
            elif refusal.is_whole:
                left.append(Left(topic, "refused", refusal.why))
            else:
                for change in wanted:
                    alone = (
                        (await _ask(target, {topic: [change]}, is_dry_run)).get(topic) if len(wanted) > 1 else refusal
                    )
                    if alone is None:
                        changed.append(change)
                    else:
                        left.append(Left(f"{topic} {change.name}", "refused", alone.why))
    return changed, left


async def _ask(
    target: Cluster, changes: Mapping[str, Collection[ConfigChange]], is_dry_run: bool
) -> dict[str, _Refusal]:
    """Why the target refuses changes, by topic."""
    refused: dict[str, _Refusal] = {}
    wanted = {topic: {change.name: change.after for change in of_topic} for topic, of_topic in changes.items()}

    async def ask() -> None:
        for topic, (error, words) in (await alter_configs(target, wanted, validate_only=is_dry_run)).items():
            if is_retriable(error) and not isinstance(error, _GONE):
                raise error
            is_ours = isinstance(error, Errors.AuthorizationError)
            words = "grant AlterConfigs on it" if is_ours else words or type(error).__name__
            why = f"the target refuses to change it: {words}"
            refused[topic] = _Refusal(why, is_ours or isinstance(error, _GONE))

    await target.insist("changing topic settings", ask)
    return refused

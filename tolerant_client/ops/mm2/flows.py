"""The flows of a MirrorMaker 2 file, with MirrorMaker 2's precedence and defaults.

Laws:
- The mirror copies what MirrorMaker 2 would copy, or refuses the file before it writes anything.
- A flow that is not enabled still has heartbeats, as in MirrorMaker 2 (MirrorMakerConfig.clusterPairs): the heartbeats
  that B->A writes to A are copied by A->B, and show readers on B that the link works.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from msgspec.structs import replace

from tolerant_client.errors import OptionError, text_of
from tolerant_client.mirror.batches.losses import MirrorPolicy
from tolerant_client.mirror.state.link_name import LONGEST, is_link_name
from tolerant_client.mirror.state.replication_policy import (
    DefaultReplicationPolicy,
    IdentityReplicationPolicy,
    TopicNames,
)
from tolerant_client.mirror.state.topic_filter import (
    CONFIG_PROPERTIES_EXCLUDE,
    GROUPS_EXCLUDE,
    TOPICS_EXCLUDE,
    LinkTopics,
    TopicCreation,
    TopicFilter,
)
from tolerant_client.ops.mm2 import keys
from tolerant_client.ops.mm2.keys import CLIENT, FLOW, GLOBAL, OURS, POLICY_CLASSES, STOCK_CLASSES, Fate
from tolerant_client.ops.mm2.loops import find_loop, find_shared_target
from tolerant_client.ops.mm2.places import Known, Place, is_connection, known
from tolerant_client.ops.mm2.precedence import Settings, client_settings, flow_settings
from tolerant_client.ops.mm2.properties import Setting, read_properties
from tolerant_client.ops.mm2.values import NAME, boolean, filter_of, name_of, one_of, replicas, seconds, whole
from tolerant_client.security.kafka_config import kafka_python_config

_REASONS: Final = "tolerant_client/ops/mm2/README.md says why"
_IGNORED: Final = (Fate.NOT_NEEDED, Fate.NOT_BUILT)


@dataclass(frozen=True)
class Flow:
    """A link A->B as configured in its file; fields that end in _s are seconds between rounds of a duty, None for none.

    Topics, heartbeats and checkpoints use the aliases, which are the clusters' own unless the file says otherwise
    (source.cluster.alias).  `source` and `target` are Java client properties without prefix, for every client of that
    cluster.  The expressions of `policy` match names on the target.
    """

    source_cluster: str
    target_cluster: str
    source_alias: str
    target_alias: str
    source: Mapping[str, str] = field(repr=False)
    target: Mapping[str, str] = field(repr=False)
    topics: TopicFilter
    groups: TopicFilter
    names: TopicNames
    copies_heartbeats: bool
    tasks: int
    policy: MirrorPolicy
    offsets: Literal["identical", "translated"]
    throttle_bytes: int | None
    replication_factor: int
    checkpoints_replication_factor: int
    heartbeats_replication_factor: int
    refresh_topics_s: float | None
    sync_topic_configs_s: float | None
    sync_topic_acls_s: float | None
    sync_group_offsets_s: float | None
    emit_heartbeats_s: float | None
    emit_checkpoints_s: float | None
    config_properties_exclude: tuple[str, ...]
    use_defaults_from: Literal["source", "target"]
    options: str = field(default="", compare=False)  # by which commands name the link: --config FILE --flow 'A->B'

    @property
    def link(self) -> str:
        """The name of the link in topics, ids and metrics."""
        return f"{self.source_cluster}-{self.target_cluster}"

    @property
    def link_topics(self) -> LinkTopics:
        """Which topics of the source are copied, and their names on the target."""
        creation = TopicCreation(self.replication_factor, self.config_properties_exclude, self.use_defaults_from)
        return LinkTopics(
            self.topics, self.names, self.target_alias, self.copies_heartbeats, waits_for_topics=True, creation=creation
        )

    def __str__(self) -> str:
        return f"{self.source_cluster}->{self.target_cluster}"


@dataclass(frozen=True)
class Flows:
    """The enabled flows, those that only have heartbeats, and warnings about the file."""

    flows: tuple[Flow, ...]
    heartbeats_only: tuple[Flow, ...]
    warnings: tuple[str, ...]


def read_flows(path: Path, targets: Collection[str] = ()) -> Flows:
    """The flows of a file for connect-mirror-maker.sh; with `targets` only those into these clusters (its --clusters).

    Raises OptionError, with file, key and line, for what is unknown, wrong or refused.
    """
    try:
        return _read_flows(path, targets)
    except OptionError as error:
        if str(path) in str(error):
            raise
        raise OptionError(f"{path}: {text_of(error)}") from error


def _read_flows(path: Path, targets: Collection[str]) -> Flows:
    settings, warnings = read_properties(path)
    clusters = _clusters(settings)
    if unknown := sorted(set(targets) - set(clusters)):
        near = keys.nearest(unknown[0], clusters)
        hint = f"; did you mean {near}?" if near else ""
        raise OptionError(f"{unknown[0]!r} is not in clusters = {', '.join(clusters)}{hint}")
    file = [known(setting, clusters) for setting in settings.values()]
    for one in file:
        _refuse(one)
    flows: list[Flow] = []
    heartbeats_only: list[Flow] = []
    unused: set[str] = set()
    for source in clusters:
        for target in clusters:
            if source == target:
                continue
            given = flow_settings(file, source, target)
            if boolean(given, "enabled", False):
                _refuse_other_starts(given)
                flows.append(_flow(given, source, target, path))
            elif seconds(given, "emit.heartbeats", True, 1) is not None:
                heartbeats_only.append(_flow(given, source, target, path))
            else:
                continue
            unused |= _other_clients(given)
    check_flows(flows)  # flows of other processes, too: one of them may close a loop
    wanted = [flow for flow in flows if not targets or flow.target_cluster in targets]
    if not wanted:
        into = f" into {', '.join(sorted(targets))}" if targets else ""
        raise OptionError(f"{path} enables no flow{into}; write A->B.enabled = true with two of {', '.join(clusters)}")
    others = [flow for flow in heartbeats_only if not targets or flow.target_cluster in targets]
    return Flows(tuple(wanted), tuple(others), (*warnings, *_to_tell(file, unused)))


def check_flows(flows: Sequence[Flow]) -> None:
    """Raises OptionError for flows that copy in a loop, write to the same topic, or have the same link name or too long a one."""
    if loop := find_loop(flows):
        path = " and ".join(map(str, loop))
        raise OptionError(
            f"{path} could copy topics in a loop for ever: their topic names do not show which clusters a topic came from."
            f" Use DefaultReplicationPolicy for all of them, or topics that begin differently ({loop[0]}.topics = a-.*,"
            f" {loop[-1]}.topics = b-.*)"
        )
    if shared := find_shared_target(flows):
        one, other = shared
        raise OptionError(
            f"{one} and {other} could write to the same topics of {one.target_cluster}, and their records would get in each"
            f" other's way. Use DefaultReplicationPolicy, or topics that begin differently ({one}.topics = a-.*,"
            f" {other}.topics = b-.*)"
        )
    by_link: dict[str, Flow] = {}
    for flow in flows:
        if not is_link_name(flow.link):
            raise OptionError(
                f"{flow} would be link {flow.link}, a name longer than {LONGEST} letters; choose shorter aliases"
            )
        if (same := by_link.setdefault(flow.link, flow)) is not flow:
            raise OptionError(f"{same} and {flow} would both be link {flow.link}; choose other aliases")


def _clusters(settings: Mapping[str, Setting]) -> tuple[str, ...]:
    setting = settings.get("clusters")
    if setting is None or not setting.items:
        raise OptionError("clusters is required: the aliases of all clusters, as in clusters = A, B")
    _refuse_comment(setting)
    for alias in setting.items:
        if not NAME.fullmatch(alias):
            raise OptionError(f"{setting.place} has {alias!r}; an alias has letters, digits, '.', '_' and '-' only")
        if f"{alias}.bootstrap.servers" not in settings and "bootstrap.servers" not in settings:
            named = {f"{one}.bootstrap.servers" for one in setting.items}
            others = sorted(key for key in settings if key.endswith(".bootstrap.servers") and key not in named)
            near = keys.nearest(f"{alias}.bootstrap.servers", others)
            hint = f", and {settings[near].place} belongs to none of the clusters" if near else ""
            raise OptionError(f"{alias}.bootstrap.servers is required: {setting.place} names {alias!r}{hint}")
    return tuple(dict.fromkeys(setting.items))


def _refuse(one: Known) -> None:
    setting, name = one.setting, one.key.name
    if one.key in (*GLOBAL, *FLOW, *OURS) or name == "bootstrap.servers":
        _refuse_comment(setting)
    if not one.is_read:
        return
    if name == "enabled" and one.place == Place():
        raise OptionError(f"{setting.place} belongs to no flow; write A->B.enabled = true for each flow that you want")
    if name == "errors.tolerance" and setting.value != "none":
        raise OptionError(
            f"{setting.place} is refused: records that the target rejects would be lost without a trace; leave it at none, the"
            " default, and choose with tolerant.on.oversized what happens to such a record"
        )
    if name in STOCK_CLASSES and setting.value != STOCK_CLASSES[name]:
        why = "records are copied as the bytes they are" if name.endswith("converter") else "no Java classes are loaded"
        raise OptionError(f"{setting.place} can only be {STOCK_CLASSES[name]}: {why}")
    is_set = setting.value or name not in ("transforms", "predicates")
    # kafka_python_config decides which values of ssl.trustmanager.algorithm are possible.
    if one.key.fate is Fate.REFUSED and is_set and name != "ssl.trustmanager.algorithm":
        raise OptionError(f"{setting.place} is refused: {one.key.why}")


def _refuse_comment(setting: Setting) -> None:
    if re.search(r"\s#", setting.value):
        raise OptionError(
            f"{setting.place} has a # in its value, and MirrorMaker 2 takes what follows it as part of the value;"
            " put the comment on a line of its own"
        )


def _refuse_other_starts(given: Settings) -> None:
    reset = client_settings(given, "source", "consumer").get("auto.offset.reset")
    if reset is not None and reset.value.lower() != "earliest":
        raise OptionError(
            f"{reset.place} is refused: the mirror copies a partition from its first record on; remove the line, or write earliest"
        )


def _flow(given: Settings, source: str, target: str, file: Path) -> Flow:
    source_alias = name_of(given, "source.cluster.alias", source)
    names = TopicNames(_replication_policy(given, source_alias), source_alias)
    topics = filter_of(given, "topics", TOPICS_EXCLUDE)
    emit_heartbeats_s = seconds(given, "emit.heartbeats", True, 1)
    heartbeats = names.policy.heartbeats_topic()
    if names.to_target(heartbeats) == heartbeats and emit_heartbeats_s is not None:
        # The source's heartbeats would mix with our own.
        topics = replace(topics, exclude=(*topics.exclude, heartbeats))
    return Flow(
        source_cluster=source,
        target_cluster=target,
        source_alias=source_alias,
        target_alias=name_of(given, "target.cluster.alias", target),
        source=_client_properties(client_settings(given, "source", "consumer"), source),
        target=_client_properties(client_settings(given, "target", "producer"), target),
        topics=topics,
        groups=filter_of(given, "groups", GROUPS_EXCLUDE),
        names=names,
        copies_heartbeats=boolean(given, "heartbeats.replication.enabled", True),
        tasks=whole(given, "tasks.max", 1),
        policy=_mirror_policy(given),
        offsets="translated"
        if one_of(given, "tolerant.offsets", "identical", "translated") == "translated"
        else "identical",
        throttle_bytes=whole(given, "tolerant.throttle", 1) if "tolerant.throttle" in given else None,
        replication_factor=replicas(given, "replication.factor", 2),
        checkpoints_replication_factor=replicas(given, "checkpoints.topic.replication.factor", 3),
        heartbeats_replication_factor=replicas(given, "heartbeats.topic.replication.factor", 3),
        refresh_topics_s=seconds(given, "refresh.topics", True, 600),
        sync_topic_configs_s=seconds(given, "sync.topic.configs", True, 600),
        sync_topic_acls_s=seconds(given, "sync.topic.acls", True, 600),
        sync_group_offsets_s=seconds(given, "sync.group.offsets", False, 60),
        emit_heartbeats_s=emit_heartbeats_s,
        emit_checkpoints_s=seconds(given, "emit.checkpoints", True, 60),
        config_properties_exclude=filter_of(given, "config.properties", CONFIG_PROPERTIES_EXCLUDE).exclude,
        use_defaults_from="source" if one_of(given, "use.defaults.from", "target", "source") == "source" else "target",
        options=f"--config {shlex.quote(str(file))} --flow {shlex.quote(f'{source}->{target}')}",
    )


def _client_properties(settings: Settings, alias: str) -> dict[str, str]:
    properties = {}
    for name, setting in settings.items():
        key = keys.find(name, CLIENT)
        if key is not None and key.fate not in _IGNORED and name != "auto.offset.reset":
            properties[name] = setting.value
    try:
        kafka_python_config(properties)
    except OptionError as error:  # its message has Spark's option names
        raise OptionError(
            f"cluster {alias}: " + re.sub(r"(?<![\w.])kafka\.(?=[a-z])", f"{alias}.", error.args[0])
        ) from None
    return properties


def _other_clients(given: Settings) -> set[str]:
    """The connection settings that MirrorMaker 2 would use for other clients, and that this mirror does not use."""
    mine = client_settings(given, "source", "consumer"), client_settings(given, "target", "producer")
    others = (
        (mine[0], client_settings(given, "source", "admin")),
        (mine[1], client_settings(given, "target", "admin")),
        (mine[1], client_settings(given, "target", "consumer")),
    )
    return {
        setting.place
        for used, other in others
        for name, setting in other.items()
        if is_connection(name) and (name not in used or used[name].value != setting.value)
    }


def _replication_policy(given: Settings, source_alias: str) -> DefaultReplicationPolicy:
    chosen = given.get("replication.policy.class")
    if chosen is not None and chosen.value not in POLICY_CLASSES:
        raise OptionError(
            f"{chosen.place} is {chosen.shown}; it can be {' or '.join(POLICY_CLASSES)}, because no Java classes are loaded"
        )
    separator = name_of(given, "replication.policy.separator", ".")
    is_internal_too = boolean(given, "replication.policy.internal.topic.separator.enabled", True)
    if chosen is not None and chosen.value == POLICY_CLASSES[1]:
        return IdentityReplicationPolicy(separator, is_internal_too, source_alias)
    return DefaultReplicationPolicy(separator, is_internal_too)


def _mirror_policy(given: Settings) -> MirrorPolicy:
    texts = {}
    for setting in ("gap_fill", "on_loss", "on_oversized"):
        name = f"tolerant.{setting.replace('_', '.')}"
        if name in given:
            texts[setting] = given[name].items
            try:
                MirrorPolicy.parse(**{setting: given[name].items})
            except OptionError as error:
                raise OptionError(f"{given[name].place}: {error.args[0].partition(' ')[2]}") from None
    return MirrorPolicy.parse(**texts)


def _to_tell(file: Sequence[Known], unused: set[str]) -> list[str]:
    """One sentence for each kind of setting without effect, and one for old names."""
    idle = [one.setting.key for one in file if one.key.fate is Fate.NOT_NEEDED]
    not_built = [f"{one.setting.key} ({one.key.why})" for one in file if one.key.fate is Fate.NOT_BUILT]
    unread = [one.setting.key for one in file if not one.is_read and one.key.fate not in _IGNORED]
    old = [one.setting.key for one in file if one.name.endswith(".blacklist")]
    sentences = []
    if idle:
        sentences.append(f"without effect here ({_REASONS}): {', '.join(idle)}")
    if not_built:
        sentences.append(f"without effect, because it is not built: {', '.join(not_built)}")
    if unread:
        sentences.append(f"not read at this level, nor by MirrorMaker 2: {', '.join(unread)}")
    if unused:
        sentences.append(
            "one client does all the work at a cluster, with the consumer's settings at a source and the producer's at a target;"
            f" not used: {', '.join(sorted(unused))}"
        )
    if old:
        sentences.append(f"old names, which Kafka 4 no longer reads but this mirror does: {', '.join(old)}")
    return sentences

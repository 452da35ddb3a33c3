"""Every key that a MirrorMaker 2 file can have, what the mirror does with it, and why.

Laws:
- A key is used; or it has no effect here, and one warning says so; or it is refused, because ignoring it
  would copy something else, or to or from another place.  There is no fourth kind.
- The table in this package's README is the output of `table()`.

The names are those of Kafka 4.2: MirrorMakerConfig, MirrorSourceConfig, MirrorCheckpointConfig, MirrorHeartbeatConfig and
MirrorConnectorConfig of connect/mirror, ConnectorConfig, DistributedConfig and RestServerConfig of connect/runtime, and
ConsumerConfig, ProducerConfig and AdminClientConfig of clients; with older ones that files still have.
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from tolerant_client.mirror.batches.gaps import GapFill
from tolerant_client.mirror.batches.losses import LossPolicy
from tolerant_client.mirror.state.topic_filter import CONFIG_PROPERTIES_EXCLUDE, GROUPS_EXCLUDE, TOPICS_EXCLUDE
from tolerant_client.security import java_properties


class Fate(str, enum.Enum):
    """What the mirror does with a key."""

    SUPPORTED = "supported"
    NOT_NEEDED = "not needed"
    NOT_BUILT = "not built"
    REFUSED = "refused"

    def __str__(self) -> str:
        return self.value


class Key(NamedTuple):
    """A key without prefix (or, ending in "*", all keys with that start), MirrorMaker 2's default, and the reason for its fate."""

    name: str
    default: str
    fate: Fate
    why: str


def _policies(values: Iterable[enum.Enum], option: str) -> str:
    first, *more, last = (str(value.value) for value in values)
    return f"list of `[REGEX=]{first}`, {', '.join(more)} or {last}, as `{option}`"


_USED, _IDLE, _NOT_BUILT, _NO = Fate.SUPPORTED, Fate.NOT_NEEDED, Fate.NOT_BUILT, Fate.REFUSED

CONVERTER: Final = "org.apache.kafka.connect.converters.ByteArrayConverter"
_MIRROR: Final = "org.apache.kafka.connect.mirror."
# The only class that each of these keys may name.
STOCK_CLASSES: Final[Mapping[str, str]] = {
    "topic.filter.class": f"{_MIRROR}DefaultTopicFilter",
    "group.filter.class": f"{_MIRROR}DefaultGroupFilter",
    "config.property.filter.class": f"{_MIRROR}DefaultConfigPropertyFilter",
    "forwarding.admin.class": "org.apache.kafka.clients.admin.ForwardingAdmin",
    "key.converter": CONVERTER,
    "value.converter": CONVERTER,
    "header.converter": CONVERTER,
}
POLICY_CLASSES: Final = (f"{_MIRROR}DefaultReplicationPolicy", f"{_MIRROR}IdentityReplicationPolicy")

_COPIED_AS_BYTES = (
    "records are copied as the bytes they are; a converter would change them (ByteArrayConverter is accepted)"
)
_NO_WORKERS = "there are no Connect workers: Spark plans, schedules and restarts"
_NO_STORES = (
    "there is no Connect worker to keep offsets, status and configuration; the target's own log says where to resume"
)
_NO_REST = "there is no REST server of Connect"
_NO_OFFSET_SYNCS = "offsets are identical, or their exact map is kept on the target; no offset syncs are needed"
_EVERY_ROUND = "every round of group offsets and of checkpoints lists the groups anew; `groups` selects them"
_NO_TRACE = "only none; all is refused: what the target rejects would be lost without a trace (`tolerant.on.oversized`)"
_CREATED_ALIKE = "topics get the source's partitions and settings, and `replication.factor`, as in MirrorMaker 2"
_NO_REPEATS = "no record is copied twice, without transactions of the mirror's own"
_OUR_METRICS = "metrics are served to Prometheus"

GLOBAL: Final = (
    Key("clusters", "", _USED, "aliases of the clusters"),
    Key("config.providers", "", _USED, "names of providers for values such as `${file:/path:key}`"),
    Key(
        "config.providers.*",
        "",
        _USED,
        "FileConfigProvider, DirectoryConfigProvider, EnvVarConfigProvider and their param.",
    ),
)
FLOW: Final = (
    Key("enabled", "false", _USED, "only after `A->B.`"),
    Key("topics", ".*", _USED, "topics to copy: names or expressions over whole names"),
    Key("topics.exclude", ", ".join(TOPICS_EXCLUDE), _USED, "topics to leave out; wins over `topics`"),
    Key("topics.blacklist", "", _USED, "old name of `topics.exclude`"),
    Key("groups", ".*", _USED, "consumer groups whose offsets are synchronised"),
    Key("groups.exclude", ", ".join(GROUPS_EXCLUDE), _USED, "groups to leave out; wins over `groups`"),
    Key("groups.blacklist", "", _USED, "old name of `groups.exclude`"),
    Key("refresh.topics.enabled", "true", _USED, "whether new topics and partitions are discovered"),
    Key("refresh.topics.interval.seconds", "600", _USED, "how often"),
    Key("refresh.groups.enabled", "true", _IDLE, _EVERY_ROUND),
    Key("refresh.groups.interval.seconds", "600", _IDLE, _EVERY_ROUND),
    Key("sync.topic.configs.enabled", "true", _USED, "whether topic settings are kept as on the source"),
    Key("sync.topic.configs.interval.seconds", "600", _USED, "how often"),
    Key("config.properties.exclude", ", ".join(CONFIG_PROPERTIES_EXCLUDE), _USED, "topic settings that are not copied"),
    Key("config.properties.blacklist", "", _USED, "old name of `config.properties.exclude`"),
    Key("use.defaults.from", "target", _USED, "which cluster's default a topic gets if the source sets nothing: source or target"),
    Key("sync.topic.acls.enabled", "true", _USED, "whether read access to topics is copied"),
    Key("sync.topic.acls.interval.seconds", "600", _USED, "how often"),
    Key("sync.group.offsets.enabled", "false", _USED, "whether groups' offsets are written to the target"),
    Key("sync.group.offsets.interval.seconds", "60", _USED, "how often"),
    Key("emit.checkpoints.enabled", "true", _USED, "whether checkpoints are written, in MirrorMaker 2's format"),
    Key("emit.checkpoints.interval.seconds", "60", _USED, "how often"),
    Key("checkpoints.topic.replication.factor", "3", _USED, "replicas of a new checkpoints topic"),
    Key("emit.heartbeats.enabled", "true", _USED, "whether heartbeats are written, also for flows that are not enabled"),
    Key("emit.heartbeats.interval.seconds", "1", _USED, "how often"),
    Key("heartbeats.topic.replication.factor", "3", _USED, "replicas of a new heartbeats topic"),
    Key("heartbeats.replication.enabled", "true", _USED, "whether heartbeats are copied even if `topics` does not match them"),
    Key("replication.factor", "2", _USED, "replicas of new topics; -1: the default of the target's brokers"),
    Key(
        "replication.policy.class",
        POLICY_CLASSES[0],
        _USED,
        "DefaultReplicationPolicy or IdentityReplicationPolicy; others are refused: no Java classes are loaded",
    ),
    Key("replication.policy.separator", ".", _USED, "between alias and topic; it may be empty"),
    Key("replication.policy.internal.topic.separator.enabled", "true", _USED, "whether internal topics use it, too"),
    Key("tasks.max", "1", _USED, "Spark tasks that share the partitions"),
    Key("tasks.max.enforce", "true", _IDLE, "there are never more tasks than `tasks.max`"),
    Key("source.cluster.alias", "the flow's", _USED, "another alias for topics, heartbeats and checkpoints"),
    Key("target.cluster.alias", "the flow's", _USED, "another alias for heartbeats, and for recognising topics that came from the target"),
    *(
        Key(name, STOCK_CLASSES[name], _USED, "only the default; others are refused: no Java classes are loaded")
        for name in STOCK_CLASSES
        if name.endswith(".class")
    ),
    Key("offset.lag.max", "100", _IDLE, _NO_OFFSET_SYNCS),
    Key("emit.offset-syncs.enabled", "true", _IDLE, _NO_OFFSET_SYNCS),
    Key("offset-syncs.topic.location", "source", _IDLE, _NO_OFFSET_SYNCS),
    Key("offset-syncs.topic.replication.factor", "3", _IDLE, _NO_OFFSET_SYNCS),
    Key("admin.timeout.ms", "60000", _IDLE, "every request has `request.timeout.ms`, and duties are tried again for ever"),
    Key("consumer.poll.timeout.ms", "1000", _IDLE, "no consumer is polled: the brokers hold the fetches"),
    Key("metric.reporters", "JmxReporter", _IDLE, _OUR_METRICS),
    Key("auto.include.jmx.reporter", "true", _IDLE, _OUR_METRICS),
    Key("name", "", _IDLE, "a flow is identified by its aliases"),
    Key("connector.class", "", _IDLE, "there are no connectors: one process does the work of all three"),
    Key("connector.plugin.version", "", _IDLE, "there are no plugins"),
    Key("config.action.reload", "restart", _IDLE, "values of config providers are read at the start"),
    Key("transforms", "", _NO, "records are copied as the bytes they are; a transform would change them"),
    Key("transforms.*", "", _NO, "records are copied as the bytes they are; a transform would change them"),
    Key("predicates", "", _NO, "only transforms use predicates"),
    Key("predicates.*", "", _NO, "only transforms use predicates"),
    Key("errors.tolerance", "none", _USED, _NO_TRACE),
    Key("errors.retry.timeout", "0", _IDLE, "what fails is tried again for ever"),
    Key("errors.retry.delay.max.ms", "60000", _IDLE, "what fails is tried again for ever"),
    Key("errors.deadletterqueue.*", "", _IDLE, "only sinks have dead letters"),
    Key("errors.log.enable", "false", _IDLE, "every error is logged"),
    Key("errors.log.include.messages", "false", _IDLE, "records are never logged"),
    Key("topic.creation.*", "", _IDLE, _CREATED_ALIKE),
)  # fmt: skip
OURS: Final = (
    Key(
        "tolerant.offsets", "identical", _USED, "identical, or translated for topics with other writers, as `--offsets`"
    ),
    Key("tolerant.gap.fill", GapFill.AUTO.value, _USED, _policies(GapFill, "--gap-fill")),
    Key("tolerant.on.loss", LossPolicy.FAIL.value, _USED, _policies(LossPolicy, "--on-loss")),
    Key("tolerant.on.oversized", LossPolicy.FAIL.value, _USED, _policies(LossPolicy, "--on-oversized")),
    Key(
        "tolerant.throttle",
        "",
        _USED,
        "bytes/s that the flow may copy, unless `tolerant-kafka throttle` says otherwise",
    ),
)
WORKER: Final = (
    Key("key.converter", CONVERTER, _USED, _COPIED_AS_BYTES),
    Key("value.converter", CONVERTER, _USED, _COPIED_AS_BYTES),
    Key("header.converter", CONVERTER, _USED, _COPIED_AS_BYTES),
    *(
        Key(f"{part}.converter.*", "", _IDLE, "ByteArrayConverter has no settings")
        for part in ("key", "value", "header")
    ),
    *(Key(f"internal.{part}.converter", "", _IDLE, _NO_STORES) for part in ("key", "value")),
    *(Key(f"internal.{part}.converter.*", "", _IDLE, _NO_STORES) for part in ("key", "value")),
    *(
        Key(f"{store}.storage.{what}", default, _IDLE, _NO_STORES)
        for store in ("offset", "status", "config")
        for what, default in (
            ("topic", f"mm2-{store}{'' if store == 'status' else 's'}.ALIAS.internal"),
            ("replication.factor", "3"),
            *((("partitions", "25" if store == "offset" else "5"),) if store != "config" else ()),
            ("*", ""),
        )
    ),
    Key("offset.storage.file.filename", "", _IDLE, _NO_STORES),
    Key("offset.flush.interval.ms", "60000", _IDLE, _NO_STORES),
    Key("offset.flush.timeout.ms", "5000", _IDLE, _NO_STORES),
    Key("exactly.once.source.support", "disabled", _IDLE, "no record is copied twice, whatever its value"),
    Key("transaction.boundary", "poll", _IDLE, _NO_REPEATS),
    Key("transaction.boundary.interval.ms", "", _IDLE, _NO_REPEATS),
    Key("connector.client.config.override.policy", "All", _IDLE, "flows may have any client settings"),
    *(
        Key(name, default, _IDLE, _NO_WORKERS)
        for name, default in (
            ("connect.protocol", "sessioned"),
            ("rebalance.timeout.ms", "60000"),
            ("scheduled.rebalance.max.delay.ms", "300000"),
            ("worker.sync.timeout.ms", "3000"),
            ("worker.unsync.backoff.ms", "300000"),
            ("task.shutdown.graceful.timeout.ms", "5000"),
            ("inter.worker.key.generation.algorithm", "HmacSHA256"),
            ("inter.worker.key.size", ""),
            ("inter.worker.key.ttl.ms", "3600000"),
            ("inter.worker.signature.algorithm", "HmacSHA256"),
            ("inter.worker.verification.algorithms", "HmacSHA256"),
            ("plugin.path", ""),
            ("plugin.discovery", "hybrid_warn"),
            ("topic.creation.enable", "true"),
            ("topic.tracking.enable", "true"),
            ("topic.tracking.allow.reset", "true"),
        )
    ),
    *(
        Key(name, default, _IDLE, _NO_REST)
        for name, default in (
            ("dedicated.mode.enable.internal.rest", "false"),
            ("listeners", "http://:8083"),
            ("listeners.*", ""),
            ("admin.listeners", ""),
            ("admin.listeners.*", ""),
            ("rest.advertised.host.name", ""),
            ("rest.advertised.listener", ""),
            ("rest.advertised.port", ""),
            ("rest.host.name", ""),
            ("rest.port", "8083"),
            ("rest.extension.classes", ""),
            ("response.http.headers.config", ""),
            ("access.control.allow.methods", ""),
            ("access.control.allow.origin", ""),
            ("ssl.client.auth", "none"),
        )
    ),
    Key("metrics.context.*", "", _IDLE, _OUR_METRICS),
    Key("zookeeper.connect", "", _IDLE, "ZooKeeper is not used, and MirrorMaker 2 does not read it either"),
)

_CLIENT_NOTES: Final[Mapping[str, str]] = {
    "isolation.level": "only committed records are copied, as with read_committed",
    "group.id": "no consumer group is used: the target's log says where to resume",
    "enable.auto.commit": "no consumer group is used: the target's log says where to resume",
    "auto.offset.reset": "only earliest; others are refused: every partition is copied from its first record on",
    "compression.type": "batches keep the compression that they have on the source",
    "acks": "always all in-sync replicas",
    "max.request.size": "the target's max.message.bytes is used",
    "interceptor.classes": java_properties.FORBIDDEN["interceptor.classes"],
    "bootstrap.controllers": "the mirror talks to brokers; give bootstrap.servers",
    "transactional.id": _NO_REPEATS,
}
_SERIALIZERS: Final = ("key.serializer", "value.serializer", "key.deserializer", "value.deserializer")
_BARE: Final = ("bootstrap.servers", *java_properties.TEXTS, "security.protocol")


def _client(names: Iterable[str], fate: Fate, why: str) -> list[Key]:
    return [Key(name, "", fate, _CLIENT_NOTES.get(name, why)) for name in names]


CLIENT: Final = (
    *_client((*_BARE, *java_properties.NUMBERS, *java_properties.OURS), _USED, "as in Kafka's clients"),
    *_client(java_properties.SECURITY, _USED, "as in Kafka's clients"),
    *_client(("auto.offset.reset",), _USED, ""),
    *_client((*java_properties.READ_ELSEWHERE, "enable.auto.commit", "bootstrap.controllers"), _IDLE, ""),
    *_client(java_properties.SECURITY_WITHOUT_EFFECT, _IDLE, "it tunes the JVM, or Java's logins"),
    *_client(java_properties.WITHOUT_EFFECT, _IDLE, "it tunes Java's clients"),
    *_client(java_properties.NOT_BUILT, _NOT_BUILT, "only leaders are read, in whatever rack (KIP-392)"),
    *_client(
        (name for name in java_properties.PRODUCING if name not in _SERIALIZERS), _IDLE, "it tunes Java's producer"
    ),
    *_client(_SERIALIZERS, _IDLE, "records are copied as the bytes they are"),
    *_client(("interceptor.classes",), _NO, ""),
    *(Key(name, "", _NO, why) for name, why in java_properties.REFUSED.items() if name != "config.providers"),
)

SECTIONS: Final[Mapping[str, tuple[Key, ...]]] = {
    "The whole file": GLOBAL,
    "Flows: at the top for all, after `A->B.` for one": FLOW,
    "Ours: at the top for all, after `A->B.` for one": OURS,
    "Connect's workers: at the top or after `A.`": WORKER,
    "Clients: after `A.`, `A.consumer.`, `A.producer.`, `A.admin.`; security and bootstrap.servers at the top, too": CLIENT,
}


def find(name: str, keys: Iterable[Key]) -> Key | None:
    """The key of that name, or else the longest key with "*" that the name begins with."""
    families = []
    for key in keys:
        if key.name == name:
            return key
        if key.name.endswith("*") and name.startswith(key.name[:-1]) and len(name) >= len(key.name):
            families.append(key)
    return max(families, key=lambda key: len(key.name), default=None)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name with the same words in another order, or else the one that resembles it most."""
    names = list(known)
    words = sorted(name.split("."))
    swapped = (other for other in names if sorted(other.split(".")) == words)
    return next(swapped, None) or next(iter(difflib.get_close_matches(name, names, n=1, cutoff=0.6)), None)


def table() -> str:
    """All keys, as Markdown."""
    lines = []
    for title, keys in SECTIONS.items():
        lines += [f"### {title}", "", "| key | MirrorMaker 2's default | here | |", "|---|---|---|---|"]
        for key in keys:
            default = f"`{key.default}`" if key.default else ""
            name, why = key.name.replace("*", "\\*"), key.why.replace("|", "\\|")
            lines.append(f"| {name} | {default} | {key.fate}{' because' if key.fate in (_IDLE, _NO) else ''} | {why} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())

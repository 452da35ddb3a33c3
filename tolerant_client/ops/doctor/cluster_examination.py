"""All checks of one cluster."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import newest_times
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.mirror.state.open_transactions import coordinator_views, open_transactions
from tolerant_client.ops.doctor import describe, logs
from tolerant_client.ops.doctor.access import hidden_findings, principal, quota_findings, right_findings
from tolerant_client.ops.doctor.checkup import Checkup
from tolerant_client.ops.doctor.clocks import clock_findings, future_findings
from tolerant_client.ops.doctor.connectivity import (
    Probe,
    Stage,
    address_findings,
    identity_findings,
    version_findings,
)
from tolerant_client.ops.doctor.durability import durability_findings
from tolerant_client.ops.doctor.elections import Snapshot, election_findings
from tolerant_client.ops.doctor.facts import INTERNAL_TOPICS, MIN_ISR, UNCLEAN, ClusterFacts, Quorum
from tolerant_client.ops.doctor.probing import Address, parse_address, probe_all
from tolerant_client.ops.doctor.replication import controller_findings, log_dir_findings, partition_findings
from tolerant_client.ops.doctor.rights import Asked, created_names
from tolerant_client.ops.doctor.transactions import still_open, transaction_findings
from tolerant_client.stock.coordinator_partition import TRANSACTIONS_TOPIC

_PATIENCE_MS = 4_000  # with brokers that do not respond
_CLIENT_ID = "tolerant-client"
_TOPIC_CONFIGS = (
    MIN_ISR,
    UNCLEAN,
    "message.timestamp.type",
    "max.message.bytes",
    "retention.ms",
    "retention.bytes",
    "cleanup.policy",
)
_BROKER_CONFIGS = (
    "default.replication.factor",
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
    "transaction.max.timeout.ms",
    "socket.request.max.bytes",
    "message.max.bytes",
)
_LOOK_EVERY_S = 1.0


@dataclass
class Examined:
    """What the later checks of a link need of a cluster."""

    raw: Cluster
    facts: ClusterFacts
    who: str
    quorum: Quorum | None = None
    sizes: Mapping[tuple[int, TopicPartition], int] = field(default_factory=dict)
    groups: Mapping[str, int] = field(default_factory=dict)
    transactional_ids: Collection[str] = ()
    snapshots: list[Snapshot] = field(default_factory=list)


def examine_addresses(
    checkup: Checkup, name: str, config: Mapping[str, Any], file_options: str = ""
) -> tuple[list[Probe], Cluster | None]:
    """Probes every address; returns a client of the addresses that responded, None if none did."""
    bootstraps = [parse_address(text) for text in config["bootstrap_servers"]]
    timeout_s = max(2.0, checkup.check_s / 2)
    probes = checkup.make("addresses", name, lambda: probe_all(bootstraps, config, timeout_s)) or []
    advertised: dict[int, tuple[str, int]] = {}
    for probe in probes:
        advertised.update(probe.brokers)
    known = {(address.host, address.port): index for index, address in enumerate(bootstraps)}
    rest = []
    for node_id, where in sorted(advertised.items()):
        if where in known:
            probes[known[where]] = replace(probes[known[where]], node_id=node_id)
        else:
            rest.append(Address(*where, node_id=node_id))
    if rest:
        probes += checkup.make("addresses", name, lambda: probe_all(rest, config, timeout_s)) or []
    protocol = str(config.get("security_protocol", "PLAINTEXT"))
    checkup.add(address_findings(name, protocol, probes, time.time()))
    checkup.add(identity_findings(name, probes))
    checkup.add(version_findings(name, probes, is_target=name == "target"))
    answered = [probe.address for probe in probes if probe.stage is Stage.SPOKEN and probe.is_bootstrap]
    if not answered:
        servers = ",".join(config["bootstrap_servers"])
        checkup.clusters.append({"name": name, "bootstrap_servers": servers, "is_examined": False})
        return probes, None
    timeouts = {"request_timeout_ms": _PATIENCE_MS, "reconnect_backoff_max_ms": 500}
    config = {**config, **timeouts, "bootstrap_servers": answered}
    return probes, Cluster(config, name=name, patience_ms=_PATIENCE_MS, file_options=file_options)


def examine_cluster(checkup: Checkup, raw: Cluster, probes: list[Probe], config: Mapping[str, Any]) -> Examined | None:
    """Brokers, controller and their roles: what metadata shows, before topics are chosen."""
    silent = {p.node_id for p in probes if p.node_id is not None and p.stage is not Stage.SPOKEN}
    facts = checkup.ask("partitions", raw, describe.describe_cluster, raw, silent)
    if facts is None:
        return None
    seen = {(p.topic, p.index): p for topic in facts.topics.values() for p in topic.partitions}
    snapshot = Snapshot(time.monotonic(), frozenset(facts.living), seen)
    checkup.clusters.append(
        {
            "name": raw.name,
            "bootstrap_servers": ",".join(config["bootstrap_servers"]),
            "is_examined": True,
            "cluster_id": facts.cluster_id,
            "brokers": len(facts.living),
            "topics": len(facts.topics),
            "partitions": len(seen),
        }
    )
    return Examined(raw, facts, principal(config), snapshots=[snapshot])


def examine_parts(
    checkup: Checkup,
    found: Examined,
    topics: Collection[str],
    client_id: str,
    asked: Collection[Asked],
    beside: Collection[str] = (),
) -> None:
    """All checks of one cluster; `topics` are those of the mirror, `asked` the rights that it needs there.

    The configurations of topics `beside` them are read with theirs.
    """
    raw, facts = found.raw, found.facts
    wished = [name for one in asked for name in one.names]
    unseen = sorted({name for name in (*topics, *wished) if name not in facts.topics})
    hidden = (checkup.ask("rights", raw, describe.hidden_topics, raw, unseen) if unseen else None) or {}
    found.facts = facts = replace(facts, topics={**facts.topics, **hidden})
    talking = sorted(node for node in facts.living if node not in facts.silent)
    incomplete = {t.name for t in facts.topics.values() for p in t.partitions if len(p.isr) < len(p.replicas)}
    wanted = {
        name
        for name in (*topics, *beside, *INTERNAL_TOPICS, *incomplete)
        if name in facts.topics and name not in hidden
    }
    configs = checkup.ask("durability", raw, describe.topic_configs, raw, wanted, _TOPIC_CONFIGS) or {}
    settings = checkup.ask("durability", raw, describe.broker_configs, raw, talking, _BROKER_CONFIGS) or {}
    found.facts = facts = replace(facts, configs=configs, broker_configs=settings)

    if asked:
        new = [name for name in created_names(asked) if name not in facts.topics]
        refused = (checkup.ask("rights", raw, describe.uncreatable, raw, new) if new else None) or ()
        checkup.add(right_findings(facts, asked, found.who, refused))
    else:
        checkup.add(hidden_findings(facts, hidden.values(), found.who))
    _examine_controller(checkup, found)
    checkup.add(partition_findings(facts))
    dirs = checkup.ask("log-dirs", raw, describe.log_dirs, raw, talking, set(topics))
    if dirs is not None:
        found.sizes = dirs[1]
        checkup.add(log_dir_findings(raw.name, dirs[0]))
    checkup.add(durability_findings(facts, topics))
    found.groups = checkup.ask("coordinators", raw, describe.list_groups, raw, talking) or {}
    if TRANSACTIONS_TOPIC in facts.topics:
        found.transactional_ids = _optional(raw, logs.transactional_ids, raw, talking) or ()
    quotas = checkup.ask("quotas", raw, describe.quotas, raw)
    checkup.add(quota_findings(raw.name, quotas or (), found.who, client_id or _CLIENT_ID))
    _examine_logs(checkup, found, topics, talking)


def _examine_controller(checkup: Checkup, found: Examined) -> None:
    raw, facts = found.raw, found.facts
    if not describe.has_quorum(raw):  # ZooKeeper
        checkup.add(controller_findings(facts, None))
        checkup.add(clock_findings(raw.name, None))
        return

    async def look() -> tuple[Quorum | None, str]:
        try:
            return await describe.quorum(raw), ""
        except Errors.AuthorizationError:
            raise
        except Errors.KafkaError as error:  # a broker forwards it to the controller: none responds
            return None, str(error.__cause__ or error)

    seen = checkup.ask("controller", raw, look)
    if seen is not None:
        found.quorum, failure = seen
        checkup.add(controller_findings(facts, found.quorum, failure))
    if found.quorum is not None:
        checkup.add(clock_findings(raw.name, found.quorum))


def _examine_logs(checkup: Checkup, found: Examined, topics: Collection[str], talking: Collection[int]) -> None:
    raw, facts = found.raw, found.facts
    stamped = logs.serving(facts, (*topics, *INTERNAL_TOPICS))
    newest = checkup.ask("clocks", raw, newest_times, raw, stamped) or {}
    checkup.add(future_findings(facts, newest, _now_ms()))
    open_ones = checkup.ask("transactions", raw, open_transactions, raw, logs.serving(facts, topics)) or []
    if open_ones:
        ids = {one.producer_id for one in open_ones}
        coordinators = facts.topics[TRANSACTIONS_TOPIC].partitions if TRANSACTIONS_TOPIC in facts.topics else ()
        is_whole = bool(coordinators) and all(p.leader in talking for p in coordinators)
        views = checkup.ask("transactions", raw, coordinator_views, raw, talking, ids)
        # A transaction that ended while we asked the coordinators holds nothing back, whatever they reported of it.
        leaders = {one.partition: facts.leader_of(one.partition) for one in open_ones}
        later = checkup.ask("transactions", raw, open_transactions, raw, leaders)
        if later is not None:
            open_ones = still_open(open_ones, later)
        checkup.add(transaction_findings(facts, open_ones, views if is_whole else None, _now_ms()))


def watch_elections(checkup: Checkup, found: Examined, seconds: float) -> None:
    """Reads all partitions once a second until `seconds` after the first snapshot."""
    raw = found.raw

    def watch() -> None:
        until, failure = found.snapshots[0].at + seconds, None
        while time.monotonic() < until or len(found.snapshots) < 2 and failure is None:
            raw.run(raw.net.sleep, min(_LOOK_EVERY_S, max(0.0, until - time.monotonic())))
            try:
                brokers, partitions = raw.run(describe.read_partitions, raw)
            except Exception as error:
                failure = error
                continue
            snapshot = {(p.topic, p.index): p for p in partitions}
            found.snapshots.append(Snapshot(time.monotonic(), frozenset(brokers), snapshot))
        if len(found.snapshots) < 2 and failure is not None:
            raise failure

    checkup.make("elections", raw.name, watch)
    checkup.add(election_findings(raw.name, found.snapshots))


def _optional(raw: Cluster, function: Any, *args: Any) -> Any:
    """The response to a request that only adds names; None after an error."""
    try:
        return raw.run(function, *args)
    except Exception:  # without it the check reports less, and says so
        return None


def _now_ms() -> int:
    return int(time.time() * 1000)

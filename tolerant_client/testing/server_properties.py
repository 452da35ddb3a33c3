"""The server.properties of a broker for tests: small, quick to notice that another one has gone, and keeping old records."""

from __future__ import annotations

from collections.abc import Mapping

from tolerant_client.testing.node import HOST, Node

GENERATED = frozenset(
    {
        "process.roles",
        "node.id",
        "controller.quorum.voters",
        "controller.listener.names",
        "listeners",
        "advertised.listeners",
        "inter.broker.listener.name",
        "listener.security.protocol.map",
        "log.dirs",
    }
)


def server_properties(
    node: Node, nodes: Mapping[int, Node], protocols: Mapping[str, str], more: Mapping[str, str]
) -> dict[str, str]:
    """The settings of one of `nodes`; `protocols` maps its listeners to protocols, `more` overrides what is not GENERATED."""
    clients = {"PLAINTEXT": node.port, "PROXIED": node.proxied_port, **node.more_ports}
    advertised = {**clients, "PROXIED": node.advertised_port}
    replication = str(min(len(nodes), 3))
    min_isr = str(min(len(nodes), 2))
    return {
        "default.replication.factor": replication,
        "auto.create.topics.enable": "false",
        "offsets.topic.replication.factor": replication,
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": replication,
        "transaction.state.log.min.isr": min_isr,
        "transaction.state.log.num.partitions": "4",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
        "share.coordinator.state.topic.replication.factor": replication,
        "share.coordinator.state.topic.min.isr": min_isr,
        "share.coordinator.state.topic.num.partitions": "4",
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "1000",
        # A killed broker cannot come back before its session ends; Kafka's default is 9 s.
        "broker.session.timeout.ms": "4000",
        "broker.heartbeat.interval.ms": "500",
        # Twice a second the controller writes a record that only metrics need: a third of what an idle broker costs.
        "metadata.max.idle.interval.ms": "0",
        "num.io.threads": "4",
        # Records with timestamps of years ago stay, unless the topic sets a retention.
        "log.retention.ms": "-1",
        "log.retention.check.interval.ms": "5000",
        "log.initial.task.delay.ms": "1000",
        # The default would take a quarter of a small heap.
        "log.cleaner.dedupe.buffer.size": str(8 << 20),
        **more,
        "listener.security.protocol.map": ",".join(f"{name}:{how}" for name, how in protocols.items()),
        "process.roles": "broker,controller",
        "node.id": str(node.node_id),
        "controller.quorum.voters": ",".join(
            f"{other.node_id}@{HOST}:{other.controller_port}" for other in nodes.values()
        ),
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listeners": _addresses({**clients, "CONTROLLER": node.controller_port}),
        "advertised.listeners": _addresses(advertised),
        "log.dirs": str(node.data_dir),
    }


def _addresses(ports: Mapping[str, int]) -> str:
    """Listeners in the format of server.properties."""
    return ",".join(f"{name}://{HOST}:{port}" for name, port in ports.items())

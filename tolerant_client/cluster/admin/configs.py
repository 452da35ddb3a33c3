"""Settings of topics and brokers of one cluster: reading them, and changing those of topics.

Wire facts: DescribeConfigsResponse.json and IncrementalAlterConfigsRequest.json of Apache Kafka.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import kafka.errors as Errors
from kafka.protocol.admin import DescribeConfigsRequest, IncrementalAlterConfigsRequest

from tolerant_client.cluster.admin.asking import speaks
from tolerant_client.cluster.cluster import Cluster

TOPIC, BROKER = 2, 4  # ConfigResource.Type
OF_TOPIC, OF_BROKERS_FILE, DEFAULT = 1, 4, 5  # DescribeConfigsResponse.ConfigSource
_UNTOLD = -1  # in version 0 (Kafka 0.11), which has is_default instead
_SET, _DELETE = 0, 1  # AlterConfigOp.OpType
_EXPIRATIONS = ("producer.id.expiration.ms", "transactional.id.expiration.ms")


class Setting(NamedTuple):
    """A setting as brokers describe it; `origin` is DescribeConfigs' config_source."""

    value: str
    origin: int
    is_sensitive: bool = False
    is_read_only: bool = False


def tells_configs(cluster: Cluster) -> bool:
    """True for Kafka 0.11 and newer; only once connected."""
    return speaks(cluster, DescribeConfigsRequest)


def changes_configs(cluster: Cluster) -> bool:
    """Whether single settings can be changed: true for Kafka 2.3 and newer; only once connected."""
    return speaks(cluster, IncrementalAlterConfigsRequest)


async def describe_configs(
    cluster: Cluster,
    names: Iterable[str],
    keys: Collection[str] | None = None,
    *,
    kind: int = TOPIC,
    node_id: int | None = None,
) -> dict[str, dict[str, Setting] | Exception]:
    """The settings with a value of each topic (or broker), all of them without `keys`, or its error; asked once."""
    resource = DescribeConfigsRequest.DescribeConfigsResource
    wire = [cluster.wire_topic(name) if kind == TOPIC else name for name in names]
    if not wire:
        return {}
    request = DescribeConfigsRequest(
        resources=[
            resource(resource_type=kind, resource_name=name, configuration_keys=None if keys is None else sorted(keys))
            for name in wire
        ],
        include_synonyms=False,
        include_documentation=False,
    )
    found: dict[str, dict[str, Setting] | Exception] = {}
    for result in (await cluster.send(request, node_id)).results:
        name = cluster.topic_of(result.resource_name) if kind == TOPIC else result.resource_name
        if result.error_code:
            found[name] = Errors.for_code(result.error_code)(f"DescribeConfigs of {result.resource_name}")
        else:
            told = [c for c in result.configs if c.value is not None]
            found[name] = {c.name: Setting(c.value, _origin(c), c.is_sensitive, c.read_only) for c in told}
    return found


async def alter_configs(
    cluster: Cluster, changes: Mapping[str, Mapping[str, str | None]], *, validate_only: bool = False
) -> dict[str, tuple[Exception, str]]:
    """Sets settings of topics, None clears one; the error of each topic that was not changed, and the broker's message.

    A topic is changed as a whole, or not at all; asked once.
    """
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource

    def operation(name: str, value: str | None) -> Any:
        return resource.AlterableConfig(name=name, config_operation=_DELETE if value is None else _SET, value=value)

    wanted = [
        resource(resource_type=TOPIC, resource_name=topic, configs=[operation(*one) for one in settings.items()])
        for topic, settings in changes.items()
    ]
    response = await cluster.send(IncrementalAlterConfigsRequest(resources=wanted, validate_only=validate_only))
    return {
        r.resource_name: (
            Errors.for_code(r.error_code)(f"changing settings of {r.resource_name}"),
            r.error_message or "",
        )
        for r in response.responses
        if r.error_code
    }


async def producer_expiration_ms(cluster: Cluster, node_id: int) -> int | None:
    """How long after its last record's timestamp a broker may forget a producer; None where it does not tell us.

    Needs DescribeConfigs on the cluster.  Before Kafka 3.4 it is as long as transactional ids are kept (KIP-854).
    """
    await cluster.connect()
    if not tells_configs(cluster):
        return None
    told = (await describe_configs(cluster, [str(node_id)], _EXPIRATIONS, kind=BROKER, node_id=node_id)).get(
        str(node_id)
    )
    if told is None or isinstance(told, Exception):
        return None
    return next((int(told[name].value) for name in _EXPIRATIONS if name in told), None)


def _origin(config: Any) -> int:
    if config.config_source != _UNTOLD:
        return int(config.config_source)
    return DEFAULT if config.is_default else OF_TOPIC

"""Which settings of a MirrorMaker 2 file apply to a cluster and to a flow.  Pure.

For a flow A->B, later ones win: settings at the top; those of `A.` (clients of the source) and `B.` (of the target), whose
connection settings apply to consumer, producer and admin, too; those of `A->B.`.
Each function corresponds to one of MirrorMakerConfig.java or MirrorConnectorConfig.java of Kafka, named in its docstring.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from tolerant_client.ops.mm2 import keys
from tolerant_client.ops.mm2.keys import FLOW, OURS
from tolerant_client.ops.mm2.places import CLIENTS, TUNING, Known, Place, is_connection
from tolerant_client.ops.mm2.properties import Setting

Settings = Mapping[str, Setting]


def cluster_settings(file: Sequence[Known], alias: str) -> dict[str, Setting]:
    """MirrorMakerConfig.clusterProps."""
    found = {one.name: one.setting for one in file if one.place == Place(alias)}
    general = {one.name: one.setting for one in file if one.place == Place() and is_connection(one.name)}
    own = {name: setting for name, setting in found.items() if is_connection(name)}
    for connection in (own, general):
        for name, setting in connection.items():
            for client in ("", *CLIENTS):
                found.setdefault(f"{client}{name}", setting)
    return found


def flow_settings(file: Sequence[Known], source: str, target: str) -> dict[str, Setting]:
    """MirrorMakerConfig.connectorBaseConfig."""
    found = {one.name: one.setting for one in file if one.place == Place() and keys.find(one.name, (*FLOW, *OURS))}
    for side, alias in (("source", source), ("target", target)):
        for name, setting in cluster_settings(file, alias).items():
            is_client = name.startswith(("consumer", "producer", "admin"))
            found[f"{side}.{name}" if is_client else f"{side}.cluster.{name}"] = setting
    return found | {one.name: one.setting for one in file if one.place == Place(source, target)}


def client_settings(
    flow: Settings, side: Literal["source", "target"], client: Literal["consumer", "producer", "admin"]
) -> dict[str, Setting]:
    """sourceConsumerConfig, targetProducerConfig, ... of MirrorConnectorConfig, and Connect's overrides of producers.

    Connect's worker, whose producer writes to the target, also uses TUNING of the cluster; here all clients do.
    """
    cluster = _behind(f"{side}.cluster.", flow)
    found = {name: setting for name, setting in cluster.items() if is_connection(name) or name in TUNING}
    found |= _behind(f"{client}.", flow) | _behind(f"{side}.{client}.", flow)
    return found | _behind("producer.override.", flow) if (side, client) == ("target", "producer") else found


def _behind(prefix: str, settings: Settings) -> dict[str, Setting]:
    """Utils.entriesWithPrefix."""
    return {name.removeprefix(prefix): setting for name, setting in settings.items() if name.startswith(prefix)}

"""The level of a key in a MirrorMaker 2 file, and whether MirrorMaker 2 reads it at that level.

Facts: MirrorMakerConfig.java (clusterProps, workerConfig, connectorBaseConfig) and MirrorConnectorConfig.java of Kafka;
KIP-458 for client overrides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from tolerant_client.errors import OptionError
from tolerant_client.ops.mm2 import keys
from tolerant_client.ops.mm2.keys import CLIENT, FLOW, GLOBAL, OURS, WORKER, Key
from tolerant_client.ops.mm2.properties import Setting
from tolerant_client.security import java_properties

CLIENTS: Final = ("consumer.", "producer.", "admin.")
_NOT_READ: Final = ("consumer.override.", "admin.override.")
# The prefixes of client settings after `A->B.`.
_FLOW_CLIENTS: Final = (
    *CLIENTS,
    *(f"{side}.{client}" for side in ("source", "target") for client in CLIENTS),
    "source.cluster.",
    "target.cluster.",
    "producer.override.",
    *_NOT_READ,
)
# Connect's worker reads these of its cluster; here they apply to every client of the cluster.
TUNING: Final = (*java_properties.TEXTS, *java_properties.NUMBERS, *java_properties.OURS)


class Place(NamedTuple):
    """The prefix of a key: none, that of a cluster (its alias is `source`), or that of a flow."""

    source: str = ""
    target: str = ""

    @property
    def prefix(self) -> str:
        return f"{self.source}->{self.target}." if self.target else f"{self.source}." if self.source else ""


class Known(NamedTuple):
    """A setting with its place, its name without prefix, its key, and whether MirrorMaker 2 reads it there."""

    setting: Setting
    place: Place
    name: str
    key: Key
    is_read: bool


class _Reading(NamedTuple):
    keys: tuple[Key, ...]
    prefixes: tuple[str, ...] = ("",)
    reads: Callable[[str], bool] = lambda name: True


def is_connection(name: str) -> bool:
    """Whether MirrorMaker 2 gives it to every client of a cluster: CLIENT_CONFIG_DEF of MirrorClientConfig.java."""
    return name in ("bootstrap.servers", "security.protocol") or name.startswith(("ssl.", "sasl."))


def _never(name: str) -> bool:
    return False


_TOP: Final = (
    _Reading(GLOBAL),
    _Reading(FLOW),
    _Reading(OURS),
    _Reading(CLIENT, reads=is_connection),
    _Reading(WORKER),
    _Reading(CLIENT, _FLOW_CLIENTS, _never),
)
_CLUSTER: Final = (
    _Reading(CLIENT, reads=lambda name: is_connection(name) or name in TUNING),
    _Reading(CLIENT, CLIENTS),
    _Reading(WORKER),
    _Reading((*FLOW, *OURS), reads=_never),
)
_FLOW: Final = (
    _Reading(FLOW),
    _Reading(OURS),
    _Reading(CLIENT, _FLOW_CLIENTS, lambda name: not name.startswith(_NOT_READ)),
    _Reading(WORKER),
    _Reading(CLIENT, reads=_never),
)


def known(setting: Setting, clusters: tuple[str, ...]) -> Known:
    """The key of a setting; raises OptionError for a key that MirrorMaker 2 does not have, naming the nearest one."""
    place = _place(setting, clusters)
    name = setting.key.removeprefix(place.prefix)
    readings = _FLOW if place.target else _CLUSTER if place.source else _TOP
    for reading in readings:
        for prefix in reading.prefixes:
            key = keys.find(name.removeprefix(prefix), reading.keys) if name.startswith(prefix) else None
            if key is not None:
                return Known(setting, place, name, key, reading.reads(name))
    names = (prefix + key.name for reading in readings for prefix in reading.prefixes for key in reading.keys)
    near = keys.nearest(name, (name for name in names if not name.endswith("*")))
    hint = f"did you mean {place.prefix}{near}?" if near else "tolerant_client/ops/mm2/README.md has all keys"
    raise OptionError(f"{setting.place} is not a MirrorMaker 2 key; {hint}")


def _place(setting: Setting, clusters: tuple[str, ...]) -> Place:
    key, aliases = setting.key, f"clusters = {', '.join(clusters)}"
    # A cluster may have the alias `source`; source.cluster.alias is still not a setting of that cluster.
    if keys.find(key, (*GLOBAL, *FLOW, *WORKER)):
        return Place()
    longest_first = sorted(clusters, key=len, reverse=True)
    for source in longest_first:
        for target in longest_first:
            if key.startswith(f"{source}->{target}.") and source != target:
                return Place(source, target)
    if "->" in key:
        raise OptionError(f"{setting.place} does not name a flow between two of {aliases}")
    for alias in longest_first:
        if key.startswith(f"{alias}."):
            return Place(alias)
    alias = key.removesuffix(".bootstrap.servers")
    if alias != key and f"{alias}." not in _FLOW_CLIENTS:
        raise OptionError(f"{setting.place} belongs to none of {aliases}; add its alias there, or remove the line")
    return Place()

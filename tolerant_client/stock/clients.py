"""Drop-ins for kafka-python's producer and admin client: same arguments, same behaviour, tolerant connections.

    from tolerant_client import KafkaProducer
    producer = KafkaProducer(bootstrap_servers="broker:9092")

Besides kafka-python's own options they take `recovery_policy` (a RecoveryPolicy
or its name), `recovery_listener`, and two of Java's (KIP-899, KIP-1102):
`metadata_recovery_strategy` ("rebootstrap" or "none") and
`metadata_recovery_rebootstrap_trigger_ms`; `recovery_counters` says what happened so
far.  docs/clients.md lists what else changes.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Mapping
from types import FunctionType
from typing import Any

import kafka

from tolerant_client.errors import OptionError
from tolerant_client.stock import forking, masking
from tolerant_client.stock.accumulator import TolerantAccumulator
from tolerant_client.stock.manager import TolerantNetClient
from tolerant_client.stock.sender import TolerantSender
from tolerant_client.stock.transactions import TolerantTransactionManager
from tolerant_client.tracker.events import Listener, RecoveryCounters
from tolerant_client.tracker.policy import RecoveryPolicy

_RECOVERING_METADATA = ("metadata_recovery_strategy", "metadata_recovery_rebootstrap_trigger_ms")

masking.attach()  # kafka-python logs before it makes a connection manager


def _stock_init_with(client: Any, replaced: Mapping[str, Any]) -> Any:
    """kafka-python's `__init__` of a client, with our classes under some of the names that it looks up.

    The `__init__` builds the client's parts itself; a part built again afterwards
    would register its metrics and listeners twice.
    """
    init = inspect.unwrap(client.__init__)
    names = {**vars(sys.modules[client.__module__]), **replaced}
    made = FunctionType(init.__code__, names, init.__name__, init.__defaults__, init.__closure__)
    made.__kwdefaults__ = init.__kwdefaults__
    return made


def build(init: Any, client: Any, args: tuple[Any, ...], configs: dict[str, Any], make_client: Any) -> None:
    """Runs kafka-python's `__init__` of a client; if that fails, closes the connections made for it.

    kafka-python would leave their thread and descriptors behind for good.  What the
    user's own `kafka_client` returned is theirs to close.
    """
    if "kafka_client" in configs:
        init(client, *args, **configs)
        return
    made = []

    def make_and_keep(*args: Any, **configs: Any) -> Any:
        made.append(make_client(*args, **configs))
        return made[-1]

    try:
        init(client, *args, kafka_client=make_and_keep, **configs)
    except BaseException:
        for net_client in made:
            net_client.close()
        raise
    client.config["kafka_client"] = make_client


def require_listener(listener: Any) -> None:
    """Raises OptionError for what cannot be called."""
    if listener is not None and not callable(listener):
        raise OptionError(f"recovery_listener is {listener!r}: give a function of one argument, the event")


class Recovering:
    """Takes our options out before kafka-python, which rejects unknown ones, sees them."""

    recovery_counters: RecoveryCounters
    _stock: Any  # the kafka-python class that this one replaces
    _replaced: Mapping[str, Any] = {}  # our classes, under kafka-python's names for its own

    @forking.repeatable
    def __init__(
        self,
        *args: Any,
        recovery_policy: RecoveryPolicy | str | None = None,
        recovery_listener: Listener | None = None,
        **configs: Any,
    ) -> None:
        require_listener(recovery_listener)
        self.recovery_counters = RecoveryCounters()
        ours = {name: configs.pop(name) for name in _RECOVERING_METADATA if name in configs}
        make_client = functools.partial(
            TolerantNetClient,
            recovery_policy=RecoveryPolicy.of(recovery_policy),
            recovery_listener=recovery_listener,
            recovery_counters=self.recovery_counters,
            **ours,
        )
        build(_stock_init_with(self._stock, self._replaced), self, args, configs, make_client)


class KafkaProducer(Recovering, kafka.KafkaProducer):  # type: ignore[misc]
    """kafka.KafkaProducer on tolerant connections, with our sender; standby/clients.py has what it says to its users."""

    _stock = kafka.KafkaProducer
    _replaced = {
        "RecordAccumulator": TolerantAccumulator,
        "Sender": TolerantSender,
        "TransactionManager": TolerantTransactionManager,
    }


class KafkaAdminClient(Recovering, kafka.KafkaAdminClient):  # type: ignore[misc]
    """kafka.KafkaAdminClient on tolerant connections; in a forked child the first call rebuilds it."""

    _stock = kafka.KafkaAdminClient

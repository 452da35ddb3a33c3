"""Makes the stock `kafka` classes tolerant in a process whose code cannot change.

    import tolerant_client
    tolerant_client.install()

Laws:
- `_replacements` is the whole list of what is replaced; `uninstall` restores every attribute.
- A client stays what it was when it was made: install() does not touch clients made
  before it, uninstall() does not touch clients made while it was installed.
- The classes stay the same objects, so it does not matter who imported or
  subclassed them, or when.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import kafka
import kafka.errors as Errors

from tolerant_client.errors import OptionError
from tolerant_client.stock import forking, masking
from tolerant_client.stock.accumulator import TolerantAccumulator
from tolerant_client.stock.clients import build, require_listener
from tolerant_client.stock.consumer import poll_arrow
from tolerant_client.stock.coordinator import TolerantCoordinator
from tolerant_client.stock.fetcher import TolerantFetcher
from tolerant_client.stock.held_batches import MIRRORED
from tolerant_client.stock.manager import TolerantConnectionManager
from tolerant_client.stock.sender import TolerantSender
from tolerant_client.stock.stock_names import KafkaConnectionManager, consumer_module, producer_module
from tolerant_client.stock.transactions import TolerantTransactionManager
from tolerant_client.tracker.events import Listener, RecoveryCounters
from tolerant_client.tracker.policy import RecoveryPolicy

_ABSENT = object()  # an attribute that its owner did not define


@dataclass(frozen=True, slots=True)
class _Settings:
    policy: RecoveryPolicy | None = None
    listener: Listener | None = None


_lock = threading.RLock()  # a finalizer may run while it is held
_settings = _Settings()
_originals: list[tuple[Any, str, Any]] = []
_make_stock = KafkaConnectionManager.__init__

_managers: weakref.WeakSet[TolerantConnectionManager] = weakref.WeakSet()
_ended = RecoveryCounters()


def install(recovery_policy: RecoveryPolicy | str | None = None, recovery_listener: Listener | None = None) -> None:
    """Gives every stock Kafka client made from now on in this process tolerant connections.

    The policy and the listener (called with each event, on the clients' event
    loops, so it must be quick) apply to all of them; another call replaces both
    for clients made after it.  Raises OptionError for one that is none.  The options of the stock classes stay as they
    are.  Forked children are covered, spawned ones are not.
    """
    global _settings
    require_listener(recovery_listener)
    with _lock:
        _settings = _Settings(RecoveryPolicy.of(recovery_policy), recovery_listener)
        masking.attach()
        if _originals:
            return
        for owner, name, replacement in _replacements():
            _originals.append((owner, name, vars(owner).get(name, _ABSENT)))
            setattr(owner, name, replacement)


def uninstall() -> None:
    """Restores the stock classes; existing clients stay as they are, and logs stay masked."""
    with _lock:
        while _originals:
            owner, name, original = _originals.pop()
            if original is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, original)


def is_installed() -> bool:
    """Whether stock Kafka clients made now are tolerant."""
    return bool(_originals)


def recovery_counters() -> RecoveryCounters:
    """What recovery did so far in all the clients made in this process while installed, ended ones included; a copy."""
    total = RecoveryCounters()
    with _lock:
        living = list(_managers)  # first: a client that ends in between would be in neither
        total.merge(_ended)
        for manager in living:
            total.merge(manager.recovery_counters)
    return total


def _replacements() -> list[tuple[Any, str, Any]]:
    """Every attribute of kafka-python that is replaced: (owner, name, replacement)."""
    return [
        # A manager makes every connection of every client, so this reaches KafkaNetClient and all that use it.
        (KafkaConnectionManager, "__init__", _init_manager),
        (consumer_module, "Fetcher", TolerantFetcher),
        (consumer_module, "ConsumerCoordinator", TolerantCoordinator),
        (producer_module, "RecordAccumulator", TolerantAccumulator),
        (producer_module, "Sender", TolerantSender),
        (producer_module, "TransactionManager", TolerantTransactionManager),
        (kafka.KafkaConsumer, "poll_arrow", poll_arrow),
        # A forked child has to find the clients, and know how to rebuild them.
        (kafka.KafkaConsumer, "__init__", _guarded(kafka.KafkaConsumer.__init__)),
        (kafka.KafkaProducer, "__init__", _guarded(kafka.KafkaProducer.__init__)),
        (kafka.KafkaAdminClient, "__init__", _guarded(kafka.KafkaAdminClient.__init__)),
    ]


def _guarded(make: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(make)
    def init(self: Any, *args: Any, **configs: Any) -> None:
        if forking.is_dormant(self) and not is_installed():
            raise Errors.IllegalStateError(
                "This Kafka client was made by another process while tolerant_client was installed, and uninstall()"
                " was called since: make a new client in the child"
            )
        if configs.get("acks") == MIRRORED:
            self.config = dict(self.DEFAULT_CONFIG)  # without which its __del__ raises
            raise OptionError(
                f'acks="{MIRRORED}" is an option of tolerant_client.KafkaProducer, beside standby and link: make that one'
            )
        build(make, self, args, configs, self.DEFAULT_CONFIG["kafka_client"])

    return forking.repeatable(init)


@functools.wraps(_make_stock)
def _init_manager(self: Any, *args: Any, **configs: Any) -> None:
    if isinstance(self, TolerantConnectionManager):
        _make_stock(self, *args, **configs)
        return
    kind: Any = type(self)
    self.__class__ = _tolerant_kind(kind)
    counters = RecoveryCounters()
    TolerantConnectionManager.__init__(
        self,
        *args,
        recovery_policy=_settings.policy,
        recovery_listener=_settings.listener,
        recovery_counters=counters,
        **configs,
    )
    with _lock:
        _managers.add(self)
    weakref.finalize(self, _keep, _ended, counters).atexit = False


@functools.cache
def _tolerant_kind(kind: Any) -> type:
    """The tolerant version of the stock manager, or of a subclass of it."""
    if kind is KafkaConnectionManager:
        return TolerantConnectionManager
    return type(kind.__name__, (kind, TolerantConnectionManager), {"__module__": kind.__module__})


def _keep(ended: RecoveryCounters, counters: RecoveryCounters) -> None:
    with _lock:
        ended.merge(counters)


def _start_anew() -> None:
    """In a forked child: a thread that does not exist here may have held the lock, and the counts are the parent's."""
    global _lock, _ended
    _lock = threading.RLock()
    _managers.clear()
    _ended = RecoveryCounters()  # inherited managers add to the old one when they are collected


os.register_at_fork(after_in_child=_start_anew)

"""A forked child never touches its parent's connections: an inherited client is rebuilt on its first call.

A child inherits every socket and the kernel's event queue, but none of the
threads that drive them.  Using them would put the parent's responses out of step,
closing them would end the parent's connections, and keeping the parent's member
id or producer id would make the broker take two processes for one (it drops a
child's batch as a repeat where the parent used the same sequence).  So:

Laws:
- The child closes its copies of the descriptors and nothing else: no shutdown,
  no TLS close, no change to the parent's event queue, no request.
- An inherited client is *dormant*.  Its first call runs its `__init__` again, in place and with
  the same arguments: a new event loop, producer id, member id, counters.  If that
  fails, the call raises the reason, and the next call tries again.
- What the parent buffered or has in flight stays the parent's: the child neither sends nor completes it.
- An identity that the broker gives to one process at a time (transactional_id, group_instance_id)
  is not taken from the parent: a client with one raises IllegalStateError in the child.
- close() of a dormant client sends nothing.
- A consumer gets the parent's subscription.  The parent may have stopped anywhere (the fork took its threads away), so
  none of its locks is taken.  A group member joins as a new member, and the group decides which partitions it gets and
  where it begins.  Without a group, or with a manual assignment, the child takes over positions, requested resets and
  pauses; a client that follows a link and begins at another cluster than the parent's raises IllegalStateError instead.
- What a parent that has moved knows of the move, the child knows: it may seek or commit an offset from before, as the parent may.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Set
from typing import Any, NoReturn, TypeVar, cast

import kafka
import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.stock.stock_names import SubscriptionType

_Init = TypeVar("_Init", bound=Callable[..., None])

_managers: weakref.WeakSet[Any] = weakref.WeakSet()
_clients: weakref.WeakSet[Any] = weakref.WeakSet()
_inherited: list[Any] = []  # never finalized: their finalizers would act on the parent's connections

# Options under which a broker accepts one process at a time.
_EXCLUSIVE = {
    "transactional_id": "a second producer with its transactional_id would fence the parent's",
    "group_instance_id": "a second member with its group_instance_id would fence the parent's",
}


class _Recipe:
    """How a client was made; kept on the client itself, because the arguments may refer to it."""

    def __init__(self, init: Callable[..., None], args: tuple[Any, ...], configs: dict[str, Any]) -> None:
        self.init, self.args, self.configs = init, args, configs
        self.lock = threading.RLock()
        self.is_building = False  # only the building thread sees it true
        self.subscription: Any = None  # the parent's, of a dormant consumer
        self.is_iterated = False
        self.cluster_id: Any = None  # the parent's, of a client that may move
        self.fetcher: Any = None  # the parent's, of a consumer that may move


def watch(manager: Any) -> None:
    """Has a forked child drop the connections of this connection manager."""
    _managers.add(manager)


def repeatable(init: _Init) -> _Init:
    """An `__init__` of a consumer, producer or admin client that a forked child can run again."""

    @functools.wraps(init)
    def keeping(client: Any, *args: Any, **configs: Any) -> None:
        if "_recipe" not in vars(client):  # else the `__init__` of a subclass called this one
            client._recipe = _Recipe(keeping, args, configs)
            _clients.add(client)
        init(client, *args, **configs)

    return cast(_Init, keeping)


def is_dormant(client: Any) -> bool:
    """Whether another process made this client, and this one has not used it yet."""
    return "_awake" in vars(type(client))


def _error(why: str = "") -> Errors.IllegalStateError:
    return Errors.IllegalStateError(
        f"This Kafka client was made by another process and cannot be used after a fork (this is process"
        f" {os.getpid()}){why and ': '}{why}: make a new client in the child"
    )


def _refuse(*args: Any, **kwargs: Any) -> NoReturn:
    raise _error()


def _do_nothing(*args: Any, **kwargs: Any) -> None:
    """Replaces what ends an event loop, or finalizes a client, in the child: both are the parent's."""


def _leave_to_parent() -> None:
    for client in list(_clients):
        _put_to_sleep(client)
    for net in {id(manager._net): manager._net for manager in _managers}.values():
        _drop_event_loop(net)
    for manager in list(_managers):
        for connection in manager._conns.values():
            if connection.transport is not None:
                _close_copy(getattr(connection.transport, "_sock", None))
        _inherited.append(manager._conns)
        manager._conns = {}
        manager.closed = True
    _managers.clear()


def _put_to_sleep(client: Any) -> None:
    recipe: _Recipe = client._recipe
    recipe.lock = threading.RLock()  # a thread that does not exist here may have held it
    recipe.is_building = False
    if is_dormant(client) or getattr(client, "_closed", False):
        return
    recipe.subscription = getattr(client, "_subscription", None)
    if recipe.subscription is not None:
        recipe.subscription._lock = threading.RLock()
    recipe.is_iterated = getattr(client, "_iterator", None) is not None
    if getattr(client, "may_move", False) and hasattr(client, "_fetcher"):
        recipe.fetcher = client._fetcher
        recipe.fetcher.settle_move()  # else the parent's positions are not of the cluster that it has moved to
        recipe.cluster_id = client._manager.cluster.cluster_id
    kind: Any = type(client)
    client.__class__ = _dormant(kind)


def _drop_event_loop(net: Any) -> None:
    """Closes the descriptors of an event loop whose thread is not in this process; every later use raises."""
    _inherited.append((net._selector, net._ready, net._scheduled, net._pending_tasks, net._current))
    keys = net._selector.get_map()
    sockets = [key.fileobj for key in keys.values()] if keys else []
    # The queue first: while it is open, taking a socket out of it would take it out of the parent's.
    with contextlib.suppress(OSError):
        net._selector.close()
    for sock in [*sockets, net._wakeup_r, net._wakeup_w]:
        _close_copy(sock)
    net._exception = _error()
    net._poll_once = _refuse
    net.call_at = _refuse
    net.call_soon = _refuse
    net.close = net.stop = net.wakeup = _do_nothing


def _close_copy(sock: Any) -> None:
    """close(2) of this process's descriptor; neither TCP nor TLS notices."""
    if isinstance(sock, socket.socket) and sock.fileno() >= 0:
        with contextlib.suppress(OSError):
            os.close(sock.detach())


def _wake(client: Any) -> None:
    """Rebuilds a dormant client; other threads that call it meanwhile wait."""
    recipe: _Recipe = client._recipe
    if _is_event_loop_of(client):
        return
    with recipe.lock:
        if recipe.is_building or not is_dormant(client):
            return
        _refuse_exclusive(getattr(client, "config", recipe.configs))
        kind = type(client)._awake
        recipe.is_building = True
        try:
            if recipe.subscription is None:
                recipe.init(client, *recipe.args, **recipe.configs)
            else:
                recipe.init(client, **recipe.configs)
                try:
                    _resubscribe(client, recipe)
                except BaseException:
                    kind.close(client, autocommit=False)
                    raise
            client.__class__ = kind
        finally:
            recipe.is_building = False
        recipe.subscription = recipe.fetcher = None


def _resubscribe(consumer: Any, recipe: _Recipe) -> None:
    """Subscribes or assigns a new consumer as in the parent's SubscriptionState.

    Raises KafkaTimeoutError where the metadata lacks partitions of a consumer without a
    group after `request_timeout_ms`.
    """
    other = recipe.subscription
    is_groupless = consumer.config["group_id"] is None
    here = consumer._manager.cluster.cluster_id
    if recipe.cluster_id not in (None, here) and (
        is_groupless or other.subscription_type == SubscriptionType.USER_ASSIGNED
    ):
        raise _error(f"the parent's positions belong to cluster {recipe.cluster_id}, and this process begins at {here}")
    if recipe.fetcher is not None and recipe.cluster_id == here:
        consumer._coordinator.inherits(consumer._fetcher.inherits(recipe.fetcher))
    if other.subscription_type == SubscriptionType.USER_ASSIGNED:
        kafka.KafkaConsumer.assign(consumer, list(other.assignment))
        _take_place(consumer._subscription, other)
    elif other.subscription_type != SubscriptionType.NONE:
        if other.subscribed_pattern is not None:
            wanted = {"pattern": other.subscribed_pattern}
        else:
            wanted = {"topics": sorted(other.subscription)}
        kafka.KafkaConsumer.subscribe(consumer, listener=other.rebalance_listener, **wanted)
        if is_groupless:
            _wait_for(consumer, set(other.assignment))
            _take_place(consumer._subscription, other)


def _wait_for(consumer: Any, partitions: Set[TopicPartition]) -> None:
    """Waits until metadata gave the consumer these partitions: each update that lacks some drops their positions."""
    deadline = time.monotonic() + consumer.config["request_timeout_ms"] / 1000
    manager = consumer._manager
    while missing := partitions - set(consumer._subscription.assignment):
        left = deadline - time.monotonic()
        if left <= 0:
            raise Errors.KafkaTimeoutError(
                f"no metadata of {sorted(missing)} within {consumer.config['request_timeout_ms']} ms"
            )
        manager._net.run(manager.wait_for, manager.cluster.request_update(), 1000 * left)


def _take_place(subscription: Any, other: Any) -> None:
    for partition, state in list(other.assignment.items()):
        if state.position is not None:
            subscription.seek(partition, state.position)
        elif state.reset_strategy is not None:
            subscription.request_offset_reset(partition, state.reset_strategy)
        if state.paused:
            subscription.pause(partition)


def _is_event_loop_of(client: Any) -> bool:
    """Whether this thread runs the event loop of the client: the building thread waits for it, so it must not wait.

    Such a call (a listener's, while the client connects) sees a half-built client, as in any constructor.
    """
    return threading.current_thread() is getattr(getattr(client, "_net", None), "_io_thread", None)


def _refuse_exclusive(config: Mapping[str, Any]) -> None:
    for option, why in _EXCLUSIVE.items():
        if config.get(option) is not None:
            raise _error(why)


@functools.cache
def _dormant(kind: Any) -> type:
    """The class of an inherited client: its first call rebuilds it, its finalizer does nothing."""

    def waking(name: str) -> Callable[..., Any]:
        call = getattr(kind, name)

        @functools.wraps(call)
        def wake_and_call(client: Any, *args: Any, **kwargs: Any) -> Any:
            _wake(client)
            return call(client, *args, **kwargs)

        return wake_and_call

    def ending(name: str) -> Callable[..., Any]:
        call = getattr(kind, name)

        @functools.wraps(call)
        def end(client: Any, *args: Any, **kwargs: Any) -> Any:
            if not _is_event_loop_of(client):
                with client._recipe.lock:
                    if is_dormant(client) and not client._recipe.is_building:
                        client._closed = True
                        client.__class__ = kind
            return call(client, *args, **kwargs)

        return end

    def next_record(client: Any) -> Any:
        if is_dormant(client) and client._recipe.is_iterated:
            raise _error("the loop over this consumer began in the parent; begin one with iter(), or")
        _wake(client)
        return kind.__next__(client)

    names = [name for name in dir(kind) if not name.startswith("_") and _is_method(kind, name)]
    names += [name for name in ("__enter__", "__iter__") if hasattr(kind, name)]
    namespace: dict[str, Any] = {name: waking(name) for name in names}
    namespace |= {name: ending(name) for name in ("close", "__exit__")}
    if hasattr(kind, "__next__"):
        namespace["__next__"] = next_record
    namespace |= {"__del__": _do_nothing, "_awake": kind, "__module__": kind.__module__}
    return type(kind.__name__, (kind,), namespace)


def _is_method(kind: Any, name: str) -> bool:
    """False for class and static methods, which need no connection."""
    bound_to_class = any(isinstance(vars(base).get(name), (classmethod, staticmethod)) for base in kind.__mro__)
    return callable(getattr(kind, name)) and not bound_to_class


os.register_at_fork(after_in_child=_leave_to_parent)

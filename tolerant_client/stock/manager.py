"""kafka-python's connection manager and client, making tolerant connections.

Laws:
- kafka-python decides when to connect, back off and give up; each override says
  where it differs.
- All connections of one manager share one policy, one listener and one set of
  counters.
- A refused login fails what waited for that attempt.  While its node then backs off there is no error but NodeNotReadyError, which every
  caller expects: the producer's thread would never come to drive the event loop, and ask again at once, for ever.
- That pause is at most _REFUSED_S, as in Java, since the broker may know the login or the mechanism by then; kafka-python makes none.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import kafka.errors as Errors

from tolerant_client.errors import text_of
from tolerant_client.stock import forking, masking
from tolerant_client.stock.any_broker import AnyBroker, is_for_any_broker
from tolerant_client.stock.bootstrap import BESIDE_S, Bootstrap
from tolerant_client.stock.client_metrics import register
from tolerant_client.stock.connection import TolerantConnection
from tolerant_client.stock.connection_options import check_proxy
from tolerant_client.stock.leader_watch import LeaderWatch
from tolerant_client.stock.metadata import STRATEGIES, TolerantMetadata
from tolerant_client.stock.stock_names import (
    Future,
    KafkaConnectionManager,
    KafkaNetClient,
    KafkaNetSocket,
    NetworkSelector,
)
from tolerant_client.stock.transport import QuietSocket, TolerantSSLTransport, TolerantTCPTransport, connection_error
from tolerant_client.tracker.events import Event, Listener, RecoveryCounters
from tolerant_client.tracker.policy import RecoveryPolicy

log = logging.getLogger(__name__)

_LEAST_RENEWAL = 10.0  # seconds for one step of a re-authentication
_REFUSED_S = 1.0
_LOGIN_REFUSED = (Errors.SaslAuthenticationFailedError, Errors.AuthorizationError, Errors.UnsupportedSaslMechanismError)

# The order in which nodes get a request that any broker can answer.
_RANKS = ("connected", "not tried", "doubtful", "failed")


class TolerantConnectionManager(Bootstrap):
    """Connections of one client; takes kafka-python's configuration.

    It also takes `recovery_policy`, `recovery_listener` (called with every event on
    the event loop, so it must be quick) and `recovery_counters`, and Java's `metadata_recovery_strategy`
    ("rebootstrap" or "none") and `metadata_recovery_rebootstrap_trigger_ms`.
    """

    DEFAULT_CONFIG = {
        **KafkaConnectionManager.DEFAULT_CONFIG,
        "receive_message_max_bytes": 100_000_000,  # kafka-python's own default is below the size of a Fetch response
        "max_block_ms": 60_000,  # a producer's; transaction_calls.py bounds its calls by it
        # Kafka's names and defaults (KIP-899, KIP-1102)
        "metadata_recovery_strategy": "rebootstrap",
        "metadata_recovery_rebootstrap_trigger_ms": 300_000,
    }

    cluster: Any

    def __init__(
        self,
        net: Any,
        *,
        recovery_policy: RecoveryPolicy | str | None = None,
        recovery_listener: Listener | None = None,
        recovery_counters: RecoveryCounters | None = None,
        **configs: Any,
    ) -> None:
        self.recovery_policy = RecoveryPolicy.of(recovery_policy).for_retries(configs.get("retries", 0))
        self.recovery_counters = recovery_counters if recovery_counters is not None else RecoveryCounters()
        self._recovery_listener = recovery_listener
        self.guards: list[Callable[[], bool]] = []  # asked before anything is sent; see Cluster.guard
        self._accepted, self._failures, self._disproved = set(), {}, set()
        self._leader_watch: LeaderWatch | None = None
        self._moved: Any = None  # done when the cluster of a move has told its brokers
        self.called = ""  # what messages call the cluster
        masking.attach()  # again: modules imported since then may log
        super().__init__(net, **configs)
        check_proxy(self.config["proxy_url"], "the client")
        strategy = self.config["metadata_recovery_strategy"]
        if strategy not in STRATEGIES:
            raise ValueError(f"metadata_recovery_strategy must be one of {', '.join(STRATEGIES)}; got {strategy!r}")
        self.cluster = TolerantMetadata(**self.cluster.config)
        self.cluster.attach(self)
        if self.config["metrics"]:
            register(self.config["metrics"], self.recovery_counters)
        forking.watch(self)

    def bootstrap_async(self, timeout_ms: float | None = None, refresh: bool = True) -> Any:
        """Connects to the cluster for the first time, or again."""
        if self._leader_watch is None:
            self._leader_watch = LeaderWatch(self)
        future = super().bootstrap_async(timeout_ms, refresh)
        future.add_callback(lambda _: self.cluster.start_refresh_loop())  # the loop ends if a first attempt fails
        return future

    async def leave(self) -> None:
        """Leaves the cluster for another one; see Bootstrap."""
        self._moved = Future()
        await super().leave()

    def move(self, config: Mapping[str, Any]) -> Any:
        """Belongs to the other cluster; see Bootstrap."""
        if self._leader_watch is not None:
            self._leader_watch.forget()
        super().move(config).add_both(self._moved.success)
        return self._moved

    @property
    def is_moving(self) -> bool:
        """Whether the client has left its cluster, and the next one has not told its brokers."""
        return self._moved is not None and not self._moved.is_done

    async def moved(self, timeout_ms: float | None = None) -> None:
        """Waits until the client belongs to a cluster whose brokers are known; raises KafkaTimeoutError."""
        if self.is_moving:
            await self.wait_for(self._moved, timeout_ms)

    def update_backoff(self, node_id: Any) -> Any:
        """Notes that connecting failed; returns the milliseconds until the next attempt may begin."""
        backoff_ms = super().update_backoff(node_id)
        # It is asked while no known broker can be reached, or until the cluster of a move tells of its brokers.
        if self.cluster.is_bootstrap(node_id) and (self.cluster.brokers() or self.is_moving):
            self._back_off_at_most(node_id, BESIDE_S)
        if self._leader_watch is not None:
            self._leader_watch.unreachable(node_id)
        return backoff_ms

    def _back_off_at_most(self, node_id: Any, seconds: float) -> None:
        failures, until, setup_ms = self._backoff[node_id]
        self._backoff[node_id] = failures, min(until, time.monotonic() + seconds), setup_ms

    def unreachable_nodes(self) -> list[Any]:
        """The nodes whose last attempt to connect failed."""
        return list(self._backoff)

    def not_ready(self, node_id: Any = None) -> Errors.NodeNotReadyError:
        """The error for a node that backs off after a failure, or for all nodes, with the reason of that failure."""
        newest = next(reversed(self._failures.values()), None)
        failure = newest if node_id is None else self._failures.get(node_id)
        who = (
            "no broker can be connected to at the moment"
            if node_id is None
            else f"node {node_id} backs off for a moment"
        )
        error = Errors.NodeNotReadyError(who if failure is None else text_of(failure))
        error.__cause__ = failure
        return error

    @property
    def is_connected(self) -> bool:
        """Whether any broker is connected, paused ones included."""
        return any(connection.connected for connection in self._conns.values())

    @property
    def is_cut_off(self) -> bool:
        """Whether no known broker is connected, and all of them back off after a failure."""
        return bool(self.cluster.brokers()) and not self.is_connected and self.best_node() is None

    def least_loaded_node(self) -> Any:
        """The node for a request that any broker can answer; None where all are backing off.

        Connected nodes come first, then those not tried, those whose connection is doubtful, and those that failed
        last.  kafka-python prefers a dead broker without a request in flight to a living one that has some, and then
        waits for it to connect.  None while leaving, too: who tries a node then in a loop (kafka-python's sender) keeps the event
        loop from turning.
        """
        return None if self.is_leaving else self.best_node()

    def best_node(self, but: Collection[Any] = ()) -> Any:
        """Like least_loaded_node, but leaves some out."""
        nodes = [broker.node_id for broker in self.cluster.brokers() if broker.node_id not in but]
        random.shuffle(nodes)
        best, best_rank = None, (len(_RANKS), 0)
        for node_id in nodes:
            connection = self._conns.get(node_id)
            if (connection is not None and connection.paused) or self.connection_delay(node_id) > 0:
                continue
            in_flight = 0 if connection is None else len(connection.in_flight_requests)
            rank = (_RANKS.index(self._standing(node_id)), in_flight)
            if rank < best_rank:
                best, best_rank = node_id, rank
        return best

    def _standing(self, node_id: Any) -> str:
        connection = self._conns.get(node_id)
        if connection is None or not connection.connected:
            return "failed" if node_id in self._backoff else "not tried"
        return "doubtful" if connection.is_doubtful else "connected"

    def is_doubtful(self, node_id: Any) -> bool:
        """Whether the connection to a node is silent for too long, or may be out of step."""
        return self._standing(node_id) == "doubtful"

    def send(self, request: Any, node_id: Any = None, request_timeout_ms: float | None = None) -> Any:
        """The future of a response from `node_id` or any broker; a silent one's request may go to the next one as well.

        Raises what get_connection raises, except NodeNotReadyError, which is in the future.
        """
        if node_id is None and self.is_moving:
            return self.call_soon(self._send_once_moved, request, request_timeout_ms)
        is_for_any = is_for_any_broker(request, node_id)
        node_id = self.least_loaded_node() if node_id is None else node_id
        if not is_for_any:
            return super().send(request, node_id, request_timeout_ms)
        timeout_ms = self.config["request_timeout_ms"] if request_timeout_ms is None else request_timeout_ms
        asked = AnyBroker(self, request, timeout_ms)
        response = super().send(request, node_id, request_timeout_ms)
        if response.is_done:
            return response
        asked.ask(node_id, response)
        return asked.future

    async def _send_once_moved(self, request: Any, request_timeout_ms: float | None) -> Any:
        timeout_ms = self.config["request_timeout_ms"] if request_timeout_ms is None else request_timeout_ms
        await self.moved(timeout_ms)
        return await self.send(request, None, request_timeout_ms)

    def recovery_event(self, event: Event, node_id: Any = None) -> None:
        """Counts an event that belongs to no connection, and tells the listener."""
        self.recovery_counters.add(event, node_id)
        if self._recovery_listener is not None:
            try:
                self._recovery_listener(event)
            except Exception:
                log.exception("recovery_listener failed")

    async def _connect(self, node: Any, connection: Any, *args: Any, **kwargs: Any) -> None:
        """Connects and keeps the reason of a failure."""
        moves, backoff = self.moves, self._backoff.get(node.node_id)
        await super()._connect(node, connection, *args, **kwargs)
        if moves != self.moves:  # the node id is another node's by now
            self._backoff.pop(node.node_id, None)
            return
        failure = connection.init_future.exception
        self._failures.pop(node.node_id, None)
        if failure is None:
            return
        self._failures[node.node_id] = failure
        # kafka-python counts a failure before the handshake, and forgets all of them after a failure that follows it.
        self._backoff.pop(node.node_id, None)
        if backoff is not None:
            self._backoff[node.node_id] = backoff
        self.update_backoff(node.node_id)
        if isinstance(failure, _LOGIN_REFUSED):
            self._back_off_at_most(node.node_id, _REFUSED_S)

    def _setup_seconds(self, node_id: Any, timeout_ms: float | None) -> float:
        """How long an attempt to connect may take: all the time that kafka-python gives it, but at most `timeout_ms`.

        A response that is lost while connecting or authenticating shows only as silence, and so does a slow broker:
        with a slow broker, an attempt that is given up early has to begin again.
        """
        stocks_ms = self.socket_connection_setup_timeout_ms(node_id)
        return float(stocks_ms if timeout_ms is None else min(stocks_ms, timeout_ms)) / 1000

    async def _build_transport(self, node: Any, timeout_at: float | None = None) -> Any:
        self._accepted.discard(node.node_id)  # a broker that froze since then accepts no connection
        sock = await self._connected_socket(node, timeout_at)
        self._accepted.add(node.node_id)
        try:
            transport = self._wrap(sock, node.host)
            transport.guards = self.guards
        except Exception:
            sock.close()
            raise
        try:
            await transport.handshake(timeout_at)
        except Exception as error:
            transport.abort(error)
            raise connection_error(error, f"TLS handshake with {node.host}:{node.port}") from error
        except BaseException:  # the task was cancelled
            transport.abort()
            raise
        return transport

    async def _connected_socket(self, node: Any, timeout_at: float | None) -> Any:
        """A socket to the first address of the node that accepts; the socket of any other address is closed at once.

        Each address has an equal share of the time that is left.  With kafka-python an address that never responds
        leaves no time to the next one, and leaves its socket to the garbage collector.
        """
        factory = KafkaNetSocket(self.config["proxy_url"])
        failure: Exception = OSError(f"{node.host} has no address")
        addresses = factory.dns_lookup(node.host, node.port)
        for tried, (family, kind, proto, _, address) in enumerate(addresses):
            now = time.monotonic()
            share_ends = None if timeout_at is None else now + (timeout_at - now) / (len(addresses) - tried)
            sock = factory.socket(family, kind, proto)
            try:
                sock.setblocking(False)
                for option in self.config["socket_options"]:
                    sock.setsockopt(*option)
                return await factory.sock_connect(self._net, sock, address, timeout_at=share_ends)
            except (OSError, Errors.KafkaError) as error:
                sock.close()
                failure = error
            except BaseException:  # the task was cancelled
                sock.close()
                raise
        told = f"unable to connect to {node.host}:{node.port}: {text_of(failure)}"
        raise Errors.KafkaConnectionError(told) from failure

    def _wrap(self, sock: Any, host: str) -> Any:
        if not self.ssl_enabled:
            return TolerantTCPTransport(self._net, QuietSocket.taking_over(sock), host=host)
        options = {key: value for key, value in self.config.items() if key.startswith("ssl_")}
        return TolerantSSLTransport(self._net, sock, host=host, **options)

    def get_connection(
        self,
        node_id: Any,
        timeout_ms: float | None = None,
        pop_on_close: bool = True,
        refresh_metadata_on_err: bool = True,
        reset_backoff_on_connect: bool = True,
    ) -> Any:
        """The connection to a node, connecting if there is none.

        Raises NodeNotReadyError while backing off, and UnknownBrokerIdError.
        """
        if node_id is None or self.is_leaving:
            raise self.not_ready()
        if self.connection_delay(node_id) > 0:
            raise self.not_ready(node_id)
        known = self._conns.get(node_id)
        if known is not None:
            return known
        node = self.cluster.broker_metadata(node_id)
        if node is None:
            raise Errors.UnknownBrokerIdError(node_id)
        setup_s = self._setup_seconds(node_id, timeout_ms)
        connection = TolerantConnection(
            self._net,
            node_id=node_id,
            broker_version_data=self.broker_version_data,
            recovery_policy=self.recovery_policy,
            recovery_listener=self._recovery_listener,
            recovery_counters=self.recovery_counters,
            setup_timeout=max(_LEAST_RENEWAL, setup_s),
            disproved=self._disproved,
            place=(self.called, f"{node.host}:{node.port}"),
            **self.config,
        )
        closed = connection.close_future
        closed.add_errback(lambda _: self._back_off_from_useless(connection))
        if pop_on_close:
            closed.add_both(lambda _: self._drop(connection))
        if self._sensors:
            closed.add_both(lambda _: self._sensors.connection_closed.record())
        if refresh_metadata_on_err:
            closed.add_errback(lambda _: self.cluster.request_update())
        self._conns[node_id] = connection
        deadline = time.monotonic() + setup_s

        def connect() -> Any:
            return self._connect(node, connection, reset_backoff_on_connect, timeout_at=deadline)

        self._net.call_soon(connect)
        return connection

    def _drop(self, connection: Any) -> None:
        """Forgets a connection that has ended; after a move its node id may be another node's."""
        if self._conns.get(connection.node_id) is connection:
            del self._conns[connection.node_id]

    def _back_off_from_useless(self, connection: Any) -> None:
        """Replaces a retired connection at once if it has served a request, else after a pause.

        The pause is kafka-python's reconnect_backoff_ms and does not grow, since kafka-python forgets its backoff with
        every connect that succeeds.  While it bootstraps, kafka-python pauses by itself.
        """
        is_useless = connection.is_retired and not connection.has_served
        if is_useless and not self.cluster.is_bootstrap(connection.node_id):
            self.reset_backoff(connection.node_id)
            self.update_backoff(connection.node_id)


class TolerantNetClient(KafkaNetClient):  # type: ignore[misc]
    """For kafka-python's `kafka_client=` option: its client on a TolerantConnectionManager."""

    def __init__(self, net: Any = None, manager: Any = None, **configs: Any) -> None:
        is_own = net is None
        net = NetworkSelector(**configs) if is_own else net
        try:
            manager = TolerantConnectionManager(net, **configs) if manager is None else manager
        except BaseException:  # a wrong option
            if is_own:
                net.close()
            raise
        super().__init__(net=net, manager=manager, **configs)

"""kafka-python's connection manager and client, making tolerant connections.

Laws:
- Which broker, when to connect, back off and give up stay kafka-python's;
  only the connection and its transport are ours.
- All connections of one manager share one policy, one listener, one set of
  counters.
"""

from __future__ import annotations

import inspect
import time
from typing import Any

import kafka.errors as Errors
from kafka.net.compat import KafkaNetClient
from kafka.net.inet import KafkaNetSocket
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.net.transport import KafkaSSLTransport

from tolerant_client.connection import TolerantConnection
from tolerant_client.events import Listener, RecoveryCounters
from tolerant_client.policy import RecoveryPolicy
from tolerant_client.transport import QuietSocket, TolerantSSLTransport, TolerantTCPTransport

# Older releases of kafka-python 3.0 hand their TLS transport a context, newer ones the ssl_* options.
_TLS_TAKES_CONTEXT = "ssl_context" in inspect.signature(KafkaSSLTransport.__init__).parameters

_SHORT_LIFE = 2.0  # seconds
_MAX_SHORT_LIVES = 5  # pauses stop growing here: 16 times reconnect_backoff_ms


class TolerantConnectionManager(KafkaConnectionManager):  # type: ignore[misc]  # kafka-python is untyped
    """Connections of one client; takes kafka-python's configuration.

    Besides it `recovery_policy`, `recovery_listener` (called with every event on
    the event loop, so it must be quick) and `recovery_counters`.
    """

    # kafka-python's own default, 1,000,000, is below what a Fetch answer may have.
    DEFAULT_CONFIG = {**KafkaConnectionManager.DEFAULT_CONFIG, "receive_message_max_bytes": 100_000_000}

    def __init__(
        self,
        net: Any,
        *,
        recovery_policy: RecoveryPolicy | None = None,
        recovery_listener: Listener | None = None,
        recovery_counters: RecoveryCounters | None = None,
        **configs: Any,
    ) -> None:
        self.recovery_policy = recovery_policy or RecoveryPolicy()
        self.recovery_counters = recovery_counters if recovery_counters is not None else RecoveryCounters()
        self._recovery_listener = recovery_listener
        self._short_lives: dict[Any, int] = {}  # connections retired soon after they were made, by node
        super().__init__(net, **configs)

    async def _build_transport(self, node: Any, timeout_at: float | None = None) -> Any:
        sock = await self._connected_socket(node, timeout_at)
        try:
            transport = self._wrap(sock, node.host)
        except Exception:
            sock.close()
            raise
        try:
            await transport.handshake(timeout_at)
        except Exception as error:
            transport.abort(error)
            raise Errors.KafkaConnectionError(f"TLS handshake with {node.host}:{node.port} failed: {error}") from error
        return transport

    async def _connected_socket(self, node: Any, timeout_at: float | None) -> Any:
        """A socket to the first address of the node that accepts; one that does not is closed at once.

        kafka-python leaves it to the garbage collector.
        """
        factory = KafkaNetSocket(self.config["proxy_url"])
        failure = f"{node.host} has no address"
        for family, kind, proto, _, address in factory.dns_lookup(node.host, node.port):
            sock = factory.socket(family, kind, proto)
            try:
                sock.setblocking(False)
                for option in self.config["socket_options"]:
                    sock.setsockopt(*option)
                return await factory.sock_connect(self._net, sock, address, timeout_at=timeout_at)
            except (OSError, Errors.KafkaError) as error:
                sock.close()
                failure = str(error)
            except BaseException:  # the task was cancelled
                sock.close()
                raise
        raise Errors.KafkaConnectionError(f"unable to connect to {node.host}:{node.port}: {failure}")

    def _wrap(self, sock: Any, host: str) -> Any:
        if not self.ssl_enabled:
            return TolerantTCPTransport(self._net, QuietSocket.taking_over(sock), host=host)
        if _TLS_TAKES_CONTEXT:
            is_checked = self.config["ssl_check_hostname"]
            context = self._build_ssl_context()
            return TolerantSSLTransport(self._net, sock, context, host=host, ssl_check_hostname=is_checked)
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

        Raises NodeNotReadyError while backing off, UnknownBrokerIdError, and the
        cached error when the node refused our credentials.
        """
        if node_id is None:
            raise Errors.NodeNotReadyError("No node_id provided")
        self.maybe_raise_auth_failure(node_id)
        if self.connection_delay(node_id) > 0:
            raise Errors.NodeNotReadyError(node_id)
        known = self._conns.get(node_id)
        if known is not None:
            return known
        node = self.cluster.broker_metadata(node_id)
        if node is None:
            raise Errors.UnknownBrokerIdError(node_id)
        connection = TolerantConnection(
            self._net,
            node_id=node_id,
            broker_version_data=self.broker_version_data,
            recovery_policy=self.recovery_policy,
            recovery_listener=self._recovery_listener,
            recovery_counters=self.recovery_counters,
            **self.config,
        )
        closed = connection.close_future
        closed.add_errback(lambda _: self._back_off_from_short_lives(connection))
        if pop_on_close:
            closed.add_both(lambda _: self._conns.pop(node.node_id, None))
        if self._sensors:
            closed.add_both(lambda _: self._sensors.connection_closed.record())
        if refresh_metadata_on_err:
            closed.add_errback(lambda _: self.cluster.request_update())
        self._conns[node_id] = connection
        setup_ms = self.socket_connection_setup_timeout_ms(node_id) if timeout_ms is None else timeout_ms
        deadline = time.monotonic() + setup_ms / 1000

        def connect() -> Any:
            return self._connect(node, connection, reset_backoff_on_connect, timeout_at=deadline)

        self._net.call_soon(connect)
        return connection


    def _back_off_from_short_lives(self, connection: Any) -> None:
        """One retired connection is replaced at once, a series of them with growing pauses.

        kafka-python forgets its backoff with every connect that succeeds, and a
        peer that answers nonsense lets us connect each time.
        """
        node_id = connection.node_id
        if connection.retired_after is None:
            return
        if connection.retired_after > _SHORT_LIFE:
            self._short_lives.pop(node_id, None)
            return
        count = self._short_lives[node_id] = min(_MAX_SHORT_LIVES, self._short_lives.get(node_id, 0)) + 1
        if count > 1:
            self._backoff[node_id] = (count - 2, 0.0, 0.0)
            self.update_backoff(node_id)


class TolerantNetClient(KafkaNetClient):  # type: ignore[misc]
    """For kafka-python's `kafka_client=` option: its client on a TolerantConnectionManager."""

    def __init__(self, net: Any = None, manager: Any = None, **configs: Any) -> None:
        net = NetworkSelector(**configs) if net is None else net
        manager = TolerantConnectionManager(net, **configs) if manager is None else manager
        super().__init__(net=net, manager=manager, **configs)

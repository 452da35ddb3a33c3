"""The connections to one Kafka cluster: its address book, its brokers' API versions, and how long failures are retried.

Laws:
- One event loop (kafka-python's NetworkSelector) may serve several clusters;
  everything here runs on it, as coroutines.
- What may be held up has a connection of its own to each node, a lane, so that nothing else ever waits for it: long-polling
  fetches, other reads of records, and batches of records.  A node that throttles us (KIP-219) reads nothing of the connection that got
  that response, for as long as the quota takes for all the bytes, however long that is; it reads the others.  What lies there unread it reads
  when the throttle ends, though the client has died meanwhile.  So batches that a broker may have forgotten by then go on a
  lane of their own, one request at a time (identical/append.py), and so do bare transaction markers, which nothing fences, on some
  that are never throttled (identical/fill.py): a broker exempts responses to them, as those between brokers.
- Small batches that may not wait (rows of a transaction's map; the topics that keep state, above all claims, which wait for no
  rows) have lanes that are left once they are throttled for longer than _SOON_S (soon.py): a node reads a new connection up to
  its first response.  Their bytes count for the quota all the same.
- An error code is believed when a broker repeats it; a single one is retried.
- What a closed connection has not delivered is gone, also once its process has ended (_RESET_ON_CLOSE): while a network is cut the
  system would keep it, and deliver it up to a minute after everybody else has gone on.  Whoever waits for a response sends again.
- A node that throttles us (KIP-219) is not away: requests wait until it reads again, and no patience ends meanwhile.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NoReturn, TypeVar

import kafka.errors as Errors

from tolerant_client.cluster.event_loop import NetworkSelector
from tolerant_client.cluster.held_up import HeldUp
from tolerant_client.cluster.patience import Patience
from tolerant_client.cluster.refused_rights import remedy_of
from tolerant_client.cluster.soon import SoonTurns
from tolerant_client.errors import (
    ClusterUnreachableError,
    LoginRefusedError,
    OptionError,
    SslAuthenticationError,
    StoppedError,
    UnsupportedSourceError,
    text_of,
)
from tolerant_client.security.logins import expiry_words
from tolerant_client.stock.manager import TolerantConnectionManager
from tolerant_client.tracker.rules.apis import Request

_T = TypeVar("_T")
_Self = TypeVar("_Self", bound="Connections")


class _UnknownNodeError(Errors.NodeNotReadyError):  # type: ignore[misc]  # kafka-python is untyped
    """A node that another one names is not among the cluster's: it was away when our metadata was read, or is now."""


# Errors that show that brokers were reached, and what they mean if they last.
_SAID_BY_BROKERS: Mapping[type[BaseException], str] = {
    Errors.UnknownTopicOrPartitionError: "the topic was deleted, or we may not describe it",
    Errors.CoordinatorNotAvailableError: "the broker that coordinates it is away, or there is none: the internal topic"
    " (__transaction_state of transactions, __consumer_offsets of groups) has no leader, or cannot be created, for example because"
    " its replication factor is greater than the number of brokers",
    _UnknownNodeError: "start that broker; if it was removed for good, move what it still has to others"
    " (kafka-reassign-partitions.sh)",
}

_STOP_LOOK_MS = 100  # between two looks whether a wait is to be given up
_THROTTLED_MS = 1_000  # after a throttle, for the response that it held up
_LOOK_S = 1.0  # until the next look whether a node still throttles us: a throttle may turn out to be none
_SOON_S = 1.0  # longer than a quota of requests throttles: a new connection costs some
_RESET_ON_CLOSE = socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
_FULL_S = 0.005  # until the next look at a connection that has its limit of requests in flight

_DEFAULTS: Mapping[str, Any] = {
    "client_id": "tolerant-client",
    # A frame is as large as a fetch may be; anything larger is no Kafka frame.
    "receive_message_max_bytes": 128 << 20,
    "max_in_flight_requests_per_connection": 256,
    "reconnect_backoff_ms": 20,
    "reconnect_backoff_max_ms": 1000,
    "socket_connection_setup_timeout_ms": 5000,
}


LANES = FETCH, READ, PRODUCE, PRODUCE_OLD, ROWS, STATE = "fetch", "read", "produce", "produce-old", "rows", "state"
MARKERS = "markers"  # several lanes begin with that, which no node throttles


class LeftThrottledError(Errors.KafkaConnectionError):  # type: ignore[misc]  # kafka-python is untyped
    """A connection was closed because a quota throttles it; what was in flight may be done."""


def lane_of(purpose: str, node_id: int) -> str:
    """The name of a node's connection for one purpose."""
    return f"{purpose}-{node_id}"


class Connections:
    """One Kafka cluster's brokers, addressed with kafka-python's configuration keys.

    Its `credentials` are functions without arguments; each is called here and returns more of those keys.
    `name` appears in error messages ("source", "target").  `net` is the event
    loop to share; without one the cluster makes its own and closes it.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        net: Any = None,
        *,
        name: str = "cluster",
        patience_ms: int = 60_000,
        file_options: str = "",
    ) -> None:
        self._config = config
        self._apart: list[Connections] = []
        self.held_up = HeldUp()
        self._soon: dict[str, SoonTurns] = {}  # by lane
        if not config.get("bootstrap_servers"):
            raise OptionError(f"No bootstrap servers were given for the {name}; give HOST:PORT[,HOST:PORT...]")
        # What cannot be pickled (a TLS context, a ticket) is made in the process that connects.
        config = dict(config)
        for made in config.pop("credentials", ()):
            config.update(made())
        self.name = name
        self.bootstrap_servers = config["bootstrap_servers"]
        self.patience_ms = patience_ms
        self.file_options = file_options  # "--config FILE --flow 'A->B'" if a file names the cluster
        self._owns_net = net is None
        self.net = NetworkSelector() if net is None else net
        try:
            self.manager = TolerantConnectionManager(self.net, **{**_DEFAULTS, **config})
            self.manager.ends_refused = True  # a person waits at the terminal
        except ValueError as error:
            raise OptionError(f"The {name}'s configuration is wrong: {error}") from error
        self.manager.called = name
        self.manager.config["socket_options"] = [*self.manager.config["socket_options"], _RESET_ON_CLOSE]
        self.manager.cluster.config["allow_auto_create_topics"] = False

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes every connection; idempotent."""
        for cluster in self._apart:
            cluster.close()
        if not self.manager.closed:
            self.manager.close()
            if self._owns_net:
                self.net.drain()
                self.net.close()

    def apart(self: _Self) -> _Self:
        """The same cluster on the same event loop, with connections of its own; closed with this one."""
        made = type(self)(
            self._config, self.net, name=self.name, patience_ms=self.patience_ms, file_options=self.file_options
        )
        self._apart.append(made)
        return made

    def guard(self, may_send: Callable[[], bool]) -> None:
        """Sends nothing more once `may_send` says no: a connection that still has something to send is then closed."""
        self.manager.guards.append(may_send)

    def drop_connections(self, why: str) -> None:
        """Closes all connections, which fails what is in flight or was not sent yet."""
        for connection in list(self.manager._conns.values()):
            connection.close(Errors.KafkaConnectionError(why))

    def leave_throttled(self, longer_s: float = _SOON_S, lane: str | None = None) -> None:
        """Closes the connections, or that of a lane, that a node does not read for longer than that because of a quota.

        For what is small and may not wait.  That of batches is never closed: a new one would take a batch beyond the quota.
        """
        for name, connection in list(self.manager._conns.items()):
            if lane in (None, name) and not str(name).startswith(PRODUCE) and self.throttle_s(name) > longer_s:
                connection.close(LeftThrottledError("a quota throttles it"))

    def run(
        self, function: Callable[..., Awaitable[_T]], *args: Any, is_stopping: Callable[[], bool] | None = None
    ) -> _T:
        """Drives the event loop until the coroutine is done; must not be called within the loop.

        Raises StoppedError once `is_stopping`; the coroutine then goes no further, unless the caller runs the loop again.
        """
        if is_stopping is None:
            result: _T = self.net.run(function, *args)
            return result
        return self._run_until(is_stopping, function, args)

    def _run_until(self, is_stopping: Callable[[], bool], function: Callable[..., Awaitable[_T]], args: Any) -> _T:
        async def watched() -> _T:
            running = self.net.call_soon_with_future(function, *args)
            while not running.is_done and not is_stopping():
                with contextlib.suppress(Errors.KafkaTimeoutError):  # also the coroutine's own: it is done then
                    await self.manager.wait_for(running, _STOP_LOOK_MS)
            if not running.is_done:
                raise StoppedError(f"A stop was asked for while the {self.name} was waited for")
            result: _T = await running
            return result

        result: _T = self.net.run(watched)
        return result

    # -- brokers ---------------------------------------------------------------

    async def connect(self, timeout_ms: int = 10_000) -> None:
        """Finds the brokers; raises ClusterUnreachableError naming the addresses tried, at once where waiting does not help."""
        if self.manager.bootstrapped:
            return
        try:
            await self.manager.bootstrap_async(timeout_ms=timeout_ms)
        except Errors.KafkaTimeoutError as error:
            raise self.unreachable(timeout_ms, error) from error
        except SslAuthenticationError as error:
            raise self.unreachable(0, error) from error
        except (Errors.SaslAuthenticationFailedError, Errors.UnsupportedSaslMechanismError) as error:
            self._refuse_login(error)

    async def cluster_id(self) -> str | None:
        """The cluster's own id, by which one cluster under two addresses is recognised."""
        await self.connect()
        cluster_id: str | None = self.manager.cluster.cluster_id
        return cluster_id

    def highest_version(self, request: Any) -> int:
        """The highest version of a request that the brokers know, -1 for none; only once connected."""
        _, highest = self.manager.broker_version_data.api_versions.get(request.API_KEY, (0, -1))
        return int(highest)

    def version(self, request: type[Request], lowest: int, highest: int) -> int:
        """The highest version of a request that both sides speak; raises UnsupportedSourceError where there is none."""
        # An API that is missing in ApiVersions is not supported.
        broker_lowest, broker_highest = self.manager.broker_version_data.api_versions.get(request.API_KEY, (0, -1))
        version: int = min(highest, broker_highest)
        if version < max(lowest, broker_lowest):
            raise UnsupportedSourceError(
                f"The brokers of the {self.name} speak {request.name} versions {broker_lowest}-{broker_highest},"
                f" tolerant-client {lowest}-{highest} here; Kafka 0.11 or newer is needed"
            )
        return version

    def lane(self, purpose: str, node_id: int) -> str:
        """A further address-book entry for a node: kafka-python keeps one connection per entry."""
        cluster = self.manager.cluster
        broker = cluster.broker_metadata(node_id)
        if broker is None:
            raise self._unknown_node(node_id)
        lane = lane_of(purpose, node_id)
        known = cluster._coordinator_brokers.get(lane)
        if known is None or (known.host, known.port) != (broker.host, broker.port):
            cluster._coordinator_brokers[lane] = type(broker)(lane, broker.host, broker.port, None)
        return lane

    @property
    def _address(self) -> str:
        servers = self.bootstrap_servers
        return servers if isinstance(servers, str) else ",".join(servers)

    def _refuse_login(self, error: Errors.BrokerResponseError) -> NoReturn:
        """Raises a broker's refusal of our login with user and address; a LoginRefusedError is raised as it is."""
        if isinstance(error, LoginRefusedError):
            raise error
        user = self.manager.config["sasl_plain_username"]
        who = f"the login of user {user}" if user else f"our login ({self.manager.config['sasl_mechanism']})"
        said = str(error.args[0] if error.args else error).removeprefix(f"{type(error).__name__}: ")
        wrong, or_else = "sasl.jaas.config", ", or the user on its brokers"
        if isinstance(error, Errors.UnsupportedSaslMechanismError):
            said, wrong, or_else = (
                said.replace("sasl_mechanism", "sasl.mechanism"),
                "sasl.mechanism and sasl.jaas.config",
                "",
            )
        elif (provider := self.manager.config["sasl_oauth_token_provider"]) is not None:
            said += expiry_words(provider)
            wrong, or_else = "sasl.oauthbearer.* (where our token comes from)", ", or what its brokers want of a token"
        raise LoginRefusedError(
            f"The {self.name} at {self._address} refuses {who}: {said}; correct {wrong} in the client properties"
            f" of the {self.name}{or_else}",
            self.name,
        ) from error

    def unreachable(self, waited_ms: int, error: BaseException, what: str = "connecting") -> ClusterUnreachableError:
        """The error to raise where no broker has responded for `waited_ms`, 0 if it was not waited; `error` is the last failure."""
        where = f"The {self.name} at {self._address}"
        if isinstance(error, Errors.NodeNotReadyError) and " " not in str(*error.args[:1]):
            error = self.manager.not_ready()  # kafka-python's own error names a node, or what was wanted, but no reason
        lasted = f"failed{f' for {waited_ms / 1000:.0f} s' if waited_ms else ''} ({text_of(error)})"
        if (why := _SAID_BY_BROKERS.get(type(error))) is not None:
            return ClusterUnreachableError(f"{where} was reached, but {what} {lasted}: {why}", self.name)
        remedy = "check that its brokers run and that this address is right"
        if isinstance(error, SslAuthenticationError) or isinstance(error.__cause__, SslAuthenticationError):
            remedy = (
                "the TLS handshake was refused: check the broker's certificate (its date, and that it names the host of this"
                " address), ssl.truststore.* (that it has the certificate's authority), and ssl.keystore.* if the broker wants a"
                " certificate of ours; do not go without TLS instead"
            )
        elif self.manager.is_misunderstood:
            protocol, mechanism = (self.manager.config[name] for name in ("security_protocol", "sasl_mechanism"))
            said = f"security.protocol={protocol}" + (
                f" and sasl.mechanism={mechanism}" if protocol.startswith("SASL") else ""
            )
            remedy = (
                f"it accepts connections and closes them: check that {said} is what its listener at this address speaks"
            )
        return ClusterUnreachableError(f"{where} could not be reached: {what} {lasted}; {remedy}", self.name)

    def not_allowed(self, error: Errors.AuthorizationError, what: str) -> Errors.AuthorizationError:
        """The error to raise where the brokers refuse us a right: with what it was for, and what to do."""
        said = f"{error.args[0] if error.args else what}: {what} of the {self.name} is not allowed to us"
        return type(error)(f"{said}; {remedy_of(error, said, self.name, self._address, self.manager.config)}")

    # -- requests --------------------------------------------------------------

    async def send(self, request: Any, node_id: int | str | None = None) -> Any:
        """Sends one request once its connection is ready, and returns the decoded response."""
        await self.connect()
        if node_id is None:
            node_id = await self._any_node()
        try:
            connection = await self.manager.get_connection(node_id)
            await self.sendable(node_id)
            return await connection.send_request(request)
        except Errors.SaslAuthenticationFailedError as error:
            self._refuse_login(error)
        except Errors.UnknownBrokerIdError as error:
            raise self._unknown_node(node_id) from error

    def _unknown_node(self, node_id: int | str) -> _UnknownNodeError:
        """The error for a node that is not in our metadata, which are read anew."""
        self.manager.cluster.request_update()
        return _UnknownNodeError(f"node {node_id} is not among the nodes of the {self.name}")

    def throttle_s(self, node_id: int | str) -> float:
        """Seconds until a node that throttles us (KIP-219) reads requests again; 0.0 for one that does not."""
        connection = self.manager._conns.get(node_id)
        if connection is None or "throttle" not in connection.paused:
            return 0.0
        until: float = connection._throttle_time
        return max(until - time.monotonic(), 0.001)  # a timer lifts the throttle, a little later

    def paused_s(self, node_id: int | str) -> float:
        """Seconds until a node takes requests: it throttles us, or has as many as it may; earlier ones are refused here."""
        connection = self.manager._conns.get(node_id)
        return self.throttle_s(node_id) or (_FULL_S if connection is not None and connection.paused else 0.0)

    def throttled_s(self) -> float:
        """Seconds until the first node takes requests, if none does now and one throttles us; else 0."""
        nodes = [broker.node_id for broker in self.manager.cluster.brokers()]
        if not any(map(self.throttle_s, nodes)) or self.manager.best_node() is not None:
            return 0.0
        return min(filter(None, map(self.paused_s, nodes)))

    def quota_words(self) -> str:
        """The end of a sentence about what is not copied yet: the nodes that throttle us now, which may be the reason; "" without."""
        nodes = sorted(broker.node_id for broker in self.manager.cluster.brokers())
        lanes = {n: (n, *(lane_of(purpose, n) for purpose in LANES)) for n in nodes}
        found = [node_id for node_id in nodes if any(map(self.throttle_s, lanes[node_id]))]
        if not found:
            return ""
        which = f"node{'s' * (len(found) > 1)} {', '.join(map(str, found))} of the {self.name}"
        return f"; {which} throttle{'s' * (len(found) == 1)} us: a quota (tolerant-kafka doctor names it)"

    async def _rest(self, throttle_s: float) -> None:
        """Waits for a throttle, or until the next look whether it is one."""
        await self.net.sleep(min(throttle_s, _LOOK_S))

    async def _any_node(self) -> Any:
        while (wait_s := self.throttled_s()) > 0:
            await self._rest(wait_s)
        return self.manager.least_loaded_node()

    async def heard(self, future: Any, within_ms: float, node_id: int | None = None) -> Any:
        """Waits for a future for so long besides the time of throttles of requests and reads, of `node_id` or of all nodes.

        Raises KafkaTimeoutError; the future goes on then.
        """
        while True:
            try:
                return await self.manager.wait_for(future, within_ms)
            except Errors.KafkaTimeoutError:
                nodes = [b.node_id for b in self.manager.cluster.brokers()] if node_id is None else [node_id]
                lanes = [*nodes, *(lane_of(READ, n) for n in nodes)]
                wait_s = max(map(self.throttle_s, lanes), default=0.0)
                if future.is_done or wait_s == 0.0:
                    raise
                within_ms = 1000 * min(wait_s, _LOOK_S) + _THROTTLED_MS

    async def sendable(self, node_id: int | str) -> None:
        """Waits until a node takes requests: a quota is no trouble."""
        while (wait_s := self.paused_s(node_id)) > 0:
            await self._rest(wait_s)

    async def insist(self, what: str, attempt: Callable[[], Awaitable[_T]], patience_ms: int | None = None) -> _T:
        """Repeats `attempt` while its error may heal, for at most `patience_ms` (or the cluster's own).

        An error that is not retriable is believed when it comes three times in a
        row.  In the end raises ClusterUnreachableError (cause: the last error).
        """
        patience_ms = self.patience_ms if patience_ms is None else patience_ms
        patience = Patience(patience_ms / 1000)
        while True:
            try:
                return await attempt()
            except (Errors.KafkaError, ValueError) as error:
                if isinstance(error, ClusterUnreachableError):
                    raise
                if isinstance(error, Errors.SaslAuthenticationFailedError):
                    self._refuse_login(error)
                if isinstance(error, Errors.NodeNotReadyError) and (wait_s := self.throttled_s()) > 0:
                    began = time.monotonic()
                    await self._rest(wait_s)
                    patience.extend(time.monotonic() - began)
                if patience.hear(str(error)) and not getattr(error, "retriable", False):
                    if isinstance(error, Errors.AuthorizationError) and not isinstance(error.__cause__, type(error)):
                        raise self.not_allowed(error, what) from error
                    raise
                if patience.is_over:
                    raise self.unreachable(patience_ms, error, what) from error
                if getattr(error, "invalid_metadata", False):
                    self.manager.cluster.request_update()  # the known leader may no longer lead
            await self.net.sleep(patience.pause_s())

"""A Kafka cluster as the mirror and the Spark source see it: partitions, offsets, raw batches.

Laws:
- One event loop (kafka-python's NetworkSelector) may serve several clusters;
  everything here runs on it, as coroutines.
- Long-polling fetches have a connection of their own for each node, so that
  nothing ever waits behind them.
- An error code is believed when a broker repeats it; a single one is retried.
- With `names` topics are called here as the target of a link calls them, and the brokers are asked for their own: every
  request is built with `wire_topic`, every answer read with `topic_of`.
"""

from __future__ import annotations

import base64
import random
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, TypeVar

import kafka.errors as Errors
from kafka.protocol.consumer import ListOffsetsRequest
from kafka.protocol.metadata import MetadataRequest
from kafka.structs import TopicPartition

from tolerant_client.cluster.fetch import (
    FETCH_API_KEY,
    FIRST_BATCH_FETCH_VERSION,
    MAX_FETCH_VERSION,
    MIN_FETCH_VERSION,
    FetchAnswer,
    FetchedPartition,
    RawFetch,
    TopicNames,
)
from tolerant_client.cluster.fetch_by_id import FETCH_BY_ID_VERSION
from tolerant_client.cluster.fetch_session import FetchSession
from tolerant_client.cluster.produce import (
    MAX_PRODUCE_VERSION,
    MIN_PRODUCE_VERSION,
    PRODUCE_API_KEY,
    ProducedPartition,
    RawProduce,
)
from tolerant_client.errors import ClusterUnreachableError, OptionError, UnsupportedSourceError
from tolerant_client.stock.manager import TolerantConnectionManager
from tolerant_client.stock.stock_names import Future, NetworkSelector

EARLIEST = -2
LATEST = -1
EARLIEST_LOCAL = -4

CONSUMER, DEBUGGING_REPLICA = -1, -2  # who asks, of ListOffsets
READ_UNCOMMITTED, READ_COMMITTED = 0, 1  # isolation levels of Fetch and ListOffsets (KIP-98)

_METADATA_WITHOUT_CREATION = 4  # naming a topic in an older request creates it, unless the broker forbids that
_GROUP_OFFSETS_TOPIC = "__consumer_offsets"  # brokers before 0.10 do not say that it is internal
_LIST_LOCAL_OFFSETS = 8  # KIP-405
_LIST_OFFSETS_BY_TIME = 1  # version 0 knows when segments were written, not records

_T = TypeVar("_T")

_DEFAULTS: Mapping[str, Any] = {
    "client_id": "tolerant-client",
    # A frame is as large as a fetch may be; anything above is no Kafka frame.
    "receive_message_max_bytes": 128 << 20,
    "max_in_flight_requests_per_connection": 256,
    "reconnect_backoff_ms": 20,
    "reconnect_backoff_max_ms": 1000,
    "socket_connection_setup_timeout_ms": 5000,
}


class Cluster:
    """One Kafka cluster, addressed with kafka-python's configuration keys.

    `credentials` in it are functions without arguments, each called here for more of those keys.
    `name` appears in error messages ("source", "target").  `net` is the event
    loop to share; without one the cluster makes its own and closes it.  `names`
    are those of the link whose source the cluster is.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        net: Any = None,
        *,
        name: str = "cluster",
        patience_ms: int = 60_000,
        names: TopicNames | None = None,
    ) -> None:
        self._config = config
        self._apart: list[Cluster] = []
        if not config.get("bootstrap_servers"):
            raise OptionError(f"No bootstrap servers were given for the {name}; give HOST:PORT[,HOST:PORT...]")
        # What cannot be pickled (a TLS context, a ticket) is made by the process that connects.
        config = dict(config)
        for made in config.pop("credentials", ()):
            config.update(made())
        self.name = name
        self.names = names
        self.bootstrap_servers = config["bootstrap_servers"]
        self.patience_ms = patience_ms
        self._owns_net = net is None
        self.net = NetworkSelector() if net is None else net
        try:
            self.manager = TolerantConnectionManager(self.net, **{**_DEFAULTS, **config})
        except ValueError as error:
            raise OptionError(f"The {name}'s configuration is wrong: {error}") from error
        self.manager.cluster.config["allow_auto_create_topics"] = False
        self._fetch_version = 0
        self.topic_ids: dict[str, str] = {}  # as Kafka's tools write them, of topics that `partitions` has found
        self._without_ids: set[int] = set()  # nodes, in an upgrade that has not reached them

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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

    def apart(self) -> Cluster:
        """The same cluster on the same event loop, with connections of its own; closed with this one."""
        self._apart.append(Cluster(self._config, self.net, name=self.name, patience_ms=self.patience_ms))
        return self._apart[-1]

    def guard(self, may_send: Callable[[], bool]) -> None:
        """Nothing more goes out while `may_send` says no: a connection that still has something to send is closed then."""
        self.manager.guards.append(may_send)

    def drop_connections(self, why: str) -> None:
        """Closes all connections, and so fails what is in flight or was not sent yet."""
        for connection in list(self.manager._conns.values()):
            connection.close(Errors.KafkaConnectionError(why))

    def run(self, function: Callable[..., Awaitable[_T]], *args: Any) -> _T:
        """Drives the event loop until the coroutine is done; not from within the loop."""
        result: _T = self.net.run(function, *args)
        return result

    # -- names ----------------------------------------------------------------

    def wire_topic(self, topic: str) -> str:
        """What the brokers call a topic; raises OptionError for one that `names` have no source for."""
        return topic if self.names is None else self.names.to_source(topic)

    def topic_of(self, wire_topic: str) -> str:
        """What a topic of the brokers is called here."""
        return wire_topic if self.names is None else self.names.to_target(wire_topic)

    # -- what the cluster has -------------------------------------------------

    async def connect(self, timeout_ms: int = 10_000) -> None:
        """Finds the brokers; raises ClusterUnreachableError naming the addresses tried."""
        if self.manager.bootstrapped:
            return
        try:
            await self.manager.bootstrap_async(timeout_ms=timeout_ms)
        except Errors.KafkaTimeoutError as error:
            raise self._unreachable(timeout_ms, error) from error
        self._fetch_version = self._version("Fetch", FETCH_API_KEY, MIN_FETCH_VERSION, MAX_FETCH_VERSION)

    async def require_record_batches(self) -> None:
        """Raises UnsupportedSourceError for brokers before 0.11, which know no record batches."""
        await self.connect()
        self._version("Fetch", FETCH_API_KEY, FIRST_BATCH_FETCH_VERSION, MAX_FETCH_VERSION)
        self._version("Produce", PRODUCE_API_KEY, MIN_PRODUCE_VERSION, MAX_PRODUCE_VERSION)

    async def cluster_id(self) -> str | None:
        """The cluster's own id, by which one cluster under two addresses is recognised."""
        await self.connect()
        cluster_id: str | None = self.manager.cluster.cluster_id
        return cluster_id

    async def partitions(self, topics: Iterable[str] | None = None) -> dict[str, list[int]]:
        """Partition numbers by topic; all topics without internal ones, or those named that exist."""
        wanted = None if topics is None else set(map(self.wire_topic, topics))
        if wanted == set():
            return {}

        def is_meant(topic: Any) -> bool:
            if wanted is not None:
                return topic.name in wanted
            return not topic.is_internal and topic.name != _GROUP_OFFSETS_TOPIC

        def note(topic: Any, found: dict[str, list[int]]) -> None:
            name = self.topic_of(topic.name)
            found[name] = sorted(p.partition_index for p in topic.partitions)
            if topic.topic_id is not None and topic.topic_id.int:  # none before Kafka 2.8
                self.topic_ids[name] = base64.urlsafe_b64encode(topic.topic_id.bytes).rstrip(b"=").decode()

        async def ask() -> dict[str, list[int]]:
            await self.connect()
            names = MetadataRequest.ALL_TOPICS
            if wanted is not None and self._highest(MetadataRequest.API_KEY) >= _METADATA_WITHOUT_CREATION:
                names = [MetadataRequest.MetadataRequestTopic(name=t) for t in wanted]
            answer = await self.send(MetadataRequest(topics=names, allow_auto_topic_creation=False))
            found: dict[str, list[int]] = {}
            for topic in filter(is_meant, answer.topics):
                code = topic.error_code
                if code and code != Errors.UnknownTopicOrPartitionError.errno:
                    raise Errors.for_code(code)(f"topic {topic.name}")
                if not code:
                    note(topic, found)
            if wanted is not None and len(found) < len(wanted):
                # Said to be unknown: believed when it is said twice.
                again = await self.send(MetadataRequest(topics=names, allow_auto_topic_creation=False))
                for topic in filter(is_meant, again.topics):
                    if not topic.error_code:
                        note(topic, found)
            return found

        return await self.insist("reading the topics", ask)

    async def track(self, topics: Iterable[str]) -> None:
        """Keeps leaders of these topics (and those tracked before) up to date."""
        cluster = self.manager.cluster
        missing = set(map(self.wire_topic, topics)) - set(cluster.topics(exclude_internal_topics=False))
        if missing:
            cluster._topics |= missing
            await self.refresh()

    async def refresh(self) -> None:
        """Asks for the leaders anew; many callers share one request."""
        await self.connect()
        await self.insist("refreshing metadata", self.manager.cluster.refresh_metadata)

    def known_leader(self, partition: TopicPartition) -> int | None:
        """The node that leads `partition`, as far as is known without asking; None where there is none."""
        if self.names is not None:
            partition = TopicPartition(self.names.to_source(partition.topic), partition.partition)
        node: int | None = self.manager.cluster.leader_for_partition(partition)
        return None if node == -1 else node

    def why_leaderless(self, partition: TopicPartition) -> str:
        """Why `known_leader` has none, as the last Metadata says."""
        metadata, topic = self.manager.cluster, self.wire_topic(partition.topic)
        if topic in metadata.unauthorized_topics:
            return f"it may not be described on the {self.name}; grant Describe on its topic"
        if metadata.partitions_for_topic(topic) is None:
            return f"the {self.name} has no such topic (any more)"
        return f"it has no leader on the {self.name}"

    async def leader(self, partition: TopicPartition) -> int:
        """The node that leads `partition`, waiting for an election if there is none."""
        await self.track([partition.topic])

        async def ask() -> int:
            node = self.known_leader(partition)
            if node is None:
                await self.manager.cluster.refresh_metadata()
                raise Errors.LeaderNotAvailableError(f"{partition.topic}-{partition.partition}")
            return node

        known = self.known_leader(partition)
        if known is not None:
            return known
        return await self.insist(f"finding the leader of {partition.topic}-{partition.partition}", ask)

    async def by_leader(self, partitions: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
        """Groups partitions by the node that leads them."""
        wanted = list(partitions)
        await self.track({p.topic for p in wanted})
        groups: dict[int, list[TopicPartition]] = {}
        for partition in wanted:
            groups.setdefault(await self.leader(partition), []).append(partition)
        return groups

    async def list_offsets(
        self, timestamps: Mapping[TopicPartition, int], *, isolation_level: int = 0
    ) -> dict[TopicPartition, int]:
        """Offsets by timestamp in ms (EARLIEST, LATEST = high watermark, or a time; -1 where none).

        With isolation level 1 LATEST is the last stable offset.

        One request for each leader; partitions whose answer is an error are asked again.
        Raises UnsupportedSourceError for a time if the brokers are older than 0.10.1.
        """
        found: dict[TopicPartition, int] = {}
        without_times: set[TopicPartition] = set()
        if any(timestamp >= 0 for timestamp in timestamps.values()):
            await self.connect()
            if self._highest(ListOffsetsRequest.API_KEY) < _LIST_OFFSETS_BY_TIME:
                raise UnsupportedSourceError(
                    f"The brokers of the {self.name} find no offsets by time;"
                    " give offsets, or use Kafka 0.10.1 or newer"
                )

        async def ask() -> None:
            failure: Exception | None = None
            for node, members in (await self.by_leader(p for p in timestamps if p not in found)).items():
                for partition, answer in (await self.offsets_at(node, members, timestamps, isolation_level)).items():
                    if not isinstance(answer, Exception):
                        found[partition] = answer
                    elif isinstance(answer, Errors.UnsupportedForMessageFormatError) and partition in without_times:
                        found[partition] = -1  # messages of v0: none is at or after a time
                    else:
                        if isinstance(answer, Errors.UnsupportedForMessageFormatError):
                            without_times.add(partition)
                        failure = answer
            if failure is not None:
                raise failure
            if missing := [p for p in timestamps if p not in found]:
                raise Errors.UnknownTopicOrPartitionError(
                    f"{missing[0].topic}-{missing[0].partition}: an answer without it"
                )

        if timestamps:
            await self.insist("listing offsets", ask)
        return found

    async def offsets_at(
        self,
        node_id: int,
        partitions: Iterable[TopicPartition],
        timestamps: Mapping[TopicPartition, int],
        isolation_level: int,
        *,
        replica_id: int = CONSUMER,
    ) -> dict[TopicPartition, int | Exception]:
        """What one node answers, asked once, of each partition: an offset, or an error.

        To DEBUGGING_REPLICA LATEST is the end of the node's own log, whether or not it leads (KafkaApis.scala,
        handleListOffsetRequest; so in all versions from 0.11 on).
        """
        topic_type = ListOffsetsRequest.ListOffsetsTopic
        by_topic: dict[str, list[Any]] = {}
        for p in partitions:
            by_topic.setdefault(p.topic, []).append(
                topic_type.ListOffsetsPartition(
                    partition_index=p.partition, timestamp=timestamps[p], current_leader_epoch=-1, max_num_offsets=1
                )
            )
        request = ListOffsetsRequest(
            replica_id=replica_id,
            isolation_level=isolation_level,
            topics=[topic_type(name=self.wire_topic(topic), partitions=parts) for topic, parts in by_topic.items()],
            max_version=_LIST_LOCAL_OFFSETS if EARLIEST_LOCAL in timestamps.values() else 6,
        )
        told: dict[TopicPartition, int | Exception] = {}
        for topic in (await self.send(request, node_id)).topics:
            name = self.topic_of(topic.name)
            for part in topic.partitions:
                partition = TopicPartition(name, part.partition_index)
                if part.error_code:
                    told[partition] = Errors.for_code(part.error_code)(f"{name}-{part.partition_index}")
                elif partition in timestamps:
                    old = part.old_style_offsets  # of version 0
                    told[partition] = old[0] if old else part.offset
        return told

    # -- batches --------------------------------------------------------------

    @property
    def has_tiers(self) -> bool:
        """Whether the brokers may keep records in remote storage only (KIP-405); true only once connected."""
        return self._highest(ListOffsetsRequest.API_KEY) >= _LIST_LOCAL_OFFSETS

    @property
    def fetches_by_id(self) -> bool:
        """Whether sessions name topics by their ids (KIP-516, Kafka 3.1); true only once connected."""
        return self._highest(FETCH_API_KEY) >= FETCH_BY_ID_VERSION

    async def session(self, node_id: int, *, isolation_level: int = 0) -> FetchSession:
        """A new incremental fetch session with a node."""
        await self.connect()
        has_ids = self.fetches_by_id and node_id not in self._without_ids
        return FetchSession(self._fetch_version, isolation_level, self.names, self._topic_id if has_ids else None)

    async def send_fetch(self, node_id: int, request: RawFetch) -> FetchAnswer:
        """Sends a fetch on the node's own fetch connection.

        Raises UnsupportedVersionError, with nothing sent, where the node is older than the one that was asked first.
        """
        await self.connect()
        lane = self._fetch_lane(node_id)
        connection = await self.manager.get_connection(lane)
        if request.API_VERSION > connection.broker_version_data.api_versions[FETCH_API_KEY][1]:
            self._without_ids.add(node_id)
            raise Errors.UnsupportedVersionError(
                f"Fetch version {request.API_VERSION}, of node {node_id} of the {self.name}"
            )
        answer: FetchAnswer = await self.send(request, lane)
        return answer

    async def fetch(
        self,
        node_id: int,
        positions: Mapping[TopicPartition, int],
        *,
        max_wait_ms: int = 500,
        max_bytes: int = 16 << 20,
        partition_max_bytes: int = 4 << 20,
        isolation_level: int = 0,
    ) -> list[FetchedPartition]:
        """One fetch without a session; errors of partitions are in their `error_code`.

        With `max_wait_ms` 0 it shares the connection of ordinary requests.
        """
        await self.connect()
        request = RawFetch(
            self._fetch_version,
            positions,
            max_wait_ms=max_wait_ms,
            max_bytes=max_bytes,
            partition_max_bytes=partition_max_bytes,
            isolation_level=isolation_level,
            names=self.names,
        )
        lane: int | str = self._fetch_lane(node_id) if max_wait_ms else node_id
        answer: FetchAnswer = await self.send(request, lane)
        if answer.error_code:
            raise Errors.for_code(answer.error_code)(f"fetch from node {node_id} of the {self.name}")
        return answer.partitions

    def produce(
        self,
        node_id: int,
        batches: Mapping[TopicPartition, memoryview],
        timeout_ms: int = 30_000,
        *,
        acks: int = -1,
        transactional_id: str | None = None,
    ) -> Any:
        """Sends one batch a partition; a kafka Future of ProduceAnswer (None with acks=0), for pipelining."""
        try:
            version = self._version("Produce", PRODUCE_API_KEY, MIN_PRODUCE_VERSION, MAX_PRODUCE_VERSION)
            request = RawProduce(version, batches, timeout_ms, acks=acks, transactional_id=transactional_id)
            return self.manager.send(request, node_id)
        except Errors.KafkaError as error:  # the node is not known, has refused our credentials, or is too old
            return Future().failure(error)

    async def produce_and_wait(
        self, node_id: int, batches: Mapping[TopicPartition, memoryview]
    ) -> list[ProducedPartition]:
        """Sends one batch a partition and waits for the answer."""
        await self.connect()
        produced: list[ProducedPartition] = await self.produce(node_id, batches)
        return produced

    # -- sending --------------------------------------------------------------

    async def send(self, request: Any, node_id: int | str | None = None) -> Any:
        """Sends one request once its connection is ready, and returns the decoded answer."""
        await self.connect()
        if node_id is None:
            node_id = self.manager.least_loaded_node()
        connection = await self.manager.get_connection(node_id)
        while (wait_s := _throttled_s(connection)) > 0:
            await self.net.sleep(wait_s)
        return await connection.send_request(request)

    def throttled_s(self, node_id: int) -> float:
        """Seconds for which a node has asked to be left alone (KIP-219); what is sent before that is refused here."""
        connection = self.manager._conns.get(node_id)
        return 0.0 if connection is None else _throttled_s(connection)

    async def insist(self, what: str, attempt: Callable[[], Awaitable[_T]], patience_ms: int | None = None) -> _T:
        """Repeats `attempt` while it fails with what may heal, at most `patience_ms` (or the cluster's own).

        An error that is not retriable is believed when it comes three times in a
        row.  Raises ClusterUnreachableError (cause: the last error) in the end.
        """
        patience_ms = self.patience_ms if patience_ms is None else patience_ms
        deadline = time.monotonic() + patience_ms / 1000
        backoff, last, repeated = 0.02, "", 0
        while True:
            try:
                return await attempt()
            except (Errors.KafkaError, ValueError) as error:
                if isinstance(error, (ClusterUnreachableError, Errors.SaslAuthenticationFailedError)):
                    raise
                repeated = repeated + 1 if str(error) == last else 1
                last = str(error)
                if repeated >= 3 and not getattr(error, "retriable", False):
                    if isinstance(error, Errors.AuthorizationError) and not isinstance(error.__cause__, type(error)):
                        raise type(error)(
                            f"{error.args[0] if error.args else what}: {what} of the {self.name} is not allowed to us;"
                            " tolerant-kafka doctor names the right that is missing"
                        ) from error
                    raise
                if time.monotonic() > deadline:
                    raise self._unreachable(patience_ms, error, what) from error
                if getattr(error, "invalid_metadata", False):
                    self.manager.cluster.request_update()  # the leader that we know may lead no longer
            await self.net.sleep(backoff * random.uniform(0.8, 1.2))
            backoff = min(backoff * 2, 1.0)

    def _topic_id(self, topic: str) -> uuid.UUID | None:
        """The id of a topic whose leaders are known; None where the brokers have given it none."""
        known: uuid.UUID | None = self.manager.cluster.topic_id(self.wire_topic(topic))
        return known if known is not None and known.int else None

    def _highest(self, api_key: int) -> int:
        _, highest = self.manager.broker_version_data.api_versions.get(api_key, (0, -1))
        return int(highest)

    def _version(self, name: str, api_key: int, lowest: int, highest: int) -> int:
        # Whoever leaves an API out of ApiVersions does not speak it.
        broker_lowest, broker_highest = self.manager.broker_version_data.api_versions.get(api_key, (0, -1))
        version: int = min(highest, broker_highest)
        if version < max(lowest, broker_lowest):
            raise UnsupportedSourceError(
                f"The brokers of the {self.name} speak {name} versions {broker_lowest}-{broker_highest},"
                f" tolerant-client {lowest}-{highest} here; Kafka 0.11 or newer is needed"
            )
        return version

    def _fetch_lane(self, node_id: int) -> str:
        """A second address-book entry for a node: kafka-python keeps one connection an entry."""
        cluster = self.manager.cluster
        broker = cluster.broker_metadata(node_id)
        if broker is None:
            raise Errors.NodeNotReadyError(f"node {node_id} of the {self.name} is not in the metadata")
        lane = f"fetch-{node_id}"
        known = cluster._coordinator_brokers.get(lane)
        if known is None or (known.host, known.port) != (broker.host, broker.port):
            cluster._coordinator_brokers[lane] = type(broker)(lane, broker.host, broker.port, None)
        return lane

    def _unreachable(self, waited_ms: int, error: BaseException, what: str = "connecting") -> ClusterUnreachableError:
        where = f"The {self.name} at {self.bootstrap_servers}"
        lasted = f"failed for {waited_ms / 1000:.0f} s ({error})"
        if isinstance(error, Errors.UnknownTopicOrPartitionError):  # which a broker has told
            why = "the topic was deleted, or we may not describe it"
            return ClusterUnreachableError(f"{where} was reached, but {what} {lasted}: {why}")
        remedy = "check that its brokers run and that this address is right"
        if self.manager.is_misunderstood:
            protocol, mechanism = (self.manager.config[name] for name in ("security_protocol", "sasl_mechanism"))
            said = f"security.protocol={protocol}" + (
                f" and sasl.mechanism={mechanism}" if protocol.startswith("SASL") else ""
            )
            remedy = f"it takes connections and breaks them off: check that {said} is what its listener at this address speaks"
        return ClusterUnreachableError(f"{where} could not be reached: {what} {lasted}; {remedy}")


def _throttled_s(connection: Any) -> float:
    if "throttle" not in connection.paused:
        return 0.0
    until: float = connection._throttle_time
    return max(until - time.monotonic(), 0.001)  # it is lifted by a timer, a little later

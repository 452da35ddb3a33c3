"""What we use of kafka-python that is not its public API, in one place.

kafka-python's public API is `kafka` itself with `kafka.admin`, `errors`, `metrics`, `partitioner`, `protocol`,
`serializer` and `structs`.  Everything else may change in any of its releases.

Laws (tests/unit/stock/test_stock_names.py):
- Only this module imports kafka-python's other modules; our modules import their names from here.
- `USES` lists the names that we use, override or replace on what is imported here, and the private names on public
  classes.  No syntax tree shows the class of a local name, or of an object that is only passed through: those names
  are listed by hand.
- Each of these names exists in each release that setup.cfg allows, unless `is_optional` says that the code checks.
- No code here: the module that uses a name handles differences between releases.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.cluster import ClusterMetadata as ClusterMetadata
from kafka.cluster import collect_hosts as collect_hosts
from kafka.consumer import group
from kafka.consumer.fetcher import CompletedFetch
from kafka.consumer.fetcher import ConsumerRecord as ConsumerRecord
from kafka.consumer.fetcher import Fetcher as Fetcher
from kafka.consumer.fetcher import FetchMetadata as FetchMetadata
from kafka.consumer.fetcher import FetchRequestData as FetchRequestData
from kafka.consumer.fetcher import FetchSessionHandler as FetchSessionHandler
from kafka.consumer.subscription_state import SubscriptionState, TopicPartitionState
from kafka.consumer.subscription_state import SubscriptionType as SubscriptionType
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor as StickyPartitionAssignor
from kafka.coordinator.base import Generation as Generation
from kafka.coordinator.consumer import ConsumerCoordinator as ConsumerCoordinator
from kafka.coordinator.consumer import RebalanceProtocol as RebalanceProtocol
from kafka.future import Future as Future
from kafka.net.compat import KafkaNetClient as KafkaNetClient
from kafka.net.connection import KafkaConnection as KafkaConnection
from kafka.net.connection import SaslReauthenticator
from kafka.net.inet import KafkaNetSocket as KafkaNetSocket
from kafka.net.manager import KafkaConnectionManager as KafkaConnectionManager
from kafka.net.sasl import SASL_MECHANISMS as SASL_MECHANISMS
from kafka.net.selector import NetworkSelector as NetworkSelector
from kafka.net.transport import KafkaSSLTransport as KafkaSSLTransport
from kafka.net.transport import KafkaTCPTransport as KafkaTCPTransport
from kafka.net.wakeup_notifier import WakeupNotifier as WakeupNotifier
from kafka.producer import kafka as producer
from kafka.producer.future import FutureProduceResult, FutureRecordMetadata
from kafka.producer.producer_batch import ProducerBatch
from kafka.producer.record_accumulator import RecordAccumulator as RecordAccumulator
from kafka.producer.sender import Sender as Sender
from kafka.producer.transaction_manager import EndTxnHandler as EndTxnHandler
from kafka.producer.transaction_manager import FindCoordinatorHandler as FindCoordinatorHandler
from kafka.producer.transaction_manager import InitProducerIdHandler as InitProducerIdHandler
from kafka.producer.transaction_manager import Priority as Priority
from kafka.producer.transaction_manager import ProducerIdAndEpoch as ProducerIdAndEpoch
from kafka.producer.transaction_manager import TransactionalRequestResult
from kafka.producer.transaction_manager import TransactionManager as TransactionManager
from kafka.producer.transaction_manager import TransactionState as TransactionState
from kafka.producer.transaction_manager import TxnOffsetCommitHandler as TxnOffsetCommitHandler
from kafka.producer.transaction_manager import TxnRequestHandler as TxnRequestHandler
from kafka.protocol.data_container import DataContainer
from kafka.record.abc import ABCRecord as ABCRecord
from kafka.record.memory_records import MemoryRecords
from kafka.record.memory_records import MemoryRecordsBuilder as MemoryRecordsBuilder

consumer_module, producer_module = group, producer


class Use(NamedTuple):
    """Names on one class or module of kafka-python; which of our modules, or all of a package, need them, and why."""

    owner: Any
    names: tuple[str, ...]
    users: tuple[str, ...]
    why: str
    is_optional: bool = False  # not in all releases; our code checks whether it exists


_ACCUMULATOR = ("tolerant_client.stock.accumulator",)
_ALL = ("tolerant_client", "spark_integration")
_CONNECTION = ("tolerant_client.stock.connection",)
_COORDINATOR = ("tolerant_client.stock.coordinator",)
_FETCHER = ("tolerant_client.stock.fetcher",)
_FETCH_PLAN = ("tolerant_client.stock.fetch_plan",)
_FORKING = ("tolerant_client.stock.forking",)
_INSTALLATION = ("tolerant_client.stock.installation",)
_BOOTSTRAP = ("tolerant_client.stock.bootstrap",)
_MANAGER = ("tolerant_client.stock.manager",)
_GROUP_COMMITS = ("tolerant_client.stock.group_commits",)
_HELD_BATCHES = ("tolerant_client.stock.held_batches",)
_MOVING = ("tolerant_client.stock.moving",)
_MOVED_BATCHES = ("tolerant_client.stock.moved_batches",)
_MOVED_MEMBER = ("tolerant_client.stock.moved_member",)
_SOUGHT_BATCHES = ("tolerant_client.stock.sought_batches",)
_STANDBY = ("tolerant_client.mirror.standby.clients",)
_OPTIONS = ("tolerant_client.stock.connection_options",)
_OUT_OF_RANGE = ("tolerant_client.stock.out_of_range",)
_CONNECTIONS = ("tolerant_client.cluster.connections",)
_RECORDS = ("tolerant_client.stock.consumer_records",)
_SENDER = ("tolerant_client.stock.sender",)
_TRANSACTIONS = ("tolerant_client.stock.transactions",)
_TRANSACTION_REQUESTS = ("tolerant_client.stock.transaction_requests",)
_TRANSPORT = ("tolerant_client.stock.transport",)
_TOPIC_IDENTITY = ("tolerant_client.stock.topic_identity",)

USES: Final = (
    # -- what install() and the drop-ins replace
    Use(consumer_module, ("Fetcher", "ConsumerCoordinator"), ("tolerant_client.stock.consumer", *_INSTALLATION),
        "names that KafkaConsumer.__init__ looks up: ours replace them"),
    Use(producer_module, ("RecordAccumulator", "Sender", "TransactionManager"), ("tolerant_client.stock.clients", *_INSTALLATION),
        "names that KafkaProducer.__init__ looks up: ours replace them"),
    Use(KafkaConnectionManager, ("__init__",), _INSTALLATION, "replaced: all clients connect by it"),
    # -- the event loop
    Use(NetworkSelector, ("call_soon_with_future", "close", "run", "sleep", "start", "stop"), _ALL,
        "all our code runs on it"),
    Use(NetworkSelector, ("call_at", "call_later", "call_soon", "cancel", "drain", "poll"), ("tolerant_client",), "timers; its end"),
    Use(NetworkSelector, ("wait_read", "wait_write"), _TRANSPORT, "sockets"),
    Use(NetworkSelector,
        ("_current", "_exception", "_io_thread", "_pending_tasks", "_poll_once", "_ready", "_scheduled", "_selector",
         "_wakeup_r", "_wakeup_w", "wakeup"),
        _FORKING, "a forked child closes its copies of the descriptors, and refuses every use"),
    Use(Future, ("__await__", "exception", "failure", "is_done", "value"), _ALL, "what the caller of a request awaits"),
    Use(Future, ("add_both", "add_callback", "add_errback", "success"), ("tolerant_client",), "callbacks for its end"),
    Use(WakeupNotifier, ("__call__", "notify"), (*_BOOTSTRAP, "tolerant_client.mirror"),
        "a copier sleeps until something happens"),
    # -- the connection manager
    Use(KafkaConnectionManager,
        ("_build_transport", "_connect", "bootstrap_async", "DEFAULT_CONFIG", "get_connection", "least_loaded_node", "send",
         "update_backoff"),
        _MANAGER, "overridden: tolerant connections, living brokers first"),
    Use(KafkaConnectionManager,
        ("_bootstrap_wakeup", "_conns", "_do_bootstrap", "connection_delay", "get_connection", "reset_backoff", "update_backoff"),
        _BOOTSTRAP, "overridden: bootstrap addresses in parallel, and again"),
    Use(KafkaConnectionManager,
        ("_backoff", "_sensors", "reset_backoff", "socket_connection_setup_timeout_ms", "ssl_enabled"),
        _MANAGER, "when to connect, back off and give up stays kafka-python's"),
    Use(KafkaConnectionManager, ("_conns",),
        (*_FORKING, *_MANAGER, *_CONNECTIONS, "tolerant_client.cluster.cluster", "tolerant_client.ops.doctor.probing"), "the connections by node"),
    Use(KafkaConnectionManager, ("_net",),
        (*_FORKING, *_MANAGER, *_OUT_OF_RANGE, *_TOPIC_IDENTITY, "tolerant_client.stock.any_broker",
         "tolerant_client.stock.leader_watch"),
        "its event loop"),
    Use(KafkaConnectionManager,
        ("close", "closed", "cluster", "config", "wait_for"), _ALL, "sends and awaits everything"),
    Use(KafkaConnectionManager, ("broker_version_data", "call_soon"), ("tolerant_client",), "API versions; calls from threads"),
    Use(KafkaConnectionManager, ("bootstrapped",), (*_CONNECTIONS, "tolerant_client.stock.metadata"), "whether the brokers have been found"),
    Use(KafkaConnectionManager, ("connection_delay",), (*_FETCH_PLAN, *_MANAGER), "how long a node backs off"),
    Use(KafkaNetClient, ("_manager",), ("tolerant_client.metrics",), "where a stock client's recovery counters are"),
    Use(KafkaNetClient, ("_manager",), _SENDER, "the way to its event loop"),
    Use(KafkaConnectionManager, ("_net",), _SENDER, "looks for late records from time to time"),
    Use(KafkaNetClient, ("throttle_delay",), _FETCH_PLAN, "a throttled node is not asked"),
    Use(KafkaNetSocket, ("dns_lookup", "sock_connect", "socket"), _MANAGER, "connects, also through a proxy"),
    Use(KafkaNetSocket, ("__new__",), _OPTIONS, "whether it knows the kind of a proxy"),
    Use(KafkaSSLTransport, ("_build_ssl_context",), _OPTIONS, "whether it can use its files"),
    Use(ClusterMetadata, ("_coordinator_brokers",), _CONNECTIONS, "a second address is a second connection"),
    Use(ClusterMetadata, ("_topics",), ("tolerant_client.cluster.leaders",), "topics that are tracked"),
    Use(ClusterMetadata, ("_partitions",), ("tolerant_client.stock.leader_watch",), "all leaders at once"),
    Use(ClusterMetadata, ("add_listener", "cluster_id", "topic_id", "topics"), _TOPIC_IDENTITY, "whether a topic was recreated"),
    Use(ClusterMetadata, ("_do_refresh_metadata",), _BOOTSTRAP, "metadata from one node, even while others ask"),
    Use(ClusterMetadata, ("_manager", "_refresh_loop", "_refresh_loop_future", "closed", "start_refresh_loop"),
        ("tolerant_client.stock.metadata",), "overridden: the refresh loop outlives a refresh that failed"),
    Use(ClusterMetadata,
        ("_bootstrap_brokers", "_do_refresh_metadata", "_generate_bootstrap_brokers", "_last_refresh_ms", "cluster_id",
         "config", "failed_update", "is_bootstrap", "metadata_request", "update_metadata"),
        ("tolerant_client.stock.metadata",), "overridden: the bootstrap addresses are asked again"),
    Use(ClusterMetadata, ("attach", "config", "start_refresh_loop"), _MANAGER, "our metadata takes the place of its own"),
    # -- the connection and its transport
    Use(KafkaConnection,
        ("_init_complete", "_maybe_throttle", "_send_request", "connection_lost", "connection_made", "data_received",
         "send_buffered",
         "fail_in_flight_requests", "in_flight_requests", "initializing", "send_request", "transport", "unpause"),
        _CONNECTION, "overridden: the tracker decides whose response it is, and when a request is lost"),
    Use(KafkaConnection,
        ("_reauth", "_request_buffer", "_sensors", "_throttle_time", "_timeout_at", "broker_version_data", "close",
         "closed", "config", "net", "node_id", "pause", "paused"),
        _CONNECTION, "connecting, authentication, pauses and configuration stay kafka-python's"),
    Use(KafkaConnection, ("close_future", "connected", "init_future"), _MANAGER, "how connecting ended"),
    Use(KafkaConnection, ("_sasl_authenticate", "config"), ("tolerant_client.stock.sasl_offer",),
        "overridden: what the broker offers where it does not offer our mechanism"),
    Use(KafkaConnection, ("_throttle_time",), _CONNECTIONS, "how long a node throttles us"),
    Use(KafkaConnection, ("_sensors",), _TRANSPORT, "bytes sent and received are counted"),
    Use(SaslReauthenticator, ("on_response_processed",), _CONNECTION, "resumes when the responses before it have arrived"),
    Use(KafkaTCPTransport,
        ("_read_from_sock", "_sock_send", "_write_to_sock", "_writing", "abort", "last_read", "last_write"),
        _TRANSPORT, "overridden: large reads into place, gathered writes"),
    Use(KafkaTCPTransport,
        ("_close", "_closed", "_net", "_protocol", "_read", "_sock", "_write", "_write_buffer", "_write_task", "write"), _TRANSPORT,
        "the socket's state stays kafka-python's"),
    Use(KafkaTCPTransport, ("writelines",), _TRANSPORT, "overridden; 3.1 has none", is_optional=True),
    Use(KafkaTCPTransport, ("handshake",), _TRANSPORT, "overridden: TLS with a deadline"),
    Use(KafkaTCPTransport, ("get_protocol", "resume_reading", "set_protocol"), _CONNECTION, "takes over a connected transport"),
    Use(KafkaTCPTransport, ("_sock",), _FORKING, "a forked child closes its copy"),
    Use(KafkaSSLTransport, ("handshake",), _TRANSPORT, "overridden: TLS with a deadline"),
    # -- the consumer
    Use(KafkaConsumer, ("_fetcher", "_iterator"), ("tolerant_client.stock.consumer",), "poll_arrow asks for Arrow there"),
    Use(KafkaConsumer, ("_closed", "_coordinator", "_fetcher", "_iterator", "_manager", "_net", "_subscription"), _FORKING,
        "what a forked child takes over"),
    Use(KafkaConsumer, ("_client",), ("tolerant_client.metrics",), "the way to its connection manager"),
    Use(KafkaAdminClient, ("_client",), ("tolerant_client.metrics",), "the way to its connection manager"),
    Use(KafkaProducer, ("_sender",), ("tolerant_client.metrics",), "the way to its connection manager"),
    Use(Fetcher,
        ("_create_fetch_requests", "_fetchable_partitions", "_handle_fetch_response", "_next_partition_records",
         "_send_fetches_async", "send_fetches"),
        _FETCH_PLAN, "overridden: fetches ahead, and by topic id"),
    Use(Fetcher,
        ("PartitionRecords", "_append", "_handle_offset_for_leader_epoch_response", "_next_partition_records",
         "_parse_fetched_data", "_send_fetches_async", "close", "fetch_records", "fetched_records", "send_fetches"),
        _FETCHER, "overridden: decodes in bulk, doubts OffsetOutOfRange"),
    Use(Fetcher,
        ("_client", "_completed_fetches", "_enable_incremental_fetch_sessions", "_fetch_futures", "_isolation_level",
         "_manager", "_nodes_with_pending_fetch_requests", "_paused_completed_fetches", "_select_read_replica",
         "_session_handlers", "_subscriptions", "config"),
        _FETCH_PLAN, "positions and sessions stay kafka-python's"),
    Use(Fetcher,
        ("_completed_fetches", "_fetch_futures", "_isolation_level", "_manager", "_net", "_paused_partition_records",
         "_reset_task", "_sensors", "_subscriptions", "config"),
        _FETCHER, "positions and metrics stay kafka-python's"),
    Use(Fetcher,
        ("_completed_fetches", "_handle_list_offsets_response", "_manager", "_subscriptions", "config"), _OUT_OF_RANGE,
        "a refusal that is believed goes back to it"),
    Use(Fetcher.PartitionRecords,
        ("_next_inline_exception", "bytes_read", "drain", "leader_epoch", "next_fetch_offset", "records_read", "take"),
        _RECORDS, "overridden: batches are decoded here"),
    Use(Fetcher.PartitionRecords,
        ("_deserialize", "aborted_transactions", "check_crcs", "fetch_offset", "isolation_level", "topic_partition"),
        _RECORDS, "what was asked for; deserializers stay kafka-python's"),
    Use(MemoryRecords, ("_buffer",), _RECORDS, "the bytes of a fetch"),
    Use(CompletedFetch, ("fetched_offset", "partition_data", "response_version", "topic_partition"), _FETCHER, "one partition of a fetch"),
    Use(CompletedFetch, ("partition_data", "topic_partition"), _FETCH_PLAN, "one partition of a fetch"),
    Use(CompletedFetch, ("fetched_offset", "topic_partition"), _OUT_OF_RANGE, "one that was refused"),
    Use(FetchSessionHandler, ("build_next", "next_metadata"), _FETCH_PLAN, "incremental fetch sessions (KIP-227)"),
    Use(FetchRequestData, ("epoch", "id", "to_forget", "to_send"), _FETCH_PLAN, "incremental fetch sessions (KIP-227)"),
    Use(FetchMetadata, ("LEGACY",), _FETCH_PLAN, "a fetch without a session"),
    Use(SubscriptionState, ("assigned_partitions", "assignment", "missing_fetch_positions"), _COORDINATOR,
        "committed offsets; what a member owns"),
    Use(SubscriptionState, ("assignment", "is_fetchable", "is_paused", "position"), _FETCHER, "positions stay there"),
    Use(SubscriptionState, ("assignment", "is_fetchable", "position"), _FETCH_PLAN, "positions stay there"),
    Use(SubscriptionState, ("assignment", "has_default_offset_reset_policy", "position"), _OUT_OF_RANGE,
        "whether a refused position is still the position"),
    Use(Fetcher, ("_manager", "_subscriptions"), _TOPIC_IDENTITY, "the positions of recreated topics"),
    Use(SubscriptionState, ("assignment", "has_default_offset_reset_policy", "request_offset_reset"), _TOPIC_IDENTITY,
        "positions are reset there"),
    Use(TopicPartitionState, ("drop_pending_record_batch", "position"), (*_OUT_OF_RANGE, *_TOPIC_IDENTITY),
        "whether a position was set by a seek"),
    Use(SubscriptionState,
        ("_lock", "assignment", "pause", "rebalance_listener", "request_offset_reset", "seek", "subscribed_pattern",
         "subscription", "subscription_type"),
        _FORKING, "the subscription and positions of another consumer"),
    Use(TopicPartitionState, ("_position", "highwater", "position", "preferred_read_replica"), _FETCHER, "the state of a partition"),
    Use(TopicPartitionState, ("position",), _FETCH_PLAN, "the state of a partition"),
    Use(TopicPartitionState, ("paused", "position", "reset_strategy"), _FORKING, "the state of a partition"),
    # -- the group's coordinator
    Use(ConsumerCoordinator,
        ("_do_join_and_sync_async", "_handle_heartbeat_response", "_handle_offset_commit_response",
         "_handle_offset_fetch_response", "_on_join_complete_async", "_process_join_group_response",
         "_send_group_coordinator_request", "close", "commit_offsets_sync", "coordinator_dead",
         "ensure_coordinator_ready_async", "fetch_committed_offsets", "group_protocols", "maybe_leave_group_async", "poll",
         "refresh_committed_offsets_if_needed_async", "reset_generation", "stable"),
        _COORDINATOR, "overridden: an absent coordinator is reported, the next poll takes a join over"),
    Use(ConsumerCoordinator,
        ("_assignors", "_enable_heartbeat", "_generation", "_join_task", "_manager", "_net", "_subscription", "config", "coordinator_id",
         "fetch_committed_offsets_async", "group_id", "is_dynamic_member", "rebalance_in_progress", "request_rejoin", "state"),
        _COORDINATOR, "the group protocol stays kafka-python's"),
    Use(StickyPartitionAssignor, ("member_assignment",), _COORDINATOR, "what it claims; set in __init__"),
    # -- a move to another cluster (moving.py)
    Use(KafkaConnectionManager, ("_backoff", "_conns", "_net", "bootstrap_async", "broker_version_data"), _BOOTSTRAP,
        "what belongs to the former cluster"),
    Use(KafkaConnectionManager, ("_net",), _MOVING, "its event loop"),
    Use(ClusterMetadata,
        ("_bootstrap_brokers", "_broker_partitions", "_brokers", "_coordinator_brokers", "_coordinators", "_lock", "_partitions",
         "_topic_ids", "_topic_names_by_id", "cluster_id", "config", "controller", "internal_topics", "request_update",
         "unauthorized_topics"),
        ("tolerant_client.stock.metadata",), "what belongs to the former cluster"),
    Use(KafkaConsumer, ("_coordinator", "_fetcher", "_iterator", "_manager", "_subscription"), _MOVING, "its parts"),
    Use(NetworkSelector, ("call_soon_threadsafe",), ("tolerant_client.mirror.standby.copy_watch", "tolerant_client.mirror.standby.link_watch"),
        "what another thread tells a watch"),
    Use(KafkaProducer, ("_closed", "_metrics", "_sender"), _STANDBY, "what it holds until the standby has it"),
    Use(Sender, ("_accumulator", "_client"), _HELD_BATCHES, "the way to its event loop, and what it has not completed"),
    Use(KafkaNetClient, ("_manager",), _HELD_BATCHES, "the way to its event loop"),
    Use(KafkaConnectionManager, ("_net",), _HELD_BATCHES, "its event loop"),
    Use(RecordAccumulator, ("deallocate",), _HELD_BATCHES, "the end of a batch"),
    Use(ProducerBatch, ("complete", "complete_exceptionally", "record_count", "topic_partition"), _HELD_BATCHES, "the end of a batch"),
    Use(KafkaConsumer, ("_fetcher",), _STANDBY, "a seek after the move is one on the next cluster"),
    Use(SubscriptionState, ("assignment", "subscription"), _MOVING, "the topics that a client reads"),
    Use(Fetcher, ("_fetch_offsets_by_times_async",), _MOVING, "where logs end on the next cluster"),
    Use(KafkaAdminClient, ("_manager",), _MOVING, "the way to its connection manager"),
    Use(KafkaProducer, ("_sender",), _MOVING, "the way to its connection manager, and to what it has in flight"),
    Use(Sender, ("_client",), _MOVING, "the way to its connection manager"),
    Use(KafkaNetClient, ("_manager",), (*_MOVING, *_MOVED_BATCHES), "the way to its event loop"),
    Use(ClusterMetadata, ("_topics",), _MOVING, "the topics that a client writes to"),
    Use(Sender, ("_accumulator", "_client", "_transaction_manager"), _MOVED_BATCHES, "what a producer had in flight"),
    Use(KafkaConnectionManager, ("_net",), _MOVED_BATCHES, "its event loop"),
    Use(RecordAccumulator, ("_batches", "_tp_lock", "muted"), _MOVED_BATCHES, "batches in question are in flight"),
    Use(ProducerBatch, ("created", "final_state", "in_retry"), _MOVED_BATCHES, "which batches are in question"),
    Use(ProducerBatch, ("records",), _SOUGHT_BATCHES, "what to look for"),
    Use(Fetcher,
        ("_cached_list_offsets_exception", "_cached_log_truncation", "_completed_fetches", "_next_in_line_exception_metadata",
         "_next_partition_records", "_paused_completed_fetches", "_paused_partition_records", "_session_handlers"),
        _FETCHER, "what came from the former cluster is dropped"),
    Use(Fetcher, ("_send_offset_for_leader_epoch_request", "maybe_validate_positions"), _FETCHER,
        "overridden: a position of the former cluster is not validated"),
    Use(SubscriptionState, ("has_default_offset_reset_policy", "request_offset_reset", "seek"), _FETCHER, "positions on the next cluster"),
    Use(ConsumerCoordinator,
        ("_do_join_and_sync_async", "_handle_offset_commit_response", "_on_close_prepare_async", "_on_join_complete_async",
         "_on_join_prepare_async", "_send_offset_commit_request", "commit_offsets_sync", "generation_if_stable", "poll", "reset_generation", "time_to_next_poll"),
        _MOVED_MEMBER, "overridden: a member leaves the former group, reads on, commits, and joins on the next cluster"),
    Use(ConsumerCoordinator,
        ("_commit_offsets_sync_async", "_disable_heartbeat", "_generation", "_invoke_completed_offset_commit_callbacks",
         "_invoke_rebalance_listener_async", "_is_leader", "_join_task", "_manager", "_maybe_auto_commit_offsets_async", "_net",
         "_rebalance_protocol", "_send_heartbeat_request", "_subscription", "config", "coordinator_dead", "ensure_active_group",
         "ensure_coordinator_ready", "ensure_coordinator_ready_async", "fetch_committed_offsets_async", "group_id",
         "next_auto_commit_deadline", "rejoining", "state"),
        _MOVED_MEMBER, "the group protocol stays kafka-python's"),
    Use(SubscriptionState,
        ("_default_offset_reset_strategy", "all_consumed_offsets", "assign_from_subscribed", "assigned_partitions", "assignment", "mark_pending_revocation",
         "partitions_auto_assigned", "rebalance_listener", "reset_group_subscription"),
        _MOVED_MEMBER, "what a member had committed, its listener, and that it stops reading"),
    Use(ConsumerCoordinator, ("_generation", "generation_if_stable"), _GROUP_COMMITS, "overridden: a member commits before its join is over"),
    Use(ConsumerCoordinator, ("_cluster", "_commit_offsets_sync_async", "_subscription", "fetch_committed_offsets_async", "group_id"), _GROUP_COMMITS,
        "the group's commits"),
    Use(SubscriptionState,
        ("_default_offset_reset_strategy", "all_consumed_offsets", "assigned_partitions", "partitions_auto_assigned", "seek",
         "subscription"), _GROUP_COMMITS,
        "which positions the group's commits are compared with"),
    Use(TopicPartitionState, ("position",), _MOVING, "what was read on the next cluster"),
    Use(Generation, ("has_member_id",), _COORDINATOR, "an id that it has not joined with yet"),
    Use(Generation, ("NO_GENERATION", "is_lost"), _MOVED_MEMBER, "commits before the join; a member that had lost its membership"),
    Use(RebalanceProtocol, ("EAGER",), _MOVED_MEMBER, "whether the listener is told of the whole assignment"),
    # -- the producer
    Use(Sender,
        ("__init__", "_can_retry", "_complete_batch", "_dispatch_error", "_failed_produce", "_get_expired_inflight_batches",
         "_handle_produce_response", "_produce_request", "_send_producer_data", "run", "run_once"), _SENDER,
        "overridden: no waiting after a lost connection; records end in time; what may be written"),
    Use(Sender,
        ("_accumulator", "_client", "_force_close", "_in_flight_batches", "_maybe_remove_from_inflight_batches", "_running", "_transaction_manager", "config"),
        _SENDER, "its backoff, what waits to be sent, and how it ends"),
    Use(ProducerBatch, ("attempts", "final_state", "has_reached_delivery_timeout", "last_attempt"), _SENDER, "when a batch is sent again"),
    Use(RecordAccumulator, ("delivery_timeout_ms", "expired_batches", "has_incomplete", "next_expiry_time_ms", "reset_next_batch_expiry_time"),
        _SENDER, "which records are late, and when the next one is"),
    Use(RecordAccumulator, ("_batches", "_incomplete", "muted"), _SENDER, "which batches still wait, and which partitions have one in flight"),
    Use(RecordAccumulator, ("await_flush_completion",), _ACCUMULATOR, "overridden: a flush survives the split of a batch"),
    Use(RecordAccumulator, ("_flushes_in_progress", "_incomplete"), _ACCUMULATOR, "what a flush waits for"),
    Use(RecordAccumulator, ("_tp_lock", "split_and_reenqueue"), _ACCUMULATOR, "overridden: parts of a batch that may be written keep its sequences"),
    Use(RecordAccumulator, ("config",), _ACCUMULATOR, "a batch that was sent to a former cluster is made anew"),
    Use(RecordAccumulator, ("_batches", "_tp_locks", "_transaction_manager"), _ACCUMULATOR, "the parts of a batch, and their sequences"),
    Use(TransactionManager, ("update_last_acked_offset",), _SENDER, "what a batch that is held was acknowledged with"),
    Use(TransactionManager, ("increment_sequence_number", "is_transactional", "producer_id_and_epoch", "sequence_number", "set_sequence_number"), _ACCUMULATOR,
        "the sequences of the parts"),
    Use(ProducerBatch, ("_record_futures", "produce_future"), _ACCUMULATOR, "what a flush waits for"),
    Use(ProducerBatch, ("_retry", "drained", "has_sequence", "producer_epoch", "producer_id", "record_count", "records", "topic_partition"),
        _ACCUMULATOR, "the sequences of the parts"),
    Use(FutureRecordMetadata, ("_produce_future", "is_done"), _ACCUMULATOR, "what a flush waits for"),
    Use(FutureProduceResult, ("_latch",), _ACCUMULATOR, "who waits for a part that will never be sent is woken"),
    # -- the transactional producer
    Use(TransactionManager,
        ("_complete_transaction", "_enqueue_request", "_lookup_coordinator", "_restart_epoch_bump_without_producer_id",
         "begin_abort", "begin_commit", "begin_transaction", "classify_batch_error", "initialize_transactions",
         "lookup_coordinator_for_request", "reset_producer_id", "send_offsets_to_transaction"),
        _TRANSACTIONS, "overridden: what became of a transaction, and a fence before the next one"),
    Use(TransactionManager,
        ("ERROR_CLASS_ABORTABLE", "ERROR_CLASS_FATAL", "ERROR_CLASS_NEEDS_PRODUCER_ID_RESET", "ERROR_CLASS_RETRIABLE",
         "_api_version", "_current_state", "_last_acked_offset", "_lock", "_metadata",
         "_pending_requests", "_pending_txn_offset_commits", "_sequence_numbers", "_supports_epoch_bump",
         "_transition_to", "coordinator", "has_fatal_error", "is_transactional", "producer_id_and_epoch", "retry",
         "set_producer_id_and_epoch", "transaction_timeout_ms",
         "transactional_id", "transition_to_abortable_error", "transition_to_fatal_error"),
        _TRANSACTIONS, "its states and queues stay kafka-python's"),
    Use(TransactionState, ("BUMPING_PRODUCER_EPOCH", "IN_TRANSACTION", "READY"), _TRANSACTIONS, "an epoch is raised"),
    Use(ClusterMetadata, ("_manager",), _TRANSACTIONS, "the way to the connection manager"),
    Use(TxnRequestHandler,
        ("_result", "coordinator_type", "is_retry", "request", "result", "set_retry"),
        _TRANSACTIONS, "what waits for a request, and which coordinator it needs"),
    Use(TxnRequestHandler,
        ("__init__", "fail", "fatal_error", "handle_response", "on_complete", "priority", "producer_epoch", "producer_id",
         "request", "result", "transaction_manager", "transactional_id"),
        _TRANSACTION_REQUESTS, "how one request ends is decided here; one of ours asks who owns the transactional.id"),
    Use(TransactionManager, ("_lookup_coordinator", "retry"), _TRANSACTION_REQUESTS, "a request of ours is tried again"),
    Use(Priority, ("INIT_PRODUCER_ID",), _TRANSACTION_REQUESTS, "when our request is sent"),
    Use(FindCoordinatorHandler, ("_coord_key", "_coord_type"), _TRANSACTIONS, "which coordinator is looked up"),
    Use(TxnOffsetCommitHandler, ("consumer_group_id", "offsets"), _TRANSACTIONS, "what a lost copy would commit"),
    Use(TransactionalRequestResult, ("done",), _TRANSACTIONS, "the end of a fence that nobody else tells"),
    Use(TransactionalRequestResult, ("wait",), ("tolerant_client.stock.transaction_calls",), "what a call waits for"),
    # -- messages and logs
    Use(DataContainer, ("_struct",), ("tolerant_client.tracker.rules.requests",), "its compiled decoders, after tagged fields"),
    Use(DataContainer, ("_version",), ("tolerant_client.stock.masking",), "a log shows a request as its type and version"),
)  # fmt: skip

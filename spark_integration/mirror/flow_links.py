"""Turns the flows of a MirrorMaker 2 file into links that the supervisor runs: what they copy, and their duties."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable, Collection, Iterable

from kafka.structs import TopicPartition

from spark_integration.mirror.flow_watches import FlowWatches
from spark_integration.mirror.supervisor import SupervisedLink, run_links
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.mirror.engine.planned_link import plan_link
from tolerant_client.mirror.follow.acls import sync_acls
from tolerant_client.mirror.follow.checkpoints import KnownCheckpoints, emit_checkpoints
from tolerant_client.mirror.follow.configs import sync_configs
from tolerant_client.mirror.follow.group_positions import SharedPositions
from tolerant_client.mirror.follow.groups import sync_groups
from tolerant_client.mirror.follow.heartbeats import emit_heartbeat
from tolerant_client.mirror.state.control_topic import ControlWatch
from tolerant_client.ops.mm2.flows import Flow, Flows
from tolerant_client.ops.monitoring.board import Board
from tolerant_client.ops.monitoring.server import StatusServer
from tolerant_client.ops.service.clusters import connected
from tolerant_client.ops.service.duties import Duty, DutyThread
from tolerant_client.ops.service.link_events import EventPrinter, LinkEvent, Listeners, tell_duty
from tolerant_client.ops.service.mirror_settings import MirrorSettings
from tolerant_client.ops.service.restarts import RestartPolicy

_END_S = 1.0
_PLAN_S = 60.0  # how often all topics are checked if the file switches their refresh off

Stopped = Collection[TopicPartition]
Round = Callable[[Cluster, Cluster, Stopped], Awaitable[object]]


def run_flows(
    flows: Flows,
    *,
    is_stopping: Callable[[], bool],
    metrics: str | None = None,
    tell: Callable[[LinkEvent], None] | None = None,
    policy: RestartPolicy = RestartPolicy(),
) -> None:
    """Runs flows until `is_stopping`, each by itself; `metrics` is HOST:PORT for metrics and the status page.

    `tell` gets the events, from several threads; by default they are printed.
    Raises OptionError for a wrong `metrics`, and TolerantClientError if Spark died: then another process has to continue.
    """
    links = [link_of(flow) for flow in flows.flows]
    with contextlib.ExitStack() as open_:
        tell = tell or EventPrinter()
        board = Board() if metrics else None
        if metrics and board is not None:
            open_.enter_context(StatusServer(board, metrics))
        watches = open_.enter_context(FlowWatches(links, board, Listeners([tell])))
        listeners = Listeners([tell, watches.tell])
        beating = [
            DutyThread(flow.link, [heartbeats_of(flow)], _connect(flow), tell_duty(flow.link, listeners))
            for flow in flows.heartbeats_only
        ]
        try:
            run_links(links, is_stopping=is_stopping, tell=listeners, policy=policy)
        finally:
            for thread in beating:  # all at once: after the links have ended, little of the stop's 10 s is left
                thread.stop()
            watches.stop()
            for thread in beating:
                thread.close(timeout_s=_END_S)


def link_of(flow: Flow) -> SupervisedLink:
    """What the flow copies and how, and its duties."""
    settings = MirrorSettings(
        flow.source,
        flow.target,
        flow.link_topics,
        flow.link,
        tasks=flow.tasks,
        refresh_s=flow.refresh_topics_s,
        policy=flow.policy,
        offsets=flow.offsets,
        goes_on=True,
        bytes_per_s=flow.throttle_bytes,
        file_options=flow.options,
    )
    return SupervisedLink(settings, duties_of(flow), (flow.source_alias, flow.target_alias))


def duties_of(flow: Flow) -> tuple[Duty, ...]:
    """What the flow does besides copying; duties that its file switches off are left out."""
    topics = flow.link_topics
    translated = flow.link if flow.offsets == "translated" else None
    known = KnownCheckpoints(flow.names.policy.checkpoints_topic(flow.source_alias))
    shared = SharedPositions(topics, flow.groups, translated)

    async def groups(source: Cluster, target: Cluster, stopped: Stopped) -> object:
        control = ControlWatch(target, flow.link)
        await control.require_not_promoted()  # from now on it knows the current life of the link
        positions = await shared.read("groups", source, target, stopped)
        return await sync_groups(target, positions, may_write=control.require_not_promoted)

    async def checkpoints(source: Cluster, target: Cluster, stopped: Stopped) -> object:
        factor = flow.checkpoints_replication_factor
        positions = await shared.read("checkpoints", source, target, stopped)
        now_ms = int(time.time() * 1000)
        return await emit_checkpoints(target, positions, known, now_ms, replication_factor=factor)

    async def configs(source: Cluster, target: Cluster, stopped: Stopped) -> object:
        exclude, defaults = flow.config_properties_exclude, flow.use_defaults_from
        alone = {partition.topic for partition in stopped}
        return await sync_configs(source, target, topics, exclude=exclude, use_defaults_from=defaults, leave_out=alone)

    async def acls(source: Cluster, target: Cluster, _: Stopped) -> object:
        return await sync_acls(source, target, topics)

    async def plan(source: Cluster, target: Cluster, _: Stopped) -> object:
        return await plan_link(source, target, topics)

    wanted: Iterable[tuple[str, float | None, Round]] = (
        ("sync of group offsets", flow.sync_group_offsets_s, groups),
        ("checkpoints", flow.emit_checkpoints_s, checkpoints),
        ("sync of topic configurations", flow.sync_topic_configs_s, configs),
        ("sync of ACLs", flow.sync_topic_acls_s, acls),
        ("look at all topics", flow.refresh_topics_s or _PLAN_S, plan),
    )
    duties = [Duty(name, interval_s, do) for name, interval_s, do in wanted if interval_s is not None]
    return (*([] if flow.emit_heartbeats_s is None else [heartbeats_of(flow)]), *duties)


def heartbeats_of(flow: Flow) -> Duty:
    """The duty that writes the flow's heartbeats to its target, also for a flow that copies nothing."""
    interval_s = flow.emit_heartbeats_s
    assert interval_s is not None

    async def heartbeat(source: Cluster, target: Cluster, _: Stopped) -> object:
        now_ms = int(time.time() * 1000)
        topic, factor = flow.names.policy.heartbeats_topic(), flow.heartbeats_replication_factor
        return await emit_heartbeat(
            target, flow.source_alias, flow.target_alias, now_ms, topic=topic, replication_factor=factor
        )

    return Duty("heartbeats", interval_s, heartbeat, is_apart=True)


def _connect(flow: Flow) -> Callable[[], tuple[Cluster, Cluster]]:
    return lambda: connected(flow.source, flow.target, flow.names, file_options=flow.options)

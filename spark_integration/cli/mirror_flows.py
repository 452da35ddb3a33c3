"""`tolerant-kafka mirror --config`: all flows of a MirrorMaker 2 file, for as long as it runs."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from spark_integration.cli.exits import require_spark
from tolerant_client.ops.mm2.flows import Flow, Flows, read_flows
from tolerant_client.ops.printing import Table, echo, echo_each, echo_json, print_table

_LABELS = {
    "topics_exclude": "topics left out",
    "orders_is_called": "orders is called",
    "throttle_bytes": "bytes/s at most",
    "interval_seconds": "every",
}


def mirror_flows(
    config: Path,
    targets: Collection[str],
    metrics: str | None,
    *,
    is_dry_run: bool,
    as_json: bool,
) -> None:
    """Runs until SIGTERM or SIGINT; with `is_dry_run` only prints the flows.

    With `targets` only the flows into these clusters.  Raises OptionError and TolerantClientError.
    """
    flows = read_flows(config, targets)
    echo_each("warning", flows.warnings)
    if is_dry_run:
        show(flows, as_json)
        return
    require_spark()
    from spark_integration.mirror.flow_links import run_flows  # imports Spark, which --dry-run does not need
    from tolerant_client.ops.service.stop_signals import stop_signals

    stopping = stop_signals()
    run_flows(flows, is_stopping=stopping.is_set, metrics=metrics)


def show(flows: Flows, as_json: bool) -> None:
    """Prints the flows as they would run."""
    rows = [_row(flow) for flow in flows.flows]
    if as_json:
        beating = [str(flow) for flow in flows.heartbeats_only]
        echo_json({"flows": rows, "heartbeats_only": beating, "warnings": flows.warnings})
        return
    for row in rows:
        table = Table("", "", title=f"flow {row.pop('flow')}", show_header=False)
        for name, value in row.items():
            table.add_row(_LABELS.get(name, name), _shown(value))
        print_table(table)
    if flows.heartbeats_only:
        echo(f"Heartbeats only: {', '.join(map(str, flows.heartbeats_only))}")


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {'never' if s is None else f'{s:g} s'}" for name, s in value.items())
    if isinstance(value, list):
        return ", ".join(value)
    return "no limit" if value is None else str(value)


def _row(flow: Flow) -> dict[str, Any]:
    return {
        "flow": str(flow),
        "source": flow.source["bootstrap.servers"],
        "target": flow.target["bootstrap.servers"],
        "topics": list(flow.topics.include),
        "topics_exclude": list(flow.topics.exclude),
        "orders_is_called": flow.link_topics.to_target("orders"),
        "groups": list(flow.groups.include),
        "offsets": flow.offsets,
        "tasks": flow.tasks,
        "throttle_bytes": flow.throttle_bytes,
        "interval_seconds": {
            "refresh_topics": flow.refresh_topics_s,
            "sync_group_offsets": flow.sync_group_offsets_s,
            "sync_topic_configs": flow.sync_topic_configs_s,
            "sync_topic_acls": flow.sync_topic_acls_s,
            "emit_heartbeats": flow.emit_heartbeats_s,
            "emit_checkpoints": flow.emit_checkpoints_s,
        },
    }
